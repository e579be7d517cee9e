"""What is held, as text. Keys are shown, because that is what was asked for; no other values."""

from __future__ import annotations

from collections.abc import Sequence

from cdc_lake.cli.render import counted, size, table
from cdc_lake.pipeline.held import HeldChange, HeldList
from cdc_lake.pipeline.redecode import HeldRetry
from cdc_lake.pipeline.waiting import UndecodedTransaction

_SHOWN = 100


def list_text(found: HeldList) -> str:
    """The undecodable transactions, each with its error, then held changes, one a line."""
    lines: list[str] = []
    for one in found.undecodable:
        lines += _undecodable(one)
    if found.undecodable:
        after = f", and {counted(found.behind, 'transaction')} behind the first" if found.behind else ""
        several = "them" if len(found.undecodable) > 1 else "it"
        lines += [f"silver stops before {several}{after}: `cdc-lake held retry` decodes {several} again", ""]
    if found.changes:
        rows: list[tuple[str, ...]] = [("table", "position", "op", "key", "held by")]
        rows += [_change(change) for change in found.changes[:_SHOWN]]
        lines += table(rows, indent="")
        more = len(found.changes) - _SHOWN
        lines += [f"… and {more:,} more: the control table `held` has all"] if more > 0 else []
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


def _change(change: HeldChange) -> tuple[str, ...]:
    key = ", ".join("NULL" if part is None else part for part in change.key)
    return (
        change.table,
        f"{change.position} #{change.ordinal}",
        change.op,
        f"({key})",
        ", ".join(change.rules) or "waits behind a held change of its key",
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
