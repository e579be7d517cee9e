"""Computes the plan: what `run` would do, as a value. Printing explains it, running does it; planning changes nothing.

It includes the mapping of every captured column to silver, from the code that converts the values (`tables.types`), and
what each table's replica identity leaves unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.span_index import outline
from cdc_lake.config.project import Project, Target
from cdc_lake.config.source import PostgresSource
from cdc_lake.connectors.base import Action, ActionKind, SourceIntrospection
from cdc_lake.connectors.factory import source_view
from cdc_lake.connectors.redaction import redaction_of
from cdc_lake.control.cuts import FAILED, TableState, last_cut
from cdc_lake.control.ownership import check_owned
from cdc_lake.control.snapshots import TableTimeline, courses
from cdc_lake.control.table_pauses import stopped_tables
from cdc_lake.errors import CdcLakeError, DivisionChanged, KindChanged, TransformChanged, TypeRefused, UnexpectedColumn
from cdc_lake.errors.base import without_table_copies
from cdc_lake.model.diagnostic import pluralize
from cdc_lake.model.position import Span
from cdc_lake.model.relation import Relation, ReplicaIdentity, TableName
from cdc_lake.ops.findings import CheckLine
from cdc_lake.runtime.apply import schema_changes
from cdc_lake.silver.kind import WORKING
from cdc_lake.silver.kinds import check_kind, own_names
from cdc_lake.silver.transforms import silver_names_of, taken_columns
from cdc_lake.source.base import format_stream_position, takes_table_copies
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.schema_evolution import KINDS, SchemaChange, columns_after
from cdc_lake.tables.silver_table import declared_layout
from cdc_lake.tables.types import Loss, SilverColumn, TypedColumn, check_declared, source_type, typed_columns

KEY_ONLY = "old values of other columns, and large values that an update does not change, are not sent"


def identity_of(relation: Relation, *, published: bool) -> tuple[str, str]:
    """How a changed row is identified, and which information is missing; empty if none is.

    `published`: changes are sent through a publication, as the plugin pgoutput requires.
    """
    key = ", ".join(column.name for column in relation.columns if column.key)
    match relation.identity:
        case ReplicaIdentity.FULL:
            return "whole old rows", ""
        case ReplicaIdentity.INDEX if key:
            return f"index ({key})", KEY_ONLY
        case ReplicaIdentity.DEFAULT if key:
            return f"primary key ({key})", KEY_ONLY
        case _ if published:
            return "none", "the server rejects updates and deletes of it as soon as it is published"
        case _:
            return "none", "updates and deletes of it do not identify a row"


Made: TypeAlias = Callable[[Target], Sequence[SilverColumn]]


@dataclass(frozen=True, slots=True)
class ColumnLedger:
    """One silver column, or one that is refused or omitted.

    `column`, `source_type`: at the source, empty for a computed column; `silver_column`, `silver_type`: empty for
    omitted columns; only the table shows the type of a computed column, once Spark has created it. `how`: the
    conversion, the reason of the omission, or the expression; `held`: the values that silver cannot represent, which
    are held with their text, or stop the run.
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
    """The columns of one table in order; `problem`: why it has no ledger, or other problems.

    `misfit`: what happens to values that silver cannot represent, `quarantine` or `stop`. `identity`: how the server
    identifies a changed row, and `unsent`: which information is missing because of that.
    """

    table: str
    silver: str
    columns: tuple[ColumnLedger, ...]
    problem: str = ""
    misfit: str = "quarantine"
    identity: str = ""
    unsent: str = ""


def type_ledger(project: Project) -> tuple[TableLedger, ...]:
    """The ledger of all captured tables, through its own session. Raises SourceError."""
    with source_view(project) as source:
        return ledger_of(project, source)


def ledger_of(
    project: Project, source: SourceIntrospection, columns_of: Made = lambda _: ()
) -> tuple[TableLedger, ...]:
    """The ledger of all captured tables. `columns_of`: a silver table's columns, if known. Raises SourceError."""
    pairs = ((project.target(name), source.layout(name)) for name in source.tables())
    return tuple(_table(project, target, layout, columns_of) for target, layout in pairs if layout is not None)


def lines(ledger: Sequence[TableLedger]) -> Iterator[CheckLine]:
    """The ledger's findings for `check`: a line for each refusal, then the number of columns by conversion."""
    for table in ledger:
        place = f"{table.table} → {table.silver}"
        wrong = [f"{c.column}: {c.how}" for c in table.columns if c.loss is Loss.REFUSED]
        for text in [*wrong, *([table.problem] if table.problem else [])]:
            yield CheckLine(ok=False, subject="types", text=f"{place}: {text}", fix=TypeRefused.hint, code="LAK479")
    columns = [column for table in ledger for column in table.columns]
    counts = {loss: sum(column.loss is loss for column in columns) for loss in Loss}
    losses = ", ".join(f"{count} {loss.value}" for loss, count in counts.items() if count)
    if columns:
        text = f"{pluralize(len(columns), 'column')}: {losses}"
        yield CheckLine(ok=not counts[Loss.REFUSED], subject="types", text=text)


def _table(project: Project, target: Target, layout: Relation, columns_of: Made) -> TableLedger:
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
    types = {column.name: column.type for column in columns_of(target)} if target.transforms.compute else {}
    computed = (
        ColumnLedger("", "", name, types.get(name, ""), Loss.COMPUTED, sql) for name, sql in target.transforms.compute
    )
    columns = (*_columns(relation, target), *computed)
    return TableLedger(str(target.source), target.label, columns, problem, target.types.misfit, *identity)


def _columns(relation: Relation, target: Target) -> Iterator[ColumnLedger]:
    """The source's columns: all together if none is refused, otherwise one by one so that none hides the others."""
    try:
        typed = typed_columns(relation, target.types)
    except TypeRefused as refused:
        match relation.columns:
            case [column]:
                yield ColumnLedger(column.name, source_type(column), "", "", Loss.REFUSED, refused.message)
            case columns:
                for column in columns:
                    yield from _columns(Relation(relation.table, (column,), relation.identity), target)
    else:
        yield from _ledger_of_columns(typed, target)


def _ledger_of_columns(columns: Sequence[TypedColumn], target: Target) -> Iterator[ColumnLedger]:
    names, read = taken_columns(columns, target.transforms), schema_changes.words_read(target)
    for index, typed_column in enumerate(columns):
        column, kind = typed_column.source, typed_column.type
        if index in names:
            how = kind.note if column.redacted is None else f"redacted: {column.redacted}"
            yield ColumnLedger(column.name, source_type(column), names[index], kind.sql, kind.loss, how, kind.held)
        elif not typed_column.companion:
            used = not read.isdisjoint({column.name.casefold(), typed_column.name.casefold()})
            how, held = ("read by expressions or rules", kind.held) if used else ("", "")
            yield ColumnLedger(column.name, source_type(column), "", "", Loss.LEFT_OUT, how, held)


__all__ = ["Action", "ActionKind", "Plan", "plan"]


_NOT_BY_A_RUN: Final = frozenset({ActionKind.REMAKE, ActionKind.COPY_AGAIN, ActionKind.ADOPT})


@dataclass(frozen=True, slots=True)
class Plan:
    """Every step of a run in order; empty if everything is up to date. `types`: of each column."""

    pipeline: str
    actions: tuple[Action, ...]
    types: tuple[TableLedger, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether anything would be created or altered."""
        return any(action.changes for action in self.actions)

    @property
    def destructive(self) -> bool:
        """Whether a step would lose or reinterpret data."""
        return any(action.destructive for action in self.actions)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The operations that `run` does once approved, without those that need a rebuild or a resync."""
        return tuple(a.text for a in self.actions if a.destructive and a.kind not in _NOT_BY_A_RUN)

    @property
    def rebuilds(self) -> int:
        """The number of tables that need a rebuild."""
        return sum(action.kind is ActionKind.REMAKE for action in self.actions)

    @property
    def copy_count(self) -> int:
        """The number of operations that need a resync of their table."""
        return sum(action.kind is ActionKind.COPY_AGAIN for action in self.actions)

    @property
    def adopted_tables(self) -> tuple[str, ...]:
        """The silver tables of others that `run` would adopt."""
        return tuple(a.subject for a in self.actions if a.kind is ActionKind.ADOPT)


def plan(project: Project, *, adopt: Container[str] = frozenset()) -> Plan:
    """Compute what `run` would do. `adopt`: silver tables of others that it may adopt, as `namespace.table`.

    Raises SourceError, LakeError, StateError if it could not continue; SilverNotOwned for another owner's table.
    """
    reader = bronze_reader(project)
    with source_view(project) as source:
        at_source = list(source.steps(reader.state))
        names = source.tables()
        schema_changes.check_names(project, names)
        adoptions = check_owned(project, names, source.origin, adopt)
        actions = (*at_source, *_silver(project, source, reader, names, adoptions))
        types = ledger_of(project, source, lambda target: table_log(project, target).columns() or ())
        return Plan(project.name, actions, types)


def _silver(
    project: Project,
    source: SourceIntrospection,
    reader: BronzeReader,
    names: Sequence[TableName],
    adoptions: Mapping[str, str],
) -> Iterator[Action]:
    state, control = reader.state(), control_tables(project)
    cut = None if state is None else last_cut(control, state.stream)
    paused = stopped_tables(project, control)
    followed = {} if state is None else courses(control.snapshots(), state.stream)
    for name in names:
        target = project.target(name)
        if (since := paused.get(str(name))) is not None:
            stays = "it stays at its position" if table_log(project, target).exists() else "it is not created"
            text = f"{target.label} is paused since {since.isoformat(timespec='seconds')}: {stays}"
            yield Action(ActionKind.TABLE_PAUSED, target.label, text, changes=False)
            continue
        if not table_log(project, target).exists():
            if target.partition_by and (layout := source.layout(name)) is not None:
                schema_changes.check_layout_divisible(project, target, redaction_of(project).relation(layout))
            text = f"create {target.format} table {target.label} from {name}"
            yield Action(ActionKind.CREATE_TABLE, target.label, text)
            continue
        if target.label in adoptions:
            text = f"adopt {target.label} and replace its content: {adoptions[target.label]}"
            yield Action(ActionKind.ADOPT, target.label, text, destructive=True)
            continue
        waits = list(_remade(project, target))
        now = None if any(action.destructive for action in waits) else source.layout(name)
        listed = None if cut is None else cut.tables.get(str(name))
        if now is not None:
            layout = redaction_of(project).relation(now)
            waits += _foreign(project, reader, target, layout)
            for change in _pending(project, reader, state, target, listed, layout):
                again = schema_changes.unconvertible(change)
                waits.append(_copy_again(target, change, state) if again else _action(target, change))
        yield from waits
        if listed is not None and listed.state == FAILED:
            yield from _waits(target, listed, waits)
        if state is not None:
            yield from _renewal_actions(target, state, followed.get(str(name)), listed)
    for relation in sorted(set(cut.tables if cut is not None else ()) - set(map(str, names))):
        label = project.target(TableName.parse(relation)).label
        text = f"{relation} is no longer captured: {label} stays as it is"
        yield Action(ActionKind.TABLE_GONE, label, text, changes=False)


def _renewal_actions(
    target: Target, state: StreamCheckpoint, course: TableTimeline | None, listed: TableState | None
) -> Iterator[Action]:
    """The action for a resynced table."""
    copied = None if listed is None else listed.copied
    copy = None if course is None else course.renewal(max(state.upto, course.stretches[-1].begins), copied)
    if copy is not None:
        text = f"start {target.label} again with the copy at {format_stream_position(state.stream, copy.position)}"
        yield Action(ActionKind.RENEW, target.label, text, rows=copy.rows)


def _remade(project: Project, target: Target) -> Iterator[Action]:
    """The differences between a table and the pipeline file."""
    actual, declared = table_log(project, target).layout(), declared_layout(target)
    if actual is not None and actual.cluster_by != declared.cluster_by:
        text = f"cluster rows of {target.label} by {', '.join(declared.cluster_by) or 'nothing'}"
        yield Action(ActionKind.CLUSTER, target.label, text)
    try:
        schema_changes.check_made(project, target)
    except (TransformChanged, DivisionChanged) as changed:
        advice = f"it waits for `cdc-lake rebuild {target.source}`"
        yield Action(ActionKind.REMAKE, target.label, f"{changed.message}: {advice}", destructive=True)


def _foreign(project: Project, reader: BronzeReader, target: Target, now: Relation) -> Iterator[Action]:
    """The action for a table that fails because its columns are of another kind, or not from the pipeline."""
    columns = table_log(project, target).columns() or ()
    have = [column.name for column in columns if not column.name.startswith(WORKING)]  # of an operation in progress
    wanted = [*silver_names_of(now, target).values(), *own_names(target, now, ())]
    try:
        check_kind(have, wanted, target.label, target.source)
        schema_changes.check_columns(target, have, now, reader.layouts([target.source]).values())
    except (KindChanged, UnexpectedColumn) as unfit:
        yield Action(ActionKind.REMAKE, target.label, f"{unfit.message}: it waits; {unfit.remedy}", destructive=True)


def _waits(target: Target, listed: TableState, steps: Sequence[Action]) -> Iterator[Action]:
    """The last run's error of a failed table, if its steps do not contain it already."""
    code, why, remedy = listed.error or ("", "it could not continue at its last span", "the next run reports why")
    if not any(why in step.text or (step.destructive and step.kind is not ActionKind.REMAKE) for step in steps):
        text = f"{target.label} waits: {why}{f' [{code}]' if code else ''}; {remedy}"
        yield Action(ActionKind.TABLE_WAITS, target.label, text, changes=False)


def _copy_again(target: Target, change: SchemaChange, state: StreamCheckpoint | None) -> Action:
    remedy = schema_changes.copied_again(target)
    if state is not None and not takes_table_copies(state.stream):
        remedy = without_table_copies(remedy)
    text = f"{change.text(target.label)}: {remedy}"
    return Action(ActionKind.COPY_AGAIN, target.label, text, destructive=True)


def _pending(
    project: Project,
    reader: BronzeReader,
    state: StreamCheckpoint | None,
    target: Target,
    listed: TableState | None,
    now: Relation,
) -> Iterator[SchemaChange]:
    """The operations that bring silver to the layouts in bronze, and then to the source's."""
    columns = table_log(project, target).columns() or ()
    own = own_names(target, now, [column.name for column in columns])
    have = tuple(column for column in columns if column.name not in own)
    follows, ahead = None, []
    if state is not None and listed is not None and listed.layout is not None:
        layouts = reader.layouts([target.source])
        follows = layouts.get(listed.layout)
        summary = outline(
            reader.applied_files(), target.source, Span(state.epoch, listed.position, state.upto), snapshot=False
        )
        ahead = [layouts[run.layout] for run in summary.runs]
    if follows is None:
        yield from schema_changes.layout_changes(target, None, now, have)
        return
    for layout in (*ahead, now):
        changes = schema_changes.layout_changes(target, follows, layout, have)
        yield from changes
        have, follows = columns_after(have, changes), layout


def _action(target: Target, change: SchemaChange) -> Action:
    kind = ActionKind(KINDS[type(change)].replace("_", " "))
    return Action(kind, target.label, change.text(target.label), destructive=change.destructive)
