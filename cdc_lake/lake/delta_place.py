"""Where a Delta table is: the port between a table and the folder or bucket that its files and its log are in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from cdc_lake.errors import BronzeNotWritten
from cdc_lake.lake.delta_log import commit, create_table, note_at, open_table, refresh, write_file


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

    def note(self, version: int) -> dict[str, Any] | None:
        """Our own entry in a version's commit; None where it has none, or its log entry was cleaned up."""
        ...

    def write(
        self, rows: pa.Table, *, stats: Sequence[str], loose: Mapping[str, tuple[str, str]], plain: Sequence[str]
    ) -> AddAction:
        """Write one data file that no version names yet. Raises OSError or BronzeNotWritten."""
        ...

    def commit(
        self, table: DeltaTable, actions: Sequence[AddAction], *, apps: Mapping[str, int], note: Mapping[str, object]
    ) -> int:
        """Commit right behind the version that `table` stands at and move it there. Raises NotLanded."""
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
        except DeltaError as cause:
            raise BronzeNotWritten("the bronze table could not be made", where=self.name) from cause

    def refresh(self, table: DeltaTable) -> None:
        """Next to nothing where it stands there already."""
        refresh(table, self.folder)

    def note(self, version: int) -> dict[str, Any] | None:
        """From the log entry."""
        return note_at(self.folder, version)

    def write(
        self, rows: pa.Table, *, stats: Sequence[str], loose: Mapping[str, tuple[str, str]], plain: Sequence[str]
    ) -> AddAction:
        """One file in the folder."""
        return write_file(self.folder, rows, stats=stats, loose=loose, plain=plain, durable=self.durable)

    def commit(
        self, table: DeltaTable, actions: Sequence[AddAction], *, apps: Mapping[str, int], note: Mapping[str, object]
    ) -> int:
        """One log entry."""
        return commit(table, self.folder, actions, apps=apps, note=note, fenced=True, durable=self.durable)
