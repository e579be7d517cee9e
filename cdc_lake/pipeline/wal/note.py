"""The note of the WAL budget: what the receiver saw last, for apply, `status` and metrics, which run elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from cdc_lake.config.project import Project
from cdc_lake.observe.progress import Progress, Tell, silent
from cdc_lake.pipeline.state.note_file import NoteFile
from cdc_lake.pipeline.wal.ladder import Mark

FRESH: Final = 60.0
"""Seconds after which a note is of a receiver that looks no more."""


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """A WAL budget as a receiver saw it last, at most a minute ago.

    `step`: calm, smaller batches, bronze only, exceeded or drop; `used`: share of the budget; `age_seconds`: of the
    oldest log that is not in bronze, at most; `growth`: bytes a second; `exceeded_in`: seconds until the bytes are used
    up at that rate; `pauses_apply`: whether apply waits for it.
    """

    step: str
    reason: str
    used: float
    retained_bytes: int
    age_seconds: float
    growth: float | None
    exceeded_in: float | None
    pauses_apply: bool


class WalNote:
    """Written by the receiver only; read by anybody."""

    def __init__(self, lake: Path, pipeline: str, tell: Tell = silent) -> None:
        trouble = "apply and `status` cannot be told of the WAL budget"
        self._file = NoteFile(lake / "logs" / f"{pipeline}.wal", trouble, tell)

    def begin(self) -> list[Mark]:
        """Make the note; the marks that a receiver before left."""
        before = self._file.read_as(_marks)
        self._file.begin()
        return before or []

    def write(self, at: float, seen: BudgetStatus | None, marks: Sequence[Mark]) -> None:
        """Say what was seen at a time, None: nothing now; `marks` are for the next receiver."""
        self._file.write({"at": at, "seen": None if seen is None else asdict(seen), "marks": marks})

    def read(self) -> BudgetStatus | None:
        """What a receiver that runs saw last."""
        return self._file.read_as(_seen)


def _marks(said: dict[str, Any]) -> list[Mark]:
    return [(float(at), int(end)) for at, end in said["marks"]]


def _seen(said: dict[str, Any]) -> BudgetStatus | None:
    seen = said["seen"]
    if seen is None or abs(time.time() - said["at"]) > FRESH:
        return None
    growth, exceeded_in = (None if (one := seen[name]) is None else float(one) for name in ("growth", "exceeded_in"))
    return BudgetStatus(
        step=str(seen["step"]),
        reason=str(seen["reason"]),
        used=float(seen["used"]),
        retained_bytes=int(seen["retained_bytes"]),
        age_seconds=float(seen["age_seconds"]),
        growth=growth,
        exceeded_in=exceeded_in,
        pauses_apply=seen["pauses_apply"] is True,
    )


class GivesWay:
    """Whether apply waits so that the receiver has the machine to itself; told when it begins and ends to wait."""

    def __init__(self, project: Project, tell: Tell) -> None:
        self._note = WalNote(project.lake, project.name)
        self._tell = tell
        self._waits = False

    def __call__(self) -> bool:
        """Ask the note."""
        seen = self._note.read()
        waits = seen is not None and seen.pauses_apply
        if waits is not self._waits:
            self._waits = waits
            text = "silver goes on: the WAL budget is out of danger"
            if seen is not None and waits:
                text = f"silver waits: {seen.used:.0%} of the WAL budget is used, and bronze comes first"
            self._tell(Progress("apply", text))
        return waits


def never() -> bool:
    """Of a run with an end: its receiver is done before it applies."""
    return False
