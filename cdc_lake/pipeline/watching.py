"""Watching apply: nobody does, or a file of metrics is kept where the pipeline names one."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self

from cdc_lake.config.project import Project
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.applied import Applied


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


def watching(project: Project, tell: Tell) -> Watcher:
    """Who watches a run of this pipeline."""
    if project.textfile is None:
        return Nobody(tell)
    from cdc_lake.pipeline.apply_metrics import ApplyMetrics  # noqa: PLC0415  # only where it is asked for

    return ApplyMetrics(project, project.textfile, tell)
