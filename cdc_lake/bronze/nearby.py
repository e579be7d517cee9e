"""Data files of bronze near by: where Spark, which is given no client of object stores, can read them.

Files on this machine are read where they are. Files of a store are copied whole into a scratch folder, once however
many tables of a span read them, and stay while the span is applied; of what was needed earlier so much is kept as fits
into `KEPT_BYTES`, oldest out first. The folder goes with the run, and what a killed run left goes with the next one.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.fs as pafs

from cdc_lake.bronze.files import Files
from cdc_lake.errors import LakeError
from cdc_lake.lake.object_store import reading

KEPT_BYTES = 256 << 20
"""Files of spans that are over: commits come in one file each and are read once; what is compacted is read again."""

_SIDE_BY_SIDE = 4
_CHUNK = 4 << 20


def as_they_are(files: Files, paths: Sequence[str]) -> list[str]:
    """Of a bronze on this machine."""
    del files
    return list(paths)


class Nearby:
    """Copies of data files in `folder`, which is its own. Safe to be used by several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._turn = threading.Lock()
        self._sizes: dict[str, int] = {}
        """What is there, by when it was needed last."""
        self._fresh = False

    def of(self, files: Files, paths: Sequence[str]) -> list[str]:
        """The paths on this machine of data files of bronze. Raises StoreUnavailable, LakeError."""
        if files.near:
            return list(paths)
        with self._turn:
            afar = [path for path in paths if not path.startswith("/")]  # what stands beside bronze is near
            self._fetch(files.filesystem, [path for path in afar if path not in self._sizes])
            for path in afar:
                self._sizes[path] = self._sizes.pop(path)
        return [path if path.startswith("/") else str(self._local(path)) for path in paths]

    def release(self) -> None:
        """Nothing that was asked for is read any more: the span is over."""
        with self._turn:
            left = sum(self._sizes.values())
            for path in list(self._sizes):
                if left <= KEPT_BYTES:
                    break
                left -= self._sizes.pop(path)
                self._local(path).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder."""
        with self._turn:
            self._sizes.clear()
            if self._fresh:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _fetch(self, filesystem: pafs.FileSystem, missing: Sequence[str]) -> None:
        if not missing:
            return
        if not self._fresh:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._fresh = True
        self._folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(_SIDE_BY_SIDE, "fetch") as pool:
            for path, size in zip(missing, pool.map(lambda path: self._copy(filesystem, path), missing), strict=True):
                self._sizes[path] = size

    def _copy(self, filesystem: pafs.FileSystem, path: str) -> int:
        near = self._local(path)
        part = near.with_suffix(".part")
        with reading(path), filesystem.open_input_file(path) as source, part.open("wb") as sink:
            size = int(source.size())
            while chunk := source.read(_CHUNK):
                sink.write(chunk)
            if sink.tell() != size:
                raise LakeError(f"{sink.tell()} of {size} bytes of a data file could be read", where=path)
        part.rename(near)
        return size

    def _local(self, path: str) -> Path:
        """Names of data files hold a UUID, so that of the file is enough."""
        return self._folder / path.rpartition("/")[2]
