"""A note: a small file beside the log that one process writes and others read, as a hint.

In full size from the start, so that a disk that is full later still takes what it says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from cdc_lake.observe.progress import Progress, Tell, silent

_SIZE: Final = 4096  # bytes, a block of a disk
T = TypeVar("T")


class NoteFile:
    """One JSON object, or none. `trouble`: what nobody can be told where the note itself cannot be written."""

    def __init__(self, path: Path, trouble: str, tell: Tell = silent) -> None:
        self._path = path
        self._trouble = trouble
        self._tell = tell

    def begin(self) -> None:
        """Make the file, if it is not there in its size."""
        with self._told():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if not self._path.exists() or self._path.stat().st_size != _SIZE:
                self._path.write_bytes(b" " * _SIZE)

    def write(self, said: Mapping[str, object] | None) -> None:
        """Say this, or nothing."""
        text = b"" if said is None else json.dumps(said).encode()
        with self._told(), self._path.open("r+b") as file:
            file.write(text[:_SIZE].ljust(_SIZE))

    def read(self) -> dict[str, Any] | None:
        """What was last said; None where nothing is, or never was here."""
        try:
            said = json.loads(self._path.read_bytes().strip() or b"null")
        except (FileNotFoundError, ValueError, RecursionError):  # never begun; read in the middle of a write; damaged
            return None
        return said if isinstance(said, dict) else None

    def read_as(self, value: Callable[[dict[str, Any]], T]) -> T | None:
        """What was last said as a value; None also where it says something else: a hint that cannot be read is none."""
        said = self.read()
        try:
            return None if said is None else value(said)
        except (KeyError, TypeError, ValueError, OverflowError):
            return None

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as failure:
            self._tell(Progress("receive", f"{self._trouble}: {failure.strerror} at {self._path}"))
