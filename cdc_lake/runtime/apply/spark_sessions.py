"""Spark sessions for tables that are processed in parallel: one session per table, a limited number at a time.

Commit settings apply to a session and would affect other tables otherwise. What Spark raises for one table is returned
as that table's error: it must not stop the others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from threading import current_thread
from typing import TYPE_CHECKING, Final, Self, TypeVar

from cdc_lake import errors
from cdc_lake.config.project import Target
from cdc_lake.runtime.apply.schema_changes import copied_again
from cdc_lake.silver.current import MISSING_ROW
from cdc_lake.silver.net_change import MISSING_BASE
from cdc_lake.tables.casts import UNREADABLE
from cdc_lake.tables.spark_session import death, derive, on_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MERGING = "merge"
"""Prefix of the names of threads that merge tables."""

_OLDER_THAN_THE_LAST = ("Expected sorted snapshot log entries", "Invalid update timestamp")
"""Iceberg's messages about a snapshot more than a minute older than the one before (1.12, tested)."""

_CONDITION = re.compile(r"(?:^|: )\[([A-Z]+(?:_[A-Z0-9]+)+(?:[.][A-Z0-9_]+)*)\]")
"""The name of an error condition at the start of Spark's messages."""

_NOT_ENOUGH = ("OutOfMemoryError", "StackOverflowError", "spark.driver.maxResultSize", "Cannot grow BufferHolder")
"""Messages of Java and Spark if a row or a plan is too large."""


@dataclass
class SparkLives:
    """Crashes of Spark's JVM in a run that started it again. `suspects`: labels of tables that were processed during a
    crash, and are processed one by one since; `given_up`: those that crashed it alone, twice.
    """

    suspects: set[str] = field(default_factory=set)
    blamed: Counter[str] = field(default_factory=Counter)
    given_up: dict[str, errors.CdcLakeError] = field(default_factory=dict)
    working: set[str] = field(default_factory=set)

    def record_end(self, how: str) -> None:
        """Record that the JVM ended while it processed `working`."""
        if len(self.working) == 1:
            [label] = self.working
            self.blamed[label] += 1
            if self.blamed[label] >= _TWICE:
                self.given_up[label] = errors.TableEndsSpark(
                    f"Spark's Java process ended twice because of {label} ({how})"
                )
        self.suspects |= self.working
        self.working = set()

    def record_merge(self, label: str) -> None:
        """Record a merge: this table is no longer a suspect."""
        self.blamed.pop(label, None)
        self.suspects.discard(label)


_TWICE: Final = 2  # a single crash may have any cause

_T = TypeVar("_T")
_R = TypeVar("_R")


class Sessions:
    """The sessions of a run and the threads that use them. Its exit waits for the threads, except on an interrupt."""

    def __init__(self, spark: SparkSession, parallelism: int, lives: SparkLives | None = None) -> None:
        self._spark = spark
        self._lives = lives or SparkLives()
        self._sessions: dict[str, SparkSession] = {}
        self._pool = ThreadPoolExecutor(parallelism, MERGING)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        now = kind is not None and not issubclass(kind, Exception)  # interrupted twice
        self._pool.shutdown(wait=not now, cancel_futures=True)

    def session_for(self, target: Target) -> SparkSession:
        """The session of a table."""
        if target.label not in self._sessions:
            self._sessions[target.label] = derive(self._spark)
        return self._sessions[target.label]

    def run_each(self, work: Callable[[_T], _R], items: Sequence[_T], label: Callable[[_T], str]) -> list[_R]:
        """The results of `work`, in the order of `items`; `label`: the table of an item. Raises SparkDied."""
        working: set[str] = set()

        def run_item(item: _T) -> _R:
            if how := death(self._spark):
                raise errors.SparkDied(how)
            if on_cluster(self._spark):  # fairly: the tasks of a small table do not wait for all those of a large one
                self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", current_thread().name)
            working.add(label(item))
            result = work(item)
            if not isinstance(result, errors.CdcLakeError) or death(self._spark) is None:
                working.discard(label(item))
            return result

        self._lives.working = working
        contexts = [copy_context() for _ in items]  # with the lease of this thread
        results = list(self._pool.map(lambda context, item: context.run(run_item, item), contexts, items))
        if how := death(self._spark):
            raise errors.SparkDied(how)
        return results


@contextmanager
def translate_errors(target: Target) -> Iterator[None]:
    """Convert errors that Spark raises to errors of cdc_lake that name the table."""
    try:
        yield
    except errors.Unconvertible as failure:
        failure.remedy = copied_again(target)
        raise
    except errors.CdcLakeError:
        raise
    except Exception as cause:  # any error of Spark is this table's failure
        raise _explain_error(cause, target) from cause


def capture_errors(work: Callable[[], _R], target: Target) -> _R | errors.CdcLakeError:
    """The result, or the error as `translate_errors` raises it."""
    try:
        with translate_errors(target):
            return work()
    except errors.CdcLakeError as failure:
        return failure


def _error_kind(cause: Exception) -> str:
    """The kind of a failure: Spark's name of it, never its message, which may contain row values."""
    condition = _CONDITION.search(str(cause))
    return type(cause).__name__ if condition is None else f"{type(cause).__name__} ({condition[1]})"


def _of_a_past(target: Target) -> str:
    """The hint for a missing row in a table that is rebuilt from bronze, which never had the row."""
    return (
        "another program wrote to the table, or rows were missing from the start; `cdc-lake compare "
        f"{target.source}` lists them. Set `missing_row: hold` to quarantine such changes and continue, or "
        f"{copied_again(target)}"
    )


def _explain_error(cause: Exception, target: Target) -> errors.CdcLakeError:
    text = str(cause)
    error: errors.CdcLakeError
    if MISSING_ROW in text or MISSING_BASE in text:
        words = f"a change refers to a row that {target.label} does not have"
        error = errors.BaseRowMissing(words, hint=_of_a_past(target) if target.keeps_past else None)
    elif UNREADABLE in text:
        words = f"old rows of {target.label} contain texts that are not values of their column's new type"
        error = errors.Unconvertible(words, hint=copied_again(target))
    elif any(words in text for words in _OLDER_THAN_THE_LAST):
        error = errors.ClockBehind(f"the latest snapshot of {target.label} is later than this machine's clock")
    elif (lack := next((name for name in _NOT_ENOUGH if name in text), None)) is not None:
        error = errors.TableEndsSpark(f"Spark had too little space to work on {target.label}: {lack}")
    else:
        error = errors.ApplyFailed(f"{target.label} could not be merged: {_error_kind(cause)}")
    return error
