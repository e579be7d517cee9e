"""Data as a suite judges it: only the judged columns, in types that Great Expectations compares as the gate does.

Numbers become doubles with NaN above every number (as PostgreSQL and Spark order it), points in time without a zone
become UTC, dates (for pandas, which finds no date in a list) midnight UTC, everything else stays as it is.
NULL stays NULL.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from cdc_lake.lake.store import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_NAMES = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
}


def type_name(data_type: pa.DataType) -> str:
    """Spark's name of an Arrow type that silver tables use; Arrow's own name for any other."""
    if pt.is_decimal(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    if pt.is_timestamp(data_type):
        return "timestamp" if data_type.tz else "timestamp_ntz"
    return _NAMES.get(data_type, str(data_type))


def spark_types(frame: DataFrame) -> dict[str, str]:
    """Column names and Spark's names of their types."""
    return {field.name: field.dataType.simpleString() for field in frame.schema.fields}


def pandas_frame(table: pa.Table, columns: AbstractSet[str]) -> Any:
    """The judged columns as a pandas DataFrame of the same number of rows."""
    import pandas as pd  # noqa: PLC0415 - only where a suite runs

    return pd.DataFrame(
        {name: _series(table.column(name)) for name in table.column_names if name in columns},
        index=range(table.num_rows),
    )


def exact_series(values: pa.ChunkedArray) -> Any:
    """Values as pandas compares them without a loss: integers whole, decimals as Python's, the rest as above."""
    import pandas as pd  # noqa: PLC0415

    if pt.is_integer(values.type):
        return pd.Series(values.to_pylist(), dtype="Int64")
    return pd.Series(values.to_pylist(), dtype=object) if pt.is_decimal(values.type) else _series(values)


def _series(values: pa.ChunkedArray) -> Any:
    import pandas as pd  # noqa: PLC0415

    kind = values.type
    if pt.is_integer(kind) or pt.is_decimal(kind):
        return values.cast(pa.float64(), safe=False).to_pandas()
    if pt.is_floating(kind):
        doubles = values.cast(pa.float64())
        return pc.if_else(pc.is_nan(doubles), pa.scalar(float("inf")), doubles).to_pandas()
    if pt.is_timestamp(kind) or pt.is_date(kind):
        instants = values.cast(pa.timestamp("us"), safe=False).cast(pa.timestamp("us", tz="UTC"))
        return instants.to_pandas()
    return pd.Series(values.to_pylist(), dtype=object)


def ordered_frame(
    frame: DataFrame, columns: AbstractSet[str], worked_out: Mapping[str, Column] | None = None
) -> DataFrame:
    """The judged columns of a Spark DataFrame; timestamps without a zone are read as UTC, whatever the session's is.

    `worked_out`: further columns, by name, over those of the frame as they are.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - a report needs no Spark

    def judged(name: str) -> Any:
        sql = quoted(name)
        if frame.schema[name].dataType.simpleString() != "timestamp_ntz":
            return F.col(sql)
        parts = [f"{part}({sql})" for part in ("year", "month", "day", "hour", "minute")]
        return F.expr(f"make_timestamp({', '.join(parts)}, extract(SECOND FROM {sql}), 'UTC')").alias(name)

    further = [column.alias(name) for name, column in (worked_out or {}).items()]
    return frame.select(*(judged(name) for name in sorted(columns)), *further)
