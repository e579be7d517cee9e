"""Room: memory that the chunks of a thread have one after the other.

A chunk lives as long as it is decoded, and new memory for each, two mebibytes from the system, is a third of all pages
that a receiver touches anew. What still looks at a chunk keeps its room: the next one gets another.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from io import BytesIO
from typing import Final

_MOST: Final = 4 << 20
"""Bytes that a thread keeps: as much as two chunks of the usual size."""


class _Rooms(threading.local):
    def __init__(self) -> None:
        self.room = BytesIO()


_ROOMS: Final = _Rooms()


def in_room(parts: Sequence[bytes | memoryview], size: int) -> memoryview:
    """The parts one behind the other, `size` bytes in all, which may be written to."""
    if size > _MOST:
        return memoryview(bytearray().join(parts))
    room = _ROOMS.room
    try:
        room.seek(0)
        room.writelines(parts)
    except BufferError:  # somebody looks at the last chunk
        room = _ROOMS.room = BytesIO()
        room.writelines(parts)
    return room.getbuffer()[:size]
