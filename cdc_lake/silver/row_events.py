"""What moves rows: changes without their values, and what became of each (`silver.lineage`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from cdc_lake.model.decision import CEILING, Place

Key: TypeAlias = tuple[str | None, ...]

Unit: TypeAlias = tuple[int, bool]
"""What is held as a whole: the transaction at a position, or with True the decisions that come into force before it."""

TRUNCATE: Final = "T"
MISSING: Final = "missing_row"
"""What a change breaks that does not have every value, of a row that is not there."""

TAKEN: Final = "key_taken"
"""What a change breaks that brings a second row to a key."""

DISCARDED: Final = "discarded"
"""What a change breaks that does not tell all of a row of which changes were given up."""


@dataclass(frozen=True, slots=True)
class Event:
    """One change, reduced to what moves rows: `old` is the key it leaves, `new` the key it has afterwards.

    Insert: new. Delete: old. Update: both, equal where the key stayed. Truncate (`op` T): neither. `failed`: a rule
    holds it; `partial`: it is held where its row is not there. `left_to`: the key that a row went to as it left silver,
    as only silver's row tells: where the change waits that is not the source's row, and that key waits too. `again`: no
    change, but what a key has by then, as the source was asked: an insert, or a delete where no row has it. `decides`:
    the held change that it is a decision on, which is let through by this event, or `given_up`. `old_digest` and
    `new_digest`: of all values of the row before and after it; None where they are not known, or not asked for.
    """

    position: int
    ordinal: int
    op: str
    old: Key | None = None
    new: Key | None = None
    failed: bool = False
    partial: bool = False
    left_to: Key | None = None
    again: bool = False
    decides: Place | None = None
    given_up: bool = False
    old_digest: int | None = None
    new_digest: int | None = None

    @property
    def keys(self) -> frozenset[Key]:
        """The keys that it touches."""
        return frozenset(key for key in (self.old, self.new) if key is not None)

    @property
    def unit(self) -> Unit | None:
        """What it is held with; None of what was read again, which is of no transaction."""
        return None if self.again and self.decides is None else (self.position, self.decides is not None)


@dataclass(frozen=True, slots=True)
class Traced:
    """What became of an event: `row` numbers rows, `origin` is the key the row had in silver, None if it is new.

    `waits`: a key of it was held before. `broke`: why it is held by itself, where no rule holds it. `dropped`: it is
    nothing, a decision on what no longer waits.
    """

    position: int
    ordinal: int
    row: int
    origin: Key | None
    held: bool
    waits: bool = False
    broke: str | None = None
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Closing:
    """What ended holds: a truncate those of all keys (`key`: None), a row that was read again those of its own."""

    position: int
    ordinal: int
    key: Key | None = None


def unit_of(position: int, ordinal: int, op: str) -> Unit | None:
    """What the change at a place, of op `S` where it is a copied row or one that was read again, is held with."""
    decided = ordinal < CEILING
    return (position, decided) if decided or op != "S" else None
