"""The bronze port: what the receive loop needs of a bronze table, whatever its format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cdc_lake.decode.raw import RawTransaction
from cdc_lake.model.relation import Relation


@dataclass(frozen=True, slots=True)
class BronzeState:
    """What a bronze table says of a stream.

    `upto`: every transaction at or below it is in bronze; `confirm`: the slot position that may be confirmed; `head`:
    the hash of the last transaction (`decode.digest`).
    """

    stream: str
    epoch: int
    upto: int
    confirm: int
    head: bytes


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


class BronzeWriter(Protocol):
    """Lands transactions. After a method returns, what it took survives a crash of everything (`durability: fsync`)."""

    def state(self) -> BronzeState | None:
        """What bronze holds of the newest stream, read from the table itself; None for an empty table."""
        ...

    def begin_stream(self, stream: str, start: int) -> BronzeState:
        """Start a stream at its slot's consistent point, in the epoch after the last one: a commit without rows."""
        ...

    def append(self, batch: Sequence[RawTransaction]) -> Landed:
        """Commit whole transactions in order; those at or below `upto` are dropped. Raises LakeError, StateError."""
        ...

    def advance(self, position: int) -> Landed:
        """Record by an empty commit that nothing is missing up to `position` (a keepalive's WAL end)."""
        ...

    def append_snapshot(
        self, snapshot: str, chunk: int, relation: Relation, rows: object, first_ordinal: int, position: int
    ) -> Landed:
        """Commit a chunk of snapshot rows, a list<string> array by position in the layout; a repeat is dropped."""
        ...
