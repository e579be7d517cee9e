"""Data files of Iceberg tables: Parquet with field ids, described with exact bounds, and bounds read back.

Bounds are the single-value serialisation of the Iceberg specification, appendix D. Texts are never cut: a cut upper
bound is no value of the column, and pruning by equality wants both ends exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from cdc_lake.lake.bounds import Bounds
from cdc_lake.lake.parquet_file import Rows, write_parquet

if TYPE_CHECKING:
    from pyiceberg.table import Table

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def new_file(table: Table, rows: Rows, *, stats: Sequence[str], plain: Sequence[str]) -> DataFile:
    """Write rows to a file of the table's folder. Raises OSError."""
    location = f"{table.location().rstrip('/')}/data/{uuid4()}.zstd.parquet"
    numbered = schema_to_pyarrow(table.schema())
    bounds = Bounds(stats)
    with table.io.new_output(location).create() as sink:
        parts = (part.cast(_numbered(part.schema, numbered)) for part in bounds.seen(rows))
        write_parquet(parts, sink, stats=stats, plain=plain)
        size = sink.tell()
    kinds = {name: numbered.field(name).type for name in stats}
    ids = {name: table.schema().find_field(name).field_id for name in stats}
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=bounds.rows,
        file_size_in_bytes=size,
        value_counts=dict.fromkeys(ids.values(), bounds.rows),
        null_value_counts={ids[name]: missing for name, missing in bounds.nulls.items()},
        nan_value_counts={},
        lower_bounds={ids[name]: _encoded(low, kinds[name]) for name, low in bounds.low.items()},
        upper_bounds={ids[name]: _encoded(high, kinds[name]) for name, high in bounds.high.items()},
        column_sizes={},
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
        spec_id=table.spec().spec_id,
        key_metadata=None,
    )


def filesystem(table: Table) -> pafs.FileSystem | None:
    """The file system of the table's files, None where it is the local one. As pyarrow sees it."""
    scheme, netloc, _ = PyArrowFileIO.parse_location(table.location(), table.io.properties)
    return None if scheme == "file" else _arrow(table).fs_by_scheme(scheme, netloc)


def described(table: Table, files: Sequence[DataFile], columns: pa.Schema) -> pa.Table:
    """One row a file: `path` as its file system has it, `location`, bytes, rows, and `min.` and `max.` of columns."""
    properties = table.io.properties
    paths = [PyArrowFileIO.parse_location(file.file_path, properties)[2] for file in files]
    out: dict[str, Any] = {
        "path": pa.array(paths, pa.string()),
        "location": pa.array((file.file_path for file in files), pa.string()),
        "size_bytes": pa.array((file.file_size_in_bytes for file in files), pa.int64()),
        "num_records": pa.array((file.record_count for file in files), pa.int64()),
    }
    for field in columns:
        at = table.schema().find_field(field.name).field_id
        for end, bounds in (("min", "lower_bounds"), ("max", "upper_bounds")):
            out[f"{end}.{field.name}"] = _decoded([(getattr(f, bounds) or {}).get(at) for f in files], field.type)
    return pa.table(out)


def _arrow(table: Table) -> PyArrowFileIO:
    io = table.io
    assert isinstance(io, PyArrowFileIO), "the catalog opens files with something else than pyarrow"
    return io


def _numbered(schema: pa.Schema, given: pa.Schema) -> pa.Schema:
    """The rows' schema, with the numbers by which Iceberg knows columns."""
    return pa.schema([_numbered_field(field, given.field(field.name)) for field in schema])


def _numbered_field(field: pa.Field, given: pa.Field) -> pa.Field:
    if pa.types.is_list(field.type):
        inner = field.type.value_field.with_metadata(given.type.value_field.metadata)
        field = pa.field(field.name, pa.list_(inner), field.nullable)
    return field.with_metadata(given.metadata)


def _encoded(value: Any, kind: pa.DataType) -> bytes:
    if isinstance(value, str):
        return value.encode()
    number = (value - _EPOCH) // _MICROSECOND if isinstance(value, datetime) else value
    return int(number).to_bytes(kind.bit_width // 8, "little", signed=True)


def _decoded(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        return pa.array([None if value is None else value.decode() for value in values], kind)
    width = kind.bit_width // 8
    numbers = np.frombuffer(b"".join(value or bytes(width) for value in values), f"<i{width}")
    missing = np.fromiter((value is None for value in values), bool, len(values))
    return pa.array(numbers, mask=missing).cast(kind)
