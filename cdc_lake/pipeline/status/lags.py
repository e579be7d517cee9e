"""How far behind a pipeline is: what the source and the lake said, and the three lags worked out from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.reader import CommitRow
from cdc_lake.errors import CdcLakeError
from cdc_lake.lake.control_rows import CutRow
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import TableName
from cdc_lake.pipeline.ports.view import SlotSeen
from cdc_lake.pipeline.state.copies import Course
from cdc_lake.pipeline.state.waiting import UndecodedTransaction
from cdc_lake.pipeline.status.values import Lag
from cdc_lake.source.stream import domain_of


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

    state: BronzeState | None
    copied: bool
    cut: CutRow | None
    tables: Mapping[str, Mapping[str, Any]]
    waiting: Sequence[CommitRow]
    last_commit: datetime | None
    captured: tuple[TableName, ...]
    undecodable: tuple[UndecodedTransaction, ...] = ()
    paused: Mapping[str, datetime] = field(default_factory=dict)
    passed: Sequence[CommitRow] = ()
    courses: Mapping[str, Course] = field(default_factory=dict)

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
    behind_landed = _behind(source.end, landed_at)
    waiting = len(lake.waiting) if lake.state and lake.copied else None
    oldest = next((c.commit_ts for c in lake.waiting if c.commit_ts), None)
    applied_seconds = max(0.0, (now - oldest).total_seconds()) if oldest else 0.0 if waiting == 0 else None
    landed_seconds = _landed_seconds(behind_landed, lake, now)
    received, received_seconds = _behind(source.end, received_at), landed_seconds if received_at == landed_at else None
    if lake.domain is OrderDomain.CSN:  # the distance of two CSNs is a number of transactions
        return {
            "received": Lag(None, received_seconds, received),
            "landed": Lag(None, landed_seconds, behind_landed),
            "applied": Lag(None, applied_seconds, waiting),
        }
    return {
        "received": Lag(received, received_seconds),
        "landed": Lag(behind_landed, landed_seconds),
        "applied": Lag(_behind(known_end, lake.silver), applied_seconds, waiting),
    }


def _landed_seconds(behind: int | None, lake: LakeSide, now: datetime) -> float | None:
    """Zero where nothing is missing; otherwise at most the time since the last commit that landed."""
    if behind == 0:
        return 0.0
    if behind is None or lake.last_commit is None:
        return None
    return max(0.0, (now - lake.last_commit).total_seconds())


def _behind(end: int | None, at: int | None) -> int | None:
    return max(0, end - at) if end is not None and at is not None else None
