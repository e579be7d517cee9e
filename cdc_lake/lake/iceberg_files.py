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
import pyarrow.compute as pc
import pyarrow.fs as pafs
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from cdc_lake.lake.parquet_file import write_parquet

if TYPE_CHECKING:
    from pyiceberg.table import Table

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def new_file(table: Table, rows: pa.Table, *, stats: Sequence[str], plain: Sequence[str]) -> DataFile:
    """Write rows to a file of the table's folder. Raises OSError."""
    location = f"{table.location().rstrip('/')}/data/{uuid4()}.zstd.parquet"
    output = table.io.new_output(location)
    with output.create() as sink:
        write_parquet(rows.cast(_with_ids(table, rows.schema)), sink, stats=stats, plain=plain)
        size = sink.tell()
    ids = {name: table.schema().find_field(name).field_id for name in stats}
    bounds = {ids[name]: _bounds(rows[name]) for name in stats if rows[name].null_count < rows.num_rows}
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows.num_rows,
        file_size_in_bytes=size,
        value_counts=dict.fromkeys(ids.values(), rows.num_rows),
        null_value_counts={ids[name]: rows[name].null_count for name in stats},
        nan_value_counts={},
        lower_bounds={at: low for at, (low, _) in bounds.items()},
        upper_bounds={at: high for at, (_, high) in bounds.items()},
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
    """One row a file: `path` as its file system has it, and `min.` and `max.` of each column."""
    properties = table.io.properties
    paths = [PyArrowFileIO.parse_location(file.file_path, properties)[2] for file in files]
    out: dict[str, Any] = {"path": pa.array(paths, pa.string())}
    for field in columns:
        at = table.schema().find_field(field.name).field_id
        for end, bounds in (("min", "lower_bounds"), ("max", "upper_bounds")):
            out[f"{end}.{field.name}"] = _decoded([(getattr(f, bounds) or {}).get(at) for f in files], field.type)
    return pa.table(out)


def _arrow(table: Table) -> PyArrowFileIO:
    io = table.io
    assert isinstance(io, PyArrowFileIO), "the catalog opens files with something else than pyarrow"
    return io


def _with_ids(table: Table, schema: pa.Schema) -> pa.Schema:
    """The rows' schema, with the numbers by which Iceberg knows columns."""
    numbered = schema_to_pyarrow(table.schema())
    return pa.schema([_numbered(field, numbered.field(field.name)) for field in schema])


def _numbered(field: pa.Field, given: pa.Field) -> pa.Field:
    if pa.types.is_list(field.type):
        inner = field.type.value_field.with_metadata(given.type.value_field.metadata)
        field = pa.field(field.name, pa.list_(inner), field.nullable)
    return field.with_metadata(given.metadata)


def _bounds(column: pa.ChunkedArray) -> tuple[bytes, bytes]:
    found = pc.min_max(column).as_py()
    return _encoded(found["min"], column.type), _encoded(found["max"], column.type)


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
