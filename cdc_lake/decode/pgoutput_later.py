"""What the receiver does not ask pgoutput for, as JSON objects: versions 2 to 4 of the protocol, and binary values.

The receiver asks for version 1 in text and never sees these; `inspect payload` reads streams that others asked for.
Versions 2 to 4 brought streamed transactions and two-phase. Inside a streamed block the messages of version 1 have a
transaction id behind their letter. Specification: PostgreSQL's documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cdc_lake.decode.describe import Described, lsn_text, present, time_text
from cdc_lake.decode.pgoutput import POSTGRES_EPOCH
from cdc_lake.decode.reader import Reader

WITH_XID: Final = frozenset(b"RYIUDTM")
"""Letters of version 1 that are followed by a transaction id inside a streamed block."""

_ROW_HEAD: Final = 5  # bytes: letter and OID of the table
_PLAIN_ABORT: Final = 9  # bytes: letter and two transaction ids


def later(payload: bytes) -> Described | None:
    """The object of a message of a later version; None for a letter that is none of theirs. Raises DecodeError."""
    letter = payload[:1]
    if letter == b"A":
        read: Callable[[Reader], Described] = _parallel_abort if len(payload) > _PLAIN_ABORT else _stream_abort
    elif letter in _LETTERS:
        read = _LETTERS[letter]
    else:
        return None
    reader = Reader(payload)
    reader.take(1)
    found = read(reader)
    reader.finish()
    return found


def in_text(payload: bytes) -> tuple[bytes, dict[bytes, frozenset[int]]]:
    """A row message whose binary values stand as hexadecimal text, and which values of which tuple (N K O) they are.

    Takes any I, U or D; what is wrong with it otherwise stays as it is. Raises DecodeError where it ends early.
    """
    reader = Reader(payload)
    out = bytearray(reader.take(_ROW_HEAD))
    binary: dict[bytes, frozenset[int]] = {}
    while reader.at < len(payload):
        kind, count = reader.take(1), reader.u16()
        out += kind + count.to_bytes(2, "big")
        found = set()
        for at in range(count):
            value = reader.take(1)
            data = reader.take(reader.u32()) if value in {b"t", b"b"} else None
            if value == b"b" and data is not None:
                found.add(at)
                value, data = b"t", data.hex().encode()
            out += value + (b"" if data is None else len(data).to_bytes(4, "big") + data)
        binary[kind] = frozenset(found)
    return bytes(out), binary


def _stream_start(reader: Reader) -> Described:
    return {"type": "stream_start", "xid": reader.u32(), "first": reader.u8() == 1}


def _stream_stop(_reader: Reader) -> Described:
    return {"type": "stream_stop"}


def _stream_commit(reader: Reader) -> Described:
    xid = reader.u32()
    reader.u8()  # flags, none in use
    return present(type="stream_commit", **_ends(reader), xid=xid)


def _stream_abort(reader: Reader) -> Described:
    return {"type": "stream_abort", "xid": reader.u32(), "subxid": reader.u32()}


def _parallel_abort(reader: Reader) -> Described:
    """With parallel streaming (version 4) where and when come behind."""
    return {**_stream_abort(reader), **present(lsn=lsn_text(reader.lsn()), timestamp=_time(reader))}


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
    b"S": _stream_start,
    b"E": _stream_stop,
    b"c": _stream_commit,
    b"b": _begin_prepare,
    b"P": _prepared("prepare"),
    b"K": _prepared("commit_prepared"),
    b"r": _rollback_prepared,
    b"p": _prepared("stream_prepare"),
}
