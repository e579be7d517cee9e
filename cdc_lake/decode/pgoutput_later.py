"""What versions 2 to 4 of pgoutput's protocol brought, as JSON objects.

Specification: PostgreSQL's documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

from typing import assert_never

from cdc_lake.decode.describe import Described, lsn_text, present, time_text
from cdc_lake.decode.pgoutput_prepared import (
    BeginPrepare,
    CommitPrepared,
    Prepare,
    Prepared,
    PreparedMessage,
    RollbackPrepared,
    prepared_message,
)
from cdc_lake.decode.pgoutput_stream import (
    StreamAbort,
    StreamCommit,
    StreamMessage,
    StreamStart,
    StreamStop,
    stream_message,
)


def later(payload: bytes) -> Described | None:
    """The object of a message of a later version; None for a letter that is none of theirs. Raises DecodeError."""
    if (streamed := stream_message(payload)) is not None:
        return _streamed(streamed)
    two_phase = prepared_message(payload)
    return None if two_phase is None else _two_phase(two_phase)


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


def _two_phase(message: PreparedMessage) -> Described:
    match message:
        case BeginPrepare(prepared=one):
            return _prepared("begin_prepare", one)
        case Prepare(prepared=one, streamed=streamed):
            return _prepared("stream_prepare" if streamed else "prepare", one)
        case CommitPrepared(commit_lsn=lsn, end_lsn=end, commit_ts=at, xid=xid, gid=gid):
            ends = {"lsn": lsn_text(lsn), "end_lsn": lsn_text(end), "timestamp": time_text(at)}
            return {"type": "commit_prepared", **ends, "xid": xid, "gid": gid}
        case RollbackPrepared(prepare_end_lsn=lsn, end_lsn=end, at=at, xid=xid, gid=gid):
            ends = {"lsn": lsn_text(lsn), "end_lsn": lsn_text(end), "timestamp": time_text(at)}
            return {"type": "rollback_prepared", **ends, "xid": xid, "gid": gid}
        case _ as never:
            assert_never(never)


def _prepared(kind: str, one: Prepared) -> Described:
    ends = {"lsn": lsn_text(one.lsn), "end_lsn": lsn_text(one.end_lsn), "timestamp": time_text(one.at)}
    return {"type": kind, **ends, "xid": one.xid, "gid": one.gid}
