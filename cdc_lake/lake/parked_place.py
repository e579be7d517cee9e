"""Where prepared transactions are parked: beside the control tables, in a folder of this machine or of a store.

Whoever goes on with a pipeline needs its control tables, on another machine too: what is beside them is there then. A
file is there whole or not at all, and stays once `put` returned. Writing one again says the same, so writers need no
fence among themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import pyarrow.fs as pafs

from cdc_lake.config.project import Project
from cdc_lake.config.storage import ObjectAddress
from cdc_lake.errors import PreparedNotKept
from cdc_lake.lake.disk import make_folder, sync
from cdc_lake.lake.object_store import object_store
from cdc_lake.lake.store_folder import StoreFolder

_FOLDER = "prepared"
_BESIDE = ".part"


class ParkedPlace(Protocol):
    """Files by name. Raises LakeError."""

    @property
    def name(self) -> str:
        """As errors name it."""
        ...

    def sizes(self) -> dict[str, int]:
        """The files that are there, and their bytes."""
        ...

    def put(self, name: str, blocks: Callable[[], Iterable[bytes]]) -> None:
        """Write a file, in place of one that is there; `blocks` may be asked again."""
        ...

    def read(self, name: str, at: int, size: int) -> bytes | None:
        """So many bytes of a file, fewer at its end; None where it is not there."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        ...


class LocalParked:
    """A folder of this machine (`ParkedPlace`). `durable`: on disk before a call returns."""

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self._folder = folder
        self._durable = durable

    @property
    def name(self) -> str:
        """The folder."""
        return str(self._folder)

    def sizes(self) -> dict[str, int]:
        """See ParkedPlace."""
        with self._failing():
            if not self._folder.exists():
                return {}
            return {one.name: one.stat().st_size for one in self._folder.iterdir() if one.suffix != _BESIDE}

    def put(self, name: str, blocks: Callable[[], Iterable[bytes]]) -> None:
        """Beside its place first, then there."""
        path = self._folder / name
        beside = path.with_name(f"{name}{_BESIDE}")
        with self._failing():
            if self._durable:
                make_folder(self._folder)
            else:
                self._folder.mkdir(parents=True, exist_ok=True)
            with beside.open("wb") as file:
                for block in blocks():
                    file.write(block)
                file.flush()
                if self._durable:
                    os.fsync(file.fileno())
            beside.replace(path)
            self._sync()

    def read(self, name: str, at: int, size: int) -> bytes | None:
        """See ParkedPlace."""
        with self._failing():
            try:
                with (self._folder / name).open("rb") as file:
                    # a read asks for the memory of all that it may bring, and a damaged file may say anything
                    left = max(0, os.fstat(file.fileno()).st_size - at)
                    file.seek(at)
                    return file.read(min(size, left))
            except FileNotFoundError:
                return None

    def remove(self, name: str) -> None:
        """See ParkedPlace."""
        with self._failing():
            (self._folder / name).unlink(missing_ok=True)
            self._sync()

    def _sync(self) -> None:
        if self._durable:
            sync(self._folder)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as cause:
            raise PreparedNotKept("a prepared transaction could not be kept or read back", where=self.name) from cause


class StoreParked(StoreFolder):
    """A folder of a bucket (`ParkedPlace`)."""

    def sizes(self) -> dict[str, int]:
        """As far as the store's listing goes."""
        all_of_it = pafs.FileSelector(self._address.path, allow_not_found=True)
        found = self._persist(lambda: self.filesystem.get_file_info(all_of_it))
        return {one.base_name: one.size for one in found if one.type is pafs.FileType.File}

    def put(self, name: str, blocks: Callable[[], Iterable[bytes]]) -> None:
        """One object, which is there once all of it is."""

        def put() -> None:
            with self.filesystem.open_output_stream(self.path(name)) as sink:
                for block in blocks():
                    sink.write(block)

        self._persist(put)

    def read(self, name: str, at: int, size: int) -> bytes | None:
        """By its name, never by a listing."""

        def some() -> bytes:
            with self.filesystem.open_input_file(self.path(name)) as file:
                left = max(0, file.size() - at)
                return bytes(file.read_at(min(size, left), at)) if left else b""

        try:
            return self._persist(some)
        except FileNotFoundError:
            return None

    def remove(self, name: str) -> None:
        """See ParkedPlace."""
        with suppress(FileNotFoundError):
            self._persist(lambda: self.filesystem.delete_file(self.path(name)))


def parked_place(project: Project) -> ParkedPlace:
    """The place of a pipeline."""
    if (address := project.control_address) is not None:
        return StoreParked(object_store(project), ObjectAddress.parse(f"{address}/{_FOLDER}"))
    return LocalParked(project.control / _FOLDER, durable=project.pipeline.bronze.durability == "fsync")
