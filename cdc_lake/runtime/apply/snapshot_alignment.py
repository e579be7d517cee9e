"""Determines whether silver contains exactly the transactions of a table that a source snapshot shows.

A position cannot answer this, because commit order and snapshot order sometimes differ (in 4 of 40 snapshots in a test
with 12 writers). So the transactions near the snapshot are checked one by one; those below its xmin and at or below the
watermark are on both sides. This requires that bronze, with the rest of the slot, reaches the snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from cdc_lake.bronze.contract import COMMIT, StreamCheckpoint
from cdc_lake.bronze.reader import BronzeReader, span_filter
from cdc_lake.model.diagnostic import pluralize
from cdc_lake.model.position import Span
from cdc_lake.model.relation import TableName
from cdc_lake.source.base import PendingTransaction, SnapshotVisibility

WAIT_SECONDS = 25.0
"""How long a receiver gets to land what the snapshot shows: keepalives reach bronze every 10 s."""

LOOK_AGAIN_SECONDS = 2.0
"""Interval at which the slot is checked again: its reader may have ended, which the server notices later."""

CATCH_UP = "run `cdc-lake run --once`, then compare again"


@dataclass(frozen=True, slots=True)
class SnapshotTransaction:
    """A transaction near the snapshot, by its id there. `landed`: bronze has it.

    `undecoded`: bronze has only its bytes, so it may change any table; `changes`: landed changes, of all tables.
    """

    position: int
    number: int
    tables: frozenset[TableName]
    landed: bool
    undecoded: bool = False
    changes: int = 0


@dataclass(frozen=True, slots=True)
class Gap:
    """Why a table cannot be compared now, and a hint."""

    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class AlignmentPoint:
    """A source snapshot, and the transactions near it. `complete`: all transactions that it shows are known."""

    shown: SnapshotVisibility
    touches: tuple[SnapshotTransaction, ...]
    complete: bool

    def gap(self, table: TableName, watermark: int) -> Gap | None:
        """None if silver at `watermark` contains exactly what the snapshot shows of the table."""
        if (gap := self.unknown(table)) is not None:
            return gap
        if unapplied := self.find_unapplied(table, watermark):
            return Gap(f"{len(unapplied)} landed transactions are not applied yet", CATCH_UP)
        return self.gap_ahead(table, watermark)

    def unknown(self, table: TableName) -> Gap | None:
        """Why the transactions that the snapshot shows of the table are unknown or not in bronze."""
        if not self.complete:
            return Gap(
                "bronze is behind the source, and a receiver is reading the slot", "wait for the receiver, then repeat"
            )
        shown = [touch for touch in self._touches_of(table) if self.shown.shows(touch.number, touch.position)]
        if any(not touch.landed for touch in shown):
            return Gap("the source has transactions that bronze does not", CATCH_UP)
        if any(touch.undecoded for touch in shown):
            return Gap(
                "bronze contains a transaction that could not be decoded", "`cdc-lake quarantine list` shows which one"
            )
        return None

    def find_unapplied(self, table: TableName, watermark: int) -> list[SnapshotTransaction]:
        """The landed transactions that the snapshot shows and silver at `watermark` lacks."""
        return [
            t
            for t in self._touches_of(table)
            if t.landed and t.position > watermark and self.shown.shows(t.number, t.position)
        ]

    def gap_ahead(self, table: TableName, watermark: int) -> Gap | None:
        """None if silver at `watermark` contains no change of the table that the snapshot does not show."""
        unseen = [
            t
            for t in self._touches_of(table)
            if t.landed and t.position <= watermark and not self.shown.shows(t.number, t.position)
        ]
        if not unseen:
            return None
        return Gap(f"silver is {pluralize(len(unseen), 'transaction')} ahead of the source's snapshot", "compare again")

    def _touches_of(self, table: TableName) -> list[SnapshotTransaction]:
        return [touch for touch in self.touches if table in touch.tables or touch.undecoded]


def point(
    bronze: BronzeReader,
    shown: SnapshotVisibility,
    lowest: int,
    ahead: Callable[[int], Sequence[PendingTransaction] | None],
) -> AlignmentPoint:
    """Gather the transactions near a snapshot; `lowest` is the lowest watermark.

    `ahead` returns what the slot has after a position, None if a receiver reads it.
    """
    state = bronze.state()
    assert state is not None  # the caller has read a marker of its stream
    more: Sequence[PendingTransaction] | None = ()
    deadline: float | None = None
    while state.upto < shown.position:
        more = ahead(state.upto)
        now = bronze.state() or state
        if more is None:
            deadline = deadline or time.monotonic() + WAIT_SECONDS
            state = _wait_for_bronze(bronze, now, shown.position, min(deadline, time.monotonic() + LOOK_AGAIN_SECONDS))
            if time.monotonic() >= deadline:
                break
            continue
        if now.upto == state.upto:
            break
        state, more = now, ()  # what landed meanwhile may have left the slot before the peek
    touches = [
        SnapshotTransaction(transaction.position, transaction.number, transaction.tables, landed=False)
        for transaction in more or ()
    ]
    touches += landed_near(bronze, state, shown, lowest)
    return AlignmentPoint(shown, tuple(touches), complete=more is not None or state.upto >= shown.position)


def _wait_for_bronze(bronze: BronzeReader, state: StreamCheckpoint, position: int, deadline: float) -> StreamCheckpoint:
    while state.upto < position and time.monotonic() < deadline:
        time.sleep(0.25)
        state = bronze.state() or state
    return state


def landed_near(
    bronze: BronzeReader, state: StreamCheckpoint, shown: SnapshotVisibility, lowest: int
) -> Iterable[SnapshotTransaction]:
    """Landed transactions that the snapshot may not show or that are after the lowest watermark."""
    span = Span(state.epoch, -1, state.upto)
    files = bronze.files()
    paths = files.select(epoch=state.epoch, op=COMMIT)
    commits = files.read(paths, ["position", shown.column], span_filter(span) & (pc.field("op") == COMMIT))
    if commits.num_rows == 0:
        return []
    numbers = np.asarray(pc.fill_null(commits[shown.column], 0))
    positions = np.asarray(commits["position"])
    near = np.flatnonzero(shown.may_be_hidden(numbers, positions) | (positions > lowest))
    if not len(near):
        return []
    number_of = dict(zip(positions[near].tolist(), numbers[near].tolist(), strict=True))
    return [
        SnapshotTransaction(
            position=c.position,
            number=number_of[c.position],
            tables=frozenset(TableName.parse(name) for name in c.counts),
            landed=True,
            undecoded=c.undecoded is not None,
            changes=c.changes,
        )
        for c in bronze.commits(Span(state.epoch, min(number_of) - 1, state.upto))
        if c.position in number_of
    ]
