"""An open stream, as the receive loop gets it from any server: frames, ordering, health, and policies.

An ordering takes transactions as they arrive and closes them one by one: everything up to a closed one's position has
arrived. `CommitLsnOrdering` closes each on arrival; `connectors.gaussdb.csn_order` sorts those of an ordinary slot by
CSN. Orderings are pure: the clock is an argument.

Opening waits for a slot that is still active, and refuses a slot that is ahead of bronze: changes are missing, or
another receiver landed them. The health of the loop contains only the newest values, each set as a whole, so that a
reader in another thread (`/healthz`) never sees an inconsistent one. The policies define what happens to undecodable
transactions (`bronze.undecodable`) and to text that is invalid in the encoding of its database.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from cdc_lake.bronze.contract import StreamCheckpoint, Tabulate, release_transaction
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.fields import compile_columns
from cdc_lake.config.project import Project
from cdc_lake.connectors.prepared_transactions import PreparedTransactions
from cdc_lake.connectors.snapshot_copy import Stopped
from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.encoding import Codec, InHex, Policy
from cdc_lake.decode.pgoutput.parser import Prepared
from cdc_lake.decode.transaction import ReceivedTransaction
from cdc_lake.decode.undecodable import Format, StopAtUndecodable, StoreUndecodable
from cdc_lake.errors import SlotActive, SlotAhead
from cdc_lake.model.position import OrderDomain, format_position
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.source.base import FrameSource, TransactionAssembler


@dataclass(frozen=True, slots=True)
class Gap:
    """CSNs `first` to `last`, which did not arrive in time and were passed over.

    `below` and `above` are the commit LSNs of the adjacent transactions, None if unknown.
    """

    first: int
    last: int
    below: int | None = None
    above: int | None = None

    def __str__(self) -> str:
        return f"CSN {self.first}" if self.first == self.last else f"CSNs {self.first} to {self.last}"


@dataclass(frozen=True, slots=True)
class OrderedTransaction:
    """One step of an ordering. Every transaction up to position `upto` has arrived and is closed now or before.

    `confirm` is the slot position that may be acknowledged once they are durable: every transaction that arrived with a
    confirm at or below it is closed. `transaction` is the one at `upto` if it has changes; otherwise nothing is landed.
    `empty` counts transactions without changes after the last one with changes; `gap` was passed over to get here, and
    is recorded before anything above it is landed.
    """

    upto: int
    confirm: int
    transaction: ReceivedTransaction | None
    empty: int = 0
    gap: Gap | None = None


class TransactionOrdering(Protocol):
    """Closes transactions by ascending position. One instance per connection: a new one starts from bronze's state."""

    @property
    def repeats(self) -> int:
        """Number of transactions dropped because they were closed before."""

    @property
    def waiting(self) -> int:
        """Number of transactions that arrived and are not closed yet."""

    def add(self, transaction: ReceivedTransaction) -> Sequence[OrderedTransaction]:
        """Take the next committed transaction, even without changes; returns what can be closed. Raises StateError."""

    def expire_gaps(self, opened: Collection[int] = ()) -> Sequence[OrderedTransaction]:
        """Check the clock, after each read of the stream; returns what is closed by passing over a gap.

        `opened`: CSNs whose BEGIN came and whose COMMIT did not. Raises CsnMissing.
        """


class CommitLsnOrdering:
    """Closes transactions on arrival: in the lsn domain, and for slots that send in CSN order and omit numbers.

    Bronze drops and counts repeated transactions. Transactions with a CSN at or below `snapshot_csn` are in the initial
    copy, wherever they are in the WAL, and are dropped here.
    """

    waiting = 0

    def __init__(self, snapshot_csn: int | None = None) -> None:
        self._snapshot_csn = -1 if snapshot_csn is None else snapshot_csn
        self.repeats = 0

    def add(self, transaction: ReceivedTransaction) -> Sequence[OrderedTransaction]:
        """Take the next committed transaction, even without changes; returns what can be closed."""
        bounds = transaction.bounds
        landed = transaction.count > 0
        if landed and bounds.csn is not None and bounds.csn <= self._snapshot_csn:
            self.repeats += 1
            landed = False
            release_transaction(transaction)
        return (OrderedTransaction(bounds.position, bounds.confirm, transaction if landed else None),)

    def expire_gaps(self, opened: Collection[int] = ()) -> Sequence[OrderedTransaction]:  # noqa: ARG002 - part of the port
        """Nothing: this ordering never waits."""
        return ()


PATIENCE = 15.0
"""Seconds to wait for a slot that is still active: a server needs time to notice that its reader crashed."""

T = TypeVar("T")


def do_nothing() -> None:
    """Do nothing in the background."""


@dataclass(frozen=True, slots=True)
class OpenStream:
    """A running stream after bronze's last position, and its parts.

    `assembler` makes transactions of its frames, `ordering` determines when they may be landed, `tabulate` converts
    them to columns, and `again` concurrently those of repeated transactions, for comparison. `goal` is a position in
    `domain`: everything committed before the connection was opened is at or below it. `copied`: rows of the preceding
    initial copy. `spilled`: bytes written by its spool, 0 without one. `prepared`: transactions, if stored.
    `raise_background_errors` raises errors of background tasks, which end the stream too. `synchronous`: whether
    commits at the source wait for the receiver's reply (`synchronous_standby_names` of PostgreSQL); called by the
    thread that reads the stream. `newest_decoded`: see `ReceiverHealth`.
    """

    frames: FrameSource
    assembler: TransactionAssembler
    ordering: TransactionOrdering
    tabulate: Tabulate
    again: Tabulate
    domain: OrderDomain
    state: StreamCheckpoint
    goal: int
    copied: int
    spilled: Callable[[], int] = int
    prepared: PreparedTransactions | None = None
    raise_background_errors: Callable[[], None] = do_nothing
    synchronous: Callable[[], bool] = bool
    newest_decoded: Callable[[], int | None] = do_nothing


def retry_while_slot_active(
    attempt: Callable[[], T], stop: threading.Event, report: ProgressReporter, patience: float
) -> T:
    """Retry while the slot is active elsewhere, for at most `patience` seconds; then raises SlotActive."""
    until, delay = time.monotonic() + patience, 0.1
    while True:
        try:
            return attempt()
        except SlotActive as active:
            if time.monotonic() + delay > until:
                raise
            report(ProgressEvent("retry", active.message, facts={"code": active.code}))
        if stop.wait(delay):
            raise Stopped
        delay = min(2 * delay, 2.0)


@contextmanager
def bronze_may_go_on(project: Project, state: StreamCheckpoint, confirmed: int | None) -> Iterator[None]:
    """Convert SlotAhead to SlotActive if bronze now has what the slot has confirmed: another receiver landed it."""
    try:
        yield
    except SlotAhead as ahead:
        now = bronze_reader(project).state()
        if now is None or confirmed is None or now.stream != state.stream or now.confirm < confirmed:
            raise
        text = f"slot `{project.slot}` is read by another receiver: bronze grew while the slot was being checked"
        raise SlotActive(text) from ahead


def backlog(what: str, position: int, begins: int, end: int, domain: OrderDomain) -> ProgressEvent:
    """The progress `received` or `applied` up to a position, between the start and the end of a backlog."""
    unit = "CSNs" if domain is OrderDomain.CSN else "bytes of WAL"
    shown, covered = format_position(position, domain), min(position, end) - begins
    return ProgressEvent("backlog", f"{what} up to {shown}", covered, end - begins, unit, {"position": shown})


class ReceiverHealth:
    """The health of a receiver.

    `streaming`: a stream is open; `state`: what bronze has of it; `progressed`: when everything received, or a part of
    it, was landed and acknowledged, by `clock`, in seconds; `landed_at`: when the stream was opened or bronze last
    advanced; `commit_ts`: of the newest landed transaction, microseconds since 1970, None without one or without its
    time; `open_bytes`: of transactions without their COMMIT; `spilled_bytes`: written to the spool so far; `prepared`:
    number of stored prepared transactions, None without two-phase decoding. `newest_decoded`: time of the newest WAL
    that the server has decoded, by its heartbeats, microseconds since 1970, None without any.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._landing: tuple[int, int | None] | None = None
        self.streaming = False
        self.state: StreamCheckpoint | None = None
        self.progressed = self.landed_at = -math.inf
        self.commit_ts: int | None = None
        self.open_bytes = self.spilled_bytes = 0
        self._spilled = 0  # of the open stream
        self.prepared: Sequence[Prepared] | None = None
        self.newest_decoded: int | None = None

    @contextmanager
    def follow_stream(self, state: StreamCheckpoint) -> Iterator[None]:
        """Set the state while a stream that continues from `state` is open."""
        self.progressed = self.landed_at = self._clock()
        self.state, self.streaming, self._spilled = state, True, 0
        try:
            yield
        finally:
            self.streaming, self.open_bytes, self.prepared, self.newest_decoded = False, 0, None, None

    def record_iteration(self, open_bytes: int, spilled: int, *, idle: bool) -> None:
        """Record an iteration; `spilled`: bytes spooled by the open stream; `idle`: nothing waits to be landed."""
        self.open_bytes = open_bytes
        self.spilled_bytes += spilled - self._spilled
        self._spilled = spilled
        if idle:
            self.progressed = self._clock()

    def commit_started(self, upto: int, commit_ts: int | None) -> None:
        """Record that a batch up to `upto` is being landed; its last transaction was committed at `commit_ts`."""
        self._landing = upto, commit_ts

    def commit_finished(self, upto: int, confirm: int) -> None:
        """Record that the batch is durable and acknowledged."""
        assert self.state is not None
        self.state = replace(self.state, upto=upto, confirm=confirm)
        self.progressed = self.landed_at = self._clock()
        if self._landing is not None and self._landing[0] <= upto:
            self.commit_ts, self._landing = self._landing[1], None


def lands(project: Project) -> bool:
    """Whether an undecodable transaction lands as its bytes."""
    return project.pipeline.bronze.undecodable == "land"


def by_policy(project: Project, form: Format[Any], report: ProgressReporter) -> Tabulate:
    """A function that converts transactions of a format to columns, with the pipeline's policy for undecodable ones."""
    if not lands(project):
        return StopAtUndecodable(form)
    keeping = StoreUndecodable(form)

    def columns(batch: Sequence[Any]) -> ChangeColumns:
        changes = keeping(batch)
        for why in changes.undecoded.values():
            text = f"a transaction that could not be decoded lands as bytes: {why.message}, in {why.where}"
            report(ProgressEvent("receive", text, facts={"code": why.code, "tables": list(why.tables)}))
        return changes

    return columns


def in_hex(project: Project) -> InHex | None:
    """The columns that store invalid text in hexadecimal digits; None if there are none."""
    source = project.pipeline.source
    if source.encoding_errors == "hex":
        return lambda _table, _column: True
    if not source.hex_columns:
        return None
    patterns = [compile_columns(text) for text in source.hex_columns]

    @lru_cache(maxsize=4096)
    def is_hex_column(table: TableName, column: str) -> bool:
        name = table.column(column)
        return any(pattern.fullmatch(name) for pattern in patterns)

    return is_hex_column


def codec_by_name(project: Project, encoding: str) -> Codec:
    """The codec of a database's encoding, with the pipeline's policy. Raises UnknownEncoding."""
    wanted = in_hex(project)
    return Codec(encoding) if wanted is None else Codec(encoding, Policy.HEX, wanted)


def sql_codec(project: Project, encoding: str) -> Codec:
    """The codec of what a server of the family returns for COPY: UTF-8, to which it converts.

    If invalid text is to be stored, it is the database's own encoding: the server could not convert such text.
    """
    own = codec_by_name(project, encoding)
    return own if own.policy is Policy.HEX and own.python != "utf-8" else codec_by_name(project, "UTF8")
