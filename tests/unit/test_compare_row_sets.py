"""Rows as a comparison sees them: in buckets, as samples, and by their whole content where there is no key."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdc_lake.comparison import compare
from cdc_lake.comparison.columns import COPIES, Sample, count_copies, match
from cdc_lake.comparison.pending_changes import PendingChange, folded_copies
from cdc_lake.comparison.row_sets import PARTS, BucketStore, pair_shelves
from cdc_lake.model.position import Csn, Lsn
from cdc_lake.source.base import Kind, StreamIdentity
from cdc_lake.tables.row_hash import BUCKETS
from tests.seeds import seeds


@pytest.mark.parametrize("seed", seeds(4))
@pytest.mark.parametrize("at_most", [10, 1000])
def test_what_was_put_on_two_shelves_comes_together_by_bucket(seed, at_most, tmp_path):
    dice = random.Random(seed)
    shelves = [BucketStore(tmp_path / "spilled", "one", at_most), BucketStore(tmp_path / "spilled", "other", 1000)]
    put: list[list[str]] = [[], []]
    for side, shelf in enumerate(shelves):
        for _ in range(dice.randrange(6)):
            texts = [str(dice.randrange(10**6)) for _ in range(dice.randrange(12))]
            put[side] += texts
            shelf.add(
                pa.table({"k": pa.array(texts, pa.large_string())}), np.array([int(t) % 997 for t in texts], np.int64)
            )
    parts = [[[] if one is None else one["k"].to_pylist() for one in pair] for pair in pair_shelves(*shelves)]
    for side in (0, 1):
        assert sorted(text for part in parts for text in part[side]) == sorted(put[side])
    spilled = shelves[0].is_spilled
    assert len(parts) == (PARTS if spilled else 1)
    if spilled:
        for number, part in enumerate(parts):
            assert {int(text) % 997 % PARTS for side in part for text in side} <= {number}
    assert (tmp_path / "spilled").exists() == spilled


def side(*rows: tuple[str | None, str | None]) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.table({name: pa.array(values, pa.large_string()) for name, values in zip("ab", columns, strict=True)})


def test_the_same_rows_as_often_in_another_order_are_equal():
    one = count_copies(side(("1", None), ("2", "x"), ("1", None)))
    other = count_copies(side(("2", "x"), ("1", None), ("1", None)))
    assert not match(one, other, ("a", "b")).keys
    assert {(row["a"], row["b"]): row[COPIES] for row in one.to_pylist()} == {("1", None): "2", ("2", "x"): "1"}


def test_a_row_that_is_there_once_too_often_is_a_difference():
    one, other = count_copies(side(("1", None), ("2", "x"))), count_copies(side(("1", None), ("1", None), ("3", "x")))
    found = match(one, other, ("a", "b"))
    assert (found.changed, found.missing, found.extra) == ((("1", None),), (("2", "x"),), (("3", "x"),))
    assert found.columns == ((COPIES, 1),)


def test_held_changes_say_how_often_a_row_is_to_be_there():
    def change(ordinal: int, op: str, new: str | None, old: str | None) -> PendingChange:
        rows = [None if value is None else {"a": value} for value in (new, old)]
        return PendingChange((1, 10, ordinal), op, rows[0], rows[1], frozenset())

    quarantined = [change(1, "I", "1", None), change(2, "U", "2", "1"), change(3, "D", None, "9")]
    left, odd = folded_copies(quarantined, ("a",), {("1",): 1})
    assert left == {("1",): 1, ("2",): 1, ("9",): -1}
    assert odd == {("9",)}, "silver does not contain the row that goes"


@pytest.mark.parametrize(("text", "rows", "share"), [("5%", 10, 0.05), ("0.5 %", 10, 0.005), ("100%", 10, 1), ("50", 1000, 0.05), ("99", 9, 1), ("1", 10**9, 1 / BUCKETS)])  # fmt: skip
def test_a_sample_is_a_part_of_the_buckets(text: str, rows: int, share: float) -> None:
    assert Sample.parse(text).buckets(rows).mean() == pytest.approx(share, abs=1 / BUCKETS)


@pytest.mark.parametrize("text", ["", "0", "0%", "101%", "-1", "5 per cent", "1e3", "%"])
def test_what_is_no_sample_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither a percentage"):
        Sample.parse(text)


@pytest.mark.parametrize(
    ("stream", "offered"),
    [
        (StreamIdentity("7", "db", "slot", Lsn(10)), True),
        (StreamIdentity("7", "db", "slot", Lsn(10), Csn(2021), Kind.GAUSS), True),
        (StreamIdentity("7", "db", "slot", Lsn(10), None, Kind.GAUSS, snapshot_csn=Csn(2020)), False),
    ],
    ids=["PostgreSQL", "in CSN order", "in LSN order"],
)
def test_a_different_table_is_offered_a_new_copy_only_if_its_stream_takes_one(
    stream: StreamIdentity, offered: bool
) -> None:
    pinned = SimpleNamespace(target=SimpleNamespace(source="public.loans"))
    asked = SimpleNamespace(repairs=False, now=True)
    job: Any = SimpleNamespace(state=SimpleNamespace(stream=str(stream)), pinned=pinned, asked=asked)
    assert ("cdc-lake resync public.loans" in compare._remedy_text(job)) is offered
    assert "cdc-lake compare public.loans --repair" in compare._remedy_text(job)
