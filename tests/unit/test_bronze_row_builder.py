"""Rows of a batch: order, ordinals, what each kind of row holds."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from cdc_lake.bronze.contract import SCHEMA
from cdc_lake.bronze.row_builder import Place, build, snapshot_rows
from cdc_lake.decode.hashing import GENESIS, chain_of, content_of
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.model.change import (
    UNCHANGED,
    Boundaries,
    Change,
    Delete,
    Insert,
    Message,
    OldKind,
    Transaction,
    Truncate,
    Update,
)
from cdc_lake.model.relation import Relation
from cdc_lake_testing.messages import boundaries, raw_transaction, table

ORDERS = table("public.orders", id="int8", note="text")
PRICES = table(r"odd's.with\.dot", id="int8")


def rows_of(*transactions: Transaction, stream: str = "s", epoch: int = 3) -> tuple[pa.Table, bytes]:
    raw = [raw_transaction(t) for t in transactions]
    return build(raw, tabulate(raw), stream=stream, epoch=epoch, previous=GENESIS, ingest_ts=1_000_000)


def one(position: int, *changes: Change) -> Transaction:
    return Transaction(boundaries(position), changes)


def test_the_table_has_the_columns_of_the_contract():
    rows, _ = rows_of(one(100, Insert(ORDERS, ("1", "a"))))
    assert rows.schema.equals(SCHEMA)
    rows.validate(full=True)


def test_layouts_come_first_then_each_transaction_from_begin_to_commit():
    rows, _ = rows_of(
        one(100, Insert(ORDERS, ("1", "a")), Insert(PRICES, ("7",))),
        one(200),
        one(300, Delete(ORDERS, ("1", None), OldKind.KEY)),
    )
    assert "".join(rows["op"].to_pylist()) == "RRBIICBCBDC"
    assert rows["ordinal"].to_pylist() == [None, None, 0, 1, 2, 3, 0, 1, 0, 1, 2]
    assert rows["position"].to_pylist() == [100] * 6 + [200] * 2 + [300] * 3
    assert set(rows["stream"].to_pylist()) == {"s"}
    assert set(rows["epoch"].to_pylist()) == {3}


def test_a_layout_row_describes_its_layout():
    rows, _ = rows_of(one(100, Insert(ORDERS, ("1", "a"))))
    row = rows.to_pylist()[0]
    assert Relation.from_description(json.loads(row["info"])) == ORDERS
    assert (row["layout"], row["relation"]) == (ORDERS.layout, "public.orders")
    assert row["xid"] is row["new"] is row["commit_ts"] is None


def test_null_unchanged_and_empty_text_stay_apart():
    rows, _ = rows_of(
        one(
            100,
            Insert(ORDERS, ("1", None)),
            Insert(ORDERS, ("2", "")),
            Update(ORDERS, ("2", UNCHANGED)),
            Update(ORDERS, ("3", "x"), ("2", None), OldKind.KEY),
            Delete(ORDERS, ("3", "x"), OldKind.FULL),
        )
    )
    body = rows.to_pylist()[2:-1]
    assert [row["new"] for row in body] == [["1", None], ["2", ""], ["2", None], ["3", "x"], None]
    assert [row["unchanged"] for row in body] == [None, None, [1], None, None]
    assert [row["old"] for row in body] == [None, None, None, ["2", None], ["3", "x"]]
    assert [row["old_kind"] for row in body] == [None, None, None, "key", "full"]


def test_a_truncate_and_a_message_keep_what_they_said():
    rows, _ = rows_of(one(100, Truncate(ORDERS, cascade=True), Message("app", b"\x00\xff")))
    truncate, message = rows.to_pylist()[2:4]
    assert json.loads(truncate["info"]) == {"cascade": True, "restart_identity": False}
    assert truncate["relation"] == "public.orders"
    assert message["relation"] is None
    assert message["layout"] is None
    assert json.loads(message["info"])["prefix"] == "app"


def test_the_commit_row_counts_by_table_and_kind_and_chains():
    first = one(100, Insert(ORDERS, ("1", "a")), Insert(PRICES, ("7",)), Insert(ORDERS, ("2", "b")), Message("p", b""))
    second = one(200, Truncate(ORDERS), Update(ORDERS, ("1", "c")))
    raw = [raw_transaction(first), raw_transaction(second)]
    changes = tabulate(raw)
    rows, head = build(raw, changes, stream="s", epoch=1, previous=GENESIS, ingest_ts=0)
    commits = [json.loads(row["info"]) for row in rows.to_pylist() if row["op"] == "C"]
    assert commits[0]["counts"] == {"public.orders": {"I": 2}, str(PRICES.table): {"I": 1}}
    assert commits[1]["counts"] == {"public.orders": {"T": 1, "U": 1}}
    assert commits[0]["bytes"] == raw[0].size
    contents = [content_of(changes.digests[:4]), content_of(changes.digests[4:])]
    hashes = [chain_of(GENESIS, 100, contents[0])]
    hashes.append(chain_of(hashes[0], 200, contents[1]))
    assert [c["content"] for c in commits] == [c.hex() for c in contents]
    assert [c["hash"] for c in commits] == [h.hex() for h in hashes]
    assert head == hashes[1]
    assert (commits[0]["empty_before"], commits[0]["configuration"]) == (0, 1)


def test_two_layouts_of_one_table_are_counted_as_one_table():
    wider = table("public.orders", id="int8", note="text", extra="text")
    rows, _ = rows_of(one(100, Insert(ORDERS, ("1", "a")), Insert(wider, ("2", "b", "c"))))
    assert json.loads(rows["info"].to_pylist()[-1])["counts"] == {"public.orders": {"I": 2}}
    assert rows["layout"].to_pylist()[3:5] == [ORDERS.layout, wider.layout]


def test_boundaries_stand_on_every_row_of_the_transaction_and_absence_stays_null():
    bounds = Boundaries(
        position=100,
        confirm=99,
        commit_lsn=None,
        first_lsn=7,
        csn=5,
        xid=4_294_967_295,
        commit_ts=1,
        user='o"k',
        origin="up",
    )
    rows, _ = rows_of(Transaction(bounds, (Insert(ORDERS, ("1", "a")),), (50,)))
    begin, insert, commit = rows.to_pylist()[1:]
    for row in (begin, insert, commit):
        assert (row["csn"], row["first_lsn"], row["commit_lsn"], row["xid"]) == (5, 7, None, 4_294_967_295)
        assert row["commit_ts"].timestamp() == pytest.approx(1e-6)
    assert (begin["lsn"], insert["lsn"], commit["lsn"]) == (None, 50, None)
    assert json.loads(begin["info"]) == {"user": 'o"k', "origin": "up"}


def test_a_begin_without_user_and_origin_has_no_info():
    rows, _ = rows_of(one(100))
    assert rows["info"].to_pylist()[0] is None


def test_lists_that_share_a_larger_array_come_out_right():
    raw = [raw_transaction(one(100, Insert(ORDERS, ("1", "a")), Delete(ORDERS, ("1", None), OldKind.KEY)))]
    changes = tabulate(raw)
    padded = pa.array([["junk", "junk"], ["1", "a"], None], pa.list_(pa.string()))[1:]
    object.__setattr__(changes, "new", padded)
    rows, _ = build(raw, changes, stream="s", epoch=1, previous=GENESIS, ingest_ts=0)
    assert rows["new"].to_pylist() == [None, None, ["1", "a"], None, None]


def test_nulls_that_own_values_come_out_as_nulls():
    raw = [raw_transaction(one(100, Insert(ORDERS, ("1", "a")), Delete(ORDERS, ("1", None), OldKind.KEY)))]
    changes = tabulate(raw)
    owning = pa.ListArray.from_arrays(
        pa.array([0, 2, 4], pa.int32()), pa.array(["1", "a", "x", "y"]), mask=pa.array([False, True])
    )
    object.__setattr__(changes, "new", owning)
    rows, _ = build(raw, changes, stream="s", epoch=1, previous=GENESIS, ingest_ts=0)
    assert rows["new"].to_pylist() == [None, None, ["1", "a"], None, None]


def test_a_snapshot_chunk_is_its_layout_and_its_rows():
    chunk = pa.array([["0", "-"], ["1", None], ["2", ""]], pa.list_(pa.string()))[1:]
    rows = snapshot_rows(ORDERS, chunk, Place("s", 1, 90, 0), 5)
    rows.validate(full=True)
    assert rows.schema.equals(SCHEMA)
    assert rows["op"].to_pylist() == ["R", "S", "S"]
    assert rows["ordinal"].to_pylist() == [None, 5, 6]
    assert rows["new"].to_pylist() == [None, ["1", None], ["2", ""]]
    assert set(rows["position"].to_pylist()) == {90}
    assert rows["xid"].null_count == 3


def test_a_snapshot_chunk_in_pieces_has_the_rows_of_one_array():
    chunk = pa.array([["1", None], ["2", ""], None, ["3", "x"]], pa.list_(pa.string()))
    pieces = pa.chunked_array([chunk[:1], chunk[1:3], chunk[3:]])
    place = Place("s", 1, 90, 0)
    assert snapshot_rows(ORDERS, pieces, place, 5).equals(snapshot_rows(ORDERS, chunk, place, 5))


def test_an_empty_snapshot_chunk_is_only_a_layout():
    rows = snapshot_rows(ORDERS, pa.array([], pa.list_(pa.string())), Place("s", 1, 1, 0), 1)
    assert rows["op"].to_pylist() == ["R"]
