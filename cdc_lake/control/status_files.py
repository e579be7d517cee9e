"""Small files with which one process informs others of what is not in the lake, as hints.

The receiver records why it waits, for processes that run while the lake is unreachable. Only bronze is authoritative. A
file has its full size from the start, so that it can be written on a full disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from cdc_lake.errors import LakeError
from cdc_lake.observability.events import ProgressEvent, ProgressReporter, silent

_SIZE: Final = 4096  # bytes, a block of a disk
T = TypeVar("T")


class NoteFile:
    """One JSON object, or none. `trouble`: what others will not learn if the file cannot be written."""

    def __init__(self, path: Path, trouble: str, report: ProgressReporter = silent) -> None:
        self._path = path
        self._trouble = trouble
        self._report = report

    def begin(self) -> None:
        """Create the file, if it does not exist with its size."""
        with self._report_errors():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if not self._path.exists() or self._path.stat().st_size != _SIZE:
                self._path.write_bytes(b" " * _SIZE)

    def write(self, note: Mapping[str, object] | None) -> None:
        """Write an object, or none."""
        text = b"" if note is None else json.dumps(note).encode()
        with self._report_errors(), self._path.open("r+b") as file:
            file.write(text[:_SIZE].ljust(_SIZE))

    def read(self) -> dict[str, Any] | None:
        """The last object written; None if there is none."""
        try:
            note = json.loads(self._path.read_bytes().strip() or b"null")
        except (FileNotFoundError, ValueError, RecursionError):  # never begun; read in the middle of a write; damaged
            return None
        return note if isinstance(note, dict) else None

    def read_as(self, value: Callable[[dict[str, Any]], T]) -> T | None:
        """The last object as a value; None also if it is invalid, because it is only a hint."""
        note = self.read()
        try:
            return None if note is None else value(note)
        except (KeyError, TypeError, ValueError, OverflowError):
            return None

    @contextmanager
    def _report_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as failure:
            self._report(ProgressEvent("receive", f"{self._trouble}: {failure.strerror} at {self._path}"))


@dataclass(frozen=True, slots=True)
class ReceiverWait:
    """Why the receiver waits: since when, its last attempt, and the error."""

    since: datetime
    tried: datetime
    code: str
    message: str
    where: str


class ReceiverNote:
    """Written only by the receiver while it is entered, one thread at a time; read by anybody."""

    def __init__(self, lake: Path, pipeline: str, report: ProgressReporter = silent) -> None:
        trouble = "`status` cannot be informed whether the receiver waits"
        self._file = NoteFile(lake / "logs" / f"{pipeline}.receiver", trouble, report)
        self._since: datetime | None = None

    def __enter__(self) -> Self:
        self._file.begin()
        self.goes_on()
        return self

    def __exit__(self, *_: object) -> None:
        self.goes_on()

    def waits(self, error: LakeError) -> None:
        """Record a wait."""
        now = datetime.now(UTC)
        self._since = self._since or now
        fields = asdict(ReceiverWait(self._since, now, error.code, error.message[:500], error.where[:500]))
        self._file.write({name: str(value) for name, value in fields.items()})

    def goes_on(self) -> None:
        """Record that there is no wait any more."""
        self._since = None
        self._file.write(None)

    def read(self) -> ReceiverWait | None:
        """The receiver's last record; None if it does not wait, or never ran here."""
        return self._file.read_as(_waiting)


def _waiting(note: dict[str, Any]) -> ReceiverWait:
    since, tried = (datetime.fromisoformat(note[name]) for name in ("since", "tried"))
    return ReceiverWait(since, tried, str(note["code"]), str(note["message"]), str(note["where"]))
