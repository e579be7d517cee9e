"""Prepared transactions that are kept, as text: one a line."""

from __future__ import annotations

from cdc_lake.cli.render import size, table
from cdc_lake.model.counting import counted
from cdc_lake.pipeline.inspect.parked import ParkedList, PreparedTransaction

_NUMBERS = frozenset({1, 4, 5})  # columns


def parked_text(found: ParkedList) -> str:
    """Each with what it has; its gid as Python writes it, since it may hold anything."""
    if found.place is None:
        return "none are kept: they arrive whole at their COMMIT PREPARED (`source.decoding.two_phase` is off)"
    if not found.transactions:
        return f"none wait in {found.place}"
    heads = ("gid", "xid", "position", "prepared", "changes", "bytes", "tables")
    lines = table([heads, *map(_row, found.transactions)], right=_NUMBERS, indent="")
    many, held = counted(len(found.transactions), "transaction"), sum(one.bytes for one in found.transactions)
    return "\n".join([*lines, "", f"{many} kept until COMMIT PREPARED, {size(held)}, in {found.place}"])


def _row(one: PreparedTransaction) -> tuple[str, ...]:
    at = f"{one.prepared_at:%Y-%m-%dT%H:%M:%SZ}"
    tables = ", ".join(one.tables) or "-"
    return repr(one.gid), str(one.xid), one.position, at, f"{one.changes:,}", size(one.bytes), tables
