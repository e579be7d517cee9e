"""Following rows: who waits, who is held by themselves, who is whose row. Hundreds of histories go through it elsewhere."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import Any

import pytest

from cdc_lake.model.change import Delete, Truncate
from cdc_lake.model.relation import ReplicaIdentity
from cdc_lake.silver.row_tracing import (
    MISSING,
    NOTHING_WAITS,
    TAKEN,
    Event,
    Key,
    TracedChange,
    find_shared_key_positions,
    trace,
    trace_content,
)
from cdc_lake_testing.histories import History
from cdc_lake_testing.messages import table
from cdc_lake_testing.oracle import Oracle, Row
from tests.quarantine_tables import event_of
from tests.seeds import seeds

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
NULL, ONE, TWO, NINE = (None,), ("1",), ("2",), ("9",)
T = table("public.t", identity=ReplicaIdentity.FULL, id="int4", amount="int4", body="text")


def test_an_update_that_left_values_out_is_held_where_its_row_is_not_there():
    events = [
        Event(10, 1, "U", ONE, ONE, partial=True),
        Event(10, 2, "U", ONE, ONE),
        Event(20, 1, "I", None, TWO),
        Event(20, 2, "U", TWO, TWO, partial=True),
        Event(20, 3, "U", NINE, NINE, partial=True),
    ]
    traced, _ = trace(events, existing=frozenset({NINE}))
    assert [(t.quarantined, t.broke) for t in traced] == [
        (True, MISSING), (True, None), (False, None), (False, None), (False, None),
    ]  # fmt: skip


def test_a_second_row_at_a_key_is_held_and_the_first_one_stays():
    events = [
        Event(10, 1, "I", None, NULL),
        Event(20, 1, "I", None, NULL),
        Event(30, 1, "D", NULL),
    ]
    traced, _ = trace(events)
    assert [(t.quarantined, t.broke) for t in traced] == [(False, None), (True, TAKEN), (True, None)]
    again, _ = trace(events[1:], existing=frozenset({NULL}))
    assert [(t.quarantined, t.broke) for t in again] == [(True, TAKEN), (True, None)], "whatever the spans"


def test_a_key_that_changes_hands_in_a_transaction_is_taken_by_nobody():
    events = [Event(10, 1, "I", None, NULL), Event(20, 1, "I", None, NULL), Event(20, 2, "D", NULL)]
    traced, _ = trace(events)
    assert [t.quarantined for t in traced] == [False, False, False]
    assert traced[2].row == traced[0].row, "the older one leaves"


def test_a_row_that_cannot_leave_because_it_is_held_makes_its_follower_wait_without_a_reason_of_its_own():
    events = [Event(10, 1, "U", TWO, ONE), Event(10, 2, "U", ONE, NINE, failed=True)]
    traced, _ = trace(events, existing=frozenset({ONE, TWO}))
    assert [(t.quarantined, t.broke) for t in traced] == [(True, None), (True, None)]


def test_rows_without_a_key_wait_for_equal_ones_until_a_truncate():
    events = [
        Event(10, 1, "I", None, ONE, failed=True),
        Event(10, 2, "U", TWO, ONE),
        Event(20, 1, "D", TWO),
        Event(20, 2, "I", None, NINE),
        Event(30, 1, "T"),
        Event(30, 2, "I", None, ONE),
    ]
    traced, closings = trace_content(events, NOTHING_WAITS)
    assert [t.quarantined for t in traced] == [True, True, True, False, False]
    assert [(c.position, c.ordinal) for c in closings] == [(30, 1)]


def test_where_silver_lacks_rows_of_the_source_a_row_at_a_key_that_nobody_has_is_new():
    """The row that silver had at the key left it before: its values are not those of the one that is there now."""
    events = [Event(1, 1, "U", ("b",), ("c",)), Event(2, 1, "U", ("b",), ("b",))]
    found, _ = trace(events, existing=frozenset({("b",)}), filtered=True)
    assert [one.origin for one in found] == [("b",), None]
    assert [one.origin for one in trace(events, existing=frozenset({("b",)}))[0]] == [("b",), ("b",)]


def test_a_row_that_leaves_silver_makes_the_key_wait_that_it_goes_to_only_where_it_waits_itself():
    events = [
        Event(10, 1, "U", ONE, ONE, failed=True),
        Event(20, 1, "D", ONE, left_to=TWO),
        Event(30, 1, "D", NINE, left_to=ONE),
        Event(40, 1, "U", TWO, TWO),
    ]
    traced, _ = trace(events, existing=frozenset({ONE, NINE}), filtered=True)
    assert [(t.quarantined, t.waits) for t in traced] == [(True, False), (True, True), (False, False), (True, True)]


def test_of_two_rows_at_a_key_the_one_that_the_whole_old_tuple_equals_goes():
    older, younger, changed = 1, 2, 3
    come = Event(20, 1, "I", None, NULL, new_digest=younger)
    both = Event(20, 2, "U", NULL, NULL, old_digest=older, new_digest=changed)
    for gone, row in ((younger, "new"), (older, "old")):
        traced, _ = trace([come, Event(20, 2, "D", NULL, old_digest=gone)], existing=frozenset({NULL}))
        assert (traced[1].origin is None) == (row == "new")
        assert (traced[1].row == traced[0].row) == (row == "new")
    for gone, at in ((younger, 0), (changed, 1)):
        traced, _ = trace([come, both, Event(20, 3, "D", NULL, old_digest=gone)], existing=frozenset({NULL}))
        assert traced[2].row == traced[at].row
        assert not any(one.quarantined for one in traced)
    moved = Event(20, 2, "U", NULL, ONE, old_digest=younger, new_digest=changed)
    traced, _ = trace([come, moved, Event(20, 3, "D", NULL, old_digest=older)], existing=frozenset({NULL}))
    assert [one.origin for one in traced] == [None, None, NULL]


@pytest.mark.parametrize("seed", seeds(40 * BUDGET))
def test_rows_that_share_a_key_for_a_moment_end_as_at_the_source_whatever_the_spans(seed: int) -> None:
    """Values are asked for only of transactions that are found to need them, and silver is folded row by row."""
    print(f"CDC_LAKE_SEED={seed}")
    dice, oracle, met = random.Random(seed), Oracle({T.table: ("id",)}), 0
    history = History(
        seed, [T], keys=3, truncates=20, identified={T.table: ("id",)}, nullable=frozenset({"id"}), large=frozenset()
    )
    silver: dict[Key, Row] = {}
    position = 100
    for _ in range(12):
        changes, events = [], []
        for _ in range(dice.choice((1, 2, 10))):
            position += 10
            one = history.transaction(position)
            oracle.apply(one)
            changes += one.changes
            events += [event_of(oracle, position, n, change, 99) for n, change in enumerate(one.changes, start=1)]
        positions = find_shared_key_positions(events, frozenset(silver))
        met += len(positions)
        known = [e if e.position in positions else replace(e, old_digest=None, new_digest=None) for e in events]
        traced, _ = trace(known, existing=frozenset(silver))
        silver = net(silver, changes, traced)
        assert silver == oracle.tables.get(T.table, {})
        assert sorted(map(repr, silver.values())) == sorted(map(repr, history.rows(T.table)))
    assert met


def net(silver: dict[Key, Row], changes: list[Any], traced: list[TracedChange]) -> dict[Key, Row]:
    """Silver behind a span, each row as its last change has it."""
    left = iter(traced)
    rows: dict[int, tuple[Key | None, Row | None]] = {}
    for change in changes:
        if isinstance(change, Truncate):
            rows, silver = {}, {}
            continue
        one = next(left)
        assert not one.quarantined
        row = None if isinstance(change, Delete) else dict(zip(T.names, change.new, strict=True))
        rows[one.row] = (one.origin, row)
    gone = {origin for origin, _ in rows.values()}
    now = [row for _, row in rows.values() if row is not None]
    assert len({row["id"] for row in now}) == len(now)
    return {key: row for key, row in silver.items() if key not in gone} | {(row["id"],): row for row in now}
