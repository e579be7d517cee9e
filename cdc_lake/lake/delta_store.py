"""A Delta table in an object store, written without Spark: data file, conditional put of the log entry, done.

What a put reported as done is durable there. The log entry of a version is put only where there is none, so of two
writers one is refused. Whether a put whose reply was lost was done, the entry itself says: it is read by its name,
never by a listing, which may be older than what was written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from cdc_lake.errors import BronzeNotWritten, CommitUncertain, StoreUnavailable
from cdc_lake.lake.delta_leftovers import Leftovers
from cdc_lake.lake.delta_log import CHECKPOINT_INTERVAL, NotLanded, added, submit, submit_properties
from cdc_lake.lake.delta_place import Action
from cdc_lake.lake.object_store import Behind
from cdc_lake.lake.parquet_file import Rows, write_parquet
from cdc_lake.lake.store_folder import StoreFolder
from cdc_lake.lake.store_leftovers import entries, note_replaced, remove, unnamed

_T = TypeVar("_T")

_HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""What deltalake does after a commit. To tidy the log it would list all of it each time; upkeep does that."""

_FENCE = "_cdc_lake_fence"
"""An object that says nothing; to Delta, names with a leading underline are no data."""


class StorePlace(StoreFolder):
    """A folder of a bucket (`lake.delta_place.DeltaPlace`)."""

    def open(self) -> DeltaTable | None:
        """The newest version, also where the listing leaves it out for a while. Raises StoreBehind."""

        def newest() -> DeltaTable | None:
            try:
                table = DeltaTable(self.name, storage_options=self._store.delta_options)
            except TableNotFoundError:
                if self.entry(0) is None and self._last_checkpoint() < 0:
                    return None
                raise Behind from None
            self._advance(table)
            return table

        return self._persist(newest)

    def create(self, schema: pa.Schema, properties: Mapping[str, str]) -> DeltaTable:
        """By a conditional put of version 0; one that was done although its call failed counts.

        Raises BronzeNotWritten, StoreUnfenced.
        """
        self._store.prove_fence(self.path(_FENCE), self.name)
        try:
            return DeltaTable.create(
                self.name,
                schema=Schema.from_arrow(schema),
                mode="error",
                configuration={"delta.checkpointInterval": str(CHECKPOINT_INTERVAL), **properties},
                raise_if_key_not_exists=False,  # properties of our own are not Delta's
                storage_options=self._store.delta_options,
            )
        except (DeltaError, OSError) as cause:
            table = self.open()
            if table is None or table.version() > 0:  # one that is further is somebody else's, and was not looked at
                raise BronzeNotWritten("the bronze table could not be made", where=self.name) from cause
            return table

    def refresh(self, table: DeltaTable) -> None:
        """One look for the next log entry and the last checkpoint where there is nothing new. Raises StoreBehind."""
        self._persist(lambda: self._advance(table))

    def ask(self, question: Callable[[], _T]) -> _T:
        """As often as patience allows."""
        return self._persist(question)

    def entry(self, version: int) -> str | None:
        """Read by its name."""
        return self._store.read(self.path(_log_entry(version)))

    def write(
        self, rows: Rows, *, stats: Sequence[str], loose: Mapping[str, tuple[str, str]], plain: Sequence[str]
    ) -> AddAction:
        """One object; an attempt that failed may leave one that no version names, which is harmless."""

        def put() -> AddAction:
            name = f"{uuid4()}.zstd.parquet"
            with self.filesystem.open_output_stream(self.path(name)) as sink:
                write_parquet(rows, sink, stats=stats, plain=plain)
                size = sink.tell()
            return added(name, size, rows, stats, loose)

        return self._persist(put)

    def commit(
        self,
        table: DeltaTable,
        actions: Sequence[Action],
        *,
        apps: Mapping[str, int],
        note: Mapping[str, object],
        fenced: bool = True,
    ) -> int:
        """Put the log entry of the next version; repeated under the same id while the store fails.

        Not `fenced`: behind whoever was faster, each time fenced, so that it lands once. Raises NotLanded,
        CommitUncertain where the entry could not be read either.
        """
        while True:
            try:
                return self._commit(table, actions, apps, note)
            except NotLanded as refused:
                if fenced or not refused.overtaken:
                    raise
            self.refresh(table)

    def _commit(
        self, table: DeltaTable, actions: Sequence[Action], apps: Mapping[str, int], note: Mapping[str, object]
    ) -> int:
        mark = str(uuid4())

        def put() -> int:
            try:
                return submit(
                    table, actions, apps=apps, note=note, fenced=True, mark=mark, read=self._peek, hooks=_HOOKS
                )
            except NotLanded as failure:
                if failure.overtaken:
                    raise _Overtaken from failure
                raise

        try:
            version = self._persist(put, also=(NotLanded,))
        except _Overtaken as refused:
            raise NotLanded(overtaken=True) from refused
        except StoreUnavailable as cause:
            hint = "nothing was confirmed, so nothing is lost: the next run reads what bronze holds and goes on"
            raise CommitUncertain("whether a commit landed could not be read", where=self.name, hint=hint) from cause
        self._persist(lambda: _stand_at(table, version))
        return version

    def set_properties(self, table: DeltaTable, properties: Mapping[str, str], note: Mapping[str, object]) -> int:
        """Put the log entry of the next version."""
        mark = str(uuid4())

        def put() -> int:
            return submit_properties(table, properties, note=note, mark=mark, read=self._peek)

        version = self._persist(put)
        self._persist(lambda: _stand_at(table, version))
        return version

    def settle(self, table: DeltaTable) -> None:
        """It does: what the store took is durable."""

    def checkpoint(self, table: DeltaTable) -> None:
        """One object."""
        self._persist(table.create_checkpoint)

    def leftovers(self, live: Collection[str], now: float, files_seconds: float | None) -> Leftovers | None:
        """By listing the folder and its log, which costs requests: only where data files are asked for too."""
        if files_seconds is None:
            return Leftovers((), (), 0)
        folder, before = self._address.path, now - files_seconds

        def found() -> Leftovers:
            files, size = unnamed(self.filesystem, folder, folder, live, before)
            return Leftovers(entries(self.filesystem, folder, now), files, size)

        return self._persist(found)

    def written_at(self, table: DeltaTable) -> float | None:
        """Nobody is asked: a client whose clock is wrong is refused by the store."""
        del table
        return None

    def remove(self, found: Leftovers) -> None:
        """One by one: what was removed already is no failure."""
        self._persist(lambda: remove(self.filesystem, found))

    def replaced(self, names: Sequence[str]) -> None:
        """By a note: an object has no time that could be set."""
        self._persist(lambda: note_replaced(self.filesystem, self._address.path, names))

    def _advance(self, table: DeltaTable) -> None:
        version = table.version()
        if self._peek(version + 1) is None and self._last_checkpoint() <= version:
            return
        _move(table, version + 1)

    def _peek(self, version: int) -> str | None:
        """A log entry by one attempt."""
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
    """Another writer took the version: no attempt helps."""


def _stand_at(table: DeltaTable, version: int) -> None:
    """Move to a version that was made here, and not to what came right behind: that was not looked at yet."""
    _move(table, version)
    if table.version() > version:
        table.load_as_version(version)


def _move(table: DeltaTable, version: int) -> None:
    """Read the log up to a version that is known to be there, or further."""
    if table.version() < version:
        table.update_incremental()
    if table.version() < version:
        raise Behind


def _log_entry(version: int) -> str:
    return f"_delta_log/{version:020d}.json"
