"""The receiver's note: why it waits, for who asks from another process while the lake itself cannot be asked.

It is a hint, as the log is: the truth is what bronze holds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cdc_lake.errors import LakeError
from cdc_lake.observe.progress import Tell, silent
from cdc_lake.pipeline.state.note_file import NoteFile


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the receiver waits for: since when, when it last tried, and what failed."""

    since: datetime
    tried: datetime
    code: str
    message: str
    where: str


class ReceiverNote:
    """Written by the receiver only, while it is entered, one thread at a time; read by anybody."""

    def __init__(self, lake: Path, pipeline: str, tell: Tell = silent) -> None:
        trouble = "`status` cannot be told whether the receiver waits"
        self._file = NoteFile(lake / "logs" / f"{pipeline}.receiver", trouble, tell)
        self._since: datetime | None = None

    def __enter__(self) -> Self:
        self._file.begin()
        self.goes_on()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.goes_on()

    def waits(self, error: LakeError) -> None:
        """Say what is waited for."""
        now = datetime.now(UTC)
        self._since = self._since or now
        said = asdict(Waiting(self._since, now, error.code, error.message[:500], error.where[:500]))
        self._file.write({name: str(value) for name, value in said.items()})

    def goes_on(self) -> None:
        """Nothing is waited for, or not any more."""
        self._since = None
        self._file.write(None)

    def read(self) -> Waiting | None:
        """What the receiver last said; None where it does not wait, or never ran here."""
        return self._file.read_as(_waiting)


def _waiting(said: dict[str, Any]) -> Waiting:
    since, tried = (datetime.fromisoformat(said[name]) for name in ("since", "tried"))
    return Waiting(since, tried, str(said["code"]), str(said["message"]), str(said["where"]))
