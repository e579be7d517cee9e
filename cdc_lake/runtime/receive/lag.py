"""How far behind a pipeline is: the values a status is made of, the three lags, and prepared transactions.

Frozen values, from which text, JSON, metrics and reports are made. Lags are computed from what the source and the lake
said.
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
from cdc_lake.control.cuts import TableState
from cdc_lake.control.snapshots import TableTimeline
from cdc_lake.control.status_files import ReceiverWait
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
    """A prepared transaction that is kept: `prepared_at` its PREPARE, which lies at `position`; how many changes it
    has, and their bytes; the tables that they are of.
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
    """Those of the newest stream, the oldest first. `place`: where they are kept, None where the pipeline does not ask
    for them before their end.
    """

    place: str | None
    transactions: tuple[PreparedTransaction, ...]


def list_prepared(project: Project) -> PreparedList:
    """What is stored, whether a receiver runs or not. Raises LakeError."""
    if not _parks(project):
        return PreparedList(None, ())
    state = bronze_reader(project).state()
    return PreparedList(prepared_files(project).name, prepared_transactions(project, state))


def prepared_transactions(project: Project, state: StreamCheckpoint | None) -> tuple[PreparedTransaction, ...]:
    """Those of bronze's stream that are kept and whose end was not read, the oldest first. Raises LakeError."""
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
    """How far one stage is behind the source's newest position; None where it cannot be known.

    `bytes` of WAL, not known in the csn domain; `seconds` since the oldest transaction that waits was committed, 0
    where none does, for what is not in bronze at most since the last one that is; `transactions` that wait: to be
    applied as far as they are in bronze, to be received or landed as far as CSNs count them.
    """

    bytes: int | None = None
    seconds: float | None = None
    transactions: int | None = None


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """The slot: `active`, `idle`, `missing`, `lost` or `unknown`; bytes of WAL the server keeps for it.

    `safe_bytes`: what may still be written before it is in danger of being lost, None where nothing bounds what is
    kept; `counters`: what decoding it took the server, None where the server does not tell.
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
    """One table: `pending → snapshot → catching-up → live`, or `paused`, `held`, `failed`, `left`; why; how far.

    `verified_through`: how far it was last proven equal to the source, and when (`verified_at`); `different_at`: when
    it was last found to differ, if nothing proved it equal since. `code`: of what a failed table could not go on
    for, if that was recorded; `remedy`: the next command of a failed or held table.
    """

    source: str
    table: str
    format: str
    state: str
    reason: str
    position: str | None
    version: int | None
    held: int
    verified_through: str | None = None
    verified_at: datetime | None = None
    different_at: datetime | None = None
    code: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class QuarantinedRows:
    """Rows of a table kept back by a rule; `rule` is `waiting` for those behind a held change of their key."""

    table: str
    rule: str
    rows: int


@dataclass(frozen=True, slots=True)
class Status:
    """Where a pipeline stands at `at`. Positions are as people paste them. `undecodable`: what silver stops before.

    `receiver_waits`: what the receiver said it waits for, where it does; `withheld`: the newest pin of a cut, where
    rules kept it back and none was made since; `wal_budget`: how a receiver that runs saw it last, where there is one;
    `prepared`: transactions that are kept until their COMMIT PREPARED.
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
    held: tuple[QuarantinedRows, ...]
    undecodable: tuple[UndecodedTransaction, ...] = ()
    receiver_waits: ReceiverWait | None = None
    withheld: Withheld | None = None
    wal_budget: BudgetStatus | None = None
    prepared: tuple[PreparedTransaction, ...] = ()

    @property
    def troubles(self) -> tuple[str, ...]:
        """What somebody has to look at, in words; empty if nothing. Lag, pauses and held rows are none."""
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
    """What the source said: positions, its slot, and the tables it would send."""

    error: CdcLakeError | None = None
    end: int | None = None
    received: int | None = None
    slot: SlotSeen | None = None
    tables: tuple[TableName, ...] = ()


@dataclass(frozen=True, slots=True)
class LakeSide:
    """What the lake says. `waiting`: transactions above the last cut; `paused`: since when which source tables are;
    `passed`: transactions from where the first of those stayed; `courses`: how tables are followed.
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
    """Received, landed, applied: each counted from the source's newest position, as far as it is known.

    What was received is at least what has landed; more is known only where the server tells it.
    """
    landed_at = lake.state.upto if lake.state else None
    received_at = (
        max(p for p in (source.received, landed_at) if p is not None) if landed_at is not None else source.received
    )
    known_end = source.end if source.end is not None else landed_at
    behind_landed = _distance(source.end, landed_at)
    waiting = len(lake.waiting) if lake.state and lake.copied else None
    oldest = next((c.commit_ts for c in lake.waiting if c.commit_ts), None)
    applied_seconds = max(0.0, (now - oldest).total_seconds()) if oldest else 0.0 if waiting == 0 else None
    landed_seconds = _landed_seconds(behind_landed, lake, now)
    received, received_seconds = (
        _distance(source.end, received_at),
        landed_seconds if received_at == landed_at else None,
    )
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
    """Zero where nothing is missing; otherwise at most the time since the last commit that landed."""
    if distance == 0:
        return 0.0
    if distance is None or lake.last_commit is None:
        return None
    return max(0.0, (now - lake.last_commit).total_seconds())


def _distance(end: int | None, position: int | None) -> int | None:
    return max(0, end - position) if end is not None and position is not None else None
