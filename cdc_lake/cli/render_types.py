"""The ledger of types as text: a table a source table, a line a column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cdc_lake.cli.render import RED, YELLOW, table, tint

if TYPE_CHECKING:
    from cdc_lake.pipeline.check.type_ledger import ColumnLedger, TableLedger

_COLOURS = {"converted": YELLOW, "refused": RED}


FEW = 5
"""Tables whose columns are shown unless all are asked for."""


def ledger_text(ledger: Sequence[TableLedger], *, colour: bool, verb: str = "check", verbose: bool = True) -> str:
    """What becomes of every captured column, a blank line behind each table; empty if nothing is captured.

    Without `verbose`, of many tables the first few in which something is refused.
    """
    out, left = [], 0
    if not verbose and len(ledger) > FEW:
        wrong = [one for one in ledger if one.problem or any(c.loss.value == "refused" for c in one.columns)][:FEW]
        left, ledger = len(ledger) - len(wrong), wrong
    for one in ledger:
        out.append(f"types of {one.table} → {one.silver}")
        rows = table([_row(column, "held" if one.misfit == "quarantine" else "stops") for column in one.columns])
        for line, column in zip(rows, one.columns, strict=True):
            tone = _COLOURS.get(column.loss.value)
            out.append(tint(line, tone, on=colour) if tone else line)
        if one.identity:
            unsent = f": {one.unsent}" if one.unsent else ": nothing of a change is lost"
            out.append(f"  replica identity {one.identity}{unsent}")
        if one.problem:
            out.append(tint(f"  {one.problem}", RED, on=colour))
        out.append("")
    if left:
        out += [f"types of {left} more tables: `cdc-lake {verb} -v`", ""]
    return "\n".join([*out, ""]) if out else ""


def _row(column: ColumnLedger, misfit: str) -> tuple[str, ...]:
    renamed = "" if column.silver_column == column.column else column.silver_column
    becomes = " ".join(filter(None, ("→", renamed, column.silver_type)))
    said = [column.how, f"{misfit}: {column.held}" if column.held else ""]
    return column.column, column.source_type, becomes, column.loss.value, "; ".join(filter(None, said))
