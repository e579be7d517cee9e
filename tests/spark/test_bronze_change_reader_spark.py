"""Bronze read by Spark and without it is the same: every value of every type, in layouts old and new, and in views."""

from __future__ import annotations

import datetime as dt
import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lake.bronze.change_reader import ChangeReader
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze, TableBronze
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.undecodable import PgoutputFormat, StoreUndecodable
from cdc_lake.errors import ViewNotMade
from cdc_lake.model.change import UNCHANGED, Delete, Insert, OldKind, Transaction, Truncate, Update
from cdc_lake.model.relation import Column
from cdc_lake.tables.canonical_values import read_texts
from cdc_lake.tables.casts import cast_sql, fits_sql
from cdc_lake.tables.types import column_type, literal, quote_identifier
from cdc_lake_testing.messages import TYPE_OIDS, boundaries, raw_transaction, table
from tests.bronze_formats import FORMATS, Place
from tests.odd_names import PIECES, odd_name, odd_text
from tests.seeds import seeds

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.spark,
    # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
]

ORDERS = table("public.orders", id="int8", note="text")
WIDER = table("public.orders", id="int8", due="date", note="text", **{"it's `odd`": "text"})
TEXTS: dict[str, list[str]] = {
    "int2": ["-32768", "32767", "0", "32768", "-0", "007", "+1", " 1", "1.0", "", "0x1"],
    "int8": ["-9223372036854775808", "9223372036854775807", "9223372036854775808", "1L"],
    "numeric": ["99999999.99", "-0.01", "0.00", ".50", "-.50", "1.005", "NaN", "1e2", "123456789.00", "-0.00", "01.00"],
    "float4": ["NaN", "Infinity", "-Infinity", "-0", "3.4028235e+38", "1e-45", "0.1", "1e+39", "inf", "1f", ".5"],
    "float8": ["1.7976931348623157e+308", "5e-324", "0.30000000000000004", "1e+400", "nan", "1d", "", "1_0"],
    "bool": ["t", "f", "true", "T", "", "1"],
    "bytea": ["\\x", "\\x00ff10", "\\xa", "\\xAB", "ab", "\\xzz", ""],
    "date": ["0001-01-01", "9999-12-31", "2024-02-29", "1582-10-10", "infinity", "0044-03-15 BC", "10000-01-01",
    "2024", "2024-1-1", "2023-02-29", "-0044-03-15", "+2024-01-01"],
    "timestamp": ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "2024-01-01 00:00:00.5", "2024-01-01",
    "-infinity", "2024-01-01 24:00:00", "2024-01-01T00:00:00", "10000-01-01 00:00:00", "2024-01-01 00:00:00+00"],
    "timestamptz": ["2024-01-01 00:00:00+31", "2024-01-01 00:00:00+00", "2024-01-01 00:00:00.123456+05:30", "1883-01-01 12:00:00+05:53:28",
    "2024-07-01 12:00:00-03", "infinity", "2024-01-01 00:00:00", "2024-01-01 00:00:00Z", "2024-02-30 00:00:00+00"],
    "text": ["", " x ", "Größe 漢字"],
}  # fmt: skip


def test_arrow_and_spark_read_every_text_alike(spark: Any) -> None:
    """In one query: each text is read as a value of each type."""
    texts = [*dict.fromkeys(text for some in TEXTS.values() for text in some), None]
    modifier = ((10 << 16) | 2) + 4
    columns = {kind: Column("c", kind, TYPE_OIDS[kind], modifier if kind == "numeric" else -1) for kind in TEXTS}
    rows = spark.createDataFrame(list(enumerate(texts)), "at INT, t STRING")
    seen = rows.selectExpr("at", *_parts(columns)).toArrow().sort_by("at")
    for kind, column in columns.items():
        values, wrong = read_texts(pa.array(texts), column)
        marked = [False] * len(values) if wrong is None else wrong.to_pylist()
        fits = seen[f"fits_{kind}"].to_pylist()
        differ = {text for text, w, fit in zip(texts, marked, fits, strict=True) if w == fit}
        # fewer digits than the scale: of a layout that had another one, which silver refuses before it reads a value
        assert all(kind == "numeric" and re.fullmatch("-?[0-9]*([.][0-9])?", text) for text in differ), (kind, differ)
        for text, mine, its, fit in zip(texts, values, seen[f"v_{kind}"], fits, strict=True):
            assert not fit or str(mine.cast(its.type)) == str(its), (kind, text)


def _parts(columns: dict[str, Column]) -> list[str]:
    fits = [f"{fits_sql('t', column_type(column))} AS fits_{kind}" for kind, column in columns.items()]
    return [*fits, *(f"{cast_sql('t', column_type(column))} AS v_{kind}" for kind, column in columns.items())]


@pytest.fixture(scope="module", params=FORMATS)
def bronze(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Three transactions and a copied row; the table got columns in between, and one date that no date is."""
    place = Place(request.param, tmp_path_factory.mktemp("ledger") / "bronze")
    writer = place.writer()
    writer.begin_stream("pg:1:shop:shop:0/64", 100)
    writer.append_snapshot("initial-1", 0, ORDERS, pa.array([["1", "a"], ["9", None]]), 0, 100)
    land(writer, 200, Insert(ORDERS, ("2", "b")), Update(ORDERS, ("2", UNCHANGED)))
    land(
        writer, 300, Update(ORDERS, ("3", "c"), ("2", None), OldKind.KEY), Insert(WIDER, ("4", "2026-01-01", "", None))
    )
    land(writer, 400, Insert(WIDER, ("5", "infinity", "x", "y")), Delete(WIDER, ("4", None, None, None), OldKind.KEY))
    land(writer, 500, Truncate(WIDER))
    return place


def land(writer: TableBronze, position: int, *changes: Any) -> None:
    writer.append([raw_transaction(Transaction(boundaries(position, origin="branch"), changes))])


def test_changes_of_spark_are_those_of_arrow(spark: Any, bronze: Place) -> None:
    ledger = ChangeReader(bronze.reader())
    for span in (None, ledger.span(200, 300)):
        mine = ledger.changes("public.orders", span, misfits="keep", snapshot=True)
        frame = ledger.spark_changes(spark, "public.orders", span, misfits="keep", snapshot=True)
        assert plain(frame.toArrow()) == plain(mine)
        assert frame.columns == mine.column_names
    assert plain(ledger.spark_transactions(spark).toArrow()) == plain(ledger.transactions())


def test_spark_stops_at_a_text_without_a_value(spark: Any, bronze: Place) -> None:
    frame = ChangeReader(bronze.reader()).spark_changes(spark, "public.orders")
    with pytest.raises(Exception, match="a value of `due` is not a valid date at position 400 of epoch 1"):
        frame.collect()


def test_spark_stops_at_a_transaction_that_is_not_decoded(spark: Any, tmp_path: Path) -> None:
    writer = DeltaBronze(tmp_path / "b", durability="os")
    writer.begin_stream("pg:1:shop:shop:0/64", 100)
    land(writer, 200, Insert(ORDERS, ("2", "b")))
    odd = raw_transaction(Transaction(boundaries(300), (Insert(ORDERS, ("2", "BAD")),)))
    odd.frames[0] = odd.frames[0].replace(b"BAD", b"\xff\xfe!")
    writer.append([odd], StoreUndecodable(PgoutputFormat(tabulate)))
    ledger = ChangeReader(BronzeReader(tmp_path / "b"))
    with pytest.raises(Exception, match="the transaction at position 300 of epoch 1 is not decoded"):
        ledger.spark_changes(spark, "public.orders").select("note").collect()
    assert ledger.spark_changes(spark, "public.orders", ledger.span(None, 200)).count() == 1
    said = ledger.spark_transactions(spark).orderBy("position").select("undecodable").collect()
    assert [row[0] for row in said] == [None, "DEC304"]


@pytest.mark.obeys("STA661")
def test_temporary_views_read_the_files_as_they_are(spark: Any, bronze: Place) -> None:
    ledger = ChangeReader(bronze.reader())
    if bronze.format == "iceberg":
        with pytest.raises(ViewNotMade) as refused:
            ledger.register_views(spark, database="raw")
        assert "temporary views (without `database`)" in refused.value.remedy
    assert ledger.register_views(spark) == ("public_orders", "transactions")
    got = spark.sql("SELECT _op, due FROM public_orders WHERE _position > 200 ORDER BY _position, _ordinal").collect()
    assert [tuple(row) for row in got] == [
        ("U", None), ("I", dt.date(2026, 1, 1)), ("I", None), ("D", None), ("T", None),
    ]  # fmt: skip
    counted = spark.sql("SELECT sum(counts['public.orders']['I']) FROM transactions").collect()
    assert counted[0][0] == 3


def test_views_that_stay_follow_bronze_until_a_layout_is_new(spark: Any, tmp_path: Path) -> None:
    writer = DeltaBronze(tmp_path / "b", durability="os")
    writer.begin_stream("pg:1:shop:shop:0/64", 100)
    land(writer, 200, Insert(ORDERS, ("2", "b")))
    assert ChangeReader(BronzeReader(tmp_path / "b")).register_views(spark, database="raw") == (
        "raw.public_orders",
        "raw.transactions",
    )
    land(writer, 300, Insert(ORDERS, ("3", "c")))
    rows = spark.sql("SELECT id, note FROM raw.public_orders ORDER BY _position").collect()
    assert [tuple(row) for row in rows] == [(2, "b"), (3, "c")]
    assert spark.sql("SELECT count(*) FROM raw.transactions").collect()[0][0] == 2
    land(writer, 400, Insert(WIDER, ("4", None, "", None)))
    with pytest.raises(Exception, match=r"public\.orders was altered since the view was created"):
        spark.sql("SELECT * FROM raw.public_orders").collect()
    spark.sql("DROP DATABASE raw CASCADE")


def plain(rows: pa.Table) -> list[Any]:
    """Rows in order, every value as text (floats and maps have no order of their own)."""
    places = [name for name in ("_position", "_ordinal", "position") if name in rows.column_names]
    return [repr(row) for row in rows.sort_by([(name, "ascending") for name in places]).to_pylist()]


@pytest.mark.parametrize("seed", seeds(1))
def test_spark_reads_texts_and_names_as_they_were(spark: Any, seed: int) -> None:
    """Also `${env:HOME}`, which it would put something else in place of; no name of silver has a brace."""
    rng = random.Random(seed)
    texts = [*PIECES, *(odd_text(rng) for _ in range(40))]
    assert list(spark.range(1).selectExpr(*(f"{literal(t)} AS c{n}" for n, t in enumerate(texts))).first()) == texts
    assert list(spark.sql(f"SELECT {', '.join(map(literal, texts))}").first()) == texts
    names = [name for name in (odd_name(rng) for _ in range(40)) if "${" not in name]
    assert spark.sql(f"SELECT {', '.join(f'1 AS {quote_identifier(name)}' for name in names)}").columns == names
