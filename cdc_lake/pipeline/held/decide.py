"""Deciding on held changes: letting them through as they are, or giving them up.

A decision is one commit to the control table `decisions` and comes into force right before the position behind the
table's watermark: the span that passes it carries it out, and so does every rebuild. Nothing else is written here, so
there is nothing to be left half done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.config.project import Project
from cdc_lake.errors import DecidedOtherwise, HoldStays, NotHeld
from cdc_lake.lake.control import control_tables
from cdc_lake.lake.control_rows import now
from cdc_lake.lake.lease import lease
from cdc_lake.model.counting import counted
from cdc_lake.model.decision import FIRST_ORDINAL, ON, Place, Verb, place_of
from cdc_lake.model.relation import TableName
from cdc_lake.model.span import Span
from cdc_lake.pipeline.held.groups import HeldGroup, groups, objection, together
from cdc_lake.pipeline.held.listing import HeldChange, HeldOf, held_of
from cdc_lake.pipeline.state.cuts import Cut, last_cut
from cdc_lake.pipeline.state.holds import HoldLog, hold_log
from cdc_lake.pipeline.state.pauses import stopped_tables
from cdc_lake.pipeline.state.source_table import source_table
from cdc_lake.silver.kinds import kind_of
from cdc_lake.silver.row_events import Key
from cdc_lake.source.stream import shown

_FACTS = ("csn", "lsn", "xid", "commit_ts")
_TUPLES = ("op", "rules", "key", "from_key", "layout", "new", "old", "old_kind", "unchanged")


@dataclass(frozen=True, slots=True)
class Choice:
    """Which held changes of a table: those that keep a key (its parts as texts, in key order), or all; with `rule` of
    these only what nothing but this rule holds.
    """

    key: Key | None = None
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class Left:
    """Keys that wait together and stay held, and why."""

    keys: tuple[Key, ...]
    why: str


@dataclass(frozen=True, slots=True)
class HeldDecision:
    """What was decided, or would be: `done` says which. `position`: right before it the decision comes into force;
    `changes`: those that it is on, in order; `before`: how many of the chosen ones were decided like that already;
    `left`: what was chosen and stays held; `paused`: whether the table is, so that a run makes it only once it goes on.
    """

    verb: Verb
    table: str
    source: str
    reason: str
    done: bool
    position: str
    changes: tuple[HeldChange, ...]
    before: int
    left: tuple[Left, ...]
    paused: bool = False


def decide(project: Project, verb: Verb, table: str, choice: Choice, reason: str, *, yes: bool) -> HeldDecision:
    """Decide on held changes of a source table; without `yes` only say which.

    In a group that holds whole transactions those are decided whole, in all its tables.

    Raises TableNotKnown, AnotherApply, ControlNotWritten; NotHeld, HoldStays, DecidedOtherwise for a key that is named.
    """
    name = source_table(table)
    with lease(project.lease) if yes else nullcontext():
        reader, control = bronze_reader(project), control_tables(project)
        state = reader.state()
        if state is None:
            raise NotHeld(f"nothing of {name} is held: bronze holds no stream", where=reader.place)
        log = hold_log(control)
        tables = _tables(project, log, state, last_cut(control, state.stream), name)
        mine = tables[str(name)]
        earlier = _earlier(log, state, mine, verb, choice)
        found = _Chosen((), earlier, ()) if earlier else _chosen(tables, mine, reader, verb, choice)
        made = sorted((row for group in found.fresh for row in group.rows), key=place_of)
        at = mine.watermark + 1
        if yes and made:
            recorded = []
            for relation, one in tables.items():
                of_table = (pc.field("relation") == relation) & (pc.field("epoch") == state.epoch)
                there = log.decisions.filter(of_table & (pc.field("position") == at))["ordinal"].to_pylist()
                first = max(there, default=FIRST_ORDINAL - 1) + 1
                rows = [row for row in made if row["relation"] == relation]
                recorded += _recorded(reader, state, one, verb, reason, at, first, rows) if rows else []
            control.append("decisions", recorded)
    return HeldDecision(
        verb=verb,
        table=mine.target.label,
        source=str(name),
        reason=reason,
        done=yes,
        position=shown(state.stream, at),
        changes=tuple(tables[row["relation"]].shown(row) for row in made),
        before=found.before,
        left=found.left,
        paused=str(name) in stopped_tables(project, control),
    )


def _tables(project: Project, log: HoldLog, state: BronzeState, cut: Cut | None, name: TableName) -> dict[str, HeldOf]:
    """What is held of a table and of the others of its group. Raises HoldStays."""
    group = project.group(name)
    names = (name,) if group is None else group.tables
    tables = {str(one): held_of(project, log, state, cut, project.target(one)) for one in names}
    if len({one.watermark for one in tables.values() if one.watermark >= 0}) > 1:
        hint = "`cdc-lake run` brings them to one position, or says what keeps one of them"
        raise HoldStays(f"the tables of the group of {name} are not at one position", hint=hint)
    return tables


def _earlier(log: HoldLog, state: BronzeState, mine: HeldOf, verb: Verb, choice: Choice) -> int:
    """How many changes of a named key, which does not wait now, were decided like that before."""
    if choice.key is None or any(choice.key in HeldGroup((row,)).keys for row in mine.rows):
        return 0
    before = log.decided(str(mine.target.source), Span(state.epoch, -1, mine.watermark)).rows
    rows = [] if before is None else before.to_pylist()
    return sum(row["verb"] == verb and choice.key in HeldGroup((row,)).keys for row in rows)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """`fresh`: what is to be decided; `before`: changes that were decided like that already."""

    fresh: tuple[HeldGroup, ...]
    before: int
    left: tuple[Left, ...]


def _chosen(tables: Mapping[str, HeldOf], mine: HeldOf, reader: BronzeReader, verb: Verb, choice: Choice) -> _Chosen:
    name = str(mine.target.source)
    if not mine.rows or mine.layout is None:
        if choice.key is None:
            return _Chosen((), 0, ())
        raise NotHeld(f"nothing of {name} is held")
    kinds = {
        relation: kind_of(one.target, reader.layouts([one.target.source])[one.layout])
        for relation, one in tables.items()
        if one.rows and one.layout is not None
    }
    fresh: list[HeldGroup] = []
    left: list[Left] = []
    before = 0
    every = sorted((row for one in tables.values() for row in one.rows), key=place_of)
    waiting = [
        (group, own)
        for group in (groups(mine.rows, kinds[name]) if len(tables) == 1 else together(every))
        if (own := group.of(name)).rows and (choice.key is None or choice.key in own.keys)
    ]
    if not waiting:
        raise NotHeld(f"no held change of {name} keeps that key")
    for group, own in waiting:
        if choice.rule is not None and choice.rule not in group.broken:
            continue
        decided = {tables[row["relation"]].pending.get(place_of(row)) for row in group.rows} - {None}
        if decided - {verb}:
            several = counted(len(group.rows), "held change")
            raise DecidedOtherwise(f"for {several} of {name} the other was decided")
        if decided:
            before += len(group.rows)
            continue
        whys = (objection(group.of(one), verb, tables[one].target, kind) for one, kind in kinds.items())
        why = next((why for why in whys if why is not None), None)
        if choice.rule is not None and (others := group.broken - {choice.rule}):
            why = f"it is held by {', '.join(sorted(others))} too"
        if why is None:
            fresh.append(group)
        elif choice.key is not None:
            raise HoldStays(f"held changes of {name} cannot be {_PAST[verb]}: {why}")
        else:
            left.append(Left(own.keys, why))
    return _Chosen(tuple(fresh), before, tuple(left))


_PAST: Mapping[Verb, str] = {"release": "released", "discard": "discarded"}


def _recorded(
    reader: BronzeReader,
    state: BronzeState,
    mine: HeldOf,
    verb: Verb,
    reason: str,
    position: int,
    first: int,
    rows: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Rows of the control table `decisions`, which come into force in their order."""
    facts = _facts(reader, state, mine, [place_of(row) for row in rows])
    return [
        {
            "stream": state.stream,
            "epoch": state.epoch,
            "position": position,
            "ordinal": first + n,
            "verb": verb,
            "told": reason,
            "relation": str(mine.target.source),
            "table": mine.target.label,
            **dict(zip(ON, place_of(row), strict=True)),
            **{name: row[name] for name in _TUPLES},
            **facts.get(place_of(row), dict.fromkeys(_FACTS)),
            "recorded_at": now(),
        }
        for n, row in enumerate(rows)
    ]


def _facts(
    reader: BronzeReader, state: BronzeState, mine: HeldOf, places: Sequence[Place]
) -> dict[Place, dict[str, Any]]:
    """What bronze knows of changes besides their tuples, as far as it has them still."""
    positions = sorted({position for position, _ in places})
    files = reader.applied()
    paths = files.select(
        epoch=state.epoch, after=positions[0] - 1, upto=positions[-1], relations=[str(mine.target.source)]
    )
    wanted = (pc.field("epoch") == state.epoch) & (pc.field("relation") == str(mine.target.source))
    found = files.read(paths, ["position", "ordinal", *_FACTS], wanted & pc.field("position").isin(positions))
    at = set(places)
    rows = found.filter(pc.is_valid(found["ordinal"])).to_pylist()
    return {place_of(row): {name: row[name] for name in _FACTS} for row in rows if place_of(row) in at}
