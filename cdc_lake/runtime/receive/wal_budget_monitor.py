"""Monitors the WAL budget while a receiver runs, and compacts bronze.

    smaller batches   the receiver's, at once
    bronze only       apply pauses; it reads a file (`connectors.wal_budget`), because it may be another process
    exceeded          a warning with its code, repeated every ten minutes
    drop              the receiver stops and drops the slot: only if the pipeline file says so

After a number of commits, a separate thread merges small files and removes obsolete ones. Failures are reported and
retried later: they never stop the receiver.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Self

import pyarrow as pa

from cdc_lake.bronze import compaction
from cdc_lake.bronze.open import bronze_table
from cdc_lake.config.fields import format_milliseconds
from cdc_lake.config.model import Batch
from cdc_lake.config.project import Project
from cdc_lake.config.source import WalBudget
from cdc_lake.connectors import wal_budget
from cdc_lake.connectors.factory import slot_care
from cdc_lake.connectors.snapshot_copy import PeriodicTask
from cdc_lake.errors import CdcLakeError, SlotGivenUp, WalBudgetExceeded
from cdc_lake.model.diagnostic import pluralize, size
from cdc_lake.observability.events import ProgressEvent, ProgressReporter

LOOK_EVERY: Final = 10.0
"""Seconds between two queries."""
AGAIN_AFTER: Final = 600.0
"""Seconds after which a budget that stays exceeded is reported again."""
SMALLER: Final = 4
"""Divisor of a batch's limits, so that WAL is acknowledged more often."""
_PATIENCE: Final = 30.0  # seconds to wait for our own reader to end before its slot is dropped


class WalBudgetMonitor:
    """Monitors while it is entered."""

    def __init__(self, project: Project, budget: WalBudget, report: ProgressReporter) -> None:
        self._project = project
        self._budget = budget
        self._report = report
        self._note = wal_budget.WalNote(project, report)
        self._looks: list[wal_budget.WalSample] = []
        self._marks: list[wal_budget.Mark] = []
        self._rung = wal_budget.BudgetLevel.CALM
        self._told_at = 0.0
        self._given_up: SlotGivenUp | None = None
        self._slots = slot_care(project)
        # an error is ignored: the receiver needs the source too, and reports why it does not answer
        self._rounds = PeriodicTask(
            "cdc-lake-wal", lambda: LOOK_EVERY, self._slots.looking, self._ask, lambda _error: None
        )

    def __enter__(self) -> Self:
        self._marks = self._note.begin()
        self._rounds.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._rounds.__exit__()
        self._note.write(time.time(), None, self._marks)

    def limits(self, batch: Batch) -> Batch:
        """The limits of a batch at the current level."""
        if self._budget.on_exceeded == "alert" or self._rung is wal_budget.BudgetLevel.CALM:
            return batch
        names = ("max_bytes", "max_rows", "max_transactions", "max_delay")
        return batch.model_copy(update={name: max(1, getattr(batch, name) // SMALLER) for name in names})

    def enforce_wal_budget(self) -> None:
        """Raise SlotGivenUp if the slot is to be dropped."""
        if self._given_up is not None:
            raise self._given_up

    def give_up(self) -> None:
        """Drop the slot, once its reader has ended. Raises SourceError."""
        self._slots.drop(self._project.slot, _PATIENCE)

    def _ask(self, ask: Callable[[], wal_budget.WalSample | None]) -> None:
        """Take a sample."""
        if (sample := ask()) is not None:  # the receiver reports a slot that does not exist yet, or is lost
            self.evaluate_sample(sample)

    def evaluate_sample(self, now: wal_budget.WalSample) -> None:
        """Evaluate a sample, and publish the result."""
        self._looks = wal_budget.prune_samples([*self._looks, now])
        verdict = wal_budget.judge(self._budget, self._looks, self._marks, self._rung)
        self._marks = wal_budget.add_mark(self._budget, self._marks, now)
        if verdict.rung is not self._rung:
            self._report_level(verdict)
        error = budget_exceeded_error(self._project.slot, self._budget, verdict)
        if (
            verdict.rung.height >= wal_budget.BudgetLevel.EXCEEDED.height
            and now.observed_at - self._told_at >= AGAIN_AFTER
        ):
            self._told_at = now.observed_at
            self._report(ProgressEvent("warning", error.message, facts={"code": error.code}))
        if verdict.rung is wal_budget.BudgetLevel.DROP:
            self._given_up = SlotGivenUp(f"{error.message}: the slot is dropped, as the pipeline is configured")
        self._rung = verdict.rung
        self._note.write(now.observed_at, self._status(verdict), self._marks)

    def _report_level(self, verdict: wal_budget.BudgetVerdict) -> None:
        retained_text = f"{size(verdict.retained)} of WAL are retained, {verdict.used:.0%} of the budget"
        self._report(ProgressEvent("receive", f"WAL budget: {verdict.rung}: {retained_text}; {verdict.reason}"))
        if verdict.rung.height < wal_budget.BudgetLevel.EXCEEDED.height:
            self._told_at = 0.0

    def _status(self, verdict: wal_budget.BudgetVerdict) -> wal_budget.BudgetStatus:
        pauses = (
            self._budget.on_exceeded != "alert" and verdict.rung.height >= wal_budget.BudgetLevel.BRONZE_ONLY.height
        )
        return wal_budget.BudgetStatus(
            step=verdict.rung.value,
            reason=verdict.reason,
            used=round(verdict.used, 4),
            retained_bytes=verdict.retained,
            age_seconds=round(verdict.age, 1),
            growth=None if verdict.growth is None else round(verdict.growth, 1),
            exceeded_in=None if verdict.exceeded_in is None else round(verdict.exceeded_in, 1),
            pauses_apply=pauses,
        )


def budget_exceeded_error(name: str, budget: WalBudget, verdict: wal_budget.BudgetVerdict) -> WalBudgetExceeded:
    """The error for a budget that is exceeded."""
    limits = []
    if budget.max_bytes is not None:
        limits.append(size(budget.max_bytes))
    if budget.max_age is not None:
        limits.append(format_milliseconds(budget.max_age))
    unit = 60 if verdict.age >= 120 else 1
    age = format_milliseconds(1000 * unit * round(verdict.age / unit))
    retained_text = f"{size(verdict.retained)} of WAL for slot `{name}`, and bronze is {age} behind"
    budget_text = f"the budget is {' or '.join(limits)}"
    return WalBudgetExceeded(f"the server retains {retained_text}: {budget_text}; {verdict.reason}")


FILES_EVERY = 600.0
"""Seconds between two searches for obsolete data files: they are in one folder, which takes time to list."""


class BronzeMaintenance:
    """Maintains the bronze table while it is received; its exit waits for the current run."""

    def __init__(self, project: Project, report: ProgressReporter) -> None:
        self._project = project
        self._report = report
        self._after = project.pipeline.bronze.maintenance.compact_after_files
        self._commits = self._after  # the first commit of a run triggers it: runs may be short and many
        self._listed = -FILES_EVERY
        self._thread: ThreadPoolExecutor | None = None
        self._work: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True)

    def on_progress(self, progress: ProgressEvent) -> None:
        """Pass an event on, and start a run after enough commits."""
        self._report(progress)
        if progress.stage != "landed":
            return
        self._commits += 1
        if self._after == 0 or self._commits < self._after or (self._work is not None and not self._work.done()):
            return
        self._commits = 0
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="cdc-lake-upkeep")
        self._work = self._thread.submit(self._run)

    def _run(self) -> None:
        try:
            self._keep_up()
        except CdcLakeError as error:
            self._report_failure(error.message, error.code)
        except Exception as error:  # noqa: BLE001 - see above: told, and tried again after as many commits
            self._report_failure(f"maintenance of bronze failed ({type(error).__name__})", None)
        # memory fragmented by files and many commits: 20 MiB in 200 s (measured), and growing
        pa.default_memory_pool().release_unused()

    def _keep_up(self) -> None:
        table = bronze_table(self._project)
        if not compaction.prepare(table):
            return
        groups = compaction.compact(table, self._after)
        now, keep = time.monotonic(), None
        if now - self._listed >= FILES_EVERY:
            self._listed, keep = now, self._project.pipeline.bronze.maintenance.keep_replaced / 1000
        compaction.tidy(table, keep)
        if groups:
            files = sum(len(group.paths) for group in groups)
            text = f"{pluralize(files, 'file')} of bronze compacted into {len(groups)}"
            self._report(ProgressEvent("maintain", text, facts={"files": files, "into": len(groups)}))

    def _report_failure(self, text: str, code: str | None) -> None:
        self._report(ProgressEvent("maintain", f"{text}; this is retried later", facts={"code": code}))
