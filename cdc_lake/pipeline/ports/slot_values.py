"""What the verbs of `slot` return: frozen values, from which text and JSON are made."""

from __future__ import annotations

from dataclasses import dataclass

from cdc_lake.errors import AdvancePastBronze
from cdc_lake.model.position import Lsn


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
    """A slot that may be dropped: `confirmed` as people paste it, `retained` bytes of log; `end` of the server's log,
    None where the slot's positions are not those of the log.
    """

    confirmed: str | None
    retained: int | None
    end: int | None


def within_bronze(held: int, upto: int | None) -> int:
    """The position that a slot may forget up to, where bronze holds all to `held`. Raises AdvancePastBronze."""
    target = held if upto is None else upto
    if target > held:
        raise AdvancePastBronze(
            f"{target - held} bytes would be missing: bronze ends at {Lsn(held)}, before {Lsn(target)}"
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
