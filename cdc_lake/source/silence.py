"""Silence: a peer that has gone without a word, as where a network between drops what both sides send.

TCP tells of it late or, where somebody between still acknowledges, never. So the server of a stream that has said
nothing for half of a time is asked for a sign, and given up where none has come in the other half.

The answer to a statement may take any time and is no stream, so there only TCP is asked, after the same time: whether
the machine on the other side is still there (`probes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cdc_lake.errors import ServerUnreachable

LONGEST = 60.0
"""Seconds, as `wal_receiver_timeout` of PostgreSQL has them."""
_TCP_TAKES = 2 * 32_767.0
"""Seconds: Linux waits at most half of it before a probe (MAX_TCP_KEEPIDLE)."""


def probes(longest: float) -> Mapping[str, int]:
    """How TCP looks whether a peer that says nothing is there, as it calls them (tcp(7)): seconds, the last one
    milliseconds. The first probe is sent after half of the time; when it is over, the peer is given up, also one that
    owes an acknowledgement. TCP takes no more than some hours.
    """
    longest = min(longest, _TCP_TAKES)
    return {
        "TCP_KEEPIDLE": max(1, round(longest / 2)),
        "TCP_KEEPINTVL": max(1, round(longest / 6)),
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": round(1000 * longest),
    }


def of_postgres(asked: float, sender_timeout: float) -> float:
    """How long a PostgreSQL may be silent, where the pipeline says `asked`; all in seconds.

    One that is busy with what it does not send answers as late as half of its own time-out.
    """
    return max(asked, 1.5 * sender_timeout)


class Silence:
    """How long a server has been silent, by what was read of it; `longest` in seconds."""

    def __init__(self, longest: float, clock: Callable[[], float]) -> None:
        self._half = longest / 2
        self._clock = clock
        self._since = clock()
        self._asked: float | None = None

    @property
    def long(self) -> bool:
        """Whether it lasts so long that `to_ask` has something to say, if nothing is there to be read."""
        return self._clock() - self._since >= self._half

    def heard(self) -> None:
        """The server sent something, however little."""
        self._since = self._clock()
        self._asked = None

    def to_ask(self) -> bool:
        """Nothing is there: True where the server is to be asked for a sign, once. Raises ServerUnreachable where it
        was asked and has not answered.
        """
        now = self._clock()
        if self._asked is None:
            self._asked = now
            return True
        if now - self._asked >= self._half:
            text = f"the server has sent nothing for {now - self._since:.0f} s, not even the answer it was asked for"
            raise ServerUnreachable(text)
        return False
