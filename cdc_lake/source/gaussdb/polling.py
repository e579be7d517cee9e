"""The functions of a slot of the GaussDB family (implements `source.polling.SlotFunctions`).

Serial decoding; payloads are lines in UTF-8. The columns are taken by place: position, transaction id, line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cdc_lake.errors import SlotMissing, StreamProtocol
from cdc_lake.model.position import Lsn
from cdc_lake.source.gaussdb.server import current_lsn
from cdc_lake.source.gaussdb.slot import advance_slot, find_slot
from cdc_lake.source.quoting import literal
from cdc_lake.source.wire.session import WireSession

_UNFLUSHED = 10.0
"""Times `wal_writer_delay` after which a commit that did not wait for the disk is decoded for certain."""
_LEAST = 2.0  # seconds


class FamilyFunctions:
    """The functions of `slot`, by an ordinary session."""

    def __init__(self, session: WireSession, slot: str, options: Mapping[str, str]) -> None:
        """Asks the server for a setting. Raises SourceError."""
        self._session = session
        self._slot = slot
        self._options = "".join(f", {literal(name)}, {literal(value)}" for name, value in options.items())
        self.settling = _settling(session)

    def end(self) -> int:
        """See SlotFunctions."""
        return current_lsn(self._session).value

    def peek(self, least: int) -> Iterator[list[tuple[int, bytes]]]:
        """See SlotFunctions; the whole answer is one piece."""
        sql = f"SELECT * FROM pg_logical_slot_peek_changes({literal(self._slot)}, NULL, {least}{self._options})"
        rows = self._session.query(sql, doing=f"reading slot `{self._slot}`").rows
        return iter([[_frame(row) for row in rows]] if rows else [])

    def advance(self, position: int) -> None:
        """See SlotFunctions."""
        advance_slot(self._session, self._slot, Lsn(position))

    def confirmed(self) -> int:
        """See SlotFunctions: or somewhere before, where the server does not tell. Raises SlotMissing."""
        found = find_slot(self._session, self._slot)
        if found is None:
            raise SlotMissing(f"slot `{self._slot}` is not there any more")
        return found.confirmed or 0

    def close(self) -> None:
        """See SlotFunctions."""
        self._session.close()


def _frame(row: tuple[str | None, ...]) -> tuple[int, bytes]:
    if len(row) != 3 or row[0] is None or row[2] is None:
        raise StreamProtocol(f"a change of {len(row)} columns: expected position, transaction id, line")
    return Lsn.parse(row[0]).value, row[2].encode()


def _settling(session: WireSession) -> float:
    """Seconds after which whatever was committed is on disk, and so decoded, although nobody waited for it."""
    doing = "reading the server's settings"
    rows = session.query("SELECT setting FROM pg_settings WHERE name = 'wal_writer_delay'", doing=doing).rows
    delay = int(rows[0][0]) / 1000 if rows and rows[0][0] else 0.0
    return max(_UNFLUSHED * delay, _LEAST)
