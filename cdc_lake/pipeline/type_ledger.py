"""The ledger of types: of every captured column, as it is at the source now, what becomes of its values in silver.

Made from the code that converts them (`lake.types`), for `check` and `plan`, before the first row is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cdc_lake.config.project import Project, Target
from cdc_lake.errors import CdcLakeError, TypeRefused
from cdc_lake.lake.typed_columns import check_declared, typed_columns
from cdc_lake.lake.types import ColumnType, Loss, source_type
from cdc_lake.model.relation import Column, Relation
from cdc_lake.pipeline.check_line import CheckLine
from cdc_lake.pipeline.redaction import redaction_of
from cdc_lake.pipeline.source_view import SourceView, source_view


@dataclass(frozen=True, slots=True)
class ColumnLedger:
    """One silver column, or one that is refused.

    `column`, `source_type`: at the source; `loss`: lossless, converted or refused; `how`: in which way, or why not;
    `held`: the values that silver cannot have, which are held with their text, or stop the run.
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

    `misfit`: what the values do that silver cannot have, `quarantine` or `stop`.
    """

    table: str
    silver: str
    columns: tuple[ColumnLedger, ...]
    problem: str = ""
    misfit: str = "quarantine"


def type_ledger(project: Project) -> tuple[TableLedger, ...]:
    """The ledger of all captured tables, from a session of its own. Raises SourceError."""
    with source_view(project) as source:
        return ledger_of(project, source)


def ledger_of(project: Project, source: SourceView) -> tuple[TableLedger, ...]:
    """The ledger of all captured tables. Raises SourceError."""
    found = ((project.target(name), source.layout(name)) for name in source.tables())
    return tuple(_table(project, target, layout) for target, layout in found if layout is not None)


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
        yield CheckLine(ok=not counts[Loss.REFUSED], subject="types", text=f"{len(columns)} columns: {said}")


def _table(project: Project, target: Target, layout: Relation) -> TableLedger:
    problem = ""
    try:
        relation = redaction_of(project).relation(layout)
    except CdcLakeError as unfit:
        return TableLedger(str(target.source), target.label, (), unfit.message, target.types.misfit)
    try:
        check_declared(relation, target.types)
    except TypeRefused as refused:
        problem = refused.message
    columns = tuple(_columns(relation, target))
    return TableLedger(str(target.source), target.label, columns, problem, target.types.misfit)


def _columns(relation: Relation, target: Target) -> Iterator[ColumnLedger]:
    """All columns where none is refused; otherwise each on its own, so that one does not hide the others."""
    try:
        made = typed_columns(relation, target.types)
    except TypeRefused:
        yield from (_alone(relation, column, target) for column in relation.columns)
    else:
        yield from (_column(one.source, one.name, one.type) for one in made)


def _alone(relation: Relation, column: Column, target: Target) -> ColumnLedger:
    try:
        one = typed_columns(Relation(relation.table, (column,), relation.identity), target.types)[0]
    except TypeRefused as refused:
        return ColumnLedger(column.name, source_type(column), "", "", Loss.REFUSED, refused.message)
    return _column(one.source, one.name, one.type)


def _column(column: Column, name: str, kind: ColumnType) -> ColumnLedger:
    how = kind.note if column.redacted is None else f"redacted: {column.redacted}"
    return ColumnLedger(column.name, source_type(column), name, kind.sql, kind.loss, how, kind.held)
