"""Hashing: from canonical bytes to digests, here or in a process beside this one.

Python hashes something as short as a row without giving its interpreter lock away, so while digests are made nothing
else of the process goes on. What a process beside it is asked, and what it answers, is decided here; starting it is
not (`pipeline.stream.hashing_process`). A question, with numbers as the machine has them, each of 32 bits::

    question = parts part*          a chunk's rows, those of one beginning in one part
    part     = size-of-prefix count size-of-data size-of-head prefix border{count + 1} data
    answer   = digest{count} for each part, one behind the other

The process needs no more than the standard library and `decode.digest`. It ends with its input.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Final, TypeAlias

from cdc_lake.decode.digest import DIGEST_SIZE, digests_between

_COUNT: Final = struct.Struct("=I")
_PART: Final = struct.Struct("=IIII")
_BORDER: Final = 4


@dataclass(frozen=True, slots=True)
class Canonical:
    """The canonical bytes of n rows: `prefix`, and then for each row what stands in `data` between two borders.

    `borders`: n + 1 numbers of 32 bits; they and the bytes of `data` as anything with a buffer. `head`: so many bytes
    behind each border but the last are not the row's.
    """

    prefix: bytes
    borders: Any
    data: Any
    head: int = 0

    @property
    def count(self) -> int:
        """How many rows."""
        return memoryview(self.borders).nbytes // _BORDER - 1


Hashing: TypeAlias = Callable[[Sequence[Canonical]], Callable[[], list[bytes]]]
"""Begins to hash; what it returns waits for the digests of each part, one behind the other.

What nobody waited for is lost once the next begins.
"""


@contextmanager
def meanwhile(begun: Callable[[], object]) -> Iterator[None]:
    """Do something else until digests are there. Where that fails they are waited for all the same: before, no other
    thread is answered.
    """
    try:
        yield
    except Exception:
        begun()
        raise


def hashed_here(parts: Sequence[Canonical]) -> Callable[[], list[bytes]]:
    """Hash without another process."""
    digests = [_digests(part) for part in parts]
    return lambda: digests


def _digests(part: Canonical) -> bytes:
    borders = memoryview(part.borders).cast("B").cast("i").tolist()
    return digests_between(part.prefix, memoryview(part.data), borders, part.head)


def ask(sink: IO[bytes], parts: Sequence[Canonical]) -> None:
    """Write the question."""
    sink.write(_COUNT.pack(len(parts)))
    for part in parts:
        sizes = len(part.prefix), part.count, memoryview(part.data).nbytes, part.head
        sink.write(_PART.pack(*sizes) + part.prefix)
        sink.write(memoryview(part.borders).cast("B"))
        sink.write(memoryview(part.data).cast("B"))
    sink.flush()


def answered(source: IO[bytes], parts: Sequence[Canonical]) -> list[bytes]:
    """Read the answer. Raises EOFError where there is none."""
    out = []
    for part in parts:
        size = part.count * DIGEST_SIZE
        digests = source.read(size)
        if len(digests) != size:
            raise EOFError
        out.append(digests)
    return out


def serve(source: IO[bytes], sink: IO[bytes]) -> None:
    """Answer question after question, until the source ends."""
    room = bytearray()
    while head := source.read(_COUNT.size):
        answer = []
        for _ in range(*_COUNT.unpack(head)):
            prefix_size, count, size, head_size = _PART.unpack(source.read(_PART.size))
            prefix, borders = source.read(prefix_size), source.read((count + 1) * _BORDER)
            if size > len(room):
                room = bytearray(size)
            with memoryview(room)[:size] as data:
                source.readinto(data)  # type: ignore[attr-defined]  # all of it: the source is buffered
                answer.append(_digests(Canonical(prefix, borders, data, head_size)))
        sink.write(b"".join(answer))
        sink.flush()
