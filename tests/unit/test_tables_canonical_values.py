"""The canonical form of silver values, against PostgreSQL's text written down by hand."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lake.tables.canonical_values import from_silver, from_source, readable

US = pa.timestamp("us")
UTC = pa.timestamp("us", tz="UTC")


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
        (UTC, dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC), "9999-12-31 23:59:59+00"),
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
