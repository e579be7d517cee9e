"""Where a Delta table is: the port between a table and the folder or bucket that its files and its log are in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from cdc_lake.errors import BronzeNotWritten
from cdc_lake.lake.delta_leftovers import Leftovers, leftovers, remove, touch
from cdc_lake.lake.delta_log import (
    commit,
    create_checkpoint,
    create_table,
    entry_at,
    log_entry,
    open_table,
    refresh,
    set_properties,
    sync_version,
    write_file,
)
from cdc_lake.lake.parquet_file import Rows

_T = TypeVar("_T")

Action: TypeAlias = AddAction | RemoveAction


class DeltaPlace(Protocol):
    """One Delta table's place. What a call wrote stays there, whatever happens afterwards."""

    @property
    def name(self) -> str:
        """As errors and views name it."""
        ...

    @property
    def filesystem(self) -> pafs.FileSystem:
        """What reads its files."""
        ...

    def path(self, relative: str) -> str:
        """A file of the table as the file system has it."""
        ...

    def open(self) -> DeltaTable | None:
        """The newest version, None where there is no table."""
        ...

    def create(self, schema: pa.Schema, properties: Mapping[str, str]) -> DeltaTable:
        """Make the empty table, at version 0. Raises BronzeNotWritten."""
        ...

    def refresh(self, table: DeltaTable) -> None:
        """Move an open table to the newest version."""
        ...

    def ask(self, question: Callable[[], _T]) -> _T:
        """Ask an open table something that it may have to read; asked again where the place fails for a while."""
        ...

    def entry(self, version: int) -> str | None:
        """The log entry of a version; None where it was cleaned up."""
        ...

    def write(
        self, rows: Rows, *, stats: Sequence[str], loose: Mapping[str, tuple[str, str]], plain: Sequence[str]
    ) -> AddAction:
        """Write one data file that no version names yet. Raises OSError or BronzeNotWritten."""
        ...

    def commit(
        self,
        table: DeltaTable,
        actions: Sequence[Action],
        *,
        apps: Mapping[str, int],
        note: Mapping[str, object],
        fenced: bool = True,
    ) -> int:
        """Commit and move `table` to the version made: right behind the one it stood at where `fenced`, otherwise
        behind what others committed meanwhile too. Raises NotLanded.
        """
        ...

    def settle(self, table: DeltaTable) -> None:
        """Make what a call of the library committed last, and `table` stands at, stay."""
        ...

    def set_properties(self, table: DeltaTable, properties: Mapping[str, str], note: Mapping[str, object]) -> int:
        """Set table properties right behind the version that `table` stands at. Raises NotLanded."""
        ...

    def checkpoint(self, table: DeltaTable) -> None:
        """Write what a reader needs of the log up to the version that `table` stands at into one file."""
        ...

    def leftovers(self, live: Collection[str], now: float, files_seconds: float | None) -> Leftovers | None:
        """What nobody needs any more (`lake.delta_leftovers`), None where this place cannot say."""
        ...

    def written_at(self, table: DeltaTable) -> float | None:
        """When the version at hand was written, by the clock of its files, in seconds; None: nobody knows."""
        ...

    def remove(self, found: Leftovers) -> None:
        """Remove it."""
        ...

    def replaced(self, names: Sequence[str]) -> None:
        """Remember that data files are being replaced now."""
        ...


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """A folder of this machine (`DeltaPlace`). `durable`: on disk before a call returns."""

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
        """As the log has it."""
        return open_table(self.folder)

    def create(self, schema: pa.Schema, properties: Mapping[str, str]) -> DeltaTable:
        """With its folder."""
        try:
            return create_table(self.folder, schema, properties, durable=self.durable)
        except (DeltaError, OSError) as cause:
            raise BronzeNotWritten("the bronze table could not be made", where=self.name) from cause

    def refresh(self, table: DeltaTable) -> None:
        """Next to nothing where it stands there already."""
        refresh(table, self.folder)

    def ask(self, question: Callable[[], _T]) -> _T:
        """Once: a disk that fails goes on failing."""
        return question()

    def entry(self, version: int) -> str | None:
        """A file."""
        return entry_at(self.folder, version)

    def write(
        self, rows: Rows, *, stats: Sequence[str], loose: Mapping[str, tuple[str, str]], plain: Sequence[str]
    ) -> AddAction:
        """One file in the folder."""
        return write_file(self.folder, rows, stats=stats, loose=loose, plain=plain, durable=self.durable)

    def commit(
        self,
        table: DeltaTable,
        actions: Sequence[Action],
        *,
        apps: Mapping[str, int],
        note: Mapping[str, object],
        fenced: bool = True,
    ) -> int:
        """One log entry."""
        return commit(table, self.folder, actions, apps=apps, note=note, fenced=fenced, durable=self.durable)

    def settle(self, table: DeltaTable) -> None:
        """Log entry, data files and their folders."""
        if self.durable:
            sync_version(self.folder, table.version())

    def set_properties(self, table: DeltaTable, properties: Mapping[str, str], note: Mapping[str, object]) -> int:
        """One log entry."""
        return set_properties(table, self.folder, properties, note=note, durable=self.durable)

    def checkpoint(self, table: DeltaTable) -> None:
        """On disk before anything that it replaces goes."""
        create_checkpoint(table, self.folder, durable=self.durable)

    def leftovers(self, live: Collection[str], now: float, files_seconds: float | None) -> Leftovers | None:
        """By the times of files."""
        return leftovers(self.folder, live, now, files_seconds)

    def written_at(self, table: DeltaTable) -> float | None:
        """By the time of its log entry."""
        return log_entry(self.folder, table.version()).stat().st_mtime

    def remove(self, found: Leftovers) -> None:
        """From the folder."""
        remove(self.folder, found, durable=self.durable)

    def replaced(self, names: Sequence[str]) -> None:
        """By touching them."""
        touch([self.folder / name for name in names])
