"""The ledger of types: of every captured column, as it is at the source now, what becomes of its values in silver.

Made from the code that converts them (`lake.types`), for `check` and `plan`, before the first row is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cdc_lake.config.project import Project, Target
from cdc_lake.config.source import PostgresSource
from cdc_lake.errors import CdcLakeError, TypeRefused
from cdc_lake.lake.store import SilverColumn
from cdc_lake.lake.typed_columns import TypedColumn, check_declared, typed_columns
from cdc_lake.lake.types import Loss, source_type
from cdc_lake.model.counting import counted
from cdc_lake.model.relation import Column, Relation
from cdc_lake.pipeline.check.identity import identity_of
from cdc_lake.pipeline.check.line import CheckLine
from cdc_lake.pipeline.ports.view import SourceView
from cdc_lake.pipeline.server import source_view
from cdc_lake.pipeline.stream.redaction import redaction_of
from cdc_lake.pipeline.target.transforms import words_read
from cdc_lake.silver.projection import taken_columns

Made: TypeAlias = Callable[[Target], Sequence[SilverColumn]]


@dataclass(frozen=True, slots=True)
class ColumnLedger:
    """One silver column, or one that is refused or left out.

    `column`, `source_type`: at the source, empty for a computed column; `silver_column`, `silver_type`: empty for what
    silver does not have; of a computed column the table alone tells the type, once Spark has made it. `how`: in which
    way, why not, or by which expression; `held`: the values that silver cannot have, which are held with their text, or
    stop the run.
    """

    column: str
    source_type: str
    silver_column: str
    silver_type: str
    loss: Loss
    how: str = ""
    held: str = ""


@dataclass(frozen=True, slots=True)
class TableLedger:
    """The columns of one table in their order; `problem`: why it has no ledger, or what is wrong besides columns.

    `misfit`: what the values do that silver cannot have, `quarantine` or `stop`. `identity`: how the server tells which
    row a change is about, and `unsent`: what is lost by that.
    """

    table: str
    silver: str
    columns: tuple[ColumnLedger, ...]
    problem: str = ""
    misfit: str = "quarantine"
    identity: str = ""
    unsent: str = ""


def type_ledger(project: Project) -> tuple[TableLedger, ...]:
    """The ledger of all captured tables, from a session of its own. Raises SourceError."""
    with source_view(project) as source:
        return ledger_of(project, source)


def ledger_of(project: Project, source: SourceView, made: Made = lambda _: ()) -> tuple[TableLedger, ...]:
    """The ledger of all captured tables. `made`: the columns that a silver table has, where it is there and can be
    asked. Raises SourceError.
    """
    found = ((project.target(name), source.layout(name)) for name in source.tables())
    return tuple(_table(project, target, layout, made) for target, layout in found if layout is not None)


def lines(ledger: Sequence[TableLedger]) -> Iterator[CheckLine]:
    """The ledger's findings among those of `check`: a line for each refusal, then how many columns become what."""
    for table in ledger:
        place = f"{table.table} → {table.silver}"
        wrong = [f"{c.column}: {c.how}" for c in table.columns if c.loss is Loss.REFUSED]
        for text in [*wrong, *([table.problem] if table.problem else [])]:
            yield CheckLine(ok=False, subject="types", text=f"{place}: {text}", fix=TypeRefused.hint, code="LAK479")
    columns = [column for table in ledger for column in table.columns]
    counts = {loss: sum(column.loss is loss for column in columns) for loss in Loss}
    said = ", ".join(f"{count} {loss.value}" for loss, count in counts.items() if count)
    if columns:
        yield CheckLine(ok=not counts[Loss.REFUSED], subject="types", text=f"{counted(len(columns), 'column')}: {said}")


def _table(project: Project, target: Target, layout: Relation, made: Made) -> TableLedger:
    problem, source = "", project.pipeline.source
    identity = identity_of(layout, published=isinstance(source, PostgresSource) and source.slot.plugin == "pgoutput")
    try:
        relation = redaction_of(project).relation(layout)
    except CdcLakeError as unfit:
        return TableLedger(str(target.source), target.label, (), unfit.message, target.types.misfit, *identity)
    try:
        check_declared(relation, target.types)
    except TypeRefused as refused:
        problem = refused.message
    types = {column.name: column.type for column in made(target)} if target.transforms.compute else {}
    computed = (
        ColumnLedger("", "", name, types.get(name, ""), Loss.COMPUTED, sql) for name, sql in target.transforms.compute
    )
    columns = (*_columns(relation, target), *computed)
    return TableLedger(str(target.source), target.label, columns, problem, target.types.misfit, *identity)


def _columns(relation: Relation, target: Target) -> Iterator[ColumnLedger]:
    """The source's columns: all of them where none is refused, else each alone so that one does not hide the others."""
    try:
        made = typed_columns(relation, target.types)
    except TypeRefused:
        for column in relation.columns:
            yield from _alone(relation, column, target)
    else:
        yield from _made(made, target)


def _alone(relation: Relation, column: Column, target: Target) -> Iterator[ColumnLedger]:
    try:
        made = typed_columns(Relation(relation.table, (column,), relation.identity), target.types)
    except TypeRefused as refused:
        yield ColumnLedger(column.name, source_type(column), "", "", Loss.REFUSED, refused.message)
    else:
        yield from _made(made, target)


def _made(made: Sequence[TypedColumn], target: Target) -> Iterator[ColumnLedger]:
    names, read = taken_columns(made, target.transforms), words_read(target)
    for at, one in enumerate(made):
        column, kind = one.source, one.type
        if at in names:
            how = kind.note if column.redacted is None else f"redacted: {column.redacted}"
            yield ColumnLedger(column.name, source_type(column), names[at], kind.sql, kind.loss, how, kind.held)
        elif not one.companion:
            used = not read.isdisjoint({column.name.casefold(), one.name.casefold()})
            how, held = ("read by expressions or rules", kind.held) if used else ("", "")
            yield ColumnLedger(column.name, source_type(column), "", "", Loss.LEFT_OUT, how, held)
