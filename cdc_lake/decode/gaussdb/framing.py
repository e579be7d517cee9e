"""Finds the records in a payload of the GaussDB family without a step per row, and verifies its style.

In style b the start of a record is known only from the previous one. But a separator `P` followed by the zero byte of a
length rarely occurs elsewhere, so all such positions of a payload are assumed to be starts and compared with each
other: in a run each record ends where the next one starts. A mismatch ends the run, and the slow way continues.

Batches of styles t and j are sequences of statements::

    batch := { u32 length  u64 lsn  statement }  u32 0        length: of lsn and statement; big-endian

With a heartbeat the end is not documented: it may also be a zero byte, the digit, or missing, and a heartbeat may come
without length and LSN.

The style is verified by the first bytes: a server in the middle of an upgrade silently falls back to serial decoding,
and an omitted option may have an unexpected default. Only what is certainly of another style is refused: a bare row of
JSON may be of serial decoding or of style j.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeVar, overload

import numpy as np

from cdc_lake.decode.gaussdb import records
from cdc_lake.decode.gaussdb.binary import BODY, END, LEAST, MORE
from cdc_lake.decode.gaussdb.records import END_MARKS, LETTER, SIZE, Style
from cdc_lake.errors import MalformedMessage, StyleMismatch, TruncatedMessage

SMALL: Final = 1 << 16
"""Minimum bytes of a payload to search for runs: for less, the search costs as much as reading all records."""
LONG: Final = 64
"""Minimum rows of a run; shorter ones are cheaper one by one."""

_INSERT, _UPDATE, _DELETE = b"IUD"
_SAFE: Final = 16  # no record starts this close to the end
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class RecordRun:
    """n consecutive rows: `start` and `end` of their bodies in `payload`, `lsn` (int64 ndarrays)."""

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

    def part(self, first: int, last: int) -> RecordRun:
        """Some of its rows."""
        selection = slice(first, last)
        return RecordRun(self.payload, self.start[selection], self.end[selection], self.lsn[selection])


class _Joined(Sequence[T]):
    """Entries of a transaction's parts as a sequence, created only when requested."""

    __slots__ = ("_entries", "parts")

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts: Final = parts
        self._entries: list[T] | None = None

    @staticmethod
    def _entries_of(part: Any) -> list[T]:
        raise NotImplementedError

    def _to_list(self) -> list[T]:
        if self._entries is None:
            self._entries = [entry for part in self.parts for entry in self._entries_of(part)]
        return self._entries

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self._to_list()[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self._to_list())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._to_list() == list(other)

    __hash__ = None  # type: ignore[assignment]  # Python's way to have none


class Rows(_Joined[bytes]):
    """Rows of a transaction, from lists and runs."""

    __slots__ = ()

    @staticmethod
    def _entries_of(part: RecordRun | list[bytes]) -> list[bytes]:
        return part.rows() if isinstance(part, RecordRun) else part


class Lsns(_Joined[int]):
    """LSNs of a transaction's rows, from arrays."""

    __slots__ = ()

    @staticmethod
    def _entries_of(part: Any) -> list[int]:
        numbers: list[int] = part.tolist()
        return numbers


def long_runs(payload: bytes) -> dict[int, tuple[RecordRun, int]]:
    """The long runs of a payload by the offset of the first record's length, each with the offset after it.

    A run is valid only if a record starts there, which the caller knows.
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
    # lengths below 16 MiB and LSNs below 2^56; others are read one by one
    first = first[((letter == _INSERT) | (letter == _UPDATE) | (letter == _DELETE)) & (data[first + 4] == 0)]
    words = np.ndarray((size - 7,), ">u8", payload, strides=(1,))
    head = words[first].astype(np.int64)
    ends = first + 5 + (head >> 32)
    good = (ends >= first + LEAST + 5) & (ends <= size)
    separator = data[np.where(good, ends, 1) - 1]
    good &= (separator == MORE) | ((separator == END) & (ends == size))
    first, ends = first[good], ends[good]
    borders = [0, *(np.flatnonzero(ends[:-1] != first[1:]) + 1).tolist(), len(first)]
    runs = {}
    for begin, end in pairwise(borders):
        if end - begin >= LONG:
            starts = first[begin:end]
            run = RecordRun(payload, starts + BODY, ends[begin:end] - 1, words[starts + 4].astype(np.int64))
            runs[int(starts[0])] = run, int(ends[end - 1])
    return runs


def _places(data: Any, byte: int) -> Any:
    """The positions of a rare byte in `data` (uint8 ndarray): int64 ndarray, ascending.

    Searches eight bytes at a time, and single bytes only after a hit: half of the time (measured). Up to seven bytes at
    the end are not searched: there the records are read one by one.
    """
    eight = (data[: len(data) & -8] == byte).view(np.uint64)
    nonzero = np.flatnonzero(eight != 0)
    within = np.flatnonzero(eight[nonzero].view(bool))
    return 8 * nonzero[within >> 3] + (within & 7)


HEAD: Final = 12
"""Bytes before a statement: its length and its LSN."""

_HEAD: Final = struct.Struct(">IQ")
_LENGTH: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_LSN: Final = 8
_END: Final = b"\0\0\0\0"
_TOP: Final = 1 << 63  # above every LSN that bronze holds
_TABLE: Final = b"table "
_BRACE: Final = ord("{")


def records_of_batch(payload: bytes) -> list[tuple[int, bytes]]:
    """LSN and statement of each record, in order. A heartbeat without an LSN has its read position instead.

    Raises DecodeError, whose offset counts from the payload's start.
    """
    batch_records: list[tuple[int, bytes]] = []
    keep, unpack = batch_records.append, _HEAD.unpack_from
    size, offset = len(payload), 0
    with suppress(struct.error):  # the end of the payload
        while True:
            length, lsn = unpack(payload, offset)
            end = offset + 4 + length
            if length < _LSN or end > size:
                break
            keep((lsn, payload[offset + HEAD : end]))
            offset = end
    if payload[offset:] == _END:
        return batch_records
    return [(lsn, statement) for _, lsn, statement in frames(payload)]


def parts_of_batch(payload: bytes) -> Sequence[RecordRun | tuple[int, bytes]]:
    """The same as `records_of_batch`, with long sequences of rows as runs."""
    if len(payload) < SMALL:
        return records_of_batch(payload)
    starts: list[int] = []
    offset, size, unpack = 0, len(payload) - HEAD, _LENGTH.unpack_from
    append = starts.append
    while offset <= size:
        append(offset)
        offset += 4 + unpack(payload, offset)[0]
    if payload[offset:] != _END or len(starts) < LONG:
        return records_of_batch(payload)  # it contains a heartbeat, or an error
    return _by_runs(payload, np.array([*starts, offset]))


def _by_runs(payload: bytes, border: Any) -> Sequence[RecordRun | tuple[int, bytes]]:
    """The records between these positions (int64 ndarray), each at least twelve bytes after the previous one."""
    words = np.ndarray((len(payload) - 7,), ">u8", payload, strides=(1,))
    first, ends = border[:-1] + HEAD, border[1:]
    if (ends < first).any() or (lsn := words[first - 8]).max() >= _TOP:
        return records_of_batch(payload)
    # the last six bytes of a row are before its end, and two more before the payload's
    start = words[np.minimum(first, len(payload) - 8)]
    row = (ends - first > len(_TABLE)) & ((start >> 16 == int.from_bytes(_TABLE, "big")) | (start >> 56 == _BRACE))
    edges = np.flatnonzero(row[1:] != row[:-1]) + 1
    parts: list[RecordRun | tuple[int, bytes]] = []
    for begin, end in pairwise([0, *edges.tolist(), len(row)]):
        part = slice(begin, end)
        if row[begin] and end - begin >= LONG:
            parts.append(RecordRun(payload, first[part], ends[part], lsn[part].astype(np.int64)))
        else:
            places = zip(lsn[part].tolist(), first[part].tolist(), ends[part].tolist(), strict=True)
            parts += [(number, payload[here:stop]) for number, here, stop in places]
    return parts


def frames(payload: bytes) -> list[tuple[int, int, bytes]]:
    """The same as `records_of_batch`, each preceded by the offset of its statement."""
    batch_records: list[tuple[int, int, bytes]] = []
    size, offset, unpack = len(payload), 0, _HEAD.unpack_from
    while offset + HEAD <= size:
        length, lsn = unpack(payload, offset)
        end = offset + 4 + length
        if length >= _LSN and end <= size:
            batch_records.append((offset + HEAD, lsn, payload[offset + HEAD : end]))
            offset = end
        elif payload[offset : offset + 2] == b"h\0" and offset + SIZE <= size:
            batch_records.append((offset, _U64.unpack_from(payload, offset + 1)[0], payload[offset : offset + SIZE]))
            offset += SIZE
        else:
            break
    rest = payload[offset:]
    if rest == _END or (rest in END_MARKS and batch_records and batch_records[-1][2][:1] == LETTER):
        return batch_records
    raise _error(payload, offset)


def _error(payload: bytes, offset: int) -> MalformedMessage | TruncatedMessage:
    left = len(payload) - offset - 4
    if left < 0:
        return TruncatedMessage(need=4, left=left + 4, offset=offset)
    (length,) = _LENGTH.unpack_from(payload, offset)
    if not length:
        return MalformedMessage(f"{left} bytes after the length of zero that ends a batch", offset=offset + 4)
    if length < _LSN:
        return MalformedMessage(f"a record of {length} bytes: its LSN alone needs {_LSN}", offset=offset)
    return TruncatedMessage(need=length, left=left, offset=offset + 4)


_SERIAL: Final = "serial decoding"
_LINE: Final = "style t or j without batches"
_BATCH: Final = "style t or j in batches"
_BINARY: Final = "style b"
_JSON: Final = "JSON without batches"
_ROW: Final = "text without batches"

_LINES: Final = (
    (re.compile(rb"BEGIN(?: [0-9O]|\Z)|COMMIT (?:[0-9]|CSN)"), _SERIAL),
    (re.compile(rb"BEGIN CSN:|commit(?: |\Z)|COMMIT XID:"), _LINE),
    (re.compile(rb"\{"), _JSON),
    (re.compile(rb"table "), _ROW),
)
_STATEMENT: Final = re.compile(rb"BEGIN|commit|COMMIT|table |\{")
_LETTER: Final = re.compile(rb"[BCIUDh]")


def verify(payload: bytes, style: Style, *, batch: bool) -> None:
    """Raise StyleMismatch if `payload` is certainly of another style than `style`, in batches if `batch`."""
    actual = _detect_style(payload)
    if actual is not None and actual not in _fitting(style, batch=batch):
        batches = "" if style is Style.BINARY else " in batches" if batch else " without batches"
        asked = _SERIAL if style is Style.SERIAL else f"style {style.value}{batches}"
        raise StyleMismatch(asked=asked, actual=actual)


def _detect_style(payload: bytes) -> str | None:
    first = payload[:1]
    if first in (b"{", b"B", b"C", b"c", b"t"):
        return next((name for start, name in _LINES if start.match(payload)), None)
    if len(payload) <= HEAD or records.bare(payload) is not None:
        return None
    if first in (b"\0", b"\1") and _STATEMENT.match(payload, HEAD):
        return _BATCH
    return _BINARY if first == b"\0" and _LETTER.match(payload, HEAD) and payload[HEAD] != records.LETTER[0] else None


def _fitting(style: Style, *, batch: bool) -> tuple[str, ...]:
    match style, batch:
        case Style.SERIAL, _:
            return (_SERIAL, _JSON, _ROW)
        case Style.BINARY, _:
            return (_BINARY,)
        case _, True:
            return (_BATCH,)
        case Style.TEXT, _:
            return (_LINE, _ROW)
    return (_LINE, _JSON)
