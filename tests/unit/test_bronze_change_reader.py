"""Bronze as changes: typed, by transaction and span; what is absent has a name; only what a span needs is read."""

from __future__ import annotations

import random
from datetime import date
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cdc_lake.api import Pipeline as Shop
from cdc_lake.bronze.change_reader import ChangeReader
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze, TableBronze
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.undecodable import PgoutputFormat, StoreUndecodable
from cdc_lake.errors import (
    MalformedMessage,
    MalformedPosition,
    NotInBronze,
    TransactionUndecoded,
    ValueNotTyped,
    ViewNotMade,
)
from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, Message, OldKind, Transaction, Truncate, Update
from cdc_lake.observability.events import silent
from cdc_lake.runtime.redecode import retry
from cdc_lake_testing.counted import CountedReader
from cdc_lake_testing.histories import History
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from cdc_lake_testing.object_store import LocalStore
from tests.bronze_formats import Place
from tests.bronze_object_stores import BUCKET, FORMATS, stored
from tests.pipeline_file import make_project
from tests.seeds import one_seed

ORDERS = table("public.orders", id="int8", note="text")
WIDER = table("public.orders", id="int8", due="date", note="text")
NARROW = table("public.orders", id="text", due="date")
PRICES = table("shop.prices", id="int4", _op="text")


@pytest.fixture
def bronze(place: Place) -> TableBronze:
    writer = place.writer()
    writer.begin_stream("pg:1:shop:shop:0/64", 100)
    return writer


@pytest.fixture
def ledger(place: Place) -> ChangeReader:
    return ChangeReader(place.reader())


def land(bronze: TableBronze, position: int, *changes: Change, origin: str | None = None) -> None:
    bronze.append([raw_transaction(Transaction(boundaries(position, origin=origin), changes))])


def columns(rows: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows.select(list(names)).to_pylist()]


# ── changes ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_change_has_its_place_its_values_and_its_old_row(bronze: TableBronze, ledger: ChangeReader) -> None:
    land(
        bronze,
        200,
        Insert(WIDER, ("1", "2026-01-31", None)),
        Update(WIDER, ("2", None, "x"), ("1", None, None), OldKind.KEY),
        Delete(WIDER, ("2", None, None), OldKind.KEY),
        Truncate(WIDER),
    )
    rows = ledger.changes("public.orders")
    assert rows.schema.field("id").type == pa.int64()
    assert rows.schema.field("due").type == pa.date32()
    old = {"id": 1, "due": None, "note": None}
    assert columns(rows, "_position", "_ordinal", "_op", "id", "due", "note", "_old", "_old_kind") == [
        (200, 1, "I", 1, date(2026, 1, 31), None, None, None),
        (200, 2, "U", 2, None, "x", old, "key"),
        (200, 3, "D", None, None, None, old | {"id": 2}, "key"),
        (200, 4, "T", None, None, None, None, None),
    ]
    assert rows["_commit_ts"].null_count == rows["_xid"].null_count == 0
    assert list(rows.to_pandas()["_op"]) == ["I", "U", "D", "T"]


def test_null_unchanged_and_not_there_yet_are_three_things(bronze: TableBronze, ledger: ChangeReader) -> None:
    land(bronze, 200, Insert(ORDERS, ("1", None)), Update(ORDERS, ("1", UNCHANGED)))
    land(bronze, 300, Update(WIDER, ("1", None, UNCHANGED)))
    assert columns(ledger.changes("public.orders"), "due", "note", "_unchanged", "_absent") == [
        (None, None, None, ["due"]),
        (None, None, ["note"], ["due"]),
        (None, None, ["note"], None),
    ]


def test_columns_are_those_of_the_spans_own_layouts_the_newest_first(bronze: TableBronze, ledger: ChangeReader) -> None:
    land(bronze, 200, Insert(ORDERS, ("1", "a")))
    land(bronze, 300, Insert(WIDER, ("2", None, "b")))
    land(bronze, 400, Insert(NARROW, ("c", None)))

    def own(after: int | None, upto: int | None) -> list[tuple[str, str]]:
        schema = ledger.changes("public.orders", ledger.span(after, upto)).schema
        return [(f.name, str(f.type)) for f in schema if not f.name.startswith("_")]

    assert own(None, 200) == [("id", "int64"), ("note", "string")]
    assert own(None, 300) == [("id", "int64"), ("due", "date32[day]"), ("note", "string")]
    assert own(None, None) == [("id", "string"), ("due", "date32[day]"), ("note", "string")]
    assert own(400, 900) == own(300, 400)  # no change: the newest layout


@pytest.mark.obeys("STA660")
def test_a_text_that_has_no_value_stops_the_reading_or_is_kept(bronze: TableBronze, ledger: ChangeReader) -> None:
    land(bronze, 200, Insert(WIDER, ("1", "infinity", "x")), Delete(WIDER, ("1", "infinity", None), OldKind.FULL))
    with pytest.raises(ValueNotTyped, match="`due` at position 200 of epoch 1") as stopped:
        ledger.changes("public.orders")
    assert "infinity" not in str(stopped.value)
    kept = ledger.changes("public.orders", misfits="keep")
    assert columns(kept, "due", "_misfit") == [(None, [("due", "infinity")]), (None, [("_old.due", "infinity")])]
    assert ledger.changes("public.orders", typed=False)["due"].to_pylist() == ["infinity", None]


def test_copied_rows_come_where_they_are_asked_for(bronze: TableBronze, ledger: ChangeReader) -> None:
    bronze.append_snapshot("i", 0, ORDERS, pa.array([["1", "a"], ["2", None]]), 0, 100)
    land(bronze, 200, Insert(ORDERS, ("3", "b")))
    assert columns(ledger.changes("public.orders", snapshot=True), "_op", "id") == [("S", 1), ("S", 2), ("I", 3)]
    assert ledger.changes("public.orders")["_op"].to_pylist() == ["I"]


def test_a_column_named_as_ours_gets_a_mark(bronze: TableBronze, ledger: ChangeReader) -> None:
    land(bronze, 200, Insert(PRICES, ("1", "mine")))
    rows = ledger.changes("shop.prices")
    assert rows["_op"].to_pylist() == ["I"]
    assert [name for name in rows.column_names if name.startswith("_op_")] == ["_op_d61478"]
    assert rows["_op_d61478"].to_pylist() == ["mine"]


def test_without_a_span_all_epochs_are_read(bronze: TableBronze, ledger: ChangeReader) -> None:
    land(bronze, 200, Insert(ORDERS, ("1", "a")))
    bronze.begin_stream("pg:1:shop:shop:0/32", 50)
    land(bronze, 60, Insert(ORDERS, ("2", "b")))
    assert columns(ledger.changes("public.orders"), "_epoch", "_position", "id") == [(1, 200, 1), (2, 60, 2)]
    assert ledger.changes("public.orders", ledger.span())["_epoch"].to_pylist() == [2]
    assert ledger.changes("public.orders", ledger.span(epoch=1))["_epoch"].to_pylist() == [1]
    assert ledger.transactions()["epoch"].to_pylist() == [1, 2]
    assert [str(t) for t in ledger.tables()] == ["public.orders"]


def test_positions_are_taken_as_they_are_printed(bronze: TableBronze, ledger: ChangeReader) -> None:
    land(bronze, 200, Insert(ORDERS, ("1", "a")))
    assert ledger.span("0/64", "0/C8") == ledger.span(100, 200)
    with pytest.raises(MalformedPosition):
        ledger.span("yesterday")


def test_what_is_not_in_bronze_is_said(tmp_path: Path, bronze: TableBronze, ledger: ChangeReader) -> None:
    for asked in ("public.nowhere", "nowhere", "a.b.c"):
        with pytest.raises(NotInBronze):
            ledger.changes(asked)
    with pytest.raises(NotInBronze):
        ChangeReader(BronzeReader(tmp_path / "none")).span()


def test_a_pipeline_file_opens_its_bronze(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(
        "version: 1\npipeline: shop\nlake: {path: lake}\n"
        'source: {type: postgres, host: h, database: d, user: u, tables: ["public.*"]}\n'
    )
    with pytest.raises(NotInBronze, match="bronze contains no stream"):
        Shop.load(file).bronze().span()


def test_the_values_of_a_random_history_come_back(bronze: TableBronze, ledger: ChangeReader) -> None:
    seed = one_seed()
    print(f"CDC_LAKE_SEED={seed}")
    first = table("public.a", id="int4", body="text", amount="int8")
    second = table("public.a", id="int4", more="text", body="text", amount="int8")
    history = History(seed, [first], truncates=20)
    landed = []
    for position in range(200, 400, 10):
        if position == 300:
            history.add_column(second)
        landed.append(history.transaction(position))
        bronze.append([raw_transaction(landed[-1])])
    rows = iter(ledger.changes("public.a").to_pylist())
    for transaction in landed:
        for change in transaction.changes:
            row = next(rows)
            relation = second if transaction.bounds.position >= 300 else first
            new = getattr(change, "new", None)
            sent = dict(zip(relation.names, new, strict=True)) if new is not None else {}
            assert row["_position"] == transaction.bounds.position
            assert set(row["_unchanged"] or ()) == {name for name, value in sent.items() if value is UNCHANGED}
            assert set(row["_absent"] or ()) == {"more"} - set(relation.names)
            for name in second.names:
                value = sent.get(name)
                text = None if value is UNCHANGED else value
                assert row[name] == (int(text) if name in ("id", "amount") and text is not None else text)
    assert next(rows, None) is None


def test_a_transaction_that_is_not_decoded_stops_the_reading(bronze: TableBronze, ledger: ChangeReader) -> None:
    land(bronze, 200, Insert(ORDERS, ("1", "a")))
    odd = raw_transaction(Transaction(boundaries(300), (Insert(ORDERS, ("2", "BAD")),)))
    odd.frames[0] = odd.frames[0].replace(b"BAD", b"\xff\xfe!")
    bronze.append([odd], StoreUndecodable(PgoutputFormat(tabulate)))
    land(bronze, 400, Insert(ORDERS, ("3", "b")))
    with pytest.raises(TransactionUndecoded, match="position 300 of epoch 1"):
        ledger.changes("public.orders")
    assert ledger.changes("public.orders", ledger.span(None, 299)).num_rows == 1
    assert ledger.changes("public.orders", ledger.span(300)).num_rows == 1
    assert ledger.transactions()["undecodable"].to_pylist() == [None, "DEC304", None]


def test_what_was_decoded_later_is_read_in_its_place(tmp_path: Path) -> None:
    project = make_project(tmp_path, bronze={"undecodable": "land"})
    writer = DeltaBronze(project.bronze, durability="os")
    writer.begin_stream("pg:1:shop:shop:0/64", 100)
    sound = PgoutputFormat(tabulate)
    for position in (200, 300, 400):
        raw = raw_transaction(Transaction(boundaries(position), (Insert(ORDERS, (str(position), "a")),)))
        writer.append([raw], StoreUndecodable(PgoutputFormat(_refuse) if position == 300 else sound))
    assert retry(project, None, silent).failed_count == 0
    assert Shop(project).bronze().changes("public.orders")["id"].to_pylist() == [200, 300, 400]


def _refuse(*_: object) -> NoReturn:
    raise MalformedMessage("a fault", where="here")


# ── transactions ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_transaction_is_one_row(place: Place, bronze: TableBronze, ledger: ChangeReader) -> None:
    land(bronze, 200, Insert(ORDERS, ("1", "a")), Insert(PRICES, ("1", "")), origin="branch")
    land(bronze, 300, Message("app", b"x"))
    rows = ledger.transactions().to_pylist()
    assert [row["position"] for row in rows] == [200, 300]
    assert [row["origin"] for row in rows] == ["branch", None]
    assert rows[0]["counts"] == [("public.orders", [("I", 1)]), ("shop.prices", [("I", 1)])]
    assert rows[1]["counts"] == []
    assert rows[0]["xid"] == 200
    assert rows[0]["bytes"] > 0
    commit = place.reader().commits(ledger.span(None, 200))[0]
    assert (rows[0]["content"], rows[0]["hash"]) == (commit.content.hex(), commit.hash.hex())
    assert ledger.transactions(ledger.span(200, 300))["position"].to_pylist() == [300]
    assert ledger.verify().holds


def test_views_that_stay_are_refused_where_no_path_names_the_table(tmp_path: Path) -> None:
    place = Place("iceberg", tmp_path / "b")
    bronze = place.writer()
    bronze.begin_stream("pg:1:shop:shop:0/64", 100)
    land(bronze, 200, Insert(ORDERS, ("1", "a")))
    no_session: Any = None
    with pytest.raises(ViewNotMade, match="require a bronze table in Delta"):
        ChangeReader(place.reader()).register_views(no_session, database="raw")


# ── what is read ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shape", ["many files", "one large file"])
def test_one_percent_of_the_positions_is_at_most_five_percent_of_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """The large file has as many row groups as one of ten million rows."""
    generator = random.Random(1)
    transactions = [
        raw_transaction(
            Transaction(
                boundaries(1000 + at * 10),
                tuple(Insert(ORDERS, (str(row), generator.randbytes(1500).hex())) for row in range(8)),
            )
        )
        for at in range(2000)
    ]
    monkeypatch.setattr("cdc_lake.tables.files.ROW_GROUP_ROWS", 200)
    place = Place("delta", tmp_path / "b")
    bronze = place.writer()
    bronze.begin_stream("pg:1:shop:shop:0/64", 100)
    cut = 20 if shape == "many files" else len(transactions)
    for at in range(0, len(transactions), cut):
        bronze.append(transactions[at : at + cut])
    whole = sum(file.stat().st_size for file in place.data_files())
    counted = CountedReader(place.table())
    rows = ChangeReader(counted).changes("public.orders", ChangeReader(counted).span(11_000, 11_200))
    assert rows.num_rows == 20 * 8
    assert pc.min(rows["_position"]).as_py() == 11_010
    assert counted.bytes_read <= 0.05 * whole, f"{counted.bytes_read:,} of {whole:,} bytes"


@pytest.mark.parametrize("kind", FORMATS)
def test_a_bronze_in_a_store_is_read(kind: str, store: LocalStore, tmp_path: Path) -> None:
    place = stored(kind, store, tmp_path)
    writer = place.writer()
    writer.begin_stream("pg:1:shop:shop:0/64", 100)
    for position in (200, 300):
        raw = raw_transaction(Transaction(boundaries(position), (Insert(ORDERS, (str(position), "a")),)))
        writer.append([raw])
    ledger = ChangeReader(place.reader())
    assert ledger.changes("public.orders", ledger.span(200, 300))["id"].to_pylist() == [300]
    assert ledger.transactions()["position"].to_pylist() == [200, 300]
    assert ledger.verify().holds
    files = place.reader().files()
    assert {path.split("/")[2] for path in files.for_spark(files.paths)} == {BUCKET}
