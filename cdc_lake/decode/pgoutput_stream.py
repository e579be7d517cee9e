"""Messages that frame streamed transactions: protocol versions 2 to 4 of pgoutput.

A transaction that is still under way at the server comes in blocks, between which others come. In a block the messages
of version 1 have a transaction id behind their letter, that of the subtransaction. Specification: PostgreSQL's
documentation, "Logical Replication Message Formats", "Streaming Messages".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from cdc_lake.decode.pgoutput import timestamp
from cdc_lake.decode.reader import Reader
from cdc_lake.errors import MalformedMessage

WITH_XID: Final = frozenset(b"RYIUDTM")
"""Letters of version 1 that stand inside a transaction; they are followed by its id inside a block."""

LETTERS: Final = frozenset(b"SEcA")
"""Letters of the messages that are read here."""

_PLAIN_ABORT: Final = 9  # bytes: letter and two transaction ids


@dataclass(frozen=True, slots=True)
class StreamStart:
    """`S`: a block of the transaction `xid` begins; `first`: its first one on this connection."""

    xid: int
    first: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    """`E`: the block ends."""


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """`c`: a streamed transaction committed; the rest as in `records.Commit`."""

    xid: int
    commit_lsn: int
    end_lsn: int
    commit_ts: int


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """`A`: of the transaction `xid` the subtransaction `subxid` was rolled back, or all of it, where they are the same.

    `lsn` and `at` (µs since 1970 UTC) come with parallel streaming only.
    """

    xid: int
    subxid: int
    lsn: int | None = None
    at: int | None = None


StreamMessage: TypeAlias = StreamStart | StreamStop | StreamCommit | StreamAbort


def stream_message(payload: bytes) -> StreamMessage | None:
    """The record of a message; None for a letter that is none of these. Raises DecodeError."""
    reader = Reader(payload)
    match reader.take(1):
        case b"S":
            found: StreamMessage = StreamStart(reader.u32(), reader.u8() == 1)
        case b"E":
            found = StreamStop()
        case b"c":
            found = _commit(reader)
        case b"A":
            found = _abort(reader, parallel=len(payload) > _PLAIN_ABORT)
        case _:
            return None
    reader.finish()
    return found


def without_xid(payload: bytes) -> bytes:
    """A message of a block as version 1 has it. Raises DecodeError where it ends before that."""
    Reader(payload).take(5)
    return payload[:1] + payload[5:]


def _commit(reader: Reader) -> StreamCommit:
    xid = reader.u32()
    at = reader.at
    if flags := reader.u8():
        raise MalformedMessage(f"unknown flags {flags:#04x} of a commit", offset=at)
    commit_lsn, end_lsn = reader.lsn(), reader.lsn()
    at = reader.at
    return StreamCommit(xid, commit_lsn, end_lsn, timestamp(reader.i64(), at))


def _abort(reader: Reader, *, parallel: bool) -> StreamAbort:
    xid, subxid = reader.u32(), reader.u32()
    if not parallel:
        return StreamAbort(xid, subxid)
    lsn = reader.lsn()
    at = reader.at
    return StreamAbort(xid, subxid, lsn, timestamp(reader.i64(), at))
