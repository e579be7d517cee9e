"""A comparison as text: one line a table with its verdict, differences below it, then the verdict over all."""

from __future__ import annotations

from cdc_lake.cli.render import counted, table
from cdc_lake.pipeline.comparison import Comparison, Repair, TableComparison

_KINDS = ("missing", "extra", "changed", "repeated", "unaccounted")


def comparison_text(comparison: Comparison, width: int) -> str:
    """The verdicts."""
    head = ("table", "silver", "source", "silver rows", "verdict")
    rows = [(t.table, t.silver, _number(t.source_rows), _number(t.silver_rows), t.text) for t in comparison.tables]
    lines = table([head, *rows], right=frozenset({2, 3}), indent="")
    if max(map(len, lines)) > width:
        lines = [f"{name}  {silver_rows} rows  {text}" for name, _, _, silver_rows, text in rows]
        lines.insert(0, "table  silver rows  verdict")
    out = [lines[0]]
    for line, found in zip(lines[1:], comparison.tables, strict=True):
        out += [line, *_details(found)]
    total = counted(len(comparison.tables), "table")
    return "\n".join([*out, "", f"{comparison.text}: {total} at {comparison.position}, {comparison.seconds:.1f} s"])


def _details(found: TableComparison) -> list[str]:
    lines = [f"  {counted(getattr(found, kind), 'key')} {kind}" for kind in _KINDS if getattr(found, kind)]
    lines += [f"  {kind}: {', '.join(_key(key) for key in keys)}" for kind, keys in found.samples if keys]
    lines += [f"  column {name} differs in {counted(rows, 'row')}" for name, rows in found.columns]
    if found.repair is not None:
        lines += _repair(found.repair)
    if found.reason:
        lines.append(f"  {found.reason}")
    if found.hint:
        lines.append(f"  → {found.hint}")
    return lines


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
