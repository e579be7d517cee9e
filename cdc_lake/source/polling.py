"""A slot read by SQL functions, for networks that allow no replication connection, whatever the server.

Peek, land, advance: changes are peeked at, whole transactions, and only when they are confirmed is the slot advanced,
so nothing is lost between the two. Nobody holds the slot in between, so it is looked at again after every peek.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from cdc_lake.errors import ServerUnreachable, SlotAhead
from cdc_lake.model.position import Lsn

UNREAD: Final = 60.0
"""Seconds for which an answer may wait to be read on: the server holds a snapshot for it, and old rows for that."""
_LOOK = 0.05  # seconds between looks while what was sent is not confirmed yet


class SlotFunctions(Protocol):
    """The functions of one slot. Every method raises SourceError."""

    @property
    def settling(self) -> float:
        """Seconds after which whatever was committed before `end` was asked for is decoded for certain."""

    def end(self) -> int:
        """Where the server's log ends now."""

    def peek(self, least: int) -> Iterator[Sequence[tuple[int, bytes]]] | None:
        """Changes of whole transactions behind the slot's position as `(position, payload)`, ending with the
        transaction that makes them `least` or more; None where somebody else reads the slot just now.

        They come in pieces, none of which is empty. What is not taken of an answer is lost with the next one; the other
        functions may be called in between.
        """

    def advance(self, position: int) -> None:
        """Let the server forget everything up to a position."""

    def load_flush_lsn(self) -> int:
        """How far the slot is confirmed now."""

    def close(self) -> None:
        """Close the session."""


class PollingStream:
    """A slot behind SQL functions (implements `source.base.FrameSource`).

    Nothing more is asked for until everything that was sent is confirmed. But one that `looks` reads on, each time from
    the slot's position, until something is confirmed: what is behind `start` has to be seen before.

    An answer is handed over piece by piece: of a large transaction no more than two are in memory. Where what comes
    behind the first is not asked for, `tick` raises ServerUnreachable after `UNREAD`: who closes the sessions then lets
    the server let go of it, and is shown it again.

    `keepalive_end` is where the log ended a moment before an answer that was empty: long enough for a commit written
    without waiting to be decoded too. Or where an answer ends: it is of whole transactions, and of nothing under way.

    Somebody else who advances the slot or makes it anew takes changes away: `poll` and `confirm` raise SlotAhead then.
    """

    def __init__(
        self,
        functions: SlotFunctions,
        start: int,
        *,
        interval: float,
        max_changes: int,
        looks: bool = False,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`interval` in seconds is how often a server without news is asked."""
        self._functions = functions
        self._confirmed = self._sent = self._keepalive_end = start
        self._interval = interval
        self._clock = clock
        self._pause = pause
        self._max_changes = max_changes
        self._peeked_count: int | None = 0 if looks else None
        """Changes behind the slot's position that were looked at; None where there is nothing to be looked at first."""
        self._next = self._read_at = clock()
        self._answer: Iterator[Sequence[tuple[int, bytes]]] = iter(())
        self._piece: Sequence[tuple[int, bytes]] | None = None
        """The next one of the answer; None behind its end."""
        self._ends: deque[tuple[float, int]] = deque()
        self._advanced: int | None = None
        if start:
            # after a crash of the server the slot may be behind what is landed: the same would be shown for ever
            self._advance(start)

    @property
    def keepalive_end(self) -> int:
        """The newest WAL position the server announced: everything committed before it has been sent."""
        return self._keepalive_end

    @property
    def reply_requested(self) -> bool:
        """True while an answer was sent whole and is not confirmed: nothing follows until it is."""
        return self._piece is None and self._sent > self._confirmed

    def poll(self, timeout: float) -> list[tuple[int, bytes]]:
        """Frames as `(lsn, payload)`, waiting up to `timeout` seconds for the first; also answers keepalives."""
        if self._piece is not None:
            return self._frames(self._piece)
        due = self._next - self._clock()
        if self._peeked_count is None and self._sent > self._confirmed:
            self._pause(min(timeout, _LOOK))
            return []
        if due > 0:
            self._pause(min(timeout, due))
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
        self._next = self._clock() + (_LOOK if peeked is None else self._interval)
        if peeked is not None:
            self._ends.append((self._clock(), before))
        while self._ends and self._ends[0][0] <= self._clock() - self._functions.settling:
            self._keepalive_end = max(self._keepalive_end, self._ends.popleft()[1])
        return []

    def confirm(self, position: int) -> None:
        """Everything up to the slot position `position` is durable: tell the server so now."""
        if position > self._confirmed:
            self._check_unmoved()
            self._advance(position)
            self._confirmed, self._peeked_count = position, None

    def tick(self, *, ping: bool = False) -> None:
        """Give up an answer that nobody reads on; with `ping` ask the server at once. Nobody waits for a status."""
        if self._piece is not None and self._clock() - self._read_at > UNREAD:
            text = f"nothing that the server sent could be read for {UNREAD:g} s: reading its slot again"
            raise ServerUnreachable(text)
        if ping:
            self._next = self._clock()

    def close(self) -> None:
        """Close the connection; the slot stays."""
        self._functions.close()

    def _frames(self, frames: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """A piece of the answer; the one behind it is asked for."""
        self._piece = next(self._answer, None)
        self._read_at = self._clock()
        self._sent = max(self._sent, frames[-1][0])
        if self._peeked_count is not None:
            self._peeked_count += len(frames)
        elif self._piece is None:
            self._keepalive_end = max(self._keepalive_end, self._sent)
        return list(frames)

    def _advance(self, position: int) -> None:
        self._functions.advance(position)
        self._advanced = position

    def _check_unmoved(self) -> None:
        """Raise SlotAhead where the slot is further than what was advanced here, or read."""
        if self._advanced is None:
            return
        flush_lsn, here = self._functions.load_flush_lsn(), max(self._advanced, self._keepalive_end)
        if flush_lsn > here:
            text = f"the slot is confirmed up to {Lsn(flush_lsn)}, but was read up to {Lsn(here)}"
            raise SlotAhead(f"{flush_lsn - here} bytes are missing: {text}")


def _skip_changes(pieces: Iterator[Sequence[tuple[int, bytes]]], count: int) -> Iterator[Sequence[tuple[int, bytes]]]:
    """The pieces of an answer without its first `count` changes."""
    for piece in pieces:
        if count < len(piece):
            yield piece[count:] if count else piece
        count = max(0, count - len(piece))
