"""The point of a comparison: whether silver holds of a table exactly the transactions that a source snapshot shows.

A position cannot answer this: commit order and snapshot order differ now and then (tried, 4 of 40 snapshots under 12
writers). So it is asked transaction by transaction, and only of those near the snapshot: what is below its xmin and at
or below the watermark is on both sides. Needed for it: bronze, with what the slot still has, reaches the snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from cdc_lake.bronze.contract import COMMIT
from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.reader import BronzeReader, within
from cdc_lake.config.project import Project
from cdc_lake.errors import SlotActive
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import TableName
from cdc_lake.model.span import Span
from cdc_lake.source.connection import Session
from cdc_lake.source.server import goal
from cdc_lake.source.unlanded import Unlanded, unlanded
from cdc_lake.source.visible import Visible

WAIT_SECONDS = 25.0
"""How long a receiver that reads the slot gets to land what the snapshot shows: keepalives reach bronze every 10 s."""

_CATCH_UP = "run `cdc-lake run --once`, then compare again"


@dataclass(frozen=True, slots=True)
class Touch:
    """A transaction near the snapshot, and the tables it changes. `landed`: bronze has it."""

    position: int
    xid: int
    tables: frozenset[TableName]
    landed: bool


@dataclass(frozen=True, slots=True)
class Gap:
    """Why a table cannot be compared now, and what helps."""

    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class Point:
    """A source snapshot, and the transactions near it. `complete`: all that it shows are known."""

    visible: Visible
    touches: tuple[Touch, ...]
    complete: bool

    def gap(self, table: TableName, watermark: int) -> Gap | None:
        """None where silver at `watermark` holds exactly what the snapshot shows of the table."""
        if not self.complete:
            return Gap("bronze is behind the source, and the slot is being read", "wait for the receiver and repeat")
        mine = [touch for touch in self.touches if table in touch.tables]
        shown = [touch for touch in mine if self.visible.shows(touch.xid)]
        if any(not touch.landed for touch in shown):
            return Gap("the source has transactions that bronze does not", _CATCH_UP)
        behind = sum(touch.position > watermark for touch in shown)
        if behind:
            return Gap(f"{behind} landed transactions are not applied yet", _CATCH_UP)
        ahead = sum(touch.landed and touch.position <= watermark for touch in mine if touch not in shown)
        if ahead:
            return Gap(f"silver is {ahead} transactions ahead of the source's snapshot", "compare again")
        return None


def point(
    project: Project,
    bronze: BronzeReader,
    visible: Visible,
    lowest: int,
    connect: Callable[[], Session],
) -> Point:
    """Gather the transactions near a snapshot; `lowest` is the lowest watermark, `connect` opens another session."""
    state = bronze.state()
    assert state is not None  # the caller has read a marker of its stream
    ahead: list[Unlanded] | None = []
    if state.upto < visible.position:
        ahead = _ahead(project, visible, state.upto, connect)
    if ahead is None:
        state = _awaited(bronze, state, visible.position)
    touches = [Touch(one.position, one.xid, one.tables, landed=False) for one in ahead or ()]
    touches += _landed(bronze, state, visible, lowest)
    return Point(visible, tuple(touches), complete=ahead is not None or state.upto >= visible.position)


def _ahead(project: Project, visible: Visible, after: int, connect: Callable[[], Session]) -> list[Unlanded] | None:
    """What the slot still has above `after`; None where a receiver reads it."""
    with connect() as session:
        flushed = session.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert flushed is not None
        if Lsn.parse(str(flushed[0])).value < visible.position:
            goal(session)  # decoding stops at what is flushed: a commit of our own flushes all before it
        try:
            return unlanded(session, project.slot, project.publication, after, visible.position)
        except SlotActive:
            return None


def _awaited(bronze: BronzeReader, state: BronzeState, position: int) -> BronzeState:
    deadline = time.monotonic() + WAIT_SECONDS
    while state.upto < position and time.monotonic() < deadline:
        time.sleep(0.25)
        state = bronze.state() or state
    return state


def _landed(bronze: BronzeReader, state: BronzeState, visible: Visible, lowest: int) -> Iterable[Touch]:
    """Landed transactions that the snapshot may not show or that lie above the lowest watermark."""
    span = Span(state.epoch, -1, state.upto)
    files = bronze.files()
    paths = files.select(epoch=state.epoch, op=COMMIT)
    commits = files.read(paths, ["position", "xid"], within(span) & (pc.field("op") == COMMIT))
    if commits.num_rows == 0:
        return []
    xids = np.asarray(pc.fill_null(commits["xid"], 0))
    recent = (xids - visible.xmin) % (1 << 32) < (1 << 31)  # modulo 2^32: the stream gives 32 bits
    near = commits.filter(recent | (np.asarray(commits["position"]) > lowest))
    if near.num_rows == 0:
        return []
    first = pc.min(near["position"]).as_py()
    wanted = set(near["position"].to_pylist())
    return [
        Touch(c.position, c.xid or 0, frozenset(TableName.parse(name) for name in c.counts), landed=True)
        for c in bronze.commits(Span(state.epoch, first - 1, state.upto))
        if c.position in wanted
    ]
