"""The spool: frames of transactions that are not committed yet, or too large to be held, on this machine's disk.

Nothing in it has to survive: what was not committed is read again from its start. Its files have no names, so the
system takes them back however the receiver ends. Little is held in memory over all transactions together: whichever
has the most goes to disk.
"""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from cdc_lake.config.quantity import format_bytes
from cdc_lake.errors import SpoolFull, SpoolNotWritten
from cdc_lake.pipeline.stream.spooled import SpooledFrames


class Spool:
    """Makes stores (`decode.frames.NewFrames`), all of which are closed when it is left.

    `at_most`: bytes on disk; `part`: see `NewFrames`, and how many bytes are in memory. `written` counts all bytes of
    frames that went to disk.
    """

    def __init__(self, folder: Path, at_most: int, part: int) -> None:
        self._folder = folder
        self._at_most = at_most
        self.part = part
        self._held = 0
        self._used = self._parked = 0
        self._stores: set[SpooledFrames] = set()
        self._lock = threading.Lock()  # stores are closed by the thread that landed them
        self.written = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for store in list(self._stores):
            store.close()

    def __call__(self) -> SpooledFrames:
        """An empty store."""
        store = SpooledFrames(self)
        with self._lock:
            self._stores.add(store)
        return store

    @property
    def used(self) -> int:
        """Bytes on disk, with those of prepared transactions."""
        return self._used

    def park(self, size: int, *, checked: bool = True) -> None:
        """So many bytes more are of prepared transactions, which wait elsewhere. Raises SpoolFull where `checked`."""
        if checked:
            self._reserve(size)
        with self._lock:
            if not checked:
                self._used += size
            self._parked += size

    def unpark(self, size: int) -> None:
        """So many bytes of prepared transactions are gone."""
        self.give_back(size)
        with self._lock:
            self._parked -= size

    # ── for its stores ──

    def hold(self, size: int) -> None:
        """So many bytes more, or less, are in memory. Raises LakeError."""
        self._held += size
        if self._held > self.part:
            with self._lock:
                largest = max((one for one in self._stores if not one.sealed), key=lambda one: one.held)
            largest.spill()

    def take(self, size: int) -> None:
        """So many bytes more are to go to disk. Raises SpoolFull."""
        self._reserve(size)
        self.written += size

    def _reserve(self, size: int) -> None:
        """Count so many bytes more. Raises SpoolFull."""
        with self._lock:
            if self._used + size <= self._at_most:
                self._used += size
                return
        text = f"transactions without their COMMIT take more than {format_bytes(self._at_most)}"
        more = f", {format_bytes(self._parked)} of them prepared ones" if self._parked else ""
        raise SpoolFull(text + more, where=str(self._folder))

    def give_back(self, size: int) -> None:
        """So many bytes on disk are free again."""
        with self._lock:
            self._used -= size

    def forget(self, store: SpooledFrames) -> None:
        """A store was closed."""
        with self._lock:
            self._stores.discard(store)

    def open(self) -> int:
        """A file without a name. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._folder, buffering=0) as file:
            return os.dup(file.fileno())

    def failed(self) -> SpoolNotWritten:
        """The error of a file that could not be written or read."""
        return SpoolNotWritten("a transaction without its COMMIT could not be kept on disk", where=str(self._folder))
