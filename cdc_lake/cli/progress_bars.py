"""Progress on a terminal: a bar for countable work, a line for the rest. Loaded only when needed."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.text import Text

from cdc_lake.cli.text import REPEATING, Pace, count
from cdc_lake.observability.events import ProgressEvent


class _Bar(BarColumn):
    """A bar if there is a total, otherwise nothing."""

    def render(self, task: Task) -> ProgressBar:
        """One task's bar."""
        if task.total is None:
            return ProgressBar(total=1, completed=0, width=1, style="none")
        return super().render(task)


class Bars:
    """One line per stage; repeated stages update their line."""

    def __init__(self, stream: TextIO, *, colour: bool) -> None:
        self._console = Console(file=stream, no_color=not colour, highlight=False)
        self._progress = Progress(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.fields[stage]:<9}", markup=False),
            TextColumn("{task.description}", markup=False),
            _Bar(bar_width=20),
            TextColumn("{task.fields[count]}", markup=False),
            TextColumn("{task.fields[pace]}", markup=False),
            TimeElapsedColumn(),
            console=self._console,
            transient=False,
        )
        self._tasks: dict[str, TaskID] = {}
        self._pace = Pace()
        self._progress.start()

    def show(self, progress: ProgressEvent) -> None:
        """Update a bar or a line, or write one."""
        if progress.done is None and progress.stage not in REPEATING:
            self.line(f"{progress.stage:<9} {progress.text}")
            return
        task = self._tasks.get(progress.stage)
        if task is None:
            task = self._progress.add_task(progress.text, total=progress.total, stage=progress.stage, count="", pace="")
            self._tasks[progress.stage] = task
        pace = self._pace.describe_pace(progress)
        self._progress.update(
            task,
            completed=progress.done or 0,
            total=progress.total,
            description=progress.text,
            count=count(progress),
            pace=pace,
        )
        if progress.total is not None and (progress.done or 0) >= progress.total:
            del self._tasks[progress.stage]

    def line(self, text: str) -> None:
        """Write a line above the bars."""
        self._console.print(Text(text), soft_wrap=True)

    def close(self) -> None:
        """Stop updating."""
        self._progress.stop()
