"""Outlasting: a receiver goes on while its lake is away or full, until that comes back.

A commit that failed for a reason that waiting can heal is made again, with longer and longer pauses. Meanwhile the
connection stays, the server's keepalives are answered and nothing is confirmed, so nothing is lost: the server keeps
it. What a failed commit left is read from the table before the next attempt, so none is made twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

from cdc_lake.bronze.port import BronzeState, BronzeWriter, ClosedBatch, Landed, Tabulate
from cdc_lake.decode.columnar import tabulate
from cdc_lake.decode.raw import Raw
from cdc_lake.errors import LakeError, Retry
from cdc_lake.model.relation import Relation
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.state.receiver_note import ReceiverNote
from cdc_lake.pipeline.stream.copying import Stopped

PAUSES: Final = (0.5, 30.0)
"""Seconds: the first and the longest pause between two attempts."""

T = TypeVar("T")


class OutlastingBronze:
    """A bronze writer that waits for its lake (`bronze.port.BronzeWriter`); used by one thread at a time.

    `stop` ends the waiting: Stopped is raised then. Entered for a connection, whose end ends it too.
    """

    def __init__(
        self,
        bronze: BronzeWriter,
        stop: threading.Event,
        tell: Tell,
        note: ReceiverNote,
        pauses: tuple[float, float] = PAUSES,
    ) -> None:
        self._bronze = bronze
        self._stop = stop
        self._tell = tell
        self._note = note
        self._pauses = pauses
        self._left = threading.Event()

    def __enter__(self) -> Self:
        self._left.clear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()

    def state(self) -> BronzeState | None:
        """See BronzeWriter; asked once: the loop tries again with the whole connection."""
        return self._bronze.state()

    def begin_stream(self, stream: str, start: int, confirm: int | None = None, *, after: int = 0) -> BronzeState:
        """See BronzeWriter; tried once: a stream is begun where its slot was just looked at."""
        return self._bronze.begin_stream(stream, start, confirm, after=after)

    def append(self, batch: ClosedBatch | Sequence[Raw], tabulate: Tabulate = tabulate) -> Landed:
        """See BronzeWriter."""
        return self._outlast(lambda: self._bronze.append(batch, tabulate))

    def advance(self, position: int, confirm: int, empty: int = 0) -> Landed:
        """See BronzeWriter."""
        return self._outlast(lambda: self._bronze.advance(position, confirm, empty))

    def turn_back(self, position: int) -> BronzeState:
        """See BronzeWriter; tried once, as `begin_stream`."""
        return self._bronze.turn_back(position)

    def append_snapshot(
        self, snapshot: str, chunk: int, relation: Relation, rows: object, first_ordinal: int, position: int
    ) -> Landed:
        """See BronzeWriter."""
        return self._outlast(
            lambda: self._bronze.append_snapshot(snapshot, chunk, relation, rows, first_ordinal, position)
        )

    def as_landed(self, relation: Relation) -> Relation:
        """See BronzeWriter."""
        return self._bronze.as_landed(relation)

    def _outlast(self, commit: Callable[[], T]) -> T:
        pause, longest = self._pauses
        waited = False
        while True:
            try:
                made = commit()
            except LakeError as error:
                if error.retry is Retry.NEVER or self._left.is_set():
                    raise
                if self._stop.is_set():
                    raise Stopped from error
                waited = True
                self._tell(retrying(error, pause))
                self._note.waits(error)
                self._rest(pause)
                pause = min(2 * pause, longest)
            else:
                if waited:
                    self._note.goes_on()
                    self._tell(Progress("retry", "the lake is back: the receiver goes on"))
                return made

    def _rest(self, seconds: float) -> None:
        """A pause, shorter where the waiting ends."""
        for _ in range(round(seconds / 0.1)):
            if self._left.is_set() or self._stop.wait(0.1):
                return


def retrying(error: LakeError, pause: float) -> Progress:
    """What is told of a failure that is waited out."""
    at = f" at {error.where}" if error.where else ""
    return Progress("retry", f"{error.message}{at}; next attempt in {pause:g} s", facts={"code": error.code})
