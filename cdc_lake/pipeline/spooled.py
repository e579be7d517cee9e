"""Spooled frames: those of one transaction, the last ones in memory and the others in a file without a name."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Final

from cdc_lake.decode.frames import Decoded, Part
from cdc_lake.model.relation import Relation
from cdc_lake.observe.failpoint import SPOOLED, failpoint
from cdc_lake.pipeline.ahead import ColumnsAhead, Waiting

if TYPE_CHECKING:
    from cdc_lake.pipeline.spool import Spool

_LARGE: Final = 1 << 20  # bytes of a frame that is not copied to be written
_READ: Final = 1 << 30  # bytes of one read: Linux gives less than 2 GiB
_SIZES: Final = array("I")
_LSNS: Final = array("Q")


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Frames in the file: one behind the other from `start` on, `size` bytes, behind them their sizes and LSNs.

    `columns`: what they are decoded to, where they are.
    """

    start: int
    count: int
    size: int
    columns: Waiting | None = None

    @property
    def whole(self) -> int:
        """Bytes of all of it."""
        return self.size + self.count * (_SIZES.itemsize + _LSNS.itemsize)


class SpooledFrames:
    """Frames of one transaction (implements `decode.frames.FrameStore`)."""

    def __init__(self, spool: Spool, ahead: ColumnsAhead | None = None) -> None:
        self._spool = spool
        self._ahead = ahead
        self._file: int | None = None
        self._chunks: list[_Chunk] = []
        self._end = 0  # of the file
        self._stored = self._bytes = 0  # frames in the chunks, and their bytes
        self._frames: list[bytes] = []
        self._lsns: list[int] = []
        self.held = 0
        """Bytes in memory."""
        self.sealed = False
        """Nothing more is added."""

    @property
    def size(self) -> int:
        """See FrameStore."""
        return self._bytes + self.held

    @property
    def spilled(self) -> bool:
        """See FrameStore."""
        return bool(self._chunks)

    def __len__(self) -> int:
        return self._stored + len(self._frames)

    def append(self, payload: bytes, lsn: int) -> None:
        """See FrameStore. Raises SpoolFull, SpoolNotWritten."""
        self._frames.append(payload)
        self._lsns.append(lsn)
        self.held += len(payload)
        self._spool.hold(len(payload))

    def extend(self, payloads: Sequence[bytes], lsns: Sequence[int]) -> None:
        """See FrameStore. Raises SpoolFull, SpoolNotWritten."""
        self._frames += payloads
        self._lsns += lsns
        size = sum(map(len, payloads))
        self.held += size
        self._spool.hold(size)

    def follow(self, oid: bytes, layout: Relation | None) -> None:
        """See FrameStore."""
        if self._ahead is not None:
            self._ahead.follow(oid, layout)

    def truncate(self, count: int) -> None:
        """See FrameStore; what is left of a chunk that is cut is held again."""
        if count >= self._stored:
            self._keep(count - self._stored)
            return
        self._keep(0)
        gone: list[Waiting | None] = []
        while self._stored > count:
            chunk = self._chunks.pop()
            gone.append(chunk.columns)
            self._stored -= chunk.count
            self._bytes -= chunk.size
            if self._stored < count:
                frames, lsns = self._read(chunk)
                self._frames, self._lsns = frames[: count - self._stored], lsns[: count - self._stored]
            self._end = chunk.start
            self._spool.give_back(chunk.whole)
        if self._file is not None:
            os.ftruncate(self._file, self._end)
        if self._ahead is not None:
            self._ahead.cut(gone)
        self.held = sum(map(len, self._frames))
        self._spool.hold(self.held)

    def spill(self) -> None:
        """Put what is held on disk. Raises SpoolFull, SpoolNotWritten."""
        if not self._frames:
            return
        chunk = _Chunk(self._end, len(self._frames), self.held)
        self._spool.take(chunk.whole)
        try:
            self._put()
        except OSError as cause:
            self._spool.give_back(chunk.whole)
            raise self._spool.failed() from cause
        columns = None if self._ahead is None else self._ahead.begin(self._frames, self._lsns)
        self._chunks.append(replace(chunk, columns=columns))
        self._end += chunk.whole
        self._stored += chunk.count
        self._bytes += chunk.size
        self._keep(0)
        failpoint(SPOOLED)

    def seal(self) -> None:
        """A large one is all on disk then: it may wait for a while. Raises SpoolFull, SpoolNotWritten."""
        if self._chunks:
            self.spill()
        else:
            self._spool.hold(-self.held)  # it is the batch's from now on
        self.sealed = True

    def parts(self) -> Iterator[Part]:
        """See FrameStore. Raises SpoolNotWritten."""
        for chunks in self._together():
            yield self._part(chunks)
        if self._frames:
            yield self._frames, self._lsns

    def pieces(self) -> Iterator[Part | Decoded]:
        """See FrameStore. Raises SpoolNotWritten, and what decoding raises."""
        for chunks in self._together():
            yield self._decoded(chunks) or self._part(chunks)
        if self._frames:
            yield self._frames, self._lsns

    def drop_columns(self) -> None:
        """What was decoded ahead is forgotten, and no more is: it is decoded when it is committed."""
        if self._ahead is not None:
            self._ahead.close()

    def close(self) -> None:
        """See FrameStore."""
        self.drop_columns()
        self._spool.forget(self)
        if not self.sealed:
            self._spool.hold(-self.held)
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
            self._spool.give_back(self._end)
        self._chunks, self._end, self._stored, self._bytes = [], 0, 0, 0
        self._frames, self._lsns, self.held, self.sealed = [], [], 0, True

    def _keep(self, count: int) -> None:
        """Of what is held, the first so many frames."""
        gone = sum(map(len, self._frames[count:]))
        self._frames, self._lsns = self._frames[:count], self._lsns[:count]
        self.held -= gone
        self._spool.hold(-gone)

    def _together(self) -> Iterator[list[_Chunk]]:
        """Chunks that are landed as one file."""
        some: list[_Chunk] = []
        for chunk in self._chunks:
            some.append(chunk)
            if sum(one.size for one in some) >= self._spool.part:
                yield some
                some = []
        if some:
            yield some

    def _part(self, chunks: Sequence[_Chunk]) -> Part:
        frames: list[bytes] = []
        lsns: list[int] = []
        for chunk in chunks:
            some, their_lsns = self._read(chunk)
            frames += some
            lsns += their_lsns
        return frames, lsns

    def _decoded(self, chunks: Sequence[_Chunk]) -> Decoded | None:
        return None if self._ahead is None else self._ahead.columns([chunk.columns for chunk in chunks])

    def _put(self) -> None:
        """Write what is held at the end of the file. Raises OSError, where there are no columns that take the room."""
        try:
            if self._file is None:
                self._file = self._spool.open()
            self._write([*self._frames, array("I", map(len, self._frames)), array("Q", self._lsns)])
        except OSError:
            if not self._spool.take_back():
                raise
            self._put()

    def _write(self, buffers: Sequence[bytes | array[int]]) -> None:
        """At the end of the file: small ones as one, which is ten times as quick as a vector of them (measured)."""
        assert self._file is not None
        at = self._end
        for large, some in groupby(buffers, lambda one: len(one) >= _LARGE):
            for data in some if large else [b"".join(some)]:
                left = memoryview(data).cast("B")
                while left:
                    done = os.pwrite(self._file, left, at)
                    at, left = at + done, left[done:]

    def _read(self, chunk: _Chunk) -> tuple[list[bytes], list[int]]:
        try:
            data = b"".join(self._blocks(chunk))
        except OSError as cause:
            raise self._spool.failed() from cause
        sizes, lsns = array("I"), array("Q")
        behind = chunk.size + chunk.count * sizes.itemsize
        sizes.frombytes(data[chunk.size : behind])
        lsns.frombytes(data[behind:])
        frames, at = [], 0
        for size in sizes:
            frames.append(data[at : at + size])
            at += size
        return frames, lsns.tolist()

    def _blocks(self, chunk: _Chunk) -> Iterator[bytes]:
        assert self._file is not None
        at, end = chunk.start, chunk.start + chunk.whole
        while at < end:
            block = os.pread(self._file, min(end - at, _READ), at)
            if not block:
                msg = "the file ends early"
                raise OSError(msg)
            at += len(block)
            yield block
