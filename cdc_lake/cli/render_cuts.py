"""Cuts as text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from cdc_lake.cli.render import table
from cdc_lake.model.counting import counted
from cdc_lake.pipeline.judging.cut_list import CutLine, CutList, CutTable, CutView, PromiseLine
from cdc_lake.pipeline.judging.promising import Promised


def list_text(found: CutList) -> str:
    """One cut a line, the newest first."""
    if not found.cuts:
        return "there is no cut yet: `cdc-lake run --once` makes one" if not found.total else "no cut is promised"
    rows: list[tuple[str, ...]] = [("epoch", "position", "committed", "tables", "stays readable")]
    rows += [_line(cut) for cut in found.cuts]
    more = found.total - len(found.cuts)
    return "\n".join([*table(rows, indent=""), *([f"… and {counted(more, 'older cut')}"] if more > 0 else [])])


def _line(cut: CutLine) -> tuple[str, ...]:
    tables = str(cut.tables)
    if cut.behind:
        tables += f", {len(cut.behind)} behind"
    if cut.held:
        tables += f", {counted(cut.held, 'key')} held"
    kept = _promised(cut.promises) or ", ".join(f"not as {one.name}: {one.reason}" for one in cut.withheld)
    return str(cut.epoch), cut.position, _time(cut.commit_ts), tables, kept


def cut_text(found: CutView) -> str:
    """The cut, then its tables."""
    head = f"{found.position} of epoch {found.epoch}, committed {_time(found.commit_ts)}"
    rows: list[tuple[str, ...]] = [("table", "silver", "format", "version", "position", "state")]
    rows += [_table(one) for one in found.tables]
    promised = [f"stays readable as {_promised(found.promises)}"] if found.promises else []
    back = [f"not promised as {one.name}: {one.reason}" for one in found.withheld]
    return "\n".join([head, *promised, *back, *table(rows, indent="")])


def _table(one: CutTable) -> tuple[str, ...]:
    version = "none yet" if one.version is None else str(one.version)
    state = one.state if not one.held else f"{one.state}, {counted(one.held, 'key')} held"
    if one.version is not None and not one.readable:
        state += ", its version is gone"
    return one.source, one.table, one.format, version, one.position, state


def promised_text(done: Promised) -> str:
    """What stands now."""
    if done.ended:
        return f"the promise `{done.name}` is ended; the cut at {done.position} may go with the next upkeep"
    until = "until the promise is ended" if done.until is None else _until(done.until)
    return f"the cut at {done.position} stays readable as `{done.name}` {until}"


def _promised(promises: Sequence[PromiseLine]) -> str:
    return ", ".join(f"{one.name} ({_until(one.until)})" for one in promises)


def _until(time: datetime | None) -> str:
    return "no end" if time is None else f"until {_time(time)}"


def _time(time: datetime | None) -> str:
    return "before the stream" if time is None else time.astimezone(UTC).isoformat(timespec="seconds")
