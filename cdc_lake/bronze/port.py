"""The bronze port: what the receive loop needs of a bronze table, whatever its format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.raw import Raw
from cdc_lake.model.relation import Relation


@dataclass(frozen=True, slots=True)
class BronzeState:
    """What a bronze table says of a stream.

    `upto`: every transaction at or below it is in bronze, in the csn domain the complete CSN; `confirm`: the slot
    position that may be confirmed; `head`: the hash of the last transaction (`decode.digest`); `empty`: transactions
    without rows that were counted behind that one.
    """

    stream: str
    epoch: int
    upto: int
    confirm: int
    head: bytes
    empty: int = 0


@dataclass(frozen=True, slots=True)
class Landed:
    """What one commit made durable."""

    upto: int
    confirm: int
    transactions: int
    changes: int
    repeats: int  # transactions dropped because bronze already held them
    bytes_written: int
    version: int  # of the bronze table
    operations: Mapping[str, int] = field(default_factory=dict)  # of the changes: `I U D T M X` → how many


Tabulate: TypeAlias = Callable[[Sequence[Any]], ChangeColumns]
"""Makes columns of the changes of raw transactions of one format (`decode.columnar.tabulate` for pgoutput)."""


@dataclass(frozen=True, slots=True)
class ClosedBatch:
    """Whole transactions for one commit, ascending by position, and what bronze is once they are in it.

    Every transaction up to `upto` is in bronze then, and the slot position `confirm` may be confirmed. `empty`:
    transactions without rows counted behind the last of these. `steps`: for each transaction these three as they are
    where the batch ends with it, or nothing.
    """

    transactions: Sequence[Raw]
    upto: int
    confirm: int
    empty: int = 0
    steps: Sequence[tuple[int, int, int]] = field(default=(), compare=False)

    def first(self, count: int) -> ClosedBatch:
        """The batch that ends with its transaction number `count`, of one with `steps`."""
        return ClosedBatch(self.transactions[:count], *self.steps[count - 1], self.steps[:count])


class BronzeWriter(Protocol):
    """Lands transactions. After a method returns, what it took survives a crash of everything (`durability: fsync`)."""

    def state(self) -> BronzeState | None:
        """What bronze holds of the newest stream, read from the table itself; None for an empty table."""
        ...

    def begin_stream(self, stream: str, start: int, confirm: int | None = None, *, after: int = 0) -> BronzeState:
        """Start a stream in the epoch after the last one and `after`: a commit without rows.

        Its transactions lie above the position `start`; `confirm` is the slot's position there, in the lsn domain
        (None) the same number.
        """
        ...

    def append(self, batch: ClosedBatch | Sequence[Raw], tabulate: Tabulate = ...) -> Landed:
        """Commit whole transactions in order; those at or below `upto` are dropped. Raises LakeError, StateError.

        Of a bare sequence the last transaction says what bronze is then. `tabulate` belongs to their format; pgoutput's
        is the default.
        """
        ...

    def advance(self, position: int, confirm: int, empty: int = 0) -> Landed:
        """Record by an empty commit that nothing is missing up to `position`, and that `confirm` may be confirmed.

        `empty`: transactions without rows counted behind the last one that has. PostgreSQL: a keepalive's WAL end, for
        both.
        """
        ...

    def turn_back(self, position: int) -> BronzeState:
        """Record by an empty commit that bronze is complete up to `position` only, and may confirm no more; its state.

        For an lsn domain whose log is another one behind it; the caller has seen that bronze holds nothing there.
        """
        ...

    def append_snapshot(
        self, snapshot: str, chunk: int, relation: Relation, rows: object, first_ordinal: int, position: int
    ) -> Landed:
        """Commit a chunk of snapshot rows, a list<string> array by position in the layout; a repeat is dropped."""
        ...

    def as_landed(self, relation: Relation) -> Relation:
        """The layout that snapshot rows of one have in bronze: another one where columns are redacted on the way."""
        ...
