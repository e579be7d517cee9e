"""The plan: what `run` would do, as a value. Printing explains it; running does it; working it out changes nothing."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.outline import outline
from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.config.project import Project, Target
from cdc_lake.errors import DivisionChanged, KindChanged, ShapeForeign, TransformChanged
from cdc_lake.lake.control import control_tables
from cdc_lake.lake.evolution import KINDS, SchemaChange, columns_after
from cdc_lake.lake.extent import silver_shape
from cdc_lake.lake.made import made_of, said_of
from cdc_lake.lake.read import silver_exists
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.model.span import Span
from cdc_lake.pipeline.applying.evolve import copied_again, unconvertible
from cdc_lake.pipeline.check.type_ledger import TableLedger, ledger_of
from cdc_lake.pipeline.ports.action import Action, ActionKind
from cdc_lake.pipeline.ports.view import SourceView
from cdc_lake.pipeline.server import source_view
from cdc_lake.pipeline.state.copies import Course, courses
from cdc_lake.pipeline.state.cuts import BROKEN, TableState, last_cut
from cdc_lake.pipeline.state.ownership import check_owned
from cdc_lake.pipeline.state.pauses import stopped_tables
from cdc_lake.pipeline.stream.redaction import redaction_of
from cdc_lake.pipeline.target.division import check_layout_divisible, check_made
from cdc_lake.pipeline.target.layout_changes import check_columns, layout_changes, silver_names_of
from cdc_lake.pipeline.target.shared_names import check_names
from cdc_lake.silver.kinds import check_kind, own_names
from cdc_lake.silver.own_columns import WORKING
from cdc_lake.source.stream import shown

__all__ = ["Action", "ActionKind", "Plan", "plan"]


_NOT_BY_A_RUN: Final = frozenset({ActionKind.REMAKE, ActionKind.COPY_AGAIN, ActionKind.ADOPT})


@dataclass(frozen=True, slots=True)
class Plan:
    """Every step of a run in its order; none where everything is in place and up to date. `types`: of each column."""

    pipeline: str
    actions: tuple[Action, ...]
    types: tuple[TableLedger, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether anything would be made or altered."""
        return any(action.changes for action in self.actions)

    @property
    def destructive(self) -> bool:
        """Whether a step would lose or reinterpret data."""
        return any(action.destructive for action in self.actions)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The words of what `run` does once it is allowed; what only a rebuild or another copy does is not of it."""
        return tuple(a.text for a in self.actions if a.destructive and a.kind not in _NOT_BY_A_RUN)

    @property
    def rebuilds(self) -> int:
        """How many tables wait for a rebuild."""
        return sum(action.kind is ActionKind.REMAKE for action in self.actions)

    @property
    def copied(self) -> int:
        """How many operations wait for another copy of their table."""
        return sum(action.kind is ActionKind.COPY_AGAIN for action in self.actions)

    @property
    def adopted(self) -> tuple[str, ...]:
        """The silver tables of others that `run` would take, being told to."""
        return tuple(a.subject for a in self.actions if a.kind is ActionKind.ADOPT)


def plan(project: Project, *, adopt: Container[str] = frozenset()) -> Plan:
    """Work out what `run` would do. `adopt`: silver tables of others that it may take, as `namespace.table`.

    Raises SourceError, LakeError, StateError where it could not go on; SilverNotOwned for a table of somebody else.
    """
    reader = bronze_reader(project)
    with source_view(project) as source:
        at_source = list(source.steps(reader.state))
        names = source.tables()
        check_names(project, names)
        taken = check_owned(project, names, source.origin, adopt)
        actions = (*at_source, *_silver(project, source, reader, names, taken))
        types = ledger_of(project, source, lambda target: silver_shape(project, target) or ())
        return Plan(project.name, actions, types)


def _silver(
    project: Project,
    source: SourceView,
    reader: BronzeReader,
    names: Sequence[TableName],
    taken: Mapping[str, str],
) -> Iterator[Action]:
    state, control = reader.state(), control_tables(project)
    cut = None if state is None else last_cut(control, state.stream)
    paused = stopped_tables(project, control)
    followed = {} if state is None else courses(control.snapshots(), state.stream)
    for name in names:
        target = project.target(name)
        if (since := paused.get(str(name))) is not None:
            stays = "it stays where it is" if silver_exists(project, target) else "it is not created"
            text = f"{target.label} is paused since {since.isoformat(timespec='seconds')}: {stays}"
            yield Action(ActionKind.TABLE_PAUSED, target.label, text, changes=False)
            continue
        if not silver_exists(project, target):
            if target.partition_by and (layout := source.layout(name)) is not None:
                check_layout_divisible(project, target, redaction_of(project).relation(layout))
            text = f"create {target.format} table {target.label} from {name}"
            yield Action(ActionKind.CREATE_TABLE, target.label, text)
            continue
        if target.label in taken:
            text = f"adopt {target.label} and replace what it holds: {taken[target.label]}"
            yield Action(ActionKind.ADOPT, target.label, text, destructive=True)
            continue
        waits = list(_remade(project, target))
        now = None if any(action.destructive for action in waits) else source.layout(name)
        listed = None if cut is None else cut.tables.get(str(name))
        if now is not None:
            layout = redaction_of(project).relation(now)
            waits += _foreign(project, reader, target, layout)
            for change in _pending(project, reader, state, target, listed, layout):
                waits.append(_copy_again(target, change) if unconvertible(change) else _action(target, change))
        yield from waits
        if listed is not None and listed.state == BROKEN:
            yield from _waits(target, listed, waits)
        if state is not None:
            yield from _renewed(target, state, followed.get(str(name)), listed)
    for relation in sorted(set(cut.tables if cut is not None else ()) - set(map(str, names))):
        label = project.target(TableName.parse(relation)).label
        text = f"{relation} is not captured any more: {label} stays as it is"
        yield Action(ActionKind.TABLE_GONE, label, text, changes=False)


def _renewed(target: Target, state: BronzeState, course: Course | None, listed: TableState | None) -> Iterator[Action]:
    """That a table was copied again."""
    copied = None if listed is None else listed.copied
    copy = None if course is None else course.renewal(max(state.upto, course.stretches[-1].begins), copied)
    if copy is not None:
        text = f"begin {target.label} again with the copy at {shown(state.stream, copy.position)}"
        yield Action(ActionKind.RENEW, target.label, text, rows=copy.rows)


def _remade(project: Project, target: Target) -> Iterator[Action]:
    """What of a table is made otherwise than the pipeline says."""
    made, said = made_of(project, target), said_of(target)
    if made is not None and made.cluster_by != said.cluster_by:
        text = f"keep rows of {target.label} together by {', '.join(said.cluster_by) or 'nothing'}"
        yield Action(ActionKind.CLUSTER, target.label, text)
    try:
        check_made(project, target)
    except (TransformChanged, DivisionChanged) as changed:
        yield Action(ActionKind.REMAKE, target.label, f"{changed.message}: {_again(target)}", destructive=True)


def _foreign(project: Project, reader: BronzeReader, target: Target, now: Relation) -> Iterator[Action]:
    """That a table waits because its columns are those of another kind, or none that the pipeline makes."""
    found = silver_shape(project, target) or ()
    have = [column.name for column in found if not column.name.startswith(WORKING)]  # of an operation that is under way
    wanted = [*silver_names_of(now, target).values(), *own_names(target, now, ())]
    try:
        check_kind(have, wanted, target.label, target.source)
        check_columns(target, have, now, reader.layouts([target.source]).values())
    except (KindChanged, ShapeForeign) as unfit:
        yield Action(ActionKind.REMAKE, target.label, f"{unfit.message}: it waits; {unfit.remedy}", destructive=True)


def _waits(target: Target, listed: TableState, steps: Sequence[Action]) -> Iterator[Action]:
    """What the last run said of a table that waits, if its steps do not say it already."""
    code, why, remedy = listed.error or ("", "it could not go on at its last span", "the next run says why")
    if not any(why in step.text or (step.destructive and step.kind is not ActionKind.REMAKE) for step in steps):
        text = f"{target.label} waits: {why}{f' [{code}]' if code else ''}; {remedy}"
        yield Action(ActionKind.TABLE_WAITS, target.label, text, changes=False)


def _copy_again(target: Target, change: SchemaChange) -> Action:
    text = f"{change.text(target.label)}: {copied_again(target)}"
    return Action(ActionKind.COPY_AGAIN, target.label, text, destructive=True)


def _again(target: Target) -> str:
    return f"it waits for `cdc-lake rebuild {target.source}`"


def _pending(
    project: Project,
    reader: BronzeReader,
    state: BronzeState | None,
    target: Target,
    listed: TableState | None,
    now: Relation,
) -> Iterator[SchemaChange]:
    """What silver needs to take the layouts that bronze has for it, and then the source's."""
    there = silver_shape(project, target) or ()
    own = own_names(target, now, [column.name for column in there])
    have = tuple(column for column in there if column.name not in own)
    follows, ahead = None, []
    if state is not None and listed is not None and listed.layout is not None:
        layouts = reader.layouts([target.source])
        follows = layouts.get(listed.layout)
        seen = outline(reader.applied(), target.source, Span(state.epoch, listed.position, state.upto), snapshot=False)
        ahead = [layouts[run.layout] for run in seen.runs]
    if follows is None:
        yield from layout_changes(target, None, now, have)
        return
    for layout in (*ahead, now):
        changes = layout_changes(target, follows, layout, have)
        yield from changes
        have, follows = columns_after(have, changes), layout


def _action(target: Target, change: SchemaChange) -> Action:
    kind = ActionKind(KINDS[type(change)].replace("_", " "))
    return Action(kind, target.label, change.text(target.label), destructive=change.destructive)
