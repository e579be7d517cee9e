"""Following rows: who waits, who is held by themselves, who is whose row. Hundreds of histories go through it elsewhere."""

from __future__ import annotations

from cdc_lake.silver.holding import NOTHING_WAITS
from cdc_lake.silver.lineage import trace, trace_content
from cdc_lake.silver.row_events import MISSING, TAKEN, Event

NULL, ONE, TWO, NINE = (None,), ("1",), ("2",), ("9",)


def test_an_update_that_left_values_out_is_held_where_its_row_is_not_there():
    events = [
        Event(10, 1, "U", ONE, ONE, partial=True),
        Event(10, 2, "U", ONE, ONE),
        Event(20, 1, "I", None, TWO),
        Event(20, 2, "U", TWO, TWO, partial=True),
        Event(20, 3, "U", NINE, NINE, partial=True),
    ]
    traced, _ = trace(events, existing=frozenset({NINE}))
    assert [(t.held, t.broke) for t in traced] == [
        (True, MISSING), (True, None), (False, None), (False, None), (False, None),
    ]  # fmt: skip


def test_a_second_row_at_a_key_is_held_and_the_first_one_stays():
    events = [
        Event(10, 1, "I", None, NULL),
        Event(20, 1, "I", None, NULL),
        Event(30, 1, "D", NULL),
    ]
    traced, _ = trace(events)
    assert [(t.held, t.broke) for t in traced] == [(False, None), (True, TAKEN), (True, None)]
    again, _ = trace(events[1:], existing=frozenset({NULL}))
    assert [(t.held, t.broke) for t in again] == [(True, TAKEN), (True, None)], "whatever the spans"


def test_a_key_that_changes_hands_in_a_transaction_is_taken_by_nobody():
    events = [Event(10, 1, "I", None, NULL), Event(20, 1, "I", None, NULL), Event(20, 2, "D", NULL)]
    traced, _ = trace(events)
    assert [t.held for t in traced] == [False, False, False]
    assert traced[2].row == traced[0].row, "the older one leaves"


def test_a_row_that_cannot_leave_because_it_is_held_makes_its_follower_wait_without_a_reason_of_its_own():
    events = [Event(10, 1, "U", TWO, ONE), Event(10, 2, "U", ONE, NINE, failed=True)]
    traced, _ = trace(events, existing=frozenset({ONE, TWO}))
    assert [(t.held, t.broke) for t in traced] == [(True, None), (True, None)]


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
    assert [t.held for t in traced] == [True, True, True, False, False]
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
    assert [(t.held, t.waits) for t in traced] == [(True, False), (True, True), (False, False), (True, True)]
