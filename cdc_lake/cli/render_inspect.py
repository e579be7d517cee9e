"""What `inspect` found, as text. These show row values, because that is what was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from cdc_lake.bronze.chain import ChainVerdict
from cdc_lake.bronze.history import RowEvent
from cdc_lake.cli.render import counted, size
from cdc_lake.pipeline.inspect import ChangeView, RowView, TransactionView
from cdc_lake.source.stream import shown

_OPS = {
    "I": "insert",
    "U": "update",
    "D": "delete",
    "T": "truncate",
    "M": "message",
    "S": "snapshot",
    "X": "undecodable",
}


def transaction_text(found: TransactionView) -> str:
    """A transaction: its boundaries, then one line a change."""
    xid = "" if found.xid is None else f", xid {found.xid}"
    by = f", by {found.user}" if found.user else ""
    lines = [
        f"transaction {shown(found.stream, found.position)}, epoch {found.epoch}{xid}{by}",
        f"committed   {_time(found.commit_ts)}",
        f"size        {counted(len(found.changes), 'change')}, {size(found.size)}",
        f"content     {found.content}",
        "",
    ]
    return "\n".join(lines + [_change(change) for change in found.changes])


def _change(change: ChangeView) -> str:
    op = _OPS.get(change.op, change.op)
    return f"  {change.ordinal:>4} {op:<8} {change.relation or ''}{_tuples(change.new, change.old, change.unchanged)}"


def row_text(found: RowView) -> str:
    """The history of a row, one event a line."""
    key = ", ".join(f"{column}={value}" for column, value in found.key.items())
    lines = [f"{found.table} ({key}): {counted(len(found.events), 'event')}", ""]
    return "\n".join(lines + [_event(event) for event in found.events])


def _event(event: RowEvent) -> str:
    op = _OPS.get(event.op, event.op)
    values = _tuples(event.new, event.old, event.unchanged)
    return f"  {shown(event.stream, event.position)}:{event.ordinal}  {_time(event.commit_ts)}  {op:<8}{values}"


def chain_text(found: ChainVerdict) -> str:
    """Whether the chain holds, and where not."""
    seen = f"{counted(found.transactions, 'transaction')}, {counted(found.changes, 'change')}"
    if found.holds:
        return f"the chain holds: {seen}"
    at = ""
    if found.broken_at is not None:
        epoch, position = found.broken_at
        at = f" at {shown(found.stream, position)} of epoch {epoch}"
    return f"the chain is broken{at}: {found.reason}\nverified before it: {seen}"


def _tuples(
    new: Mapping[str, str | None] | None, old: Mapping[str, str | None] | None, unchanged: Sequence[str]
) -> str:
    parts = []
    if old is not None:
        parts.append(f"old {_values(old, ())}")
    if new is not None:
        parts.append(f"new {_values(new, unchanged)}" if old is not None else _values(new, unchanged))
    return "".join(f"  {part}" for part in parts)


def _values(values: Mapping[str, str | None], unchanged: Sequence[str]) -> str:
    shown = [f"{n}=<unchanged>" if n in unchanged else f"{n}={_value(v)}" for n, v in values.items()]
    return "(" + ", ".join(shown) + ")"


def _value(value: str | None) -> str:
    if value is None:
        return "NULL"
    text = value if len(value) <= 60 else f"{value[:57]}… [{len(value):,} characters]"
    return "'" + text.replace("'", "''").replace("\n", "\\n") + "'"


def _time(value: datetime | None) -> str:
    return "-" if value is None else value.isoformat(timespec="milliseconds")
