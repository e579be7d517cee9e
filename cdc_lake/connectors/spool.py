"""The spool: local files with frames of transactions that are not committed yet, or too large for memory.

Nothing in it has to survive: uncommitted transactions are read again from their start. Its files have no names, so the
system frees them however the receiver ends. Memory is limited over all transactions together: the largest one goes to
disk, except for its last frames.
"""

from __future__ import annotations

import os
import tempfile
import threading
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import Final, Self

from cdc_lake.config.fields import format_bytes
from cdc_lake.decode.transaction import Part
from cdc_lake.errors import SpoolFull, SpoolNotWritten
from cdc_lake.observability.failpoints import SPOOLED, failpoint
from cdc_lake.tables.files import grouped

_LARGE: Final = 1 << 20  # bytes of a frame that is written without a copy
_READ: Final = 1 << 30  # bytes of one read: Linux returns less than 2 GiB
_SIZES: Final = array("I")
_LSNS: Final = array("Q")


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Frames in the file: consecutive from `start` on, `size` bytes, followed by their sizes and LSNs."""

    start: int
    count: int
    size: int

    @property
    def total_size(self) -> int:
        """Bytes including sizes and LSNs."""
        return self.size + self.count * (_SIZES.itemsize + _LSNS.itemsize)


class SpooledFrames:
    """Frames of one transaction (implements `decode.transaction.FrameStore`)."""

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
        """Nothing more may be added."""

    @property
    def size(self) -> int:
        """Bytes of all frames."""
        return self._bytes + self.held

    @property
    def is_spilled(self) -> bool:
        """Whether a part of them is on disk."""
        return bool(self._chunks)

    def __len__(self) -> int:
        return self._stored + len(self._frames)

    def append(self, payload: bytes, lsn: int) -> None:
        """Add a frame. Raises SpoolFull, SpoolNotWritten."""
        self._frames.append(payload)
        self._lsns.append(lsn)
        self.held += len(payload)
        self._spool.hold(len(payload))

    def extend(self, payloads: Sequence[bytes], lsns: Sequence[int]) -> None:
        """Add frames. Raises SpoolFull, SpoolNotWritten."""
        self._frames += payloads
        self._lsns += lsns
        size = sum(map(len, payloads))
        self.held += size
        self._spool.hold(size)

    def truncate(self, count: int) -> None:
        """Keep the first `count` frames; the rest of a chunk that is cut is kept in memory again."""
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
            self._spool.give_back(chunk.total_size)
        if self._file is not None:
            os.ftruncate(self._file, self._end)
        self.held = sum(map(len, self._frames))
        self._spool.hold(self.held)

    def spill(self) -> None:
        """Write the frames in memory to disk. Raises SpoolFull, SpoolNotWritten."""
        if not self._frames:
            return
        chunk = _Chunk(self._end, len(self._frames), self.held)
        self._spool.take(chunk.total_size)
        try:
            if self._file is None:
                self._file = self._spool.open()
            self._write([*self._frames, array("I", map(len, self._frames)), array("Q", self._lsns)])
        except OSError as cause:
            self._spool.give_back(chunk.total_size)
            raise self._spool.not_written_error() from cause
        self._chunks.append(chunk)
        self._end += chunk.total_size
        self._stored += chunk.count
        self._bytes += chunk.size
        self._keep(0)
        failpoint(SPOOLED)

    def seal(self) -> None:
        """End the transaction, and write all of a large one to disk. Raises SpoolFull, SpoolNotWritten."""
        if self._chunks:
            self.spill()
        else:
            self._spool.hold(-self.held)  # it counts for the batch from now on
        self.sealed = True

    def parts(self) -> Iterator[Part]:
        """All frames in parts of about `part` bytes. Raises SpoolNotWritten."""
        for chunks in grouped(self._chunks, lambda chunk: chunk.size, self._spool.part):  # landed as one file each
            yield self._part(chunks)
        if self._frames:
            yield self._frames, self._lsns

    def close(self) -> None:
        """Drop all frames."""
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
        """Keep the first `count` frames in memory."""
        gone = sum(map(len, self._frames[count:]))
        self._frames, self._lsns = self._frames[:count], self._lsns[:count]
        self.held -= gone
        self._spool.hold(-gone)

    def _part(self, chunks: Sequence[_Chunk]) -> Part:
        frames: list[bytes] = []
        lsns: list[int] = []
        for chunk in chunks:
            chunk_frames, their_lsns = self._read(chunk)
            frames += chunk_frames
            lsns += their_lsns
        return frames, lsns

    def _write(self, buffers: Sequence[bytes | array[int]]) -> None:
        """Append to the file: small buffers as one, which is ten times as fast as a vector of them (measured)."""
        assert self._file is not None
        offset = self._end
        for large, group in groupby(buffers, lambda buffer: len(buffer) >= _LARGE):
            for data in group if large else [b"".join(group)]:
                left = memoryview(data).cast("B")
                while left:
                    written_bytes = os.pwrite(self._file, left, offset)
                    offset, left = offset + written_bytes, left[written_bytes:]

    def _read(self, chunk: _Chunk) -> tuple[list[bytes], list[int]]:
        """The frames of a chunk; a large one is in memory once."""
        sizes, lsns, frames = array("I"), array("Q"), list[bytes]()
        offset, frames_end = chunk.start, chunk.start + chunk.size
        lsns_at = frames_end + chunk.count * sizes.itemsize
        try:
            sizes.frombytes(self._bytes_at(frames_end, lsns_at))
            lsns.frombytes(self._bytes_at(lsns_at, chunk.start + chunk.total_size))
            for large, group in groupby(sizes, lambda size: size >= _LARGE):
                for together in ([size] for size in group) if large else (list(group),):
                    data = self._bytes_at(offset, offset + sum(together))
                    frames += [data[start:end] for start, end in pairwise(accumulate(together, initial=0))]
                    offset += len(data)
        except OSError as cause:
            raise self._spool.not_written_error() from cause
        return frames, lsns.tolist()

    def _bytes_at(self, start: int, end: int) -> bytes:
        """Read a range of the file. Raises OSError."""
        assert self._file is not None
        blocks: list[bytes] = []
        while start < end:
            blocks.append(os.pread(self._file, min(end - start, _READ), start))
            if not blocks[-1]:
                msg = "the file ends early"
                raise OSError(msg)
            start += len(blocks[-1])
        return b"".join(blocks)


class Spool:
    """Creates stores (`decode.transaction.FrameStoreFactory`) and closes them at its exit.

    `at_most`: bytes on disk; `part`: see `FrameStoreFactory`, also the bytes in memory. `written` counts all bytes of
    frames that were written to disk, `used` those on disk now, including those of prepared transactions.
    """

    def __init__(self, folder: Path, at_most: int, part: int) -> None:
        self._folder = folder
        self._at_most = at_most
        self.part = part
        self._held = 0
        self.used = self._parked = 0
        self._stores: set[SpooledFrames] = set()
        self._lock = threading.Lock()  # stores are closed by the thread that landed them
        self.written = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for store in list(self._stores):
            store.close()

    def __call__(self) -> SpooledFrames:
        """An empty store."""
        store = SpooledFrames(self)
        with self._lock:
            self._stores.add(store)
        return store

    def park(self, size: int, *, checked: bool = True) -> None:
        """Count bytes of prepared transactions, which are stored elsewhere. Raises SpoolFull if `checked`."""
        if checked:
            self._reserve(size)
        with self._lock:
            if not checked:
                self.used += size
            self._parked += size

    def unpark(self, size: int) -> None:
        """Subtract bytes of prepared transactions."""
        self.give_back(size)
        with self._lock:
            self._parked -= size

    # ── for its stores ──

    def hold(self, size: int) -> None:
        """Count bytes in memory; negative to release them. Raises LakeError."""
        self._held += size
        if self._held > self.part:
            with self._lock:
                largest = max((store for store in self._stores if not store.sealed), key=lambda store: store.held)
            largest.spill()

    def take(self, size: int) -> None:
        """Count bytes that go to disk. Raises SpoolFull."""
        self._reserve(size)
        self.written += size

    def _reserve(self, size: int) -> None:
        """Count bytes against the limit. Raises SpoolFull."""
        with self._lock:
            if self.used + size <= self._at_most:
                self.used += size
                return
        text = f"uncommitted transactions take more than {format_bytes(self._at_most)}"
        more = f", {format_bytes(self._parked)} of them prepared transactions" if self._parked else ""
        raise SpoolFull(text + more, where=str(self._folder))

    def give_back(self, size: int) -> None:
        """Release bytes on disk."""
        with self._lock:
            self.used -= size

    def forget(self, store: SpooledFrames) -> None:
        """Forget a closed store."""
        with self._lock:
            self._stores.discard(store)

    def open(self) -> int:
        """Open a file without a name. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._folder, buffering=0) as file:
            return os.dup(file.fileno())

    def not_written_error(self) -> SpoolNotWritten:
        """The error if a file could not be written or read."""
        return SpoolNotWritten("an uncommitted transaction could not be stored on disk", where=str(self._folder))
