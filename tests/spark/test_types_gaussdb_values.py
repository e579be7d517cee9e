"""Values as servers of the GaussDB family print them: no zero before the point, instants in the database's zone."""

from __future__ import annotations

from typing import Any

import pytest

from cdc_lake.model.relation import Column
from cdc_lake.tables.casts import cast_sql, fits_sql
from cdc_lake.tables.types import column_type

DECIMAL = Column("n", "numeric", 1700, ((12 << 16) | 3) + 4)
FLOAT = Column("f", "float8", 701)
INSTANT = Column("t", "timestamptz", 1184)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("column", "text", "value"),
    [
        (DECIMAL, ".500", "0.500"),
        (DECIMAL, "-.500", "-0.500"),
        (DECIMAL, "12.345", "12.345"),
        (DECIMAL, ".5", None),
        (DECIMAL, "1.2345", None),
        (FLOAT, ".1", "0.1"),
        (FLOAT, "-.100000001", "-0.100000001"),
        (FLOAT, ".", None),
        (INSTANT, "2026-01-02 11:04:05.5+08", "2026-01-02 03:04:05.5"),
        (INSTANT, "2026-01-02 03:04:05+00", "2026-01-02 03:04:05"),
        (INSTANT, "2026-01-02 08:34:05+05:30", "2026-01-02 03:04:05"),
        (INSTANT, "2026-01-01 20:04:05-07", "2026-01-02 03:04:05"),
        (INSTANT, "2026-01-02 11:04:05 CST", None),
        (INSTANT, "infinity", None),
        (INSTANT, "0044-03-15 12:00:00+00 BC", None),
    ],
)
def test_a_family_value_fits_and_is_what_it_says(spark: Any, column: Column, text: str, value: str | None) -> None:
    frame = spark.createDataFrame([(text,)], "v string")
    kind = column_type(column)
    fits, read = frame.selectExpr(fits_sql("v", kind), f"CAST({cast_sql('v', kind)} AS string)").first()
    assert fits is (value is not None)
    if value is not None:
        assert read == value
