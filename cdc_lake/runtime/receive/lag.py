"""How far a pipeline is behind: the values of a status, the three lags, and prepared transactions.

Text, JSON, metrics and reports are made of these frozen values. Lags are computed from what source and lake report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.reader import CommitRow
from cdc_lake.config.project import Project
from cdc_lake.config.source import PostgresSource
from cdc_lake.connectors.base import SlotSeen
from cdc_lake.connectors.prepared_transactions import prepared_files, read_file, waiting_files
from cdc_lake.connectors.wal_budget import BudgetStatus
from cdc_lake.control.coordination import ReceiverWait
from cdc_lake.control.cuts import TableState
from cdc_lake.control.snapshots import TableTimeline
from cdc_lake.control.streams import UndecodedTransaction
from cdc_lake.decode.undecodable import announced_in
from cdc_lake.errors import CdcLakeError
from cdc_lake.model.position import Lsn, OrderDomain
from cdc_lake.model.relation import TableName
from cdc_lake.runtime.cut_gate import Withheld
from cdc_lake.source.base import SlotCounters, domain_of
from cdc_lake.tables.control_schema import CutRow


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A stored prepared transaction: time and position of its PREPARE; number and bytes of its changes; their
    tables.
    """

    gid: str
    xid: int
    position: str
    prepared_at: datetime
    changes: int
    bytes: int
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PreparedList:
    """Those of the newest stream, oldest first. `place`: where they are stored, None if the pipeline does not use
    two-phase decoding.
    """

    place: str | None
    transactions: tuple[PreparedTransaction, ...]


def list_prepared(project: Project) -> PreparedList:
    """The stored prepared transactions, whether a receiver runs or not. Raises LakeError."""
    if not _parks(project):
        return PreparedList(None, ())
    state = bronze_reader(project).state()
    return PreparedList(prepared_files(project).name, prepared_transactions(project, state))


def prepared_transactions(project: Project, state: StreamCheckpoint | None) -> tuple[PreparedTransaction, ...]:
    """Those of bronze's stream that are stored and have not ended, oldest first. Raises LakeError."""
    if state is None or not _parks(project):
        return ()
    place, transactions = prepared_files(project), []
    for name in waiting_files(place, state.epoch):
        prepared, content = read_file(place, name, part=1)
        tables = {str(table) for announcement in content.announcements for table in announced_in(announcement.payload)}
        tables.update(content.tables)
        transactions.append(
            PreparedTransaction(
                gid=prepared.gid,
                xid=prepared.xid,
                position=str(Lsn(prepared.lsn)),
                prepared_at=datetime.fromtimestamp(prepared.prepared_at / 1e6, UTC),
                changes=len(content.frames),
                bytes=content.frames.size,
                tables=tuple(sorted(tables)),
            )
        )
    return tuple(sorted(transactions, key=lambda announcement: announcement.prepared_at))


def _parks(project: Project) -> bool:
    source = project.pipeline.source
    return isinstance(source, PostgresSource) and source.decoding.two_phase


@dataclass(frozen=True, slots=True)
class Lag:
    """How far one stage is behind the source's newest position; None if unknown.

    `bytes` of WAL, unknown in the csn domain; `seconds` since the commit of the oldest waiting transaction, 0 without
    one, and for what is not in bronze at most since the last one that is; `transactions` that wait: to be applied if
    they are in bronze, to be received or landed if CSNs count them.
    """

    bytes: int | None = None
    seconds: float | None = None
    transactions: int | None = None


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """The slot: `active`, `idle`, `missing`, `lost` or `unknown`; bytes of WAL that the server retains for it.

    `safe_bytes`: how much may still be written before the slot may be lost, None without a limit; `counters`: the
    server's statistics of decoding, None if it has none.
    """

    name: str
    state: str
    reason: str
    retained_bytes: int | None = None
    confirmed: str | None = None
    safe_bytes: int | None = None
    counters: SlotCounters | None = None


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One table: `pending → snapshot → catching-up → live`, or `paused`, `quarantined`, `failed`, `left`; the reason;
    its lag.

    `verified_through`: position up to which it was last proven equal to the source, and when (`verified_at`);
    `different_at`: when it was last found to differ, if nothing proved it equal since. `code`: error of a failed table,
    if recorded; `remedy`: the next command for a failed or held table.
    """

    source: str
    table: str
    format: str
    state: str
    reason: str
    position: str | None
    version: int | None
    quarantined: int
    verified_through: str | None = None
    verified_at: datetime | None = None
    different_at: datetime | None = None
    code: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class QuarantinedRows:
    """Quarantined rows of a table; `rule` is `waiting` for those queued behind another change of their key."""

    table: str
    rule: str
    rows: int


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a pipeline at `at`. Positions are as commands print them. `undecodable`: where silver stops.

    `receiver_waits`: what the receiver waits for; `withheld`: the newest pin that rules withheld, if none was made
    since; `wal_budget`: as a running receiver saw it last; `prepared`: transactions stored until their COMMIT PREPARED.
    """

    pipeline: str
    at: datetime
    source: str
    reachable: bool
    unreachable_because: str
    stream: str | None
    epoch: int | None
    source_position: str | None
    bronze_position: str | None
    silver_position: str | None
    last_commit: datetime | None
    received: Lag
    landed: Lag
    applied: Lag
    slot: SlotStatus
    tables: tuple[TableStatus, ...]
    quarantined: tuple[QuarantinedRows, ...]
    undecodable: tuple[UndecodedTransaction, ...] = ()
    receiver_waits: ReceiverWait | None = None
    withheld: Withheld | None = None
    wal_budget: BudgetStatus | None = None
    prepared: tuple[PreparedTransaction, ...] = ()

    @property
    def troubles(self) -> tuple[str, ...]:
        """What needs attention, in words; empty if nothing. Lag, pauses and quarantined rows do not."""
        texts = [] if self.reachable else [f"the source is not reachable: {self.unreachable_because}"]
        if self.slot.state == "lost" or (self.slot.state == "missing" and self.stream is not None):
            texts.append(f"slot `{self.slot.name}` is {self.slot.state}: {self.slot.reason}")
        if self.receiver_waits is not None:
            texts.append(f"the receiver waits: {self.receiver_waits.message}")
        if self.undecodable:
            texts.append(f"silver stops before {self.undecodable[0].position}, which could not be decoded")
        texts += [f"{table.table} failed: {table.reason}" for table in self.tables if table.state == "failed"]
        return tuple(texts)


@dataclass(frozen=True, slots=True)
class SourceSide:
    """What the source reported: positions, its slot, and the tables that it would send."""

    error: CdcLakeError | None = None
    end: int | None = None
    received: int | None = None
    slot: SlotSeen | None = None
    tables: tuple[TableName, ...] = ()


@dataclass(frozen=True, slots=True)
class LakeSide:
    """What the lake reported. `waiting`: transactions after the last cut; `paused`: paused source tables, and since
    when; `passed`: transactions since the first of those pauses; `courses`: timelines of tables.
    """

    state: StreamCheckpoint | None
    copied: bool
    cut: CutRow | None
    tables: Mapping[str, TableState]
    waiting: Sequence[CommitRow]
    last_commit: datetime | None
    captured: tuple[TableName, ...]
    undecodable: tuple[UndecodedTransaction, ...] = ()
    paused: Mapping[str, datetime] = field(default_factory=dict)
    passed: Sequence[CommitRow] = ()
    courses: Mapping[str, TableTimeline] = field(default_factory=dict)

    @property
    def domain(self) -> OrderDomain:
        """What orders the stream that bronze holds."""
        return domain_of(self.state.stream) if self.state else OrderDomain.LSN

    @property
    def silver(self) -> int | None:
        """The position of the last cut."""
        return self.cut.position if self.cut is not None else None


def lags_of(source: SourceSide, lake: LakeSide, now: datetime) -> dict[str, Lag]:
    """Received, landed, applied: each counted from the source's newest position, if known.

    What has landed was received; that more was received is known only if the server reports it.
    """
    landed_at = lake.state.upto if lake.state else None
    received_at = max((p for p in (source.received, landed_at) if p is not None), default=None)
    known_end = source.end if source.end is not None else landed_at
    behind_landed = _distance(source.end, landed_at)
    waiting = len(lake.waiting) if lake.state and lake.copied else None
    oldest = next((c.commit_ts for c in lake.waiting if c.commit_ts), None)
    applied_seconds = max(0.0, (now - oldest).total_seconds()) if oldest else 0.0 if waiting == 0 else None
    landed_seconds = _landed_seconds(behind_landed, lake, now)
    received = _distance(source.end, received_at)
    received_seconds = landed_seconds if received_at == landed_at else None
    if lake.domain is OrderDomain.CSN:  # the distance of two CSNs is a number of transactions
        return {
            "received": Lag(None, received_seconds, received),
            "landed": Lag(None, landed_seconds, behind_landed),
            "applied": Lag(None, applied_seconds, waiting),
        }
    return {
        "received": Lag(received, received_seconds),
        "landed": Lag(behind_landed, landed_seconds),
        "applied": Lag(_distance(known_end, lake.silver), applied_seconds, waiting),
    }


def _landed_seconds(distance: int | None, lake: LakeSide, now: datetime) -> float | None:
    """Zero if nothing is missing; otherwise at most the time since the last commit that landed."""
    if distance == 0:
        return 0.0
    if distance is None or lake.last_commit is None:
        return None
    return max(0.0, (now - lake.last_commit).total_seconds())


def _distance(end: int | None, position: int | None) -> int | None:
    return max(0, end - position) if end is not None and position is not None else None
