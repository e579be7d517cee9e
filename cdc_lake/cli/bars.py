"""Progress on a terminal: a bar for what can be counted, a line for what cannot. Used by the view only."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.text import Text

from cdc_lake.cli.stages import REPEATING, Pace, count
from cdc_lake.observe.progress import Progress as Told


class _Bar(BarColumn):
    """A bar where there is a total, nothing where there is none."""

    def render(self, task: Task) -> ProgressBar:
        """One task's bar."""
        if task.total is None:
            return ProgressBar(total=1, completed=0, width=1, style="none")
        return super().render(task)


class Bars:
    """One line a stage; stages that repeat change their own line instead of adding lines."""

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

    def show(self, told: Told) -> None:
        """Move a bar, change a line, or write one."""
        if told.done is None and told.stage not in REPEATING:
            self.line(f"{told.stage:<9} {told.text}")
            return
        task = self._tasks.get(told.stage)
        if task is None:
            task = self._progress.add_task(told.text, total=told.total, stage=told.stage, count="", pace="")
            self._tasks[told.stage] = task
        pace = self._pace.of(told)
        self._progress.update(
            task, completed=told.done or 0, total=told.total, description=told.text, count=count(told), pace=pace
        )
        if told.total is not None and (told.done or 0) >= told.total:
            del self._tasks[told.stage]

    def line(self, text: str) -> None:
        """A line above the bars."""
        self._console.print(Text(text), soft_wrap=True)

    def close(self) -> None:
        """Stop moving."""
        self._progress.stop()
