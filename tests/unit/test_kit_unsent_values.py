"""The definition of what is held where a server leaves values out of the changes of a filtered table.

Beside the truth: what does not wait is as the source has it, so nothing wrong is shown, and not all waits.
"""

from __future__ import annotations

import os

import pytest

from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, OldKind, Transaction, Update
from cdc_lake_testing import histories
from cdc_lake_testing.histories import History
from cdc_lake_testing.messages import boundaries, table
from cdc_lake_testing.oracle import Oracle, Row
from cdc_lake_testing.partly_told import NOT_SENT, WAITS, PartlyTold
from tests.seeds import one_seed

T = table("public.t", id="int4", amount="int4", body="text")
SEEDS = 200 * int(os.environ.get("CDC_LAKE_BUDGET", "1"))


def matches(row: Row) -> bool:
    return row["amount"] is not None and int(row["amount"]) < 60 and row["body"] is not None


def table_of(*changes: Change) -> PartlyTold:
    made = PartlyTold({"amount", "body"}, T.names, T.names, matches)
    made.run(Transaction(boundaries(10 * n), (change,), (n,)) for n, change in enumerate(changes, start=1))
    return made


def update(at: str, amount: str, body: str | None = None, *, was: str | None = None) -> Update:
    """Of a row at key `at`, that it had at `was` before."""
    old = None if was is None else (was, None, None)
    return Update(T, (at, amount, body or UNCHANGED), old, None if was is None else OldKind.KEY)


def test_a_row_that_left_takes_its_values_along():
    done = table_of(Insert(T, ("1", "5", "x")), update("1", "70"), update("1", "6"), update("1", "7", "y"))
    assert done.held == [(30, 1, NOT_SENT), (40, 1, WAITS)]
    assert (done.rows, done.waiting) == ({}, {("1",)})


def test_a_row_that_leaves_while_its_key_waits_makes_the_key_wait_that_it_goes_to():
    """Silver's row is not the one that moves, so its value cannot tell that the one at the other key does not match."""
    left = [Insert(T, ("1", "5", "x")), update("1", "70"), update("1", "6")]
    done = table_of(*left, update("2", "80", was="1"), update("2", "5", "y"))
    assert done.held == [(30, 1, NOT_SENT), (40, 1, WAITS), (50, 1, WAITS)]
    told = table_of(*left, update("2", "80", "z", was="1"), update("2", "5", "y"))
    assert told.held == [(30, 1, NOT_SENT), (40, 1, WAITS)]
    assert told.rows == {("2",): {"id": "2", "amount": "5", "body": "y"}}


def test_a_row_in_silver_tells_what_was_not_sent_also_of_one_that_leaves():
    done = table_of(Insert(T, ("1", "5", "x")), update("1", "6"), update("2", "7", was="1"), update("3", "70", was="2"))
    assert (done.held, done.rows) == ([], {})
    done = table_of(Insert(T, ("1", "5", "x")), Delete(T, ("1", None, None), OldKind.KEY), Insert(T, ("1", "80", "x")))
    assert (done.held, done.rows) == ([], {})


def test_what_does_not_wait_is_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without swaps: a key that the server logs alone is one that it checks at once."""
    monkeypatch.setattr(histories, "KINDS", {k: n for k, n in histories.KINDS.items() if k not in histories.DEFERRED})
    seed = one_seed()
    print(f"seed {seed}")
    shown = wanted = held = 0
    for n in range(SEEDS):
        history, truth, told = History(seed + n, [T]), Oracle(), table_of()
        transactions = [history.transaction(10 * at) for at in range(1, 13)]
        truth.run(transactions)
        told.run(transactions)
        rows = {key: row for key, row in truth.tables.get(T.table, {}).items() if matches(row)}
        free = {key: row for key, row in rows.items() if key not in told.waiting}
        assert {key: row for key, row in told.rows.items() if key not in told.waiting} == free
        shown, wanted, held = shown + len(free), wanted + len(rows), held + len(told.held)
    assert shown > wanted / 4
    assert held
