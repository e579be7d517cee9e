"""Spark sessions for tables that are worked on side by side: one session a table, a bounded number at a time.

Commit settings are session-wide and would leak between tables otherwise. What Spark raises for one table is that
table's error and is given back as a value: it must not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from cdc_lake.config.project import Target
from cdc_lake.errors import ApplyFailed, CdcLakeError, ClockBehind, MergeRefused, SparkDied, Unconvertible
from cdc_lake.lake.conversion import UNREADABLE
from cdc_lake.lake.session import death, derive
from cdc_lake.silver.complete import MISSING_BASE
from cdc_lake.silver.current import MISSING_ROW

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MERGING = "merge"
"""What the names of threads that merge tables begin with."""

_OLDER_THAN_THE_LAST = ("Expected sorted snapshot log entries", "Invalid update timestamp")
"""What Iceberg says of a snapshot that is more than a minute older than the one before (1.12, tried)."""

_T = TypeVar("_T")
_R = TypeVar("_R")


class Sessions:
    """The sessions of a run and the threads that use them; as a context manager it waits for these at the end, but not
    where it is left in a hurry.
    """

    def __init__(self, spark: SparkSession, parallelism: int) -> None:
        self._spark = spark
        self._sessions: dict[str, SparkSession] = {}
        self._pool = ThreadPoolExecutor(parallelism, MERGING)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        now = kind is not None and not issubclass(kind, Exception)  # asked twice to stop
        self._pool.shutdown(wait=not now, cancel_futures=True)

    def of(self, target: Target) -> SparkSession:
        """The session of a table."""
        if target.label not in self._sessions:
            self._sessions[target.label] = derive(self._spark)
        return self._sessions[target.label]

    def each(self, work: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
        """The results of `work`, in the order of `items`. Raises SparkDied."""
        results = list(self._pool.map(work, items))
        if how := death(self._spark):
            raise SparkDied(how)
        return results


def guarded(work: Callable[[], _R], target: Target) -> _R | CdcLakeError:
    """The result, or the error in the terms of this package."""
    try:
        return work()
    except CdcLakeError as failure:
        return failure
    except Exception as cause:  # noqa: BLE001 - whatever Spark raises is this table's failure and is kept as the cause
        return _explained(cause, target)


def _explained(cause: Exception, target: Target) -> CdcLakeError:
    text = str(cause)
    error: CdcLakeError
    if MISSING_ROW in text or MISSING_BASE in text:
        error = MergeRefused(f"a change refers to a row that {target.label} does not have")
    elif UNREADABLE in text:
        error = Unconvertible(f"old rows of {target.label} have texts that are no values of their column's new type")
    elif any(words in text for words in _OLDER_THAN_THE_LAST):
        error = ClockBehind(f"the last snapshot of {target.label} is from a later time than this machine's clock tells")
    else:
        error = ApplyFailed(f"{target.label} could not be merged: {type(cause).__name__}")
    error.__cause__ = cause
    return error
