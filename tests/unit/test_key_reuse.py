"""Rows that have one key in turn inside a transaction: what folds changes one by one comes to the source's rows."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.row_history import replay_rows as bronze_folded
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.comparison.pending_changes import PendingChange, fold_changes, is_explained
from cdc_lake.model.change import UNCHANGED, Delete, Insert, Message, OldKind, Transaction, Truncate, Tuple, Update
from cdc_lake.model.quarantine import Key, RowsByKey
from cdc_lake.model.relation import Relation, ReplicaIdentity
from cdc_lake_testing.histories import History
from cdc_lake_testing.messages import raw_transaction, table
from tests.seeds import seeds

T = table("public.t", identity=ReplicaIdentity.FULL, id="int4", amount="int4", body="text")
BY_KEY = table("public.t", id="int4", amount="int4", body="text")
"""Its old tuples are keys, with NULL for the other columns: they are not what a row was."""
IDENTITIES = pytest.mark.parametrize("relation", [T, BY_KEY], ids=["full", "key"])


def changes_of(transactions: Sequence[Transaction]) -> Iterator[PendingChange]:
    for one in transactions:
        for ordinal, change in enumerate(one.changes, start=1):
            assert not isinstance(change, Message | Truncate)
            new = () if isinstance(change, Delete) else change.new
            old = None if isinstance(change, Insert) else change.old
            unsent = frozenset(name for name, value in zip(T.names, new, strict=False) if value is UNCHANGED)
            op = {Insert: "I", Update: "U", Delete: "D"}[type(change)]
            whole = not isinstance(change, Insert) and change.old_kind is OldKind.FULL
            place = 1, one.bounds.position, ordinal
            yield PendingChange(place, op, texts(new or None), texts(old), unsent, has_whole_old=whole)


def texts(values: Tuple | None) -> dict[str, str | None] | None:
    if values is None:
        return None
    return {name: None if value is UNCHANGED else value for name, value in zip(T.names, values, strict=True)}  # type: ignore[misc]


@IDENTITIES
@pytest.mark.parametrize("seed", seeds(20))
def test_changes_folded_onto_rows_give_the_sources_rows(seed: int, relation: Relation) -> None:
    print(f"CDC_LAKE_SEED={seed}")
    history, positions = History(seed, [relation], keys=5), iter(range(1000, 10_000, 10))
    for _ in range(10):
        before = {(row["id"],): [dict(row)] for row in history.rows(T.table)}
        some = [history.transaction(next(positions)) for _ in range(random.Random(seed).randint(1, 6))]
        found = fold_changes(list(changes_of(some)), ["id"], T.names, before)
        now = {(row["id"],): (row,) for row in history.rows(T.table)}
        assert not found.odd
        assert not found.shared
        assert found.rows == {key: now.get(key, ()) for key in found.rows}
        unlike = {key for key in before.keys() | now.keys() if tuple(before.get(key, ())) != now.get(key, ())}
        assert unlike <= found.rows.keys()


@pytest.mark.parametrize("seed", seeds(20))
def test_rows_that_share_a_key_are_told_apart_by_their_old_tuples(seed: int) -> None:
    """The oracle is a list of rows; silver has one row of each key, and the changes that brought the others are held."""
    print(f"CDC_LAKE_SEED={seed}")
    dice = random.Random(seed)
    rows: list[dict[str, str | None]] = []
    changes: list[PendingChange] = []
    silver: dict[Key, list[dict[str, str | None]]] = {}
    for position in range(60):
        new = {"id": dice.choice((None, "1", "2")), "amount": dice.choice("12"), "body": dice.choice((None, "x"))}
        old = rows.pop(dice.randrange(len(rows))) if rows and dice.random() < 0.6 else None
        op = "I" if old is None else dice.choice("UD")
        if op == "I" and position < 20 and (new["id"],) not in silver:
            silver[new["id"],] = [new]
        else:
            changes.append(
                PendingChange((1, position // 2, position), op, None if op == "D" else new, old, frozenset())
            )
        if op != "D":
            rows.append(new)
    found = fold_changes(changes, ["id"], T.names, silver)
    of_key = {key: [row for row in rows if row["id"] == key[0]] for key in found.rows}
    assert not found.odd
    for key, some in found.rows.items():
        assert is_explained(some, dice.sample(of_key[key], len(of_key[key])))
        assert not is_explained(some, [*of_key[key], {"id": key[0], "amount": "9", "body": None}])
        assert not is_explained([*some, {"id": key[0], "amount": "9", "body": None}], of_key[key])


def test_keys_that_several_rows_keep_are_said() -> None:
    rows = [{"id": "1", "amount": n, "body": None} for n in "12"]
    insert = PendingChange((1, 10, 1), "I", rows[1], None, frozenset())
    gone = PendingChange((1, 20, 1), "D", None, rows[1], frozenset())
    for later in ([], [gone]):
        found = fold_changes([insert, *later], ["id"], T.names, {("1",): [rows[0]]})
        assert (found.odd, found.shared) == (frozenset(), {("1",)})
        assert found.rows["1",] == (rows[0], *([] if later else [rows[1]]))


def test_a_change_says_nothing_of_a_key_that_was_told_anew() -> None:
    moved = PendingChange(
        (1, 10, 1), "U", {"id": "2", "amount": "5", "body": None}, {"id": "1"}, frozenset({"body"}), (True, False)
    )
    found = fold_changes([moved], ["id"], T.names, {("1",): [{"id": "1", "amount": "9", "body": "another row"}]})
    assert not found.odd
    assert found.rows.keys() == {("2",)}
    assert is_explained(found.rows["2",], [{"id": "2", "amount": "5", "body": "what nobody here knows"}])


@IDENTITIES
def test_bronze_folded_gives_the_sources_rows(tmp_path: Path, relation: Relation) -> None:
    for seed in seeds(5):
        print(f"CDC_LAKE_SEED={seed}")
        history, folder = History(seed, [relation], keys=5), tmp_path / str(seed)
        writer = DeltaBronze(folder, durability="os")
        writer.begin_stream("test", 100)
        writer.append([raw_transaction(history.transaction(1000 + 10 * n)) for n in range(150)])
        found = bronze_folded(BronzeReader(folder), 1, {"public.t": ("id",)}, {})["public.t"]
        assert sorted(map(repr, found)) == sorted(map(repr, history.rows(T.table)))


def test_a_row_that_stays_keeps_its_turn() -> None:
    rows: RowsByKey[str] = RowsByKey()
    rows.put(("1",), ["older"])
    rows.move(None, ("1",), "younger")
    rows.move(("1",), ("1",), "older, changed")
    assert rows.rows(("1",)) == ("older, changed", "younger")
    rows.move(("1",), ("1",), "younger, changed", "younger")
    assert (rows.row_of(("1",)), rows.last(("1",))) == ("older, changed", "younger, changed")
    rows.move(("1",), None, None)
    assert list(rows) == ["younger, changed"]
