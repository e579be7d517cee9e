"""The columns of a silver table as Spark names their types, read without a JVM, of both formats."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.model.relation import TableName
from cdc_lake.ops.report_data import Evidence
from cdc_lake.ops.status import status
from cdc_lake.tables.silver_table import iceberg_catalog
from cdc_lake.tables.table_stats import silver_rows, silver_shape
from tests.cut_lake import CutLake

TYPES = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "decimal(10,2)": pa.decimal128(10, 2),
    "array<string>": pa.list_(pa.string()),
    "array<int>": pa.list_(pa.int32()),
}


@pytest.mark.parametrize("fmt", ["delta", "iceberg"])
def test_types_are_named_as_spark_names_them(tmp_path: Path, fmt: str) -> None:
    source = {"type": "postgres", "host": "h", "database": "d", "user": "u", "tables": ["public.*"]}
    values = {"version": 1, "pipeline": "p", "source": source, "silver": {"defaults": {"format": fmt}}}
    project = Project(Pipeline.model_validate(values), tmp_path / "p.yaml", tmp_path)
    target = project.target(TableName("public", "t"))
    assert silver_shape(project, target) is None
    fields = {f"c{n}": kind for n, kind in enumerate(TYPES.values())}
    if fmt == "delta":
        fields["small"] = pa.int16()
        rows = pa.table({name: pa.array([], kind) for name, kind in fields.items()})
        write_deltalake(str(project.silver_path(target)), rows)
    else:
        project.lake.mkdir(parents=True)
        catalog = iceberg_catalog(project)
        catalog.create_namespace_if_not_exists("silver")
        catalog.create_table("silver.t", pa.schema(list(fields.items())))
    wanted = [*TYPES, *(["smallint"] if fmt == "delta" else [])]
    assert [column.type for column in silver_shape(project, target) or ()] == wanted


@pytest.mark.parametrize("fmt", ["delta", "iceberg"])
@pytest.mark.parametrize(("kind", "live"), [("soft", 2), ("history", 1), ("current", 3)])
def test_a_report_counts_the_rows_that_the_source_has_and_all_that_are_stored(
    tmp_path: Path, fmt: str, kind: str, live: int
) -> None:
    lake = CutLake(tmp_path, fmt)
    columns: dict[str, list[object]] = {"id": [1, 2, 3]}
    if kind == "soft":
        columns["_is_deleted"] = [False, True, False]
    if kind == "history":
        columns |= {name: [None] * 3 for name in ("valid_from_epoch", "valid_from", "valid_to_epoch", "valid_to")}
        columns |= {"valid_from_ts": [None] * 3, "valid_to_ts": [None] * 3, "is_current": [False, False, True]}
    fields = {"id": pa.int64(), "_is_deleted": pa.bool_(), "is_current": pa.bool_()}
    schema = pa.schema([(name, fields.get(name, pa.int64())) for name in columns])
    lake.land(105)
    version = lake.write("t", pa.table(columns, schema=schema))
    lake.cut(105, 1, t=lake.state("t", version, 105))
    (found,) = Evidence(lake.project, lake.control, status(lake.project)).collect().tables
    assert (found.rows, found.stored) == (live, None if kind == "current" else 3)
    assert silver_rows(lake.project, lake.project.target(TableName("public", "t"))) == 3
