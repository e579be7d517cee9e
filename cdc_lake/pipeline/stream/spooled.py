"""Spooled frames: those of one transaction, the last ones in memory and the others in a file without a name."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, Final

from cdc_lake.decode.frames import Part
from cdc_lake.observe.failpoint import SPOOLED, failpoint

if TYPE_CHECKING:
    from cdc_lake.pipeline.stream.spool import Spool

_LARGE: Final = 1 << 20  # bytes of a frame that is not copied to be written
_READ: Final = 1 << 30  # bytes of one read: Linux gives less than 2 GiB
_SIZES: Final = array("I")
_LSNS: Final = array("Q")


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Frames in the file: one behind the other from `start` on, `size` bytes, behind them their sizes and LSNs."""

    start: int
    count: int
    size: int

    @property
    def whole(self) -> int:
        """Bytes of all of it."""
        return self.size + self.count * (_SIZES.itemsize + _LSNS.itemsize)


class SpooledFrames:
    """Frames of one transaction (implements `decode.frames.FrameStore`)."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
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

    def truncate(self, count: int) -> None:
        """See FrameStore; what is left of a chunk that is cut is held again."""
        if count >= self._stored:
            self._keep(count - self._stored)
            return
        self._keep(0)
        while self._stored > count:
            chunk = self._chunks.pop()
            self._stored -= chunk.count
            self._bytes -= chunk.size
            if self._stored < count:
                frames, lsns = self._read(chunk)
                self._frames, self._lsns = frames[: count - self._stored], lsns[: count - self._stored]
            self._end = chunk.start
            self._spool.give_back(chunk.whole)
        if self._file is not None:
            os.ftruncate(self._file, self._end)
        self.held = sum(map(len, self._frames))
        self._spool.hold(self.held)

    def spill(self) -> None:
        """Put what is held on disk. Raises SpoolFull, SpoolNotWritten."""
        if not self._frames:
            return
        chunk = _Chunk(self._end, len(self._frames), self.held)
        self._spool.take(chunk.whole)
        try:
            if self._file is None:
                self._file = self._spool.open()
            self._write([*self._frames, array("I", map(len, self._frames)), array("Q", self._lsns)])
        except OSError as cause:
            self._spool.give_back(chunk.whole)
            raise self._spool.failed() from cause
        self._chunks.append(chunk)
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

    def close(self) -> None:
        """See FrameStore."""
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
        """The frames of a chunk, of which a large one is in memory once."""
        sizes, lsns, frames = array("I"), array("Q"), list[bytes]()
        at, behind = chunk.start, chunk.start + chunk.size
        lsns_at = behind + chunk.count * sizes.itemsize
        try:
            sizes.frombytes(self._bytes_at(behind, lsns_at))
            lsns.frombytes(self._bytes_at(lsns_at, chunk.start + chunk.whole))
            for large, some in groupby(sizes, lambda size: size >= _LARGE):
                for together in ([size] for size in some) if large else (list(some),):
                    data = self._bytes_at(at, at + sum(together))
                    frames += [data[start:end] for start, end in pairwise(accumulate(together, initial=0))]
                    at += len(data)
        except OSError as cause:
            raise self._spool.failed() from cause
        return frames, lsns.tolist()

    def _bytes_at(self, start: int, end: int) -> bytes:
        """What the file has there. Raises OSError."""
        assert self._file is not None
        blocks: list[bytes] = []
        while start < end:
            blocks.append(os.pread(self._file, min(end - start, _READ), start))
            if not blocks[-1]:
                msg = "the file ends early"
                raise OSError(msg)
            start += len(blocks[-1])
        return b"".join(blocks)
