"""What apply tells a lineage server: that a run began, how far one without end is, and how it ended.

Told beside the work (`observe.lineage_sender`), so that no server holds apply up; what fails is told, once until it
works again.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from cdc_lake.config.observe import OpenLineage
from cdc_lake.config.project import Project
from cdc_lake.errors import LineageNotSent
from cdc_lake.errors.root import install
from cdc_lake.observe.lineage_sender import LineageSender, sends
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.applying.applied import Applied


class LineageWatch:
    """Sends events (`pipeline.applying.watching.Watcher`)."""

    def __init__(self, project: Project, to: OpenLineage, tell: Tell, *, once: bool) -> None:
        self.heard = tell
        self._project = project
        self._to = to
        self._once = once
        self._done: Applied | None = None
        self._said = time.monotonic()
        self._sender: LineageSender | None = None

    def __enter__(self) -> Self:
        self._sender = LineageSender(sends(self._to, self._project.root), self._to.timeout / 1000, self._failed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sender is None:
            return
        state = "COMPLETE" if error is None else "FAIL" if isinstance(error, Exception) else "ABORT"
        self._say(state, error)
        self._sender.close()

    def follow(self, done: Applied) -> None:
        """See Watcher."""
        self._done = done
        self._say("START")

    def walked(self) -> None:
        """See Watcher."""
        if time.monotonic() - self._said >= self._to.every / 1000:
            self._say("RUNNING")

    def _say(self, state: str, error: BaseException | None = None) -> None:
        if self._sender is None or self._done is None:
            return
        try:
            from cdc_lake.pipeline.applying.lineage_events import event  # noqa: PLC0415  # only where it is asked for
        except ModuleNotFoundError:
            self._failed(f"openlineage-python is not installed: {install('openlineage')}")
            self._sender.close()
            self._sender = None
            return
        self._said = time.monotonic()
        done = self._done
        self._sender.put(event(self._project, self._to.namespace, done.run, state, done, once=self._once, error=error))

    def _failed(self, why: str) -> None:
        error = LineageNotSent(f"events of lineage are not sent to {self._to.to}: {why}")
        self.heard(Progress("warning", f"{error.message}; {error.remedy}", facts={"code": error.code}))
