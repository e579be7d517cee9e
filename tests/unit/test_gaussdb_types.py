"""What openGauss 6.0.2 calls its types and prints of their values, recorded, and what silver makes of it."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lake.decode.gaussdb.catalog_facts import BUILTIN, OID_OF
from cdc_lake.decode.gaussdb.text import value_of
from cdc_lake.model.relation import Column
from cdc_lake.tables.canonical_values import from_silver, from_source, read_texts
from cdc_lake.tables.types import Loss, column_type

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "opengauss" / "types_602.json").read_text("utf-8"))
A = {one["declared"]: one for one in RECORDED["a"]}
PG = A | {one["declared"]: one for one in RECORDED["pg"]}
moment = dt.datetime.fromisoformat


def column(one: dict[str, Any]) -> Column:
    return Column("c", one["name"], one["oid"], one["modifier"])


def values(one: dict[str, Any]) -> list[Any]:
    """As silver has them; a text that has no value is marked."""
    texts = [one_text if one_text is None else str(one_text) for one_text in one["texts"]]
    read, wrong = read_texts(pa.array(texts, pa.string()), column(one))
    marks = wrong.to_pylist() if wrong is not None else [False] * len(texts)
    return ["held" if mark else value for value, mark in zip(read.to_pylist(), marks, strict=True)]


@pytest.mark.parametrize("database", [A, PG], ids=["A", "PG"])
def test_the_stream_brings_the_texts_that_a_query_shows(database):
    for declared, one in database.items():
        found = [value_of(literal) for literal in one["literals"]]
        if one["name"] == "bool":
            found = [{"true": "t", "false": "f"}.get(value, value) for value in found]
        assert found == one["texts"], declared


@pytest.mark.parametrize("database", [A, PG], ids=["A", "PG"])
def test_types_of_the_server_are_known_by_what_is_printed_of_them(database):
    for declared, one in database.items():
        if one["oid"] in BUILTIN:
            assert BUILTIN[one["oid"]].name == one["name"], declared
            assert BUILTIN[one["oid"]].printed == one["printed"], declared
            assert OID_OF[one["printed"]] in {one["oid"], 25}, declared


@pytest.mark.parametrize(
    ("declared", "sql", "expected"),
    [
        ("tinyint", "smallint", [0, 255]),
        ("number(10,2)", "decimal(10,2)", [Decimal("1.50"), Decimal("0.05"), Decimal("-0.05"), Decimal("99999999.99")]),
        ("number", "string", ["1.50", "1000000000000000000000000000000", ".5"]),
        ("binary_double", "double", [0.1]),
        ("binary_integer", "int", [7]),
        ("blob", "binary", [b"\xde\xad\x00", b""]),
        ("raw", "binary", [b"\xde\xad\x00"]),
        ("raw(16)", "binary", [b"\xab"]),
        (
            "smalldatetime",
            "timestamp_ntz",
            [moment("2024-02-29 13:14:00"), moment("2024-02-29 13:15:00"), "held"],
        ),
        ("clob", "string", ["ä clob", None]),
        ("nvarchar2(10)", "string", ["ä€", None]),
        ("varchar2(20)", "string", ["ab", None]),
        ("char(5)", "string", ["ab   ", None]),
        ("timestamptz", "timestamp", [dt.datetime(2024, 2, 29, 5, 14, 15, 500_000, dt.UTC), "held"]),
        ("money", "string", ["-$1,234.50"]),
        ("mood", "string", ["so so"]),
        ("positive", "string", ["7"]),
    ],
)
def test_values_in_a_database_of_compatibility_a(declared, sql, expected):
    assert column_type(column(A[declared])).sql == sql
    assert values(A[declared]) == expected


def test_an_empty_text_is_null_in_compatibility_a_and_empty_in_pg():
    for declared in ("text", "varchar(5)", "char(5)", "clob", "nvarchar2(10)", "bytea"):
        assert None in A[declared]["texts"], declared
        assert None not in PG[declared]["texts"], declared
    assert A["blob"]["texts"][-1] == ""


def test_a_date_of_compatibility_a_is_a_timestamp_and_keeps_its_time():
    assert column_type(column(A["date"])).sql == "timestamp_ntz"
    assert values(A["date"])[:3] == [moment("2024-02-29 00:00:00"), moment("2024-02-29 13:14:15"), "held"]
    assert column_type(column(PG["date"])).sql == "date"
    assert values(PG["date"])[:3] == [dt.date(2024, 2, 29), dt.date(2024, 2, 29), "held"]


@pytest.mark.parametrize("database", [A, PG], ids=["A", "PG"])
def test_silver_reads_back_as_the_server_printed_it(database):
    for declared, one in database.items():
        kind = column_type(column(one))
        read, wrong = read_texts(pa.array([t if t is None else str(t) for t in one["texts"]], pa.string()), column(one))
        texts = pa.array(one["texts"], pa.string())
        if wrong is not None:
            texts = pa.array([None if mark.as_py() else text.as_py() for text, mark in zip(texts, wrong, strict=True)])
        assert from_silver(read).to_pylist() == from_source(texts, read.type).to_pylist(), declared
        assert kind.loss in {Loss.LOSSLESS, Loss.CONVERTED}
