"""Protocols that a source implements for the rest of the package, and the values that they return.

They cover introspection for `plan` and `status`, slot administration for the commands of `slot`, the source's side of a
comparison, and the WAL retained for the pipeline's slot.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

import pyarrow as pa

from cdc_lake.bronze.contract import BronzeWriter, StreamCheckpoint
from cdc_lake.config.project import Project
from cdc_lake.connectors.wal_budget import WalSample
from cdc_lake.errors import AdvancePastBronze
from cdc_lake.model.diagnostic import pluralize, size
from cdc_lake.model.position import Lsn, OrderDomain, format_position
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observability.events import ProgressReporter
from cdc_lake.source.base import (
    PendingTransaction,
    PublishedTable,
    SlotCounters,
    SnapshotVisibility,
    format_stream_position,
)
from cdc_lake.source.row_hash_sql import HashSql
from cdc_lake.tables.control_tables import ControlTables


@dataclass(frozen=True, slots=True)
class ReceiverContext:
    """What everything needs that fills bronze. `stop`: set to give up, which raises Stopped."""

    project: Project
    bronze: BronzeWriter
    control: ControlTables
    stop: threading.Event
    report: ProgressReporter


class ActionKind(enum.Enum):
    """Kinds of steps."""

    CREATE_PUBLICATION = "create publication"
    ALTER_PUBLICATION = "alter publication"
    CREATE_SLOT = "create slot"
    DECODE = "decode"
    SNAPSHOT = "snapshot"
    RESUME = "resume"
    CREATE_TABLE = "create table"
    RENEW = "renew"
    ADD_COLUMN = "add column"
    CHANGE_TYPE = "change type"
    DROP_COLUMN = "drop column"
    KEEP_COLUMN = "keep column"
    RENAME_COLUMN = "rename column"
    ASSUME_COLUMN = "assume column"
    ASSUME_KEY = "assume key"
    BEGIN_AGAIN = "begin again"
    TABLE_GONE = "table gone"
    TABLE_PAUSED = "table paused"
    TABLE_WAITS = "table waits"
    CLUSTER = "cluster"
    REMAKE = "remake"
    COPY_AGAIN = "copy again"
    ADOPT = "adopt"


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a plan: what it concerns, in words, and its numbers if known.

    `changes` is false for a step that only continues; `destructive` steps need approval. `transactions` is how far a
    stream is behind if CSNs count it, `bytes` if its positions are LSNs.
    """

    kind: ActionKind
    subject: str
    text: str
    changes: bool = True
    destructive: bool = False
    rows: int | None = None
    bytes: int | None = None
    transactions: int | None = None


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A captured table: rows as the planner estimates them (None: never analyzed), size, and the role's privileges."""

    table: TableName
    rows: int | None
    size: int
    readable: bool
    owned: bool


def copies(project: Project, facts: Sequence[TableFacts]) -> Iterator[Action]:
    """The initial copy, one step per table."""
    if project.pipeline.snapshot.copies:
        for fact in facts:
            rows = "an unknown number of rows" if fact.rows is None else f"about {pluralize(fact.rows, 'row')}"
            text = f"snapshot {fact.table}: {rows}, {size(fact.size)} at the source"
            yield Action(ActionKind.SNAPSHOT, str(fact.table), text, rows=fact.rows, bytes=fact.size)


@dataclass(frozen=True, slots=True)
class SlotSeen:
    """The slot on the server: its confirmed position as commands print it, and bytes of WAL retained for it.

    `read_by`: its reader, None without one; `lost`: why it can no longer be used, None if it can; `safe`: bytes that
    may still be written before it may be lost; `counters`: statistics of decoding. The last two are None if the server
    does not report them.
    """

    confirmed: str | None
    retained: int | None
    read_by: str | None
    lost: str | None
    safe: int | None = None
    counters: SlotCounters | None = None


class SourceIntrospection(Protocol):
    """A short session on the source. Every method raises SourceError."""

    def tables(self) -> list[TableName]:
        """The tables that the stream contains, or would contain."""

    def origin(self) -> str:
        """The server, database and slot of a stream of this pipeline (`StreamIdentity.origin`)."""

    def end(self, domain: OrderDomain) -> int:
        """The newest position: everything committed by now lies at or below it."""

    def received_position(self) -> int | None:
        """The position up to which the slot's receiver has read, if the server reports it."""

    def slot(self) -> SlotSeen | None:
        """The pipeline's slot."""

    def steps(self, state: Callable[[], StreamCheckpoint | None]) -> Iterator[Action]:
        """What `run` would do at the source; `state`: what bronze has, read after the slot, because receivers land
        before they acknowledge. Raises StateError if it could not continue.
        """

    def layout(self, table: TableName) -> Relation | None:
        """The current layout of a captured table; None if it is not captured."""


@dataclass(frozen=True, slots=True)
class SlotView:
    """A slot of the server. `own`: the pipeline's; `state`: active, idle or lost; `confirmed` as commands print it.

    `retained_bytes`: WAL retained for it; `safe_bytes`: how much may still be written before it may be lost, None
    without a limit. `failover`: whether standbys have it too, None if the server does not report it.
    """

    name: str
    own: bool
    kind: str
    plugin: str | None
    database: str | None
    temporary: bool
    failover: bool | None
    state: str
    reason: str
    confirmed: str | None
    retained_bytes: int | None
    safe_bytes: int | None


@dataclass(frozen=True, slots=True)
class SlotList:
    """Every slot of the server, including those of other databases and readers: all retain WAL on the same disk."""

    pipeline: str
    source: str
    slots: tuple[SlotView, ...]


@dataclass(frozen=True, slots=True)
class SlotFound:
    """A slot that may be dropped: `confirmed` as printed, `retained` bytes; `end` of the WAL, if comparable."""

    confirmed: str | None
    retained: int | None
    end: int | None


def within_bronze(held: int, upto: int | None) -> int:
    """The position to which a slot may be advanced if bronze has everything up to `held`. Raises AdvancePastBronze."""
    target = held if upto is None else upto
    if target > held:
        text = f"{target - held} bytes would be missing: bronze ends at {Lsn(held)}, which is before {Lsn(target)}"
        raise AdvancePastBronze(text)
    return target


@dataclass(frozen=True, slots=True)
class SlotMade:
    """The pipeline's slot. `created` is false if it existed already; `rows`: of the copy at its position."""

    pipeline: str
    slot: str
    created: bool
    position: str
    rows: int


@dataclass(frozen=True, slots=True)
class SlotAdvanced:
    """Where the slot was, and is; `bytes` of WAL lie between."""

    pipeline: str
    slot: str
    before: str
    position: str
    bytes: int


@dataclass(frozen=True, slots=True)
class SlotDropped:
    """A slot that was dropped, or would be: `lost` says what is lost with it, `freed_bytes` how much WAL is freed."""

    pipeline: str
    slot: str
    own: bool
    done: bool
    lost: str
    freed_bytes: int | None


LEAST_LET_GO: Final = 16 << 20
"""Bytes of a WAL segment (PostgreSQL docs, wal_segment_size, its default), the least that a server discards."""


@dataclass(frozen=True, slots=True)
class SlotThreat:
    """A risk that a property of a slot shows, and what to do about it."""

    text: str
    remedy: str


@dataclass(frozen=True, slots=True)
class BesideBronze:
    """Bronze compared with the pipeline's own slot.

    `landed`: everything up to this position is in bronze; `may_confirm`: position to which the slot may be advanced;
    `unconfirmed`: how far that is after the slot's position, in bytes of WAL or, for a slot in CSN order, in commit
    numbers; negative if the slot is ahead of bronze.
    """

    stream: str
    landed: str
    may_confirm: str
    unconfirmed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotDetails:
    """Details of a slot. None stands for what this server does not have or report.

    `order`: of its positions, `lsn` or `csn`; `read_by`: the process that reads it; `restart`: WAL is retained from
    there, up to `log_end`; `catalog_age`: transactions since `catalog_xmin`, whose catalog rows vacuum has to keep;
    `synced`: a standby's copy; `two_phase_at`: from where on transactions are sent at their PREPARE.
    """

    pipeline: str
    source: str
    server: str
    slot: SlotView
    order: str
    read_by: str | None
    inactive_since: datetime | None = None
    restart: str | None
    log_end: str
    wal_status: str | None = None
    invalidation: str | None = None
    conflicting: bool | None = None
    catalog_xmin: int | None
    catalog_age: int | None = None
    synced: bool | None = None
    two_phase: bool | None = None
    two_phase_at: str | None = None
    counters: SlotCounters | None = None
    bronze: BesideBronze | None
    threats: tuple[SlotThreat, ...]


def beside_bronze(state: StreamCheckpoint | None, confirmed: int | None, order: OrderDomain) -> BesideBronze | None:
    """Compare bronze with a slot that is `confirmed`; None if bronze has no stream."""
    if state is None:
        return None
    return BesideBronze(
        stream=state.stream,
        landed=format_stream_position(state.stream, state.upto),
        may_confirm=format_position(state.confirm, order),
        unconfirmed=None if confirmed is None else state.confirm - confirmed,
    )


def nothing_of_it(name: str) -> SlotThreat:
    """The risk of a slot of the pipeline's name if bronze contains no stream."""
    remedy = "if no other program uses it: cdc-lake slot drop --yes; otherwise set `source.slot.name` to another name"
    return SlotThreat(f"bronze contains nothing of slot `{name}`: the first run does not take the slot over", remedy)


def unbounded_threat(*, own: bool, bound: str) -> SlotThreat:
    """The risk of an unread slot without a limit of retained WAL; `bound`: how to set one."""
    read = "start the receiver: cdc-lake run" if own else "start its reader"
    text = "the slot has no reader and no limit on the WAL retained for it: it will eventually fill the server's disk"
    return SlotThreat(text, f"{read}; or drop it{bound}")


def held_already(bytes_held: int) -> SlotThreat:
    """The risk of an unread slot whose WAL is already in bronze."""
    text = f"{size(bytes_held)} of WAL are retained that bronze already contains"
    return SlotThreat(text, "cdc-lake slot advance")


class SlotAdmin(Protocol):
    """The slots of a server. Every method raises SourceError."""

    def views(self) -> list[SlotView]:
        """Every slot, including those of other databases and readers, by name."""

    def find(self, name: str) -> SlotFound | None:
        """A slot, and the end of the server's WAL."""

    def inspect(self, name: str, state: Callable[[], StreamCheckpoint | None]) -> SlotDetails | None:
        """Everything about one slot; `state`: what bronze has, read after it, because receivers land first."""

    def advance(self, state: Callable[[], StreamCheckpoint], upto: int | None) -> SlotAdvanced:
        """Advance the slot to what bronze (`state`) has. Raises AdvancePastBronze, SlotActive, StateError."""

    def drop(self, name: str, wait: float) -> None:
        """Drop a slot, waiting up to `wait` seconds for its reader. Raises SlotActive."""

    def looking(self) -> AbstractContextManager[Callable[[], WalSample | None]]:
        """Connect; each call takes a sample of the pipeline's slot, None if it is not readable."""


class ComparisonSource(Protocol):
    """The source's side of a comparison. Every method raises SourceError."""

    def captured_tables(self) -> list[PublishedTable]:
        """The tables that the stream contains, sorted."""

    def snapshot(self, tables: Sequence[TableName]) -> AbstractContextManager[SnapshotVisibility]:
        """One snapshot for everything that is read inside."""

    def relation_of(self, source_table: PublishedTable) -> Relation:
        """The layout of a captured table, as the stream would announce it."""

    def parts(self, relation: Relation, source_table: PublishedTable) -> Iterator[pa.Table]:
        """The rows of a captured table that match its filter, in blocks: large_string columns, text as printed."""

    def unsummable_reason(self, relation: Relation) -> str:
        """Why the server cannot sum up hashes of the rows that silver should have; empty if it can."""

    def sums(self, source_table: PublishedTable, hashed: HashSql) -> Iterator[tuple[int, int, int]]:
        """The rows of `parts`, summed up by the server: bucket, number of rows, sum of their hashes."""

    def ahead(self, shown: SnapshotVisibility, after: int) -> Sequence[PendingTransaction] | None:
        """What the slot still has of what the snapshot shows, after position `after`; None if it has a reader."""


def all_rows(source: ComparisonSource, relation: Relation, source_table: PublishedTable) -> pa.Table:
    """The rows of `source.parts` in one table, if they are few."""
    empty = pa.schema([pa.field(name, pa.large_string()) for name in relation.names]).empty_table()
    return pa.concat_tables([empty, *source.parts(relation, source_table)])
