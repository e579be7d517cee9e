"""Iceberg files on a local disk that are on disk when they are closed: content, name and new folders.

pyiceberg writes a table's metadata and swaps the catalog's pointer to it in one call, so nobody could sync in between;
and it never calls fsync itself. A catalog takes this by its property `py-io-impl`; other places it leaves as they are.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from cdc_lake.lake.disk import make_folder, sync

_BEFORE_METADATA = ".avro"
"""Manifests and lists: the metadata file that is written after them into the same folder takes the folder along."""


class DurableFileIO(PyArrowFileIO):  # type: ignore[misc]  # mypy does not look into pyiceberg
    """pyarrow's files, local ones synced."""

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
