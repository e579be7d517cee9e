"""Batches: which transactions go into one bronze commit.

Latency first when idle, size first under load: what arrives after a pause is due at once; while batches follow one
another each waits until `max_delay` after the one before it, or until it is full.

How the receive loop gives messages to an assembler: straight, but where a failpoint between two of them is armed.

What the receiver does with a stream: reads, puts transactions in order, lands them in batches, and confirms.

One commit is under way at a time, while the next batch is read, and decoded as it comes. When that one is full too, or
decoding is behind, nothing more is read: the server waits, and is answered meanwhile. So it is while the lake is away
or full (`runtime.receive.commit_pipeline`). What becomes of a transaction whose COMMIT has not come is the assembler's.
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
from cdc_lake.tables.control_tables import ControlTables


class OpenBatch:
    """Whole transactions waiting for a commit; closed by bytes, changes, transactions or age, whichever is first.

    `upto`, `confirm` and `empty` are what bronze's state will be once everything taken so far is in it: they move on
    with transactions without changes too, which need no commit of their own. `to_decode`: bytes of what was not handed
    over for decoding.
    """

    def __init__(self, limits: Batch, clock: Callable[[], float], upto: int, confirm: int) -> None:
        """`clock` counts seconds; `upto` and `confirm` are bronze's now."""
        self._limits = limits
        self._clock = clock
        self.upto, self.confirm, self.empty = upto, confirm, 0
        self._transactions: list[ReceivedTransaction] = []
        self._steps: list[tuple[int, int, int]] = []
        self._bytes = self._rows = 0
        self._handed, self.to_decode = 0, 0
        self._since = self._closed = -math.inf  # when its oldest transaction came, when the batch before it was closed

    def __len__(self) -> int:
        return len(self._transactions)

    def restrict(self, limits: Batch) -> None:
        """Close by these limits from now on."""
        self._limits = limits

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
    def full(self) -> bool:
        """True where a limit of size is reached."""
        limits = self._limits
        return (
            self._bytes >= limits.max_bytes
            or self._rows >= limits.max_rows
            or len(self._transactions) >= limits.max_transactions
        )

    @property
    def due_in(self) -> float:
        """Seconds until it is to be closed, at most `max_delay` after its oldest transaction; not above zero: now."""
        return max(self._since, self._closed + self._limits.max_delay / 1000) - self._clock()

    def hand_over(self) -> Sequence[ReceivedTransaction]:
        """The transactions that were not handed over for decoding yet. Their bytes are held no longer, but for large
        ones, whose bytes are on disk.
        """
        handed = self._transactions[self._handed :]
        self._transactions[self._handed :] = [
            raw if isinstance(raw, InParts) else DecodedMarker(raw.bounds, raw.size, raw.count) for raw in handed
        ]
        self._handed, self.to_decode = len(self._transactions), 0
        return handed

    def take(self) -> TransactionBatch:
        """Close it: its transactions and markers, and it holds no transaction any more."""
        transactions, self._transactions = self._transactions, []
        steps, self._steps = self._steps, []
        self._bytes = self._rows = self._handed = self.to_decode = 0
        self._closed = self._clock()
        return TransactionBatch(transactions, self.upto, self.confirm, self.empty, steps)


Feed: TypeAlias = Callable[[bytes, int], Sequence[ReceivedTransaction]]


def feeding(assembler: TransactionAssembler) -> Feed:
    """The assembler's `feed`; where a failpoint inside transactions is armed, it is passed behind each message."""
    feed = assembler.feed
    if not is_armed(BEGUN, CHANGE_TAKEN):
        return feed

    def feed_message(payload: bytes, lsn: int) -> Sequence[ReceivedTransaction]:
        transactions = feed(payload, lsn)
        if assembler.in_transaction:
            failpoint(CHANGE_TAKEN if assembler.open_bytes else BEGUN)
        return transactions

    return feed_message


ADVANCE_EVERY = 10.0
"""Seconds between empty commits that only move the position on (hard on the log of the table, so not often)."""
ADVANCE_ASKED = 1.0
"""The same when the server asks for a reply: one that shuts down waits for us to confirm the end of its log."""


@dataclass(frozen=True, slots=True)
class ReceiveSummary:
    """What a run of the loop did. `upto` and `confirm` are bronze's at its end, None where no stream was begun."""

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
    """One run of the loop over however many connections it takes."""

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
        pulse: ReceiverHealth,
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
        self._pulse = pulse
        self._watch = watch
        self._clock = clock
        self._worker = worker
        self._goal: int | None = None
        self._begins = 0
        self._last = 0  # position of the last transaction that was handed to bronze
        self._started = clock()
        self._summary = ReceiveSummary()

    @property
    def has_connected(self) -> bool:
        """True once a stream was open."""
        return self._goal is not None

    def follow(self, stream: OpenStream) -> None:
        """Read one connection's stream until told to stop or at the goal."""
        if self._goal is None:
            self._goal, self._begins = stream.goal, stream.state.upto
        state = stream.state
        self._last = 0
        self.count(snapshot_rows=stream.copied)
        self._summary = replace(self._summary, stream=state.stream)
        self._domain = stream.domain
        self._note(state.upto, state.confirm)
        self._batch = OpenBatch(self._limits, self._clock, state.upto, state.confirm)
        self._advanced_at = self._clock()
        try:
            with self._pulse.beating(state):
                self._loop(stream)
        finally:
            self.count(repeats=stream.order.repeats)

    def _loop(self, stream: OpenStream) -> None:
        with BronzeCommitPipeline(self._bronze, stream.tabulate, self._worker) as landing, self._while_connected:
            while not self._is_finished():
                self.enforce_wal_budget()
                stream.raise_background_errors()
                self._take_landed(stream, landing)
                if landing.is_saturated or (landing.busy and self._batch.full):
                    stream.frames.tick()
                    landing.rest(0.05)
                    continue
                self._read(stream, landing)
                self._commit_what_is_due(stream, landing)
                idle = not landing.busy and not len(self._batch)
                self._pulse.record_iteration(stream.assembler.open_bytes, stream.spilled(), idle=idle)
                self._pulse.newest_decoded = stream.newest_decoded()
                self._pulse.prepared = None if stream.parked is None else stream.parked.waiting
            self._finish(stream, landing)

    def enforce_wal_budget(self) -> None:
        """What the budget of WAL asks for. Raises SlotGivenUp."""
        if self._watch is not None:
            self._watch.enforce_wal_budget()
            if self.has_connected:
                self._batch.restrict(self._watch.limits(self._limits))

    def _is_finished(self) -> bool:
        if self.stop.is_set():
            position = format_position(self._upto, self._domain)
            self.report(ProgressEvent("receive", f"stopping: bronze is whole up to {position}"))
            return True
        # one more commit may be under way, and where the server is busy always is: it is waited for behind the loop
        return self._reaches_goal(self._upto)

    def _reaches_goal(self, position: int) -> bool:
        return self.once and self._goal is not None and position >= self._goal

    def _read(self, stream: OpenStream, landing: BronzeCommitPipeline) -> None:
        """Take what the server has sent, waiting as long as nothing else is due."""
        frames = stream.frames.poll(self._wait(landing))
        if frames:
            failpoint(FRAMES_READ)
        feed = feeding(stream.assembler)
        for lsn, payload in frames:
            try:
                transactions = feed(payload, lsn)
            except DecodeError:
                self._land_all(stream, landing)
                raise
            if transactions:  # most frames complete nothing, and a loop over nothing has its cost
                for transaction in transactions:
                    self._take(stream, transaction, landing)
        opened = stream.assembler.open_csn
        self._add(stream, stream.order.tend(() if opened is None else (opened,)), landing)
        if len(self._batch):
            failpoint(BATCH_OPEN)

    def _wait(self, landing: BronzeCommitPipeline) -> float:
        if landing.busy:
            return 0.01
        if len(self._batch):
            return min(max(self._batch.due_in, 0.0), 0.2)
        return 0.05 if self.once else 0.2

    def _take(self, stream: OpenStream, transaction: ReceivedTransaction, landing: BronzeCommitPipeline) -> None:
        if transaction.count:
            failpoint(COMMIT_RECEIVED)
        try:
            closed = stream.order.take(transaction)
        except LateTransaction as late:
            self._finish(stream, landing)
            landing.join_decoders()
            late.where = str(keep_late(self._project.control, stream.state, transaction, stream.tabulate))
            raise
        self._add(stream, closed, landing)

    def _add(self, stream: OpenStream, closed: Sequence[OrderedTransaction], landing: BronzeCommitPipeline) -> None:
        for ordered in closed:
            if ordered.gap is not None:
                record_gap(self._control, stream.state, ordered.gap)
                self.report(ProgressEvent("receive", f"{ordered.gap} did not arrive: recorded, and passed over"))
            self._batch.add(ordered)
            if self._batch.full and not landing.busy:
                self._append(landing)
            elif self._batch.to_decode >= PART_BYTES:
                landing.decode(self._batch.hand_over())

    def _commit_what_is_due(self, stream: OpenStream, landing: BronzeCommitPipeline) -> None:
        if landing.busy:
            return
        if not len(self._batch):
            self._advance(stream, landing)
        elif self._batch.full or self._batch.due_in <= 0 or self._reaches_goal(self._batch.upto):
            self._append(landing)

    def _land_all(self, stream: OpenStream, landing: BronzeCommitPipeline) -> None:
        """Nothing more can be read: what came whole before that is landed, as far as it is in order."""
        for transaction in stream.assembler.completed_transactions:
            self._take(stream, transaction, landing)
        self._finish(stream, landing)
        if len(self._batch):
            self._append(landing)
            self._finish(stream, landing)

    def _append(self, landing: BronzeCommitPipeline) -> None:
        landing.decode(self._batch.hand_over())
        batch = self._batch.take()
        self.count(bytes=sum(transaction.size for transaction in batch.transactions))
        self._last = batch.transactions[-1].bounds.position
        self._pulse.commit_started(batch.upto, batch.transactions[-1].bounds.commit_ts)
        landing.append(batch)

    def _advance(self, stream: OpenStream, landing: BronzeCommitPipeline) -> None:
        """No rows are pending: how far the stream is beyond them may be recorded, and then confirmed.

        What moves it are transactions without changes and, in the lsn domain, what a keepalive announced while no
        transaction was open. In the csn domain a keepalive counts nothing.
        """
        inside = stream.assembler.in_transaction
        upto, confirm = self._batch.upto, self._batch.confirm
        if self._domain is OrderDomain.LSN and not inside:
            end = stream.frames.keepalive_end
            upto, confirm = max(upto, end), max(confirm, end)
        now = self._clock()
        asked, further = stream.frames.reply_requested, upto > self._upto or confirm > self._confirmed
        waited_for = asked and further  # nothing more may come before it is confirmed
        if self.once and self._goal is not None and upto < self._goal and not waited_for:
            if not inside and now - self._advanced_at > 0.1:
                self._advanced_at = now
                stream.frames.tick(ping=True)
            return
        pause = 0.0 if self.once else ADVANCE_ASKED if asked else ADVANCE_EVERY
        if further and (now - self._advanced_at >= pause or stream.synchronous()):
            self._advanced_at = now
            landing.advance(upto, confirm, self._batch.empty)

    def _take_landed(self, stream: OpenStream, landing: BronzeCommitPipeline) -> None:
        """Confirm what the commit under way made durable, once it is done; raises what it ended at."""
        self._confirm(stream, landing.poll())
        if landing.fault is not None:
            raise landing.fault

    def _finish(self, stream: OpenStream, landing: BronzeCommitPipeline) -> None:
        """The same, waiting for it."""
        self._confirm(stream, landing.finish())
        if landing.fault is not None:
            raise landing.fault

    def _confirm(self, stream: OpenStream, landed: BronzeCommit | None) -> None:
        """What a commit made durable, the server may forget."""
        if landed is None:
            return
        if landed.transactions:
            failpoint(BRONZE_COMMITTED)
        self._note(landed.upto, landed.confirm)
        stream.frames.confirm(landed.confirm)
        self._pulse.commit_finished(landed.upto, landed.confirm)
        if landed.transactions:
            failpoint(CONFIRMED)
        if stream.parked is not None:
            stream.parked.clean(min(self._last, landed.upto), landed.confirm)
        self.count(transactions=landed.transactions, changes=landed.changes, repeats=landed.repeats)
        if landed.transactions:
            position = format_position(landed.upto, self._domain)
            facts = {
                "position": position,
                "upto": landed.upto,
                "transactions": landed.transactions,
                "changes": landed.changes,
                "operations": dict(landed.operations),
                "bytes": landed.bytes_written,
                "version": landed.version,
                "server_end": stream.frames.keepalive_end,
            }
            text = f"{pluralize(landed.transactions, 'transaction')} up to {position}"
            self.report(ProgressEvent("landed", text, self._summary.changes, None, "changes", facts))
            if self.once and self._goal is not None:
                self.report(backlog("received", landed.upto, self._begins, self._goal, self._domain))

    def _note(self, upto: int, confirm: int) -> None:
        self._upto, self._confirmed = upto, confirm
        self._summary = replace(self._summary, upto=upto, confirm=confirm)

    def count(self, **more: int) -> None:
        """Add to the summary's numbers."""
        self._summary = replace(self._summary, **{name: getattr(self._summary, name) + n for name, n in more.items()})

    def summary(self) -> ReceiveSummary:
        """What was done until now."""
        return replace(self._summary, seconds=self._clock() - self._started)
