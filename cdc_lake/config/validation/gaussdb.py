"""The rules of a source of the GaussDB family: which fields and options of logical decoding go together.

`judge` evaluates them before any connection is opened. With the release that the server itself reports, the same rules
find what the file could not show.
"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cdc_lake.config import fields
from cdc_lake.config.gaussdb_options import (
    GAUSSDB,
    OPTIONS,
    Form,
    Mode,
    Option,
    OptionValue,
    as_boolean,
    as_number,
    as_sent,
)
from cdc_lake.config.source import FamilySource, host_and_port
from cdc_lake.config.validation.checked_pipeline import CheckedPipeline, Finding
from cdc_lake.model.diagnostic import Problem, Severity


class Rule(enum.Enum):
    """A rule: its name in hints, and the code of its problem; `tools/docs/decoding_options.py` explains each."""

    def __init__(self, label: str, problem: Problem) -> None:
        self.label, self.problem = label, problem

    # which options there are
    UNKNOWN = "unknown-option", Problem.OPTION_UNKNOWN
    UNDOCUMENTED = "undocumented-option", Problem.OPTION_UNKNOWN
    GAUSSDB_ONLY = "gaussdb-only", Problem.OPTION_UNKNOWN
    OPEN_SOURCE_ONLY = "open-source-only", Problem.OPTION_UNKNOWN
    SINCE = "since-release", Problem.OPTION_UNKNOWN
    # what a value looks like
    BOOLEAN = "boolean", Problem.OPTION_VALUE
    RANGE = "range", Problem.OPTION_VALUE
    POWER_OF_TWO = "power-of-two", Problem.OPTION_VALUE
    STYLE_LETTER = "style-letter", Problem.OPTION_VALUE
    WHITE_LIST = "white-list-form", Problem.OPTION_VALUE
    COMMA_LIST = "comma-list", Problem.OPTION_VALUE
    SQL_CHARACTERS = "sql-characters", Problem.OPTION_VALUE
    # what goes with what
    PARALLEL_ONLY = "parallel-only", Problem.OPTION_COMBINATION
    SERIAL_ONLY = "serial-only", Problem.OPTION_COMBINATION
    STREAM_ONLY = "stream-only", Problem.OPTION_COMBINATION
    NO_BINARY = "no-force-binary", Problem.OPTION_COMBINATION
    NO_START_POSITION = "no-start-position", Problem.OPTION_COMBINATION
    BRONZE_CONFIRMS = "bronze-confirms", Problem.OPTION_COMBINATION
    CSN_SLOT_OPTION = "csn-slot-option", Problem.OPTION_COMBINATION
    NODE_OPTION = "option-of-node", Problem.OPTION_COMBINATION
    ORDER_OF_SLOT = "output-order-of-slot", Problem.OPTION_COMBINATION
    DENSITY = "density-needs-empty-transactions", Problem.OPTION_COMBINATION
    STANDBY = "standby-and-primary", Problem.OPTION_COMBINATION
    USERS_BY_NAME = "users-by-name", Problem.OPTION_COMBINATION
    UNBATCHED = "unbatched-since-5.0", Problem.OPTION_COMBINATION
    LIST_COVERS = "white-list-covers-tables", Problem.OPTION_COMBINATION
    REPLY_IN_TIME = "reply-in-time", Problem.OPTION_COMBINATION
    # fields of the source beside its options
    ONE_HOST = "one-host", Problem.SOURCE_COMBINATION
    HOST_PORT = "host-and-port", Problem.SOURCE_COMBINATION
    SLOT_NAME = "slot-name", Problem.SOURCE_COMBINATION
    NODE = "distributed-gaussdb", Problem.SOURCE_COMBINATION
    PLUGIN_PRODUCT = "plugin-of-gaussdb", Problem.SOURCE_COMBINATION
    PLUGIN_STYLE = "plugin-and-style", Problem.SOURCE_COMBINATION
    CSN_SLOT_PRODUCT = "csn-slot-of-gaussdb", Problem.SOURCE_COMBINATION
    COORDINATOR_ORDER = "coordinator-in-csn-order", Problem.SOURCE_COMBINATION
    CSN_SLOT_ORDER = "order-of-csn-slot", Problem.SOURCE_COMBINATION
    SERIAL_ORDER = "serial-is-not-dense", Problem.SOURCE_COMBINATION
    NODE_ORDER = "data-node-is-not-dense", Problem.SOURCE_COMBINATION
    POLLING_SLOT = "polling-in-lsn-order", Problem.SOURCE_COMBINATION


@dataclass(frozen=True, slots=True)
class Refusal:
    """A violated rule: its path in the file, what is wrong, and what to do. `key`: it concerns the key itself."""

    rule: Rule
    path: str
    summary: str
    remedy: str
    key: bool = False


_PLUGIN_STYLES = {"parallel_binary_decoding": "b", "parallel_text_decoding": "t", "parallel_json_decoding": "j"}


def _hosts(source: FamilySource) -> Iterator[Refusal]:
    if (source.host is None) == (source.hosts is None):
        twice = source.host is not None
        summary = "`host` and `hosts` are both set" if twice else "no host is set"
        remedy = "keep one of them" if twice else "add `host: …`, or `hosts: […]` for several"
        yield Refusal(Rule.ONE_HOST, "source.hosts" if twice else "source", summary, remedy, key=twice)
    without = source.host
    for i, text in enumerate(source.hosts or ()):
        try:
            host, port = host_and_port(text)
        except ValueError as bad:
            summary = f"`{text}` is not a valid host: {bad}"
            yield Refusal(Rule.HOST_PORT, f"source.hosts[{i}]", summary, "write db1 or db1:8000")
        else:
            without = host if port is None and without is None else without
    if without is not None and source.port is None:
        remedy = "add `port: …`: often 8000 for GaussDB, 5432 for openGauss, 26000 for MogDB"
        yield Refusal(Rule.HOST_PORT, "source", f"host `{without}` has no port", remedy)
    if source.type != "gaussdb" and source.node not in {None, "single"}:
        summary = f"{source.type} is not distributed: it has no {str(source.node).replace('_', ' ')}"
        yield Refusal(Rule.NODE, "source.node", summary, "remove `node`, or use `type: gaussdb`")


def _slot(source: FamilySource) -> Iterator[Refusal]:
    slot, path = source.slot, "source.slot.plugin"
    if slot.name is not None and slot.name.startswith("gs_roach"):
        summary = "slot names that begin with gs_roach are reserved by the server"
        yield Refusal(Rule.SLOT_NAME, "source.slot.name", summary, "choose another name")
    style = _PLUGIN_STYLES.get(slot.plugin)
    if style is None:
        return
    if source.type != "gaussdb":
        yield Refusal(Rule.PLUGIN_PRODUCT, path, f"{source.type} has no plugin {slot.plugin}", "use mppdb_decoding")
        return
    name = "decode-style"
    sent = as_sent(OPTIONS[name], source.decoding.get(name, OPTIONS[name].sent_default))
    if source.decoding_mode is not Mode.PARALLEL:
        summary = f"the output of {slot.plugin} in serial decoding is not documented"
        yield Refusal(Rule.PLUGIN_STYLE, path, summary, "use mppdb_decoding, or parallel decoding in a stream")
    elif sent != style:
        summary = f"{slot.plugin} is for style {style}, but `decode-style` is {sent}"
        yield Refusal(Rule.PLUGIN_STYLE, path, summary, f"set `decode-style: {style}`, or use mppdb_decoding")


def _order(source: FamilySource) -> Iterator[Refusal]:
    output_order, polling = source.slot.output_order, source.decoding_mode is Mode.SQL
    path = "source.slot.output_order"
    if source.type != "gaussdb":
        if output_order == "csn":
            summary = f"{source.type} has no slots in CSN order"
            remedy = "remove it: with `order: auto`, the receiver puts transactions of an ordinary slot into CSN order"
            yield Refusal(Rule.CSN_SLOT_PRODUCT, path, summary, remedy)
            return
    elif source.node == "coordinator" and output_order == "lsn":
        summary = "a coordinator always sends transactions in CSN order"
        yield Refusal(Rule.COORDINATOR_ORDER, path, summary, "remove it, or set it to csn")
        return
    if source.slot_order == "csn":
        yield from _csn_slot(source, polling=polling)
    elif source.order == "csn" and source.decoding_mode is not Mode.PARALLEL:
        what = "SQL functions omit" if polling else "serial decoding omits"
        summary = f"{what} transactions of other databases: CSNs have gaps"
        remedy = "use `order: lsn`" if polling else "use `order: lsn`, or `parallel-decode-num` 2 or more"
        yield Refusal(Rule.SERIAL_ORDER, "source.order", summary, remedy)
    elif source.order == "csn" and source.node == "data_node":
        summary = "one data node of several has gaps in its CSNs"
        yield Refusal(Rule.NODE_ORDER, "source.order", summary, "use `order: lsn`, or a slot with `output_order: csn`")


def _csn_slot(source: FamilySource, *, polling: bool) -> Iterator[Refusal]:
    path = "source.slot.output_order" if source.slot.output_order else "source.node"
    if polling:
        summary = "SQL functions return LSNs, which have no meaning for a slot in CSN order"
        node = "a data node: a coordinator has no slot in LSN order"
        other = "a slot in LSN order" if source.slot.output_order else node
        yield Refusal(Rule.POLLING_SLOT, path, summary, f"use `mode: stream`, or {other}")
    if source.order == "lsn":
        summary = "positions of a slot in CSN order are CSNs"
        yield Refusal(Rule.CSN_SLOT_ORDER, "source.order", summary, "remove it, or use a slot in LSN order")


_UNBATCHED_SINCE = (5, 0, 0)  # before, the header of an unbatched message is no position that is safe to confirm
_PARALLEL_SINCE = (3, 0, 0)
_WIDE_SINCE = (505, 0, 0)
_SHORTEST_TIMEOUT = 1000  # ms
_OF_NODE = {"logical-receiver-num": "coordinator", "slice-id": "data_node"}
_DANGEROUS = re.compile(r"[;`\\'\"><&|!\n]")
_OPTION = re.compile(r"[A-Za-z0-9_-]{1,63}")
_NAME_LIST = re.compile(r"[^\s,]+(,[^\s,]+)*")
_OID_LIST = re.compile(r"[0-9]{1,10}(,[0-9]{1,10})*")

_Given = Mapping[str, OptionValue]


def judge(source: FamilySource, release: tuple[int, ...] | None = None) -> list[Refusal]:
    """All violated rules. `release`: the one that the server reports, by default the one in the file; its numbers are
    GaussDB's own, or those of the openGauss release on which the server is based.
    """
    if release is None and source.version is not None:
        release = fields.parse_release(source.version)
    options = _options(source, None if release is None else fields.pad_release(release))
    return [*_hosts(source), *_slot(source), *_order(source), *options]


def _options(source: FamilySource, release: fields.Release | None) -> Iterator[Refusal]:
    good: dict[str, OptionValue] = {}
    for name, value in source.decoding.items():
        refused = _name(source, release, name) or _value(source, release, name, value) or _mode(source, name)
        if refused is None:
            good[name] = value
        else:
            yield refused
    yield from _unsupported_options(good)
    yield from _of_slot(source, good)
    yield from _of_stream(source, good)
    yield from _of_release(source, good, release)


def _refuse(rule: Rule, name: str, summary: str, remedy: str, *, key: bool = False) -> Refusal:
    return Refusal(rule, f"source.decoding.{name}", summary, remedy, key=key)


def _name(source: FamilySource, release: fields.Release | None, name: str) -> Refusal | None:
    """Whether the server has the option."""
    option, product = OPTIONS.get(name), source.type
    free = option is None or not option.documented
    if source.allow_unknown_options and free and _OPTION.fullmatch(name):
        return None
    if option is None:
        remedy = f"{_similar(name)}send it as it is with `allow_unknown_options: true`"
        return _refuse(Rule.UNKNOWN, name, f"`{name}` is not an option of logical decoding", remedy, key=True)
    if product not in option.products:
        rule = Rule.GAUSSDB_ONLY if option.products == GAUSSDB else Rule.OPEN_SOURCE_ONLY
        return _refuse(rule, name, f"{product} has no option `{name}`", "remove it", key=True)
    if not option.documented:
        summary = f"the effect of `{name}` on the stream is not documented"
        remedy = "remove it, or accept the risk with `allow_unknown_options: true`"
        return _refuse(Rule.UNDOCUMENTED, name, summary, remedy, key=True)
    if option.since and release is not None and release < (*option.since, 0):
        since = ".".join(map(str, option.since))
        summary = f"`{name}` requires release {since}, the server is {fields.show_release(release)}"
        return _refuse(Rule.SINCE, name, summary, "remove it", key=True)
    return None


def _similar(name: str) -> str:
    normalized = name.lower().replace("_", "-")
    words = set(normalized.split("-"))  # `batch-sending`, as one of the vendor's documents writes it
    close = [option for option in OPTIONS if set(option.split("-")) == words]
    close = close or difflib.get_close_matches(normalized, OPTIONS, n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`? otherwise " if close else ""


def _value(  # noqa: PLR0911  # one return a form
    source: FamilySource, release: fields.Release | None, name: str, value: OptionValue
) -> Refusal | None:
    option = OPTIONS.get(name)
    if source.decoding_mode is Mode.SQL and isinstance(value, str) and _DANGEROUS.search(value):
        summary = f"`{name}` contains a character that SQL functions reject"
        return _refuse(Rule.SQL_CHARACTERS, name, summary, "remove it; the receiver filters by `tables` in any case")
    match option.form if option is not None else Form.ANY:
        case Form.BOOLEAN if as_boolean(value) is None:
            return _refuse(Rule.BOOLEAN, name, f"`{name}` must be on or off", "write `true` or `false`")
        case Form.NUMBER if option is not None:
            return _number(source, release, option, value)
        case Form.STYLE if str(value)[:1] not in {"b", "t", "j"}:
            remedy = "write b (binary), t (text) or j (JSON), in lowercase"
            return _refuse(Rule.STYLE_LETTER, name, f"`{name}` must be b, t or j", remedy)
        case Form.WHITE_LIST if (entry := fields.wrong_entry(str(value))) is not None:
            remedy = "write schema.table,schema.*,*.table without spaces, or remove it: it is made from `tables`"
            return _refuse(Rule.WHITE_LIST, name, f"`{entry}` is not a valid white list entry", remedy)
        case Form.OIDS if not _OID_LIST.fullmatch(str(value)):
            return _refuse(Rule.COMMA_LIST, name, f"`{name}` must be a list of OIDs", "write 10,16384 without spaces")
        case Form.NAMES if not _NAME_LIST.fullmatch(str(value)):
            return _refuse(Rule.COMMA_LIST, name, f"`{name}` must be a list of names", "write anna,bert without spaces")
        case _:
            return None


def _number(source: FamilySource, release: fields.Release | None, option: Option, value: OptionValue) -> Refusal | None:
    number, high = as_number(value), option.high
    of_memory = source.type == "gaussdb" and source.decoding_mode is Mode.PARALLEL
    if option.wide and of_memory and (release is None or release >= _WIDE_SINCE):
        high = 2**31 - 1
    if number is None or not option.low <= number <= high:
        summary = f"`{option.name}` must be an integer from {option.low} to {high}"
        return _refuse(Rule.RANGE, option.name, summary, f"the default is {option.sent_default or option.default}")
    if option.name == "parallel-queue-size" and number & (number - 1):
        nearest = 1 << (number.bit_length() - 1)
        summary = f"`{option.name}` must be a power of two"
        return _refuse(Rule.POWER_OF_TWO, option.name, summary, f"write {nearest} or {nearest * 2}")
    return None


def _mode(source: FamilySource, name: str) -> Refusal | None:
    """Whether the option exists in the mode in which the slot is read."""
    option, mode = OPTIONS.get(name), source.decoding_mode
    if option is None or mode in option.modes:
        return None
    if mode is Mode.SQL and name == "parallel-decode-num" and as_number(source.decoding[name]) == 1:
        return None  # serial is what SQL functions do
    if mode is Mode.SQL:
        remedy = "remove it, or use `mode: stream`"
        return _refuse(Rule.STREAM_ONLY, name, f"SQL functions do not support `{name}`", remedy, key=True)
    if mode is Mode.SERIAL:
        remedy = "set `parallel-decode-num` to 2 or more, or remove it"
        return _refuse(Rule.PARALLEL_ONLY, name, f"serial decoding does not support `{name}`", remedy, key=True)
    return _refuse(Rule.SERIAL_ONLY, name, f"parallel decoding does not support `{name}`", "remove it", key=True)


def _is_on(options: _Given, name: str) -> bool:
    return name in options and as_boolean(options[name]) is True


def _unsupported_options(options: _Given) -> Iterator[Refusal]:
    """Options that are never accepted, with any server."""
    if "start-position" in options:
        summary = "`start-position` hides the BEGIN of its CSN: no complete transaction can follow"
        remedy = "remove it; a stream resumes from what bronze holds"
        yield _refuse(Rule.NO_START_POSITION, "start-position", summary, remedy, key=True)
    if _is_on(options, "auto-advance"):
        summary = "with `auto-advance`, the server advances the slot past what bronze holds"
        remedy = "remove it; the slot advances as bronze acknowledges"
        yield _refuse(Rule.BRONZE_CONFIRMS, "auto-advance", summary, remedy)
    if _is_on(options, "force-binary"):
        summary = "`force-binary` has no effect in a stream, and SQL functions reject it"
        remedy = "remove it; for binary records use `decode-style: b` in parallel decoding"
        yield _refuse(Rule.NO_BINARY, "force-binary", summary, remedy)


def _of_slot(source: FamilySource, options: _Given) -> Iterator[Refusal]:
    """Rules that depend on the node and on the order of the slot."""
    csn = source.slot_order == "csn"
    for name, node in _OF_NODE.items():
        if name not in options:
            continue
        if not csn:
            remedy = "remove it, or set `slot: {output_order: csn}`"
            yield _refuse(Rule.CSN_SLOT_OPTION, name, f"`{name}` requires a slot in CSN order", remedy, key=True)
        elif (source.node or node) != node:
            remedy = f"remove it, or set `node: {node}`"
            yield _refuse(Rule.NODE_OPTION, name, f"`{name}` is for a {node.replace('_', ' ')}", remedy, key=True)
    if source.node is None and csn and all(name in options for name in _OF_NODE):
        summary = "`slice-id` is for a data node, `logical-receiver-num` for a coordinator"
        yield _refuse(Rule.NODE_OPTION, "slice-id", summary, "remove one of them", key=True)
    if "output-order" in options and as_number(options["output-order"]) != int(csn):
        summary = f"`output-order` is not the order of the slot, which is {source.slot_order.upper()}"
        remedy = "remove it: `slot.output_order` sets it"
        yield _refuse(Rule.ORDER_OF_SLOT, "output-order", summary, remedy)
    if _is_on(options, "skip-empty-xacts") and source.order == "csn" and not csn:
        summary = "with `skip-empty-xacts`, a lost transaction cannot be told from an empty one"
        remedy = "remove it, or use `order: lsn`"
        yield _refuse(Rule.DENSITY, "skip-empty-xacts", summary, remedy)
    yield from _of_standby(source, options)
    if source.node == "coordinator" and "exclude-userids" in options:
        summary = "OIDs of users differ between data nodes, and a coordinator passes one list to all of them"
        yield _refuse(Rule.USERS_BY_NAME, "exclude-userids", summary, "use `exclude-users`, by name", key=True)


def _of_standby(source: FamilySource, options: _Given) -> Iterator[Refusal]:
    """Decoding on a standby: the slot is created, and the tables are copied, on the primary."""
    if not _is_on(options, "standby-connection"):
        return
    if source.node == "coordinator":
        summary = "a coordinator is not a standby, and `standby-connection` lets only standbys decode"
        yield _refuse(Rule.STANDBY, "standby-connection", summary, "remove it")
    elif len(source.hosts or ()) < 2:
        summary = "a standby decodes, but the slot and the snapshot are the primary's: both are needed"
        yield _refuse(Rule.STANDBY, "standby-connection", summary, "list both in `hosts`, or remove it")


def _of_stream(source: FamilySource, options: _Given) -> Iterator[Refusal]:
    """Rules that depend on other settings of the source."""
    timeout = as_number(options["sender-timeout"]) if "sender-timeout" in options else None
    if timeout and timeout < _SHORTEST_TIMEOUT:
        summary = f"the server would end the stream after {fields.format_milliseconds(timeout)} without a reply"
        remedy = f"write at least {_SHORTEST_TIMEOUT} (milliseconds), or 0 for no limit"
        yield _refuse(Rule.REPLY_IN_TIME, "sender-timeout", summary, remedy)
    listed = options.get("white-table-list")
    if listed is not None and (missing := fields.find_uncovered(str(listed), source.tables)):
        summary = f"the white list omits tables that `tables` captures: {', '.join(missing)}"
        remedy = "add them, narrow `tables`, or remove the list: it is made from `tables`"
        yield _refuse(Rule.LIST_COVERS, "white-table-list", summary, remedy)


def _of_release(source: FamilySource, options: _Given, release: fields.Release | None) -> Iterator[Refusal]:
    """Rules that depend on the release; none if it is unknown."""
    if release is None or source.type == "gaussdb" or source.decoding_mode is not Mode.PARALLEL:
        return
    if release < _PARALLEL_SINCE:
        summary = f"{source.type} {fields.show_release(release)} has no parallel decoding, which requires 3.0.0"
        yield _refuse(Rule.SINCE, "parallel-decode-num", summary, "set `parallel-decode-num: 1`")
        return
    style, batch = (
        as_sent(OPTIONS[n], options.get(n, OPTIONS[n].sent_default)) for n in ("decode-style", "sending-batch")
    )
    if style != "b" and batch == "0" and release < _UNBATCHED_SINCE:
        summary = f"style {style} without batches has no position to acknowledge on {fields.show_release(release)}"
        yield _refuse(Rule.UNBATCHED, "sending-batch", summary, "set `sending-batch: 1`, or `decode-style: b`")


def family_rules(pipeline: CheckedPipeline) -> Iterator[Finding]:
    """All violated rules of a source of the family, then warnings about settings that work, but not as expected."""
    source = pipeline.family
    for refusal in judge(source):
        hint = f"{refusal.remedy} (rule {refusal.rule.label})"
        yield Finding(refusal.rule.problem, refusal.path, refusal.summary, hint, refusal.key)
    skips = as_boolean(source.decoding.get("skip-empty-xacts", False))
    if skips and source.order == "auto" and source.slot_order == "lsn" and source.decoding_mode is Mode.PARALLEL:
        summary = "with `skip-empty-xacts`, the stream is in LSN order, and an idle database retains WAL"
        hint, path = "remove it for CSN order, or set `order: lsn`", "source.decoding.skip-empty-xacts"
        yield Finding(Problem.OPTION_COMBINATION, path, summary, hint, severity=Severity.WARNING)
    if source.node == "data_node":
        summary = (
            "the stream of a data node has only the rows of its shard, and a part of each transaction across shards"
        )
        hint = "read through a coordinator, `node: coordinator`, or run one pipeline for each data node"
        path = "source.node"
        yield Finding(Problem.SOURCE_COMBINATION, path, summary, hint, severity=Severity.WARNING)
        if source.slot_order == "csn" and "slice-id" not in source.decoding:
            summary = "without `slice-id`, a change to a replicated table ends the stream"
            hint = "add the number of this node's shard, from 0: `decoding: {slice-id: 0}`"
            yield Finding(Problem.OPTION_COMBINATION, path, summary, hint, severity=Severity.WARNING)
