"""What the rest of the package asks of a pipeline's source, whatever the server: protocols and the values they return.

The source as `plan` and `status` see it, its slots as the commands of `slot` return and show them, its side of a
comparison, and what the server keeps for the pipeline's slot, for the WAL budget.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

import pyarrow as pa

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.config.project import Project
from cdc_lake.connectors.wal_budget import WalSample
from cdc_lake.errors import AdvancePastBronze
from cdc_lake.model.diagnostic import pluralize
from cdc_lake.model.position import Lsn, OrderDomain, format_position
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.source.base import (
    PendingTransaction,
    PublishedTable,
    SlotCounters,
    SnapshotVisibility,
    format_stream_position,
)
from cdc_lake.source.row_hash_sql import HashSql


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
    """One step: what it is about, in words, and its numbers where they are known.

    `changes` is false for what only goes on; `destructive` steps are never done without being allowed. `transactions`
    is how far a stream is behind where CSNs count it, `bytes` where its positions are LSNs.
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
    """A captured table: rows as the planner estimates them (None: never analysed), size, and what the role may."""

    table: TableName
    rows: int | None
    size: int
    readable: bool
    owned: bool


def copies(project: Project, facts: Sequence[TableFacts]) -> Iterator[Action]:
    """The initial copy, a step a table."""
    if project.pipeline.snapshot.copies:
        for fact in facts:
            rows = "an unknown number of rows" if fact.rows is None else f"about {pluralize(fact.rows, 'row')}"
            text = f"snapshot {fact.table}: {rows}, {size(fact.size)} at the source"
            yield Action(ActionKind.SNAPSHOT, str(fact.table), text, rows=fact.rows, bytes=fact.size)


def size(value: int) -> str:
    """Bytes with a unit that fits."""
    amount, unit = float(value), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):  # noqa: B007  # the last one is used
        if amount < 1024:
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


@dataclass(frozen=True, slots=True)
class SlotSeen:
    """The slot on the server: its confirmed position as people paste it, and bytes of WAL kept for it.

    `read_by`: who reads it, None where nobody does; `lost`: why it can no longer be used, None where it can; `safe`:
    bytes that may still be written before it is in danger of that, `counters`: what decoding it took, both None where
    the server does not tell.
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
        """The tables that the stream carries, or would."""

    def origin(self) -> str:
        """Server, database and slot that a stream of this pipeline comes from (`StreamIdentity.origin`)."""

    def end(self, domain: OrderDomain) -> int:
        """The newest position: everything committed by now lies at or below it."""

    def received_position(self) -> int | None:
        """The position up to which the slot's receiver has read, as far as the server tells."""

    def slot(self) -> SlotSeen | None:
        """The pipeline's slot."""

    def steps(self, state: Callable[[], StreamCheckpoint | None]) -> Iterator[Action]:
        """What `run` would do at the source; `state`: what bronze holds, asked behind the slot: receivers land before
        they confirm. Raises StateError where it could not go on.
        """

    def layout(self, table: TableName) -> Relation | None:
        """The layout of a captured table now; None where it is none."""


@dataclass(frozen=True, slots=True)
class SlotView:
    """A slot of the server. `own`: the pipeline's; `state`: active, idle or lost; `confirmed` as people paste it.

    `retained_bytes`: WAL kept for it; `safe_bytes`: what may still be written before it is in danger of being lost,
    None where nothing bounds what is kept. `failover`: standbys have it too, None where the server does not tell.
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
    """Every slot of the server, of other databases and readers too: each keeps WAL on the same disk."""

    pipeline: str
    source: str
    slots: tuple[SlotView, ...]


@dataclass(frozen=True, slots=True)
class SlotFound:
    """A slot that may be dropped: `confirmed` to paste, `retained` bytes; `end` of the log, None: other positions."""

    confirmed: str | None
    retained: int | None
    end: int | None


def within_bronze(held: int, upto: int | None) -> int:
    """The position that a slot may forget up to, where bronze holds all to `held`. Raises AdvancePastBronze."""
    target = held if upto is None else upto
    if target > held:
        raise AdvancePastBronze(
            f"{target - held} bytes would be missing: bronze ends at {Lsn(held)}, which is before {Lsn(target)}"
        )
    return target


@dataclass(frozen=True, slots=True)
class SlotMade:
    """The pipeline's slot. `created` is false where it was there already; `rows`: of the copy as of its point."""

    pipeline: str
    slot: str
    created: bool
    position: str
    rows: int


@dataclass(frozen=True, slots=True)
class SlotAdvanced:
    """How far the slot was, and is; `bytes` of log lie between."""

    pipeline: str
    slot: str
    before: str
    position: str
    bytes: int


@dataclass(frozen=True, slots=True)
class SlotDropped:
    """A slot that was dropped, or would be: `lost` says what goes with it, `freed_bytes` how much WAL is let go."""

    pipeline: str
    slot: str
    own: bool
    done: bool
    lost: str
    freed_bytes: int | None


LEAST_LET_GO: Final = 16 << 20
"""Bytes: a file of the log (PostgreSQL docs, wal_segment_size, its default), the least that a server lets go."""


@dataclass(frozen=True, slots=True)
class SlotThreat:
    """What a fact of a slot endangers, and what to do about it."""

    text: str
    remedy: str


@dataclass(frozen=True, slots=True)
class BesideBronze:
    """What bronze holds of the pipeline's own slot.

    `landed`: everything up to this position of the stream is in bronze; `may_confirm`: so far the slot may be
    confirmed; `unconfirmed`: how much that is behind where the slot is, in bytes of log or, of a slot in CSN order, in
    commit numbers; below zero where the slot is further than bronze.
    """

    stream: str
    landed: str
    may_confirm: str
    unconfirmed: int | None


@dataclass(frozen=True, slots=True)
class SlotDetails:
    """A slot: `slot` as it is listed. None stands for what this server does not have or does not tell.

    `order`: of its positions, `lsn` or `csn`; `read_by`: the process that reads it; `restart`: the log is kept from
    there, up to `log_end`; `catalog_age`: transactions since `catalog_xmin`, whose catalog rows vacuum has to leave;
    `synced`: a standby's copy; `two_phase_at`: from where on transactions are sent at their PREPARE.
    """

    pipeline: str
    source: str
    server: str
    slot: SlotView
    order: str
    read_by: str | None
    inactive_since: datetime | None
    restart: str | None
    log_end: str
    wal_status: str | None
    invalidation: str | None
    conflicting: bool | None
    catalog_xmin: int | None
    catalog_age: int | None
    synced: bool | None
    two_phase: bool | None
    two_phase_at: str | None
    counters: SlotCounters | None
    bronze: BesideBronze | None
    threats: tuple[SlotThreat, ...]


def beside_bronze(state: StreamCheckpoint | None, confirmed: int | None, order: OrderDomain) -> BesideBronze | None:
    """What bronze holds beside a slot that is `confirmed` so far; None where it holds no stream."""
    if state is None:
        return None
    return BesideBronze(
        stream=state.stream,
        landed=format_stream_position(state.stream, state.upto),
        may_confirm=format_position(state.confirm, order),
        unconfirmed=None if confirmed is None else state.confirm - confirmed,
    )


def nothing_of_it(name: str) -> SlotThreat:
    """For a slot of the pipeline's name where bronze contains no stream."""
    remedy = "if no other program uses it: cdc-lake slot drop --yes; otherwise set `source.slot.name` to another name"
    return SlotThreat(f"bronze contains nothing of slot `{name}`: the first run does not take the slot over", remedy)


def unbounded_threat(*, own: bool, bound: str) -> SlotThreat:
    """For a slot that nobody reads where nothing bounds what is kept; `bound`: how it would be bounded."""
    read = "start the receiver: cdc-lake run" if own else "start its reader"
    text = "the slot has no reader and no limit on the WAL retained for it: it will eventually fill the server's disk"
    return SlotThreat(text, f"{read}; or drop it{bound}")


def held_already(bytes_held: int) -> SlotThreat:
    """For a slot that nobody reads, for which log is kept that bronze holds."""
    text = f"{size(bytes_held)} of WAL are retained that bronze already contains"
    return SlotThreat(text, "cdc-lake slot advance")


class SlotAdmin(Protocol):
    """The slots of a server. Every method raises SourceError."""

    def views(self) -> list[SlotView]:
        """Every slot, of other databases and readers too, by name."""

    def find(self, name: str) -> SlotFound | None:
        """A slot, and where the server's log ends."""

    def inspect(self, name: str, state: Callable[[], StreamCheckpoint | None]) -> SlotDetails | None:
        """Everything of one slot; `state`: what bronze holds, asked behind it: receivers land before they confirm."""

    def advance(self, state: Callable[[], StreamCheckpoint], upto: int | None) -> SlotAdvanced:
        """Let the slot forget what bronze (`state`) holds. Raises AdvancePastBronze, SlotActive, StateError."""

    def drop(self, name: str, wait: float) -> None:
        """Drop a slot, waiting so many seconds for who reads it. Raises SlotActive."""


class ComparisonSource(Protocol):
    """What a comparison asks of the source. Every method raises SourceError."""

    def captured_tables(self) -> list[PublishedTable]:
        """The tables that the stream carries, sorted."""

    def snapshot(self, tables: Sequence[TableName]) -> AbstractContextManager[SnapshotVisibility]:
        """One snapshot for all that is read inside."""

    def relation_of(self, source_table: PublishedTable) -> Relation:
        """The layout of a captured table, as the stream would announce it."""

    def parts(self, relation: Relation, source_table: PublishedTable) -> Iterator[pa.Table]:
        """The rows of a captured table that its filter takes, in blocks: large_string columns, text as printed."""

    def rows(self, relation: Relation, source_table: PublishedTable) -> pa.Table:
        """All of them in one table: for few."""

    def unsummable_reason(self, relation: Relation) -> str:
        """Why the server cannot sum up hashes of the rows that silver should have; empty where it can."""

    def sums(self, source_table: PublishedTable, hashed: HashSql) -> Iterator[tuple[int, int, int]]:
        """The same rows as `parts` gives, summed up by the server: bucket, number of rows, sum of their hashes."""

    def ahead(self, shown: SnapshotVisibility, after: int) -> Sequence[PendingTransaction] | None:
        """What the slot still has of what the snapshot shows, above position `after`; None where somebody reads it."""


def join_blocks(blocks: Iterable[pa.Table], relation: Relation) -> pa.Table:
    """All rows of some blocks of a table in one table."""
    empty = pa.schema([pa.field(name, pa.large_string()) for name in relation.names]).empty_table()
    return pa.concat_tables([empty, *blocks])


class RetainedWal(Protocol):
    """The log that a slot holds back."""

    def looking(self) -> AbstractContextManager[Callable[[], WalSample | None]]:
        """Connect; each call looks once, None where there is no slot that could be read. Raises SourceError."""

    def drop(self, patience: float) -> None:
        """Drop the slot, once its reader has gone, waited for up to `patience` seconds. Raises SourceError."""
