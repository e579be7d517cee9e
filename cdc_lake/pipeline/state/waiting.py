"""Waiting: undecodable transactions that silver stops before, as errors and views name them.

A cut is whole, so nothing passes one: not even a table that it certainly does not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from cdc_lake.bronze.reader import BronzeReader, CommitRow
from cdc_lake.errors import TransactionUndecoded
from cdc_lake.model.span import Span
from cdc_lake.source.stream import shown


@dataclass(frozen=True, slots=True)
class UndecodedTransaction:
    """One transaction that is in bronze as bytes. `tables`: those it changes, as far as they could be read.

    `code`, `message`, `where`: the error that decoding gave; `by`: the version that could not; `frames`: its rows `X`.
    """

    epoch: int
    position: str
    commit_ts: datetime | None
    xid: int | None
    tables: tuple[str, ...]
    frames: int
    bytes: int
    code: str
    message: str
    where: str
    by: str


def waiting(reader: BronzeReader, span: Span, stream: str) -> tuple[UndecodedTransaction, ...]:
    """The undecodable transactions of a span, in order."""
    return tuple(view(stream, commit) for commit in reader.undecodable(span))


def view(stream: str, commit: CommitRow) -> UndecodedTransaction:
    """An undecodable transaction as people see it."""
    why = commit.undecoded
    assert why is not None
    return UndecodedTransaction(
        epoch=commit.epoch,
        position=shown(stream, commit.position),
        commit_ts=commit.commit_ts,
        xid=commit.xid,
        tables=why.tables,
        frames=why.frames,
        bytes=commit.size,
        code=why.code,
        message=why.message,
        where=why.where,
        by=why.by,
    )


def undecoded(stream: str, commit: CommitRow) -> TransactionUndecoded:
    """The error of stopping before a transaction."""
    one = view(stream, commit)
    return TransactionUndecoded(
        f"the transaction at {one.position} is in bronze as bytes: {one.message} ({one.code}, {_changes(one.tables)})",
        where=one.where,
    )


def _changes(tables: Sequence[str]) -> str:
    return f"it changes {', '.join(tables)}" if tables else "what it changes could not be read"
