"""The plan: what `run` would do, as a value. Printing explains it; running does it; working it out changes nothing."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.config.project import Project, Target
from cdc_lake.lake.evolution import AddColumn, ChangeType, DropColumn, SchemaChange, compare_layouts
from cdc_lake.lake.extent import silver_columns
from cdc_lake.lake.names import silver_names
from cdc_lake.lake.read import silver_exists
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.pipeline.source_facts import TableFacts, captured, limits, session_of, tables, wal_position
from cdc_lake.source import publication, slot
from cdc_lake.source.catalog import check_identities, relation_of
from cdc_lake.source.connection import Session, place_of
from cdc_lake.source.server import check_server
from cdc_lake.source.stream import StreamIdentity, shown


class ActionKind(enum.Enum):
    """Kinds of steps."""

    CREATE_PUBLICATION = "create publication"
    CREATE_SLOT = "create slot"
    SNAPSHOT = "snapshot"
    RESUME = "resume"
    CREATE_TABLE = "create table"
    ADD_COLUMN = "add column"
    CHANGE_TYPE = "change type"
    DROP_COLUMN = "drop column"


@dataclass(frozen=True, slots=True)
class Action:
    """One step: what it is about, in words, and its numbers where they are known.

    `changes` is false for what only goes on; `destructive` steps are never done without being allowed.
    """

    kind: ActionKind
    subject: str
    text: str
    changes: bool = True
    destructive: bool = False
    rows: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Every step of a run in its order; none where everything is in place and up to date."""

    pipeline: str
    actions: tuple[Action, ...]

    @property
    def changes(self) -> bool:
        """Whether anything would be made or altered."""
        return any(action.changes for action in self.actions)

    @property
    def destructive(self) -> bool:
        """Whether a step would lose or reinterpret data."""
        return any(action.destructive for action in self.actions)


def plan(project: Project) -> Plan:
    """Work out what `run` would do. Raises SourceError, LakeError, StateError where it could not go on."""
    reader = BronzeReader(project.bronze)
    state = reader.state()
    with session_of(project) as session:
        check_server(limits(session), place_of(project.postgres))
        names = captured(project, session)
        facts = {f.table: f for f in tables(session, names)}
        actions = [
            *_publication(project, session, names),
            *_stream(project, session, state, [facts[n] for n in names if n in facts]),
            *_silver(project, session, reader, names),
        ]
    return Plan(project.name, tuple(actions))


def _publication(project: Project, session: Session, names: Sequence[TableName]) -> Iterator[Action]:
    name = project.publication
    if not publication.publication_exists(session, name):
        check_identities(session, names)
        listed = str(names[0]) if len(names) == 1 else f"{len(names)} tables"
        yield Action(ActionKind.CREATE_PUBLICATION, name, f"create publication `{name}` for {listed}")


def _stream(
    project: Project, session: Session, state: BronzeState | None, facts: Sequence[TableFacts]
) -> Iterator[Action]:
    there = slot.find_slot(session, project.slot)
    started = state is not None and (there is not None or state.upto != StreamIdentity.parse(state.stream).start)
    if state is not None and started:
        checked = slot.check_slot(there, project.slot, project.postgres.database, state.upto)
        behind = max(0, wal_position(session).value - state.upto)
        retained = f", {_size(checked.retained)} of WAL retained" if checked.retained is not None else ""
        after = shown(state.stream, state.upto)
        text = f"resume slot `{project.slot}` after {after}: {_size(behind)} behind{retained}"
        yield Action(ActionKind.RESUME, project.slot, text, changes=False, bytes=behind)
        return
    yield Action(ActionKind.CREATE_SLOT, project.slot, f"create slot `{project.slot}` (pgoutput)")
    if project.pipeline.snapshot.mode == "initial":
        for fact in facts:
            rows = "an unknown number of rows" if fact.rows is None else f"about {fact.rows:,} rows"
            text = f"snapshot {fact.table}: {rows}, {_size(fact.size)} at the source"
            yield Action(ActionKind.SNAPSHOT, str(fact.table), text, rows=fact.rows, bytes=fact.size)


def _silver(project: Project, session: Session, reader: BronzeReader, names: Sequence[TableName]) -> Iterator[Action]:
    for name in names:
        target = project.target(name)
        if not silver_exists(project, target):
            text = f"create {target.format} table {target.label} from {name}"
            yield Action(ActionKind.CREATE_TABLE, target.label, text)
        else:
            yield from _evolution(project, session, reader, target)


def _evolution(project: Project, session: Session, reader: BronzeReader, target: Target) -> Iterator[Action]:
    carried = publication.published(session, project.publication)
    columns = next((p.columns for p in carried if p.table == target.source), None)
    have = silver_columns(project, target)
    if columns is None or have is None:
        return
    now = relation_of(session, target.source, columns)
    for change in _changes(reader, now, have):
        yield _change(target, change)


def _changes(reader: BronzeReader, now: Relation, have: Sequence[str]) -> list[SchemaChange]:
    """From the layout that silver follows to the source's: silver's own columns say which one that is."""
    followed = [r for r in reader.layouts([now.table]).values() if set(silver_names(r)) == set(have)]
    if any(r.layout == now.layout for r in followed):
        return []
    return compare_layouts(followed[-1], now) if followed else []


def _change(target: Target, change: SchemaChange) -> Action:
    match change:
        case AddColumn(name, sql):
            text = f"add column {name} {sql} to {target.label}"
            return Action(ActionKind.ADD_COLUMN, target.label, text)
        case DropColumn(name, _):
            text = f"column {name} of {target.label} is gone at the source"
            return Action(ActionKind.DROP_COLUMN, target.label, text, destructive=True)
        case ChangeType(name, old, new):
            text = f"column {name} of {target.label} becomes {new}, was {old}"
            return Action(ActionKind.CHANGE_TYPE, target.label, text, destructive=change.destructive)


def _size(value: int | None) -> str:
    amount, unit = float(value or 0), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):  # noqa: B007  # the last one is used
        if amount < 1024:
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
