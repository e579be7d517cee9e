"""The logical decoding options of GaussDB, openGauss and MogDB, as data.

Names, forms, ranges and defaults are the server's. A mode is how a slot is read: by SQL functions, or by a stream that
one thread decodes (serial) or several (parallel). For the open-source servers, their parsers define which options
exist; the others are known only from GaussDB's documentation. Rules between options are in `validation/gaussdb.py`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

OptionValue: TypeAlias = bool | int | str
"""A value as written in a pipeline file."""

GAUSSDB = frozenset({"gaussdb"})
OPEN_SOURCE = frozenset({"opengauss", "mogdb"})
EVERYWHERE = GAUSSDB | OPEN_SOURCE


class Mode(enum.StrEnum):
    """How a slot is read."""

    SQL = "sql"
    SERIAL = "serial"
    PARALLEL = "parallel"


class Form(enum.StrEnum):
    """How a value is written."""

    BOOLEAN = "boolean"
    NUMBER = "whole number"
    STYLE = "b, t or j"
    WHITE_LIST = "schema.table,…"
    OIDS = "OID,…"
    NAMES = "name,…"
    POSITION = "CSN/LSN"
    ANY = "not documented"


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `low`, `high`: bounds of a number; `default`: the server's; `sent_default`: the value that is sent if
    none is configured.

    `since`: the first release of openGauss that has it, and of MogDB, which uses the same numbers. `wide`: from 505 on,
    GaussDB limits the number in parallel mode to a share of its memory, which only the server knows.
    """

    name: str
    form: Form
    about: str
    default: str = ""
    low: int = 0
    high: int = 1
    products: frozenset[str] = EVERYWHERE
    since: tuple[int, ...] = ()
    modes: frozenset[Mode] = frozenset(Mode)
    sent_default: str = ""
    wide: bool = False
    documented: bool = True


_STREAM = frozenset({Mode.SERIAL, Mode.PARALLEL})
_SERIAL = frozenset({Mode.SQL, Mode.SERIAL})
_PARALLEL = frozenset({Mode.PARALLEL})
_LARGEST = 2**31 - 1
_UNDOCUMENTED = "Named only in newer GaussDB documents; its records are not documented."

_TABLE = (
    Option(
        "parallel-decode-num", Form.NUMBER, "Decoder threads: 1 for serial decoding, 2 or more for parallel decoding.",
        default="1, or logical_decode_options_default", low=1, high=20, modes=_STREAM, sent_default="4",
    ),
    Option(
        "decode-style", Form.STYLE, "Format of rows in parallel decoding: binary, text or JSON, by its first letter.",
        default="b", modes=_PARALLEL, sent_default="b",
    ),
    Option(
        "sending-batch", Form.NUMBER, "1: records are collected into messages of 1 MiB, in CSN order in a transaction.",
        default="0", modes=_PARALLEL, sent_default="1",
    ),
    Option(
        "parallel-queue-size", Form.NUMBER, "Length of the queues between decoder threads; a power of two.",
        default="128", low=2, high=1024, modes=_PARALLEL,
    ),
    Option("include-xids", Form.BOOLEAN, "Include the xid of each transaction.", default="on", sent_default="on"),
    Option(
        "include-timestamp", Form.BOOLEAN, "Include the commit time of each transaction.",
        default="serial on (from 3.0.0), parallel off", sent_default="on",
    ),
    Option(
        "skip-empty-xacts", Form.BOOLEAN,
        "Do not send transactions without captured changes. Off, these prove that no CSN is missing and move the slot.",
        default="off", sent_default="off",
    ),
    Option("only-local", Form.BOOLEAN, "Do not send changes that have a replication origin.", default="on"),
    Option(
        "include-originid", Form.BOOLEAN, "Include the ID of each transaction's replication origin.",
        default="off", products=OPEN_SOURCE, since=(5, 0),
    ),
    Option("force-binary", Form.BOOLEAN, "Has no use: only `off` is accepted.", default="off", modes=_SERIAL),
    Option(
        "white-table-list", Form.WHITE_LIST,
        "Tables to send, without spaces; `*` stands for a whole schema or table name. By default made from `tables`.",
        default="all tables",
    ),
    Option(
        "max-txn-in-memory", Form.NUMBER,
        "Size of one transaction, in MB, from which it is spilled to disk; 0: no limit.",
        default="0; newer GaussDB in parallel: a share of max_process_memory", high=100, wide=True,
    ),
    Option(
        "max-reorderbuffer-in-memory", Form.NUMBER,
        "Size of all transactions, in GB, from which they are spilled; 0: no limit.",
        default="0; newer GaussDB in parallel: a share of max_process_memory", high=100, wide=True,
    ),
    Option(
        "standby-connection", Form.BOOLEAN,
        "Decode on a standby only: the stream is read from one of `hosts`, everything else from the primary.",
        default="off", modes=_STREAM,
    ),
    Option(
        "sender-timeout", Form.NUMBER, "Milliseconds without a reply after which the server ends the stream; 0: never.",
        default="logical_sender_timeout (30 s)", high=_LARGEST, modes=_STREAM,
    ),
    Option(
        "include-user", Form.BOOLEAN, "Include the session user in BEGIN.", default="off", products=GAUSSDB,
    ),
    Option(
        "exclude-userids", Form.OIDS, "Users whose transactions are not sent, by OID; not checked.", products=GAUSSDB,
    ),
    Option("exclude-users", Form.NAMES, "Users whose transactions are not sent, by name.", products=GAUSSDB),
    Option(
        "dynamic-resolution", Form.BOOLEAN, "If off, a name in exclude-users that does not exist ends the stream.",
        default="on", products=GAUSSDB,
    ),
    Option(
        "enable-heartbeat", Form.BOOLEAN,
        "The server sends heartbeats: a metric of its decoding lag, never a position to acknowledge.",
        default="off", products=GAUSSDB, modes=_STREAM,
    ),
    Option(
        "output-order", Form.NUMBER, "0: by commit LSN, 1: by CSN. Must match the slot; `slot.output_order` sets it.",
        default="0; through a coordinator always CSN", products=GAUSSDB, modes=_STREAM,
    ),
    Option(
        "auto-advance", Form.BOOLEAN, "The server advances the slot by itself. Only `off` is accepted.",
        default="off", products=GAUSSDB, modes=_STREAM,
    ),
    Option(
        "skip-generated-columns", Form.BOOLEAN, "Omit generated columns from new rows; old rows still have them.",
        default="off", products=GAUSSDB,
    ),
    Option(
        "logical-receiver-num", Form.NUMBER,
        "Receivers that the coordinator starts to collect from the data nodes, at most one per shard.",
        default="1", low=1, high=20, products=GAUSSDB, modes=_STREAM,
    ),
    Option(
        "slice-id", Form.NUMBER,
        "Shard of the data node, from 0; without it, a change to a replicated table ends the stream.",
        default="none", high=8192, products=GAUSSDB, modes=_STREAM,
    ),
    Option(
        "start-position", Form.POSITION, "Internal to coordinators: it hides the BEGIN of its CSN. Never accepted.",
        default="none", products=GAUSSDB, modes=_STREAM,
    ),
    *(
        Option(name, Form.ANY, _UNDOCUMENTED, products=GAUSSDB, documented=False)
        for name in (
            "decode-sequence", "enable-ddl-decoding", "enable-ddl-json-format", "desc-memory-limit", "enable-cn-decode",
        )
    ),
)  # fmt: skip

OPTIONS: Mapping[str, Option] = {option.name: option for option in _TABLE}
"""Every option by name, in the order in which they are sent."""

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def as_boolean(value: OptionValue) -> bool | None:
    """A boolean as the server's parser reads it: words or their unambiguous prefixes, in any case; None if invalid."""
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if not text or text == "o":  # the beginning of both `on` and `off`
        return None
    if any(word.startswith(text) for word in _TRUE):
        return True
    return False if any(word.startswith(text) for word in _FALSE) else None


def as_number(value: OptionValue) -> int | None:
    """An integer, also from text; None if it is not one."""
    if isinstance(value, bool):
        return None
    text = str(value)
    return int(text) if text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() else None


def as_sent(option: Option | None, value: OptionValue) -> str:
    """The text that is sent to the server for a valid value. `option` None: an unknown option."""
    form = Form.ANY if option is None else option.form
    if form is Form.BOOLEAN or isinstance(value, bool):
        return "on" if as_boolean(value) else "off"
    if form is Form.STYLE:
        return str(value)[:1]
    number = as_number(value) if form is Form.NUMBER else None
    return str(value) if number is None else str(number)


def decoding_schema() -> dict[str, Any]:
    """JSON Schema of the section `decoding`, for completion and descriptions in editors."""
    return {"properties": {name: _schema(option) for name, option in OPTIONS.items()}}


def options_are_known() -> dict[str, Any]:
    """JSON Schema of the enclosing section: only known names in `decoding`, unless `allow_unknown_options` is true."""
    free = {"properties": {"allow_unknown_options": {"const": True}}, "required": ["allow_unknown_options"]}
    return {"if": {"not": free}, "then": {"properties": {"decoding": {"propertyNames": {"enum": list(OPTIONS)}}}}}


def _schema(option: Option) -> dict[str, Any]:
    about = f"{option.about} Server's default: {option.default}." if option.default else option.about
    described: dict[str, Any] = {"description": about}
    match option.form:
        case Form.BOOLEAN:
            words = {"type": "string", "enum": ["on", "off", "true", "false", "yes", "no"]}
            number = {"type": "integer", "minimum": 0, "maximum": 1}
            return {**described, "anyOf": [{"type": "boolean"}, number, words]}
        case Form.NUMBER:
            bound = {} if option.wide else {"maximum": option.high}
            return {**described, "type": "integer", "minimum": option.low, **bound}
        case Form.STYLE:
            return {**described, "type": "string", "enum": ["b", "t", "j", "binary", "text", "json"]}
        case Form.ANY:
            return described
        case _:
            return {**described, "type": "string"}
