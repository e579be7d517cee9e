"""Small files with which one process informs others of what is not in the lake, as hints.

The receiver records why it waits, for processes that run while the lake is unreachable. Only bronze is authoritative. A
file has its full size from the start, so that it can be written on a full disk. If the control tables are in an object
store, the same object is put next to them, for processes on other machines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self, TypeVar

from cdc_lake.config.project import Project
from cdc_lake.errors import LakeError
from cdc_lake.observability.events import ProgressEvent, ProgressReporter, silent
from cdc_lake.tables.control_files import ControlFiles, StoredControlFiles
from cdc_lake.tables.object_store import object_store

_SIZE: Final = 4096  # bytes, a block of a disk
T = TypeVar("T")


class NoteFile:
    """One JSON object of a pipeline, or none. `trouble`: what others will not learn if it cannot be written."""

    def __init__(self, project: Project, kind: str, trouble: str, report: ProgressReporter = silent) -> None:
        self._path = project.lake / "logs" / f"{project.name}.{kind}"
        self._name = kind
        self._shared = _shared_notes(project)
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
        if self._shared is not None:
            with self._report_errors():
                self._shared.put(self._name, lambda: [text])

    def read_as(self, value: Callable[[dict[str, Any]], T]) -> T | None:
        """The last object as a value; None also if it is invalid, because it is only a hint."""
        try:
            note = json.loads(self._read().strip() or b"null")
            return value(note) if isinstance(note, dict) else None
        except (FileNotFoundError, ValueError, RecursionError, KeyError, TypeError, OverflowError):
            return None  # never begun; read in the middle of a write; damaged

    def _read(self) -> bytes:
        """What all machines see; if that is not available, the file."""
        with suppress(LakeError):  # who reads the control tables learns why
            if self._shared is not None and (text := self._shared.read(self._name, 0, _SIZE)) is not None:
                return text
        return self._path.read_bytes()

    @contextmanager
    def _report_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as failure:
            self._report(ProgressEvent("receive", f"{self._trouble}: {failure.strerror} at {self._path}"))
        except LakeError as failure:
            self._report(ProgressEvent("receive", f"{self._trouble}: {failure.message} at {failure.where}"))


def _shared_notes(project: Project) -> ControlFiles | None:
    """The notes that other machines can read, if any; a write is tried only once."""
    if (address := project.control_address) is None:
        return None
    return StoredControlFiles(object_store(project, patience=0), address / "notes")


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

    def __init__(self, project: Project, report: ProgressReporter = silent) -> None:
        trouble = "`status` cannot be informed whether the receiver waits"
        self._file = NoteFile(project, "receiver", trouble, report)
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
        """The receiver's last record; None if it does not wait, or never ran."""
        return self._file.read_as(_waiting)


def _waiting(note: dict[str, Any]) -> ReceiverWait:
    since, tried = (datetime.fromisoformat(note[name]) for name in ("since", "tried"))
    return ReceiverWait(since, tried, str(note["code"]), str(note["message"]), str(note["where"]))
