"""The pulse of the receiver: how its loop is doing, written by the loop and read by who watches it (`/healthz`).

Only the newest values; each is set whole, so that a reader on another thread sees one that was true.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from cdc_lake.bronze.port import BronzeState
from cdc_lake.decode.pgoutput_prepared import Prepared


class Pulse:
    """How a receiver is doing.

    `streaming`: a stream is open; `state`: what bronze holds of it; `progressed`: when everything received was landed
    and confirmed, or a part of it, by `clock`, in seconds; `landed_at`: when the stream was opened or bronze last moved
    on; `commit_ts`: of the newest transaction that landed, microseconds since 1970, None where none did or it has no
    time; `open_bytes`: of transactions without their COMMIT; `spilled_bytes`: written to the spool, since it began;
    `prepared`: those that are kept until COMMIT PREPARED, None without two-phase decoding. `newest_decoded`: time of
    the newest log that the server has decoded, by its heartbeats, microseconds since 1970, None without any.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._landing: tuple[int, int | None] | None = None
        self.streaming = False
        self.state: BronzeState | None = None
        self.progressed = self.landed_at = -math.inf
        self.commit_ts: int | None = None
        self.open_bytes = self.spilled_bytes = 0
        self._spilled = 0  # of the open stream
        self.prepared: Sequence[Prepared] | None = None
        self.newest_decoded: int | None = None

    @contextmanager
    def beating(self, state: BronzeState) -> Iterator[None]:
        """While a stream is open that goes on from `state`."""
        self.progressed = self.landed_at = self._clock()
        self.state, self.streaming, self._spilled = state, True, 0
        try:
            yield
        finally:
            self.streaming, self.open_bytes, self.prepared, self.newest_decoded = False, 0, None, None

    def turned(self, open_bytes: int, spilled: int, *, idle: bool) -> None:
        """The loop has turned once; `spilled`: bytes that the open stream has spooled; `idle`: nothing waits to be
        landed.
        """
        self.open_bytes = open_bytes
        self.spilled_bytes += spilled - self._spilled
        self._spilled = spilled
        if idle:
            self.progressed = self._clock()

    def lands(self, upto: int, commit_ts: int | None) -> None:
        """A batch up to `upto` is being landed; its last transaction was committed at `commit_ts`."""
        self._landing = upto, commit_ts

    def landed(self, upto: int, confirm: int) -> None:
        """What was being landed is durable and confirmed."""
        assert self.state is not None
        self.state = replace(self.state, upto=upto, confirm=confirm)
        self.progressed = self.landed_at = self._clock()
        if self._landing is not None and self._landing[0] <= upto:
            self.commit_ts, self._landing = self._landing[1], None
