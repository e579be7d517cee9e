"""Progress: what a loop tells while it works. A view turns it into a bar, a line every 10 s, or a JSON event."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Progress:
    """One thing that happened.

    `stage` is a stable word (`connect`, `snapshot`, `receive`, `landed`, `apply`, `layout`, `merge`, `cut`, `compare`,
    `retry`, `done`); `text` says it to a person without row values; `done` of `total` in `unit` where it can be
    counted; `facts` are numbers and names for `--json`.
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
