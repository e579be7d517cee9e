"""What apply tells a lineage server: that a run began, how far one without end is, and how it ended.

Told beside the work (`runtime.openlineage`), so that no server holds apply up; what fails is told, once until it
works again.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from cdc_lake.config.model import OpenLineage
from cdc_lake.config.project import Project
from cdc_lake.errors import LineageNotSent
from cdc_lake.errors.base import install
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.runtime.apply.merge import ApplyTotals
from cdc_lake.runtime.openlineage import LineageSender, sends


class LineageWatch:
    """Sends events (`runtime.apply.applier.RunListener`)."""

    def __init__(self, project: Project, to: OpenLineage, report: ProgressReporter, *, once: bool) -> None:
        self.on_progress = report
        self._project = project
        self._to = to
        self._once = once
        self._totals: ApplyTotals | None = None
        self._sent_at = time.monotonic()
        self._sender: LineageSender | None = None

    def __enter__(self) -> Self:
        self._sender = LineageSender(sends(self._to, self._project.root), self._to.timeout / 1000, self._report_failure)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sender is None:
            return
        state = "COMPLETE" if error is None else "FAIL" if isinstance(error, Exception) else "ABORT"
        self._say(state, error)
        self._sender.close()

    def follow(self, totals: ApplyTotals) -> None:
        """What the run counts in, from its start on."""
        self._totals = totals
        self._say("START")

    def on_pass_end(self) -> None:
        """A walk has ended, also one that was no step; `done` says where."""
        if time.monotonic() - self._sent_at >= self._to.every / 1000:
            self._say("RUNNING")

    def _say(self, state: str, error: BaseException | None = None) -> None:
        if self._sender is None or self._totals is None:
            return
        try:
            from cdc_lake.runtime.openlineage import event  # noqa: PLC0415  # only where it is asked for
        except ModuleNotFoundError:
            self._report_failure(f"openlineage-python is not installed: {install('openlineage')}")
            self._sender.close()
            self._sender = None
            return
        self._sent_at = time.monotonic()
        totals = self._totals
        self._sender.put(
            event(self._project, self._to.namespace, totals.run, state, totals, once=self._once, error=error)
        )

    def _report_failure(self, why: str) -> None:
        error = LineageNotSent(f"events of lineage are not sent to {self._to.to}: {why}")
        self.on_progress(ProgressEvent("warning", f"{error.message}; {error.remedy}", facts={"code": error.code}))
