"""Control tables: what the two loops tell each other and the reader, as small Delta tables on paths.

They follow from bronze and silver and are never the place where a position is decided. Written without Spark (an append
takes 10 to 30 ms), one table a kind under one folder. Several processes may append at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from cdc_lake.errors import ControlNotWritten, LakeError
from cdc_lake.lake.cut_index import PLACE, newest_files, places_of
from cdc_lake.lake.delta_log import NotLanded, commit, create_table, open_table, refresh, sync_version, write_file

_TEXT, _LONG, _INT = pa.string(), pa.int64(), pa.int32()
_TIME = pa.timestamp("us", tz="UTC")
_RECORDED = ("recorded_at", _TIME, "when the row was written")
_STREAM = ("stream", _TEXT, "the stream, as in bronze")
_EPOCH = ("epoch", _INT, "its number within the pipeline")
_POSITION = ("position", _LONG, "position in the stream's order domain")

_COMPACTED = 8 << 20  # bytes of a file that small ones were put together into

Columns: TypeAlias = tuple[tuple[str, pa.DataType, str], ...]

TABLES: dict[str, Columns] = {
    "streams": (
        _EPOCH,
        _STREAM,
        (
            "start",
            _LONG,
            "position that its transactions lie behind: the slot's consistent point, or the last CSN before it",
        ),
        ("slot", _TEXT, "name of the slot on the server"),
        ("system_id", _TEXT, "the server's system identifier"),
        ("database", _TEXT, "database on the server"),
        ("domain", _TEXT, "order domain: lsn or csn"),
        _RECORDED,
        ("dense", pa.bool_(), "whether the stream shows every CSN of the server"),
        ("last_position", _LONG, "hand-over: the position that the stream before it had reached, NULL for the first"),
        ("last_hash", _TEXT, "hand-over: hash of that stream's last transaction, in hexadecimal digits"),
    ),
    "snapshots": (
        ("snapshot", _TEXT, "name of the snapshot"),
        _STREAM,
        _EPOCH,
        ("position", _LONG, "position the rows stand for"),
        ("tables", _TEXT, "JSON: table → what was copied"),
        (
            "state",
            _TEXT,
            "started, complete or abandoned, the newest row of a snapshot counts; reread: rows read again",
        ),
        _RECORDED,
    ),
    "cuts": (
        _EPOCH,
        _STREAM,
        _POSITION,
        ("commit_ts", _TIME, "latest commit time of the transactions up to the cut, by the source's clock"),
        ("tables", _TEXT, "JSON: relation → {table, format, version, position, state, held, generation, layout}"),
        _RECORDED,
    ),
    "promises": (
        ("name", _TEXT, "name of the promise; its newest row counts"),
        ("scheduled", pa.bool_(), "whether `silver.cuts.promise_every` made it"),
        _EPOCH,
        _STREAM,
        _POSITION,
        ("commit_ts", _TIME, "as in the cut"),
        ("tables", _TEXT, "as in the cut: the versions that stay readable"),
        ("cut_at", _TIME, "when the cut was written"),
        ("until", _TIME, "until when it stays readable, NULL: until the promise is ended"),
        _RECORDED,
    ),
    "held": (
        _STREAM,
        _EPOCH,
        _POSITION,
        ("ordinal", _LONG, "which change of the transaction"),
        ("generation", _INT, "generation of the silver table"),
        ("relation", _TEXT, "source table, as in bronze"),
        ("table", _TEXT, "silver table"),
        ("op", _TEXT, "I U D T or S"),
        ("reason", _TEXT, "failed: it broke a rule; waiting: behind a held change; closed: the hold ended"),
        ("rules", pa.list_(_TEXT), "names of the rules it broke"),
        ("key", pa.list_(_TEXT), "key after the change as texts, in key order; before it for a delete"),
        ("from_key", pa.list_(_TEXT), "key before the change, NULL for an insert"),
        ("layout", _LONG, "layout the tuples follow"),
        ("new", pa.list_(_TEXT), "new tuple, as in bronze"),
        ("old", pa.list_(_TEXT), "old tuple, as in bronze"),
        ("old_kind", _TEXT, "key or full"),
        ("unchanged", pa.list_(pa.int32()), "positions in `new` that were not sent"),
        ("span_upto", _LONG, "end of the span that held it"),
        _RECORDED,
    ),
    "gaps": (
        _EPOCH,
        _STREAM,
        ("first", _LONG, "first CSN that did not arrive and was passed over"),
        ("last", _LONG, "last CSN of the gap"),
        ("below", _LONG, "commit LSN of the transaction before the gap, NULL where not known"),
        ("above", _LONG, "commit LSN of the transaction behind it, NULL where it had not come yet"),
        _RECORDED,
    ),
    "timelines": (
        _EPOCH,
        _STREAM,
        ("timeline", _LONG, "timeline of the server that the stream was read on from then"),
        ("history", _TEXT, "where it branched off: timeline@LSN of each switch before it, NULL where not told"),
        ("held", _LONG, "slot position that bronze held then"),
        _RECORDED,
    ),
    "configurations": (
        ("number", _INT, "number of the configuration, as COMMIT rows of bronze have it; grows by one"),
        ("fingerprint", _TEXT, "hash of `settings`: the same settings have the same one"),
        ("settings", _TEXT, "JSON: which tables are taken, what is redacted, and a keyed fingerprint of the key"),
        ("changed", _TEXT, "JSON: columns that bronze held then and that are redacted otherwise from here on"),
        ("epoch", _INT, "epoch of bronze when it began, 0 before the first stream"),
        ("position", _LONG, "how far bronze was then: transactions above it are of this configuration, until the next"),
        _RECORDED,
    ),
    "decoded": (
        _EPOCH,
        ("position", _LONG, "position of a transaction that landed as bytes, its rows `X`"),
        ("content", _TEXT, "digest of those, as its COMMIT row has it"),
        ("version", _TEXT, "version of cdc_lake that decoded it"),
        ("counts", _TEXT, "JSON: table → operation → number of changes"),
        ("file", _TEXT, "its layouts and changes, a Parquet file in the folder `decoded_rows` beside this table"),
        _RECORDED,
    ),
    "quality": (
        ("judged_at", _TIME, "time of the report that judged it"),
        ("table", _TEXT, "silver table"),
        ("rule", _TEXT, "name of the rule"),
        ("kind", _TEXT, "kind of rule"),
        ("columns", _TEXT, "columns it names, with commas between them"),
        ("evaluated", _LONG, "rows that were judged; 1 where the table is judged as a whole"),
        ("failed", _LONG, "how many of them break the rule"),
        ("level", _TEXT, "none, warn, error or critical, by the thresholds of the rule"),
        ("observed", _TEXT, "what was seen of a table as a whole: a number of rows, an age"),
        ("broken", _TEXT, "why the rule could not be judged, empty where it was"),
    ),
    "runs": (
        ("run", _TEXT, "identifier of the run"),
        ("verb", _TEXT, "command it was"),
        ("started_at", _TIME, "when it started"),
        ("ended_at", _TIME, "when it ended, NULL while it runs"),
        ("outcome", _TEXT, "done, stopped, failed or running"),
        ("facts", _TEXT, "JSON: counts, positions, lags, error code"),
    ),
}
"""Name, type and meaning of each control table's columns; the reference page is generated from it."""

ControlName: TypeAlias = Literal[
    "streams",
    "snapshots",
    "cuts",
    "promises",
    "held",
    "gaps",
    "timelines",
    "configurations",
    "decoded",
    "quality",
    "runs",
]


@dataclass(frozen=True, slots=True)
class StreamRow:
    """A stream's start: the hand-over from the epoch before, as bronze was then.

    `dense`: it shows every CSN; `last_position`, `last_hash`: where the stream before it ended. None where not known.
    """

    epoch: int
    stream: str
    start: int
    slot: str
    system_id: str
    database: str
    domain: str
    recorded_at: datetime
    dense: bool | None = None
    last_position: int | None = None
    last_hash: str | None = None


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """A step in the life of a snapshot; `tables` is JSON."""

    snapshot: str
    stream: str
    epoch: int
    position: int
    tables: str
    state: str
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class CutRow:
    """One position across all silver tables; `tables` is JSON: relation → table, format, version, position, …"""

    epoch: int
    stream: str
    position: int
    commit_ts: datetime | None
    tables: str
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class PromiseRow:
    """A cut that stays readable `until` a time; None: until a later row of the name says when it ended."""

    name: str
    scheduled: bool
    epoch: int
    stream: str
    position: int
    commit_ts: datetime | None
    tables: str
    cut_at: datetime
    until: datetime | None
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class GapRow:
    """CSNs that were passed over; those that bronze holds came after all before it went on."""

    epoch: int
    stream: str
    first: int
    last: int
    below: int | None
    above: int | None
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """A timeline of the server that a stream was read on from a position on; the newest row of a stream counts."""

    epoch: int
    stream: str
    timeline: int
    history: str | None
    held: int
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class ConfigurationRow:
    """What of a pipeline's configuration decides what bronze holds, from a position on; two columns are JSON."""

    number: int
    fingerprint: str
    settings: str
    changed: str
    epoch: int
    position: int | None
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class DecodedRow:
    """A transaction that was decoded after it had landed as bytes; `counts` is JSON."""

    epoch: int
    position: int
    content: str
    version: str
    counts: str
    file: str
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class QualityRow:
    """What a report found of a rule over silver as it was then."""

    judged_at: datetime
    table: str
    rule: str
    kind: str
    columns: str
    evaluated: int
    failed: int
    level: str
    observed: str
    broken: str


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run of a verb; `facts` is JSON."""

    run: str
    verb: str
    started_at: datetime
    ended_at: datetime | None
    outcome: str
    facts: str


ControlRow: TypeAlias = (
    StreamRow
    | SnapshotRow
    | CutRow
    | PromiseRow
    | GapRow
    | TimelineRow
    | ConfigurationRow
    | DecodedRow
    | QualityRow
    | RunRow
)
_NAMES: dict[type, ControlName] = {
    StreamRow: "streams",
    SnapshotRow: "snapshots",
    CutRow: "cuts",
    PromiseRow: "promises",
    GapRow: "gaps",
    TimelineRow: "timelines",
    ConfigurationRow: "configurations",
    DecodedRow: "decoded",
    QualityRow: "quality",
    RunRow: "runs",
}


def schema_of(name: ControlName) -> pa.Schema:
    """The Arrow schema of a control table."""
    return pa.schema([pa.field(column, kind) for column, kind, _ in TABLES[name]])


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
        self.append(_NAMES[type(row)], [dataclasses.asdict(row)])

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
            return pa.table({"path": pa.array([], _TEXT)})
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


def now() -> datetime:
    """The time as control rows have it."""
    return datetime.now(UTC)


def _arrow(name: ControlName, rows: Sequence[Mapping[str, Any]] | pa.Table) -> pa.Table:
    schema = schema_of(name)
    if isinstance(rows, pa.Table):
        return rows.select(schema.names).cast(schema)
    for row in rows:
        if row.keys() != set(schema.names):
            different = sorted(row.keys() ^ set(schema.names))
            raise LakeError(f"a row for `{name}` has other columns than the table: {', '.join(different)}")
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
