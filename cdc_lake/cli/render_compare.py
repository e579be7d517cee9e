"""A comparison as text: one line a table with its verdict, differences below it, then the verdict over all."""

from __future__ import annotations

from cdc_lake.cli.render import table
from cdc_lake.model.counting import counted
from cdc_lake.pipeline.state.comparison import Comparison, DifferingKey, KeyChange, Repair, TableComparison

_CHANGES = 3  # of a key, the last ones
_LONG = 60  # characters of a value
_KINDS = ("missing", "extra", "changed", "repeated", "unaccounted")


def comparison_text(comparison: Comparison, width: int) -> str:
    """The verdicts."""
    head = ("table", "silver", "source", "silver rows", "verdict")
    rows = [(t.table, t.silver, _number(t.source_rows), _number(t.silver_rows), t.text) for t in comparison.tables]
    lines = table([head, *rows], right=frozenset({2, 3}), indent="")
    if max(map(len, lines)) > width:
        narrow = [(head[0], *head[3:]), *((row[0], *row[3:]) for row in rows)]
        lines = table(narrow, right=frozenset({1}), indent="")
    out = [lines[0]]
    for line, found in zip(lines[1:], comparison.tables, strict=True):
        out += [line, *_details(found)]
    total = counted(len(comparison.tables) - comparison.not_compared, "table")
    total += f", {comparison.not_compared} not compared" if comparison.not_compared else ""
    return "\n".join([*out, "", f"{comparison.text}: {total} at {comparison.position}, {comparison.seconds:.1f} s"])


def _details(found: TableComparison) -> list[str]:
    lines = [f"  {counted(getattr(found, kind), 'key')} {kind}" for kind in _KINDS if getattr(found, kind)]
    lines += [f"  {kind}: {', '.join(_key(key) for key in keys)}" for kind, keys in found.samples if keys]
    lines += [f"  column {name} differs in {counted(rows, 'row')}" for name, rows in found.columns]
    lines += [line for one in found.differing for line in _differing(one)]
    if found.repair is not None:
        lines += _repair(found.repair)
    if found.reason:
        lines.append(f"  {found.reason}")
    if found.hint:
        lines.append(f"  → {found.hint}")
    return lines


def _differing(found: DifferingKey) -> list[str]:
    """A key, what differs of it, and the last changes in bronze that touched it."""
    columns = f": {', '.join(found.columns)}" if found.columns and not (found.source and found.silver) else ""
    lines = [f"  {found.kind} {_key(found.key)}{columns}"]
    if found.source is not None and found.silver is not None:
        lines += [f"    {n}: source {_text(found.source[n])}, silver {_text(found.silver[n])}" for n in found.columns]
    else:
        for side, row in (("source", found.source), ("silver", found.silver)):
            lines += [f"    {side}: {n} {_text(value)}" for n, value in (row or {}).items()]
    last = found.changes[-_CHANGES:]
    if (more := found.touched - len(last)) > 0:
        lines.append(f"    … {counted(more, 'earlier change')} in bronze (`cdc-lake inspect row`)")
    lines += [f"    {line}" for line in map(_change, last)]
    return lines if found.touched else [*lines, "    bronze has no change of it"]


def _change(change: KeyChange) -> str:
    when = change.note or change.committed or "copied"
    csn = "" if change.csn is None or str(change.csn) == change.position else f"  csn {change.csn}"
    return f"{change.position}  {change.op}  {when}{csn}"


def _text(value: str | None) -> str:
    if value is None:
        return "NULL"
    text = value if len(value) <= _LONG else f"{value[:_LONG]}…"
    return "'" + text.replace("'", "''").replace("\n", "\\n") + "'"


def _repair(repair: Repair) -> list[str]:
    lines = []
    if repair.landed:
        lines.append(f"  repair: {counted(repair.keys, 'key')} landed at {repair.position}, the next run merges them")
    elif repair.keys:
        lines.append(f"  repair: {counted(repair.keys, 'key')} can be brought from the source: add --yes")
    if repair.left:
        lines.append(f"  not repaired: {counted(repair.left, 'key')}: {repair.reason}")
    return lines


def _key(key: tuple[str | None, ...]) -> str:
    return "(" + ", ".join("NULL" if part is None else part for part in key) + ")"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
