"""What the receiver does with a stream: reads, puts transactions in order, lands them in batches, and confirms.

One commit is under way at a time, while the next batch is read, and decoded as it comes. When that one is full too, or
decoding is behind, nothing more is read: the server waits, and is answered meanwhile. So it is while the lake is away
or full (`pipeline.receiving.outlasting`). What becomes of a transaction whose COMMIT has not come is the assembler's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from cdc_lake.bronze.batch_rows import one_thread
from cdc_lake.bronze.port import BronzeWriter, Landed
from cdc_lake.config.project import Project
from cdc_lake.decode.raw import Raw
from cdc_lake.errors import DecodeError, LateTransaction
from cdc_lake.lake.control import ControlTables
from cdc_lake.model.counting import counted
from cdc_lake.model.position import OrderDomain, format_position
from cdc_lake.observe.failpoint import BATCH_OPEN, BRONZE_COMMITTED, COMMIT_RECEIVED, CONFIRMED, FRAMES_READ, failpoint
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.gaussdb.gaps import keep_late, record_gap
from cdc_lake.pipeline.receiving.batches import OpenBatch
from cdc_lake.pipeline.receiving.feeding import feeding
from cdc_lake.pipeline.receiving.landing import PART_BYTES, Landing
from cdc_lake.pipeline.receiving.wal_watch import WalWatch
from cdc_lake.pipeline.stream.backlog import backlog
from cdc_lake.pipeline.stream.open_stream import OpenStream
from cdc_lake.pipeline.stream.order import Closed
from cdc_lake.pipeline.stream.pulse import Pulse

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


class Receiving:
    """One run of the loop over however many connections it takes."""

    def __init__(
        self,
        project: Project,
        bronze: BronzeWriter,
        control: ControlTables,
        *,
        once: bool,
        stop: threading.Event,
        tell: Tell,
        connected: AbstractContextManager[object],
        pulse: Pulse,
        watch: WalWatch | None = None,
        clock: Callable[[], float] = time.monotonic,
        worker: Callable[[str], Executor] = one_thread,
    ) -> None:
        """`clock` counts seconds; `worker`: see `Landing`."""
        self._project = project
        self._limits = project.pipeline.bronze.batch
        self._bronze = bronze
        self._control = control
        self.once = once
        self.stop = stop
        self.tell = tell
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
    def connected(self) -> bool:
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
        with Landing(self._bronze, stream.tabulate, self._worker) as landing, self._while_connected:
            while not self._done():
                self.heed()
                stream.heed()
                self._take_landed(stream, landing)
                if landing.behind or (landing.busy and self._batch.full):
                    stream.frames.tick()
                    landing.rest(0.05)
                    continue
                self._read(stream, landing)
                self._commit_what_is_due(stream, landing)
                idle = not landing.busy and not len(self._batch)
                self._pulse.turned(stream.assembler.open_bytes, stream.spilled(), idle=idle)
                self._pulse.newest_decoded = stream.newest_decoded()
                self._pulse.prepared = None if stream.parked is None else stream.parked.waiting
            self._finish(stream, landing)

    def heed(self) -> None:
        """What the budget of WAL asks for. Raises SlotGivenUp."""
        if self._watch is not None:
            self._watch.heed()
            if self.connected:
                self._batch.restrict(self._watch.limits(self._limits))

    def _done(self) -> bool:
        if self.stop.is_set():
            at = format_position(self._upto, self._domain)
            self.tell(Progress("receive", f"stopping: bronze is whole up to {at}"))
            return True
        # one more commit may be under way, and where the server is busy always is: it is waited for behind the loop
        return self._reaches_goal(self._upto)

    def _reaches_goal(self, position: int) -> bool:
        return self.once and self._goal is not None and position >= self._goal

    def _read(self, stream: OpenStream, landing: Landing) -> None:
        """Take what the server has sent, waiting as long as nothing else is due."""
        frames = stream.frames.poll(self._wait(landing))
        if frames:
            failpoint(FRAMES_READ)
        feed = feeding(stream.assembler)
        for lsn, payload in frames:
            try:
                done = feed(payload, lsn)
            except DecodeError:
                self._land_all(stream, landing)
                raise
            if done:  # most frames complete nothing, and a loop over nothing has its cost
                for transaction in done:
                    self._take(stream, transaction, landing)
        opened = stream.assembler.open_csn
        self._add(stream, stream.order.tend(() if opened is None else (opened,)), landing)
        if len(self._batch):
            failpoint(BATCH_OPEN)

    def _wait(self, landing: Landing) -> float:
        if landing.busy:
            return 0.01
        if len(self._batch):
            return min(max(self._batch.due_in, 0.0), 0.2)
        return 0.05 if self.once else 0.2

    def _take(self, stream: OpenStream, transaction: Raw, landing: Landing) -> None:
        if transaction.count:
            failpoint(COMMIT_RECEIVED)
        try:
            closed = stream.order.take(transaction)
        except LateTransaction as late:
            self._finish(stream, landing)
            landing.settle()
            late.where = str(keep_late(self._project.control, stream.state, transaction, stream.tabulate))
            raise
        self._add(stream, closed, landing)

    def _add(self, stream: OpenStream, closed: Sequence[Closed], landing: Landing) -> None:
        for one in closed:
            if one.gap is not None:
                record_gap(self._control, stream.state, one.gap)
                self.tell(Progress("receive", f"{one.gap} did not arrive: recorded, and passed over"))
            self._batch.add(one)
            if self._batch.full and not landing.busy:
                self._append(landing)
            elif self._batch.to_decode >= PART_BYTES:
                landing.decode(self._batch.hand_over())

    def _commit_what_is_due(self, stream: OpenStream, landing: Landing) -> None:
        if landing.busy:
            return
        if not len(self._batch):
            self._advance(stream, landing)
        elif self._batch.full or self._batch.due_in <= 0 or self._reaches_goal(self._batch.upto):
            self._append(landing)

    def _land_all(self, stream: OpenStream, landing: Landing) -> None:
        """Nothing more can be read: what came whole before that is landed, as far as it is in order."""
        for transaction in stream.assembler.completed:
            self._take(stream, transaction, landing)
        self._finish(stream, landing)
        if len(self._batch):
            self._append(landing)
            self._finish(stream, landing)

    def _append(self, landing: Landing) -> None:
        landing.decode(self._batch.hand_over())
        batch = self._batch.take()
        self.count(bytes=sum(transaction.size for transaction in batch.transactions))
        self._last = batch.transactions[-1].bounds.position
        self._pulse.lands(batch.upto, batch.transactions[-1].bounds.commit_ts)
        landing.append(batch)

    def _advance(self, stream: OpenStream, landing: Landing) -> None:
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
        asked, further = stream.frames.asked, upto > self._upto or confirm > self._confirmed
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

    def _take_landed(self, stream: OpenStream, landing: Landing) -> None:
        """Confirm what the commit under way made durable, once it is done; raises what it ended at."""
        self._confirm(stream, landing.taken())
        if landing.fault is not None:
            raise landing.fault

    def _finish(self, stream: OpenStream, landing: Landing) -> None:
        """The same, waiting for it."""
        self._confirm(stream, landing.finish())
        if landing.fault is not None:
            raise landing.fault

    def _confirm(self, stream: OpenStream, landed: Landed | None) -> None:
        """What a commit made durable, the server may forget."""
        if landed is None:
            return
        if landed.transactions:
            failpoint(BRONZE_COMMITTED)
        self._note(landed.upto, landed.confirm)
        stream.frames.confirm(landed.confirm)
        self._pulse.landed(landed.upto, landed.confirm)
        if landed.transactions:
            failpoint(CONFIRMED)
        if stream.parked is not None:
            stream.parked.clean(min(self._last, landed.upto), landed.confirm)
        self.count(transactions=landed.transactions, changes=landed.changes, repeats=landed.repeats)
        if landed.transactions:
            at = format_position(landed.upto, self._domain)
            facts = {
                "position": at,
                "upto": landed.upto,
                "transactions": landed.transactions,
                "changes": landed.changes,
                "operations": dict(landed.operations),
                "bytes": landed.bytes_written,
                "version": landed.version,
                "server_end": stream.frames.keepalive_end,
            }
            text = f"{counted(landed.transactions, 'transaction')} up to {at}"
            self.tell(Progress("landed", text, self._summary.changes, None, "changes", facts))
            if self.once and self._goal is not None:
                self.tell(backlog("received", landed.upto, self._begins, self._goal, self._domain))

    def _note(self, upto: int, confirm: int) -> None:
        self._upto, self._confirmed = upto, confirm
        self._summary = replace(self._summary, upto=upto, confirm=confirm)

    def count(self, **more: int) -> None:
        """Add to the summary's numbers."""
        self._summary = replace(self._summary, **{name: getattr(self._summary, name) + n for name, n in more.items()})

    def summary(self) -> ReceiveSummary:
        """What was done until now."""
        return replace(self._summary, seconds=self._clock() - self._started)
