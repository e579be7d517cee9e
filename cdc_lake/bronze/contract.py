"""The contract of bronze, version 1: the meaning of every row, and what the receive loop needs of a bronze table.

Each pipeline has one append-only table. The rows of a commit are in one data file in `(position, ordinal)` order,
layout rows (`R`, no ordinal) first. A transaction is `B`, its changes, `C`, in one commit, or it does not exist in
bronze.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.gaussdb.batches import SpooledRecords
from cdc_lake.decode.pgoutput.spooled import SpooledTransaction
from cdc_lake.decode.transaction import ReceivedTransaction
from cdc_lake.model.relation import Relation

CONTRACT_VERSION = 1

BEGIN, RELATION, INSERT, UPDATE, DELETE, TRUNCATE, MESSAGE, COMMIT, SNAPSHOT, UNDECODABLE = "BRIUDTMCSX"

COLUMNS: tuple[tuple[str, pa.DataType, str], ...] = (
    ("stream", pa.string(), "source identity and slot incarnation; a recreated slot is another stream"),
    ("epoch", pa.int32(), "number of the stream within the pipeline; orders before position"),
    ("position", pa.int64(), "commit position in the stream's order domain"),
    (
        "ordinal",
        pa.int64(),
        (
            "0 = BEGIN, then the changes, last = COMMIT; NULL for layout rows; for rows of the copy unique over all "
            "tables; negative for rows that were read again, which therefore apply right before the position"
        ),
    ),
    (
        "op",
        pa.string(),
        "B begin, R layout, I U D T changes, M logical message, C commit, S row of a snapshot, X undecodable",
    ),
    ("csn", pa.int64(), "commit sequence number, NULL if the source has none"),
    ("first_lsn", pa.int64(), "LSN of the transaction's first record, NULL if the source does not report it"),
    ("commit_lsn", pa.int64(), "LSN of the commit record"),
    ("lsn", pa.int64(), "LSN of the change itself"),
    ("xid", pa.int64(), "transaction id as the stream reports it, 32 bits on PostgreSQL"),
    ("commit_ts", pa.timestamp("us", tz="UTC"), "commit time by the source's clock"),
    ("relation", pa.string(), "schema.table; a dot or backslash inside a part is escaped by a backslash"),
    ("layout", pa.int64(), "63-bit hash of the layout to which the arrays correspond"),
    ("new", pa.list_(pa.string()), "new tuple: texts by position in the layout; NULL = SQL NULL"),
    ("old", pa.list_(pa.string()), "old key or old row: texts by position in the layout"),
    ("old_kind", pa.string(), "key or full, NULL if there is no old tuple"),
    ("unchanged", pa.list_(pa.int32()), "positions in `new` whose values were not sent because they did not change"),
    ("raw", pa.binary(), "the bytes that could not be decoded, X only"),
    (
        "info",
        pa.string(),
        "JSON; B: user, origin; R: the layout; T: flags; M: prefix, content; C: counts, bytes, digests, empty_before",
    ),
    ("ingest_ts", pa.timestamp("us", tz="UTC"), "when the receiver built the row"),
)
"""Name, type and meaning of each column; the reference page is generated from it."""

SCHEMA = pa.schema([pa.field(name, kind) for name, kind, _ in COLUMNS])


def order_app(stream: str) -> str:
    """The application id whose version is `upto`: every transaction at or below it is in bronze.

    In the csn domain it is the complete CSN: every CSN up to it has arrived, with rows, without, or as a recorded gap.
    """
    return f"cdc_lake:{stream}"


def confirm_app(stream: str) -> str:
    """The application id whose version is the slot position that may be acknowledged; an ordinary slot's is an LSN."""
    return f"cdc_lake:{stream}:confirm"


def snapshot_app(stream: str, snapshot: str) -> str:
    """The application id of one snapshot's chunks; version = chunk number."""
    return f"cdc_lake:{stream}:snapshot:{snapshot}"


@dataclass(frozen=True, slots=True)
class StreamCheckpoint:
    """The state of a stream in a bronze table.

    `upto`: every transaction at or below it is in bronze, in the csn domain the complete CSN; `confirm`: the slot
    position that may be acknowledged; `head`: the hash of the last transaction (`decode.hashing`); `empty`: number of
    transactions without rows after that one.
    """

    stream: str
    epoch: int
    upto: int
    confirm: int
    head: bytes
    empty: int = 0


@dataclass(frozen=True, slots=True)
class BronzeCommit:
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
"""Converts raw transactions of one format to columns (`decode.pgoutput.columnar.tabulate` for pgoutput)."""


@dataclass(frozen=True, slots=True)
class TransactionBatch:
    """Whole transactions for one commit, ascending by position, and the state of bronze with them.

    Every transaction up to `upto` is in bronze then, and the slot position `confirm` may be acknowledged. `empty`:
    number of transactions without rows after the last of these. `steps`: these three values for a batch that ends with
    each transaction, or nothing.
    """

    transactions: Sequence[ReceivedTransaction]
    upto: int
    confirm: int
    empty: int = 0
    steps: Sequence[tuple[int, int, int]] = field(default=(), compare=False)

    def first(self, count: int) -> TransactionBatch:
        """The batch that ends with transaction number `count`; requires `steps`."""
        return TransactionBatch(self.transactions[:count], *self.steps[count - 1], self.steps[:count])


class BronzeWriter(Protocol):
    """Lands transactions. After a method returns, its data survives any crash (`durability: fsync`)."""

    def state(self) -> StreamCheckpoint | None:
        """The state of the newest stream, read from the table itself; None for an empty table."""

    def begin_stream(self, stream: str, start: int, confirm: int | None = None, *, after: int = 0) -> StreamCheckpoint:
        """Start a stream in the epoch after the last one and `after`: a commit without rows.

        Its transactions are above the position `start`; `confirm` is the slot's position there, in the lsn domain
        (None) the same number.
        """

    def append(self, batch: TransactionBatch | Sequence[ReceivedTransaction], tabulate: Tabulate = ...) -> BronzeCommit:
        """Commit whole transactions in order; those at or below `upto` are dropped. Raises LakeError, StateError.

        For a bare sequence, the last transaction determines the state. `tabulate` belongs to their format; the default
        is pgoutput's.
        """

    def advance(self, position: int, confirm: int, empty: int = 0) -> BronzeCommit:
        """Record by an empty commit that nothing is missing up to `position`, and that `confirm` may be acknowledged.

        `empty`: number of transactions without rows after the last one with rows. For PostgreSQL both positions are a
        keepalive's WAL end.
        """

    def turn_back(self, position: int) -> StreamCheckpoint:
        """Record by an empty commit that bronze is complete up to `position` only; returns the state.

        For an lsn domain whose WAL differs after it; the caller has checked that bronze has nothing there.
        """

    def append_snapshot(
        self, snapshot: str, chunk: int, relation: Relation, rows: object, first_ordinal: int, position: int
    ) -> BronzeCommit:
        """Commit a chunk of snapshot rows, a list<string> array by position in the layout; a repeat is dropped."""

    def as_landed(self, relation: Relation) -> Relation:
        """The layout of snapshot rows in bronze, which differs if columns are redacted."""


InParts: TypeAlias = SpooledTransaction | SpooledRecords
"""A large transaction of any format, which is not in memory as a whole: it can be read in parts, and released."""


def release_transaction(transaction: ReceivedTransaction) -> None:
    """Free the disk space of a transaction that does not land."""
    if isinstance(transaction, InParts):
        transaction.release()
