"""Which options of logical decoding go together: judged before any connection is opened.

`judge` tells every broken rule of a source of the GaussDB family. Given the release that the server itself names, the
same rules judge what a file could not know.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping

from cdc_lake.config.family_rules import judge_source
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
from cdc_lake.config.gaussdb_refusal import Refusal, Rule
from cdc_lake.config.quantity import format_milliseconds
from cdc_lake.config.release import Release, pad_release, parse_release, show_release
from cdc_lake.config.source import FamilySource
from cdc_lake.config.white_list import uncovered, wrong_entry

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
    """Every broken rule; `release` is the one the server names, by default the one that is declared.

    Its numbers are GaussDB's own, or those of the openGauss that the server is made from.
    """
    if release is None and source.version is not None:
        release = parse_release(source.version)
    return [*judge_source(source), *_options(source, None if release is None else pad_release(release))]


def _options(source: FamilySource, release: Release | None) -> Iterator[Refusal]:
    good: dict[str, OptionValue] = {}
    for name, value in source.decoding.items():
        refused = _name(source, release, name) or _value(source, release, name, value) or _mode(source, name)
        if refused is None:
            good[name] = value
        else:
            yield refused
    yield from _never(good)
    yield from _of_slot(source, good)
    yield from _of_stream(source, good)
    yield from _of_release(source, good, release)


def _refuse(rule: Rule, name: str, summary: str, remedy: str, *, key: bool = False) -> Refusal:
    return Refusal(rule, ("decoding", name), summary, remedy, key=key)


def _name(source: FamilySource, release: Release | None, name: str) -> Refusal | None:
    """Whether the server knows the option."""
    option, product = OPTIONS.get(name), source.type
    free = option is None or not option.documented
    if source.allow_unknown_options and free and _OPTION.fullmatch(name):
        return None
    if option is None:
        remedy = f"{_similar(name)}send it as it is with `allow_unknown_options: true`"
        return _refuse(Rule.UNKNOWN, name, f"`{name}` is no option of logical decoding", remedy, key=True)
    if product not in option.products:
        rule = Rule.GAUSSDB_ONLY if option.products == GAUSSDB else Rule.OPEN_SOURCE_ONLY
        return _refuse(rule, name, f"{product} knows no option `{name}`", "remove it", key=True)
    if not option.documented:
        summary = f"what `{name}` puts into the stream is in no document"
        remedy = "remove it, or take the risk with `allow_unknown_options: true`"
        return _refuse(Rule.UNDOCUMENTED, name, summary, remedy, key=True)
    if option.since and release is not None and release < (*option.since, 0):
        since = ".".join(map(str, option.since))
        summary = f"`{name}` came with {since}, the server is {show_release(release)}"
        return _refuse(Rule.SINCE, name, summary, "remove it", key=True)
    return None


def _similar(name: str) -> str:
    given = name.lower().replace("_", "-")
    words = set(given.split("-"))  # `batch-sending`, as one of the vendor's documents writes it
    close = [known for known in OPTIONS if set(known.split("-")) == words]
    close = close or difflib.get_close_matches(given, OPTIONS, n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`? otherwise " if close else ""


def _value(  # noqa: PLR0911  # one return a form
    source: FamilySource, release: Release | None, name: str, value: OptionValue
) -> Refusal | None:
    option = OPTIONS.get(name)
    if source.decoding_mode is Mode.SQL and isinstance(value, str) and _DANGEROUS.search(value):
        summary = f"`{name}` has a character that SQL functions refuse"
        return _refuse(Rule.SQL_CHARACTERS, name, summary, "leave it out; `tables` filters again after the server")
    match option.form if option is not None else Form.ANY:
        case Form.BOOLEAN if as_boolean(value) is None:
            return _refuse(Rule.BOOLEAN, name, f"`{name}` is on or off", "write `true` or `false`")
        case Form.NUMBER if option is not None:
            return _number(source, release, option, value)
        case Form.STYLE if str(value)[:1] not in {"b", "t", "j"}:
            remedy = "write b (binary), t (text) or j (JSON), in small letters"
            return _refuse(Rule.STYLE_LETTER, name, f"`{name}` is none of b, t, j", remedy)
        case Form.WHITE_LIST if (entry := wrong_entry(str(value))) is not None:
            remedy = "write schema.table,schema.*,*.table without blanks, or leave it to `tables`"
            return _refuse(Rule.WHITE_LIST, name, f"`{entry}` is no entry of a white list", remedy)
        case Form.OIDS if not _OID_LIST.fullmatch(str(value)):
            return _refuse(Rule.COMMA_LIST, name, f"`{name}` is a list of numbers", "write 10,16384 without blanks")
        case Form.NAMES if not _NAME_LIST.fullmatch(str(value)):
            return _refuse(Rule.COMMA_LIST, name, f"`{name}` is a list of names", "write anna,bert without blanks")
        case _:
            return None


def _number(source: FamilySource, release: Release | None, option: Option, value: OptionValue) -> Refusal | None:
    number, high = as_number(value), option.high
    of_memory = source.type == "gaussdb" and source.decoding_mode is Mode.PARALLEL
    if option.wide and of_memory and (release is None or release >= _WIDE_SINCE):
        high = 2**31 - 1
    if number is None or not option.low <= number <= high:
        summary = f"`{option.name}` is a whole number from {option.low} to {high}"
        return _refuse(Rule.RANGE, option.name, summary, _default(option))
    if option.name == "parallel-queue-size" and number & (number - 1):
        nearest = 1 << (number.bit_length() - 1)
        summary = f"`{option.name}` is a power of two"
        return _refuse(Rule.POWER_OF_TWO, option.name, summary, f"write {nearest} or {nearest * 2}")
    return None


def _default(option: Option) -> str:
    return f"left out it is {option.ours or option.default}"


def _mode(source: FamilySource, name: str) -> Refusal | None:
    """Whether the option exists in the way the slot is read."""
    option, mode = OPTIONS.get(name), source.decoding_mode
    if option is None or mode in option.modes:
        return None
    if mode is Mode.SQL and name == "parallel-decode-num" and as_number(source.decoding[name]) == 1:
        return None  # serial is what SQL functions do
    if mode is Mode.SQL:
        remedy = "remove it, or use `mode: stream`"
        return _refuse(Rule.STREAM_ONLY, name, f"SQL functions take no `{name}`", remedy, key=True)
    if mode is Mode.SERIAL:
        remedy = "set `parallel-decode-num` to 2 or more, or remove it"
        return _refuse(Rule.PARALLEL_ONLY, name, f"serial decoding knows no `{name}`", remedy, key=True)
    return _refuse(Rule.SERIAL_ONLY, name, f"parallel decoding knows no `{name}`", "remove it", key=True)


def _on(given: _Given, name: str) -> bool:
    return name in given and as_boolean(given[name]) is True


def _never(given: _Given) -> Iterator[Refusal]:
    """What is not used here, whatever the server."""
    if "start-position" in given:
        summary = "`start-position` hides the BEGIN of its CSN: no whole transaction can follow"
        remedy = "remove it; a stream goes on from what bronze holds"
        yield _refuse(Rule.NO_START_POSITION, "start-position", summary, remedy, key=True)
    if _on(given, "auto-advance"):
        summary = "with `auto-advance` the server moves the slot past what bronze holds"
        remedy = "remove it; the slot moves by what bronze has confirmed"
        yield _refuse(Rule.BRONZE_CONFIRMS, "auto-advance", summary, remedy)
    if _on(given, "force-binary"):
        summary = "`force-binary` changes nothing in a stream, and SQL functions refuse it"
        remedy = "remove it; binary records come with `decode-style: b` in parallel decoding"
        yield _refuse(Rule.NO_BINARY, "force-binary", summary, remedy)


def _of_slot(source: FamilySource, given: _Given) -> Iterator[Refusal]:
    """What depends on the node and on the order of the slot."""
    csn = source.slot_order == "csn"
    for name, node in _OF_NODE.items():
        if name not in given:
            continue
        if not csn:
            remedy = "remove it, or say `slot: {output_order: csn}`"
            yield _refuse(Rule.CSN_SLOT_OPTION, name, f"`{name}` is for slots in CSN order", remedy, key=True)
        elif (source.node or node) != node:
            remedy = f"remove it, or say `node: {node}`"
            yield _refuse(Rule.NODE_OPTION, name, f"`{name}` is for a {node.replace('_', ' ')}", remedy, key=True)
    if source.node is None and csn and all(name in given for name in _OF_NODE):
        summary = "`slice-id` is for a data node, `logical-receiver-num` for a coordinator"
        yield _refuse(Rule.NODE_OPTION, "slice-id", summary, "remove one of them", key=True)
    if "output-order" in given and as_number(given["output-order"]) != int(csn):
        summary = f"`output-order` is not the order of the slot, which is {source.slot_order.upper()}"
        remedy = "remove it: `slot.output_order` says it, and it is sent from there"
        yield _refuse(Rule.ORDER_OF_SLOT, "output-order", summary, remedy)
    if _on(given, "skip-empty-xacts") and source.order == "csn" and not csn:
        summary = "with `skip-empty-xacts` nobody can tell a lost transaction from an empty one"
        remedy = "remove it, or use `order: lsn`"
        yield _refuse(Rule.DENSITY, "skip-empty-xacts", summary, remedy)
    yield from _of_standby(source, given)
    if source.node == "coordinator" and "exclude-userids" in given:
        summary = "a user has another OID on each data node, and a coordinator hands one list to all of them"
        yield _refuse(Rule.USERS_BY_NAME, "exclude-userids", summary, "use `exclude-users`, by name", key=True)


def _of_standby(source: FamilySource, given: _Given) -> Iterator[Refusal]:
    """Decoding on a standby: the slot is made, and the tables are copied, on the primary."""
    if not _on(given, "standby-connection"):
        return
    if source.node == "coordinator":
        summary = "a coordinator is no standby, and `standby-connection` lets standbys decode only"
        yield _refuse(Rule.STANDBY, "standby-connection", summary, "remove it")
    elif len(source.hosts or ()) < 2:
        summary = "a standby decodes, but a slot is made and tables are copied on the primary: both are needed"
        yield _refuse(Rule.STANDBY, "standby-connection", summary, "name both in `hosts`, or remove it")


def _of_stream(source: FamilySource, given: _Given) -> Iterator[Refusal]:
    """What depends on other settings of the source."""
    timeout = as_number(given["sender-timeout"]) if "sender-timeout" in given else None
    if timeout and timeout < _SHORTEST_TIMEOUT:
        summary = f"the server would end the stream after {format_milliseconds(timeout)} without a reply"
        remedy = f"write at least {_SHORTEST_TIMEOUT} (milliseconds), or 0 for no limit"
        yield _refuse(Rule.REPLY_IN_TIME, "sender-timeout", summary, remedy)
    listed = given.get("white-table-list")
    if listed is not None and (missing := uncovered(str(listed), source.tables)):
        summary = f"the white list does not let through all that `tables` takes in: {', '.join(missing)}"
        remedy = "add it, narrow `tables`, or leave the list out: it is made from `tables`"
        yield _refuse(Rule.LIST_COVERS, "white-table-list", summary, remedy)


def _of_release(source: FamilySource, given: _Given, release: Release | None) -> Iterator[Refusal]:
    """What only some releases do; nothing where the release is not known."""
    if release is None or source.type == "gaussdb" or source.decoding_mode is not Mode.PARALLEL:
        return
    if release < _PARALLEL_SINCE:
        summary = f"{source.type} {show_release(release)} has no parallel decoding, which came with 3.0.0"
        yield _refuse(Rule.SINCE, "parallel-decode-num", summary, "set `parallel-decode-num: 1`")
        return
    style, batch = (as_sent(OPTIONS[n], given.get(n, OPTIONS[n].ours)) for n in ("decode-style", "sending-batch"))
    if style != "b" and batch == "0" and release < _UNBATCHED_SINCE:
        summary = f"style {style} without batches has no position to confirm on {show_release(release)}"
        yield _refuse(Rule.UNBATCHED, "sending-batch", summary, "set `sending-batch: 1`, or `decode-style: b`")
