"""The columns of a silver table as Spark names their types, read without a JVM, of both formats."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.lake.extent import silver_shape
from cdc_lake.lake.marker import iceberg_catalog
from cdc_lake.model.relation import TableName

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
