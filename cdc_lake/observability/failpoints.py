"""Failpoints: named places where a test may kill the process, and the list of crash points of a pipeline.

`CDC_LAKE_FAILPOINT=name` or `name:n` kills the process (SIGKILL, without clean-up) at the n-th passage of that place.
Without the variable a failpoint is one comparison. They are between two durable steps: wherever the process dies, the
next start must reach the same state.

The crash points are in the order in which a change passes them, for all processes and formats; each failpoint belongs
to one. Two have no failpoint: in a merge on Delta only the JVM writes, and the last point is any of the others, twice.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass

CONNECTED = "receive.connected"
STATE_READ = "receive.state-read"
FRAMES_READ = "receive.frames-read"
FRAME_PART = "receive.frame-part"
BATCH_OPEN = "receive.batch-open"
BEGUN = "receive.begun"
CHANGE_TAKEN = "receive.change-taken"
COMMIT_RECEIVED = "receive.commit-received"
SPOOLED = "receive.spooled"
PREPARE_KEPT = "receive.prepare-kept"
PREPARE_ENDED = "receive.prepare-ended"
PREPARE_CLEANED = "receive.prepare-cleaned"
FILE_OPEN = "lake.file-open"
FILE_WRITTEN = "bronze.file-written"
COMMIT_WRITTEN = "lake.commit-written"
COMMIT_DOUBTED = "lake.commit-doubted"
BRONZE_COMMITTED = "bronze.committed"
COMPACTING = "bronze.compacting"
COMPACTED = "bronze.compacted"
CONFIRMED = "receive.confirmed"
SLOT_KEPT = "snapshot.slot-kept"
SNAPSHOT_CHUNK = "snapshot.chunk"
TABLE_COPIED = "snapshot.table-copied"
SNAPSHOT_DONE = "snapshot.done"
TABLES_LEFT = "tables.left"
PUBLICATION_ALTERED = "tables.publication-altered"
RECOPIED = "tables.recopied"
PREPARED = "apply.prepared"
QUARANTINE_RECORDED = "apply.quarantine-recorded"
LAYOUT_BEGUN = "apply.layout-begun"
LAYOUT_FILLED = "apply.layout-filled"
LAYOUT_DONE = "apply.layout-done"
BRANCH_WRITTEN = "apply.branch-written"
TABLE_MERGED = "apply.table-merged"
ALL_MERGED = "apply.all-merged"
CUT_WRITTEN = "apply.cut-written"
CUT_JUDGED = "apply.cut-judged"
REREAD_LANDED = "apply.reread-landed"
BATCH_ENTERED = "apply.batch-entered"
BATCH_LEFT = "apply.batch-left"
REBUILT = "rebuild.built"
REPLACED = "rebuild.replaced"
SILVER_COMPACTED = "maintain.silver-compacted"
SILVER_EXPIRED = "maintain.silver-expired"
CONTROL_STEP = "upgrade.control-step"

FAILPOINTS = {
    STATE_READ: "at a start, the end of bronze has been read, the stream is not open",
    CONNECTED: "the stream is open, nothing has been read",
    FRAMES_READ: "frames have been read, and perhaps a part of the next; none is decoded",
    FRAME_PART: "a part of a frame of the GaussDB family has been read, the rest has not",
    BATCH_OPEN: "a batch has transactions, and more may be added to it",
    BEGUN: "the BEGIN of a transaction has been read, none of its changes",
    CHANGE_TAKEN: "a change of a transaction has been read, its COMMIT has not",
    COMMIT_RECEIVED: "a transaction is complete in memory",
    SPOOLED: "a part of a transaction is in the spool, its COMMIT has not been read",
    PREPARE_KEPT: "a prepared transaction is in its file, nothing after its PREPARE has been acknowledged",
    PREPARE_ENDED: "the end of a prepared transaction is noted next to its file, it has not landed",
    PREPARE_CLEANED: "the file of a prepared transaction that ended is removed, the note of its end still exists",
    FILE_OPEN: "a data file of bronze or of a control table is open, its end has not been written",
    FILE_WRITTEN: "a data file of bronze is on disk, no commit names it",
    COMMIT_WRITTEN: "a commit to bronze or to a control table has been made, its reply has not been seen",
    COMMIT_DOUBTED: "a commit to bronze or to a control table failed, it has not been checked whether it landed",
    BRONZE_COMMITTED: "bronze contains a batch, the server has not received the acknowledgement",
    CONFIRMED: "the server has received the acknowledgement",
    COMPACTING: "a file that replaces small ones is on disk, no commit names it",
    COMPACTED: "small files of bronze were replaced, they still exist",
    SLOT_KEPT: "the slot exists, nothing is copied",
    SNAPSHOT_CHUNK: "a chunk of the initial copy is in bronze",
    TABLE_COPIED: "tables of the initial copy are recorded as complete, others are not copied",
    SNAPSHOT_DONE: "the copy is complete and the slot exists, no row records it",
    TABLES_LEFT: "removed tables are recorded as left, the publication has not been changed",
    PUBLICATION_ALTERED: "the publication contains the added tables, none of them is copied",
    RECOPIED: "tables were copied again, no row records it",
    PREPARED: "all tables of a span are read and evaluated",
    QUARANTINE_RECORDED: "quarantined changes of a span are recorded, nothing is merged",
    LAYOUT_BEGUN: "an Iceberg table has the columns of a new layout, the values of old rows are not written",
    LAYOUT_FILLED: "an Iceberg table has those values too, columns of another type are not replaced yet",
    LAYOUT_DONE: "a table has the columns of a new layout, nothing of it is merged",
    BRANCH_WRITTEN: "an Iceberg table's branch is written, not published",
    TABLE_MERGED: "one table of a span is merged",
    ALL_MERGED: "all tables of a span are merged, no cut records it",
    CUT_WRITTEN: "the cut of a span is written",
    CUT_JUDGED: "the rules were evaluated on silver at a cut, nothing records it and no pin is made",
    REREAD_LANDED: "rows that were read again are in bronze, no row records it",
    REBUILT: "a table's new content is staged next to it, the table is unchanged",
    REPLACED: "a table has its new content, no cut records it",
    SILVER_COMPACTED: "small files of a silver table were compacted, nothing was removed",
    SILVER_EXPIRED: "versions of an Iceberg table were expired, files without a commit still exist",
    CONTROL_STEP: "a step of an upgrade changed a control table, the table does not record it",
    BATCH_ENTERED: "the stream on bronze has called apply, nothing was done",
    BATCH_LEFT: "everything that the stream on bronze called for is done, its offsets are not committed",
}
"""Every failpoint, and the state at that place."""


def _parse_setting(setting: str) -> tuple[str, int]:
    name, _, passage = setting.partition(":")
    if setting and (name not in FAILPOINTS or (passage and not passage.isdecimal())):
        raise ValueError(f"CDC_LAKE_FAILPOINT={setting}: expected name or name:n, one of {', '.join(FAILPOINTS)}")
    return name, int(passage or 1)


def _kill_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


_name, _left = _parse_setting(os.environ.get("CDC_LAKE_FAILPOINT", ""))
_die: Callable[[], None] = _kill_process
_counting = threading.Lock()


def arm(setting: str, die: Callable[[], None] = _kill_process) -> None:
    """Arm a failpoint in a forked process, as the environment variable does.

    `die`: replaces dying, for tests that abort a call and keep their Spark.
    """
    global _name, _left, _die
    (_name, _left), _die = _parse_setting(setting), die


def is_armed(*names: str) -> bool:
    """Whether one of these is armed: failpoints on the path of every change are installed only then."""
    return _name in names


def failpoint(name: str) -> None:
    """Kill the process here if this failpoint is armed."""
    if name != _name:
        return
    global _left  # noqa: PLW0603 - passages are counted over the process
    with _counting:
        _left -= 1
        due = _left == 0
    if due:
        _die()


VARIABLE = "CDC_LAKE_FAILPOINT"


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """A place to break a pipeline at: the state there, its failpoints, and other ways to break it."""

    number: int
    says: str
    failpoints: tuple[str, ...] = ()
    besides: str = ""


@dataclass(frozen=True, slots=True)
class Failpoint:
    """A failpoint: the state there, and the numbers of its crash points."""

    name: str
    says: str
    points: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FailpointList:
    """All failpoints, and the crash points in order. `variable`: the environment variable that arms one."""

    variable: str
    points: tuple[CrashPoint, ...]
    failpoints: tuple[Failpoint, ...]


_PREPARED = (PREPARE_KEPT, PREPARE_ENDED, PREPARE_CLEANED)
_LAYOUT = (LAYOUT_BEGUN, LAYOUT_FILLED, LAYOUT_DONE)
_TABLES = (TABLES_LEFT, PUBLICATION_ALTERED)
_UPKEEP = (COMPACTING, COMPACTED, SILVER_COMPACTED, SILVER_EXPIRED)
_IN_THE_JVM = "on Delta the JVM writes it: kill the JVM when the table's folder has a new file"

CRASH_POINTS = (
    CrashPoint(1, "connected, nothing read", (CONNECTED,)),
    CrashPoint(2, "in the middle of a frame", (FRAMES_READ, FRAME_PART)),
    CrashPoint(3, "in the middle of a batch", (BATCH_OPEN,)),
    CrashPoint(4, "behind BEGIN", (BEGUN,)),
    CrashPoint(5, "between two changes of one transaction", (CHANGE_TAKEN, SPOOLED)),
    CrashPoint(6, "after COMMIT, or PREPARE", (COMMIT_RECEIVED, *_PREPARED)),
    CrashPoint(7, "a data file is open", (FILE_OPEN,)),
    CrashPoint(8, "a data file is written, not committed", (FILE_WRITTEN,)),
    CrashPoint(9, "the commit is written, its reply has not been seen", (COMMIT_WRITTEN,)),
    CrashPoint(10, "bronze is committed, nothing is acknowledged", (BRONZE_COMMITTED,)),
    CrashPoint(11, "confirmed", (CONFIRMED,)),
    CrashPoint(12, "apply is called", (BATCH_ENTERED,)),
    CrashPoint(13, "the net change is read and evaluated", (PREPARED, QUARANTINE_RECORDED)),
    CrashPoint(14, "a merge has written its first file", (BRANCH_WRITTEN,), _IN_THE_JVM),
    CrashPoint(15, "one table is merged, others are not", (TABLE_MERGED,)),
    CrashPoint(16, "all tables are merged, no offset is written", (ALL_MERGED, CUT_WRITTEN)),
    CrashPoint(17, "apply has done its work, the offset is not committed", (BATCH_LEFT,)),
    CrashPoint(18, "during upkeep", _UPKEEP),
    CrashPoint(19, "during a change of columns, or of what is captured", _LAYOUT + _TABLES),
    CrashPoint(20, "during the initial copy", (SLOT_KEPT, SNAPSHOT_CHUNK, TABLE_COPIED)),
    CrashPoint(21, "the copy is complete, no row records it", (SNAPSHOT_DONE, RECOPIED, REREAD_LANDED)),
    CrashPoint(22, "a commit's outcome is unknown, the table has not been read again yet", (COMMIT_DOUBTED,)),
    CrashPoint(23, "during the recovery of a start", (STATE_READ,)),
    CrashPoint(24, "twice in a row at the same point", (), "arm the same failpoint again at the next start"),
)


def list_failpoints() -> FailpointList:
    """All failpoints that can be armed, and their crash points."""
    failpoints = tuple(
        Failpoint(name, says, tuple(point.number for point in CRASH_POINTS if name in point.failpoints))
        for name, says in FAILPOINTS.items()
    )
    return FailpointList(VARIABLE, CRASH_POINTS, failpoints)
