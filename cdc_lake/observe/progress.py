"""Progress: what a loop tells while it works. A view turns it into a bar, a line every 10 s, or a JSON event."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Progress:
    """One thing that happened.

    `stage` is a stable word, an event of `observe.events`; `text` says it to a person without row values; `done` of
    `total` in `unit` where it can be counted; `facts` are numbers and names for `--json` and the log: the event's
    fields.
    """

    stage: str
    text: str
    done: int | None = None
    total: int | None = None
    unit: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


Tell: TypeAlias = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Tell nobody."""
    del progress


def of_run(run: str, tell: Tell) -> Tell:
    """Says of everything which run it is of, unless that is said already."""

    def told(progress: Progress) -> None:
        tell(replace(progress, facts={"run": run, **progress.facts}))

    return told
