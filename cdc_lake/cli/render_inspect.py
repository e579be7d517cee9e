"""What `inspect` found, as text. These show row values, because that is what was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from cdc_lake.bronze.chain import ChainVerdict
from cdc_lake.cli.render import size, table
from cdc_lake.model.counting import counted
from cdc_lake.pipeline.compare.against_source import SourceProof
from cdc_lake.pipeline.inspect.bronze import ChangeView, TransactionView
from cdc_lake.pipeline.inspect.span import SpanView, TransactionLine
from cdc_lake.source.stream import shown

OPS = {
    "I": "insert",
    "U": "update",
    "D": "delete",
    "T": "truncate",
    "M": "message",
    "S": "snapshot",
    "X": "undecodable",
}
"""Operations of bronze as people read them."""

END = (1 << 63) - 1
"""The end of a span that has none."""

_DIGITS = 32  # of a digest; `--json` has all


def transaction_text(found: TransactionView) -> str:
    """A transaction: its boundaries, then one line a change."""
    xid = "" if found.xid is None else f", xid {found.xid}"
    by = f", by {found.user}" if found.user else ""
    lines = [
        f"transaction {shown(found.stream, found.position)}, epoch {found.epoch}{xid}{by}",
        f"committed   {time_text(found.commit_ts)}",
        f"size        {counted(len(found.changes), 'change')}, {size(found.size)}",
        f"content     {found.content[:_DIGITS]}…",
        f"hash        {found.hash[:_DIGITS]}…",
    ]
    if (why := found.undecodable) is not None:
        lines += [f"undecodable {why.code}: {why.message}", f"            in {why.where}; tried by cdc_lake {why.by}"]
    lines.append("")
    return "\n".join(lines + [_change(change) for change in found.changes])


def span_text(found: SpanView) -> str:
    """The transactions of a span, one a line, and the totals by table."""
    behind = "from its start" if found.after < 0 else f"behind {shown(found.stream, found.after)}"
    upto = "" if found.upto == END else f" up to {shown(found.stream, found.upto)}"
    empty = f", {found.empty:,} without rows" if found.empty else ""
    lines = [
        f"epoch {found.epoch}, {behind}{upto}",
        f"{counted(found.transactions, 'transaction')}{empty}, {counted(found.changes, 'change')}, {size(found.bytes)}",
    ]
    if found.listed:
        rows = [_line(found.stream, line) for line in found.listed]
        lines += ["", *table(rows, right=frozenset({0, 2, 3}))]
    if (more := found.transactions - len(found.listed)) > 0:
        lines.append(f"  … and {more:,} more (`--limit`)")
    totals = [[name, *_kinds(kinds)] for name, kinds in found.counts.items()]
    return "\n".join([*lines, "", *table(totals)] if totals else lines)


def _line(stream: str, line: TransactionLine) -> list[str]:
    changes = "undecodable" if line.undecodable else counted(line.changes, "change")
    when = "-" if line.commit_ts is None else f"{line.commit_ts:%Y-%m-%dT%H:%M:%SZ}"
    return [shown(stream, line.position), when, changes, size(line.bytes)]


def _kinds(kinds: Mapping[str, int]) -> list[str]:
    return [f"{op} {kinds[op]:,}" if op in kinds else "" for op in "IUDT"]


def _change(change: ChangeView) -> str:
    op = OPS.get(change.op, change.op)
    return f"  {change.ordinal:>4} {op:<8} {change.relation or ''}{_tuples(change.new, change.old, change.unchanged)}"


def chain_text(found: ChainVerdict) -> str:
    """Whether the chain holds, and where not."""
    seen = f"{counted(found.transactions, 'transaction')}, {counted(found.changes, 'change')}"
    if found.empty:
        seen += f", {found.empty:,} without rows"
    if found.passed_over:
        seen += f", {found.passed_over:,} CSNs in recorded gaps"
    if found.holds:
        return f"the chain holds: {seen}"
    at = ""
    if found.broken_at is not None:
        epoch, position = found.broken_at
        at = f" at {shown(found.stream, position)} of epoch {epoch}"
    return f"the chain is broken{at}: {found.reason}\nverified before it: {seen}"


def proof_text(found: SourceProof) -> str:
    """The chain, the slot and each table."""
    lines = [chain_text(found.chain)]
    if found.confirmed is None:
        lines.append("slot: it is not there")
    else:
        word = "forgot what bronze does not have" if found.forgotten else "forgot nothing that bronze does not have"
        lines.append(f"slot: confirmed {found.confirmed}, bronze holds {found.held}: it {word}")
    for one in found.tables:
        kinds = ("missing", "extra", "changed", "repeated")
        odd = ", ".join(f"{getattr(one, kind):,} {kind}" for kind in kinds if getattr(one, kind))
        because = f" ({odd or one.reason})" if odd or one.reason else ""
        lines.append(f"{one.table}: {one.verdict}, {counted(one.source_rows, 'row')}{because}")
    return "\n".join(lines)


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
    shown = [f"{n}=<unchanged>" if n in unchanged else f"{n}={value_text(v)}" for n, v in values.items()]
    return "(" + ", ".join(shown) + ")"


def value_text(value: str | None) -> str:
    """A value in quotes, short enough for a line."""
    if value is None:
        return "NULL"
    text = value if len(value) <= 60 else f"{value[:57]}… [{len(value):,} characters]"
    return "'" + text.replace("'", "''").replace("\n", "\\n") + "'"


def time_text(value: datetime | None) -> str:
    """A time to the millisecond, `-` where there is none."""
    return "-" if value is None else value.isoformat(timespec="milliseconds")
