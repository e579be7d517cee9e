"""A slot of the GaussDB family read by SQL functions, for networks that allow no replication connection.

Peek, land, advance: changes are peeked at (`pg_logical_slot_peek_changes`, whole transactions, serial decoding), and
only when they are confirmed is the slot advanced, so nothing is lost between the two. The columns are taken by place:
position, transaction id, line.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

from cdc_lake.errors import StreamProtocol
from cdc_lake.model.position import Lsn
from cdc_lake.source.gaussdb.server import current_lsn
from cdc_lake.source.gaussdb.slot import advance_slot
from cdc_lake.source.quoting import literal
from cdc_lake.source.wire.session import WireSession

_LOOK = 0.05  # seconds between looks while what was sent is not confirmed yet
_UNFLUSHED = 10.0
"""Times `wal_writer_delay` after which a commit that did not wait for the disk is decoded for certain."""
_LEAST = 2.0  # seconds


class PollingStream:
    """A slot behind SQL functions (implements `source.stream.FrameSource`); frames are `(position, line)` in UTF-8.

    Nothing more is asked for until everything that was sent is confirmed. But one that `looks` reads on, each time from
    the slot's position, until something is confirmed: what is behind `start` has to be seen before.

    `keepalive_end` is where the log ended a moment before an answer that was empty: long enough for a commit written
    without waiting to be decoded too.
    """

    def __init__(
        self,
        session: WireSession,
        slot: str,
        start: int,
        options: Mapping[str, str],
        *,
        interval: float,
        max_changes: int,
        looks: bool = False,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`session` is an ordinary one; `interval` in seconds is how often a server without news is asked."""
        self._session = session
        self._slot = slot
        self._confirmed = self._sent = self._keepalive_end = start
        self._interval = interval
        self._clock = clock
        self._pause = pause
        self._options = "".join(f", {literal(name)}, {literal(value)}" for name, value in options.items())
        self._max_changes = max_changes
        self._seen: int | None = 0 if looks else None
        """Lines behind the slot's position that were looked at; None where there is nothing to be looked at first."""
        self._next = clock()
        self._ends: deque[tuple[float, int]] = deque()
        self._settled = _settling(session)
        if start:
            # after a crash of the server the slot may be behind what is landed: the same would be shown for ever
            advance_slot(session, slot, Lsn(start))

    @property
    def keepalive_end(self) -> int:
        """See FrameSource."""
        return self._keepalive_end

    @property
    def asked(self) -> bool:
        """See FrameSource: true while something was sent that is not confirmed, as nothing follows until it is."""
        return self._sent > self._confirmed

    def poll(self, timeout: float) -> list[tuple[int, bytes]]:
        """See FrameSource."""
        due = self._next - self._clock()
        if self._seen is None and self._sent > self._confirmed:
            self._pause(min(timeout, _LOOK))
            return []
        if due > 0:
            self._pause(min(timeout, due))
            if due > timeout:
                return []
        before = current_lsn(self._session).value
        rows = self._peeked(self._seen or 0)
        if rows:
            return self._frames(rows)
        self._next = self._clock() + self._interval
        self._ends.append((self._clock(), before))
        while self._ends and self._ends[0][0] <= self._clock() - self._settled:
            self._keepalive_end = max(self._keepalive_end, self._ends.popleft()[1])
        return []

    def confirm(self, position: int) -> None:
        """See FrameSource."""
        if position > self._confirmed:
            advance_slot(self._session, self._slot, Lsn(position))
            self._confirmed, self._seen = position, None

    def tick(self, *, ping: bool = False) -> None:
        """See FrameSource: nobody waits for a status here; with `ping` the server is asked at once."""
        if ping:
            self._next = self._clock()

    def close(self) -> None:
        """See FrameSource."""
        self._session.close()

    def _peeked(self, seen: int) -> tuple[tuple[str | None, ...], ...]:
        """Lines of whole transactions behind the slot's position, without the first `seen`."""
        asked = f"{literal(self._slot)}, NULL, {seen + self._max_changes}{self._options}"
        sql = f"SELECT * FROM pg_logical_slot_peek_changes({asked})"
        return self._session.query(sql, doing=f"reading slot `{self._slot}`").rows[seen:]

    def _frames(self, rows: tuple[tuple[str | None, ...], ...]) -> list[tuple[int, bytes]]:
        frames = []
        for row in rows:
            if len(row) != 3 or row[0] is None or row[2] is None:
                raise StreamProtocol(f"a change of {len(row)} columns: expected position, transaction id, line")
            frames.append((Lsn.parse(row[0]).value, row[2].encode()))
        self._sent = max(self._sent, frames[-1][0])
        if self._seen is not None:
            self._seen += len(frames)
        return frames


def _settling(session: WireSession) -> float:
    """Seconds after which whatever was committed is on disk, and so decoded, although nobody waited for it."""
    doing = "reading the server's settings"
    rows = session.query("SELECT setting FROM pg_settings WHERE name = 'wal_writer_delay'", doing=doing).rows
    delay = int(rows[0][0]) / 1000 if rows and rows[0][0] else 0.0
    return max(_UNFLUSHED * delay, _LEAST)
