"""Iceberg files in an object store: one request a file, as patient as `lake.storage` says.

Properties are pyiceberg's own (`s3.…`), so that what a REST catalog hands out for a table counts; the patience stands
beside them. A catalog takes this by its property `py-io-impl`.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow.fs as pafs
from pydantic import SecretStr
from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from cdc_lake.config.storage import Storage
from cdc_lake.lake.object_store import PATIENCE_PROPERTY, ObjectStore

_SCHEMES = ("s3", "s3a", "s3n")


class StoreFileIO(PyArrowFileIO):  # type: ignore[misc]  # mypy does not look into pyiceberg
    """pyarrow's files, those of a store opened as Delta's are."""

    fs_by_scheme: Callable[[str, str | None], pafs.FileSystem]

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        others, store = self.fs_by_scheme, ObjectStore(_storage(properties))

        def opened(scheme: str, netloc: str | None) -> pafs.FileSystem:
            return store.filesystem if scheme in _SCHEMES else others(scheme, netloc)

        self.fs_by_scheme = opened

    def new_output(self, location: str) -> PyArrowFile:
        """A file to be written."""
        scheme, netloc, path = self.parse_location(location, self.properties)
        return _NewFile(location, path, self.fs_by_scheme(scheme, netloc))


class _NewFile(PyArrowFile):  # type: ignore[misc]  # mypy does not look into pyiceberg
    def create(self, overwrite: bool = False) -> OutputStream:
        del overwrite  # every name holds a UUID: nothing is there
        return self._filesystem.open_output_stream(self._path, buffer_size=self._buffer_size)


def _storage(given: Properties) -> Storage:
    token = given.get("s3.session-token")
    return Storage(
        endpoint=given.get("s3.endpoint"),
        region=given["s3.region"],
        access_key_id=SecretStr(given["s3.access-key-id"]),
        secret_access_key=SecretStr(given["s3.secret-access-key"]),
        session_token=None if token is None else SecretStr(token),
        allow_http=str(given.get("s3.endpoint", "")).startswith("http://"),
        patience=int(given[PATIENCE_PROPERTY]),
    )
