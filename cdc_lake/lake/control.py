"""Control tables: what the two loops tell each other and the reader, as small Delta tables.

They follow from bronze and silver and are never the place where a position is decided. Written without Spark (an append
takes 10 to 30 ms on a disk), one table a kind, in a folder of this machine or of an object store. Several processes
may append at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from cdc_lake.config.project import Project
from cdc_lake.errors import BronzeNotWritten, ControlNotWritten, LakeError
from cdc_lake.lake.control_columns import ControlName, schema_of
from cdc_lake.lake.control_rows import NAMES, ConfigurationRow, ControlRow, CutRow, PauseRow, SnapshotRow, StreamRow
from cdc_lake.lake.control_upgrade import CONTROL_PROPERTY, CONTROL_VERSION, check_version, version_of
from cdc_lake.lake.cut_index import PLACE, newest_files, places_of
from cdc_lake.lake.delta_log import NotLanded
from cdc_lake.lake.delta_place import DeltaPlace, LocalPlace
from cdc_lake.lake.delta_store import StorePlace
from cdc_lake.lake.in_turn import BESIDE, RECORDED, behind, recorded_of
from cdc_lake.lake.object_store import object_store

_JSON = ("changed", "counts", "objections", "settings", "tables")
_JSON_BOUNDS = ("[", "|")  # of lists and objects
_COMPACTED = 8 << 20  # bytes of a file that small ones were put together into

Places: TypeAlias = Callable[[ControlName], DeltaPlace]


class ControlTables:
    """The control tables of a pipeline. Reads see the newest version; what was appended stays.

    `at`: the place of each, or the folder on this machine that they are in, synced before an append returns.
    """

    def __init__(self, at: Path | Places, durability: Literal["fsync", "os"] = "fsync") -> None:
        self._place_of: Places = (
            at if callable(at) else lambda name: LocalPlace(at / name, durable=durability == "fsync")
        )
        self._open: dict[ControlName, DeltaTable] = {}

    def place(self, name: ControlName) -> DeltaPlace:
        """Where a table is."""
        return self._place_of(name)

    def record(self, row: ControlRow) -> None:
        """Append one row to the table of its kind."""
        self.append(NAMES[type(row)], [asdict(row)])

    def record_in_turn(self, row: CutRow | PauseRow) -> datetime:
        """The same; when it was recorded, which is later than it says where the clock went back."""
        name = NAMES[type(row)]
        written = self._append(name, _arrow(name, [asdict(row)]), None)
        assert written is not None, "there is one, and no version to pass over"
        at = written[RECORDED][0].as_py()
        assert isinstance(at, datetime)
        return at

    def append(
        self, name: ControlName, rows: Sequence[Mapping[str, Any]] | pa.Table, app: tuple[str, int] | None = None
    ) -> bool:
        """Append rows in one commit; False where there was nothing to do.

        `app`: an application id and its version; where the table has that version or a later one, nothing is written,
        so a step that is repeated leaves its rows once. Raises ControlNotWritten.
        """
        return self._append(name, _arrow(name, rows), app) is not None

    def _append(self, name: ControlName, data: pa.Table, app: tuple[str, int] | None) -> pa.Table | None:
        """The rows as they were recorded; None where there was nothing to do."""
        if data.num_rows == 0:
            return None
        table = self._table(name) or self._create(name)
        place = self._place_of(name)
        if app is not None:
            last = place.ask(lambda: table.transaction_version(app[0]))
            if last is not None and app[1] <= last:
                return None
        apps = {} if app is None else {app[0]: app[1]}
        if name in BESIDE:
            data = behind(data, self._last_recorded((name, *BESIDE[name])))
        self._open.pop(name, None)
        try:
            place.commit(table, [self._write(name, data)], apps=apps, note={}, fenced=False)
        except (NotLanded, OSError) as cause:
            raise ControlNotWritten(f"the commit to `{name}` failed and did not land", where=place.name) from cause
        self._open[name] = table
        return data

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
        place = self._place_of(name)
        paths = [place.path(unquote(path)) for path in files]

        def rows() -> pa.Table:
            found = ds.dataset(paths, schema=schema_of(name), format="parquet", filesystem=place.filesystem)
            return found.to_table(schema.names, filter=wanted).cast(schema)

        try:
            return place.ask(rows)
        except (OSError, pa.ArrowException) as cause:
            raise self._unread(name) from cause

    def files(self, name: ControlName) -> pa.Table:
        """The data files of a table with their bounds, as Delta's log has them (`get_add_actions`)."""
        table = self._table(name)
        if table is None:
            return pa.table({"path": pa.array([], pa.string())})
        try:
            return pa.table(self._place_of(name).ask(lambda: table.get_add_actions(flatten=True)))
        except DeltaError as cause:
            raise self._unread(name) from cause

    def _unread(self, name: ControlName) -> LakeError:
        return LakeError(f"the control table `{name}` could not be read", where=self._place_of(name).name)

    def delete(self, name: ControlName, wanted: pc.Expression) -> int:
        """Delete the rows that are `wanted`; how many went. Raises ControlNotWritten."""
        others = pc.invert(pc.coalesce(wanted, pc.scalar(False)))
        while True:
            there, table = self.files(name)["path"].to_pylist(), self._open.get(name)
            if table is None or not self.read(name, wanted, there).num_rows:
                return 0
            files = [path for path in there if self.read(name, wanted, [path]).num_rows]
            rows = self.read(name, files=files)
            kept = rows.filter(others)
            if self._exchange(name, table, files, kept):
                return int(rows.num_rows - kept.num_rows)

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

    def compact(self, name: ControlName, more_than: int = 100) -> bool:
        """Put the small files of a table together where there are more; others may append meanwhile. False: no need.

        Every file is an entry of each checkpoint of the log, so that commits get slower with their number.
        """
        while True:
            there, table = self.files(name), self._open.get(name)
            if table is None:
                return False
            files = there.filter(pc.field("size_bytes") < _COMPACTED)["path"].to_pylist()
            if len(files) <= more_than:
                return False
            if self._exchange(name, table, files, self.read(name, files=files)):
                return True

    def _exchange(self, name: ControlName, table: DeltaTable, files: Sequence[str], rows: pa.Table) -> bool:
        """Put `rows` in place of files, right behind the version `table` stands at; False where another writer did.

        The library's own deletion and compaction leave rows twice where a store took them and its reply was lost.
        """
        place, now = self._place_of(name), time.time_ns() // 1_000_000
        self._open.pop(name, None)
        try:
            written = [self._write(name, rows)] if rows.num_rows else []
            gone = [RemoveAction(path, True, now, size=0, partition_values={}) for path in files]
            place.commit(table, [*written, *gone], apps={}, note={})
        except (NotLanded, OSError) as cause:
            if isinstance(cause, NotLanded) and cause.overtaken:
                return False
            raise ControlNotWritten(f"a change of `{name}` failed and did not land", where=place.name) from cause
        self._open[name] = table
        return True

    def _last_recorded(self, names: Sequence[ControlName]) -> pa.Scalar:
        """When the newest row of some tables was recorded; null where there is none."""
        times = []
        for name in names:
            told, left = recorded_of(self.files(name))
            times += [*told.chunks, *self.read(name, files=left, columns=[RECORDED])[RECORDED].chunks]
        return pc.max(pa.chunked_array(times, pa.timestamp("us", "UTC")))

    def _write(self, name: ControlName, rows: pa.Table) -> AddAction:
        # When rows were recorded is read from the log, without opening a file, and so are the places of cuts, which are
        # many (`lake.cut_index`).
        names = rows.column_names if name in BESIDE else []
        loose = {column: _JSON_BOUNDS for column in names if column in _JSON}
        return self._place_of(name).write(rows, stats=[n for n in names if n not in loose], loose=loose, plain=())

    def cuts(self, places: pa.Table) -> list[CutRow]:
        """The cuts at some of these places, in their order."""
        rows = self.read("cuts", files=sorted(set(places["path"].to_pylist()))).to_pylist()
        found = {tuple(row[column] for column in PLACE): CutRow(**row) for row in rows}
        return [found[tuple(place[column] for column in PLACE)] for place in places.to_pylist()]

    def _table(self, name: ControlName) -> DeltaTable | None:
        table, place = self._open.get(name), self._place_of(name)
        if table is not None:
            place.refresh(table)
            return table
        table = place.open()
        if table is not None:
            check_version(place.ask(lambda: version_of(table)), name, place.name)
            self._open[name] = table
        return table

    def _create(self, name: ControlName) -> DeltaTable:
        place = self._place_of(name)
        try:
            return place.create(schema_of(name), {CONTROL_PROPERTY: str(CONTROL_VERSION)})
        except BronzeNotWritten as cause:
            table = place.open()  # another process made it at the same moment
            if table is None:
                raise ControlNotWritten(f"the control table `{name}` could not be made", where=place.name) from cause
            return table


def control_tables(project: Project, durability: Literal["fsync", "os"] = "fsync") -> ControlTables:
    """The control tables of a pipeline, where it says they are. `durability`: of those on this machine."""
    address = project.control_address
    if address is None:
        return ControlTables(project.control, durability)
    store = object_store(project)
    return ControlTables(lambda name: StorePlace(store, replace(address, key=f"{address.key}/{name}")))


def _arrow(name: ControlName, rows: Sequence[Mapping[str, Any]] | pa.Table) -> pa.Table:
    schema = schema_of(name)
    if isinstance(rows, pa.Table):
        return rows.select(schema.names).cast(schema)
    for row in rows:
        if row.keys() != set(schema.names):
            different = sorted(row.keys() ^ set(schema.names))
            raise LakeError(f"a row for `{name}` has other columns than the table: {', '.join(different)}")
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
