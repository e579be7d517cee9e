"""Digests: what the hash chain of bronze is made of.

The canonical bytes of a change do not depend on the wire format, the layout number or the time of ingest, so that
the same change, received again through any plugin and decoder, has the same digest::

    change   = op relation old-part new-part                 op: one ASCII letter I U D T M
    relation = length(4, big-endian) name as in bronze, UTF-8
    old-part = "" | "K" tuple | "O" tuple                    K: identity columns only, O: whole row
    new-part = "" | "N" tuple
    tuple    = count(2, big-endian) value*
    value    = "n" | "u" | "t" length(4, big-endian) UTF-8   SQL NULL, unchanged, text

which is the format of pgoutput's TupleData on purpose: there the received bytes are the canonical ones. A truncate has
the letters `c` and `r` for its flags instead of tuples; a message has its prefix (length, UTF-8) and content (length,
bytes). Undecodable bytes have a separate form::

    change   = X reading relation bytes                      each after its length; how the bytes are read, in UTF-8;
                                                             the relation is empty if it is unknown

    digest(change)      = BLAKE2b-256(0x00 change)
    content             = root of a tree of fan-out 1024 over the digests, node = BLAKE2b-256(0x01 children);
                          without changes: BLAKE2b-256(0x01)
    hash(transaction)   = BLAKE2b-256(0x02 previous position(8, big-endian) content)

A row that is erased later keeps its digest, so the chain still verifies.

Python does not release its interpreter lock to hash something as short as a row, so no other thread runs meanwhile. A
helper process (`connectors.hashing_process`) may therefore hash; this is its protocol. Numbers have 32 bits, in the
machine's byte order::

    question = parts part*          a chunk's rows, those with the same beginning in one part
    part     = size-of-prefix count size-of-data size-of-head prefix border{count + 1} data
    answer   = digest{count} for each part, concatenated

The process needs only the standard library and `decode.hashing`. It ends with its input.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, Any, Final, TypeAlias, overload

DIGEST_SIZE = 32
FAN_OUT = 1024

_U32 = struct.Struct(">I")
_U16 = struct.Struct(">H")
_POSITION = struct.Struct(">Q")


def digest_of(canonical: bytes) -> bytes:
    """The digest of one change from its canonical bytes."""
    return hashlib.blake2b(b"\x00" + canonical, digest_size=DIGEST_SIZE).digest()


class Digests(Sequence[bytes]):
    """Concatenated digests in `data`, as a sequence: single ones are extracted only when requested."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data: Final = data

    @classmethod
    def from_parts(cls, parts: Iterable[Sequence[bytes]]) -> Digests:
        """All digests of the parts, in order."""
        return cls(b"".join([part.data if isinstance(part, Digests) else b"".join(part) for part in parts]))

    def __len__(self) -> int:
        return len(self.data) // DIGEST_SIZE

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Digests: ...
    def __getitem__(self, index: int | slice) -> bytes | Digests:
        if isinstance(index, int):
            first = range(len(self))[index] * DIGEST_SIZE
            return self.data[first : first + DIGEST_SIZE]
        first, stop, step = index.indices(len(self))
        if step != 1:
            return Digests.from_parts([[self[position] for position in range(first, stop, step)]])
        return Digests(self.data[first * DIGEST_SIZE : stop * DIGEST_SIZE])

    def __iter__(self) -> Iterator[bytes]:
        return (self.data[offset : offset + DIGEST_SIZE] for offset in range(0, len(self.data), DIGEST_SIZE))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Digests):
            return self.data == other.data
        return isinstance(other, Sequence) and list(self) == list(other)

    # Equal to any list of the same digests, so not hashable; typeshed does not allow declaring that.
    __hash__ = None  # type: ignore[assignment]  # Python's way to have none


def content_of(digests: Sequence[bytes]) -> bytes:
    """The root over the digests of one transaction's changes, in order."""
    level, step = Digests.from_parts([digests]).data, FAN_OUT * DIGEST_SIZE
    while True:
        nodes = [
            hashlib.blake2b(b"\x01" + level[offset : offset + step], digest_size=DIGEST_SIZE).digest()
            for offset in range(0, max(len(level), 1), step)
        ]
        if len(nodes) == 1:
            return nodes[0]
        level = b"".join(nodes)


def chain_of(previous: bytes, position: int, content: bytes) -> bytes:
    """The hash of a transaction, which depends on everything before it."""
    return hashlib.blake2b(b"\x02" + previous + _POSITION.pack(position) + content, digest_size=DIGEST_SIZE).digest()


GENESIS = hashlib.blake2b(b"cdc_lake", digest_size=DIGEST_SIZE).digest()
"""The previous hash of a stream's first transaction."""


def canonical_tuple(values: Sequence[str | None], unchanged: frozenset[int] = frozenset()) -> bytes:
    """The canonical bytes of one tuple: text by position, None for SQL NULL; positions in `unchanged` were not sent."""
    encoded = bytearray(_U16.pack(len(values)))
    for position, value in enumerate(values):
        if position in unchanged:
            encoded += b"u"
        elif value is None:
            encoded += b"n"
        else:
            data = value.encode()
            encoded += b"t" + _U32.pack(len(data)) + data
    return bytes(encoded)


def canonical_bytes(data: bytes) -> bytes:
    """Bytes after their length."""
    return _U32.pack(len(data)) + data


def canonical_undecodable(reading: str, relation: str | None, data: bytes) -> bytes:
    """The canonical bytes of a row `X`; `reading`: as in its `info`, or empty."""
    return b"X" + b"".join(map(canonical_bytes, (reading.encode(), (relation or "").encode(), data)))


def canonical_relation(name: str) -> bytes:
    """The canonical bytes of a relation's name as bronze stores it."""
    return canonical_bytes(name.encode())


def digests_between(prefix: bytes, data: bytes | memoryview, borders: Sequence[int], head: int = 0) -> bytes:
    """`digest_of(prefix + data[start + head : end])` for each pair of neighbouring borders, concatenated.

    A slice is freed after its hashing, so all use the same memory: a third of the time of slicing everything first
    (measured, 260 B).
    """
    copy, digests = hashlib.blake2b(b"\x00" + prefix, digest_size=DIGEST_SIZE).copy, list[bytes]()
    for start, end in pairwise(borders):
        continued = copy()
        continued.update(data[start + head : end])
        digests.append(continued.digest())
    return b"".join(digests)


class Content:
    """`content_of` for digests that arrive one by one, in constant memory."""

    def __init__(self) -> None:
        self._levels: list[list[bytes]] = [[]]

    def add(self, digest: bytes) -> None:
        """Add the digest of the next change."""
        self._push(0, digest)

    def add_all(self, digests: Sequence[bytes]) -> None:
        """Add the digests of the next changes."""
        data, step, offset = Digests.from_parts([digests]).data, FAN_OUT * DIGEST_SIZE, 0
        while offset < len(data):
            if not self._levels[0] and offset + step <= len(data):
                self._push(1, hashlib.blake2b(b"\x01" + data[offset : offset + step], digest_size=DIGEST_SIZE).digest())
                offset += step
            else:
                self._push(0, data[offset : offset + DIGEST_SIZE])
                offset += DIGEST_SIZE

    def root(self) -> bytes:
        """The root over all added digests; nothing may be added after it."""
        depth = 0
        while depth < len(self._levels) - 1 or depth == 0 or len(self._levels[depth]) > 1:
            if self._levels[depth] or depth == len(self._levels) - 1:
                self._close(depth)
            depth += 1
        return self._levels[depth][0]

    def _push(self, depth: int, node: bytes) -> None:
        if depth == len(self._levels):
            self._levels.append([])
        self._levels[depth].append(node)
        if len(self._levels[depth]) == FAN_OUT:
            self._close(depth)

    def _close(self, depth: int) -> None:
        children, self._levels[depth] = self._levels[depth], []
        self._push(depth + 1, hashlib.blake2b(b"\x01" + b"".join(children), digest_size=DIGEST_SIZE).digest())


_COUNT: Final = struct.Struct("=I")
_PART: Final = struct.Struct("=IIII")
_BORDER: Final = 4


@dataclass(frozen=True, slots=True)
class Canonical:
    """The canonical bytes of n rows: `prefix`, followed for each row by the part of `data` between two borders.

    `borders`: n + 1 numbers of 32 bits; borders and data are any buffers. `head`: so many bytes after each border but
    the last do not belong to the row.
    """

    prefix: bytes
    borders: Any
    data: Any
    head: int = 0

    @property
    def count(self) -> int:
        """The number of rows."""
        return memoryview(self.borders).nbytes // _BORDER - 1


Hashing: TypeAlias = Callable[[Sequence[Canonical]], Callable[[], list[bytes]]]
"""Begins to hash; the returned function waits for the concatenated digests of each part.

Results that nobody waited for are lost when the next call begins.
"""


@contextmanager
def meanwhile(begun: Callable[[], object]) -> Iterator[None]:
    """Do something until digests are ready; if it fails, wait for them anyway, because the helper must be read."""
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
    """Write a request."""
    sink.write(_COUNT.pack(len(parts)))
    for part in parts:
        sizes = len(part.prefix), part.count, memoryview(part.data).nbytes, part.head
        sink.write(_PART.pack(*sizes) + part.prefix)
        sink.write(memoryview(part.borders).cast("B"))
        sink.write(memoryview(part.data).cast("B"))
    sink.flush()


def read_answer(source: IO[bytes], parts: Sequence[Canonical]) -> list[bytes]:
    """Read the answer. Raises EOFError without one."""
    answers = []
    for part in parts:
        size = part.count * DIGEST_SIZE
        digests = source.read(size)
        if len(digests) != size:
            raise EOFError
        answers.append(digests)
    return answers


def serve(source: IO[bytes], sink: IO[bytes]) -> None:
    """Answer requests until the source ends."""
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
