"""The options of START_REPLICATION, parsed and refused as the server does.

Serial decoding passes them to the output plugin once the stream is open, parallel decoding parses them before:
`Refused.in_stream` says when the error occurs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cdc_lake.decode.gaussdb.records import Style
from cdc_lake_testing.gaussdb.dialect import Dialect
from cdc_lake_testing.gaussdb.sql import Failed

Pairs = Sequence[tuple[str, str | None]]


class Refused(Exception):
    """Options the server refuses; `failed` is its answer, `in_stream` if it comes after CopyBothResponse."""

    def __init__(self, failed: Failed, *, in_stream: bool) -> None:
        super().__init__(failed.message)
        self.failed = failed
        self.in_stream = in_stream


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What a stream was asked for. `tables`: the white list, None for all; `sender_timeout` in seconds."""

    parallel: int = 1
    style: Style = Style.SERIAL
    style_given: bool = True
    batch: bool = False
    xids: bool = True
    timestamps: bool = False
    origins: bool = False
    users: bool = False
    skip_empty: bool = False
    skip_generated: bool = False
    only_local: bool = True
    tables: frozenset[tuple[str, str]] | None = None
    excluded_users: frozenset[str] = field(default=frozenset())
    heartbeat: bool = False
    standby: bool = False
    output_order: int | None = None
    receivers: int | None = None
    slice_id: int | None = None
    sender_timeout: float | None = None

    @property
    def serial(self) -> bool:
        """True for serial decoding."""
        return self.style is Style.SERIAL

    def wants(self, schema: str, table: str) -> bool:
        """True if the white list lets the table through."""
        if self.tables is None:
            return True
        return any(pair in self.tables for pair in ((schema, table), ("*", table), (schema, "*"), ("*", "*")))


_TRUE: Final = ("true", "yes", "on", "1")
_FALSE: Final = ("false", "no", "off", "0")


def parse_options(pairs: Pairs, dialect: Dialect) -> StreamOptions:
    """The options a stream runs with; raises Refused."""
    given = dict(pairs)
    number = _parallel(given)
    parallel = number > 1
    known = _common(dialect) | (_PARALLEL if parallel else _SERIAL)
    options = StreamOptions(
        parallel=number,
        style=Style.BINARY if parallel else Style.SERIAL,
        style_given=not parallel or "decode-style" in given,
        timestamps=not parallel,
    )
    for name, value in pairs:
        if name == "parallel-decode-num":
            continue
        parse = known.get(name)
        if parse is None:
            shown = "(null)" if value is None else value
            raise _refused(f'option "{name}" = "{shown}" is unknown', in_stream=not parallel)
        try:
            options = replace(options, **parse(value, parallel))
        except _Unparsable as error:
            message = error.message or f'could not parse value "{value or ""}" for parameter "{name}"'
            detail = None if name == "sender-timeout" else "N/A"
            raise _refused(message, in_stream=not parallel, detail=detail) from None
    return options


class _Unparsable(Exception):
    def __init__(self, message: str | None = None) -> None:
        super().__init__(message)
        self.message = message


_Parse = Callable[[str | None, bool], Mapping[str, Any]]


def _refused(message: str, *, in_stream: bool, detail: str | None = "N/A") -> Refused:
    return Refused(Failed("22023", message, detail, severity="FATAL"), in_stream=in_stream)


def _parallel(given: Mapping[str, str | None]) -> int:
    text = given.get("parallel-decode-num", "1")
    if text is None or re.fullmatch(r"\d{1,9}", text) is None or not 1 <= int(text) <= 20:
        raise _refused(f'could not parse value "{text or ""}" for parameter "parallel-decode-num"', in_stream=False)
    return int(text)


def _boolean(name: str | None, *, bare_serial: bool = False, bare_parallel: bool = False) -> _Parse:
    def parse(value: str | None, parallel: bool) -> Mapping[str, Any]:
        if value is None:
            return {} if name is None else {name: bare_parallel if parallel else bare_serial}
        text = value.lower()
        for words, truth in ((_TRUE, True), (_FALSE, False)):
            # beginnings count while they are unambiguous: `o` could be both
            if any(word.startswith(text) for word in words) and text not in {"", "o"}:
                return {} if name is None else {name: truth}
        raise _Unparsable

    return parse


def _integer(low: int, high: int, name: str | None = None) -> _Parse:
    def parse(value: str | None, parallel: bool) -> Mapping[str, Any]:  # noqa: ARG001 - one signature for all
        if value is None or re.fullmatch(r"-?\d{1,10}", value) is None or not low <= int(value) <= high:
            raise _Unparsable
        return {} if name is None else {name: int(value)}

    return parse


def _style(value: str | None, parallel: bool) -> Mapping[str, Any]:  # noqa: ARG001
    styles = {"b": Style.BINARY, "t": Style.TEXT, "j": Style.JSON}
    if not value or value[0] not in styles:
        raise _Unparsable
    return {"style": styles[value[0]]}


def _batch(value: str | None, parallel: bool) -> Mapping[str, Any]:  # noqa: ARG001
    if value not in {"0", "1"}:
        raise _Unparsable
    return {"batch": value == "1"}


def _queue(value: str | None, parallel: bool) -> Mapping[str, Any]:
    _integer(2, 1024)(value, parallel)
    size = int(value or 0)
    if size & (size - 1):
        raise _Unparsable("option parallel-queue-size should be a power of two")
    return {}


def _timeout(value: str | None, parallel: bool) -> Mapping[str, Any]:  # noqa: ARG001
    if value is None or re.fullmatch(r"\d{1,10}", value) is None or int(value) > 2147483647:
        raise _Unparsable(f'invalid value for parameter "logical_sender_timeout": "{value or ""}"')
    return {"sender_timeout": int(value) / 1000}


def _white_list(value: str | None, parallel: bool) -> Mapping[str, Any]:  # noqa: ARG001
    tables = set()
    for item in (value or "").split(","):
        schema, dot, table = item.strip().partition(".")
        if not dot or not schema or not table:
            raise _Unparsable
        tables.add((schema, table))
    return {"tables": frozenset(tables)}


def _names(value: str | None, parallel: bool) -> Mapping[str, Any]:  # noqa: ARG001
    return {"excluded_users": frozenset(name.strip() for name in (value or "").split(",") if name.strip())}


def _ignored(value: str | None, parallel: bool) -> Mapping[str, Any]:  # noqa: ARG001
    return {}


_PARALLEL: Final[dict[str, _Parse]] = {
    "decode-style": _style,
    "sending-batch": _batch,
    "parallel-queue-size": _queue,
}


_SERIAL: Final[dict[str, _Parse]] = {"force-binary": _boolean(None)}


def _common(dialect: Dialect) -> dict[str, _Parse]:
    known: dict[str, _Parse] = {
        "include-xids": _boolean("xids", bare_serial=True, bare_parallel=True),
        "include-timestamp": _boolean("timestamps"),
        "skip-empty-xacts": _boolean("skip_empty"),
        "only-local": _boolean("only_local", bare_serial=True, bare_parallel=True),
        "white-table-list": _white_list,
        "max-txn-in-memory": _integer(0, 100),
        "max-reorderbuffer-in-memory": _integer(0, 100),
        "standby-connection": _boolean("standby"),
        "sender-timeout": _timeout,
    }
    if dialect.origins:
        known["include-originid"] = _boolean("origins", bare_serial=True)
    if dialect.extensions:
        known |= {
            "include-user": _boolean("users"),
            "enable-heartbeat": _boolean("heartbeat"),
            "output-order": _integer(0, 1, "output_order"),
            "exclude-users": _names,
            "exclude-userids": _ignored,
            "dynamic-resolution": _boolean(None),
            "auto-advance": _boolean(None),
            "skip-generated-columns": _boolean("skip_generated"),
            "logical-receiver-num": _integer(1, 20, "receivers"),
            "slice-id": _integer(0, 8192, "slice_id"),
        }
    return known
