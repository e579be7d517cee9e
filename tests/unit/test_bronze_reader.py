"""The bronze reader: spans, commits, layouts, history; and that it opens only the files it needs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cdc_lake.bronze.data_files import Files
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.row_history import history
from cdc_lake.bronze.writer import DeltaBronze, TableBronze
from cdc_lake.errors import NotInBronze
from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, OldKind, Transaction, Truncate, Update
from cdc_lake.model.position import Span
from cdc_lake.model.relation import ReplicaIdentity, TableName
from cdc_lake.ops.inspect import inspect_row, inspect_transaction, plain, primary_key
from cdc_lake.tables.delta_log import CHECKPOINT_INTERVAL
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.bronze_formats import Place

ORDERS = table("public.orders", id="int8", note="text")
WIDER = table("public.orders", id="int8", note="text", extra="text")
PRICES = table("shop.prices", id="int8", price="numeric")
ALL = Span(1, -1, 1 << 62)


@pytest.fixture
def bronze(place: Place) -> TableBronze:
    writer = place.writer()
    writer.begin_stream("s1", 100)
    return writer


@pytest.fixture
def reader(place: Place) -> BronzeReader:
    return place.reader()


def land(bronze: TableBronze, position: int, *changes: Change) -> None:
    bronze.append([raw_transaction(Transaction(boundaries(position), changes))])


def test_a_table_that_is_not_there_is_empty(reader: BronzeReader):
    assert reader.version() is None
    assert reader.state() is None
    assert reader.commits(ALL) == []
    assert reader.highest_commit(1) is None
    assert reader.layouts() == {}
    assert reader.changes(ORDERS.table, ALL).num_rows == 0


def test_commits_of_a_span_lie_after_its_start_and_up_to_its_end(bronze: TableBronze, reader: BronzeReader):
    for position in (200, 300, 400):
        land(bronze, position, Insert(ORDERS, (str(position), "a")), Insert(PRICES, ("1", "2.50")))
    found = reader.commits(Span(1, 200, 400))
    assert [c.position for c in found] == [300, 400]
    assert found[0].counts == {"public.orders": {"I": 1}, "shop.prices": {"I": 1}}
    assert found[0].changes == 2
    assert found[0].commit_ts is not None
    assert found[0].commit_ts.utcoffset() is not None


def test_the_reader_sees_commits_made_after_it_was_opened(bronze: TableBronze, reader: BronzeReader):
    assert reader.commits(ALL) == []
    land(bronze, 200)
    assert [c.position for c in reader.commits(ALL)] == [200]
    assert reader.state() == bronze.state()


def test_commits_taken_in_turn_are_the_same_and_no_more_is_read_than_taken(bronze: TableBronze, place: Place):
    for position in range(200, 2300, 50):
        land(bronze, position, Insert(ORDERS, (str(position), "a")))
    reader = place.reader()
    assert list(reader.commits_in_turn(Span(1, 200, 2200))) == reader.commits(Span(1, 200, 2200))
    asked: list[str] = []
    files = reader.files()
    read = files.read
    object.__setattr__(files, "read", lambda paths, *rest: asked.extend(paths) or read(paths, *rest))
    taken = reader.commits_in_turn(ALL)
    assert [next(taken).position for _ in range(3)] == [200, 250, 300]
    assert len(asked) < len(files.paths) / 2


def test_epochs_do_not_mix(bronze: TableBronze, reader: BronzeReader):
    land(bronze, 200, Insert(ORDERS, ("1", "a")))
    bronze.begin_stream("s2", 10)
    land(bronze, 200, Insert(ORDERS, ("2", "b")))
    assert len(reader.commits(Span(1, 0, 1000))) == len(reader.commits(Span(2, 0, 1000))) == 1
    assert reader.changes(ORDERS.table, Span(2, 0, 1000))["new"].to_pylist() == [["2", "b"]]
    assert reader.rows(200)["epoch"].unique().to_pylist() == [2]
    assert reader.rows(200, epoch=1)["epoch"].unique().to_pylist() == [1]
    assert (reader.highest_commit(1), reader.highest_commit(2), reader.highest_commit(3)) == (200, 200, None)


def test_the_highest_commit_is_a_transaction_and_not_a_marker(bronze: TableBronze, reader: BronzeReader):
    land(bronze, 200)
    land(bronze, 300)
    bronze.advance(900, 900)
    bronze.append_snapshot("i", 1, ORDERS, pa.array([["1", "a"]]), 1, 950)
    assert reader.highest_commit(1) == 300
    assert reader.highest_commit(1, upto=299) == 200
    assert reader.highest_commit(1, upto=199) is None


def test_only_files_that_can_hold_the_span_are_chosen(bronze: TableBronze, reader: BronzeReader):
    for position in range(200, 260, 10):
        land(bronze, position, Insert(ORDERS, ("1", "a")))
    bronze.append_snapshot("i", 1, PRICES, pa.array([["1", "2"]]), 1, 100)
    files = reader.files()
    assert len(files.select()) == 7
    assert len(files.select(epoch=1, after=210, upto=230)) == 2
    assert len(files.select(op="C")) == 6
    assert len(files.select(relations=["shop.prices"])) == 1
    assert files.select(epoch=2) == []


def test_files_whose_every_row_is_in_a_span_are_known_by_their_bounds(bronze: TableBronze, reader: BronzeReader):
    for position in (200, 300, 400):
        land(bronze, position, Insert(ORDERS, (str(position), "a")))
    files = reader.files()
    some = files.select(epoch=1, after=200, upto=400, relations=["public.orders"])
    assert len(some) == 2
    assert files.is_within_span(some, Span(1, 200, 400))
    assert files.is_within_span(some, Span(1, 299, 400))
    assert files.is_within_span([], Span(1, 200, 400))
    for span in (Span(1, 200, 399), Span(1, 300, 400), Span(2, 200, 400)):
        assert not files.is_within_span(some, span)
    unbounded = Files(files.actions.drop_columns(["max.position"]), files.filesystem)
    assert not unbounded.is_within_span(some, Span(1, 200, 400))
    unknown = pa.nulls(files.actions.num_rows, pa.int64())
    at = files.actions.column_names.index("max.position")
    assert not Files(files.actions.set_column(at, "max.position", unknown), files.filesystem).is_within_span(
        some, Span(1, 200, 400)
    )


def test_layouts_are_found_by_number_table_and_span(bronze: TableBronze, reader: BronzeReader):
    land(bronze, 200, Insert(ORDERS, ("1", "a")))
    assert reader.layouts() == {ORDERS.layout: ORDERS}
    land(bronze, 300, Insert(WIDER, ("1", "a", "b")), Insert(PRICES, ("1", "2")))
    assert reader.layouts() == {r.layout: r for r in (ORDERS, WIDER, PRICES)}
    assert set(reader.layouts([PRICES.table])) == {PRICES.layout}
    assert WIDER.layout in reader.layouts([ORDERS.table], Span(1, 250, 300))


def test_changes_of_a_table_come_in_order(bronze: TableBronze, reader: BronzeReader):
    land(bronze, 200, Insert(ORDERS, ("1", "a")), Insert(PRICES, ("1", "2")), Update(ORDERS, ("1", "b")))
    land(bronze, 300, Truncate(ORDERS), Insert(ORDERS, ("2", "c")))
    rows = reader.changes(ORDERS.table, ALL)
    assert rows["op"].to_pylist() == ["I", "U", "T", "I"]
    assert list(zip(rows["position"].to_pylist(), rows["ordinal"].to_pylist(), strict=True)) == [
        (200, 1),
        (200, 3),
        (300, 1),
        (300, 2),
    ]


def moves(bronze: TableBronze) -> None:
    """A row goes 1 → 2 → 3 while another comes to 1; 9 is a stranger; a truncate; 1 again."""
    bronze.append_snapshot("i", 1, ORDERS, pa.array([["1", "first"], ["9", "other"]]), 1, 100)
    land(bronze, 200, Update(ORDERS, ("2", UNCHANGED), ("1", None), OldKind.KEY))
    land(bronze, 210, Insert(ORDERS, ("1", "second")), Update(ORDERS, ("9", "x")))
    land(bronze, 220, Update(ORDERS, ("3", "moved"), ("2", None), OldKind.KEY))
    land(bronze, 230, Insert(ORDERS, ("2", "third")), Delete(ORDERS, ("3", None), OldKind.KEY))
    land(bronze, 240, Truncate(ORDERS))
    land(bronze, 250, Insert(WIDER, ("1", "again", "e")))


def story(bronze_reader: BronzeReader, key: str) -> list[tuple[int, str, str | None]]:
    return [(e.position, e.op, e.key and e.key["id"]) for e in history(bronze_reader, ORDERS.table, {"id": key})]


def test_the_history_of_a_key_follows_its_rows_to_other_keys(bronze: TableBronze, reader: BronzeReader):
    moves(bronze)
    assert story(reader, "1") == [
        (100, "S", "1"),
        (200, "U", "2"),
        (210, "I", "1"),
        (220, "U", "3"),
        (230, "D", "3"),
        (240, "T", None),
        (250, "I", "1"),
    ]
    assert story(reader, "3") == [(100, "S", "1"), (200, "U", "2"), (220, "U", "3"), (230, "D", "3")]
    assert story(reader, "9") == [(100, "S", "9"), (210, "U", "9"), (240, "T", None)]
    assert story(reader, "77") == []


def test_keys_swapped_in_one_transaction_keep_their_rows_apart(bronze: TableBronze, reader: BronzeReader):
    land(bronze, 200, Insert(ORDERS, ("1", "a")), Insert(ORDERS, ("2", "b")))
    land(
        bronze,
        210,
        Update(ORDERS, ("2", "a"), ("1", None), OldKind.KEY),
        Update(ORDERS, ("1", "b"), ("2", None), OldKind.KEY),
    )
    land(bronze, 220, Delete(ORDERS, ("2", None), OldKind.KEY))
    events = history(reader, ORDERS.table, {"id": "2"})
    assert [(e.op, e.new and e.new["note"]) for e in events] == [
        ("I", "a"),
        ("I", "b"),
        ("U", "a"),
        ("U", "b"),
        ("D", None),
    ]


def test_of_two_rows_at_a_key_the_one_that_the_whole_old_tuple_equals_is_followed(
    bronze: TableBronze, reader: BronzeReader
):
    full = table("public.whole", identity=ReplicaIdentity.FULL, id="int4", note="text", size="int4")
    land(bronze, 200, Insert(full, ("1", "older", "1")))
    land(
        bronze,
        210,
        Insert(full, ("1", "younger", "1")),
        Update(full, ("1", UNCHANGED, "2"), ("1", "younger", "1"), OldKind.FULL),
        Update(full, ("2", "moved", "2"), ("1", "younger", "2"), OldKind.FULL),
    )
    land(bronze, 220, Delete(full, ("1", "older", "1"), OldKind.FULL))
    found = {key: [(e.position, e.ordinal) for e in history(reader, full.table, {"id": key})] for key in "12"}
    assert found == {"1": [(200, 1), (210, 1), (210, 2), (210, 3), (220, 1)], "2": [(210, 1), (210, 2), (210, 3)]}


def test_the_history_of_a_column_that_is_not_there_is_refused(bronze: TableBronze, reader: BronzeReader):
    land(bronze, 200, Insert(ORDERS, ("1", "a")))
    with pytest.raises(NotInBronze):
        history(reader, ORDERS.table, {"nr": "1"})
    with pytest.raises(NotInBronze):
        history(reader, TableName("public", "none"), {"id": "1"})


def test_a_transaction_is_shown_by_column_name(bronze: TableBronze, reader: BronzeReader):
    land(bronze, 200, Insert(ORDERS, ("1", None)), Update(ORDERS, ("1", UNCHANGED)), Truncate(ORDERS, cascade=True))
    view = inspect_transaction(reader, 200)
    assert (view.stream, view.epoch, view.position) == ("s1", 1, 200)
    assert view.counts == {"public.orders": {"I": 1, "U": 1, "T": 1}}
    insert, update, truncate = view.changes
    assert insert.new == {"id": "1", "note": None}
    assert update.unchanged == ("note",)
    assert truncate.info == {"cascade": True, "restart_identity": False}
    assert plain(view)["commit_ts"].startswith("2026-01-01T00:00:00")


def test_an_old_key_does_not_claim_that_what_was_not_sent_was_null(bronze: TableBronze, reader: BronzeReader):
    land(
        bronze,
        200,
        Update(ORDERS, ("2", "b"), ("1", None), OldKind.KEY),
        Delete(ORDERS, ("2", None), OldKind.FULL),
    )
    key, full = inspect_transaction(reader, 200).changes
    assert (key.old_kind, key.old) == ("key", {"id": "1"})
    assert (full.old_kind, full.old) == ("full", {"id": "2", "note": None})


def test_a_position_without_transaction_is_refused(bronze: TableBronze, reader: BronzeReader):
    land(bronze, 200)
    with pytest.raises(NotInBronze):
        inspect_transaction(reader, 201)


def test_a_row_and_the_chain_are_values_for_json(bronze: TableBronze, reader: BronzeReader):
    moves(bronze)
    row = plain(inspect_row(reader, ORDERS.table, {"id": "9"}))
    assert [event["op"] for event in row["events"]] == ["S", "U", "T"]
    assert plain(verify(reader))["holds"] is True
    assert primary_key(reader, ORDERS.table) == ("id",)


def test_an_open_reader_follows_a_log_that_was_cleaned_up_behind_it(
    tmp_path: Path,
):
    bronze, reader = DeltaBronze(tmp_path / "b", durability="os"), BronzeReader(tmp_path / "b")
    bronze.begin_stream("s1", 100)
    land(bronze, 200)
    assert reader.highest_commit(1) == 200
    for position in range(300, 300 + 2 * CHECKPOINT_INTERVAL):
        land(bronze, position)
    checkpoint = DeltaTable(str(tmp_path / "b"))
    checkpoint.create_checkpoint()
    for entry in (tmp_path / "b" / "_delta_log").glob("*.json"):
        if int(entry.stem) < checkpoint.version():
            entry.unlink()
    assert reader.highest_commit(1) == 300 + 2 * CHECKPOINT_INTERVAL - 1
