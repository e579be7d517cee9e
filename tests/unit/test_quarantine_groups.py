"""Whole transactions held in a group of tables: what comes with what, and that neither spans nor deaths between the
merges of two tables matter. Without Spark.
"""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import dataclass, field
from functools import partial

import pytest

from cdc_lake.model.position import Span
from cdc_lake.model.quarantine import Place
from cdc_lake.model.relation import ReplicaIdentity, TableName
from cdc_lake.runtime.apply.transaction_groups import ahead, units_of
from cdc_lake.runtime.quarantine import group_across_tables
from cdc_lake.silver.row_tracing import Event, QuarantineState, TableEvents, Unit, quarantined_as_whole, trace
from cdc_lake_testing.histories import History
from cdc_lake_testing.messages import table
from cdc_lake_testing.oracle import Oracle, TruncateIsHeld
from tests.quarantine_tables import AT, LIMIT, Table, breaks, event_of
from tests.seeds import seeds

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
ONE, TWO = ("1",), ("2",)
ORDERS, LOG = (table(f"public.{name}", id="int4", amount="int4", body="text") for name in ("o", "g"))
LINES = table("public.l", identity=ReplicaIdentity.FULL, id="int4", amount="int4", body="text")


# ── one by one ──


def test_a_transaction_is_held_in_every_table_and_what_comes_later_on_its_keys():
    orders = [Event(10, 1, "I", None, ONE), Event(30, 1, "U", ONE, TWO), Event(40, 1, "I", None, ("3",))]
    lines = [Event(10, 2, "I", None, ONE, failed=True), Event(20, 1, "U", ONE, ONE), Event(50, 1, "I", None, ("3",))]
    tables = {"o": TableEvents(orders), "l": TableEvents(lines)}
    whole = quarantined_as_whole(tables, frozenset({(10, False)}))
    assert whole == {(10, False), (20, False), (30, False)}
    assert [one.quarantined for one in trace(orders, whole_units=whole)[0]] == [True, True, False]
    later = quarantined_as_whole(
        {"o": TableEvents(orders[1:], QuarantineState({(10, 1): frozenset({ONE})}))}, frozenset()
    )
    assert later == {(30, False)}, "whatever the spans"


def test_a_truncate_ends_what_waits_in_its_table_before_its_transaction_is_judged():
    orders = [Event(20, 1, "U", ONE, ONE), Event(20, 2, "T"), Event(20, 3, "I", None, ONE), Event(30, 1, "U", ONE, ONE)]
    lines = [Event(40, 1, "U", ONE, ONE)]
    waits = QuarantineState({(10, 1): frozenset({ONE})})
    found = quarantined_as_whole({"o": TableEvents(orders, waits), "l": TableEvents(lines, waits)}, frozenset())
    assert found == {(40, False)}, "the part in the other table waits on"


def test_what_is_held_names_what_it_breaks_by_itself():
    events = [Event(10, 1, "I", None, ONE), Event(10, 2, "U", ONE, ONE, partial=True), Event(10, 3, "I", None, TWO)]
    traced, _ = trace([*events, Event(20, 1, "U", TWO, TWO, partial=True)], whole_units={(10, False)})
    assert [(one.quarantined, one.waits, one.broke) for one in traced] == [(True, False, None)] * 3 + [
        (True, True, None)
    ]


def test_what_was_read_again_is_of_no_transaction_and_ends_what_waits_of_its_key():
    again = [Event(20, -2, "I", None, ONE, again=True), Event(20, -1, "I", None, TWO, again=True, failed=True)]
    events = [*again, Event(20, 1, "U", ONE, ONE), Event(30, 1, "U", TWO, TWO)]
    waits = QuarantineState({(10, 1): frozenset({ONE})})
    assert quarantined_as_whole({"o": TableEvents(events, waits)}, frozenset()) == {(30, False)}


def test_what_the_same_transaction_truncated_later_holds_nothing():
    rows = [(10, 1, "I"), (10, 3, "I"), (20, 1, "I"), (30, -5, "S"), (40, AT, "S")]
    assert units_of(rows, [(10, 4), (20, 0)]) == {(20, False), (40, True)}


# ── whatever the spans ──


class Stopped(Exception):
    """A held transaction truncates."""


@dataclass
class Lake:
    """Tables of a group, and one that is in none, advanced as apply does it: spans, and deaths between two merges."""

    seed: int
    dice: random.Random = field(init=False)
    tables: dict[str, Table] = field(init=False)
    alone: frozenset[str] = frozenset({"public.g"})

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.tables = {str(r.table): Table(self.dice, str(r.table)) for r in (ORDERS, LINES, LOG)}

    def run(self, events: dict[str, list[Event]], upto: int) -> None:
        for name, table_ in self.tables.items():
            table_.pending += events[name]
        while (at := min(table_.at for table_ in self.tables.values())) < upto:
            end = min(upto, at + self.dice.choice([10, 30, 100, 10_000]))
            self._span(end)

    def _span(self, end: int) -> None:
        behind = {name: one for name, one in self.tables.items() if one.at < end}
        every = {name: one.every([e for e in one.pending if e.position <= end], end) for name, one in behind.items()}
        whole = self._whole({name: found for name, found in every.items() if name not in self.alone})
        dies = self.dice.random() < 0.2
        for name, one in behind.items():
            if dies and self.dice.random() < 0.5:
                continue
            its = frozenset() if name in self.alone else whole & {event.unit for event in every[name]}
            one.merge(every[name], one.traced(every[name], its), end)
            one.pending = [e for e in one.pending if e.position > end]

    def _whole(self, every: dict[str, list[Event]]) -> frozenset[Unit]:
        """As `runtime.apply.transaction_groups` has it."""
        if not every:
            return frozenset()
        first = min(self.tables[name].at for name in every)
        others = [one for name, one in self.tables.items() if name not in self.alone and one.at > first]
        whole = frozenset(
            unit for one in others for unit in ahead(one.log(), one.name, 1, Span(1, first, one.at)).quarantined
        )
        for name, events in every.items():
            traced, _ = self.tables[name].traced(events)
            quarantined = {(one.position, one.ordinal) for one in traced if one.quarantined}
            rows = [(e.position, e.ordinal, e.op) for e in events if (e.position, e.ordinal) in quarantined]
            whole |= units_of(rows, self._truncates(events))
        if not whole:
            return whole
        found = quarantined_as_whole(
            {name: TableEvents(events, self.tables[name].open().waiting) for name, events in every.items()}, whole
        )
        for events in every.values():
            if any((position, False) in found for position, _ in self._truncates(events)):
                raise Stopped
        for name, events in every.items():
            its = found & {event.unit for event in events}
            traced, _ = self.tables[name].traced(events, its)
            quarantined = {(one.position, one.ordinal) for one in traced if one.quarantined}
            rows = [(e.position, e.ordinal, e.op) for e in events if (e.position, e.ordinal) in quarantined]
            assert units_of(rows, self._truncates(events)) <= found, "once is enough"
        return found

    @staticmethod
    def _truncates(events: list[Event]) -> list[tuple[int, int]]:
        return [(e.position, e.ordinal) for e in events if e.op == "T"]


@pytest.mark.parametrize("seed", seeds(4 * BUDGET))
def test_any_spans_and_deaths_hold_the_transactions_that_the_oracle_holds(seed: int):
    print(f"CDC_LAKE_SEED={seed}")
    dice, relations = random.Random(seed), (ORDERS, LINES, LOG)
    history = History(seed, relations, keys=12, truncates=8)
    limit = LIMIT if seed % 2 else 95
    oracle = Oracle(fails=partial(breaks, limit=limit), grouped=frozenset({ORDERS.table, LINES.table}))
    lakes = [Lake(seed + n) for n in range(2)]
    position = 100
    for _ in range(6):
        events: dict[str, list[Event]] = {str(r.table): [] for r in relations}
        stopped = False
        for _ in range(dice.randint(1, 12)):
            position += 10
            one = history.transaction(position)
            for n, change in enumerate(one.changes, start=1):
                event = event_of(oracle, position, n, change, limit)
                events[str(change.relation.table)].append(event)
            try:
                oracle.apply(one)
            except TruncateIsHeld:
                stopped = True
                break
        at = f"CDC_LAKE_SEED={seed} at {position}"
        for lake in lakes:
            if stopped:
                with pytest.raises(Stopped):
                    lake.run(events, position)
            else:
                lake.run({name: list(some) for name, some in events.items()}, position)
        if stopped:
            return
        for lake in lakes:
            for relation in relations:
                found, name = lake.tables[str(relation.table)], relation.table
                assert found.keys == set(oracle.tables.get(name, {})), (at, name)
                places = [(row["position"], row["ordinal"]) for row in found.open().rows.to_pylist()]
                assert places == sorted(oracle.waiting.get(name, {})), (at, name)
                assert found.open().keys == oracle.quarantined_keys.get(name, set()), (at, name)
                reasons = [(row["reason"], row["rules"]) for row in found.open().rows.to_pylist()]
                same = lakes[0].tables[str(name)].open().rows.to_pylist()
                assert reasons == [(row["reason"], row["rules"]) for row in same], (at, name)
        decide(dice, lakes, oracle, position)


def decide(dice: random.Random, lakes: list[Lake], oracle: Oracle, position: int) -> None:
    """Some of what waits together is let through or given up, in all tables of the group; what is let through at a
    position is one transaction.
    """
    names = {str(relation.table): relation.table for relation in (ORDERS, LINES)}
    open_ = [row for name in names for row in lakes[0].tables[name].open().rows.to_pylist()]
    made: dict[TableName, dict[Place, int]] = {}
    for group in group_across_tables(open_):
        if dice.random() < 0.5:
            continue
        verb = "release" if group.broken <= {"rule"} and dice.random() < 0.6 else "discard"
        for name, its in names.items():
            places = [(row["position"], row["ordinal"]) for row in group.rows if row["relation"] == name]
            first = AT + sum(one["position"] == position + 1 for one in lakes[0].tables[name].decisions)
            for lake in lakes:
                rows = lake.tables[name].open().rows.to_pylist()
                lake.tables[name].decide(verb, [r for r in rows if (r["position"], r["ordinal"]) in places])
            if places and verb == "discard":
                oracle.discard(its, places)
            elif places:
                made.setdefault(its, {}).update(zip(places, itertools.count(first)))
    if made:
        oracle.release_together(position + 1, made)
