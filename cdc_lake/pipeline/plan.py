"""The plan: what `run` would do, as a value. Printing explains it; running does it; working it out changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.config.project import Project, Target
from cdc_lake.config.type_policy import TypePolicy
from cdc_lake.lake.evolution import AddColumn, ChangeType, DropColumn, SchemaChange, compare_layouts
from cdc_lake.lake.extent import silver_columns
from cdc_lake.lake.read import silver_exists
from cdc_lake.lake.typed_columns import typed_columns
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.pipeline.action import Action, ActionKind
from cdc_lake.pipeline.redaction import redaction_of
from cdc_lake.pipeline.source_view import SourceView, source_view
from cdc_lake.pipeline.type_ledger import TableLedger, ledger_of
from cdc_lake.silver.kinds import own_names

__all__ = ["Action", "ActionKind", "Plan", "plan"]


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


def plan(project: Project) -> Plan:
    """Work out what `run` would do. Raises SourceError, LakeError, StateError where it could not go on."""
    reader = bronze_reader(project)
    with source_view(project) as source:
        at_source = list(source.steps(reader.state()))
        actions = (*at_source, *_silver(project, source, reader, source.tables()))
        return Plan(project.name, actions, ledger_of(project, source))


def _silver(project: Project, source: SourceView, reader: BronzeReader, names: Sequence[TableName]) -> Iterator[Action]:
    for name in names:
        target = project.target(name)
        if not silver_exists(project, target):
            text = f"create {target.format} table {target.label} from {name}"
            yield Action(ActionKind.CREATE_TABLE, target.label, text)
        else:
            yield from _evolution(project, source, reader, target)


def _evolution(project: Project, source: SourceView, reader: BronzeReader, target: Target) -> Iterator[Action]:
    now = source.layout(target.source)
    have = silver_columns(project, target)
    if now is None or have is None:
        return
    given = [name for name in have if name not in own_names(target)]
    for change in _changes(reader, redaction_of(project).relation(now), given, target.types):
        yield _change(target, change)


def _changes(reader: BronzeReader, now: Relation, have: Sequence[str], types: TypePolicy) -> list[SchemaChange]:
    """From the layout that silver follows to the source's: silver's own columns say which one that is."""
    known = reader.layouts([now.table]).values()
    followed = [r for r in known if {one.name for one in typed_columns(r, types)} == set(have)]
    if any(r.layout == now.layout for r in followed):
        return []
    return compare_layouts(followed[-1], now, types) if followed else []


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
