"""Rows that have one key in turn inside a transaction: what folds changes one by one comes to the source's rows."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cdc_lake.bronze.fold import folded as bronze_folded
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.model.change import UNCHANGED, Delete, Insert, Message, Truncate, Tuple, Update
from cdc_lake.model.relation import ReplicaIdentity
from cdc_lake.model.rows_by_key import RowsByKey
from cdc_lake.model.transaction import Transaction
from cdc_lake.pipeline.held.accounting import HeldChange, explained, folded
from cdc_lake.testing.histories import History
from cdc_lake.testing.messages import raw_transaction, table
from tests.seeds import seeds

T = table("public.t", identity=ReplicaIdentity.FULL, id="int4", amount="int4", body="text")


def changes_of(transactions: Sequence[Transaction]) -> Iterator[HeldChange]:
    for one in transactions:
        for ordinal, change in enumerate(one.changes, start=1):
            assert not isinstance(change, Message | Truncate)
            new = () if isinstance(change, Delete) else change.new
            old = None if isinstance(change, Insert) else change.old
            unsent = frozenset(name for name, value in zip(T.names, new, strict=False) if value is UNCHANGED)
            op = {Insert: "I", Update: "U", Delete: "D"}[type(change)]
            yield HeldChange((1, one.bounds.position, ordinal), op, texts(new or None), texts(old), unsent)


def texts(values: Tuple | None) -> dict[str, str | None] | None:
    if values is None:
        return None
    return {name: None if value is UNCHANGED else value for name, value in zip(T.names, values, strict=True)}  # type: ignore[misc]


@pytest.mark.parametrize("seed", seeds(20))
def test_changes_folded_onto_rows_give_the_sources_rows(seed: int) -> None:
    print(f"CDC_LAKE_SEED={seed}")
    history, positions = History(seed, [T], keys=5), iter(range(1000, 10_000, 10))
    for _ in range(10):
        before = {(row["id"],): dict(row) for row in history.rows(T.table)}
        some = [history.transaction(next(positions)) for _ in range(random.Random(seed).randint(1, 6))]
        after, odd = folded(list(changes_of(some)), ["id"], T.names, before)
        now = {(row["id"],): row for row in history.rows(T.table)}
        assert not odd
        assert after == {key: now.get(key) for key in after}
        assert {key for key in before.keys() | now.keys() if before.get(key) != now.get(key)} <= after.keys()


def test_two_rows_that_stay_at_one_key_are_odd_and_the_last_one_is_told() -> None:
    rows = [{"id": "1", "amount": n, "body": None} for n in "12"]
    insert = HeldChange((1, 10, 1), "I", rows[1], None, frozenset())
    later = HeldChange((1, 20, 1), "U", {**rows[1], "amount": "3"}, rows[1], frozenset())
    after, odd = folded([insert, later], ["id"], T.names, {("1",): rows[0]})
    assert odd == {("1",)}
    assert after["1",] == {**rows[1], "amount": "3"}


def test_a_change_says_nothing_of_a_key_that_was_told_anew() -> None:
    moved = HeldChange(
        (1, 10, 1), "U", {"id": "2", "amount": "5", "body": None}, {"id": "1"}, frozenset({"body"}), (True, False)
    )
    after, odd = folded([moved], ["id"], T.names, {("1",): {"id": "1", "amount": "9", "body": "another row"}})
    assert not odd
    assert after.keys() == {("2",)}
    assert explained(after["2",], {"id": "2", "amount": "5", "body": "what nobody here knows"})


def test_bronze_folded_gives_the_sources_rows(tmp_path: Path) -> None:
    for seed in seeds(3):
        print(f"CDC_LAKE_SEED={seed}")
        history, folder = History(seed, [T], keys=5), tmp_path / str(seed)
        writer = DeltaBronze(folder, durability="os")
        writer.begin_stream("test", 100)
        writer.append([raw_transaction(history.transaction(1000 + 10 * n)) for n in range(60)])
        found = bronze_folded(BronzeReader(folder), 1, {"public.t": ("id",)}, {})["public.t"]
        assert sorted(map(repr, found)) == sorted(map(repr, history.rows(T.table)))


def test_a_row_that_stays_keeps_its_turn() -> None:
    rows: RowsByKey[str] = RowsByKey()
    rows.put(("1",), "older")
    rows.move(None, ("1",), "younger")
    rows.move(("1",), ("1",), "older, changed")
    assert (rows.first(("1",)), rows.last(("1",))) == ("older, changed", "younger")
    rows.move(("1",), None, None)
    assert list(rows) == ["younger"]
    assert rows.settle([("1",)]) == frozenset()
