"""What versions 2 to 4 of pgoutput's protocol brought, as JSON objects.

The receiver does not ask for two-phase; `inspect payload` reads streams that others asked for.
Specification: PostgreSQL's documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, assert_never

from cdc_lake.decode.describe import Described, lsn_text, present, time_text
from cdc_lake.decode.pgoutput import POSTGRES_EPOCH
from cdc_lake.decode.pgoutput_stream import (
    StreamAbort,
    StreamCommit,
    StreamMessage,
    StreamStart,
    StreamStop,
    stream_message,
)
from cdc_lake.decode.reader import Reader


def later(payload: bytes) -> Described | None:
    """The object of a message of a later version; None for a letter that is none of theirs. Raises DecodeError."""
    if (streamed := stream_message(payload)) is not None:
        return _streamed(streamed)
    if (read := _LETTERS.get(payload[:1])) is None:
        return None
    reader = Reader(payload)
    reader.take(1)
    found = read(reader)
    reader.finish()
    return found


def _streamed(message: StreamMessage) -> Described:
    match message:
        case StreamStart(xid=xid, first=first):
            return {"type": "stream_start", "xid": xid, "first": first}
        case StreamStop():
            return {"type": "stream_stop"}
        case StreamCommit(xid=xid, commit_lsn=lsn, end_lsn=end, commit_ts=at):
            ends = {"lsn": lsn_text(lsn), "end_lsn": lsn_text(end), "timestamp": time_text(at)}
            return {"type": "stream_commit", **ends, "xid": xid}
        case StreamAbort(xid=xid, subxid=subxid, lsn=lsn, at=at):
            return present(type="stream_abort", xid=xid, subxid=subxid, lsn=lsn_text(lsn), timestamp=time_text(at))
        case _ as never:
            assert_never(never)


def _begin_prepare(reader: Reader) -> Described:
    return present(type="begin_prepare", **_ends(reader), xid=reader.u32(), gid=reader.cstring())


def _prepared(kind: str) -> Callable[[Reader], Described]:
    def read(reader: Reader) -> Described:
        reader.u8()  # flags, none in use
        return present(type=kind, **_ends(reader), xid=reader.u32(), gid=reader.cstring())

    return read


def _rollback_prepared(reader: Reader) -> Described:
    reader.u8()  # flags, none in use
    prepared, ended = lsn_text(reader.lsn()), lsn_text(reader.lsn())
    _prepared_at, at = _time(reader), _time(reader)
    xid, gid = reader.u32(), reader.cstring()
    return present(type="rollback_prepared", lsn=prepared, end_lsn=ended, timestamp=at, xid=xid, gid=gid)


def _ends(reader: Reader) -> Described:
    return {"lsn": lsn_text(reader.lsn()), "end_lsn": lsn_text(reader.lsn()), "timestamp": _time(reader)}


def _time(reader: Reader) -> str | int | None:
    return time_text(reader.i64() + POSTGRES_EPOCH)


_LETTERS: Final[dict[bytes, Callable[[Reader], Described]]] = {
    b"b": _begin_prepare,
    b"P": _prepared("prepare"),
    b"K": _prepared("commit_prepared"),
    b"r": _rollback_prepared,
    b"p": _prepared("stream_prepare"),
}
