"""The source port: what the receive loop needs of a change stream, whatever the server.

A stream's identity is one text, `pg:<system id>:<database>:<slot>:<consistent point>`: it is kept in bronze and
compared with the server at every start, so that two histories are never joined by mistake.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cdc_lake.errors import MalformedPosition, OtherSource
from cdc_lake.model.position import Lsn


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """Which server, database and slot a stream comes from, and the slot's consistent point."""

    system: str
    database: str
    slot: str
    start: Lsn

    def __str__(self) -> str:
        return f"pg:{self.system}:{self.database}:{self.slot}:{self.start}"

    @classmethod
    def parse(cls, text: str) -> StreamIdentity:
        """Read the text back (a database name may hold colons); raises OtherSource where it is not one."""
        head, _, rest = text.partition(":")
        system, _, rest = rest.partition(":")
        database, _, tail = rest.rpartition(":")
        database, _, slot = database.rpartition(":")
        try:
            if head == "pg" and system and database and slot:
                return cls(system, database, slot, Lsn.parse(tail))
        except MalformedPosition as malformed:
            raise OtherSource(f"bronze holds the stream `{text}`, which is not one of PostgreSQL") from malformed
        raise OtherSource(f"bronze holds the stream `{text}`, which is not one of PostgreSQL")


class FrameSource(Protocol):
    """An open stream. Frames come in order; after `confirm(p)` the server may forget everything up to p.

    Not for several threads at once. Every method raises SourceError: ServerUnreachable where trying again helps.
    """

    @property
    def keepalive_end(self) -> int:
        """The newest WAL position the server announced: everything committed before it has been sent."""
        ...

    @property
    def asked(self) -> bool:
        """True once after the server asked for a reply; reading it clears it."""
        ...

    def poll(self, timeout: float) -> list[tuple[int, bytes]]:
        """Frames as `(lsn, payload)`, waiting up to `timeout` seconds for the first; also answers keepalives."""
        ...

    def confirm(self, position: int) -> None:
        """Everything up to `position` is durable: tell the server so now."""
        ...

    def tick(self, *, ping: bool = False) -> None:
        """Send the status if it is due, without reading; with `ping`, now, and ask for a keepalive."""
        ...

    def close(self) -> None:
        """Close the connection; the slot stays."""
        ...
