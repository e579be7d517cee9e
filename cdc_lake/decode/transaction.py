"""Whole transactions whose changes are still bytes of the server, and stores for frames until the COMMIT.

Assemblers return them, and both decoders read them: by rows (`parser.changes`) and by columns (`columnar.tabulate`).
Keeping bytes until a batch is closed makes vectorized decoding possible.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from cdc_lake.errors import DecodeError
from cdc_lake.model.change import Boundaries
from cdc_lake.model.relation import Relation


class ReceivedTransaction(Protocol):
    """A committed transaction of any format, as batching and bronze's rows see it.

    `size`: bytes of all changes. `count`: number of data messages; there may be more changes (a truncate of several
    tables) or fewer (a cancelled insert).
    """

    @property
    def bounds(self) -> Boundaries:
        """Its BEGIN and COMMIT."""

    @property
    def size(self) -> int:
        """Bytes of all changes."""

    @property
    def count(self) -> int:
        """Data messages; 0 if the transaction changed nothing that is captured."""


@dataclass(frozen=True, slots=True)
class BufferedTransaction:
    """A committed transaction: boundaries, and for each change its bytes, LSN and current layout.

    `frames[i]` is one data message of the stream (insert, update, delete, truncate, logical message; never begin,
    commit, relation, type or origin). `lsns[i]` is the LSN that came with it. `layouts[i]` is the relation of the
    change, None for a message without one; a truncate has all of its relations in `truncated[i]`, the first in
    `layouts[i]`.

    `fault`: with the policy `land`, why one of its messages could not be processed; then `frames` contains that message
    too, and the invalid relation messages, each before the first change that needs it.

    `part`: its frames are a part of a large transaction (`decode.pgoutput.spooled`), and `size` is theirs.
    """

    bounds: Boundaries
    frames: list[bytes]
    lsns: list[int]
    layouts: list[Relation | None]
    truncated: dict[int, tuple[Relation, ...]]
    size: int  # bytes of all frames
    fault: DecodeError | None = None
    part: bool = False

    @property
    def count(self) -> int:
        """The number of data messages."""
        return len(self.frames)


@dataclass(frozen=True, slots=True)
class DecodedMarker:
    """A transaction of any format whose changes are columns already; implements `ReceivedTransaction`."""

    bounds: Boundaries
    size: int
    count: int


Part: TypeAlias = tuple[list[bytes], list[int]]
"""Consecutive frames, and the LSN of each."""


class FrameStore(Protocol):
    """Frames in order. Used by one thread until it is sealed, then read and closed by another."""

    @property
    def size(self) -> int:
        """Bytes of all frames."""

    @property
    def is_spilled(self) -> bool:
        """Whether a part of them is on disk."""

    def __len__(self) -> int:
        """The number of frames."""

    def append(self, payload: bytes, lsn: int) -> None:
        """Add a frame. Raises LakeError if there is no space."""

    def extend(self, payloads: Sequence[bytes], lsns: Sequence[int]) -> None:
        """Add frames. Raises LakeError if there is no space."""

    def truncate(self, count: int) -> None:
        """Keep the first `count` frames only."""

    def seal(self) -> None:
        """End the transaction. Raises LakeError."""

    def parts(self) -> Iterator[Part]:
        """All frames, about `FrameStoreFactory.part` bytes at a time; repeatable. Raises LakeError."""

    def close(self) -> None:
        """Drop all frames."""


class FrameStoreFactory(Protocol):
    """Makes stores. `part`: bytes from which on a transaction is large, and the size of its parts."""

    @property
    def part(self) -> int:
        """Bytes from which on a transaction is large."""

    def __call__(self) -> FrameStore:
        """An empty store for one more transaction."""


class MemoryFrames:
    """Frames in memory without a limit (implements `FrameStore`)."""

    is_spilled = False

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._lsns: list[int] = []
        self.size = 0

    def __len__(self) -> int:
        return len(self._frames)

    def append(self, payload: bytes, lsn: int) -> None:
        """Add a frame."""
        self._frames.append(payload)
        self._lsns.append(lsn)
        self.size += len(payload)

    def extend(self, payloads: Sequence[bytes], lsns: Sequence[int]) -> None:
        """Add frames."""
        self._frames += payloads
        self._lsns += lsns
        self.size += sum(map(len, payloads))

    def truncate(self, count: int) -> None:
        """Keep the first `count` frames only."""
        self.size -= sum(map(len, self._frames[count:]))
        del self._frames[count:], self._lsns[count:]

    def seal(self) -> None:
        """Does nothing."""

    def parts(self) -> Iterator[Part]:
        """All frames at once."""
        if self._frames:
            yield self._frames, self._lsns

    def close(self) -> None:
        """Drop all frames."""
        self._frames, self._lsns, self.size = [], [], 0


class InMemoryFrameStores:
    """Makes stores in memory: no transaction is large (implements `FrameStoreFactory`)."""

    part = sys.maxsize

    def __call__(self) -> MemoryFrames:
        """An empty store for one more transaction."""
        return MemoryFrames()
