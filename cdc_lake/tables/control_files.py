"""Files that belong to the control tables, in a folder next to them: on this machine or in their object store.

Whoever continues a pipeline, even on another machine, needs its control tables, so these files are available too. A
file exists completely or not at all, and is durable once `put` returns. Writing it again gives the same content, so
writers need no fence.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from cdc_lake.config.project import Project
from cdc_lake.errors import ControlNotWritten, LakeError
from cdc_lake.tables.files import make_folder, sync
from cdc_lake.tables.object_store import StoreFolder, object_store

_BESIDE: Final = ".part"


class ControlFiles(Protocol):
    """Files by name. Raises LakeError."""

    @property
    def name(self) -> str:
        """The location, for errors."""

    def sizes(self) -> dict[str, int]:
        """The existing files, and their bytes."""

    def put(self, name: str, blocks: Callable[[], Iterable[bytes]]) -> None:
        """Write or replace a file; `blocks` may be called again."""

    def read(self, name: str, offset: int, size: int) -> bytes | None:
        """That many bytes of a file, fewer at its end; None if it does not exist."""

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""


def _file_error(where: str) -> LakeError:
    return ControlNotWritten("a file of the control tables could not be written or read", where=where)


class LocalControlFiles:
    """A local folder (`ControlFiles`). `durable`: synced to disk before a call returns; `error` makes what is raised
    from an error of the disk, of the folder.
    """

    def __init__(self, folder: Path, *, durable: bool = True, error: Callable[[str], LakeError] = _file_error) -> None:
        self._folder = folder
        self._durable = durable
        self._error = error

    @property
    def name(self) -> str:
        """The folder."""
        return str(self._folder)

    @property
    def filesystem(self) -> pafs.FileSystem:
        """The one of this machine."""
        return pafs.LocalFileSystem()

    def path(self, name: str) -> str:
        """Its absolute path."""
        return str(self._folder.absolute() / name)

    def sizes(self) -> dict[str, int]:
        """The existing files, and their bytes."""
        with self._failing():
            if not self._folder.exists():
                return {}
            return {path.name: path.stat().st_size for path in self._folder.iterdir() if path.suffix != _BESIDE}

    def put(self, name: str, blocks: Callable[[], Iterable[bytes]]) -> None:
        """Write a temporary file, and rename it."""
        path = self._folder / name
        temporary = path.with_name(f"{name}{_BESIDE}")
        with self._failing():
            make_folder(self._folder, durable=self._durable)
            with temporary.open("wb") as file:
                for block in blocks():
                    file.write(block)
                file.flush()
                if self._durable:
                    os.fsync(file.fileno())
            temporary.replace(path)
            self._sync()

    def read(self, name: str, offset: int, size: int) -> bytes | None:
        """That many bytes of a file, fewer at its end; None if it does not exist."""
        with self._failing():
            try:
                with (self._folder / name).open("rb") as file:
                    # a read allocates memory for its size, and a damaged file may contain any size
                    left = max(0, os.fstat(file.fileno()).st_size - offset)
                    file.seek(offset)
                    return file.read(min(size, left))
            except FileNotFoundError:
                return None

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        with self._failing(), suppress(FileNotFoundError):
            (self._folder / name).unlink()
            self._sync()

    def _sync(self) -> None:
        if self._durable:
            sync(self._folder)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as cause:
            raise self._error(self.name) from cause


class StoredControlFiles(StoreFolder):
    """A folder of a bucket (`ControlFiles`)."""

    def sizes(self) -> dict[str, int]:
        """The files in the store's listing, and their bytes."""
        all_of_it = pafs.FileSelector(self._address.path, allow_not_found=True)
        infos = self._persist(lambda: self.filesystem.get_file_info(all_of_it))
        return {info.base_name: info.size for info in infos if info.type is pafs.FileType.File}

    def put(self, name: str, blocks: Callable[[], Iterable[bytes]]) -> None:
        """Write one object, which exists only as a whole."""

        def put() -> None:
            with self.filesystem.open_output_stream(self.path(name)) as sink:
                for block in blocks():
                    sink.write(block)

        self._persist(put)

    def read(self, name: str, offset: int, size: int) -> bytes | None:
        """By its name, never by a listing."""

        def read_range() -> bytes:
            with self.filesystem.open_input_file(self.path(name)) as file:
                left = max(0, file.size() - offset)
                return bytes(file.read_at(min(size, left), offset)) if left else b""

        try:
            return self._persist(read_range)
        except FileNotFoundError:
            return None

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        with suppress(FileNotFoundError):
            self._persist(lambda: self.filesystem.delete_file(self.path(name)))


ControlFolder: TypeAlias = LocalControlFiles | StoredControlFiles
"""Files that Arrow and Spark can read, too."""


def control_files(project: Project, folder: str, error: Callable[[str], LakeError] = _file_error) -> ControlFolder:
    """The files in a folder next to a pipeline's control tables; `error`: see LocalControlFiles."""
    if (address := project.control_address) is not None:
        return StoredControlFiles(object_store(project), address / folder)
    durable = project.pipeline.bronze.durability == "fsync"
    return LocalControlFiles(project.control / folder, durable=durable, error=error)


def put_rows(files: ControlFiles, name: str, rows: pa.Table) -> None:
    """Write rows as one Parquet file. Raises LakeError."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    content = sink.getvalue().to_pybytes()
    files.put(name, lambda: [content])
