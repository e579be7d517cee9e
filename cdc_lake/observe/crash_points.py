"""The catalogue of places to break a pipeline at, in the order in which a change meets them, and their failpoints.

A number stands for what is true of the change, in whichever process and format; its failpoints are where the code can
be killed then. Two have none: in a merge on Delta the JVM writes alone, and the last is any of the others, twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdc_lake.observe import failpoint as at

VARIABLE = "CDC_LAKE_FAILPOINT"


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """A place to break a pipeline at: what is true there, the failpoints that stand for it, and what else does."""

    number: int
    says: str
    failpoints: tuple[str, ...] = ()
    besides: str = ""


@dataclass(frozen=True, slots=True)
class Failpoint:
    """A failpoint: what is true there, and the numbers of the crash points it stands for."""

    name: str
    says: str
    points: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FailpointList:
    """All failpoints, and the crash points in their order. `variable`: the environment's that arms one."""

    variable: str
    points: tuple[CrashPoint, ...]
    failpoints: tuple[Failpoint, ...]


_PREPARED = (at.PREPARE_KEPT, at.PREPARE_ENDED, at.PREPARE_CLEANED)
_LAYOUT = (at.LAYOUT_BEGUN, at.LAYOUT_FILLED, at.LAYOUT_DONE)
_TABLES = (at.TABLES_LEFT, at.PUBLICATION_ALTERED)
_UPKEEP = (at.COMPACTING, at.COMPACTED, at.SILVER_COMPACTED, at.SILVER_EXPIRED)
_IN_THE_JVM = "on Delta the JVM writes it: kill the JVM when the table's folder has a new file"

CRASH_POINTS = (
    CrashPoint(1, "connected, nothing read", (at.CONNECTED,)),
    CrashPoint(2, "in the middle of a frame", (at.FRAMES_READ, at.FRAME_PART)),
    CrashPoint(3, "in the middle of a batch", (at.BATCH_OPEN,)),
    CrashPoint(4, "behind BEGIN", (at.BEGUN,)),
    CrashPoint(5, "between two changes of one transaction", (at.CHANGE_TAKEN, at.SPOOLED)),
    CrashPoint(6, "behind COMMIT, or PREPARE", (at.COMMIT_RECEIVED, *_PREPARED)),
    CrashPoint(7, "a data file is open", (at.FILE_OPEN,)),
    CrashPoint(8, "a data file is written, not committed", (at.FILE_WRITTEN,)),
    CrashPoint(9, "the commit is written, its reply not seen", (at.COMMIT_WRITTEN,)),
    CrashPoint(10, "bronze is committed, nothing confirmed", (at.BRONZE_COMMITTED,)),
    CrashPoint(11, "confirmed", (at.CONFIRMED,)),
    CrashPoint(12, "apply is called", (at.BATCH_ENTERED,)),
    CrashPoint(13, "the net change is read and judged", (at.PREPARED, at.HELD_RECORDED)),
    CrashPoint(14, "a merge has written its first file", (at.BRANCH_WRITTEN,), _IN_THE_JVM),
    CrashPoint(15, "one table is merged, others are not", (at.TABLE_MERGED,)),
    CrashPoint(16, "all tables are merged, no offset is written", (at.ALL_MERGED, at.CUT_WRITTEN)),
    CrashPoint(17, "apply has done its work, the offset is not committed", (at.BATCH_LEFT,)),
    CrashPoint(18, "during upkeep", _UPKEEP),
    CrashPoint(19, "during a change of columns, or of what is captured", _LAYOUT + _TABLES),
    CrashPoint(20, "during the initial copy", (at.SLOT_KEPT, at.SNAPSHOT_CHUNK, at.TABLE_COPIED)),
    CrashPoint(21, "the copy is whole, no row says so", (at.SNAPSHOT_DONE, at.RECOPIED, at.REREAD_LANDED)),
    CrashPoint(22, "a commit's outcome is unknown, the table is not asked yet", (at.COMMIT_DOUBTED,)),
    CrashPoint(23, "during the recovery of a start", (at.STATE_READ,)),
    CrashPoint(24, "twice in a row at the same point", (), "arm the same failpoint again at the next start"),
)


def listed() -> FailpointList:
    """Everything that can be armed, and what for."""
    failpoints = tuple(
        Failpoint(name, says, tuple(one.number for one in CRASH_POINTS if name in one.failpoints))
        for name, says in at.FAILPOINTS.items()
    )
    return FailpointList(VARIABLE, CRASH_POINTS, failpoints)
