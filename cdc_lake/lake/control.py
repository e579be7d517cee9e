"""Control tables: what the two loops tell each other and the reader, as small Delta tables on paths.

They follow from bronze and silver and are never the place where a position is decided. Written without Spark (an append
takes 10 to 30 ms), one table a kind under one folder. Several processes may append at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from cdc_lake.errors import ControlNotWritten, LakeError
from cdc_lake.lake.control_rows import (
    NAMES,
    ConfigurationRow,
    ControlName,
    ControlRow,
    CutRow,
    SnapshotRow,
    StreamRow,
    schema_of,
)
from cdc_lake.lake.cut_index import PLACE, newest_files, places_of
from cdc_lake.lake.delta_log import NotLanded, commit, create_table, open_table, refresh, sync_version, write_file

_COMPACTED = 8 << 20  # bytes of a file that small ones were put together into


class ControlTables:
    """The control tables under one folder. Reads see the newest version; appends are synced like bronze."""

    def __init__(self, folder: Path, durability: Literal["fsync", "os"] = "fsync") -> None:
        self._folder = Path(folder)
        self._durable = durability == "fsync"
        self._open: dict[ControlName, DeltaTable] = {}

    def path(self, name: ControlName) -> Path:
        """Folder of one table, for readers of other kinds (Spark)."""
        return self._folder / name

    def record(self, row: ControlRow) -> None:
        """Append one row to the table of its kind."""
        self.append(NAMES[type(row)], [dataclasses.asdict(row)])

    def append(
        self, name: ControlName, rows: Sequence[Mapping[str, Any]] | pa.Table, app: tuple[str, int] | None = None
    ) -> bool:
        """Append rows in one commit; False where there was nothing to do.

        `app`: an application id and its version; where the table has that version or a later one, nothing is written,
        so a step that is repeated leaves its rows once. Raises ControlNotWritten.
        """
        data = _arrow(name, rows)
        if data.num_rows == 0:
            return False
        table = self._table(name) or self._create(name)
        if app is not None and (last := table.transaction_version(app[0])) is not None and app[1] <= last:
            return False
        apps = {} if app is None else {app[0]: app[1]}
        folder = self.path(name)
        self._open.pop(name, None)
        try:
            # The cuts are many: their places are read from the log, without opening a file for each (`lake.cut_index`).
            stats = [column for column in data.column_names if column != "tables"] if name == "cuts" else ()
            action = write_file(folder, data, stats=stats, loose={"tables": ("{", "|")}, durable=self._durable)
            commit(table, folder, [action], apps=apps, note={}, fenced=False, durable=self._durable)
        except (NotLanded, OSError) as cause:
            raise ControlNotWritten(f"the commit to `{name}` failed and did not land", where=str(folder)) from cause
        self._open[name] = table
        return True

    def read(
        self,
        name: ControlName,
        wanted: pc.Expression | None = None,
        files: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Rows in no promised order; an empty table with the schema where the table does not exist yet.

        `files`: only those of these data files, as `files` names them; `columns`: only these.
        """
        schema = schema_of(name)
        if columns is not None:
            schema = pa.schema([schema.field(column) for column in columns])
        if files is None:
            files = self.files(name)["path"].to_pylist()
        if not files:
            return schema.empty_table()
        # Not by `to_pyarrow_dataset`: its file system is written in Python, and a read-ahead thread that enters it
        # while the interpreter ends aborts the process (deltalake 1.6.6, one run in six).
        paths = [str(self.path(name) / unquote(path)) for path in files]
        try:
            found = ds.dataset(paths, schema=schema_of(name), format="parquet").to_table(schema.names, filter=wanted)
            return found.cast(schema)
        except (OSError, pa.ArrowException) as cause:
            raise self._unread(name) from cause

    def files(self, name: ControlName) -> pa.Table:
        """The data files of a table with their bounds, as Delta's log has them (`get_add_actions`)."""
        table = self._table(name)
        if table is None:
            return pa.table({"path": pa.array([], pa.string())})
        try:
            return pa.table(table.get_add_actions(flatten=True))
        except DeltaError as cause:
            raise self._unread(name) from cause

    def _unread(self, name: ControlName) -> LakeError:
        return LakeError(f"the control table `{name}` could not be read", where=str(self.path(name)))

    def delete(self, name: ControlName, predicate: str) -> int:
        """Delete rows by a SQL predicate over the table's columns; how many went. Raises ControlNotWritten."""
        table = self._table(name)
        if table is None:
            return 0
        before = table.version()
        self._open.pop(name, None)
        try:
            metrics = table.delete(predicate)
        except DeltaError as cause:
            raise ControlNotWritten(f"deleting from `{name}` failed", where=str(self.path(name))) from cause
        if self._durable and table.version() > before:
            sync_version(self.path(name), table.version())
        return int(metrics["num_deleted_rows"] or 0)

    def streams(self) -> list[StreamRow]:
        """All streams, by epoch."""
        return [StreamRow(**row) for row in self.read("streams").sort_by("epoch").to_pylist()]

    def snapshots(self) -> list[SnapshotRow]:
        """The newest row of each snapshot, oldest snapshot first."""
        rows = self.read("snapshots").sort_by("recorded_at").to_pylist()
        return [SnapshotRow(**row) for row in {row["snapshot"]: row for row in rows}.values()]

    def configurations(self) -> list[ConfigurationRow]:
        """All configurations, by number; the newest transactions were landed under the last one."""
        return [ConfigurationRow(**row) for row in self.read("configurations").sort_by("number").to_pylist()]

    def last_cut(self, stream: str | None = None) -> CutRow | None:
        """The cut at the highest epoch and position, of one stream or of all."""
        places = self._places(newest_files(self.files("cuts"), stream))
        if stream is not None:
            places = places.filter(pc.field("stream") == stream)
        return None if places.num_rows == 0 else self.cuts(places.slice(places.num_rows - 1))[0]

    def cut_places(self) -> pa.Table:
        """Where and when every cut is, in order, and in which file (`lake.cut_index`)."""
        return self._places(self.files("cuts"))

    def _places(self, files: pa.Table) -> pa.Table:
        return places_of(files, lambda path: self.read("cuts", files=[path], columns=PLACE))

    def compact(self, name: ControlName, more_than: int) -> bool:
        """Put the files of a table together where there are more; others may append meanwhile. False: no need.

        Every file is an entry of each checkpoint of the log, so that commits get slower with their number.
        """
        table = self._table(name)
        if table is None or len(table.file_uris()) <= more_than:
            return False
        self._open.pop(name, None)
        try:
            table.optimize.compact(target_size=_COMPACTED)
        except DeltaError as cause:
            raise ControlNotWritten(
                f"the files of `{name}` were not put together", where=str(self.path(name))
            ) from cause
        if self._durable:
            sync_version(self.path(name), table.version())
        return True

    def cuts(self, places: pa.Table) -> list[CutRow]:
        """The cuts at some of these places, in their order."""
        rows = self.read("cuts", files=sorted(set(places["path"].to_pylist()))).to_pylist()
        found = {tuple(row[column] for column in PLACE): CutRow(**row) for row in rows}
        return [found[tuple(place[column] for column in PLACE)] for place in places.to_pylist()]

    def _table(self, name: ControlName) -> DeltaTable | None:
        table = self._open.get(name)
        if table is not None:
            refresh(table, self.path(name))
            return table
        table = open_table(self.path(name))
        if table is not None:
            self._open[name] = table
        return table

    def _create(self, name: ControlName) -> DeltaTable:
        folder = self.path(name)
        try:
            return create_table(folder, schema_of(name), {}, durable=self._durable)
        except DeltaError as cause:
            table = open_table(folder)  # another process made it at the same moment
            if table is None:
                raise ControlNotWritten(f"the control table `{name}` could not be made", where=str(folder)) from cause
            return table


def _arrow(name: ControlName, rows: Sequence[Mapping[str, Any]] | pa.Table) -> pa.Table:
    schema = schema_of(name)
    if isinstance(rows, pa.Table):
        return rows.select(schema.names).cast(schema)
    for row in rows:
        if row.keys() != set(schema.names):
            different = sorted(row.keys() ^ set(schema.names))
            raise LakeError(f"a row for `{name}` has other columns than the table: {', '.join(different)}")
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
