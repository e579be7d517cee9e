"""Boundaries: what a commit record of pgoutput says of its transaction, whole, streamed or prepared."""

from __future__ import annotations

from cdc_lake.decode.pgoutput_prepared import CommitPrepared
from cdc_lake.decode.pgoutput_stream import StreamCommit
from cdc_lake.decode.records import Commit
from cdc_lake.errors import MalformedMessage
from cdc_lake.model.transaction import Boundaries


def bounds_of(commit: Commit | StreamCommit | CommitPrepared, xid: int, origin: str | None) -> Boundaries:
    """The boundaries of the transaction `xid` that it ends.

    Raises MalformedMessage where the record ends before it starts.
    """
    if commit.end_lsn < commit.commit_lsn:
        end_lsn_at = 14 if isinstance(commit, StreamCommit) else 10
        raise MalformedMessage("a commit record that ends before it starts", offset=end_lsn_at)
    return Boundaries(
        position=commit.end_lsn,
        confirm=commit.end_lsn,
        commit_lsn=commit.commit_lsn,
        xid=xid,
        commit_ts=commit.commit_ts,
        origin=origin,
    )
