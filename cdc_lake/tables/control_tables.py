"""Control tables: the state that receive, apply and readers share, as small Delta tables.

They are derived from bronze and silver, and no position is decided by them. They are written without Spark (an append
takes 10 to 30 ms on a disk), one table for each kind, in a local folder or an object store. Several processes may
append at a time.

Of several rows the newest counts. So that a clock that was set back does not make an old row the newest, a row with an
earlier time than the last one is recorded directly after it.

Each span adds a cut, and each cut is a file: tens of thousands a day. The bounds of a file with one row are the values
of the row, so the index of cuts is read without opening any file.

Leases (one process applies, one resyncs tables) prevent two runs from preparing the same span, and give the rows of
`quarantine`, which no marker fences, a single writer. A file lock ends with its process. A lease in an object store may
pass to another machine while its holder is suspended: each commit carries the number of the holder as an application
transaction, and the one of an earlier holder is refused. Silver itself is protected by the markers in its tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from cdc_lake.config.project import Project
from cdc_lake.errors import AnotherApply, AnotherCopy, BronzeNotWritten, ControlNotWritten, LakeError
from cdc_lake.tables.control_schema import (
    CONTROL_PROPERTY,
    CONTROL_VERSION,
    FORMER_TABLES,
    NAMES,
    RENAMED,
    ConfigurationRow,
    ControlName,
    ControlRow,
    CutRow,
    PauseRow,
    SnapshotRow,
    StreamRow,
    check_version,
    former_columns,
    schema_of,
    version_of,
)
from cdc_lake.tables.delta_log import DeltaCommitFailed
from cdc_lake.tables.delta_storage import DeltaStorage, LocalDeltaStorage, ObjectStoreDeltaStorage
from cdc_lake.tables.object_store import LEASE, object_store

RECORDED: Final = "recorded_at"

BESIDE: Final[Mapping[ControlName, tuple[ControlName, ...]]] = {
    "configurations": ("streams",),
    "cuts": (),
    "decoded": (),
    "memberships": (),
    "pauses": (),
    "pins": (),
    "snapshots": (),
    "streams": ("configurations",),
    "timelines": (),
    "withheld": (),
}
"""The tables whose rows supersede each other, with the tables that they are compared with."""


def recorded_of(files: pa.Table) -> tuple[pa.ChunkedArray, list[str]]:
    """The times of the newest rows of data files, from their bounds in the log, and the files that must be read."""
    column = f"max.{RECORDED}"
    if column not in files.column_names:
        return pa.chunked_array([], pa.timestamp("us", "UTC")), files["path"].to_pylist()
    has_bounds = pc.and_(is_own_file(files), pc.is_valid(files[column]))
    times = files.filter(has_bounds)[column].cast(pa.timestamp("us", "UTC"))
    return times, files.filter(pc.invert(has_bounds))["path"].to_pylist()


def is_own_file(files: pa.Table) -> pa.ChunkedArray:
    """Which data files are our own: deltalake may truncate the bounds of files it writes."""
    return pc.invert(pc.starts_with(files["path"], "part-"))


def make_monotonic(rows: pa.Table, last: pa.Scalar) -> pa.Table:
    """Rows none of which is recorded before the last existing one (null: there is none)."""
    if not last.is_valid:
        return rows
    index = rows.schema.get_field_index(RECORDED)
    field = rows.schema.field(index)
    latest = last.cast(pa.int64()).as_py()  # in microseconds
    times = rows[RECORDED].cast(pa.int64())
    times = pc.if_else(pc.less(times, latest), latest + 1, times)
    return rows.set_column(index, field, times.cast(field.type))


PLACE = ("epoch", "stream", "position", "commit_ts", "recorded_at")
"""The columns of a cut that contain its position and time."""

_ORDER = [("epoch", "ascending"), ("position", "ascending"), ("recorded_at", "ascending")]


def places_of(files: pa.Table, read: Callable[[str], pa.Table]) -> pa.Table:
    """`PLACE` and file `path` of every cut, in order. `files`: data files with bounds; `read`: reads columns of one."""
    is_exact = _has_exact_bounds(files)
    parts = [_bounds(files.filter(is_exact))]
    for path in files.filter(pc.invert(is_exact))["path"].to_pylist():
        rows = read(path)
        parts.append(rows.append_column("path", pa.array([path] * rows.num_rows, pa.string())))
    return pa.concat_tables(part.cast(_SCHEMA) for part in parts).sort_by(_ORDER)


def newest_files(files: pa.Table, stream: str | None) -> pa.Table:
    """The files that may contain the newest cut, of one stream or of all."""
    is_exact = _has_exact_bounds(files)
    exact_files = files.filter(is_exact)
    if stream is not None and exact_files.num_rows:
        exact_files = exact_files.filter(pc.field("min.stream") == stream)
    if exact_files.num_rows == 0:
        return files
    best = exact_files.sort_by([("min.epoch", "descending"), ("min.position", "descending")]).slice(0, 1).to_pylist()[0]
    epoch, position = best["min.epoch"], best["min.position"]
    below = (pc.field("max.epoch") < epoch) | ((pc.field("max.epoch") == epoch) & (pc.field("max.position") < position))
    return files.filter(~pc.coalesce(below, pc.scalar(False)))


_TIME = pa.timestamp("us", tz="UTC")
_SCHEMA = pa.schema(
    [
        ("epoch", pa.int32()),
        ("stream", pa.string()),
        ("position", pa.int64()),
        ("commit_ts", _TIME),
        ("recorded_at", _TIME),
        ("path", pa.string()),
    ]
)


def _has_exact_bounds(files: pa.Table) -> pa.Array:
    """For which files the bounds are the row itself: our own files with one row."""
    if files.num_rows == 0 or "min.recorded_at" not in files.column_names:
        return pa.array([False] * files.num_rows, pa.bool_())
    single_row = pc.and_(pc.equal(files["num_records"], 1), pc.is_valid(files["min.recorded_at"]))
    return pc.fill_null(pc.and_(is_own_file(files), single_row), False).combine_chunks()


def _bounds(files: pa.Table) -> pa.Table:
    if files.num_rows == 0:
        return _SCHEMA.empty_table()
    return pa.table({**{name: files[f"min.{name}"] for name in PLACE}, "path": files["path"]})


_JSON = ("changed", "counts", "objections", "settings", "tables")
_JSON_BOUNDS = ("[", "|")  # of lists and objects
_COMPACTED = 8 << 20  # bytes of a compacted file

Places: TypeAlias = Callable[[str], DeltaStorage]


class ControlTables:
    """The control tables of a pipeline. Reads see the newest version; an append is durable.

    `location`: the storage of each table, or the local folder that contains them, synced before an append returns.
    """

    def __init__(self, location: Path | Places, durability: Literal["fsync", "os"] = "fsync") -> None:
        self._place_of: Places = (
            location
            if callable(location)
            else lambda name: LocalDeltaStorage(location / name, durable=durability == "fsync")
        )
        self._open: dict[ControlName, DeltaTable] = {}
        self._places_by_name: dict[ControlName, DeltaStorage] = {}

    def place(self, name: ControlName) -> DeltaStorage:
        """The storage of a table, under its former name in a lake that has it, or that an older version created."""
        if name not in self._places_by_name:
            place, former = self._place_of(name), FORMER_TABLES.get(name)
            if former is not None:
                older = self._place_of(former)
                if older.open() is not None or self.version("streams") < RENAMED:
                    place = older
            self._places_by_name[name] = place
        return self._places_by_name[name]

    def version(self, name: ControlName) -> int:
        """The schema version of a table; the current one if the table does not exist yet."""
        table = self._open.get(name) or self._table(name)
        return CONTROL_VERSION if table is None else version_of(table)

    def record(self, row: ControlRow) -> None:
        """Append one row to the table of its kind."""
        self.append(NAMES[type(row)], [asdict(row)])

    def record_in_turn(self, row: CutRow | PauseRow) -> datetime:
        """Append a row whose order matters; its recorded time, which is later than its own if the clock went back."""
        name = NAMES[type(row)]
        written = self._append(name, _arrow(name, [asdict(row)]), None)
        assert written is not None, "there is one, and no version to pass over"
        recorded_at = written[RECORDED][0].as_py()
        assert isinstance(recorded_at, datetime)
        return recorded_at

    def append(
        self, name: ControlName, rows: Sequence[Mapping[str, Any]] | pa.Table, app: tuple[str, int] | None = None
    ) -> bool:
        """Append rows in one commit; False if there was nothing to do.

        `app`: an application id and its version; if the table already has that version or a later one, nothing is
        written, so a repeated step adds its rows once. Raises ControlNotWritten.
        """
        return self._append(name, _arrow(name, rows), app) is not None

    def _append(self, name: ControlName, data: pa.Table, app: tuple[str, int] | None) -> pa.Table | None:
        """The rows as recorded; None if there was nothing to do."""
        if data.num_rows == 0:
            return None
        table = self._table(name) or self._create(name)
        place = self.place(name)
        if _is_recorded(place, table, app):
            return None
        if name in BESIDE:
            data = make_monotonic(data, self._last_recorded((name, *BESIDE[name])))
        self._open.pop(name, None)
        try:
            if not self._commit(place, table, [self._write(name, table, data)], step=app, fenced=False):
                return None
        except (DeltaCommitFailed, OSError) as cause:
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
        """Rows in unspecified order; an empty table with the schema if the table does not exist yet.

        `files`: only these data files, as named by `files`; `columns`: only these.
        """
        schema = schema_of(name)
        if columns is not None:
            schema = pa.schema([schema.field(column) for column in columns])
        if files is None:
            files = self.files(name)["path"].to_pylist()
        if not files:
            return schema.empty_table()
        # `to_pyarrow_dataset` is avoided: its file system is written in Python, and a read-ahead thread that enters it
        # while the interpreter exits aborts the process (deltalake 1.6.6, one run in six).
        place = self.place(name)
        paths = [place.path(unquote(path)) for path in files]

        table = self._open.get(name) or self._table(name)
        former = {} if table is None else former_columns(table, name)
        names = [former.get(column, column) for column in schema.names]
        stored = pa.schema([field.with_name(former.get(field.name, field.name)) for field in schema_of(name)])

        def rows() -> pa.Table:
            dataset = ds.dataset(paths, schema=stored, format="parquet", filesystem=place.filesystem)
            return dataset.to_table(names, filter=wanted).rename_columns(schema.names).cast(schema)

        try:
            return place.ask(rows)
        except (OSError, pa.ArrowException) as cause:
            raise self._unread(name) from cause

    def files(self, name: ControlName) -> pa.Table:
        """The data files of a table with their bounds, from Delta's log (`get_add_actions`)."""
        table = self._table(name)
        if table is None:
            return pa.table({"path": pa.array([], pa.string())})
        try:
            return pa.table(self.place(name).ask(lambda: table.get_add_actions(flatten=True)))
        except DeltaError as cause:
            raise self._unread(name) from cause

    def _unread(self, name: ControlName) -> LakeError:
        return LakeError(f"the control table `{name}` could not be read", where=self.place(name).name)

    def delete(self, name: ControlName, wanted: pc.Expression) -> int:
        """Delete the rows that match `wanted`; returns their number. Raises ControlNotWritten."""
        others = pc.invert(pc.coalesce(wanted, pc.scalar(False)))
        while True:
            paths, table = self.files(name)["path"].to_pylist(), self._open.get(name)
            if table is None or not self.read(name, wanted, paths).num_rows:
                return 0
            files = [path for path in paths if self.read(name, wanted, [path]).num_rows]
            rows = self.read(name, files=files)
            remaining = rows.filter(others)
            if self._exchange(name, table, files, remaining):
                return int(rows.num_rows - remaining.num_rows)

    def streams(self) -> list[StreamRow]:
        """All streams, by epoch."""
        return [StreamRow(**row) for row in self.read("streams").sort_by("epoch").to_pylist()]

    def snapshots(self) -> list[SnapshotRow]:
        """The newest row of each snapshot, oldest snapshot first."""
        rows = self.read("snapshots").sort_by("recorded_at").to_pylist()
        return [SnapshotRow(**row) for row in {row["snapshot"]: row for row in rows}.values()]

    def configurations(self) -> list[ConfigurationRow]:
        """All configurations, by number; the last one applies to the newest transactions."""
        return [ConfigurationRow(**row) for row in self.read("configurations").sort_by("number").to_pylist()]

    def last_cut(self, stream: str | None = None) -> CutRow | None:
        """The cut at the highest epoch and position, of one stream or of all."""
        places = self._places(newest_files(self.files("cuts"), stream))
        if stream is not None:
            places = places.filter(pc.field("stream") == stream)
        return None if places.num_rows == 0 else self.cuts(places.slice(places.num_rows - 1))[0]

    def cut_places(self) -> pa.Table:
        """Position, time and file of every cut, in order (`tables.control_tables`)."""
        return self._places(self.files("cuts"))

    def _places(self, files: pa.Table) -> pa.Table:
        return places_of(files, lambda path: self.read("cuts", files=[path], columns=PLACE))

    def compact(self, name: ControlName, more_than: int = 100) -> bool:
        """Compact the small files of a table if there are more; others may append meanwhile. Returns whether it was
        needed.

        Every file is an entry of each checkpoint, so commits become slower with the number of files.
        """
        while True:
            data_files, table = self.files(name), self._open.get(name)
            if table is None:
                return False
            files = data_files.filter(pc.field("size_bytes") < _COMPACTED)["path"].to_pylist()
            if len(files) <= more_than:
                return False
            if self._exchange(name, table, files, self.read(name, files=files)):
                return True

    def _exchange(self, name: ControlName, table: DeltaTable, files: Sequence[str], rows: pa.Table) -> bool:
        """Replace files with `rows`, directly after the version of `table`; False if another writer was first.

        The library's own deletion and compaction would duplicate rows if the reply of the store was lost.
        """
        place, now = self.place(name), time.time_ns() // 1_000_000
        self._open.pop(name, None)
        try:
            written = [self._write(name, table, rows)] if rows.num_rows else []
            gone = [RemoveAction(path, True, now, size=0, partition_values={}) for path in files]
            self._commit(place, table, [*written, *gone])
        except (DeltaCommitFailed, OSError) as cause:
            if isinstance(cause, DeltaCommitFailed) and cause.overtaken:
                return False
            raise ControlNotWritten(f"a change of `{name}` failed and did not land", where=place.name) from cause
        self._open[name] = table
        return True

    def _commit(
        self,
        place: DeltaStorage,
        table: DeltaTable,
        actions: Sequence[AddAction | RemoveAction],
        *,
        step: tuple[str, int] | None = None,
        fenced: bool = True,
    ) -> bool:
        """Commit under the lease of this thread, if it has one; again after commits of others unless `fenced`. False if
        another process has recorded the step meanwhile.

        Raises AnotherApply or AnotherCopy if a later holder of the lease has committed.
        """
        lease, apps = LEASE.get(), {} if step is None else {step[0]: step[1]}
        while True:
            if lease is not None:
                app = f"lease:{lease.name}"
                last = place.ask(partial(table.transaction_version, app))
                if last is not None and last > lease.epoch:
                    error = AnotherApply if lease.name == "apply" else AnotherCopy
                    raise error("another process has replaced this one as holder of the lease", where=place.name)
                apps[app] = lease.epoch
            try:
                place.commit(table, actions, apps=apps, note={}, fenced=fenced or lease is not None)
            except DeltaCommitFailed as refused:
                if fenced or not refused.overtaken:
                    raise
                place.refresh(table)
                if _is_recorded(place, table, step):
                    return False
            else:
                return True

    def _last_recorded(self, names: Sequence[ControlName]) -> pa.Scalar:
        """The time of the newest row of some tables; null if there are none."""
        times = []
        for name in names:
            known_times, left = recorded_of(self.files(name))
            times += [*known_times.chunks, *self.read(name, files=left, columns=[RECORDED])[RECORDED].chunks]
        return pc.max(pa.chunked_array(times, pa.timestamp("us", "UTC")))

    def _write(self, name: ControlName, table: DeltaTable, rows: pa.Table) -> AddAction:
        # The times of rows and the positions of cuts, which are many, are read from the log without opening files.
        names = rows.column_names if name in BESIDE else []
        loose = {column: _JSON_BOUNDS for column in names if column in _JSON}
        former = former_columns(table, name)
        rows = rows.rename_columns([former.get(column, column) for column in rows.column_names])
        stats = [former.get(column, column) for column in names if column not in loose]
        return self.place(name).write(rows, stats=stats, loose=loose, plain=())

    def cuts(self, places: pa.Table) -> list[CutRow]:
        """The cuts of some of these rows, in their order."""
        rows = self.read("cuts", files=sorted(set(places["path"].to_pylist()))).to_pylist()
        cuts_by_place = {tuple(row[column] for column in PLACE): CutRow(**row) for row in rows}
        return [cuts_by_place[tuple(place[column] for column in PLACE)] for place in places.to_pylist()]

    def _table(self, name: ControlName) -> DeltaTable | None:
        table, place = self._open.get(name), self.place(name)
        if table is not None:
            place.refresh(table)
            return table
        table = place.open()
        if table is not None:
            check_version(place.ask(lambda: version_of(table)), name, place.name)
            self._open[name] = table
        return table

    def _create(self, name: ControlName) -> DeltaTable:
        place = self.place(name)
        try:
            return place.create(schema_of(name), {CONTROL_PROPERTY: str(CONTROL_VERSION)})
        except BronzeNotWritten as cause:
            table = place.open()  # another process created it at the same moment
            if table is None:
                raise ControlNotWritten(f"the control table `{name}` could not be created", where=place.name) from cause
            return table


def control_tables(project: Project, durability: Literal["fsync", "os"] = "fsync") -> ControlTables:
    """The control tables of a pipeline at their configured location. `durability` applies to local ones."""
    address = project.control_address
    if address is None:
        return ControlTables(project.control, durability)
    store = object_store(project)
    return ControlTables(lambda name: ObjectStoreDeltaStorage(store, replace(address, key=f"{address.key}/{name}")))


def _is_recorded(place: DeltaStorage, table: DeltaTable, step: tuple[str, int] | None) -> bool:
    if step is None:
        return False
    last = place.ask(partial(table.transaction_version, step[0]))
    return last is not None and step[1] <= last


def _arrow(name: ControlName, rows: Sequence[Mapping[str, Any]] | pa.Table) -> pa.Table:
    schema = schema_of(name)
    if isinstance(rows, pa.Table):
        return rows.select(schema.names).cast(schema)
    for row in rows:
        if row.keys() != set(schema.names):
            different = sorted(row.keys() ^ set(schema.names))
            raise LakeError(f"a row for `{name}` has other columns than the table: {', '.join(different)}")
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
