"""The canonical form of silver values, against PostgreSQL's text written down by hand, also as Arrow values."""

from __future__ import annotations

import datetime as dt
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lake.model.relation import Column
from cdc_lake.tables.canonical_values import arrow_type, from_silver, from_source, read_texts, readable
from cdc_lake_testing.messages import TYPE_OIDS
from tests.seeds import one_seed

US = pa.timestamp("us")
WITH_ZONE = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.decimal128(20, 8), Decimal("0.00000001"), "0.00000001"),
        (pa.decimal128(20, 8), Decimal("-0.00000001"), "-0.00000001"),
        (pa.decimal128(38, 38), Decimal("-0." + "9" * 38), "-0." + "9" * 38),
        (pa.decimal128(38, 0), Decimal("9" * 38), "9" * 38),
        (pa.decimal128(10, 2), Decimal("0.00"), "0.00"),
        (pa.bool_(), True, "t"),
        (pa.bool_(), False, "f"),
        (pa.binary(), b"\x00\xff", "\\x00ff"),
        (pa.binary(), b"", "\\x"),
        (pa.string(), "", ""),
        (pa.date32(), dt.date(1, 1, 1), "0001-01-01"),
        (US, dt.datetime.fromisoformat("2024-01-01"), "2024-01-01 00:00:00"),
        (US, dt.datetime.fromisoformat("1969-12-31T23:59:59.999999"), "1969-12-31 23:59:59.999999"),
        (US, dt.datetime.fromisoformat("2024-01-01T10:20:30.120000"), "2024-01-01 10:20:30.12"),
        (WITH_ZONE, dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC), "9999-12-31 23:59:59+00"),
        (pa.int16(), -32768, "-32768"),
    ],
)
def test_silver_prints_as_the_server_does(kind, value, text):
    assert from_silver(pa.array([None, value, None], kind)[1:]).to_pylist() == [text, None]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_floats_meet_by_bits(kind):
    texts = pa.array(["NaN", "Infinity", "-Infinity", "-0", "0", "1e+30", "0.1", None])
    values = pa.array([float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e30, 0.1, None], pa.float64()).cast(
        kind, safe=False
    )
    silver, source = from_silver(values).to_pylist(), from_source(texts, kind).to_pylist()
    assert silver == source
    assert silver[3] != silver[4]
    shown = [readable(text, kind) for text in silver]
    assert [*map(float, shown[1:6])] == values.to_pylist()[1:6]
    assert (shown[0], shown[7], readable("12.50", pa.decimal128(6, 2))) == ("NaN", None, "12.50")


@given(st.lists(st.one_of(st.none(), st.decimals(-(10**29), 10**29, places=7)), max_size=8), st.integers(0, 3))
def test_decimals_print_like_python_without_exponent(values, skip):
    array = pa.array([None if v is None else Decimal(v) for v in values], pa.decimal128(38, 7))[skip:]
    expected = [None if v is None else format(v, ".7f").replace("-0.0000000", "0.0000000") for v in values[skip:]]
    assert from_silver(array).to_pylist() == expected


def test_chunks_stay_apart_and_in_order():
    chunks = pa.chunked_array([pa.array([1], pa.int32()), pa.array([None, 2], pa.int32())])
    assert from_silver(chunks).to_pylist() == ["1", None, "2"]


def test_a_type_that_silver_never_has_is_refused():
    with pytest.raises(TypeError):
        from_silver(pa.array([{"a": 1}]))
    with pytest.raises(TypeError):
        from_silver(pa.array([dt.datetime(2024, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", tz="Europe/Berlin")))


NUMERIC = ((10 << 16) | 2) + 4  # numeric(10,2)


def read(kind: str, texts: list[str | None], modifier: int = -1) -> tuple[list[Any], list[int]]:
    """Values, and the places of texts without one."""
    values, wrong = read_texts(pa.array(texts, pa.string()), Column("c", kind, TYPE_OIDS[kind], modifier))
    return values.to_pylist(), [] if wrong is None else [
        at for at, is_wrong in enumerate(wrong.to_pylist()) if is_wrong
    ]


FIT: list[tuple[str, str, Any]] = [
    ("int2", "-32768", -32768),
    ("int8", "9223372036854775807", 9223372036854775807),
    ("numeric", "-.50", Decimal("-0.50")),
    ("numeric", "99999999.99", Decimal("99999999.99")),
    ("float8", "5e-324", 5e-324),
    ("float8", "-Infinity", float("-inf")),
    ("bool", "t", True),
    ("bytea", "\\x00ff", b"\x00\xff"),
    ("bytea", "\\x", b""),
    ("text", "unchanged-toast-datum", "unchanged-toast-datum"),
    ("date", "0001-01-01", date(1, 1, 1)),
    ("timestamp", "9999-12-31 23:59:59.999999", datetime(9999, 12, 31, 23, 59, 59, 999999)),  # noqa: DTZ001 - has none
    ("timestamptz", "2024-01-01 05:30:00.5+05:30", datetime(2024, 1, 1, 0, 0, 0, 500000, UTC)),
    ("timestamptz", "1883-01-01 05:53:28+05:53:28", datetime(1883, 1, 1, tzinfo=UTC)),
]
MISFIT = {
    "int2": ["32768", "-0", "007", "+1", " 1", "1.0", "", "0x1"],
    "numeric": ["NaN", "1.005", "123456789.00", "1e2", "-0.00", "01.00"],
    "float4": ["1e+39", "nan", "inf", "1f", ""],
    "bool": ["true", "T", ""],
    "bytea": ["\\xa", "\\xAB", "ab", ""],
    "date": ["infinity", "10000-01-01", "0044-03-15 BC", "2023-02-29", "2024-1-1", "0000-01-01"],
    "timestamp": ["-infinity", "2024-01-01", "2024-01-01 24:00:00", "2024-01-01 00:00:00+00"],
    "timestamptz": ["infinity", "2024-01-01 00:00:00", "2024-02-30 00:00:00+00"],
}


@pytest.mark.parametrize(("kind", "text", "value"), FIT)
def test_a_text_becomes_its_value_and_null_stays_null(kind: str, text: str, value: Any) -> None:
    assert read(kind, [text, None], NUMERIC if kind == "numeric" else -1) == ([value, None], [])


@pytest.mark.parametrize("kind", MISFIT)
def test_a_text_without_a_value_is_null_and_marked(kind: str) -> None:
    texts = MISFIT[kind]
    values, wrong = read(kind, [*texts, None], NUMERIC)
    assert values == [None] * len(values)
    assert wrong == list(range(len(texts)))


def test_one_bad_value_among_many_leaves_the_others_alone() -> None:
    texts: list[str | None] = [f"2024-01-{1 + at % 28:02}" for at in range(10_000)]
    texts[7777] = "2024-02-30"
    values, wrong = read("date", texts)
    assert wrong == [7777]
    assert values[7776] == date(2024, 1, 1 + 7776 % 28)


def test_what_silver_keeps_as_text_is_text() -> None:
    assert arrow_type(Column("c", "uuid", 2950)) == pa.string()
    assert arrow_type(Column("c", "numeric", 1700)) == pa.string()
    assert arrow_type(Column("c", "numeric", 1700, NUMERIC)) == pa.decimal128(10, 2)


def test_a_text_is_read_alike_alone_and_among_others() -> None:
    seed = one_seed()
    print(f"CDC_LAKE_SEED={seed}")
    chance = random.Random(seed)
    texts = [text for some in MISFIT.values() for text in some] + [text for _, text, _ in FIT]
    for kind in ("int2", "int8", "numeric", "float4", "float8", "bool", "bytea", "date", "timestamp", "timestamptz"):
        some: list[str | None] = [*chance.choices(texts, k=60), None]
        alone = [read(kind, [text], NUMERIC) for text in some]
        values, wrong = read(kind, some, NUMERIC)
        assert repr(values) == repr([value for (value,), _ in alone]), kind
        assert wrong == [at for at, (_, marked) in enumerate(alone) if marked], kind
