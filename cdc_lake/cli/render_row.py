"""The row of one key as text: a line an event with what it changed, then where the row stands."""

from __future__ import annotations

from collections.abc import Mapping

from cdc_lake.bronze.history import RowEvent
from cdc_lake.cli.render_inspect import OPS, time_text, value_text
from cdc_lake.model.counting import counted
from cdc_lake.pipeline.held.listing import HeldChange
from cdc_lake.pipeline.inspect.row import RowChange, RowEverywhere, SilverRows
from cdc_lake.source.stream import shown


def row_text(found: RowEverywhere) -> str:
    """The whole of it; `bronze`, `held` and `silver` are the last lines, so that a glance at the end tells most."""
    key = ", ".join(f"{column}={value}" for column, value in found.key.items())
    lines = [f"{found.table} ({key}): {counted(len(found.events), 'event')}", ""]
    epochs = len({event.epoch for event in found.events}) > 1
    for event, change in zip(found.events, found.changes, strict=True):
        lines.append(_event(event, change, epoch=epochs))
    lines += ["", f"bronze  {_row(found.net)}"]
    lines += [f"held    {_held(change)}" for change in found.held]
    return "\n".join([*lines, *_silver(found.silver)])


def _event(event: RowEvent, change: RowChange, *, epoch: bool) -> str:
    of = f"epoch {event.epoch}  " if epoch else ""
    place = f"{of}{shown(event.stream, event.position)}:{event.ordinal}"
    said = f"  {_said(event, change)}".rstrip()
    if event.note:  # its ordinal is a time, and no place in a transaction
        op = "read" if event.new is not None else "gone"
        return f"  {of}{shown(event.stream, event.position)}  {op:<8}{said}  {event.note}"
    return f"  {place}  {time_text(event.commit_ts)}  {OPS.get(event.op, event.op):<8}{said}"


def _said(event: RowEvent, change: RowChange) -> str:
    """What is new: all of a new row, of an update what differs, and what is not known of what was not sent."""
    after = change.after
    if after is None:
        return _row(change.before) if change.before is not None else ""
    before = change.before
    unknown = [f"{name} was not sent" for name in event.unchanged if name not in after]
    if before is None:
        moved = [f"from {_row(event.old)}"] if event.old is not None else []
        return ", ".join([_row(after), *moved, *unknown])
    told = [
        f"{name} {value_text(before[name])} → {value_text(value)}" if name in before else f"{name} {value_text(value)}"
        for name, value in after.items()
        if name not in before or before[name] != value
    ]
    return ", ".join([*told, *unknown]) or "no value changed"


def _row(values: Mapping[str, str | None] | None) -> str:
    if values is None:
        return "no row"
    return "(" + ", ".join(f"{name}={value_text(value)}" for name, value in values.items()) + ")"


def _held(change: HeldChange) -> str:
    why = f"breaks {', '.join(change.rules)}" if change.rules else "waits behind a held change"
    return f"{change.position}:{change.ordinal} {OPS.get(change.op, change.op)}, {why}"


def _silver(silver: SilverRows | None) -> list[str]:
    if silver is None:
        return ["silver  has nothing of this table yet"]
    state = "" if silver.state == "in" else f" ({silver.state})"
    head = f"silver  {silver.table} at {silver.position}{state}:"
    if silver.reason:
        return [f"{head} {silver.reason}"]
    if len(silver.rows) == 1:
        return [f"{head} {_row(silver.rows[0])}"]
    return [f"{head} no row"] if not silver.rows else [head, *(f"        {_row(row)}" for row in silver.rows)]
