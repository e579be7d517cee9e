"""Reads a version of a silver table: without a JVM (Delta by delta-rs, Iceberg by pyiceberg), or as a Spark DataFrame.

A version is what a cut refers to: Delta's table version, Iceberg's snapshot id. Delta is read by its query engine,
which supports deletion vectors. Spark writes instants as INT96, which delta-rs reads as nanoseconds that wrap outside
the years 1677 to 2262 (seen: 0001-01-01 became 1754); the engine is configured to use microseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from cdc_lake.config.project import Project, Target
from cdc_lake.errors import SilverMissing
from cdc_lake.tables.files import grouped
from cdc_lake.tables.silver_table import delta_table, iceberg_table
from cdc_lake.tables.types import quote_identifier

if TYPE_CHECKING:
    from pyiceberg.table import DataScan
    from pyspark.sql import DataFrame, SparkSession


_ROWS_AT_ONCE = 1 << 14
_ENGINE = {
    "datafusion.execution.parquet.coerce_int96": "us",
    "datafusion.execution.parquet.schema_force_view_types": "false",  # views would be converted to plain texts here
}


def silver_version(project: Project, target: Target) -> int | None:
    """The newest version of a silver table; None if it does not exist or, on Iceberg, has no snapshot yet."""
    if target.format == "delta":
        delta = delta_table(project, target)
        return None if delta is None else int(delta.version())
    table = iceberg_table(project, target)
    head = table.current_snapshot() if table is not None else None
    return head.snapshot_id if head is not None else None


def silver_exists(project: Project, target: Target) -> bool:
    """Whether the silver table exists."""
    if target.format == "delta":
        return bool(DeltaTable.is_deltatable(str(project.silver_path(target))))
    return iceberg_table(project, target) is not None


def empty_silver(project: Project, target: Target) -> pa.Table:
    """No rows, in the columns of the newest version. Raises SilverMissing if there is no table."""
    if target.format == "delta":
        return _read_delta(project, target, None, None).slice(0, 0)
    table = iceberg_table(project, target)
    if table is None:
        raise SilverMissing(target.label)
    return table.schema().as_arrow().empty_table()


def read_silver(
    project: Project, target: Target, version: int | None = None, columns: Sequence[str] | None = None
) -> pa.Table:
    """The rows of a silver table at a version, the newest by default, in no order.

    Columns have the table's types, text as string or large_string. Raises SilverMissing if the table or the version
    does not exist.
    """
    if target.format == "delta":
        return _read_delta(project, target, version, columns)
    return _scan_iceberg(project, target, version, columns).to_arrow()


def silver_blocks(project: Project, target: Target, version: int | None = None) -> tuple[pa.Schema, Iterator[pa.Table]]:
    """The schema of a silver table at a version, and its rows as from `read_silver`, some 10,000 at a time.

    Raises SilverMissing.
    """
    if target.format == "delta":
        batches = _query_delta(project, target, version, None)
        schema = _plain_schema(pa.schema(batches.schema))
        return schema, _group_batches((pa.record_batch(batch) for batch in batches), schema)
    reader = _scan_iceberg(project, target, version).to_arrow_batch_reader()
    return reader.schema, _group_batches(reader, reader.schema)


def silver_rows(project: Project, target: Target, version: int | None = None) -> int:
    """The number of rows of a silver table at a version, of all kinds. Raises SilverMissing."""
    if target.format == "delta":
        return int(pa.table(_query_delta(project, target, version, "count(*)"))[0][0].as_py())
    return int(_scan_iceberg(project, target, version).count())


def _scan_iceberg(
    project: Project, target: Target, version: int | None, columns: Sequence[str] | None = None
) -> DataScan:
    table = iceberg_table(project, target)
    if table is None or (version is not None and table.snapshot_by_id(version) is None):
        raise SilverMissing(target.label, version)
    return table.scan(snapshot_id=version, selected_fields=tuple(columns) if columns is not None else ("*",))


def _read_delta(project: Project, target: Target, version: int | None, columns: Sequence[str] | None) -> pa.Table:
    table = pa.table(_query_delta(project, target, version, columns))
    return table.cast(_plain_schema(table.schema))


def _query_delta(project: Project, target: Target, version: int | None, columns: Sequence[str] | str | None) -> Any:
    """`columns`: names, None for all, or an expression."""
    try:
        table = DeltaTable(str(project.silver_path(target)), version=version)
    except (TableNotFoundError, DeltaError) as cause:
        raise SilverMissing(target.label, version) from cause
    names = columns if columns is not None else [field.name for field in table.schema().fields]
    listed = names if isinstance(names, str) else ", ".join('"' + name.replace('"', '""') + '"' for name in names)
    engine = QueryBuilder(_ENGINE).register("silver", table)
    return engine.execute(f"SELECT {listed} FROM silver")


def _group_batches(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Combines record batches, which may have few rows each, into tables."""
    groups = grouped(batches, lambda batch: batch.num_rows, _ROWS_AT_ONCE)
    return (pa.Table.from_batches(group).cast(schema) for group in groups)


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with large strings and binaries instead of views, which few kernels support."""
    return pa.schema([f.with_type(_without_views(f.type)) for f in schema])


def _without_views(kind: pa.DataType) -> pa.DataType:
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_views(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_without_views(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_views(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_without_views(kind.key_type), kind.item_field.with_type(_without_views(kind.item_type)))
    return plain.get(kind, kind)


_FIRST = threading.Lock()
"""A session's first use of a catalog creates the catalog's tables, which must not happen concurrently."""


def silver_frame(spark: SparkSession, project: Project, target: Target, version: int | None) -> DataFrame:
    """The rows of a silver table at a version, in its columns; None: no rows, in the current columns."""
    if target.format == "delta":
        name = f"delta.{quote_identifier(str(project.silver_path(target)))}"
    else:
        names = [quote_identifier(part) for part in (target.namespace, target.name)]
        name = ".".join([project.pipeline.lake.iceberg.catalog, *names])
    with _FIRST:
        if target.format == "iceberg":
            spark.sql(f"REFRESH TABLE {name}")  # the catalog caches a table for half a minute
        if version is None:
            return spark.table(name).where("false")
        return spark.sql(f"SELECT * FROM {name} VERSION AS OF {version}")


@contextmanager
def temp_view(frame: DataFrame, name: str) -> Iterator[str]:
    """A temporary view of a frame for SQL in the frame's session, dropped at the end."""
    frame.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        frame.sparkSession.catalog.dropTempView(name)
