"""Slots as text: one a line, the pipeline's own marked, and what was done to it."""

from __future__ import annotations

from cdc_lake.cli.render import size, table
from cdc_lake.model.counting import counted
from cdc_lake.pipeline.ports.slot_values import SlotAdvanced, SlotDropped, SlotList, SlotMade, SlotView

_NUMBERS = frozenset({5, 6})  # columns


def list_text(found: SlotList) -> str:
    """Every slot with its state; `*` is the pipeline's own."""
    if not found.slots:
        return f"{found.source} has no slots"
    heads = ("", "slot", "plugin", "database", "confirmed", "WAL kept", "still safe", "state")
    lines = table([heads, *map(_row, found.slots)], right=_NUMBERS, indent="")
    mine = any(one.own for one in found.slots)
    return "\n".join([*lines, "", "* is this pipeline's" if mine else "none of them is this pipeline's"])


def _row(one: SlotView) -> tuple[str, ...]:
    marks = [name for name, on in (("temporary", one.temporary), ("failover", one.failover)) if on]
    state = ", ".join([f"{one.state}: {one.reason}", *marks])
    plugin, database = one.plugin or one.kind, one.database or "-"
    kept, safe = size(one.retained_bytes), size(one.safe_bytes)
    return "*" if one.own else "", one.name, plugin, database, one.confirmed or "-", kept, safe, state


def made_text(made: SlotMade) -> str:
    """What `create` made."""
    if not made.created:
        return f"slot `{made.slot}` is there already, and the stream can go on after {made.position}"
    copied = f", with a copy of {counted(made.rows, 'row')} as of then" if made.rows else ""
    return f"slot `{made.slot}` keeps changes after {made.position}{copied}: `cdc-lake run` receives them"


def advanced_text(done: SlotAdvanced) -> str:
    """What `advance` let go."""
    if not done.bytes:
        return f"slot `{done.slot}` is at {done.position} already"
    return f"slot `{done.slot}` went from {done.before} to {done.position}: {size(done.bytes)} of log need not be kept"


def dropped_text(done: SlotDropped) -> str:
    """What is lost by a drop, and whether it was made."""
    freed = f"; {size(done.freed_bytes)} of WAL may go" if done.freed_bytes is not None else ""
    if done.done:
        return f"slot `{done.slot}` is dropped{freed}\nlost: {done.lost}"
    return f"slot `{done.slot}` would be dropped{freed}\nlost: {done.lost}\n\nnothing was done: say --yes to do it"
