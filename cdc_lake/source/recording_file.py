"""Recordings: a stream as it came over the wire, in a file.

A file is a sequence of entries, each `u32 big-endian length` and that many bytes: the body of one CopyData message as
the server sent it, `w` (25 bytes of header, then the payload) or `k` (a keepalive: 18 bytes as PostgreSQL sends it, 33
as the GaussDB family does). Before the entries may stand one line of JSON that says where they come from::

    {"format": "cdc-lake/recording/1", "source": …, "plugin": …, "options": {…}, "encoding": "UTF8",
     "start": "0/16B3748", "started": "2026-01-01T00:00:00+00:00"}

and `"redacted": true` where every value of every row was overwritten (`decode.filler`).

A file that was cut off in an entry is an error at that entry, never a shorter stream.
"""

from __future__ import annotations

import io
import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, Self

from cdc_lake.config.source import POSTGRES_TYPES
from cdc_lake.errors import RecordingNotWritten, RecordingUnreadable
from cdc_lake.lake.disk import sync

FORMAT: Final = "cdc-lake/recording/1"
_HEAD: Final = b'{"format": "cdc-lake/recording/'
_HEAD_LIMIT: Final = 1 << 20  # bytes: a header longer than this is none
_ORDINARY: Final = 1 << 20  # bytes of an entry that are asked for without a look whether the file has so many
_LENGTH: Final = struct.Struct(">I")
_DATA: Final = struct.Struct(">cQQq")  # 'w', start, end, clock: PostgreSQL's documentation, XLogData
_ALIVE: Final = {18: struct.Struct(">cQ"), 33: struct.Struct("<cQ")}  # 'k', WAL end; by the length of the message


@dataclass(frozen=True, slots=True)
class RecordingHeader:
    """Where a recording comes from. `options` and `encoding` are in the server's own names.

    `start` is the position that was asked for, `started` ISO 8601 with zone. `redacted`: every value is overwritten.
    """

    source: str
    plugin: str
    options: Mapping[str, str] = field(default_factory=dict)
    encoding: str = "UTF8"
    start: str = "0/0"
    started: str = ""
    redacted: bool = False

    @property
    def keepalives_confirm(self) -> bool:
        """Whether a keepalive says that everything before its position was sent: not so in parallel decoding."""
        return self.source in POSTGRES_TYPES or self.options.get("parallel-decode-num") == "1"

    def line(self) -> bytes:
        """The first line of the file."""
        body = {
            "format": FORMAT,
            "source": self.source,
            "plugin": self.plugin,
            "options": dict(self.options),
            "encoding": self.encoding,
            "start": self.start,
            "started": self.started,
            **({"redacted": True} if self.redacted else {}),
        }
        return json.dumps(body, ensure_ascii=False).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Data:
    """A `w`: the position and the server's clock (µs since 2000) of its header, and the payload."""

    lsn: int
    clock: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Alive:
    """A `k`: the WAL end that the server announced."""

    end: int


class RecordingReader:
    """The entries of a recording, one after the other; `header` is None where the file has none.

    Reads as it goes, so a file may be larger than the memory. Raises RecordingUnreadable.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        """`file` stands at its start and can seek."""
        self._file = file
        self._name = name
        self.header = self._read_header()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Raises RecordingUnreadable where the file cannot be read."""
        try:
            return cls(path.open("rb"), str(path))
        except OSError as failed:
            raise RecordingUnreadable(f"the file cannot be read: {failed.strerror}", where=str(path)) from failed

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Data | Alive]:
        while (entry := self.next()) is not None:
            yield entry

    def next(self) -> Data | Alive | None:
        """The next entry, None at the end."""
        at = self._file.tell()
        head = self._file.read(_LENGTH.size)
        if not head:
            return None
        if len(head) < _LENGTH.size:
            raise self._unreadable("the file ends inside the length of an entry", at)
        size = _LENGTH.unpack(head)[0]
        body = self._file.read(size if size <= _ORDINARY else min(size, self._left()))
        if len(body) < size:
            raise self._unreadable(f"the file ends inside an entry: {size} bytes announced, {len(body)} left", at)
        if (entry := copy_data(body)) is None:
            raise self._unreadable(f"an entry of {size} bytes that is neither data nor a keepalive", at)
        return entry

    def _left(self) -> int:
        """Bytes up to the end: a read asks for the memory of all that it may bring."""
        at = self._file.tell()
        left = self._file.seek(0, io.SEEK_END) - at
        self._file.seek(at)
        return left

    def _read_header(self) -> RecordingHeader | None:
        if self._file.read(len(_HEAD)) != _HEAD:
            self._file.seek(0)
            return None
        self._file.seek(0)
        try:
            body = json.loads(self._file.readline(_HEAD_LIMIT))
            if body["format"] != FORMAT:
                raise self._unreadable(f"a recording of another format than {FORMAT}", 0)
            options = {str(name): str(value) for name, value in body["options"].items()}
            names = ("source", "plugin", "encoding", "start", "started")
            source, plugin, encoding, start, started = (_word(body[name]) for name in names)
            redacted = body.get("redacted") is True
            return RecordingHeader(source, plugin, options, encoding, start, started, redacted)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as malformed:
            raise self._unreadable("the header of the recording is not one", 0) from malformed

    def _unreadable(self, what: str, at: int) -> RecordingUnreadable:
        return RecordingUnreadable(what, offset=at, where=self._name)


def _word(value: object) -> str:
    if not isinstance(value, str):
        msg = "a text is expected"
        raise TypeError(msg)
    return value


def copy_data(body: bytes) -> Data | Alive | None:
    """The body of one CopyData message; None where it is neither data nor a keepalive."""
    if body[:1] == b"w" and len(body) >= _DATA.size:
        _, start, _, clock = _DATA.unpack_from(body)
        return Data(start, clock, body[_DATA.size :])
    if body[:1] == b"k" and (alive := _ALIVE.get(len(body))) is not None:
        return Alive(alive.unpack_from(body)[1])
    return None


def is_recording(file: BinaryIO) -> bool:
    """Whether a file at its start is a recording; it stands there again afterwards.

    By its header, or by its first entry: no payload of any plugin has `w` or `k` as its fifth byte behind a length
    that fits into the file (the fifth byte is the top of an LSN, or the first four are letters).
    """
    head = file.read(max(len(_HEAD), 5))
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if head.startswith(_HEAD):
        return True
    if len(head) < 5:
        return False
    length = _LENGTH.unpack_from(head)[0]
    plausible = length >= _DATA.size if head[4:5] == b"w" else length in _ALIVE
    return head[4:5] in (b"w", b"k") and plausible and length <= max(size - _LENGTH.size, 1 << 24)


def refuse_existing(path: Path) -> None:
    """Raises RecordingNotWritten where there is a file of that name."""
    if path.exists():
        raise RecordingNotWritten("there is such a file already", where=str(path))


class RecordingWriter:
    """Writes a new recording. After `close` it is on the disk; a file that is there is never overwritten."""

    def __init__(self, path: Path, header: RecordingHeader) -> None:
        """Raises RecordingNotWritten."""
        refuse_existing(path)
        self._path = path
        self.size = 0
        try:
            # it holds the rows of the source: nobody else's to read
            self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        except OSError as failed:
            raise self._failed(failed) from failed
        self._write(header.line())

    def append(self, body: bytes) -> None:
        """One CopyData message, without the letter and length of its own frame. Raises RecordingNotWritten."""
        self._write(_LENGTH.pack(len(body)) + body)
        self.size += len(body)

    def close(self) -> None:
        """Make it durable: the file, and its name in the folder. Raises RecordingNotWritten."""
        if self._file.closed:
            return
        try:
            with self._file:
                self._file.flush()
                os.fsync(self._file.fileno())
            sync(self._path.parent)
        except OSError as failed:
            raise self._failed(failed) from failed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as failed:
            raise self._failed(failed) from failed

    def _failed(self, failed: OSError) -> RecordingNotWritten:
        hint = "choose a folder that exists, that may be written to and has room"
        return RecordingNotWritten(f"cannot be written: {failed.strerror}", where=str(self._path), hint=hint)
