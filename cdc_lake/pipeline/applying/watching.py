"""Watching apply: nobody does, or a file of metrics is kept and lineage is told where the pipeline asks for it."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Protocol, Self

from cdc_lake.config.project import Project
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.applying.applied import Applied


class Watcher(AbstractContextManager["Watcher"], Protocol):
    """Hears what apply tells and passes it on; entered for one run, whose error its end is given."""

    def heard(self, progress: Progress) -> None:
        """What apply tells."""
        ...

    def follow(self, done: Applied) -> None:
        """What the run counts in, from its start on."""
        ...

    def walked(self) -> None:
        """A walk has ended, also one that was no step; `done` says where."""
        ...


class Nobody:
    """Passes on what is told."""

    def __init__(self, tell: Tell) -> None:
        self.heard = tell

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing."""

    def follow(self, done: Applied) -> None:
        """Nothing."""

    def walked(self) -> None:
        """Nothing."""


class Both:
    """Two who watch: the second hears first and passes on to the first, as it was made to."""

    def __init__(self, first: Watcher, second: Watcher) -> None:
        self._first = first
        self._second = second
        self._entered = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as entered:
            entered.enter_context(self._first)
            entered.enter_context(self._second)
            self._entered = entered.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.__exit__(kind, error, trace)

    def heard(self, progress: Progress) -> None:
        """See Watcher."""
        self._second.heard(progress)

    def follow(self, done: Applied) -> None:
        """See Watcher."""
        self._first.follow(done)
        self._second.follow(done)

    def walked(self) -> None:
        """See Watcher."""
        self._first.walked()
        self._second.walked()


def watching(project: Project, tell: Tell, *, once: bool = True) -> Watcher:
    """Who watches a run of this pipeline, which has an end with `once`."""
    lineage: Watcher | None = None
    if (to := project.pipeline.observe.openlineage) is not None:
        from cdc_lake.pipeline.applying.lineage_watch import LineageWatch  # noqa: PLC0415  # only where it is asked for

        lineage = LineageWatch(project, to, tell, once=once)
    if project.textfile is None:
        return lineage or Nobody(tell)
    from cdc_lake.pipeline.applying.apply_metrics import ApplyMetrics  # noqa: PLC0415  # only where it is asked for

    metrics = ApplyMetrics(project, project.textfile, lineage.heard if lineage else tell)
    return Both(lineage, metrics) if lineage else metrics
