"""The schemas of the control tables, their row classes, and the upgrade steps between schema versions.

A table property states the version of the schema; without it the version is 0. An added column is not a new version:
each version reads the columns it knows and ignores the others. A new version is one that an older reader would misread;
it then refuses the table.

An upgrade adds columns in one commit and then writes the property: if a process dies in between, the same call
completes the upgrade. Names are not changed by it: a table keeps the former names of its columns, and a lake the former
names of its tables, and `control_tables` reads and writes them under the current ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, TypeAlias, get_args, get_type_hints

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from cdc_lake.errors import ControlNewer, ControlNotWritten
from cdc_lake.observability.failpoints import CONTROL_STEP, failpoint
from cdc_lake.tables.delta_log import DeltaCommitFailed
from cdc_lake.tables.delta_storage import DeltaStorage

_TEXT, _LONG, _INT = pa.string(), pa.int64(), pa.int32()
_TIME = pa.timestamp("us", tz="UTC")

Epoch: TypeAlias = Annotated[int, _INT, "its number within the pipeline"]
Stream: TypeAlias = Annotated[str, _TEXT, "the stream, as in bronze"]
Position: TypeAlias = Annotated[int, _LONG, "position in the stream's order domain"]
RecordedAt: TypeAlias = Annotated[datetime, _TIME, "when the row was written"]

Columns: TypeAlias = tuple[tuple[str, pa.DataType, str], ...]


def _columns(row: type) -> Columns:
    """The columns of a table by its row class, whose annotations have their type and meaning."""
    return tuple((name, *hint.__metadata__) for name, hint in get_type_hints(row, include_extras=True).items())


@dataclass(frozen=True, slots=True)
class ControlRow:
    """A row of a control table."""


@dataclass(frozen=True, slots=True)
class _Place:
    epoch: Epoch
    stream: Stream
    position: Position
    recorded_at: RecordedAt


_EPOCH, _STREAM, _POSITION, _RECORDED = _columns(_Place)

_KEYS: Columns = (
    ("rules", pa.list_(_TEXT), "names of the rules that it violated"),
    ("key", pa.list_(_TEXT), "key after the change as texts, in key order; before it for a delete"),
    ("from_key", pa.list_(_TEXT), "key before the change, NULL for an insert"),
)
_TUPLES: Columns = (
    ("layout", _LONG, "layout to which the tuples correspond"),
    ("new", pa.list_(_TEXT), "new tuple, as in bronze"),
    ("old", pa.list_(_TEXT), "old tuple, as in bronze"),
    ("old_kind", _TEXT, "key or full"),
    ("unchanged", pa.list_(pa.int32()), "positions in `new` whose values were not sent"),
)


@dataclass(frozen=True, slots=True)
class StreamRow(ControlRow):
    """The start of a stream: the hand-over from the previous epoch, with the state of bronze at that time.

    `dense`: every CSN is visible; `last_position`, `last_hash`: the end of the previous stream. None if unknown.
    """

    epoch: Epoch
    stream: Stream
    start: Annotated[
        int, _LONG, "position after which its transactions lie: the slot's consistent point, or the last CSN before it"
    ]
    slot: Annotated[str, _TEXT, "name of the slot on the server"]
    system_id: Annotated[str, _TEXT, "the server's system identifier"]
    database: Annotated[str, _TEXT, "database on the server"]
    domain: Annotated[str, _TEXT, "order domain: lsn or csn"]
    recorded_at: RecordedAt
    dense: Annotated[bool | None, pa.bool_(), "whether the stream contains every CSN of the server"] = None
    last_position: Annotated[
        int | None, _LONG, "hand-over: the position that the previous stream had reached, NULL for the first stream"
    ] = None
    last_hash: Annotated[
        str | None, _TEXT, "hand-over: hash of that stream's last transaction, in hexadecimal digits"
    ] = None


@dataclass(frozen=True, slots=True)
class SnapshotRow(ControlRow):
    """A step in the life of a snapshot; `tables` is JSON."""

    snapshot: Annotated[str, _TEXT, "name of the snapshot"]
    stream: Stream
    epoch: Epoch
    position: Annotated[int, _LONG, "position at which the rows were valid"]
    tables: Annotated[
        str, _TEXT, "JSON: table → what was copied; of rows read again relation, first ordinal, rows, by whom"
    ]
    state: Annotated[
        str,
        _TEXT,
        "started, complete or abandoned; the newest row of a snapshot counts; reread: rows read again; left: no "
        "longer captured",
    ]
    recorded_at: RecordedAt


@dataclass(frozen=True, slots=True)
class CutRow(ControlRow):
    """One position across all silver tables; `tables` is JSON: relation → table, format, version, position, …"""

    epoch: Epoch
    stream: Stream
    position: Position
    commit_ts: Annotated[
        datetime | None, _TIME, "latest commit time of the transactions up to the cut, by the source's clock"
    ]
    tables: Annotated[
        str,
        _TEXT,
        "JSON: relation → {table, format, version, position, state, quarantined_keys, generation, layout, copied,"
        " merged}; state: active, failed, paused or resyncing (until version 1: in, broken, renewing, and `held` "
        "for quarantined_keys); copied: position of the copy with which it started, if not the first; merged: "
        "position of its last merge",
    ]
    recorded_at: RecordedAt


@dataclass(frozen=True, slots=True)
class PinRow(ControlRow):
    """A cut kept readable `until` a time; None: until a later row with the same name ends the pin."""

    name: Annotated[str, _TEXT, "name of the pin; its newest row counts"]
    scheduled: Annotated[bool, pa.bool_(), "whether `silver.cuts.pin_every` made it"]
    epoch: Epoch
    stream: Stream
    position: Position
    commit_ts: Annotated[datetime | None, _TIME, "as in the cut"]
    tables: Annotated[str, _TEXT, "as in the cut: the versions that stay readable"]
    cut_at: Annotated[datetime, _TIME, "when the cut was written"]
    until: Annotated[datetime | None, _TIME, "until when it stays readable, NULL: until it is unpinned"]
    recorded_at: RecordedAt


@dataclass(frozen=True, slots=True)
class WithheldRow(ControlRow):
    """A cut that was not pinned because rules failed on silver at this cut; `objections` is JSON."""

    name: Annotated[str, _TEXT, "name of the pin that was not made"]
    scheduled: Annotated[bool, pa.bool_(), "whether `silver.cuts.pin_every` would have made it"]
    epoch: Epoch
    stream: Stream
    position: Position
    cut_at: Annotated[datetime, _TIME, "when the cut was written"]
    objections: Annotated[
        str, _TEXT, "JSON: [{table, rule, level, failed, evaluated, why}], the rules that kept it back"
    ]
    recorded_at: RecordedAt


@dataclass(frozen=True, slots=True)
class PauseRow(ControlRow):
    """Pauses or resumes a source table; the newest row of a relation counts."""

    relation: Annotated[str, _TEXT, "source table; its newest row counts"]
    paused: Annotated[bool, pa.bool_(), "whether it is paused from then on, or continues"]
    recorded_at: RecordedAt


@dataclass(frozen=True, slots=True)
class GapRow(ControlRow):
    """Missing CSNs that were passed over; bronze may contain those that arrived after all before it continued."""

    epoch: Epoch
    stream: Stream
    first: Annotated[int, _LONG, "first CSN that did not arrive and was passed over"]
    last: Annotated[int, _LONG, "last CSN of the gap"]
    below: Annotated[int | None, _LONG, "commit LSN of the transaction before the gap, NULL if unknown"]
    above: Annotated[int | None, _LONG, "commit LSN of the transaction after it, NULL if it had not arrived yet"]
    recorded_at: RecordedAt


@dataclass(frozen=True, slots=True)
class TimelineRow(ControlRow):
    """A server timeline on which a stream was read from a position on; the newest row of a stream counts."""

    epoch: Epoch
    stream: Stream
    timeline: Annotated[int, _LONG, "timeline of the server on which the stream was read from then on"]
    history: Annotated[
        str | None, _TEXT, "where it branched off: timeline@LSN of each switch before it, NULL if unknown"
    ]
    acknowledged: Annotated[int, _LONG, "slot position that bronze had reached then"]
    recorded_at: RecordedAt


@dataclass(frozen=True, slots=True)
class MembershipRow(ControlRow):
    """How the publication includes each table from a position on; the newest row of a stream counts. `tables`: JSON."""

    epoch: Epoch
    stream: Stream
    tables: Annotated[
        str,
        _TEXT,
        "JSON: relation → the entry of a publication, or the transaction that named it, by which it is read; and "
        "its OID",
    ]
    recorded_at: RecordedAt


@dataclass(frozen=True, slots=True)
class ConfigurationRow(ControlRow):
    """The configuration settings that determine the content of bronze, from a position on; two columns are JSON."""

    number: Annotated[int, _INT, "number of the configuration, as COMMIT rows of bronze have it; increases by one"]
    fingerprint: Annotated[str, _TEXT, "hash of `settings`: the same settings have the same one"]
    settings: Annotated[
        str, _TEXT, "JSON: which tables are captured, what is redacted, and a keyed fingerprint of the key"
    ]
    changed: Annotated[
        str, _TEXT, "JSON: columns that bronze contained then and that are redacted differently from here on"
    ]
    epoch: Annotated[int, _INT, "epoch of bronze when it began, 0 before the first stream"]
    position: Annotated[
        int | None, _LONG, "end of bronze at that time: transactions above it have this configuration, until the next"
    ]
    recorded_at: RecordedAt


@dataclass(frozen=True, slots=True)
class DecodedRow(ControlRow):
    """A transaction that landed undecoded and was decoded later; `counts` is JSON."""

    epoch: Epoch
    position: Annotated[int, _LONG, "position of a transaction that landed as bytes, its rows `X`"]
    content: Annotated[str, _TEXT, "digest of those rows, as its COMMIT row has it"]
    version: Annotated[str, _TEXT, "version of cdc_lake that decoded it"]
    counts: Annotated[str, _TEXT, "JSON: table → operation → number of changes"]
    file: Annotated[
        str, _TEXT, "its layouts and changes, a Parquet file in the folder `decoded_rows` next to this table"
    ]
    recorded_at: RecordedAt


@dataclass(frozen=True, slots=True)
class QualityRow(ControlRow):
    """The result of a rule on silver at a cut."""

    judged_at: Annotated[
        datetime, _TIME, "time for which it was evaluated: of a report, or of the cut that was to be pinned"
    ]
    table: Annotated[str, _TEXT, "silver table"]
    rule: Annotated[str, _TEXT, "name of the rule"]
    kind: Annotated[str, _TEXT, "kind of rule"]
    columns: Annotated[str, _TEXT, "columns it names, with commas between them"]
    evaluated: Annotated[int, _LONG, "rows that were evaluated; 1 if the table is evaluated as a whole"]
    failed: Annotated[int, _LONG, "how many of them violate the rule"]
    level: Annotated[str, _TEXT, "none, warn, error or critical, by the thresholds of the rule"]
    observed: Annotated[str, _TEXT, "result for a table as a whole: a number of rows, an age"]
    error: Annotated[str, _TEXT, "why the rule could not be evaluated, empty if it was"]


@dataclass(frozen=True, slots=True)
class VerifiedRow(ControlRow):
    """The verdict of a comparison for a generation of a silver table at a position."""

    stream: Stream
    epoch: Epoch
    generation: Annotated[int, _INT, "generation of the silver table"]
    relation: Annotated[str, _TEXT, "source table, as in bronze"]
    table: Annotated[str, _TEXT, "silver table"]
    position: Annotated[int, _LONG, "position that silver had reached"]
    verdict: Annotated[
        str, _TEXT, "equal, equal but for quarantined keys, or different; a table without a verdict has no row"
    ]
    quarantined_keys: Annotated[int, _LONG, "keys whose quarantined changes explain the difference"]
    compared_at: Annotated[datetime, _TIME, "when it was compared"]


@dataclass(frozen=True, slots=True)
class RunRow(ControlRow):
    """One run of a command; `facts` is JSON."""

    run: Annotated[str, _TEXT, "identifier of the run"]
    verb: Annotated[str, _TEXT, "command it was"]
    started_at: Annotated[datetime, _TIME, "when it started"]
    ended_at: Annotated[datetime | None, _TIME, "when it ended, NULL while it runs"]
    outcome: Annotated[str, _TEXT, "done, stopped, failed or running"]
    facts: Annotated[str, _TEXT, "JSON: counts, positions, lags, error code"]


ControlName: TypeAlias = Literal[
    "streams",
    "snapshots",
    "cuts",
    "pins",
    "withheld",
    "pauses",
    "quarantine",
    "decisions",
    "gaps",
    "timelines",
    "memberships",
    "configurations",
    "decoded",
    "quality",
    "verified",
    "runs",
]
NAMES: dict[type[ControlRow], ControlName] = {
    StreamRow: "streams",
    SnapshotRow: "snapshots",
    CutRow: "cuts",
    PinRow: "pins",
    WithheldRow: "withheld",
    PauseRow: "pauses",
    GapRow: "gaps",
    TimelineRow: "timelines",
    MembershipRow: "memberships",
    ConfigurationRow: "configurations",
    DecodedRow: "decoded",
    QualityRow: "quality",
    VerifiedRow: "verified",
    RunRow: "runs",
}


_WITHOUT_ROW_CLASS: dict[ControlName, Columns] = {
    "quarantine": (
        _STREAM,
        _EPOCH,
        _POSITION,
        ("ordinal", _LONG, "ordinal of the change in the transaction"),
        ("generation", _INT, "generation of the silver table"),
        ("relation", _TEXT, "source table, as in bronze"),
        ("table", _TEXT, "silver table"),
        ("op", _TEXT, "I U D T or S"),
        (
            "reason",
            _TEXT,
            "failed: it violated a rule; waiting: queued behind a quarantined change, or with one; closed: its end",
        ),
        *_KEYS,
        *_TUPLES,
        ("span_upto", _LONG, "end of the span that quarantined it"),
        _RECORDED,
    ),
    "decisions": (
        _STREAM,
        _EPOCH,
        ("position", _LONG, "position right before which it takes effect"),
        ("ordinal", _LONG, "its order among all decisions"),
        ("verb", _TEXT, "release or discard"),
        ("reason", _TEXT, "the reason that was stated"),
        ("relation", _TEXT, "source table, as in bronze"),
        ("table", _TEXT, "silver table"),
        ("of_position", _LONG, "position of the quarantined change to which it applies"),
        ("of_ordinal", _LONG, "ordinal of the change in the transaction"),
        ("op", _TEXT, "I U D or S"),
        *_KEYS,
        *_TUPLES,
        ("csn", _LONG, "as in bronze, NULL if bronze no longer contains the change"),
        ("lsn", _LONG, "as in bronze"),
        ("xid", _LONG, "as in bronze"),
        ("commit_ts", _TIME, "as in bronze"),
        _RECORDED,
    ),
}
_COLUMNS = {name: _columns(row) for row, name in NAMES.items()} | _WITHOUT_ROW_CLASS
TABLES: dict[str, Columns] = {name: _COLUMNS[name] for name in get_args(ControlName)}
"""Name, type and meaning of each control table's columns; the reference page is generated from it."""


def schema_of(name: ControlName) -> pa.Schema:
    """The Arrow schema of a control table."""
    return pa.schema([pa.field(column, kind) for column, kind, _ in TABLES[name]])


def utc_now() -> datetime:
    """The current time for control rows."""
    return datetime.now(UTC)


def new_run() -> str:
    """An identifier for a run."""
    return uuid.uuid4().hex[:12]


CONTROL_VERSION: Final = 2
RENAMED: Final = 2
"""The first version with the names and the states of tables in cuts that older readers do not know."""
FORMER_TABLES: Final[Mapping[ControlName, str]] = {"quarantine": "held", "pins": "promises"}
"""The names until version 1. A lake that has such a table, or tables of such a version, keeps the name."""
FORMER_COLUMNS: Final[Mapping[ControlName, Mapping[str, str]]] = {
    "decisions": {"reason": "told"},
    "quality": {"error": "broken"},
    "timelines": {"acknowledged": "held"},
    "verified": {"quarantined_keys": "held_keys"},
}
"""Column → its name until version 1, which a table that was created then keeps."""
CONTROL_PROPERTY: Final = "cdc_lake.control"


def version_of(table: DeltaTable) -> int:
    """The schema version of a table."""
    return int(table.metadata().configuration.get(CONTROL_PROPERTY, "0"))


def check_version(version: int, name: str, where: str) -> None:
    """Raise ControlNewer if a table has a version unknown to this release."""
    if version > CONTROL_VERSION:
        text = f"the control table `{name}` has version {version}, but this version knows only {CONTROL_VERSION}"
        raise ControlNewer(text, where=where)


def former_columns(table: DeltaTable, name: ControlName) -> dict[str, str]:
    """The columns of a table that have their names until version 1: name → former name."""
    if name not in FORMER_COLUMNS:  # usual, and the schema would be parsed
        return {}
    have = {field.name for field in table.schema().fields}
    return {column: former for column, former in FORMER_COLUMNS[name].items() if former in have}


def needed_upgrades(table: DeltaTable, name: ControlName) -> tuple[str, ...]:
    """Descriptions of the upgrades that a table needs; empty if it is up to date."""
    lacking = _lacking(table, name)
    columns = (f"columns {', '.join(lacking)}",) if lacking else ()
    marked = () if version_of(table) == CONTROL_VERSION else (f"version {CONTROL_VERSION} in its properties",)
    return (*columns, *marked)


def bring(place: DeltaStorage, name: ControlName) -> None:
    """Upgrade a table. Raises ControlNewer, ControlNotWritten; the same call then continues the upgrade."""
    table = place.open()
    assert table is not None, "it was looked at"
    version = version_of(table)
    check_version(version, name, place.name)
    try:
        if lacking := _lacking(table, name):
            table.alter.add_columns(Schema.from_arrow(pa.schema([schema_of(name).field(c) for c in lacking])).fields)
            place.persist_last_commit(table)
            failpoint(CONTROL_STEP)
        if version < CONTROL_VERSION:
            place.set_properties(table, {CONTROL_PROPERTY: str(CONTROL_VERSION)}, {})
    except (DeltaError, DeltaCommitFailed) as cause:
        raise ControlNotWritten(f"`{name}` was not upgraded", where=place.name) from cause


def _lacking(table: DeltaTable, name: ControlName) -> list[str]:
    have = {field.name for field in table.schema().fields} | former_columns(table, name).keys()
    return [column for column in schema_of(name).names if column not in have]
