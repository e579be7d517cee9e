"""What a status is made of: frozen values, from which text, JSON, metrics and reports are made."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from cdc_lake.model.slot_counters import SlotCounters
from cdc_lake.pipeline.inspect.parked import PreparedTransaction
from cdc_lake.pipeline.judging.cut_verdict import Withheld
from cdc_lake.pipeline.state.receiver_note import Waiting
from cdc_lake.pipeline.state.waiting import UndecodedTransaction
from cdc_lake.pipeline.wal.note import BudgetStatus


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
    """One table: `pending → snapshot → catching-up → live`, or `paused`, `held`, `broken`, `left`; why; how far.

    `verified_through`: how far it was last proven equal to the source, and when (`verified_at`); `different_at`: when
    it was last found to differ, if nothing proved it equal since. `code`: of what a broken table could not go on
    for, if that was recorded; `remedy`: the next command of a broken or held table.
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
class HeldRows:
    """Rows of a table kept back by a rule; `rule` is `waiting` for those behind a held change of their key."""

    table: str
    rule: str
    rows: int


@dataclass(frozen=True, slots=True)
class Status:
    """Where a pipeline stands at `at`. Positions are as people paste them. `undecodable`: what silver stops before.

    `receiver_waits`: what the receiver said it waits for, where it does; `withheld`: the newest promise of a cut, where
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
    held: tuple[HeldRows, ...]
    undecodable: tuple[UndecodedTransaction, ...] = ()
    receiver_waits: Waiting | None = None
    withheld: Withheld | None = None
    wal_budget: BudgetStatus | None = None
    prepared: tuple[PreparedTransaction, ...] = ()

    @property
    def troubles(self) -> tuple[str, ...]:
        """What somebody has to look at, in words; empty if nothing. Lag, pauses and held rows are none."""
        out = [] if self.reachable else [f"the source is not reachable: {self.unreachable_because}"]
        if self.slot.state == "lost" or (self.slot.state == "missing" and self.stream is not None):
            out.append(f"slot `{self.slot.name}` is {self.slot.state}: {self.slot.reason}")
        if self.receiver_waits is not None:
            out.append(f"the receiver waits: {self.receiver_waits.message}")
        if self.undecodable:
            out.append(f"silver stops before {self.undecodable[0].position}, which could not be decoded")
        out += [f"{one.table} is broken: {one.reason}" for one in self.tables if one.state == "broken"]
        return tuple(out)
