"""Data files: how their columns are compressed."""

from __future__ import annotations

import base64
import io
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_lake.tables.files import write_parquet

LARGE = 68_000_000
SMALL = base64.b64encode(random.Random(5).randbytes(750)).decode()
LOOSE, DENSE = "loose", "dense"  # of large values, which are made where they are asked for


def value(of: str | None) -> str | None:
    if of == LOOSE:
        return SMALL * (LARGE // len(SMALL))
    return dense(LARGE) if of == DENSE else of


def dense(size: int) -> str:
    """What compresses to three quarters."""
    return base64.b64encode(random.Random(5).randbytes(size * 3 // 4)).decode()


def packed(*values: str | None) -> dict[str, bool]:
    """Of a file with these as lists and as they are: whether each column is compressed; what was written is read."""
    values = tuple(map(value, values))
    rows = pa.table({"n": pa.array(range(len(values))), "new": pa.array([["a", one] for one in values]), "one": values})
    sink = io.BytesIO()
    write_parquet(rows, sink, stats=["n"], plain=["new", "one"])
    assert pq.read_table(sink).equals(rows)
    group = pq.read_metadata(sink).row_group(0)
    columns = [group.column(nth) for nth in range(group.num_columns)]
    return {one.path_in_schema.split(".")[0]: one.compression == "ZSTD" for one in columns}


@pytest.mark.parametrize(
    ("values", "worth"),
    [((SMALL, None, ""), True), ((LOOSE,), True), ((DENSE,), False), ((SMALL, DENSE, None, SMALL), False)],
    ids=["small", "loose", "dense", "dense among small ones"],
)
def test_a_very_large_value_is_compressed_where_that_is_worth_a_copy(
    values: tuple[str | None, ...], worth: bool
) -> None:
    assert packed(*values) == {"n": True, "new": worth, "one": worth}


def test_many_values_are_compressed_however_much_they_are_together() -> None:
    some = dense(LARGE // 8)
    assert packed(*[some] * 9) == {"n": True, "new": True, "one": True}
