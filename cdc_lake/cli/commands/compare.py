"""The command `compare`: one line per table with its verdict, its differences, then the overall verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from cdc_lake.cli.command import Call, verb
from cdc_lake.cli.text import format_count, format_key, format_value, table
from cdc_lake.model.diagnostic import pluralize

if TYPE_CHECKING:
    from cdc_lake.comparison.columns import Sample
    from cdc_lake.control.verdicts import Comparison, DifferingKey, KeyChange, Repair, TableComparison


compare_app = typer.Typer()


@verb(compare_app, "compare")
def compare(
    call: Call,
    tables: Annotated[list[str] | None, Argument(metavar="[TABLE]...", help="Source tables (default: all).")] = None,
    repair: Annotated[
        bool,
        Option(
            "--repair",
            help="List the keys that can be repaired from the source; with --yes, copy their rows into bronze.",
        ),
    ] = False,
    yes: Annotated[bool, Option("--yes", help="With --repair: copy the rows; the next run merges them.")] = False,
    show_values: Annotated[
        bool, Option("--show-values", help="Also show the rows of the listed keys, and write them into compare.json.")
    ] = False,
    at: Annotated[
        str | None,
        Option(
            "--at",
            metavar="CUT",
            help="Compare silver as of the cut at or before a position or time, or as of a pinned cut.",
        ),
    ] = None,
    sample: Annotated[
        str | None,
        Option("--sample", metavar="N%|ROWS", help="Compare only some of the rows, different ones each time."),
    ] = None,
    exclude: Annotated[
        list[str] | None, Option("--exclude", metavar="TABLE", help="Exclude a table; can be given several times.")
    ] = None,
    full: Annotated[bool, Option("--full", help="Compare all rows one by one, without hashing them first.")] = False,
) -> None:
    """Prove that silver equals the source, row by row."""
    from cdc_lake.comparison.compare import compare as prove
    from cdc_lake.control.verdicts import Verdict
    from cdc_lake.model.position import as_of

    if yes and not repair:
        raise typer.BadParameter("requires --repair", param_hint="--yes")
    if repair and at is not None:
        raise typer.BadParameter(
            "cannot be combined with --repair: an older version of silver is not repaired", param_hint="--at"
        )
    comparison = prove(
        call.project(),
        tables or (),
        call.view.report,
        repair=repair,
        yes=yes,
        values=show_values,
        as_of=None if at is None else as_of(at),
        full=full,
        exclude=exclude or (),
        sample=None if sample is None else _sample(sample),
    )
    call.view.result(comparison.document(), comparison_text(comparison, call.view.width))
    if comparison.verdict in {Verdict.INCONCLUSIVE, Verdict.DIFFERENT}:
        raise typer.Exit(1)


def _sample(text: str) -> Sample:
    from cdc_lake.comparison.columns import Sample

    try:
        return Sample.parse(text)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong), param_hint="--sample") from wrong


_CHANGES = 3  # number of last changes shown for a key
_KINDS = ("missing", "extra", "changed", "repeated", "unaccounted")


def comparison_text(comparison: Comparison, width: int) -> str:
    """The verdicts."""
    head = ("table", "silver", "source", "silver rows", "verdict")
    rows = [
        (t.table, t.silver, format_count(t.source_rows), format_count(t.silver_rows), t.text) for t in comparison.tables
    ]
    lines = table([head, *rows], right=frozenset({2, 3}), indent="")
    if max(map(len, lines)) > width:
        narrow = [(head[0], *head[3:]), *((row[0], *row[3:]) for row in rows)]
        lines = table(narrow, right=frozenset({1}), indent="")
    parts = [lines[0]]
    for line, comparison_of_table in zip(lines[1:], comparison.tables, strict=True):
        parts += [line, *_details(comparison_of_table)]
    total = pluralize(len(comparison.tables) - comparison.not_compared, "table")
    total += f", {comparison.not_compared} not compared" if comparison.not_compared else ""
    return "\n".join([*parts, "", f"{comparison.text}: {total} at {comparison.position}, {comparison.seconds:.1f} s"])


def _details(comparison: TableComparison) -> list[str]:
    lines = [f"  {pluralize(getattr(comparison, kind), 'key')} {kind}" for kind in _KINDS if getattr(comparison, kind)]
    lines += [f"  {kind}: {', '.join(format_key(key) for key in keys)}" for kind, keys in comparison.samples if keys]
    lines += [f"  column {name} differs in {pluralize(rows, 'row')}" for name, rows in comparison.columns]
    lines += [line for differing_key in comparison.differing for line in _differing(differing_key)]
    if comparison.repair is not None:
        lines += _repair(comparison.repair)
    if comparison.reason:
        lines.append(f"  {comparison.reason}")
    if comparison.hint:
        lines.append(f"  → {comparison.hint}")
    return lines


def _differing(differing_key: DifferingKey) -> list[str]:
    """A key, its differences, and the last changes in bronze that touched it."""
    columns = (
        f": {', '.join(differing_key.columns)}"
        if differing_key.columns and not (differing_key.source and differing_key.silver)
        else ""
    )
    lines = [f"  {differing_key.kind} {format_key(differing_key.key)}{columns}"]
    if differing_key.source is not None and differing_key.silver is not None:
        lines += [
            f"    {n}: source {format_value(differing_key.source[n])}, silver {format_value(differing_key.silver[n])}"
            for n in differing_key.columns
        ]
    else:
        for side, row in (("source", differing_key.source), ("silver", differing_key.silver)):
            lines += [f"    {side}: {n} {format_value(value)}" for n, value in (row or {}).items()]
    last = differing_key.changes[-_CHANGES:]
    if (more := differing_key.touched - len(last)) > 0:
        lines.append(f"    … {pluralize(more, 'earlier change')} in bronze (`cdc-lake inspect row`)")
    lines += [f"    {line}" for line in map(_change, last)]
    return lines if differing_key.touched else [*lines, "    bronze has no change of it"]


def _change(change: KeyChange) -> str:
    when = change.note or change.committed or "copied"
    csn = "" if change.csn is None or str(change.csn) == change.position else f"  csn {change.csn}"
    return f"{change.position}  {change.op}  {when}{csn}"


def _repair(repair: Repair) -> list[str]:
    lines = []
    if repair.landed:
        lines.append(f"  repair: {pluralize(repair.keys, 'key')} landed at {repair.position}, the next run merges them")
    elif repair.keys:
        lines.append(f"  repair: {pluralize(repair.keys, 'key')} can be brought from the source: add --yes")
    if repair.left:
        lines.append(f"  not repaired: {pluralize(repair.left, 'key')}: {repair.reason}")
    return lines
