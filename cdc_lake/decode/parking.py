"""Parking: where a prepared transaction waits for its COMMIT PREPARED, and what of it waits there. The port.

Once the slot is confirmed beyond a PREPARE, the server sends only what became of the transaction: so what is parked
survives everything that bronze survives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cdc_lake.decode.frames import FrameStore
from cdc_lake.decode.pgoutput_prepared import Prepared
from cdc_lake.errors import DecodeError


@dataclass(frozen=True, slots=True)
class Announcement:
    """A relation message as version 1 has it, with its LSN: changes from frame number `at` on follow it."""

    at: int
    payload: bytes
    lsn: int


@dataclass(frozen=True, slots=True)
class Parked:
    """What came of a prepared transaction. `frames` are as `RawTransaction` has them; so is `fault`.

    `told`: what its messages say about tables that it altered (`decode.told`). Every table that messages change is
    announced here, whatever the connection knew of it.

    Lines (test_decoding) announce nothing: `tables` are those that they change, `encoding` is what they are in.
    """

    frames: FrameStore
    announcements: Sequence[Announcement]
    told: Sequence[bytes] = ()
    origin: str | None = None
    fault: DecodeError | None = None
    tables: Sequence[str] = ()
    encoding: str | None = None


class Parking(Protocol):
    """Keeps prepared transactions of one stream. Used by one thread. Raises LakeError."""

    def park(self, prepared: Prepared, content: Parked) -> None:
        """Keep one, durably when this returns; one that is kept already is not kept twice."""
        ...

    def committed(self, xid: int, gid: str, end_lsn: int) -> Parked | None:
        """It committed by a record that ends at `end_lsn`: what was parked, None where nothing was."""
        ...

    def changed(self, xid: int, end_lsn: int) -> bool:
        """Whether one of which nothing is parked changed anything, by what the server says. Raises SourceError."""
        ...

    def rolled_back(self, xid: int, gid: str, end_lsn: int) -> None:
        """It was rolled back by such a record; nothing happens where nothing was parked."""
        ...
