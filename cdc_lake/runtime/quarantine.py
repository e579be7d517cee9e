"""Lists quarantined changes, and records decisions to release or discard them.

A quarantined change holds every key it touches, so changes that share a key are queued behind each other, and one
decision takes them together. In a table that keeps every change nothing is queued.

A decision is one commit to the control table `decisions` and takes effect directly before the position after the
table's watermark: the span that contains it carries it out, and so does every rebuild. Nothing else is written here, so
a crash leaves nothing half done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.config.project import Project, Target
from cdc_lake.config.rules import rule_name
from cdc_lake.control.coordination import apply_lease
from cdc_lake.control.cuts import Cut, last_cut
from cdc_lake.control.quarantine import FAILED, QuarantineLog, open_quarantine, quarantine_log
from cdc_lake.control.streams import UndecodedTransaction, source_table, waiting
from cdc_lake.control.table_pauses import stopped_tables
from cdc_lake.errors import DecidedOtherwise, NotQuarantined, QuarantineRemains
from cdc_lake.model.diagnostic import pluralize
from cdc_lake.model.position import END, Span
from cdc_lake.model.quarantine import DISCARD, FIRST_ORDINAL, ON, Place, Verb, place_of
from cdc_lake.model.relation import TableName
from cdc_lake.silver.kind import Kind, RowIdentity
from cdc_lake.silver.kinds import kind_of
from cdc_lake.silver.row_tracing import Key, unit_of
from cdc_lake.source.base import format_stream_position
from cdc_lake.tables.control_schema import utc_now
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.open_silver_table import table_log


@dataclass(frozen=True, slots=True)
class QuarantinedChange:
    """A quarantined change. `rules`: those it violates, none if it is queued behind another change of its key.

    `key`: after the change, for a delete before it. `decided`: a decision that has not taken effect yet, `release` or
    `discard`. `group`: the group of tables in which its whole transaction is held, None if it is held alone.
    """

    table: str
    source: str
    position: str
    ordinal: int
    op: str
    rules: tuple[str, ...]
    key: tuple[str | None, ...]
    decided: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True)
class QuarantineList:
    """All quarantined changes, in order. `behind`: number of transactions behind the first undecodable one."""

    undecodable: tuple[UndecodedTransaction, ...]
    behind: int
    changes: tuple[QuarantinedChange, ...]


def list_quarantine(project: Project) -> QuarantineList:
    """The currently quarantined changes. Raises LakeError."""
    reader, control = bronze_reader(project), control_tables(project)
    state = reader.state()
    if state is None:
        return QuarantineList((), 0, ())
    cut = last_cut(control, state.stream)
    ahead = Span(state.epoch, cut.position if cut is not None else -1, max(state.upto, cut.position if cut else -1))
    undecodable = reader.undecodable(ahead)
    queued = 0
    if undecodable:
        queued = len(reader.commits(Span(state.epoch, undecodable[0].position, ahead.upto)))
    log = quarantine_log(control)
    changes: list[QuarantinedChange] = []
    for relation in sorted(set(log.quarantined["relation"].to_pylist())):
        holds = quarantine_of(project, log, state, cut, project.target(TableName.parse(relation)))
        changes += [holds.describe_row(row) for row in holds.rows]
    return QuarantineList(waiting(reader, ahead, state.stream), queued, tuple(changes))


@dataclass(frozen=True)
class HeldOf:
    """The quarantined changes of a table at its watermark, as control rows; `pending`: place → decision not in effect
    yet.
    """

    target: Target
    stream: str
    watermark: int
    layout: int | None
    rows: Sequence[Mapping[str, Any]]
    pending: Mapping[Place, str]
    group: str | None = None

    def describe_row(self, row: Mapping[str, Any]) -> QuarantinedChange:
        """One of its rows for the list."""
        return QuarantinedChange(
            table=self.target.label,
            source=str(self.target.source),
            position=format_stream_position(self.stream, row["position"]),
            ordinal=row["ordinal"],
            op=row["op"],
            rules=tuple(row["rules"] or ()) if row["reason"] == FAILED else (),
            key=tuple(row["key"] or row["from_key"] or ()),
            decided=self.pending.get(place_of(row)),
            group=self.group,
        )


def quarantine_of(
    project: Project, log: QuarantineLog, state: StreamCheckpoint, cut: Cut | None, target: Target
) -> HeldOf:
    """The currently quarantined changes of one table."""
    relation = str(target.source)
    marker = table_log(project, target).marker(state.stream)
    listed = None if cut is None else cut.tables.get(relation)
    listed_position = -1 if listed is None else listed.position
    watermark = max(listed_position, -1 if marker.position is None else marker.position)
    rows = open_quarantine(log, relation, state.epoch, marker.generation, watermark).rows.to_pylist()
    ahead = log.decisions_on(relation, Span(state.epoch, watermark, END)).rows
    pending = {place_of(row, ON): row["verb"] for row in ([] if ahead is None else ahead.to_pylist())}
    layout = None if listed is None else listed.layout
    if layout is None:  # also if the cut's version did not record it
        layout = max((row["layout"] for row in rows), default=None)
    group = project.group(target.source)
    return HeldOf(target, state.stream, watermark, layout, rows, pending, None if group is None else group.name)


@dataclass(frozen=True, slots=True)
class QuarantinedGroup:
    """Quarantined changes that are queued together, in order: rows of the control table `quarantine`."""

    rows: tuple[Mapping[str, Any], ...]

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys that they hold."""
        distinct = {tuple(key) for row in self.rows for key in (row["key"], row["from_key"]) if key is not None}
        return tuple(sorted(distinct, key=repr))

    def for_table(self, relation: str) -> QuarantinedGroup:
        """The changes of one table."""
        return QuarantinedGroup(tuple(row for row in self.rows if row["relation"] == relation))

    @property
    def broken(self) -> frozenset[str]:
        """The rules that they violate."""
        return frozenset(name for row in self.rows if row["reason"] == FAILED for name in row["rules"] or ())

    @property
    def moves(self) -> bool:
        """Whether a row changes its key."""
        return any(row["from_key"] is not None and row["from_key"] != row["key"] for row in self.rows)


def groups(rows: Sequence[Mapping[str, Any]], kind: Kind) -> list[QuarantinedGroup]:
    """Open quarantined changes of a table of that kind, grouped by their queues, ordered by their first change."""
    return [QuarantinedGroup((row,)) for row in rows] if kind.identity is RowIdentity.PLACE else group_by_key(rows)


def group_by_key(rows: Sequence[Mapping[str, Any]]) -> list[QuarantinedGroup]:
    """Open quarantined changes of rows with keys, grouped if they share one."""
    return _group_rows(rows, lambda row: QuarantinedGroup((row,)).keys)


def group_across_tables(rows: Sequence[Mapping[str, Any]]) -> list[QuarantinedGroup]:
    """Open quarantined changes of the tables of a group, grouped if they share a key or a transaction."""
    return _group_rows(rows, _of_group)


def _of_group(row: Mapping[str, Any]) -> list[Hashable]:
    unit = unit_of(row["position"], row["ordinal"], row["op"])
    return [*((row["relation"], key) for key in QuarantinedGroup((row,)).keys), *([] if unit is None else [unit])]


def _group_rows(
    rows: Sequence[Mapping[str, Any]], of: Callable[[Mapping[str, Any]], Sequence[Hashable]]
) -> list[QuarantinedGroup]:
    """Rows grouped if they share a value, ordered by their first one."""
    leader: dict[Hashable, Hashable] = {}

    def find_leader(item: Hashable) -> Hashable:
        while (other := leader.setdefault(item, item)) != item:
            leader[item] = leader[other]
            item = other
        return item

    for row in rows:
        first, *others = [find_leader(item) for item in of(row)]
        for other in others:
            leader[other] = first
    groups_by_leader: dict[Hashable, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups_by_leader.setdefault(find_leader(of(row)[0]), []).append(row)
    return [QuarantinedGroup(tuple(group)) for group in groups_by_leader.values()]


def objection(group: QuarantinedGroup, verb: Verb, target: Target, kind: Kind) -> str | None:
    """Why a group cannot be decided on like that; None if it can."""
    if target.transforms.where is not None:
        return "the table has a filter: whether silver contains the row depends on values that are held"
    if group.moves and target.transforms.any:
        return "the table has computed columns, and a key was updated: their inputs depend on values that are held"
    if verb == DISCARD:
        no_key = kind.identity is RowIdentity.CONTENT
        return "rows of the table have no key, so it would be unknown which of them were discarded" if no_key else None
    if beyond := group.broken - {rule_name(rule) for rule in target.row_rules}:
        return f"no rule of the pipeline that could be waived holds it, but {', '.join(sorted(beyond))}"
    return None


_FACTS = ("csn", "lsn", "xid", "commit_ts")
_TUPLES = ("op", "rules", "key", "from_key", "layout", "new", "old", "old_kind", "unchanged")


@dataclass(frozen=True, slots=True)
class Choice:
    """Selects quarantined changes of a table: those of a key (its parts as texts, in key order), or all; with `rule`
    only those held by nothing but this rule.
    """

    key: Key | None = None
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class Left:
    """Keys queued together that remain held, and why."""

    keys: tuple[Key, ...]
    why: str


@dataclass(frozen=True, slots=True)
class QuarantineDecision:
    """A decision that was, or would be, made (`done`). `position`: directly before it the decision takes effect;
    `changes`: those decided, in order; `before`: number of selected ones decided like that already; `left`: selected
    ones that remain held; `paused`: the decision takes effect only after the table is resumed.
    """

    verb: Verb
    table: str
    source: str
    reason: str
    done: bool
    position: str
    changes: tuple[QuarantinedChange, ...]
    before: int
    left: tuple[Left, ...]
    paused: bool = False


def decide(project: Project, verb: Verb, table: str, choice: Choice, reason: str, *, yes: bool) -> QuarantineDecision:
    """Decide on quarantined changes of a source table; without `yes` only show which.

    In a group that holds whole transactions these are decided as a whole, in all its tables.

    Raises TableNotKnown, AnotherApply, ControlNotWritten; NotQuarantined, QuarantineRemains, DecidedOtherwise for a
    single key.
    """
    name = source_table(table)
    with apply_lease(project) if yes else nullcontext():
        reader, control = bronze_reader(project), control_tables(project)
        state = reader.state()
        if state is None:
            raise NotQuarantined(f"nothing of {name} is held: bronze contains no stream", where=reader.place)
        log = quarantine_log(control)
        tables = _tables(project, log, state, last_cut(control, state.stream), name)
        holds = tables[str(name)]
        earlier = _earlier(log, state, holds, verb, choice)
        selection = _Chosen((), earlier, ()) if earlier else _chosen(tables, holds, reader, verb, choice)
        fresh_rows = sorted((row for group in selection.fresh for row in group.rows), key=place_of)
        position = holds.watermark + 1
        if yes and fresh_rows:
            recorded = []
            for relation, table_holds in tables.items():
                of_table = (pc.field("relation") == relation) & (pc.field("epoch") == state.epoch)
                ordinals = log.decisions.filter(of_table & (pc.field("position") == position))["ordinal"].to_pylist()
                first = max(ordinals, default=FIRST_ORDINAL - 1) + 1
                rows = [row for row in fresh_rows if row["relation"] == relation]
                if rows:
                    recorded += _decision_rows(reader, state, table_holds, verb, reason, position, first, rows)
            control.append("decisions", recorded)
    return QuarantineDecision(
        verb=verb,
        table=holds.target.label,
        source=str(name),
        reason=reason,
        done=yes,
        position=format_stream_position(state.stream, position),
        changes=tuple(tables[row["relation"]].describe_row(row) for row in fresh_rows),
        before=selection.before,
        left=selection.left,
        paused=str(name) in stopped_tables(project, control),
    )


def _tables(
    project: Project, log: QuarantineLog, state: StreamCheckpoint, cut: Cut | None, name: TableName
) -> dict[str, HeldOf]:
    """The quarantined changes of a table and of the others of its group. Raises QuarantineRemains."""
    group = project.group(name)
    names = (name,) if group is None else group.tables
    tables = {str(table): quarantine_of(project, log, state, cut, project.target(table)) for table in names}
    if len({table.watermark for table in tables.values() if table.watermark >= 0}) > 1:
        hint = "`cdc-lake run` brings them to one position, or reports why one of them cannot continue"
        raise QuarantineRemains(f"the tables of the group of {name} are not at one position", hint=hint)
    return tables


def _earlier(log: QuarantineLog, state: StreamCheckpoint, holds: HeldOf, verb: Verb, choice: Choice) -> int:
    """Number of changes of a single key, which is not held now, that were decided like that before."""
    if choice.key is None or any(choice.key in QuarantinedGroup((row,)).keys for row in holds.rows):
        return 0
    before = log.decisions_on(str(holds.target.source), Span(state.epoch, -1, holds.watermark)).rows
    rows = [] if before is None else before.to_pylist()
    return sum(row["verb"] == verb and choice.key in QuarantinedGroup((row,)).keys for row in rows)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """`fresh`: changes to be decided; `before`: number of changes decided like that already."""

    fresh: tuple[QuarantinedGroup, ...]
    before: int
    left: tuple[Left, ...]


def _chosen(tables: Mapping[str, HeldOf], holds: HeldOf, reader: BronzeReader, verb: Verb, choice: Choice) -> _Chosen:
    name = str(holds.target.source)
    if not holds.rows or holds.layout is None:
        if choice.key is None:
            return _Chosen((), 0, ())
        raise NotQuarantined(f"nothing of {name} is held")
    kinds = {
        relation: kind_of(table.target, reader.layouts([table.target.source])[table.layout])
        for relation, table in tables.items()
        if table.rows and table.layout is not None
    }
    fresh: list[QuarantinedGroup] = []
    left: list[Left] = []
    before = 0
    every = sorted((row for table in tables.values() for row in table.rows), key=place_of)
    waiting = [
        (group, own)
        for group in (groups(holds.rows, kinds[name]) if len(tables) == 1 else group_across_tables(every))
        if (own := group.for_table(name)).rows and (choice.key is None or choice.key in own.keys)
    ]
    if not waiting:
        raise NotQuarantined(f"no quarantined change of {name} has that key")
    for group, own in waiting:
        if choice.rule is not None and choice.rule not in group.broken:
            continue
        decided = {tables[row["relation"]].pending.get(place_of(row)) for row in group.rows} - {None}
        if decided - {verb}:
            several = pluralize(len(group.rows), "quarantined change")
            raise DecidedOtherwise(f"the opposite was decided for {several} of {name}")
        if decided:
            before += len(group.rows)
            continue
        whys = (objection(group.for_table(table), verb, tables[table].target, kind) for table, kind in kinds.items())
        why = next((why for why in whys if why is not None), None)
        if choice.rule is not None and (others := group.broken - {choice.rule}):
            why = f"it is also held by {', '.join(sorted(others))}"
        if why is None:
            fresh.append(group)
        elif choice.key is not None:
            raise QuarantineRemains(f"quarantined changes of {name} cannot be {_PAST[verb]}: {why}")
        else:
            left.append(Left(own.keys, why))
    return _Chosen(tuple(fresh), before, tuple(left))


_PAST: Mapping[Verb, str] = {"release": "released", "discard": "discarded"}


def _decision_rows(
    reader: BronzeReader,
    state: StreamCheckpoint,
    holds: HeldOf,
    verb: Verb,
    reason: str,
    position: int,
    first: int,
    rows: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Rows of the control table `decisions`, which take effect in their order."""
    facts = _facts(reader, state, holds, {place_of(row) for row in rows})
    return [
        {
            "stream": state.stream,
            "epoch": state.epoch,
            "position": position,
            "ordinal": first + n,
            "verb": verb,
            "reason": reason,
            "relation": str(holds.target.source),
            "table": holds.target.label,
            **dict(zip(ON, place_of(row), strict=True)),
            **{name: row[name] for name in _TUPLES},
            **facts.get(place_of(row), dict.fromkeys(_FACTS)),
            "recorded_at": utc_now(),
        }
        for n, row in enumerate(rows)
    ]


def _facts(
    reader: BronzeReader, state: StreamCheckpoint, holds: HeldOf, places: Collection[Place]
) -> dict[Place, dict[str, Any]]:
    """The facts in bronze about changes besides their tuples, if it still has them."""
    positions, relation = sorted({position for position, _ in places}), str(holds.target.source)
    files = reader.applied_files()
    paths = files.select(epoch=state.epoch, after=positions[0] - 1, upto=positions[-1], relations=[relation])
    wanted = (pc.field("epoch") == state.epoch) & (pc.field("relation") == relation)
    table = files.read(paths, ["position", "ordinal", *_FACTS], wanted & pc.field("position").isin(positions))
    rows = table.filter(pc.is_valid(table["ordinal"])).to_pylist()
    return {place_of(row): {name: row[name] for name in _FACTS} for row in rows if place_of(row) in places}
