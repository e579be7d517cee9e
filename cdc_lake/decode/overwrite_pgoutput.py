"""Messages of pgoutput with every value of every row overwritten (`decode.filler`), and nothing else changed.

A message that cannot be read is overwritten as a whole: what it holds is not known. Version 1 of the protocol.
"""

from __future__ import annotations

from typing import Final

from cdc_lake.decode.filler import Filler
from cdc_lake.decode.pgoutput import parse
from cdc_lake.errors import DecodeError

_ROWS: Final = b"IUD"
_MESSAGE: Final = b"M"
_MESSAGE_HEAD: Final = 10  # letter, flags, LSN


def overwritten(payload: bytes, filler: Filler) -> tuple[bytes, bool]:
    """The message, and whether it could be read."""
    try:
        parse(payload)
        if payload[:1] == _MESSAGE:
            return payload[:_MESSAGE_HEAD] + _message(payload[_MESSAGE_HEAD:], filler), True
        return (_row(payload, filler) if payload[0] in _ROWS else payload), True
    except DecodeError:
        return filler.value(payload), False


def _row(payload: bytes, filler: Filler) -> bytes:
    out = bytearray(payload)
    at = 5  # letter, OID
    while at < len(payload):
        count = int.from_bytes(payload[at + 1 : at + 3], "big")  # behind N, K or O
        at += 3
        for _ in range(count):
            kind, at = payload[at : at + 1], at + 1
            if kind == b"t":
                size = int.from_bytes(payload[at : at + 4], "big")
                at += 4
                out[at : at + size] = filler.value(payload[at : at + size])
                at += size
    return bytes(out)


def _message(body: bytes, filler: Filler) -> bytes:
    """Prefix, zero byte, length, content."""
    end = body.index(b"\0")
    return filler.value(body[:end]) + body[end : end + 5] + filler.value(body[end + 5 :])
