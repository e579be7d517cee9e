"""Decisions on held changes: who waits behind them, what they end, and that spans do not matter. Without Spark."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import Any

import pytest

from cdc_lake.model.change import Transaction
from cdc_lake.model.relation import Relation, ReplicaIdentity
from cdc_lake.runtime.quarantine import group_by_key
from cdc_lake.silver.row_tracing import (
    DISCARDED,
    MISSING,
    NOTHING_WAITS,
    Event,
    HoldRelease,
    Key,
    QuarantineState,
    TracedChange,
    trace,
    trace_content,
)
from cdc_lake_testing.histories import History
from cdc_lake_testing.messages import table
from cdc_lake_testing.oracle import Oracle
from tests.quarantine_tables import AT, Table, breaks, event_of
from tests.seeds import seeds

ONE, TWO, NINE = ("1",), ("2",), ("9",)
BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
T = table("public.t", id="int4", amount="int4", body="text")
WHOLE = table("public.t", identity=ReplicaIdentity.FULL, id="int4", amount="int4", body="text")


def let(position: int, n: int, of: tuple[int, int], op: str, old: Key | None, new: Key | None, **more: Any) -> Event:
    return Event(position, AT + n, op, old, new, decides=of, **more)


def told(traced: list[TracedChange]) -> list[tuple[bool, str | None, bool]]:
    return [(one.quarantined, one.broke, one.dropped) for one in traced]


# ── one by one ──


def test_what_is_released_is_made_behind_all_that_waited_and_what_comes_later_flows():
    events = [
        Event(10, 1, "U", ONE, ONE, failed=True),
        Event(20, 1, "U", ONE, ONE),
        let(31, 0, (10, 1), "U", ONE, ONE),
        let(31, 1, (20, 1), "U", ONE, ONE),
        Event(40, 1, "U", ONE, ONE),
    ]
    traced, closings = trace(events, existing=frozenset({ONE}))
    assert [one.quarantined for one in traced] == [True, True, False, False, False]
    assert closings == [], "the decision is the record"
    later, _ = trace(
        events[2:],
        existing=frozenset({ONE}),
        quarantined=QuarantineState({(10, 1): frozenset({ONE}), (20, 1): frozenset({ONE})}),
    )
    assert told(later) == told(traced[2:]), "whatever the spans"


def test_a_decision_on_what_does_not_wait_is_nothing():
    events = [Event(10, 1, "U", ONE, ONE), let(31, 0, (10, 1), "U", ONE, ONE)]
    traced, _ = trace(events, existing=frozenset({ONE}))
    assert told(traced) == [(False, None, False), (False, None, True)]
    emptied = [Event(10, 1, "U", ONE, ONE, failed=True), Event(20, 1, "T"), let(31, 0, (10, 1), "U", ONE, ONE)]
    assert [one.dropped for one in trace(emptied, existing=frozenset({ONE}))[0]] == [False, True]


def test_what_is_released_waits_where_something_else_still_holds_its_key():
    quarantined = QuarantineState({(5, 1): frozenset({ONE}), (10, 1): frozenset({ONE})})
    traced, _ = trace([let(31, 0, (10, 1), "U", ONE, ONE)], existing=frozenset({ONE}), quarantined=quarantined)
    assert [(one.quarantined, one.waits) for one in traced] == [(True, True)]


def test_what_no_rule_holds_is_held_again_where_it_is_let_through():
    quarantined = QuarantineState({(10, 1): frozenset({ONE}), (20, 1): frozenset({ONE})})
    events = [let(31, 0, (10, 1), "U", ONE, ONE, failed=True), let(31, 1, (20, 1), "U", ONE, ONE)]
    traced, _ = trace(events, existing=frozenset({ONE}), quarantined=quarantined)
    assert [(one.quarantined, one.waits) for one in traced] == [(True, False), (True, True)]


@pytest.mark.parametrize(
    "next_", [Event(40, 1, "U", ONE, ONE), Event(40, 1, "I", None, ONE), Event(40, 1, "D", ONE)], ids=["U", "I", "D"]
)
@pytest.mark.parametrize("there", [True, False])
def test_behind_a_discarded_change_the_next_that_tells_all_says_what_the_key_has(next_: Event, *, there: bool):
    events = [
        Event(10, 1, "U" if there else "I", ONE if there else None, ONE, failed=True),
        let(31, 0, (10, 1), "U", None, None, given_up=True),
        next_,
        Event(50, 1, "U", ONE, ONE, partial=True),
    ]
    traced, closings = trace(events, existing=frozenset({ONE} if there else ()), holds_missing=False)
    assert told(traced)[:3] == [(True, None, False), (False, None, True), (False, None, False)]
    assert closings == [HoldRelease(40, 1, ONE)]
    assert traced[2].origin == (ONE if there else None), "silver's row goes on, or there is none"
    assert not traced[3].quarantined, "what it leaves out is known by then"


@pytest.mark.parametrize(
    "next_", [Event(40, 1, "U", ONE, ONE, partial=True), Event(40, 1, "U", ONE, TWO)], ids=["partial", "moved"]
)
def test_behind_a_discarded_change_one_that_needs_the_row_is_held(next_: Event):
    waiting = QuarantineState({}, frozenset({ONE}))
    traced, closings = trace([next_, Event(50, 1, "D", ONE)], existing=frozenset({ONE}), quarantined=waiting)
    assert [(one.quarantined, one.broke) for one in traced] == [(True, DISCARDED), (True, None)]
    assert closings == []


@pytest.mark.parametrize("goes", [Event(40, 3, "D", ONE), Event(40, 3, "U", ONE, TWO)], ids=["D", "U"])
def test_an_insert_says_nothing_where_its_transaction_takes_a_row_from_the_key_afterwards(goes: Event):
    apart = QuarantineState({}, frozenset({ONE}))
    insert = Event(40, 1, "I", None, ONE)
    both, closings = trace([insert, goes], existing=frozenset({ONE}), quarantined=apart)
    assert [(one.quarantined, one.waits, one.broke) for one in both] == [(True, False, DISCARDED), (True, True, None)]
    assert closings == []
    for events in ([insert, replace(goes, position=50)], [insert, Event(40, 2, "T"), goes]):
        assert not trace(events, existing=frozenset({ONE}), quarantined=apart)[0][0].quarantined, (
            "that row is the one that goes"
        )


def test_what_is_let_through_says_what_it_said_in_its_own_transaction():
    quarantined = QuarantineState({(10, 1): frozenset({ONE}), (20, 1): frozenset({ONE})}, frozenset({ONE}))
    events = [let(31, 0, (10, 1), "I", None, ONE), let(31, 1, (20, 1), "D", ONE, None)]
    assert [one.quarantined for one in trace(events, quarantined=quarantined)[0]] == [False, False]
    quarantined = QuarantineState({(10, 1): frozenset({ONE}), (10, 2): frozenset({ONE})}, frozenset({ONE}))
    events = [let(31, 0, (10, 1), "I", None, ONE), let(31, 1, (10, 2), "D", ONE, None)]
    assert [(one.quarantined, one.broke) for one in trace(events, quarantined=quarantined)[0]] == [
        (True, DISCARDED),
        (True, None),
    ]


def test_a_truncate_and_a_row_read_again_tell_the_key_anew():
    waiting = QuarantineState({}, frozenset({ONE, TWO}))
    events = [Event(31, -7, "I", None, ONE, again=True), Event(40, 1, "T")]
    traced, closings = trace(events, quarantined=waiting)
    assert closings == [HoldRelease(31, -7, ONE), HoldRelease(40, 1)]
    assert not traced[0].quarantined


def test_where_a_row_that_is_not_there_stops_a_run_it_does_so_beside_decisions_too():
    partial = [Event(10, 1, "U", NINE, NINE, partial=True)]
    assert told(trace(partial)[0]) == [(True, MISSING, False)]
    assert told(trace(partial, holds_missing=False)[0]) == [(False, None, False)]


def test_copies_of_rows_without_a_key_are_let_through_together():
    events = [
        Event(10, 1, "I", None, ONE, failed=True),
        Event(20, 1, "D", ONE),
        let(31, 0, (10, 1), "I", None, ONE),
        let(31, 1, (20, 1), "D", ONE, None),
    ]
    assert [one.quarantined for one in trace_content(events, NOTHING_WAITS)[0]] == [True, True, False, False]


# ── whatever the spans ──


def at_source(history: History, unknown: set[Key]) -> dict[Key, Any]:
    """The source's rows but for the keys that silver cannot know."""
    rows = {(row["id"],): row for row in history.rows(T.table)}
    return {key: row for key, row in rows.items() if key not in unknown}


@pytest.mark.parametrize("relation", [T, WHOLE], ids=["key", "whole rows"])
@pytest.mark.parametrize("seed", seeds(4 if BUDGET == 1 else 10 * BUDGET))
def test_any_spans_carry_out_decisions_like_the_oracle(seed: int, relation: Relation):
    print(f"CDC_LAKE_SEED={seed}")
    dice, history, oracle = random.Random(seed), History(seed, [relation], keys=6, truncates=10), Oracle(fails=breaks)
    lakes = [Table(random.Random(seed + n)) for n in range(3)]
    position = 100
    for _ in range(8):
        some: list[Transaction] = []
        for _ in range(dice.randint(1, 12)):
            position += 10
            some.append(history.transaction(position))
        events = [
            event_of(oracle, one.bounds.position, n, change)
            for one in some
            for n, change in enumerate(one.changes, start=1)
        ]
        oracle.run(some)
        unknown = oracle.quarantined_keys.get(T.table, set()) | oracle.apart.get(T.table, set())
        known = {key: row for key, row in oracle.tables.get(T.table, {}).items() if key not in unknown}
        assert known == at_source(history, unknown), f"CDC_LAKE_SEED={seed} at {position}"
        for lake in lakes:
            lake.run(list(events), position)
        rows = lakes[0].open().rows.to_pylist()
        for lake in lakes:
            found = lake.open()
            at = f"CDC_LAKE_SEED={seed} at {position}"
            assert lake.keys == set(oracle.tables.get(T.table, {})), at
            places = [(row["position"], row["ordinal"]) for row in found.rows.to_pylist()]
            assert places == sorted(oracle.waiting.get(T.table, {})), at
            assert found.waiting.apart == oracle.apart.get(T.table, set()), at
            assert found.keys == oracle.quarantined_keys.get(T.table, set()), at
            reasons = [(row["reason"], row["rules"]) for row in found.rows.to_pylist()]
            assert reasons == [(row["reason"], row["rules"]) for row in rows], at
        for group in group_by_key(rows):
            if dice.random() < 0.5:
                continue
            places = [(row["position"], row["ordinal"]) for row in group.rows]
            verb = "release" if group.broken <= {"rule"} and dice.random() < 0.6 else "discard"
            first = AT + sum(one["position"] == position + 1 for one in lakes[0].decisions)
            for lake in lakes:
                mine = [row for row in lake.open().rows.to_pylist() if (row["position"], row["ordinal"]) in places]
                lake.decide(verb, mine)
            if verb == "release":
                oracle.release(T.table, (position + 1, first), places)
            else:
                oracle.discard(T.table, places)
