"""Ahead: what goes to the spool is decoded at once, while its transaction is under way: its COMMIT lands columns.

Values and digests are made of what relation messages say by themselves; the position of the COMMIT and what the catalog
says of a table are added once it is there. Frames stay in the spool: what cannot be decoded so is decoded, or refused,
when it is committed, and so is that whose columns found no room or cannot be read. A thread of its own decodes; it is
waited for where it falls behind.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from cdc_lake.bronze.port import Tabulate
from cdc_lake.decode.frames import Decoded
from cdc_lake.decode.joined import joined
from cdc_lake.decode.pgoutput import ROW_CHANGES
from cdc_lake.decode.raw import RawTransaction
from cdc_lake.decode.stored_columns import from_bytes, to_bytes
from cdc_lake.errors import DecodeError
from cdc_lake.model.relation import Relation
from cdc_lake.model.transaction import Boundaries

_MOST_BYTES: Final = 64 << 20
"""Of a chunk: a larger one is a row of that size, and columns take as much again, several times over."""
_MESSAGE: Final = ord("M")
_NOT_KNOWN: Final = Boundaries(position=0, confirm=0)


class Disk(Protocol):
    """Where columns go: files without names, as far as there is room."""

    def open(self) -> int:
        """A file. Raises OSError."""
        ...

    def lend(self, size: int) -> bool:
        """Whether so many bytes may be written; they are taken then."""
        ...

    def return_lent(self, size: int) -> None:
        """So many bytes are free again."""
        ...


@dataclass(frozen=True, slots=True)
class Stored:
    """Columns in a file, `size` bytes from `start` on, of so many frames of so many bytes."""

    start: int
    size: int
    relations: Sequence[Relation]
    count: int
    frames_size: int


Waiting = Future[Stored | None]
"""Columns of one chunk of frames; None: they were not made."""


class Ahead:
    """Decodes for all transactions of a connection, by `tabulate`; what that raises but DecodeError ends the stream, at
    the COMMIT.
    """

    def __init__(self, tabulate: Tabulate, disk: Disk) -> None:
        self.tabulate = tabulate
        self.disk = disk
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="cdc-lake-ahead")
        self._under_way: Waiting | None = None

    def submit(self, work: Callable[[], Stored | None]) -> Waiting:
        """Do it once what was submitted before is done."""
        if self._under_way is not None:
            wait([self._under_way])
        self._under_way = self._pool.submit(work)
        return self._under_way

    def close(self) -> None:
        """Nothing more is decoded."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class ColumnsAhead:
    """Columns of one transaction's frames, made a chunk at a time.

    They can be closed by one thread, because frames need the room, while another one reads them.
    """

    def __init__(self, ahead: Ahead) -> None:
        self._ahead = ahead
        self._layouts: dict[bytes, Relation] = {}
        self._changed = False  # perhaps a layout, among the frames of the next chunk
        self._file: int | None = None
        self._lock = threading.Lock()  # while it is read, or closed
        self._end = 0
        self._over = False  # no more are made
        self._chunks: list[Waiting] = []

    def follow(self, oid: bytes, layout: Relation | None) -> None:
        """See FrameStore."""
        if self._layouts.get(oid) == layout:
            return
        self._changed = self._changed or oid in self._layouts
        self._layouts.pop(oid, None)
        if layout is not None:
            self._layouts[oid] = layout

    def cut(self, chunks: Sequence[Waiting | None]) -> None:
        """Forget these, the last ones. Frames of them that stay are in the next chunk."""
        self._changed = True  # they may follow layouts before those of now
        gone = [chunk for chunk in chunks if chunk is not None]
        for chunk in gone:
            chunk.cancel()
        wait(gone)
        del self._chunks[len(self._chunks) - len(gone) :]
        stored = [one for one in map(_made, gone) if one is not None]
        if stored and self._file is not None:
            end, self._end = self._end, min(one.start for one in stored)
            with suppress(OSError):  # what stays of them is written over
                os.ftruncate(self._file, self._end)
            self._ahead.disk.return_lent(end - self._end)

    def begin(self, frames: Sequence[bytes], lsns: Sequence[int]) -> Waiting | None:
        """Begin to decode the next chunk; None where that cannot be done before the COMMIT."""
        changed, self._changed = self._changed, False
        if changed or sum(map(len, frames)) > _MOST_BYTES:
            return None
        layouts = dict(self._layouts)
        self._chunks.append(self._ahead.submit(lambda: self._stored(frames, lsns, layouts)))
        return self._chunks[-1]

    def columns(self, chunks: Sequence[Waiting | None]) -> Decoded | None:
        """The columns of these chunks as one piece; None where one of them has none. Raises what decoding raises."""
        stored = [None if chunk is None else _awaited(chunk) for chunk in chunks]
        found = [one for one in stored if one is not None]
        if not found or len(found) < len(stored):
            return None
        try:
            parts = [(from_bytes(self._read(one), one.relations), 0) for one in found]
        except OSError:
            return None
        return Decoded(
            joined(parts, pa.concat_arrays), sum(one.count for one in found), sum(one.frames_size for one in found)
        )

    def close(self) -> None:
        """Forget them, and make no more."""
        self._over = True
        for chunk in self._chunks:
            chunk.cancel()
        wait(self._chunks)
        with self._lock:
            file, self._file = self._file, None
            lent, self._end = self._end, 0
        if file is not None:
            os.close(file)
        self._ahead.disk.return_lent(lent)

    def _stored(self, frames: Sequence[bytes], lsns: Sequence[int], layouts: Mapping[bytes, Relation]) -> Stored | None:
        """In the thread that decodes."""
        if self._over:
            return None
        followed = [layouts.get(frame[1:5]) if frame[0] in ROW_CHANGES else None for frame in frames]
        size = sum(map(len, frames))
        if any(layout is None and frame[0] != _MESSAGE for layout, frame in zip(followed, frames, strict=True)):
            return None
        raw = RawTransaction(_NOT_KNOWN, list(frames), list(lsns), followed, {}, size, part=True)
        try:
            columns = self._ahead.tabulate([raw])
        except DecodeError:
            return None  # said when it is committed: then its place is known
        data = to_bytes(columns)
        if not self._ahead.disk.lend(data.size):
            return None
        start = self._end
        try:
            self._write(data, start)
        except OSError:  # the frames had room
            self._over = True
            self._ahead.disk.return_lent(data.size)
            return None
        self._end += data.size
        return Stored(start, data.size, columns.relations, len(frames), size)

    def _write(self, data: pa.Buffer, at: int) -> None:
        if self._file is None:
            self._file = self._ahead.disk.open()
        left = memoryview(data)
        while left:
            done = os.pwrite(self._file, left, at)
            at, left = at + done, left[done:]

    def _read(self, one: Stored) -> bytes:
        with self._lock:
            data = b"" if self._file is None else os.pread(self._file, one.size, one.start)
        if len(data) != one.size:
            msg = "the file ends early, or was closed"
            raise OSError(msg)
        return data


def _awaited(chunk: Waiting) -> Stored | None:
    """What comes of it. Raises what decoding raises."""
    try:
        return chunk.result()
    except CancelledError:
        return None


def _made(chunk: Waiting) -> Stored | None:
    """Of one that is over: what came of it."""
    return None if chunk.cancelled() or chunk.exception() is not None else chunk.result()
