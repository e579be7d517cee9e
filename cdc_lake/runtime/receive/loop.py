"""The receive loop: read a stream, put its transactions in order, commit them to bronze in batches, acknowledge.

One commit is in flight at a time, while the next batch is read, and decoded as it arrives. If the lake is unreachable
or full, the commit waits (`runtime.receive.commit_pipeline`), and so does the loop. Transactions without their COMMIT
are kept by the assembler.

Batches minimize latency when idle and maximize size under load: a transaction that arrives after a pause is due at
once; while batches follow one another, each waits until `max_delay` after the previous one, or until it is full.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TypeAlias

from cdc_lake.bronze.contract import BronzeCommit, BronzeWriter, InParts, TransactionBatch
from cdc_lake.bronze.row_builder import one_thread
from cdc_lake.config.model import Batch
from cdc_lake.config.project import Project
from cdc_lake.connectors.gaussdb.csn_order import keep_late, record_gap
from cdc_lake.connectors.open_stream import OpenStream, OrderedTransaction, ReceiverHealth, backlog
from cdc_lake.decode.transaction import DecodedMarker, ReceivedTransaction
from cdc_lake.errors import DecodeError, LateTransaction
from cdc_lake.model.diagnostic import pluralize
from cdc_lake.model.position import OrderDomain, format_position
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.observability.failpoints import (
    BATCH_OPEN,
    BEGUN,
    BRONZE_COMMITTED,
    CHANGE_TAKEN,
    COMMIT_RECEIVED,
    CONFIRMED,
    FRAMES_READ,
    failpoint,
    is_armed,
)
from cdc_lake.runtime.receive.commit_pipeline import PART_BYTES, BronzeCommitPipeline
from cdc_lake.runtime.receive.wal_budget_monitor import WalBudgetMonitor
from cdc_lake.source.base import TransactionAssembler
from cdc_lake.tables.control_files import control_files
from cdc_lake.tables.control_tables import ControlTables


class OpenBatch:
    """Whole transactions waiting for a commit; closed by bytes, changes, transactions or age, whichever is first.

    `upto`, `confirm` and `empty` are bronze's state after everything taken so far is in it; transactions without
    changes, which need no commit of their own, advance them too. `to_decode`: bytes not passed to decoding yet;
    `limits` may be changed at any time.
    """

    def __init__(self, limits: Batch, clock: Callable[[], float], upto: int, confirm: int) -> None:
        """`clock` counts seconds; `upto` and `confirm` are those of bronze now."""
        self.limits = limits
        self._clock = clock
        self.upto, self.confirm, self.empty = upto, confirm, 0
        self._transactions: list[ReceivedTransaction] = []
        self._steps: list[tuple[int, int, int]] = []
        self._bytes = self._rows = 0
        self._handed, self.to_decode = 0, 0
        self._since = self._closed = -math.inf  # arrival of its oldest transaction, end of the previous batch

    def __len__(self) -> int:
        return len(self._transactions)

    def add(self, closed: OrderedTransaction) -> None:
        """Take one more step, in order."""
        self.upto = max(self.upto, closed.upto)
        self.confirm = max(self.confirm, closed.confirm)
        self.empty = closed.empty
        transaction = closed.transaction
        if transaction is None:
            return
        if not self._transactions:
            self._since = self._clock()
        self._transactions.append(transaction)
        self._steps.append((self.upto, self.confirm, self.empty))
        self._bytes += transaction.size
        self.to_decode += transaction.size
        self._rows += transaction.count

    @property
    def is_full(self) -> bool:
        """True if a size limit is reached."""
        limits = self.limits
        return (
            self._bytes >= limits.max_bytes
            or self._rows >= limits.max_rows
            or len(self._transactions) >= limits.max_transactions
        )

    @property
    def due_in(self) -> float:
        """Seconds until it is to be closed, at most `max_delay` after its oldest transaction; zero or less: now."""
        return max(self._since, self._closed + self.limits.max_delay / 1000) - self._clock()

    def hand_over(self) -> Sequence[ReceivedTransaction]:
        """The transactions not passed to decoding yet. Their bytes are released, except large ones on disk."""
        handed = self._transactions[self._handed :]
        self._transactions[self._handed :] = [
            raw if isinstance(raw, InParts) else DecodedMarker(raw.bounds, raw.size, raw.count) for raw in handed
        ]
        self._handed, self.to_decode = len(self._transactions), 0
        return handed

    def take(self) -> TransactionBatch:
        """Close the batch: return its transactions and markers, and empty it."""
        transactions, self._transactions = self._transactions, []
        steps, self._steps = self._steps, []
        self._bytes = self._rows = self._handed = self.to_decode = 0
        self._closed = self._clock()
        return TransactionBatch(transactions, self.upto, self.confirm, self.empty, steps)


Feed: TypeAlias = Callable[[bytes, int], Sequence[ReceivedTransaction]]


def feeding(assembler: TransactionAssembler) -> Feed:
    """The assembler's `feed`, with a failpoint after each message if one inside transactions is armed."""
    feed = assembler.feed
    if not is_armed(BEGUN, CHANGE_TAKEN):
        return feed

    def feed_message(payload: bytes, lsn: int) -> Sequence[ReceivedTransaction]:
        transactions = feed(payload, lsn)
        if assembler.in_transaction:
            failpoint(CHANGE_TAKEN if assembler.open_bytes else BEGUN)
        return transactions

    return feed_message


BACKPRESSURE_SECONDS = 0.05
"""Seconds between two checks of a commit while nothing is read."""
ADVANCE_EVERY = 10.0
"""Seconds between empty commits that only advance the position; each adds to the table's log."""
ADVANCE_ASKED = 1.0
"""The same if the server requests a reply: a server that shuts down waits until the end of its WAL is acknowledged."""


@dataclass(frozen=True, slots=True)
class ReceiveSummary:
    """Result of a run of the loop. `upto` and `confirm` are bronze's at its end, None if no stream was begun."""

    stream: str | None = None
    transactions: int = 0
    changes: int = 0
    bytes: int = 0
    snapshot_rows: int = 0
    repeats: int = 0
    upto: int | None = None
    confirm: int | None = None
    seconds: float = 0.0
    reconnects: int = 0


class ReceiveLoop:
    """Streams replication connections, one after the other, into bronze.

    Guarantee: a position is acknowledged to the server only after the bronze commit that contains every transaction up
    to it is durable. While a commit is in flight the next batch is read and decoded; when that one is full too, or
    decoding is behind, reading stops and only keepalives are answered.
    """

    def __init__(
        self,
        project: Project,
        bronze: BronzeWriter,
        control: ControlTables,
        *,
        once: bool,
        stop: threading.Event,
        report: ProgressReporter,
        connected: AbstractContextManager[object],
        health: ReceiverHealth,
        watch: WalBudgetMonitor | None = None,
        clock: Callable[[], float] = time.monotonic,
        worker: Callable[[str], Executor] = one_thread,
    ) -> None:
        """`clock` counts seconds; `worker`: see `BronzeCommitPipeline`."""
        self._project = project
        self._limits = project.pipeline.bronze.batch
        self._bronze = bronze
        self._control = control
        self.once = once
        self.stop = stop
        self.report = report
        self._while_connected = connected
        self._health = health
        self._watch = watch
        self._clock = clock
        self._worker = worker
        self._goal: int | None = None
        self._begins = 0
        self._last = 0  # position of the last transaction passed to bronze
        self._started = clock()
        self._summary = ReceiveSummary()

    @property
    def has_connected(self) -> bool:
        """True once a stream was open."""
        return self._goal is not None

    def run(self, stream: OpenStream) -> None:
        """Process one connection's stream until a stop is requested or, with `once`, the goal is reached.

        Raises:
            SourceError: The connection was lost; the caller reconnects.
            DecodeError: A message cannot be decoded; everything before it is committed.
            SlotGivenUp: The WAL budget is used up.
            LakeError: Bronze cannot be written.
        """
        state = stream.state
        if self._goal is None:
            self._goal, self._begins = stream.goal, state.upto
        self._summary = replace(self._summary, stream=state.stream)
        self.count(snapshot_rows=stream.copied)
        self._domain, self._last = stream.domain, 0
        self._record_position(state.upto, state.confirm)
        self._batch = OpenBatch(self._limits, self._clock, state.upto, state.confirm)
        self._advanced_at = self._clock()
        commits = BronzeCommitPipeline(self._bronze, stream.tabulate, self._worker)
        try:
            with self._health.follow_stream(state), commits, self._while_connected:
                while not self._should_stop():
                    self.enforce_wal_budget()
                    stream.raise_background_errors()
                    self._acknowledge(stream, commits, commits.poll())  # durable first, then acknowledged
                    if commits.is_saturated or (commits.in_flight and self._batch.is_full):
                        stream.frames.tick()
                        commits.wait(BACKPRESSURE_SECONDS)
                        continue
                    self._read_messages(stream, commits)
                    self._commit_if_due(stream, commits)
                    idle = not commits.in_flight and not len(self._batch)
                    self._health.record_iteration(stream.assembler.open_bytes, stream.spilled(), idle=idle)
                    self._health.newest_decoded = stream.newest_decoded()
                    self._health.prepared = None if stream.prepared is None else stream.prepared.waiting
                self._acknowledge(stream, commits, commits.drain())
        finally:
            self.count(repeats=stream.ordering.repeats)

    def enforce_wal_budget(self) -> None:
        """Apply the measures of the WAL budget. Raises SlotGivenUp."""
        if self._watch is not None:
            self._watch.enforce_wal_budget()
            if self.has_connected:
                self._batch.limits = self._watch.limits(self._limits)

    def _should_stop(self) -> bool:
        if self.stop.is_set():
            position = format_position(self._upto, self._domain)
            self.report(ProgressEvent("receive", f"stopping: bronze is complete up to {position}"))
            return True
        # on a busy server one more commit is always in flight; it is awaited after the loop
        return self._reaches_goal(self._upto)

    def _reaches_goal(self, position: int) -> bool:
        return self.once and self._goal is not None and position >= self._goal

    def _read_messages(self, stream: OpenStream, commits: BronzeCommitPipeline) -> None:
        """Feed what the server has sent to the assembler, and queue the transactions that committed."""
        frames = stream.frames.poll(self._poll_seconds(commits))
        if frames:
            failpoint(FRAMES_READ)
        feed = feeding(stream.assembler)
        for lsn, payload in frames:
            try:
                transactions = feed(payload, lsn)
            except DecodeError:
                self._commit_everything(stream, commits)  # nothing valid may be lost
                raise
            if transactions:  # most frames complete nothing, and even an empty loop costs time
                for transaction in transactions:
                    self._enqueue(stream, transaction, commits)
        open_csn = stream.assembler.open_csn
        self._enqueue_ordered(stream, stream.ordering.expire_gaps(() if open_csn is None else (open_csn,)), commits)
        if len(self._batch):
            failpoint(BATCH_OPEN)

    def _poll_seconds(self, commits: BronzeCommitPipeline) -> float:
        """How long to wait for messages while nothing else is due."""
        if commits.in_flight:
            return 0.01
        if len(self._batch):
            return min(max(self._batch.due_in, 0.0), 0.2)
        return 0.05 if self.once else 0.2

    def _enqueue(self, stream: OpenStream, transaction: ReceivedTransaction, commits: BronzeCommitPipeline) -> None:
        if transaction.count:
            failpoint(COMMIT_RECEIVED)
        try:
            ordered = stream.ordering.add(transaction)
        except LateTransaction as late:
            self._acknowledge(stream, commits, commits.drain())
            commits.join_decoders()
            late.where = keep_late(control_files(self._project, "late"), stream.state, transaction, stream.tabulate)
            raise
        self._enqueue_ordered(stream, ordered, commits)

    def _enqueue_ordered(
        self, stream: OpenStream, transactions: Sequence[OrderedTransaction], commits: BronzeCommitPipeline
    ) -> None:
        for ordered in transactions:
            if ordered.gap is not None:
                record_gap(self._control, stream.state, ordered.gap)
                self.report(ProgressEvent("receive", f"missing {ordered.gap} recorded as a gap; continuing without it"))
            self._batch.add(ordered)
            if self._batch.is_full and not commits.in_flight:
                self._commit_batch(commits)
            elif self._batch.to_decode >= PART_BYTES:
                commits.decode(self._batch.hand_over())

    def _commit_if_due(self, stream: OpenStream, commits: BronzeCommitPipeline) -> None:
        if commits.in_flight:
            return
        if not len(self._batch):
            self._advance_position(stream, commits)
        elif self._batch.is_full or self._batch.due_in <= 0 or self._reaches_goal(self._batch.upto):
            self._commit_batch(commits)

    def _commit_everything(self, stream: OpenStream, commits: BronzeCommitPipeline) -> None:
        """Commit what is complete and in order before a message that cannot be read."""
        for transaction in stream.assembler.completed_transactions:
            self._enqueue(stream, transaction, commits)
        self._acknowledge(stream, commits, commits.drain())
        if len(self._batch):
            self._commit_batch(commits)
            self._acknowledge(stream, commits, commits.drain())

    def _commit_batch(self, commits: BronzeCommitPipeline) -> None:
        commits.decode(self._batch.hand_over())
        batch = self._batch.take()
        self.count(bytes=sum(transaction.size for transaction in batch.transactions))
        self._last = batch.transactions[-1].bounds.position
        self._health.commit_started(batch.upto, batch.transactions[-1].bounds.commit_ts)
        commits.append(batch)

    def _advance_position(self, stream: OpenStream, commits: BronzeCommitPipeline) -> None:
        """Record by an empty commit how far the stream is beyond the last row, so that it can be acknowledged.

        Transactions without changes advance it, and in the LSN domain what a keepalive announced while no transaction
        was open. In the CSN domain keepalives do not count.
        """
        inside = stream.assembler.in_transaction
        upto, confirm = self._batch.upto, self._batch.confirm
        if self._domain is OrderDomain.LSN and not inside:
            end = stream.frames.keepalive_end
            upto, confirm = max(upto, end), max(confirm, end)
        now = self._clock()
        asked, further = stream.frames.reply_requested, upto > self._upto or confirm > self._confirmed
        waited_for = asked and further  # the server may send nothing more before this is acknowledged
        if self.once and self._goal is not None and upto < self._goal and not waited_for:
            if not inside and now - self._advanced_at > 0.1:
                self._advanced_at = now
                stream.frames.tick(ping=True)
            return
        pause = 0.0 if self.once else ADVANCE_ASKED if asked else ADVANCE_EVERY
        if further and (now - self._advanced_at >= pause or stream.synchronous()):
            self._advanced_at = now
            commits.advance(upto, confirm, self._batch.empty)

    def _acknowledge(self, stream: OpenStream, commits: BronzeCommitPipeline, commit: BronzeCommit | None) -> None:
        """Let the server discard the WAL that `commit` made durable. Raises the error that ended the commit."""
        if commit is not None:
            if commit.transactions:
                failpoint(BRONZE_COMMITTED)
            self._record_position(commit.upto, commit.confirm)
            stream.frames.confirm(commit.confirm)
            self._health.commit_finished(commit.upto, commit.confirm)
            if commit.transactions:
                failpoint(CONFIRMED)
            if stream.prepared is not None:
                stream.prepared.clean(min(self._last, commit.upto), commit.confirm)
            self.count(transactions=commit.transactions, changes=commit.changes, repeats=commit.repeats)
            if commit.transactions:
                self._report_commit(commit, stream.frames.keepalive_end)
        if commits.fault is not None:
            raise commits.fault

    def _report_commit(self, commit: BronzeCommit, server_end: int) -> None:
        position = format_position(commit.upto, self._domain)
        facts = {
            "position": position,
            "upto": commit.upto,
            "transactions": commit.transactions,
            "changes": commit.changes,
            "operations": dict(commit.operations),
            "bytes": commit.bytes_written,
            "version": commit.version,
            "server_end": server_end,
        }
        text = f"{pluralize(commit.transactions, 'transaction')} up to {position}"
        self.report(ProgressEvent("landed", text, self._summary.changes, None, "changes", facts))
        if self.once and self._goal is not None:
            self.report(backlog("received", commit.upto, self._begins, self._goal, self._domain))

    def _record_position(self, upto: int, confirm: int) -> None:
        self._upto, self._confirmed = upto, confirm
        self._summary = replace(self._summary, upto=upto, confirm=confirm)

    def count(self, **more: int) -> None:
        """Add to the counters of the summary."""
        self._summary = replace(self._summary, **{name: getattr(self._summary, name) + n for name, n in more.items()})

    def summary(self) -> ReceiveSummary:
        """The result so far."""
        return replace(self._summary, seconds=self._clock() - self._started)
