"""Transactions: what committed together, with the boundaries the source gave."""

from __future__ import annotations

from dataclasses import dataclass, field

from cdc_lake.model.change import Change


@dataclass(frozen=True, slots=True)
class Boundaries:
    """The BEGIN and COMMIT of one transaction, each number as the source gave it, None where the source has none.

    `position` orders it in the stream's domain (PostgreSQL: the end LSN of the commit record). `confirm` is the slot
    position that may be confirmed once it is durable. `commit_ts` is microseconds since 1970-01-01 UTC. `empty_before`
    counts the transactions without changes (of other databases, of tables that are not captured) that stand between it
    and the last one with changes; always 0 where the source does not send such.
    """

    position: int
    confirm: int
    commit_lsn: int | None = None
    first_lsn: int | None = None
    csn: int | None = None
    xid: int | None = None
    commit_ts: int | None = None
    user: str | None = None
    origin: str | None = None
    empty_before: int = 0


@dataclass(frozen=True, slots=True)
class Transaction:
    """A committed transaction: its boundaries and its changes in order, each with the LSN the source gave it."""

    bounds: Boundaries
    changes: tuple[Change, ...]
    lsns: tuple[int | None, ...] = field(default=())
