"""Runs: long sequences of rows in one payload of style b, found and measured without a step a row.

Where a record starts is known only from the one before it. But a separator `P` with the zero byte of a length behind
it is seldom anything else, so all such places of a payload are taken for starts at once, and then held against each
other: of a run, each record ends where the next one starts. What does not fit ends the run, and the slow way goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, overload

import numpy as np

from cdc_lake.decode.mppdb.binary import BODY, END, LEAST, MORE

SMALL: Final = 1 << 16
"""Bytes of a payload below which it is not looked at: finding runs costs as much as going through so many."""
LONG: Final = 64
"""Rows of a run; shorter ones are cheaper one by one."""

_INSERT, _UPDATE, _DELETE = b"IUD"
_SAFE: Final = 16  # no record starts so close to the end


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """n rows one behind the other: `start` and `end` of their bodies in `payload`, `lsn` (int64 ndarrays)."""

    payload: bytes
    start: Any
    end: Any
    lsn: Any

    def __len__(self) -> int:
        return len(self.start)

    @property
    def size(self) -> int:
        """Bytes of all bodies."""
        return int((self.end - self.start).sum())

    def rows(self) -> list[bytes]:
        """The bodies."""
        payload = self.payload
        return [payload[start:end] for start, end in zip(self.start.tolist(), self.end.tolist(), strict=True)]

    def part(self, first: int, behind: int) -> Run:
        """Some of its rows."""
        some = slice(first, behind)
        return Run(self.payload, self.start[some], self.end[some], self.lsn[some])


class Rows(Sequence[bytes]):
    """Rows of a transaction as a list of bytes, which most of them are not until somebody asks for one."""

    __slots__ = ("_rows", "parts")

    def __init__(self, parts: Sequence[Run | list[bytes]]) -> None:
        self.parts: Final = parts
        self._rows: list[bytes] | None = None

    def _all(self) -> list[bytes]:
        if self._rows is None:
            self._rows = [row for part in self.parts for row in (part.rows() if isinstance(part, Run) else part)]
        return self._rows

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        return self._all()[at]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all() == list(other)

    __hash__ = None  # type: ignore[assignment]  # Python's way to have none


class Lsns(Sequence[int]):
    """LSNs of a transaction's rows as a list of numbers, made of arrays once somebody asks for one."""

    __slots__ = ("_numbers", "parts")

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts: Final = parts
        self._numbers: list[int] | None = None

    def _all(self) -> list[int]:
        if self._numbers is None:
            self._numbers = [number for part in self.parts for number in part.tolist()]
        return self._numbers

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        return self._all()[at]

    def __iter__(self) -> Iterator[int]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all() == list(other)

    __hash__ = None  # type: ignore[assignment]  # Python's way to have none


def long_runs(payload: bytes) -> dict[int, tuple[Run, int]]:
    """The long runs of a payload by the byte where the first record's length stands, each with the byte behind it.

    A run is right only if a record starts there, which who asks for it knows.
    """
    size = len(payload)
    if size < max(SMALL, 2 * _SAFE):
        return {}
    data = np.frombuffer(payload, np.uint8)
    first = _places(data[: -_SAFE - 1], MORE) + 1
    first = first[data[first] == 0]
    if payload[0] == 0:
        first = np.concatenate([np.zeros(1, np.int64), first])
    letter = data[first + BODY]
    # lengths below 16 MiB and LSNs below 2^56; others are read the slow way
    first = first[((letter == _INSERT) | (letter == _UPDATE) | (letter == _DELETE)) & (data[first + 4] == 0)]
    words = np.ndarray((size - 7,), ">u8", payload, strides=(1,))
    head = words[first].astype(np.int64)
    behind = first + 5 + (head >> 32)
    good = (behind >= first + LEAST + 5) & (behind <= size)
    separator = data[np.where(good, behind, 1) - 1]
    good &= (separator == MORE) | ((separator == END) & (behind == size))
    first, behind = first[good], behind[good]
    borders = [0, *(np.flatnonzero(behind[:-1] != first[1:]) + 1).tolist(), len(first)]
    found = {}
    for begin, end in pairwise(borders):
        if end - begin >= LONG:
            at = first[begin:end]
            run = Run(payload, at + BODY, behind[begin:end] - 1, words[at + 4].astype(np.int64))
            found[int(at[0])] = run, int(behind[end - 1])
    return found


def _places(data: Any, byte: int) -> Any:
    """Where a byte that is seldom stands in `data` (uint8 ndarray): int64 ndarray, ascending.

    Looked for eight bytes at a time, and one at a time where it is among them: half of the time (measured). Up to seven
    bytes at the end make no eight and are not looked at: a run that ends before them is gone on with the slow way.
    """
    eight = (data[: len(data) & -8] == byte).view(np.uint64)
    some = np.flatnonzero(eight != 0)
    within = np.flatnonzero(eight[some].view(bool))
    return 8 * some[within >> 3] + (within & 7)
