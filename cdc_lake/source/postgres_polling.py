"""The functions of a slot of PostgreSQL (implements `source.polling.SlotFunctions`).

What a plugin sends as bytes (pgoutput) is peeked at by the binary function, lines (test_decoding) by the one for text,
of which the server makes UTF-8. Decoding goes as far as the log is flushed, so what is flushed before is decoded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain

from cdc_lake.errors import SlotActive, SlotMissing
from cdc_lake.model.position import Lsn
from cdc_lake.source.connection import Session, named, send_as_stored
from cdc_lake.source.left_out import LeftOut
from cdc_lake.source.plugins import PGOUTPUT
from cdc_lake.source.server import wal_position

_PATIENCE = 15.0  # seconds for which somebody else may look into the slot, a comparison for one
PIECE = 4 << 20
"""Bytes of changes that are handed over at once, as large as what the spool holds in memory by default."""
_FRAME = 128  # bytes that a change takes in memory beside its own
_LOOK = 0.1  # seconds between two attempts to move the slot


class PostgresFunctions:
    """The functions of `slot`, by ordinary sessions in autocommit; `settling`: see SlotFunctions.

    Changes come by `reading`, a row at a time while the server still sends; all else is done by `session` meanwhile.
    """

    settling = 0.0

    def __init__(
        self,
        reading: Session,
        session: Session,
        slot: str,
        plugin: str,
        options: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`options`: the plugin's. Raises SourceError."""
        self._reading = reading
        self._session = session
        self._slot = slot
        self._clock = clock
        self._pause = pause
        kind = "_binary" if plugin == PGOUTPUT else ""
        # a message without a transaction is nothing that could be confirmed, and would be shown for ever
        only = "" if plugin == PGOUTPUT else " WHERE NOT starts_with(data, 'message: ')"
        function = f"pg_logical_slot_peek{kind}_changes"
        self._peek = f"SELECT lsn::text, data FROM {function}(%s, NULL, %s, VARIADIC %s::text[]){only}"
        self._options = [word for pair in options.items() for word in pair]
        self._busy_since: float | None = None
        self._left_out = LeftOut(reading)
        send_as_stored(reading.pgconn)

    def end(self) -> int:
        """See SlotFunctions."""
        return wal_position(self._session).value

    def peek(self, least: int) -> Iterator[list[tuple[int, bytes]]] | None:
        """See SlotFunctions; raises SlotActive where others have read the slot for long, PublicationMissing where the
        server left changes out.
        """
        pieces = self._pieces(least)
        try:
            # the server decodes all of the answer and lets go of the slot before it sends any of it
            first = next(pieces, None)
        except SlotActive:
            now = self._clock()
            self._busy_since = now if self._busy_since is None else self._busy_since
            if now - self._busy_since > _PATIENCE:
                raise
            return None
        self._busy_since = None
        return pieces if first is None else chain([first], pieces)

    def _pieces(self, least: int) -> Iterator[list[tuple[int, bytes]]]:
        piece: list[tuple[int, bytes]] = []
        held, given = 0, [self._slot, least, self._options]
        with named(f"reading slot `{self._slot}`"):
            for lsn, data in self._reading.cursor().stream(self._peek.encode(), given, binary=True):
                piece.append((Lsn.parse(_text(lsn)).value, _bytes(data)))
                held += len(piece[-1][1]) + _FRAME
                if held >= PIECE:
                    self._left_out.check()
                    yield piece
                    piece, held = [], 0
        self._left_out.check()
        if piece:
            yield piece

    def advance(self, position: int) -> None:
        """See SlotFunctions; raises SlotActive where others have read the slot for long."""
        until = self._clock() + _PATIENCE
        while True:
            try:
                with named(f"advancing slot `{self._slot}`"):
                    self._session.execute(
                        "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", [self._slot, str(Lsn(position))]
                    )
            except SlotActive:
                if self._clock() > until:
                    raise
                self._pause(_LOOK)
            else:
                return

    def confirmed(self) -> int:
        """See SlotFunctions; raises SlotMissing."""
        with named(f"looking up slot `{self._slot}`"):
            row = self._session.execute(
                "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", [self._slot]
            ).fetchone()
        if row is None or row[0] is None:
            raise SlotMissing(f"slot `{self._slot}` is not there any more")
        return Lsn.parse(_text(row[0])).value

    def close(self) -> None:
        """See SlotFunctions; `session` is closed by whom it is of."""
        self._reading.close()


def _text(value: object) -> str:
    return _bytes(value).decode()


def _bytes(value: object) -> bytes:
    """Text is given as bytes where the database is in SQL_ASCII."""
    return value.encode() if isinstance(value, str) else bytes(value)  # type: ignore[call-overload]  # a bytea
