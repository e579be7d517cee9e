"""What is held, as text. Keys are shown, because that is what was asked for; no other values."""

from __future__ import annotations

from collections.abc import Sequence

from cdc_lake.cli.render import size, table
from cdc_lake.model.counting import counted
from cdc_lake.model.decision import CEILING
from cdc_lake.pipeline.held.decide import HeldDecision
from cdc_lake.pipeline.held.listing import HeldChange, HeldList
from cdc_lake.pipeline.held.redecode import HeldRetry
from cdc_lake.pipeline.state.waiting import UndecodedTransaction

_SHOWN = 100
_KEYS = 3


def list_text(found: HeldList) -> str:
    """The undecodable transactions, each with its error, then held changes, one a line."""
    lines: list[str] = []
    for one in found.undecodable:
        lines += _undecodable(one)
    if found.undecodable:
        after = f", and {counted(found.behind, 'transaction')} behind the first" if found.behind else ""
        several = "them" if len(found.undecodable) > 1 else "it"
        lines += [f"silver stops before {several}{after}: `cdc-lake held retry` decodes {several} again", ""]
    lines += _changes(found.changes)
    return "\n".join(lines).rstrip() or "nothing is held"


def _undecodable(one: UndecodedTransaction) -> list[str]:
    what = f"{counted(one.frames, 'message')}, {size(one.bytes)}"
    return [
        f"transaction {one.position} could not be decoded: {what}, {_tables(one.tables)}",
        f"  {one.code}: {one.message}",
        f"  in {one.where}; tried by cdc_lake {one.by}",
    ]


def _tables(tables: Sequence[str]) -> str:
    return f"of {', '.join(tables)}" if tables else "of tables that could not be read"


def _changes(changes: Sequence[HeldChange]) -> list[str]:
    if not changes:
        return []
    rows: list[tuple[str, ...]] = [("table", "position", "op", "key", "held by")]
    lines = table([*rows, *(_change(change) for change in changes[:_SHOWN])], indent="")
    more = len(changes) - _SHOWN
    return [*lines, *([f"… and {more:,} more: the control table `held` has all"] if more > 0 else [])]


def decided_text(found: HeldDecision) -> str:
    """What was decided, or would be, change by change, and what stays held."""
    past = {"release": "released", "discard": "discarded"}[found.verb]
    lines = _changes(found.changes)
    for one in found.left:
        keys = ", ".join(_key(key) for key in one.keys[:_KEYS]) + (", …" if len(one.keys) > _KEYS else "")
        lines.append(f"{keys} stays held: {one.why}")
    if found.before:
        was = "was" if found.before == 1 else "were"
        lines.append(f"{counted(found.before, 'change')} {was} {past} before")
    if not found.changes:
        return "\n".join([*lines, *([] if lines else [f"nothing of {found.source} is held that was asked for"])])
    many = counted(len(found.changes), "change")
    if found.done:
        when = "a run carries it out once the table is resumed" if found.paused else "the next run carries it out"
        verdict = f"{many} {past}: {when}, before position {found.position}"
    else:
        verdict = f"{many} would be {past}: say --yes to do it"
    return "\n".join([*lines, "", verdict])


def _key(key: Sequence[str | None]) -> str:
    return f"({', '.join('NULL' if part is None else part for part in key)})"


def _change(change: HeldChange) -> tuple[str, ...]:
    waits = "a held change of its key" if change.group is None else f"what group {change.group} holds"
    why = ", ".join(change.rules) or f"waits behind {waits}"
    decided = {None: "", "release": "; to be released", "discard": "; to be discarded"}
    return (
        change.table,
        f"{change.position} released" if change.ordinal < CEILING else f"{change.position}:{change.ordinal}",
        change.op,
        _key(change.key),
        why + decided[change.decided],
    )


def retry_text(done: HeldRetry) -> str:
    """What became of each transaction."""
    lines = []
    for one in done.tried:
        if one.changes is None:
            lines += [f"{one.position}  still cannot be decoded", f"  {one.code}: {one.message}", f"  in {one.where}"]
        else:
            lines.append(f"{one.position}  decoded: {counted(one.changes, 'change')} {_tables(one.tables)}")
    if not done.tried:
        return "nothing waits to be decoded"
    verdict = f"{counted(done.failed, 'transaction')} of {len(done.tried)} cannot be decoded by cdc_lake {done.version}"
    return "\n".join([*lines, verdict if done.failed else "`cdc-lake run` applies what waited"])
