"""One slot as `slot inspect` shows it: every fact of it, what bronze holds of it, and what the facts threaten."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cdc_lake.bronze.port import BronzeState
from cdc_lake.model.position import OrderDomain, format_position
from cdc_lake.model.slot_counters import SlotCounters
from cdc_lake.pipeline.ports.action import size
from cdc_lake.pipeline.ports.slot_values import SlotView
from cdc_lake.source.stream import shown

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


def beside_bronze(state: BronzeState | None, confirmed: int | None, order: OrderDomain) -> BesideBronze | None:
    """What bronze holds beside a slot that is `confirmed` so far; None where it holds no stream."""
    if state is None:
        return None
    return BesideBronze(
        stream=state.stream,
        landed=shown(state.stream, state.upto),
        may_confirm=format_position(state.confirm, order),
        unconfirmed=None if confirmed is None else state.confirm - confirmed,
    )


def nothing_of_it(name: str) -> SlotThreat:
    """For a slot of the pipeline's name where bronze holds no stream."""
    remedy = "if nothing else uses it: cdc-lake slot drop --yes; otherwise name another one in `source.slot.name`"
    return SlotThreat(f"bronze holds nothing of slot `{name}`: the first run does not take it over", remedy)


def unbounded(*, own: bool, bound: str) -> SlotThreat:
    """For a slot that nobody reads where nothing bounds what is kept; `bound`: how it would be bounded."""
    read = "start the receiver: cdc-lake run" if own else "start who reads it"
    text = "nobody reads it and nothing bounds what is kept for it: in the end it fills the server's disk"
    return SlotThreat(text, f"{read}; or drop it{bound}")


def held_already(bytes_held: int) -> SlotThreat:
    """For a slot that nobody reads, for which log is kept that bronze holds."""
    text = f"{size(bytes_held)} of log are kept that bronze holds already"
    return SlotThreat(text, "cdc-lake slot advance")
