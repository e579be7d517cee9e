"""Frames of one transaction, kept until its COMMIT is seen: the port, and a store that keeps them in memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

Part: TypeAlias = tuple[list[bytes], list[int]]
"""Consecutive frames, and the LSN of each."""


class FrameStore(Protocol):
    """Frames in order. Used by one thread until it is sealed, then read and closed by another."""

    @property
    def size(self) -> int:
        """Bytes of all frames."""
        ...

    @property
    def spilled(self) -> bool:
        """Whether memory alone does not hold them."""
        ...

    def __len__(self) -> int:
        """How many frames there are."""
        ...

    def append(self, payload: bytes, lsn: int) -> None:
        """Add a frame. Raises LakeError where there is no room for it."""
        ...

    def extend(self, payloads: Sequence[bytes], lsns: Sequence[int]) -> None:
        """Add frames. Raises LakeError where there is no room for them."""
        ...

    def truncate(self, count: int) -> None:
        """Keep the first `count` frames only."""
        ...

    def seal(self) -> None:
        """Nothing more is added. Raises LakeError."""
        ...

    def parts(self) -> Iterator[Part]:
        """All frames, some `NewFrames.part` bytes at a time; can be asked for again. Raises LakeError."""
        ...

    def close(self) -> None:
        """Forget them."""
        ...


class NewFrames(Protocol):
    """Makes stores. `part`: bytes of a transaction from which on it is large, and decoded so many at a time."""

    @property
    def part(self) -> int:
        """See above."""
        ...

    def __call__(self) -> FrameStore:
        """An empty store for one more transaction."""
        ...


class MemoryFrames:
    """Frames in memory, however many (implements `FrameStore`)."""

    spilled = False

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._lsns: list[int] = []
        self.size = 0

    def __len__(self) -> int:
        return len(self._frames)

    def append(self, payload: bytes, lsn: int) -> None:
        """See FrameStore."""
        self._frames.append(payload)
        self._lsns.append(lsn)
        self.size += len(payload)

    def extend(self, payloads: Sequence[bytes], lsns: Sequence[int]) -> None:
        """See FrameStore."""
        self._frames += payloads
        self._lsns += lsns
        self.size += sum(map(len, payloads))

    def truncate(self, count: int) -> None:
        """See FrameStore."""
        self.size -= sum(map(len, self._frames[count:]))
        del self._frames[count:], self._lsns[count:]

    def seal(self) -> None:
        """Nothing is left to do."""

    def parts(self) -> Iterator[Part]:
        """All frames at once."""
        if self._frames:
            yield self._frames, self._lsns

    def close(self) -> None:
        """See FrameStore."""
        self._frames, self._lsns, self.size = [], [], 0


class AllInMemory:
    """Makes stores in memory: no transaction is large (implements `NewFrames`)."""

    part = sys.maxsize

    def __call__(self) -> MemoryFrames:
        """See NewFrames."""
        return MemoryFrames()
