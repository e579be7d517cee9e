"""Sorts transactions that arrive by commit LSN into CSN order, without missing any. Pure: the clock is an argument.

CSNs count every commit of the server, so a parallel stream with empty transactions has no gaps. But a CSN may arrive a
few transactions late, because number and commit record are not created at the same moment. A transaction is therefore
closed once every CSN up to its own has arrived. Counting starts after `start`, which the initial copy contains:
transactions at or below it that still arrive are repeated ones.

A CSN that does not arrive in time is a lost transaction: the policy is to stop, or to record a gap and continue; if the
transaction arrives later, it is an error and never counts as repeated (decision 0008).

The order of a stream depends on whether it shows every CSN. Parallel decoding with empty transactions does in
openGauss; serial decoding shows only those of its database, and GaussDB's kernels may omit numbers. With `order: auto`
the stream is read for a moment before it begins; a CSN that stays missing makes it ordered by LSN. The result is part
of the stream's identity and never changes.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, Final, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.contract import InParts, StreamCheckpoint, Tabulate, release_transaction
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.row_builder import BatchRows
from cdc_lake.config.gaussdb_options import Mode
from cdc_lake.config.project import Project, effective_options
from cdc_lake.config.source import FamilySource
from cdc_lake.connectors.gaussdb.decoding import Dial, assembler_of, frames_of
from cdc_lake.connectors.open_stream import Gap, OrderedTransaction
from cdc_lake.connectors.snapshot_copy import Stopped
from cdc_lake.decode.hashing import GENESIS
from cdc_lake.decode.transaction import ReceivedTransaction
from cdc_lake.errors import CsnMissing, CsnTwice, LateTransaction, NoOrderNumber, ServerSettings
from cdc_lake.model.change import Boundaries
from cdc_lake.model.diagnostic import pluralize
from cdc_lake.model.position import Lsn, OrderDomain, Span
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.source.gaussdb.snapshot import csn_now
from cdc_lake.source.gaussdb.wire.session import WireSession
from cdc_lake.tables.control_files import ControlFiles, put_rows
from cdc_lake.tables.control_schema import GapRow, utc_now
from cdc_lake.tables.control_tables import ControlTables

STEP: Final = 1.0
"""Maximum seconds that count between two checks of the clock: a longer pause is ours (bronze was busy), and what was
not read could not arrive."""
CROWD: Final = 1000
"""With this many transactions behind a missing CSN (inversions were measured at a distance of at most 9) …"""
CROWD_BYTES: Final = 128 << 20
"""… of this total size, it is no longer waited for: memory is limited."""

_NEVER: Final = 1 << 64  # above every CSN: what was never closed is never acknowledged


class CsnOrdering:
    """Closes transactions in CSN order (`connectors.open_stream.TransactionOrdering`).

    `start` and `confirm` are bronze's markers, `empty` its count of empty transactions after its last rows, `recorded`
    the gaps it passed over, which do not overlap. `bound`: seconds that a CSN may be late, counted from the moment it
    was next, but not while a transaction is being received. `clock` counts seconds.
    """

    def __init__(
        self,
        start: int,
        confirm: int,
        *,
        bound: float,
        policy: Literal["stop", "record"],
        clock: Callable[[], float],
        empty: int = 0,
        recorded: Iterable[Gap] = (),
    ) -> None:
        self._upto = start
        self._confirm = confirm
        self._bound = bound
        self._policy = policy
        self._clock = clock
        self._empty = empty
        # if bronze did not get past a gap, its transactions are still in time
        self._passed = sorted((gap.first, min(gap.last, start)) for gap in recorded if gap.first <= start)
        self._waiting: dict[int, ReceivedTransaction] = {}
        self._bytes = 0
        self._arrived: list[tuple[int, int]] = []  # heap of (confirm, csn) that the confirm position has not passed
        self._below: int | None = None  # commit LSN of the last transaction closed
        self._front = start  # the CSN that is next, while something above it has arrived
        self._waited = self._looked = 0.0
        self._opened: frozenset[int] = frozenset()
        self.repeats = 0

    @property
    def waiting(self) -> int:
        """Number of transactions that wait for a lower CSN."""
        return len(self._waiting)

    def add(self, transaction: ReceivedTransaction) -> Sequence[OrderedTransaction]:
        """Take a committed transaction; returns what can be closed. Raises NoOrderNumber, CsnTwice, LateTransaction."""
        bounds = transaction.bounds
        csn = bounds.csn
        if csn is None:
            raise NoOrderNumber(f"the transaction that ends at {_lsn(bounds)} has no CSN")
        if csn <= self._upto:
            return self._handle_repeat(transaction, csn)
        heappush(self._arrived, (bounds.confirm, csn))
        if (earlier := self._waiting.get(csn)) is not None:
            if (earlier.bounds, earlier.size) != (bounds, transaction.size):
                raise CsnTwice(
                    f"two transactions have the same CSN {csn}: they end at {_lsn(earlier.bounds)} and {_lsn(bounds)}"
                )
            self.repeats += 1
            release_transaction(transaction)
            return ()
        self._waiting[csn] = transaction
        self._bytes += _memory_bytes(transaction)
        return self._run() if csn == self._upto + 1 else ()

    def expire_gaps(self, opened: Collection[int] = ()) -> Sequence[OrderedTransaction]:
        """Close what waits behind a gap that is too old. Raises CsnMissing if the policy is to stop."""
        beyond = [csn for csn in opened if csn > self._upto]
        front = self._upto + 1
        if front in beyond or not (beyond or self._waiting):
            self._front = self._upto
            return ()
        now = self._clock()
        if front != self._front:
            self._front, self._waited = front, 0.0
        elif self._opened.isdisjoint(opened):
            self._waited += min(now - self._looked, STEP)
        self._looked, self._opened = now, frozenset(opened)
        crowded = len(self._waiting) >= CROWD and self._bytes >= CROWD_BYTES
        if self._waited < self._bound and not crowded:
            return ()
        return self._pass_over(min([*self._waiting, *beyond]) - 1)

    def _run(self) -> Sequence[OrderedTransaction]:
        """Close all transactions without a missing CSN before them."""
        steps = []
        while (transaction := self._waiting.pop(self._upto + 1, None)) is not None:
            self._upto += 1
            self._bytes -= _memory_bytes(transaction)
            self._below = transaction.bounds.commit_lsn
            self._move_confirm()
            if transaction.count:
                numbered = _with_empty_count(transaction, self._empty) if self._empty else transaction
                self._empty = 0
                steps.append(OrderedTransaction(self._upto, self._confirm, numbered))
            else:
                self._empty += 1
                steps.append(OrderedTransaction(self._upto, self._confirm, None, self._empty))
        return steps

    def _move_confirm(self) -> None:
        arrived = self._arrived
        while arrived and arrived[0][1] <= self._upto:
            self._confirm = max(self._confirm, heappop(arrived)[0])

    def _handle_repeat(self, transaction: ReceivedTransaction, csn: int) -> Sequence[OrderedTransaction]:
        """Handle a transaction that is already closed, or whose CSN was passed over."""
        index = bisect_right(self._passed, csn, key=itemgetter(0)) - 1
        if index >= 0 and csn <= self._passed[index][1] and transaction.count:
            heappush(self._arrived, (transaction.bounds.confirm, _NEVER))
            raise LateTransaction(
                f"CSN {csn} was recorded as a gap, but now its transaction arrived (it ends at "
                f"{_lsn(transaction.bounds)})"
            )
        self.repeats += 1
        release_transaction(transaction)
        heappush(self._arrived, (transaction.bounds.confirm, csn))
        before = self._confirm
        self._move_confirm()
        return (OrderedTransaction(self._upto, self._confirm, None, self._empty),) if self._confirm > before else ()

    def _pass_over(self, last: int) -> Sequence[OrderedTransaction]:
        above = self._waiting.get(last + 1)
        gap = Gap(self._upto + 1, last, self._below, above.bounds.commit_lsn if above is not None else None)
        if self._policy == "stop":
            below = "" if gap.below is None else f", after the transaction at LSN {Lsn(gap.below)}"
            next_above = "" if gap.above is None else f", before the one at LSN {Lsn(gap.above)}"
            raise CsnMissing(f"{gap} did not arrive, {self._gap_reason()}{below}{next_above}")
        insort(self._passed, (gap.first, gap.last))
        self._upto = last
        self._move_confirm()
        return [OrderedTransaction(last, self._confirm, None, self._empty, gap), *self._run()]

    def _gap_reason(self) -> str:
        waiting_text = f"{pluralize(len(self._waiting), 'transaction')} behind"
        if self._waited >= self._bound:
            return f"after {self._bound:g} s of waiting with {waiting_text}"
        return f"and no more than {waiting_text} ({self._bytes >> 20} MiB) can be buffered"


def _memory_bytes(transaction: ReceivedTransaction) -> int:
    """Bytes in memory, without those on disk."""
    return 0 if isinstance(transaction, InParts) else transaction.size


def _with_empty_count(transaction: ReceivedTransaction, empty: int) -> ReceivedTransaction:
    """The transaction with its count of preceding empty ones: those of every format are dataclasses."""
    bounds = dataclasses.replace(transaction.bounds, empty_before=empty)
    return cast("ReceivedTransaction", dataclasses.replace(cast("Any", transaction), bounds=bounds))


def _lsn(bounds: Boundaries) -> str:
    return "an unknown LSN" if bounds.commit_lsn is None else str(Lsn(bounds.commit_lsn))


SETTLE = 3.0
"""Maximum seconds of reading."""
QUIET = 1.5
"""Seconds of silence after which reading ends: a server sends waiting batches after one."""
ENOUGH = 200
"""Transactions after which reading ends."""
LATE = 16
"""How far behind the highest CSN one may still arrive; inversions were measured at a distance of at most 9."""


def order_of(source: FamilySource, *, exports: bool) -> OrderDomain | None:
    """The order of a new stream; None if only reading the stream decides it.

    `exports`: the server provides a CSN with a snapshot, without which CSNs cannot be counted.
    """
    if source.slot_order == "csn":
        return OrderDomain.CSN
    if not exports:
        return OrderDomain.LSN
    if source.order != "auto":
        return OrderDomain(source.order)
    shows_all = source.decoding_mode is Mode.PARALLEL and effective_options(source)["skip-empty-xacts"] == "off"
    if not shows_all or source.node in ("coordinator", "data_node"):
        return OrderDomain.LSN
    return None


def decide(
    project: Project, dial: Dial, session: WireSession, stop: threading.Event, report: ProgressReporter
) -> OrderDomain:
    """The order domain of a new stream, whose slot exists and was not read, of a server that provides CSNs.

    Raises SourceError, Stopped.
    """
    order = order_of(project.family, exports=True)
    if order is not None:
        return order
    missing = _missing(project, dial, session, stop)
    if missing is None:
        return OrderDomain.CSN
    report(ProgressEvent("connect", f"CSN {missing} is missing in the stream: ordering it by LSN"))
    return OrderDomain.LSN


def refuse_csn(project: Project) -> None:
    """Raise if the pipeline requires CSN order of a server that provides no CSN with a snapshot."""
    if project.family.order == "csn":
        text = "the server has no function pg_export_snapshot_and_csn, so there is no CSN to start from"
        hint = "set `source.order: auto` to order the stream by LSN"
        raise ServerSettings(text, where=project.family.place, hint=hint)


def hole(csns: Iterable[int], base: int) -> int | None:
    """The first CSN from `base` on that is missing although one more than `LATE` above it has arrived."""
    sorted_csns = sorted({csn for csn in csns if csn >= base})
    expected = base
    for csn in sorted_csns:
        if csn != expected:
            return expected if sorted_csns[-1] - expected > LATE else None
        expected += 1
    return None


def _missing(project: Project, dial: Dial, session: WireSession, stop: threading.Event) -> int | None:
    # below the CSN of a snapshot taken after the slot was created, the slot may omit transactions
    base = csn_now(session).value
    frames = frames_of(project, dial("density", True), 0)
    try:
        assembler = assembler_of(project, OrderDomain.LSN, "UTF8")
        csns: list[int] = []
        heard = begun = time.monotonic()
        while time.monotonic() < min(begun + SETTLE, heard + QUIET) and len(csns) < ENOUGH:
            if stop.is_set():
                raise Stopped
            for number, payload in frames.poll(0.2):
                heard = time.monotonic()
                csns += [raw.bounds.csn for raw in assembler.feed(payload, number) if raw.bounds.csn is not None]
    finally:
        frames.close()
    return hole(csns, base)


def record_gap(control: ControlTables, state: StreamCheckpoint, gap: Gap) -> None:
    """Add a gap of the stream to the control table `gaps`. Raises ControlNotWritten."""
    control.record(GapRow(state.epoch, state.stream, gap.first, gap.last, gap.below, gap.above, utc_now()))


def recorded_gaps(control: ControlTables, bronze: BronzeReader, state: StreamCheckpoint) -> list[Gap]:
    """The gaps that bronze has passed over, ascending and without overlaps. Raises LakeError."""
    rows = control.read("gaps", (pc.field("stream") == state.stream) & (pc.field("epoch") == state.epoch)).to_pylist()
    missing: list[Gap] = []
    for row in sorted(rows, key=lambda row: (row["first"], row["last"])):
        first = max(row["first"], missing[-1].last + 1 if missing else row["first"])
        last = min(row["last"], state.upto)
        if first > last:
            continue
        landed = [commit.position for commit in bronze.commits(Span(state.epoch, first - 1, last))]
        for position in [*landed, last + 1]:
            if first < position:
                missing.append(Gap(first, position - 1, row["below"], row["above"]))
            first = position + 1
    return missing


def keep_late(
    files: ControlFiles, state: StreamCheckpoint, transaction: ReceivedTransaction, tabulate: Tabulate
) -> str:
    """Write a late transaction durably next to the control tables, as bronze rows in Parquet; returns where.

    Raises ControlNotWritten, StoreUnavailable, StoreRefused.
    """
    rows = BatchRows([transaction], tabulate, replace(state, head=GENESIS), time.time_ns() // 1000)
    name = f"{state.epoch}-{transaction.bounds.position}.parquet"
    put_rows(files, name, pa.concat_tables(rows.map_tables(lambda table: [table])))
    return f"{files.name}/{name}"
