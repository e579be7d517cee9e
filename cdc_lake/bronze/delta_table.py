"""Bronze as a Delta table, in a local folder or in an object store.

The markers are application transactions of the commit that contains the rows; stream, epoch and head of the chain are
in the commit's metadata. After a failed call, the commit is searched in the log by its id to determine whether it
landed. Data files are never deleted here (one that no commit refers to is harmless).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from cdc_lake.bronze import data_files
from cdc_lake.bronze.contract import CONTRACT_VERSION, SCHEMA, StreamCheckpoint, confirm_app, order_app
from cdc_lake.errors import AnotherReceiver, BronzeAltered, BronzeDamaged, BronzeNotWritten, BronzeUnknown
from cdc_lake.tables.delta_log import DeltaCommitFailed, changed_by, note_in
from cdc_lake.tables.delta_storage import Action, DeltaStorage, LocalDeltaStorage
from cdc_lake.tables.files import Rows
from cdc_lake.tables.orphan_files import OrphanFiles

_APPEND_ONLY = "delta.appendOnly"
_SHORT_LOG = {
    "delta.logRetentionDuration": "interval 10 minutes",
    "delta.deletedFileRetentionDuration": "interval 10 minutes",
    "delta.enableExpiredLogCleanup": "false",  # maintenance does it, outside of the receiver's commits
}


class DeltaBronzeTable:
    """A Delta table (`bronze.data_files.BronzeTable`); a path is a local folder, synced before a call returns."""

    def __init__(self, location: DeltaStorage | Path) -> None:
        self._place: DeltaStorage = LocalDeltaStorage(location) if isinstance(location, Path) else location
        self._table: DeltaTable | None = None
        # by version: querying the log reads it each time
        self._cached_state: tuple[int, StreamCheckpoint | None] | None = None
        self._newest: tuple[int, _Newest] | None = None
        self._committed_version = -1

    @property
    def place(self) -> str:
        """The folder, or its address."""
        return self._place.name

    @property
    def version(self) -> int:
        """Delta's version number."""
        return int(self._open_table.version())

    def refresh(self) -> bool:
        """Read the new part of the log."""
        if self._table is None:
            table = self._place.open()
            if table is None:
                return False
            properties = self._place.ask(table.metadata).configuration
            if data_files.CONTRACT_PROPERTY not in properties:
                raise BronzeUnknown("the folder contains a Delta table that is not a bronze table", where=self.place)
            data_files.check_contract(properties[data_files.CONTRACT_PROPERTY], self.place)
            self._table, self._cached_state, self._newest = table, None, None
        else:
            self._place.refresh(self._table)
        return True

    def create(self) -> None:
        """Create the empty table."""
        properties = {"delta.appendOnly": "true", data_files.CONTRACT_PROPERTY: str(CONTRACT_VERSION)}
        self._table = self._place.create(SCHEMA, properties)

    def state(self) -> StreamCheckpoint | None:
        """From the metadata of the newest commit that has it, or else from the rows; with the markers."""
        if self._cached_state is None or self._cached_state[0] != self.version:
            self._cached_state = self.version, self._state()
        return self._cached_state[1]

    def prove(self) -> None:
        """From the log entries after our newest one: they may not have added or removed files."""
        newest = self._load_newest()
        changed = changed_by(newest.others)
        if changed is None:
            return
        after_own = "" if newest.version is None else f" after version {newest.version}, the receiver's latest one"
        remedy = None if newest.version is None else f"RESTORE the table to version {newest.version}, then run again"
        raise BronzeAltered(f"{changed}{after_own}", where=self.place, hint=remedy)

    def _state(self) -> StreamCheckpoint | None:
        note = self._load_newest().note or data_files.from_rows(self.files())
        if note is None:
            return None
        upto, confirm = self._marker(order_app(note.stream)), self._marker(confirm_app(note.stream))
        if upto is None or confirm is None:
            raise BronzeDamaged(f"bronze names the stream {note.stream} but has no markers of it", where=self.place)
        return StreamCheckpoint(note.stream, note.epoch, upto, confirm, note.head, note.empty)

    def last_chunk(self, app: str) -> int | None:
        """The version of the application transaction."""
        return self._marker(app)

    def files(self) -> data_files.Files:
        """The files and bounds in the log."""
        actions = pa.table(self._place.ask(lambda: self._open_table.get_add_actions(flatten=True)))
        paths = [self._place.path(unquote(path)) for path in actions["path"].to_pylist()]
        index = actions.column_names.index("path")
        return data_files.Files.from_actions(
            actions.set_column(index, "path", pa.array(paths, pa.string())), self._place.filesystem
        )

    def write(self, rows: Rows) -> data_files.WrittenFile:
        """Write one Parquet file, not yet in the log."""
        try:
            action = self._place.write(rows, stats=data_files.BOUNDED, loose=data_files.LOOSE, plain=data_files.PLAIN)
        except OSError as cause:
            raise BronzeNotWritten("a data file could not be written", where=self.place) from cause
        return data_files.WrittenFile(action, action.size)

    def commit(
        self, files: Sequence[data_files.WrittenFile], state: StreamCheckpoint, chunks: Mapping[str, int]
    ) -> int:
        """Write one log entry, as the version directly after the current one."""
        apps = {order_app(state.stream): state.upto, confirm_app(state.stream): state.confirm, **chunks}
        actions = [written.file for written in files]
        return self._make(lambda table: self._place.commit(table, actions, apps=apps, note=data_files.note_of(state)))

    # ── upkeep (`bronze.compaction.MaintainedTable`) ──

    def prepare(self, state: StreamCheckpoint) -> None:
        """Set the retention of the log, so that checkpoints do not list files replaced long ago."""
        properties = self._place.ask(self._open_table.metadata).configuration
        if missing := {name: value for name, value in _SHORT_LOG.items() if properties.get(name) != value}:
            self._make(lambda table: self._place.set_properties(table, missing, data_files.note_of(state)))

    def exchange(
        self, removed: Sequence[str], files: Sequence[data_files.WrittenFile], state: StreamCheckpoint, *, gone: bool
    ) -> int:
        """Write one log entry, which streaming readers skip."""
        names = [path.rpartition("/")[2] for path in removed]
        if gone and self._place.ask(self._open_table.metadata).configuration.get(_APPEND_ONLY) == "true":
            self._make(
                lambda table: self._place.set_properties(table, {_APPEND_ONLY: "false"}, data_files.note_of(state))
            )
        now = time.time_ns() // 1_000_000
        sizes = dict(zip(self.files().paths, self.files().actions["size_bytes"].to_pylist(), strict=True))
        added: list[AddAction] = [written.file for written in files]
        actions: list[Action] = [
            AddAction(file.path, file.size, {}, file.modification_time, data_change=False, stats=file.stats)
            for file in added
        ]
        for path, name in zip(removed, names, strict=True):
            actions.append(RemoveAction(name, gone, now, size=sizes[path], partition_values={}))
        self._place.mark_replaced(names)
        return self._make(lambda table: self._place.commit(table, actions, apps={}, note=data_files.note_of(state)))

    def last_trimmed(self) -> Mapping[int, tuple[int, bytes]]:
        """From the table's properties."""
        return data_files.trimmed_of(
            self._place.ask(self._open_table.metadata).configuration.get(data_files.TRIMMED_PROPERTY)
        )

    def record_trimmed(self, trimmed: Mapping[int, tuple[int, bytes]], state: StreamCheckpoint) -> None:
        """As a property of the table."""
        properties = {data_files.TRIMMED_PROPERTY: data_files.trimmed_text(trimmed)}
        self._make(lambda table: self._place.set_properties(table, properties, data_files.note_of(state)))

    def leftovers(self, now: float, files_seconds: float | None) -> OrphanFiles | None:
        """Log entries that a checkpoint replaces, and data files that no version refers to."""
        live = [path.rpartition("/")[2] for path in self.files().paths]
        return self._place.leftovers(live, now, files_seconds)

    def tidy(self, now: float, files_seconds: float | None) -> OrphanFiles | None:
        """Remove them after a checkpoint of the current version."""
        self._place.checkpoint(self._open_table)
        leftovers = self.leftovers(now, files_seconds)
        if leftovers is not None:
            self._place.remove(leftovers)
        return leftovers

    def written_at(self) -> float | None:
        """The time of the file of its log entry."""
        return self._place.written_at(self._open_table)

    # ── the log ──

    def _make(self, commit: Callable[[DeltaTable], int]) -> int:
        """Commit on top of the current version, and move to the new one."""
        base = self.version
        if base != self._committed_version:
            self.prove()
        table, self._table = self._open_table, None
        try:
            version = commit(table)
        except DeltaCommitFailed as failure:
            # without an entry it has advanced too, if maintenance removed those after `base` long ago
            if failure.overtaken or ((newest := self._place.open()) is not None and newest.version() > base):
                raise AnotherReceiver("another writer committed to bronze", where=self.place) from failure
            raise BronzeNotWritten("the commit failed and did not land", where=self.place) from failure
        self._table, self._committed_version = table, version
        return version

    @property
    def _open_table(self) -> DeltaTable:
        assert self._table is not None, "look first"
        return self._table

    def _marker(self, app: str) -> int | None:
        version: int | None = self._place.ask(lambda: self._open_table.transaction_version(app))
        return version

    def _load_newest(self) -> _Newest:
        """Read from the newest log entry back to one of ours."""
        if self._newest is not None and self._newest[0] == self.version:
            return self._newest[1]
        others: list[tuple[int, str]] = []
        newest = _Newest(None, None, others)
        for candidate in range(self.version, -1, -1):
            if (entry := self._place.entry(candidate)) is not None:
                note = note_in(entry)
                if note is not None and "stream" in note:
                    newest = _Newest(candidate, data_files.from_note(note), others)
                    break
                others.append((candidate, entry))
        self._newest = self.version, newest
        return newest


@dataclass(frozen=True, slots=True)
class _Newest:
    """Our newest version, its metadata, and the log entries of others after it, newest first."""

    version: int | None
    note: data_files.CommittedState | None
    others: Sequence[tuple[int, str]]
