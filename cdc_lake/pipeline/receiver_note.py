"""The receiver's note: why it waits, for who asks from another process while the lake itself cannot be asked.

A small file beside its log, in full size from the start, so that a disk that is full later still takes what it says.
It is a hint, as the log is: the truth is what bronze holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cdc_lake.errors import LakeError
from cdc_lake.observe.progress import Progress, Tell, silent

_SIZE: Final = 4096  # bytes, a block of a disk


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
        self._path = lake / "logs" / f"{pipeline}.receiver"
        self._tell = tell
        self._since: datetime | None = None

    def __enter__(self) -> Self:
        with self._told():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if not self._path.exists() or self._path.stat().st_size != _SIZE:
                self._path.write_bytes(b" " * _SIZE)
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
        self._write(json.dumps({name: str(value) for name, value in said.items()}).encode())

    def goes_on(self) -> None:
        """Nothing is waited for, or not any more."""
        self._since = None
        self._write(b"")

    def read(self) -> Waiting | None:
        """What the receiver last said; None where it does not wait, or never ran here."""
        try:
            said = json.loads(self._path.read_bytes().strip() or b"null")
        except (FileNotFoundError, ValueError):  # never begun; read in the middle of a write
            return None
        if said is None:
            return None
        since, tried = (datetime.fromisoformat(said[name]) for name in ("since", "tried"))
        return Waiting(since, tried, said["code"], said["message"], said["where"])

    def _write(self, text: bytes) -> None:
        with self._told(), self._path.open("r+b") as file:
            file.write(text[:_SIZE].ljust(_SIZE))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Where the note itself cannot be written, it is told."""
        try:
            yield
        except OSError as failure:
            text = f"`status` cannot be told whether the receiver waits: {failure.strerror} at {self._path}"
            self._tell(Progress("receive", text))
