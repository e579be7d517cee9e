"""Messages of two-phase decoding: versions 3 and 4 of pgoutput's protocol.

A transaction that is prepared comes between Begin Prepare and Prepare, or in the blocks of a streamed one with Stream
Prepare behind them; what became of it comes later, alone. Specification: PostgreSQL's documentation, "Logical
Replication Message Formats".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from cdc_lake.decode.pgoutput import timestamp
from cdc_lake.decode.reader import Reader
from cdc_lake.errors import MalformedMessage

PREPARED_LETTERS: Final = frozenset(b"bPpKr")
"""Letters of the messages that are read here."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Which prepared transaction it is: of the PREPARE's record begin and end, and its time in µs since 1970 UTC."""

    xid: int
    gid: str
    lsn: int
    end_lsn: int
    at: int


@dataclass(frozen=True, slots=True)
class BeginPrepare:
    """`b`: what follows up to the Prepare is of this transaction."""

    prepared: Prepared


@dataclass(frozen=True, slots=True)
class Prepare:
    """`P`: it is prepared; nothing more comes of it but its end. `streamed`: `p`, of one that came in blocks."""

    prepared: Prepared
    streamed: bool


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    """`K`: a prepared transaction committed; the rest as in `records.Commit`."""

    xid: int
    gid: str
    commit_lsn: int
    end_lsn: int
    commit_ts: int


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    """`r`: a prepared transaction was rolled back at `at`, by a record that ends at `end_lsn`.

    `prepare_end_lsn` and `prepared_at`: the end of its PREPARE's record, and that one's time.
    """

    xid: int
    gid: str
    prepare_end_lsn: int
    end_lsn: int
    prepared_at: int
    at: int


PreparedMessage: TypeAlias = BeginPrepare | Prepare | CommitPrepared | RollbackPrepared


def prepared_message(payload: bytes) -> PreparedMessage | None:
    """The record of a message; None for a letter that is none of these. Raises DecodeError."""
    reader = Reader(payload)
    match reader.take(1):
        case b"b":
            found: PreparedMessage = BeginPrepare(_prepared(reader))
        case b"P" | b"p" as letter:
            _no_flags(reader)
            found = Prepare(_prepared(reader), letter == b"p")
        case b"K":
            _no_flags(reader)
            one = _prepared(reader)  # of the same form, with the commit's numbers
            found = CommitPrepared(one.xid, one.gid, one.lsn, one.end_lsn, one.at)
        case b"r":
            found = _rollback(reader)
        case _:
            return None
    reader.finish()
    return found


def _prepared(reader: Reader) -> Prepared:
    lsn, end_lsn = reader.lsn(), reader.lsn()
    at = reader.at
    when = timestamp(reader.i64(), at)
    return Prepared(reader.u32(), reader.cstring(), lsn, end_lsn, when)


def _rollback(reader: Reader) -> RollbackPrepared:
    _no_flags(reader)
    prepare_end, end = reader.lsn(), reader.lsn()
    at = reader.at
    prepared_at = timestamp(reader.i64(), at)
    rolled_back_at = timestamp(reader.i64(), at + 8)
    return RollbackPrepared(reader.u32(), reader.cstring(), prepare_end, end, prepared_at, rolled_back_at)


def _no_flags(reader: Reader) -> None:
    at = reader.at
    if flags := reader.u8():
        raise MalformedMessage(f"unknown flags {flags:#04x} of a prepared transaction", offset=at)
