"""Storage of a Delta table and its log: the port, and its implementations for a folder and a bucket, without Spark.

A put that the object store reported as done is durable. The log entry of a version is put only if it does not exist, so
of two writers one is refused. If the reply of a put was lost, the entry itself shows whether it succeeded: it is read
by its name, never through a listing, which may be outdated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from cdc_lake.errors import BronzeNotWritten, CommitUncertain, StoreUnavailable
from cdc_lake.tables import delta_log, orphan_files
from cdc_lake.tables.delta_log import Note
from cdc_lake.tables.files import Rows, write_parquet
from cdc_lake.tables.object_store import StaleListing, StoreFolder

_T = TypeVar("_T")

Action: TypeAlias = AddAction | RemoveAction


class DeltaStorage(Protocol):
    """The storage of one Delta table. Whatever a completed call wrote is durable."""

    @property
    def name(self) -> str:
        """The name for errors and views."""

    @property
    def filesystem(self) -> pafs.FileSystem:
        """The file system of its files."""

    def path(self, relative: str) -> str:
        """The path of a file of the table in the file system."""

    def open(self) -> DeltaTable | None:
        """The newest version, None if there is no table."""

    def create(self, schema: pa.Schema, properties: Mapping[str, str]) -> DeltaTable:
        """Create the empty table, at version 0. Raises BronzeNotWritten."""

    def refresh(self, table: DeltaTable) -> None:
        """Move an open table to the newest version."""

    def ask(self, question: Callable[[], _T]) -> _T:
        """Call a function on an open table that may have to read; retried if the storage fails temporarily."""

    def entry(self, version: int) -> str | None:
        """The log entry of a version; None if it was cleaned up."""

    def write(
        self, rows: Rows, *, stats: Sequence[str], loose: Mapping[str, tuple[str, str]], plain: Sequence[str]
    ) -> AddAction:
        """Write one data file that no version refers to yet. Raises OSError or BronzeNotWritten."""

    def commit(
        self, table: DeltaTable, actions: Sequence[Action], *, apps: Mapping[str, int], note: Note, fenced: bool = True
    ) -> int:
        """Commit and move `table` to the new version: directly after its current one if `fenced`, otherwise also after
        commits that others made meanwhile. Raises DeltaCommitFailed.
        """

    def persist_last_commit(self, table: DeltaTable) -> None:
        """Make the last commit of a library call, at which `table` is, durable."""

    def set_properties(self, table: DeltaTable, properties: Mapping[str, str], note: Note) -> int:
        """Set table properties directly after the version of `table`. Raises DeltaCommitFailed."""

    def checkpoint(self, table: DeltaTable) -> None:
        """Write a checkpoint of the version of `table`."""

    def leftovers(
        self, live: Collection[str], now: float, files_seconds: float | None
    ) -> orphan_files.OrphanFiles | None:
        """Orphan files (`tables.orphan_files`), None if this storage cannot determine them."""

    def written_at(self, table: DeltaTable) -> float | None:
        """When the current version was written, by the clock of its files, in seconds; None if unknown."""

    def remove(self, leftovers: orphan_files.OrphanFiles) -> None:
        """Remove orphan files."""

    def mark_replaced(self, names: Sequence[str]) -> None:
        """Record that data files are being replaced now."""


@dataclass(frozen=True, slots=True)
class LocalDeltaStorage:
    """A local folder (`DeltaStorage`). `durable`: synced before a call returns."""

    folder: Path
    durable: bool = True

    @property
    def name(self) -> str:
        """The folder."""
        return str(self.folder)

    @property
    def filesystem(self) -> pafs.FileSystem:
        """The local one."""
        return pafs.LocalFileSystem()

    def path(self, relative: str) -> str:
        """Below the folder."""
        return str(self.folder / relative)

    def open(self) -> DeltaTable | None:
        """Reads the log."""
        return delta_log.open_table(self.folder)

    def create(self, schema: pa.Schema, properties: Mapping[str, str]) -> DeltaTable:
        """Also creates the folder."""
        try:
            return delta_log.create_table(self.folder, schema, properties, durable=self.durable)
        except (DeltaError, OSError) as cause:
            raise BronzeNotWritten("the bronze table could not be created", where=self.name) from cause

    def refresh(self, table: DeltaTable) -> None:
        """Almost free if the table is at the newest version already."""
        delta_log.refresh(table, self.folder)

    def ask(self, question: Callable[[], _T]) -> _T:
        """Calls it once: errors of a disk are not temporary."""
        return question()

    def entry(self, version: int) -> str | None:
        """Reads a file."""
        return delta_log.entry_at(self.folder, version)

    def write(
        self, rows: Rows, *, stats: Sequence[str], loose: Mapping[str, tuple[str, str]], plain: Sequence[str]
    ) -> AddAction:
        """Writes one file in the folder."""
        return delta_log.write_file(self.folder, rows, stats=stats, loose=loose, plain=plain, durable=self.durable)

    def commit(
        self, table: DeltaTable, actions: Sequence[Action], *, apps: Mapping[str, int], note: Note, fenced: bool = True
    ) -> int:
        """Writes one log entry."""
        mark, read = str(uuid4()), partial(delta_log.entry_at, self.folder)
        version = delta_log.submit(table, actions, apps=apps, note=note, fenced=fenced, mark=mark, read=read)
        return self._stand_at(table, version)

    def persist_last_commit(self, table: DeltaTable) -> None:
        """Syncs log entry, data files and their folders."""
        if self.durable:
            delta_log.sync_version(self.folder, table.version())

    def set_properties(self, table: DeltaTable, properties: Mapping[str, str], note: Note) -> int:
        """Writes one log entry."""
        version = delta_log.submit_properties(table, properties, note=note, mark=str(uuid4()), read=self.entry)
        return self._stand_at(table, version)

    def _stand_at(self, table: DeltaTable, version: int) -> int:
        """Make a version durable that was made here, and move to it."""
        if self.durable:
            delta_log.sync_log(self.folder, version)
        delta_log.stand_at(table, version)
        return version

    def checkpoint(self, table: DeltaTable) -> None:
        """Synced before anything that it replaces is removed."""
        table.create_checkpoint()
        if self.durable:
            delta_log.sync_log(self.folder, table.version())

    def leftovers(
        self, live: Collection[str], now: float, files_seconds: float | None
    ) -> orphan_files.OrphanFiles | None:
        """By the times of files."""
        return orphan_files.delta_leftovers(self.folder, live, now, files_seconds)

    def written_at(self, table: DeltaTable) -> float | None:
        """By the time of its log entry."""
        return delta_log.log_entry(self.folder, table.version()).stat().st_mtime

    def remove(self, leftovers: orphan_files.OrphanFiles) -> None:
        """From the folder."""
        orphan_files.remove_from_folder(self.folder, leftovers, durable=self.durable)

    def mark_replaced(self, names: Sequence[str]) -> None:
        """By touching them."""
        orphan_files.touch([self.folder / name for name in names])


_HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""What deltalake does after a commit. Its clean-up would list the whole log each time; maintenance does that."""

_FENCE = "_cdc_lake_fence"
"""An object without content; Delta ignores names with a leading underscore."""


class ObjectStoreDeltaStorage(StoreFolder):
    """A folder of a bucket (`tables.delta_storage.DeltaStorage`)."""

    def open(self) -> DeltaTable | None:
        """The newest version, even if the listing omits it for a while. Raises StaleObjectListing."""

        def newest() -> DeltaTable | None:
            try:
                table = DeltaTable(self.name, storage_options=self._store.delta_options)
            except TableNotFoundError:
                if self.entry(0) is None and self._last_checkpoint() < 0:
                    return None
                raise StaleListing from None
            self._advance(table)
            return table

        return self._persist(newest)

    def create(self, schema: pa.Schema, properties: Mapping[str, str]) -> DeltaTable:
        """By a conditional put of version 0, which counts if it succeeded although the call failed.

        Raises BronzeNotWritten, StoreUnfenced.
        """
        self._store.prove_fence(self.path(_FENCE), self.name)
        try:
            return DeltaTable.create(
                self.name,
                schema=Schema.from_arrow(schema),
                mode="error",
                configuration={"delta.checkpointInterval": str(delta_log.CHECKPOINT_INTERVAL), **properties},
                raise_if_key_not_exists=False,  # properties of our own are not Delta's
                commit_properties=delta_log.CREATION,
                storage_options=self._store.delta_options,
            )
        except (DeltaError, OSError) as cause:
            table = self.open()
            if table is None or table.version() > 0:  # a later version is another writer's, and was not checked
                raise BronzeNotWritten("the bronze table could not be created", where=self.name) from cause
            return table

    def refresh(self, table: DeltaTable) -> None:
        """Looks for the next log entry, and for the last checkpoint if there is none. Raises StaleObjectListing."""
        self._persist(lambda: self._advance(table))

    def ask(self, question: Callable[[], _T]) -> _T:
        """Retries for as long as `patience` allows."""
        return self._persist(question)

    def entry(self, version: int) -> str | None:
        """Read by its name."""
        return self._store.read(self.path(_log_entry(version)))

    def write(
        self, rows: Rows, *, stats: Sequence[str], loose: Mapping[str, tuple[str, str]], plain: Sequence[str]
    ) -> AddAction:
        """Writes one object; a failed attempt may leave an unreferenced one, which is harmless."""

        def put() -> AddAction:
            name = f"{uuid4()}.zstd.parquet"
            with self.filesystem.open_output_stream(self.path(name)) as sink:
                write_parquet(rows, sink, stats=stats, plain=plain)
                size = sink.tell()
            return delta_log.build_add_action(name, size, rows, stats, loose)

        return self._persist(put)

    def commit(
        self, table: DeltaTable, actions: Sequence[Action], *, apps: Mapping[str, int], note: Note, fenced: bool = True
    ) -> int:
        """Put the log entry of the next version; repeated under the same id while the store fails.

        If not `fenced`, it is put after the commits of faster writers, fenced each time, so that it lands once. Raises
        DeltaCommitFailed, or CommitUncertain if the entry could not be read either.
        """
        while True:
            try:
                return self._commit(table, actions, apps, note)
            except delta_log.DeltaCommitFailed as refused:
                if fenced or not refused.overtaken:
                    raise
            self.refresh(table)

    def _commit(self, table: DeltaTable, actions: Sequence[Action], apps: Mapping[str, int], note: Note) -> int:
        mark = str(uuid4())

        def put() -> int:
            try:
                return delta_log.submit(
                    table, actions, apps=apps, note=note, fenced=True, mark=mark, read=self._peek, hooks=_HOOKS
                )
            except delta_log.DeltaCommitFailed as failure:
                if failure.overtaken:
                    raise _Overtaken from failure
                raise

        try:
            version = self._persist(put, also=(delta_log.DeltaCommitFailed,))
        except _Overtaken as refused:
            raise delta_log.DeltaCommitFailed(overtaken=True) from refused
        except StoreUnavailable as cause:
            hint = (
                "run again: nothing was acknowledged, so nothing is lost, and the next run reads what bronze "
                "contains and continues"
            )
            raise CommitUncertain(
                "it could not be determined whether a commit landed", where=self.name, hint=hint
            ) from cause
        self._persist(lambda: _stand_at(table, version))
        return version

    def set_properties(self, table: DeltaTable, properties: Mapping[str, str], note: Note) -> int:
        """Put the log entry of the next version."""
        mark = str(uuid4())

        def put() -> int:
            return delta_log.submit_properties(table, properties, note=note, mark=mark, read=self._peek)

        version = self._persist(put)
        self._persist(lambda: _stand_at(table, version))
        return version

    def persist_last_commit(self, table: DeltaTable) -> None:
        """Nothing to do: what the store accepted is durable."""

    def checkpoint(self, table: DeltaTable) -> None:
        """Writes one object."""
        self._persist(table.create_checkpoint)

    def leftovers(
        self, live: Collection[str], now: float, files_seconds: float | None
    ) -> orphan_files.OrphanFiles | None:
        """By listing the folder and its log, which costs requests: only if data files are requested too."""
        if files_seconds is None:
            return orphan_files.OrphanFiles((), (), 0)
        folder, before = self._address.path, now - files_seconds

        def list_leftovers() -> orphan_files.OrphanFiles:
            files, size = orphan_files.find_unreferenced(self.filesystem, folder, folder, live, before)
            return orphan_files.OrphanFiles(orphan_files.entries(self.filesystem, folder, now), files, size)

        return self._persist(list_leftovers)

    def written_at(self, table: DeltaTable) -> float | None:
        """Unknown: the store refuses clients whose clock is wrong."""
        del table
        return None

    def remove(self, leftovers: orphan_files.OrphanFiles) -> None:
        """One by one; objects that were removed already are not an error."""
        self._persist(lambda: orphan_files.remove_from_store(self.filesystem, leftovers))

    def mark_replaced(self, names: Sequence[str]) -> None:
        """By a note: the time of an object cannot be set."""
        self._persist(lambda: orphan_files.note_replaced(self.filesystem, self._address.path, names))

    def _advance(self, table: DeltaTable) -> None:
        version = table.version()
        if self._peek(version + 1) is None and self._last_checkpoint() <= version:
            return
        _move(table, version + 1)

    def _peek(self, version: int) -> str | None:
        """Reads a log entry in one attempt."""
        return self._read_once(_log_entry(version))

    def _last_checkpoint(self) -> int:
        text = self._read_once("_delta_log/_last_checkpoint")
        return -1 if text is None else int(json.loads(text)["version"])

    def _read_once(self, name: str) -> str | None:
        try:
            with self.filesystem.open_input_stream(self.path(name)) as opened:
                return str(opened.read().decode())
        except FileNotFoundError:
            return None


class _Overtaken(Exception):  # never leaves this module
    """Another writer took the version: retrying does not help."""


def _stand_at(table: DeltaTable, version: int) -> None:
    """Move to a version that was made here, and not to later ones, which were not checked yet."""
    _move(table, version)
    if table.version() > version:
        table.load_as_version(version)


def _move(table: DeltaTable, version: int) -> None:
    """Read the log up to a version known to exist, or further."""
    if table.version() < version:
        table.update_incremental()
    if table.version() < version:
        raise StaleListing


def _log_entry(version: int) -> str:
    return f"_delta_log/{version:020d}.json"
