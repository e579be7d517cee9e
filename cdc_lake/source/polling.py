"""Reads a slot through SQL functions, for networks that allow no replication connection, for any server.

Peek, land, advance: changes of complete transactions are peeked at, and the slot is advanced only after they are
confirmed, so nothing is lost in between. Nobody holds the slot meanwhile, so it is checked after every peek.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from cdc_lake.errors import ServerUnreachable, SlotAhead
from cdc_lake.model.position import Lsn

UNREAD: Final = 60.0
"""Seconds for which an answer may remain unread: the server holds a snapshot, and so old rows, for it."""
_LOOK = 0.05  # seconds between checks while sent changes are unconfirmed


class SlotFunctions(Protocol):
    """The SQL functions of one slot. Every method raises SourceError."""

    @property
    def settling(self) -> float:
        """Seconds after which everything committed before a call of `end` is certainly decoded."""

    def end(self) -> int:
        """The current end of the server's WAL."""

    def peek(self, least: int) -> Iterator[Sequence[tuple[int, bytes]]] | None:
        """Changes of complete transactions after the slot's position as `(position, payload)`, up to the transaction
        that makes them `least` or more; None while another process uses the slot.

        They come in non-empty pieces. The unread rest of an answer is lost with the next call; other functions may be
        called in between.
        """

    def advance(self, position: int) -> None:
        """Let the server discard everything up to a position."""

    def load_flush_lsn(self) -> int:
        """The slot's confirmed position."""

    def close(self) -> None:
        """Close the session."""


class PollingStream:
    """A slot behind SQL functions (implements `source.base.FrameSource`).

    Nothing more is peeked at until everything sent is confirmed. With `looks`, it reads on, each time from the slot's
    position, until something is confirmed: the changes after `start` must be inspected first.

    An answer is returned in pieces: of a large transaction at most two are in memory. If the rest is not read, `tick`
    raises ServerUnreachable after `UNREAD`: closing the sessions then releases the server's snapshot, and the answer is
    sent again.

    `keepalive_end` is the end of the WAL shortly before an empty answer: long enough that asynchronous commits are
    decoded too. Or it is the end of an answer, which contains only complete transactions.

    If another process advances or recreates the slot, changes are lost: `poll` and `confirm` then raise SlotAhead.
    """

    def __init__(
        self, functions: SlotFunctions, start: int, *, interval: float, max_changes: int, looks: bool = False
    ) -> None:
        """`interval` in seconds: how often an idle server is polled."""
        self._functions = functions
        self._confirmed = self._sent = self.keepalive_end = start
        self._interval = interval
        self._max_changes = max_changes
        self._peeked_count: int | None = 0 if looks else None
        """Number of inspected changes after the slot's position; None if none need inspection."""
        self._next = self._read_at = time.monotonic()
        self._answer: Iterator[Sequence[tuple[int, bytes]]] = iter(())
        self._piece: Sequence[tuple[int, bytes]] | None = None
        """The next piece of the answer; None after its end."""
        self._ends: deque[tuple[float, int]] = deque()
        self._advanced: int | None = None
        if start:
            # after a server crash the slot may be behind bronze: the same changes would be sent forever
            self._advance(start)

    @property
    def reply_requested(self) -> bool:
        """True while a completely sent answer is unconfirmed: nothing follows until it is confirmed."""
        return self._piece is None and self._sent > self._confirmed

    def poll(self, timeout: float) -> list[tuple[int, bytes]]:
        """Frames as `(lsn, payload)`, waiting up to `timeout` seconds for the first; also answers keepalives."""
        if self._piece is not None:
            return self._frames(self._piece)
        due = self._next - time.monotonic()
        if self._peeked_count is None and self._sent > self._confirmed:
            time.sleep(min(timeout, _LOOK))
            return []
        if due > 0:
            time.sleep(min(timeout, due))
            if due > timeout:
                return []
        before = self._functions.end()
        peeked_count = self._peeked_count or 0
        peeked = self._functions.peek(peeked_count + self._max_changes)
        self._answer = iter(()) if peeked is None else _skip_changes(peeked, peeked_count)
        self._piece = next(self._answer, None)
        self._check_unmoved()
        if self._piece is not None:
            return self._frames(self._piece)
        self._next = time.monotonic() + (_LOOK if peeked is None else self._interval)
        if peeked is not None:
            self._ends.append((time.monotonic(), before))
        while self._ends and self._ends[0][0] <= time.monotonic() - self._functions.settling:
            self.keepalive_end = max(self.keepalive_end, self._ends.popleft()[1])
        return []

    def confirm(self, position: int) -> None:
        """Everything up to the slot position `position` is durable: tell the server so now."""
        if position > self._confirmed:
            self._check_unmoved()
            self._advance(position)
            self._confirmed, self._peeked_count = position, None

    def tick(self, *, ping: bool = False) -> None:
        """Give up an unread answer; with `ping` poll the server at once. No status is sent."""
        if self._piece is not None and time.monotonic() - self._read_at > UNREAD:
            text = f"nothing that the server sent could be read for {UNREAD:g} s: reading its slot again"
            raise ServerUnreachable(text)
        if ping:
            self._next = time.monotonic()

    def close(self) -> None:
        """Close the connection; the slot stays."""
        self._functions.close()

    def _frames(self, frames: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """A piece of the answer; the next one is requested."""
        self._piece = next(self._answer, None)
        self._read_at = time.monotonic()
        self._sent = max(self._sent, frames[-1][0])
        if self._peeked_count is not None:
            self._peeked_count += len(frames)
        elif self._piece is None:
            self.keepalive_end = max(self.keepalive_end, self._sent)
        return list(frames)

    def _advance(self, position: int) -> None:
        self._functions.advance(position)
        self._advanced = position

    def _check_unmoved(self) -> None:
        """Raise SlotAhead if the slot is further than it was advanced or read here."""
        if self._advanced is None:
            return
        flush_lsn, here = self._functions.load_flush_lsn(), max(self._advanced, self.keepalive_end)
        if flush_lsn > here:
            text = f"the slot is confirmed up to {Lsn(flush_lsn)}, but was read up to {Lsn(here)}"
            raise SlotAhead(f"{flush_lsn - here} bytes are missing: {text}")


def _skip_changes(pieces: Iterator[Sequence[tuple[int, bytes]]], count: int) -> Iterator[Sequence[tuple[int, bytes]]]:
    """The pieces of an answer without its first `count` changes."""
    for piece in pieces:
        if count < len(piece):
            yield piece[count:] if count else piece
        count = max(0, count - len(piece))
