"""Replication slots and their persistence.

A slot survives a restart. A crash restores its last checkpoint, so that what was confirmed since is sent again: a
server saves its slots now and then, not at every reply.
"""

from __future__ import annotations

import enum
import re
import threading
from dataclasses import dataclass, replace

from cdc_lake_testing.gaussdb.sql import Failed

_NAME = re.compile(r"[a-z0-9_?.-]{1,63}")
_HINT = (
    "Replication slot names may only contain lower letters, numbers and the 4 following special characters: "
    "'_', '?', '.', '-'.\n'.' and '..' are also not allowed to be slot names independently."
)


class SlotOrder(enum.Enum):
    """In which order a slot sends: by commit LSN, or (GaussDB) by CSN, which then stands wherever an LSN would."""

    LSN = "lsn"
    CSN = "csn"


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot; `confirmed` is an LSN or a CSN, by `order`. `restart_lsn` is where decoding begins to read."""

    name: str
    plugin: str
    database: str
    restart_lsn: int
    confirmed: int
    order: SlotOrder = SlotOrder.LSN

    def starts_after(self, start: int) -> int:
        """The position a stream asked to start at `start` (0: wherever the slot is) really starts at."""
        return max(start, self.confirmed)


class SlotError(Exception):
    """A slot command the server refuses; `failed` is its answer."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.message)
        self.failed = failed


class Slots:
    """All slots of a server. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: dict[str, Slot] = {}
        self._written: dict[str, Slot] = {}
        self._active: dict[str, int] = {}

    def create(self, slot: Slot) -> None:
        """Add a slot and write it down; raises SlotError."""
        if _NAME.fullmatch(slot.name) is None or slot.name in {".", ".."}:
            name = slot.name
            raise SlotError(
                Failed("42602", f'replication slot name "{name}" contains invalid character', None, _HINT, "FATAL")
            )
        with self._lock:
            if slot.name in self._slots:
                raise SlotError(Failed("42710", f'replication slot "{slot.name}" already exists', severity="FATAL"))
            self._slots[slot.name] = self._written[slot.name] = slot

    def drop(self, name: str) -> None:
        """Remove a slot; raises SlotError."""
        with self._lock:
            self._existing(name)
            self._refuse_active(name)
            del self._slots[name]
            self._written.pop(name, None)

    def get(self, name: str) -> Slot:
        """The slot; raises SlotError."""
        with self._lock:
            return self._existing(name)

    def idle(self, name: str) -> Slot:
        """The slot, which nobody reads; raises SlotError."""
        with self._lock:
            slot = self._existing(name)
            self._refuse_active(name)
            return slot

    def all(self) -> list[tuple[Slot, int | None]]:
        """Every slot with the pid of the session that reads it."""
        with self._lock:
            return [(slot, self._active.get(slot.name)) for slot in self._slots.values()]

    def acquire(self, name: str, pid: int) -> Slot:
        """Take the slot for a stream; raises SlotError (55006 where another has it)."""
        with self._lock:
            slot = self._existing(name)
            self._refuse_active(name)
            self._active[name] = pid
            return slot

    def release(self, name: str, pid: int) -> None:
        """Give the slot back, if this session has it."""
        with self._lock:
            if self._active.get(name) == pid:
                del self._active[name]

    def confirm(self, name: str, position: int) -> None:
        """Move the slot forward; 0 and what lies behind it change nothing."""
        with self._lock:
            slot = self._slots.get(name)
            if slot is None or position <= slot.confirmed:
                return
            restart = position if slot.order is SlotOrder.LSN else slot.restart_lsn
            self._slots[name] = replace(slot, confirmed=position, restart_lsn=max(slot.restart_lsn, restart))

    def checkpoint(self) -> None:
        """Write every slot down as it is now."""
        with self._lock:
            self._written = dict(self._slots)

    def crash(self) -> None:
        """Go back to what was written down."""
        with self._lock:
            self._slots = dict(self._written)
            self._active.clear()

    def _existing(self, name: str) -> Slot:
        try:
            return self._slots[name]
        except KeyError:
            raise SlotError(Failed("42704", f'replication slot "{name}" does not exist', severity="FATAL")) from None

    def _refuse_active(self, name: str) -> None:
        if name in self._active:
            raise SlotError(Failed("55006", f'replication slot "{name}" is already active', severity="FATAL"))
