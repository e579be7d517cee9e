"""Data files of Iceberg tables with exact bounds, file access that is durable when a file is closed, and clients of
catalogs with a timeout, which pyiceberg's own lack. A commit that timed out is looked up like any other one with a lost
reply.

Bounds use the single-value serialization of the Iceberg specification, appendix D. Text bounds are never truncated: a
truncated upper bound is not a value of the column, and pruning by equality needs both exact.

pyiceberg writes a table's metadata and swaps the catalog's pointer in one call, so callers cannot sync in between, and
it never calls fsync itself. A catalog uses these classes through its property `py-io-impl`: on a local disk content,
name and new folders are synced; in an object store a file is one request, retried as `lake.storage` states, with
pyiceberg's own properties (`s3.…`, `adls.…`, `gcs.…`), so that credentials from a REST catalog apply.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import EMPTY_DICT, Properties, Record
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter

from cdc_lake.tables.files import Bounds, Rows, make_folder, sync, write_parquet
from cdc_lake.tables.object_store import ObjectStore
from cdc_lake.tables.store_options import OF_FILE_ACCESS, storage_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def new_file(table: Table, rows: Rows, *, stats: Sequence[str], plain: Sequence[str]) -> DataFile:
    """Write rows to a file of the table's folder. Raises OSError."""
    location = f"{table.location().rstrip('/')}/data/{uuid4()}.zstd.parquet"
    numbered = schema_to_pyarrow(table.schema())
    bounds = Bounds(stats)
    with table.io.new_output(location).create() as sink:
        parts = (
            part.cast(pa.schema([_numbered_field(field, numbered.field(field.name)) for field in part.schema]))
            for part in bounds.observe_rows(rows)
        )
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
        lower_bounds={ids[name]: _encode_bound(low, kinds[name]) for name, low in bounds.low.items()},
        upper_bounds={ids[name]: _encode_bound(high, kinds[name]) for name, high in bounds.high.items()},
        column_sizes={},
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
        spec_id=table.spec().spec_id,
        key_metadata=None,
    )


def filesystem(table: Table) -> pafs.FileSystem | None:
    """The file system of the table's files as pyarrow sees it, None if it is the local one."""
    io = arrow_io(table)
    scheme, netloc, _ = io.parse_location(table.location(), table.io.properties)
    return None if scheme == "file" else io.fs_by_scheme(scheme, netloc)


def describe_files(table: Table, files: Sequence[DataFile], columns: pa.Schema) -> pa.Table:
    """One row per file: `path` in its file system, `location`, bytes, rows, and `min.` and `max.` of columns."""
    properties = table.io.properties
    paths = [arrow_io(table).parse_location(file.file_path, properties)[2] for file in files]
    arrays: dict[str, Any] = {
        "path": pa.array(paths, pa.string()),
        "location": pa.array((file.file_path for file in files), pa.string()),
        "size_bytes": pa.array((file.file_size_in_bytes for file in files), pa.int64()),
        "num_records": pa.array((file.record_count for file in files), pa.int64()),
    }
    for field in columns:
        field_id = table.schema().find_field(field.name).field_id
        for end, bounds in (("min", "lower_bounds"), ("max", "upper_bounds")):
            arrays[f"{end}.{field.name}"] = _decode_bounds(
                [(getattr(f, bounds) or {}).get(field_id) for f in files], field.type
            )
    return pa.table(arrays)


def arrow_io(table: Table) -> PyArrowFileIO:
    """The file access of a table."""
    io = table.io
    assert isinstance(io, PyArrowFileIO), "the catalog opens files with something else than pyarrow"
    return io


def _numbered_field(field: pa.Field, reference: pa.Field) -> pa.Field:
    """A field of the rows with Iceberg's field ids."""
    if pa.types.is_list(field.type):
        inner = field.type.value_field.with_metadata(reference.type.value_field.metadata)
        field = pa.field(field.name, pa.list_(inner), field.nullable)
    return field.with_metadata(reference.metadata)


def _encode_bound(value: Any, kind: pa.DataType) -> bytes:
    if isinstance(value, str):
        return value.encode()
    number = (value - _EPOCH) // _MICROSECOND if isinstance(value, datetime) else value
    return int(number).to_bytes(kind.bit_width // 8, "little", signed=True)


def _decode_bounds(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        return pa.array([None if value is None else value.decode() for value in values], kind)
    width = kind.bit_width // 8
    numbers = np.frombuffer(b"".join(value or bytes(width) for value in values), f"<i{width}")
    missing = np.fromiter((value is None for value in values), bool, len(values))
    return pa.array(numbers, mask=missing).cast(kind)


_BEFORE_METADATA = ".avro"
"""Manifests and lists need no sync of their folder: the metadata file written later into the same folder syncs it."""


class DurableFileIO(PyArrowFileIO):  # type: ignore[misc]  # mypy does not look into pyiceberg
    """pyarrow's file access with local files synced."""

    def new_output(self, location: str) -> PyArrowFile:
        """A file to be written."""
        scheme, _, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return super().new_output(location)
        return _LocalFile(location, path, self.fs_by_scheme("file", None))


class _LocalFile(PyArrowFile):  # type: ignore[misc]  # mypy does not look into pyiceberg
    def create(self, overwrite: bool = False) -> OutputStream:
        path = Path(self._path)
        make_folder(path.parent)
        return _Synced(path, "wb" if overwrite else "xb")


class _Synced(io.BufferedWriter):
    def __init__(self, path: Path, mode: str) -> None:
        super().__init__(io.FileIO(path, mode))
        self._folder = None if path.suffix == _BEFORE_METADATA else path.parent

    def close(self) -> None:
        if not self.closed:
            try:
                self.flush()
                os.fsync(self.fileno())
            finally:
                super().close()
            if self._folder is not None:
                sync(self._folder)


_SCHEMES = ("s3", "s3a", "s3n", "abfs", "abfss", "gs", "gcs")


@lru_cache(maxsize=8)
def _store(properties: tuple[tuple[str, str], ...]) -> ObjectStore:
    """One for all tables with the same settings: its connections, and the keys of a role, serve each commit."""
    return ObjectStore(storage_of(dict(properties)))


class StoreFileIO(PyArrowFileIO):  # type: ignore[misc]  # mypy does not look into pyiceberg
    """pyarrow's file access with stores opened as for Delta."""

    fs_by_scheme: Callable[[str, str | None], pafs.FileSystem]

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        settings = ((name, text) for name, text in properties.items() if name.startswith(OF_FILE_ACCESS))
        others, store = self.fs_by_scheme, _store(tuple(sorted(settings)))

        def open_filesystem(scheme: str, netloc: str | None) -> pafs.FileSystem:
            return store.filesystem if scheme in _SCHEMES else others(scheme, netloc)

        self.fs_by_scheme = open_filesystem

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        """Scheme, host, and path in Arrow's file system, in which pyiceberg's has the account of ADLS too."""
        scheme, netloc, path = PyArrowFileIO.parse_location(location, properties)
        container, account, _ = netloc.partition("@")
        return scheme, netloc, path.replace(netloc, container, 1) if account else path

    def new_output(self, location: str) -> PyArrowFile:
        """A file to be written."""
        scheme, netloc, path = self.parse_location(location, self.properties)
        return _NewFile(location, path, self.fs_by_scheme(scheme, netloc))


class _NewFile(PyArrowFile):  # type: ignore[misc]  # mypy does not look into pyiceberg
    def create(self, overwrite: bool = False) -> OutputStream:
        del overwrite  # every name contains a UUID
        return self._filesystem.open_output_stream(self._path, buffer_size=self._buffer_size)


ANSWER_SECONDS = 60.0
"""Timeout of a response of a catalog, also between two parts of it."""


class PatientRestCatalog(RestCatalog):  # type: ignore[misc]  # mypy does not look into pyiceberg
    """pyiceberg's catalog; a request without a response fails with ReadTimeout or ConnectTimeout."""

    def _create_session(self) -> Session:
        session: Session = super()._create_session()
        for scheme in ("http://", "https://"):
            session.mount(scheme, _Adapter())
        return session

    def _warn_oauth_tokens_deprecation(self) -> None:
        """Does nothing: pyiceberg's warning shows the catalog's address, which may contain a password."""


class _Adapter(HTTPAdapter):
    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        return super().send(request, *args, **{**options, "timeout": ANSWER_SECONDS})


def hive_catalog(name: str, properties: Properties) -> Catalog:
    """A catalog in a Hive metastore; each thread has a connection of its own, with a timeout.

    That of pyiceberg shares one connection, on which requests of two threads would mix. Raises ImportError.
    """
    from pyiceberg.catalog import hive  # noqa: PLC0415 - an extra
    from pyiceberg.utils.properties import property_as_bool  # noqa: PLC0415
    from thrift.transport import TSocket, TTransport  # noqa: PLC0415 - an extra

    class PatientClient(hive._HiveClient):  # type: ignore[misc]  # noqa: SLF001 - mypy does not look into it
        def _init_thrift_transport(self) -> Any:
            parts = urlsplit(self._uri)
            socket = TSocket.TSocket(parts.hostname, parts.port)
            socket.setTimeout(ANSWER_SECONDS * 1000)
            if self._kerberos_auth:
                return TTransport.TSaslClientTransport(socket, parts.hostname, self._kerberos_service_name)
            return TTransport.TBufferedTransport(socket)

    class PatientHiveCatalog(hive.HiveCatalog):  # type: ignore[misc]
        _clients = threading.local()

        @property
        def _client(self) -> PatientClient:
            if not hasattr(self._clients, "client"):
                self._clients.client = self._create_hive_client(self.properties)
            client: PatientClient = self._clients.client
            return client

        @_client.setter
        def _client(self, client: PatientClient) -> None:
            self._clients.client = client

        @staticmethod
        def _create_hive_client(properties: Properties) -> PatientClient:
            kerberos = property_as_bool(properties, hive.HIVE_KERBEROS_AUTH, hive.HIVE_KERBEROS_AUTH_DEFAULT)
            service = properties.get(hive.HIVE_KERBEROS_SERVICE_NAME, hive.HIVE_KERBEROS_SERVICE_NAME_DEFAULT)
            return PatientClient(properties["uri"], properties.get("ugi"), kerberos, service)

    return PatientHiveCatalog(name, **properties)
