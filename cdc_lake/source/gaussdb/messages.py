"""Messages inside a stream of the GaussDB family: the header of data, the keepalive, the reply. Pure.

`w`, data: 24 bytes big-endian (start, end, time), then the payload. `k`, keepalive: the memory image of a structure of
the server, little-endian on x86 and ARM, whose last bytes are padding and hold anything. `r`, the reply: a memory image
as well, of 64 bytes; a shorter one ends the stream. Neither is PostgreSQL's of the same letter.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from cdc_lake.errors import StreamProtocol

DATA, KEEPALIVE = b"wk"
DATA_HEADER = 25
"""Letter, start, end (the same), time."""

KEEPALIVE_SIZE = 33

_HEADER_REST = struct.Struct(">Qq")
_START = struct.Struct(">Q")
_KEEPALIVE = struct.Struct("<QiiqBB")  # end, role, state, time, reply wanted, catching up; then 6 bytes of anything
_REPLY = struct.Struct("<cQQQQQiiqB3xI")  # receive, write, flush, apply, applyRead, role, state, time, wanted, flags
_EPOCH_2000 = 946_684_800  # seconds from 1970 to PostgreSQL's own epoch


@dataclass(frozen=True, slots=True)
class Keepalive:
    """A keepalive: how far the server has read, in its own numbers, and whether it wants a reply now."""

    end: int
    role: int
    state: int
    reply_wanted: bool
    catching_up: bool


def read_keepalive(body: bytes | memoryview) -> Keepalive:
    """Read a keepalive with its letter. Raises StreamProtocol where its size is another."""
    if len(body) != KEEPALIVE_SIZE or body[0] != KEEPALIVE:
        raise StreamProtocol(
            f"a keepalive of {len(body)} bytes where the GaussDB family sends {KEEPALIVE_SIZE}",
            hint="is it a PostgreSQL? then `source.type: postgres`",
        )
    end, role, state, _, wanted, catching_up = _KEEPALIVE.unpack_from(body, 1)
    return Keepalive(end, role, state, wanted != 0, catching_up != 0)


def reply(received: int, confirmed: int, seconds: float, *, wanted: bool = False) -> bytes:
    """The reply: what was received, and what may be forgotten; only the latter moves the slot.

    `seconds` is the time since 1970; with `wanted` the server answers with a keepalive.
    """
    clock = int((seconds - _EPOCH_2000) * 1_000_000)
    return _REPLY.pack(b"r", received, received, confirmed, confirmed, confirmed, 0, 0, clock, wanted, 0)


def data(start: int, payload: bytes, seconds: float) -> bytes:
    """A data message as the server sends it."""
    return b"w" + _START.pack(start) + _HEADER_REST.pack(start, int((seconds - _EPOCH_2000) * 1_000_000)) + payload
