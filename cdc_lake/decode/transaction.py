"""Whole transactions whose changes are still the bytes the server sent, and stores for frames until the COMMIT.

This is what an assembler gives and what both decoders read, the one by rows (`parser.changes`) and the columnar one
(`columnar.tabulate`). Keeping bytes until a batch is closed is what makes vectorised decoding possible.
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
    """A committed transaction of any format, as far as batching and bronze's rows need to know it.

    `size`: bytes of all changes. `count`: how many data messages they came in; the changes can be more (a truncate of
    several tables) or fewer (an insert that was cancelled).
    """

    @property
    def bounds(self) -> Boundaries:
        """Its BEGIN and COMMIT."""

    @property
    def size(self) -> int:
        """Bytes of all changes."""

    @property
    def count(self) -> int:
        """Data messages; 0 where the transaction changed nothing that is captured."""


@dataclass(frozen=True, slots=True)
class BufferedTransaction:
    """A committed transaction: boundaries, and per change its bytes, LSN and the layout in force.

    `frames[i]` is one data message of the stream (insert, update, delete, truncate, logical message; never begin,
    commit, relation, type or origin). `lsns[i]` is the LSN the source gave for it. `layouts[i]` is the relation in
    force for it, None for a message without one; a truncate has all of its relations in `truncated[i]`, the first in
    `layouts[i]`.

    `fault`: by the policy `land`, why a message of it could not be taken in; then `frames` has that one too, and the
    relation messages that were wrong, each before the first change that needs it.

    `part`: its frames are some of a large transaction's (`decode.pgoutput.spooled`), and `size` is theirs.
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
        """How many data messages it has."""
        return len(self.frames)


@dataclass(frozen=True, slots=True)
class DecodedMarker:
    """What is left of a transaction of any format whose changes are columns; implements `ReceivedTransaction`."""

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
        """Whether memory alone does not hold them."""

    def __len__(self) -> int:
        """How many frames there are."""

    def append(self, payload: bytes, lsn: int) -> None:
        """Add a frame. Raises LakeError where there is no room for it."""

    def extend(self, payloads: Sequence[bytes], lsns: Sequence[int]) -> None:
        """Add frames. Raises LakeError where there is no room for them."""

    def truncate(self, count: int) -> None:
        """Keep the first `count` frames only."""

    def seal(self) -> None:
        """Nothing more is added. Raises LakeError."""

    def parts(self) -> Iterator[Part]:
        """All frames, some `FrameStoreFactory.part` bytes at a time; can be asked for again. Raises LakeError."""

    def close(self) -> None:
        """Forget them."""


class FrameStoreFactory(Protocol):
    """Makes stores. `part`: bytes of a transaction from which on it is large, and decoded so many at a time."""

    @property
    def part(self) -> int:
        """Bytes from which on a transaction is large."""

    def __call__(self) -> FrameStore:
        """An empty store for one more transaction."""


class MemoryFrames:
    """Frames in memory, however many (implements `FrameStore`)."""

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
        """Nothing is left to do."""

    def parts(self) -> Iterator[Part]:
        """All frames at once."""
        if self._frames:
            yield self._frames, self._lsns

    def close(self) -> None:
        """Forget them."""
        self._frames, self._lsns, self.size = [], [], 0


class InMemoryFrameStores:
    """Makes stores in memory: no transaction is large (implements `FrameStoreFactory`)."""

    part = sys.maxsize

    def __call__(self) -> MemoryFrames:
        """An empty store for one more transaction."""
        return MemoryFrames()
