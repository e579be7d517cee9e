"""Records a replication stream into a file, unmodified as received, and reads such files.

PostgreSQL is recorded through a temporary slot, which ends with the connection, or through a given slot. The GaussDB
family has no temporary slots: the recorder creates a slot and drops it at the end; if it is killed the slot stays,
visible in `pg_replication_slots`. Nothing is ever confirmed, so recording changes nothing at the source.

A file is a sequence of entries, each `u32 big-endian length` and that many bytes: the body of one CopyData message,
`w` (25 bytes of header, then the payload) or `k` (a keepalive: 18 bytes of PostgreSQL, 33 of the GaussDB family, not
stored for the latter). A line of JSON with the origin may precede the entries::

    {"format": "cdc-lake/recording/1", "source": …, "plugin": …, "options": {…}, "encoding": "UTF8",
     "start": "0/16B3748", "started": "2026-01-01T00:00:00+00:00"}

and `"redacted": true` if every value of every row was overwritten (`devtools.anonymize`). A file that is
truncated inside an entry is an error at that entry, never a shorter stream.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import select
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, Self

import psycopg

from cdc_lake.errors import RecordingNotWritten, RecordingUnreadable, ServerUnreachable
from cdc_lake.model.position import Lsn, OrderDomain
from cdc_lake.source.gaussdb.slot import create_slot, create_slot_by_function, drop_slot_when_free
from cdc_lake.source.gaussdb.stream import GaussDbStream
from cdc_lake.source.gaussdb.wire.session import WireSession
from cdc_lake.source.postgres.connection import Session, command, connection_lost_error, raise_end, send_as_stored
from cdc_lake.source.socket_io import LONGEST, IdleTimeout
from cdc_lake.source.sql_text import identifier, literal, start_command
from cdc_lake.tables.files import sync

_STATUS: Final = struct.Struct(">cQQQqB")  # 'r', written, flushed, applied, clock, reply wanted
_START: Final = struct.Struct(">Q")  # of 'w', after its letter
_KEEPALIVE: Final = struct.Struct(">cQqB")
_DATA_TAG, _KEEPALIVE_TAG = ord("w"), ord("k")
_EPOCH_2000: Final = 946_684_800  # seconds from 1970 to PostgreSQL's epoch


class PostgresCapture:
    """An open stream of a PostgreSQL slot. `start` is its first position."""

    def __init__(
        self,
        session: Session,
        plugin: str,
        options: Mapping[str, str],
        *,
        slot: str | None,
        status_interval: float,
        silence: float = LONGEST,
    ) -> None:
        """`session`: for replication; `slot` None: temporary. `silence`: see PostgresStream. Raises SourceError."""
        self._session = session
        self._pgconn = session.pgconn
        self._interval = status_interval
        self._received = 0
        self._told_at = time.monotonic()
        self.start = "0/0"
        send_as_stored(self._pgconn)
        if slot is None:
            slot = f"cdc_lake_record_{secrets.token_hex(4)}"
            created = command(
                self._pgconn,
                f"CREATE_REPLICATION_SLOT {identifier(slot)} TEMPORARY LOGICAL {identifier(plugin)} NOEXPORT_SNAPSHOT",
                f"creating the temporary slot `{slot}`",
            )[0]
            self.start = str(Lsn.parse(created["consistent_point"] or ""))
        command(self._pgconn, start_command(slot, 0, options), f"starting replication from slot `{slot}`")
        self._pgconn.nonblocking = 1
        self._poller = select.poll()
        self._poller.register(self._pgconn.socket, select.POLLIN)
        self._silence = IdleTimeout(silence, time.monotonic)

    def poll(self, timeout: float) -> list[bytes]:
        """Bodies of CopyData messages (`w…` and `k…`), waiting up to `timeout` seconds for the first.

        Also answers keepalives and sends the status when due. Raises SourceError.
        """
        if not (bodies := self._drain()):
            if self._poller.poll(max(0.0, min(timeout, self._told_at + self._interval - time.monotonic())) * 1000):
                self._silence.record_activity()
            elif self._silence.long and self._silence.to_ask():
                self._send_status(ping=True)
            try:
                self._pgconn.consume_input()
            except psycopg.OperationalError as broken:
                raise connection_lost_error(self._pgconn, "reading the stream") from broken
            bodies = self._drain()
        if time.monotonic() - self._told_at >= self._interval:
            self._send_status()
        return bodies

    def close(self) -> None:
        """Close the connection; a slot of its own goes with it."""
        self._session.close()

    def _drain(self) -> list[bytes]:
        bodies: list[bytes] = []
        while True:
            try:
                length, view = self._pgconn.get_copy_data(1)
            except psycopg.OperationalError as broken:
                raise connection_lost_error(self._pgconn, "reading the stream") from broken
            if length == 0:
                return bodies
            if length < 0:
                raise_end(self._pgconn, "reading the stream")
            body = bytes(view)
            bodies.append(body)
            if body[0] == _DATA_TAG:
                self._received = max(self._received, _START.unpack_from(body, 1)[0])
            elif body[0] == _KEEPALIVE_TAG and len(body) == _KEEPALIVE.size and _KEEPALIVE.unpack(body)[3]:
                self._send_status()

    def _send_status(self, *, ping: bool = False) -> None:
        now = int((time.time() - _EPOCH_2000) * 1_000_000)
        try:
            self._pgconn.put_copy_data(_STATUS.pack(b"r", self._received, 0, 0, now, ping))
            self._pgconn.flush()
        except psycopg.OperationalError as broken:
            raise connection_lost_error(self._pgconn, "answering the server") from broken
        self._told_at = time.monotonic()


FORMAT: Final = "cdc-lake/recording/1"
_HEAD: Final = b'{"format": "cdc-lake/recording/'
_HEAD_LIMIT: Final = 1 << 20  # bytes: the maximum length of a header
_ORDINARY: Final = 1 << 20  # bytes of an entry that are read without checking the size of the file
_LENGTH: Final = struct.Struct(">I")
_DATA: Final = struct.Struct(">cQQq")  # 'w', start, end, clock: PostgreSQL's documentation, XLogData
_ALIVE: Final = {18: struct.Struct(">cQ"), 33: struct.Struct("<cQ")}  # 'k', WAL end; by the length of the message


@dataclass(frozen=True, slots=True)
class RecordingHeader:
    """The origin of a recording. `options` and `encoding` use the server's names.

    `start` is the requested position, `started` ISO 8601 with zone. `redacted`: every value is overwritten.
    """

    source: str
    plugin: str
    options: Mapping[str, str] = field(default_factory=dict)
    encoding: str = "UTF8"
    start: str = "0/0"
    started: str = ""
    redacted: bool = False

    def line(self) -> bytes:
        """The first line of the file."""
        body = {"format": FORMAT, **asdict(self)}
        if not self.redacted:
            del body["redacted"]
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
    """The entries of a recording in order; `header` is None if the file has none.

    Reads incrementally, so a file may be larger than memory. Raises RecordingUnreadable.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        """`file` is at its start and seekable."""
        self._file = file
        self._name = name
        self.header = self._read_header()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Raises RecordingUnreadable if the file cannot be read."""
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
        while (entry := self.read_entry()) is not None:
            yield entry

    def read_entry(self) -> Data | Alive | None:
        """The next entry, None at the end."""
        offset = self._file.tell()
        head = self._file.read(_LENGTH.size)
        if not head:
            return None
        if len(head) < _LENGTH.size:
            raise self._unreadable("the file ends inside the length of an entry", offset)
        size = _LENGTH.unpack(head)[0]
        body = self._file.read(size if size <= _ORDINARY else min(size, self._remaining_bytes()))
        if len(body) < size:
            raise self._unreadable(f"the file ends inside an entry: {size} bytes announced, {len(body)} left", offset)
        if (entry := copy_data(body)) is None:
            raise self._unreadable(f"an entry of {size} bytes that is neither data nor a keepalive", offset)
        return entry

    def _remaining_bytes(self) -> int:
        """Bytes up to the end: a read allocates all the memory that it requests."""
        offset = self._file.tell()
        left = self._file.seek(0, io.SEEK_END) - offset
        self._file.seek(offset)
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
            raise self._unreadable("the header of the recording is not valid", 0) from malformed

    def _unreadable(self, what: str, offset: int) -> RecordingUnreadable:
        return RecordingUnreadable(what, offset=offset, where=self._name)


def _word(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is expected")
    return value


def copy_data(body: bytes) -> Data | Alive | None:
    """Parse the body of one CopyData message; None if it is neither data nor a keepalive."""
    if body[:1] == b"w" and len(body) >= _DATA.size:
        _, start, _, clock = _DATA.unpack_from(body)
        return Data(start, clock, body[_DATA.size :])
    if body[:1] == b"k" and (alive := _ALIVE.get(len(body))) is not None:
        return Alive(alive.unpack_from(body)[1])
    return None


def is_recording(file: BinaryIO) -> bool:
    """Whether a file at its start is a recording; its offset is restored.

    Detected by its header, or by its first entry: no payload of any plugin has `w` or `k` as its fifth byte after a
    length that fits into the file (the fifth byte is the top of an LSN, or the first four are letters).
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
    """Raises RecordingNotWritten if the file exists."""
    if path.exists():
        raise RecordingNotWritten("the file already exists", where=str(path))


class RecordingWriter:
    """Writes a new recording. After `close` it is durable; an existing file is never overwritten."""

    def __init__(self, path: Path, header: RecordingHeader) -> None:
        """Raises RecordingNotWritten."""
        refuse_existing(path)
        self._path = path
        self.size = 0
        try:
            # it contains the source's rows: readable only for its owner
            self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        except OSError as failed:
            raise self._write_error(failed) from failed
        self._write(header.line())

    def append(self, body: bytes) -> None:
        """One CopyData message, without the letter and length of its own frame. Raises RecordingNotWritten."""
        self._write(_LENGTH.pack(len(body)) + body)
        self.size += len(body)

    def close(self) -> None:
        """Sync the file and its folder. Raises RecordingNotWritten."""
        if self._file.closed:
            return
        try:
            with self._file:
                self._file.flush()
                os.fsync(self._file.fileno())
            sync(self._path.parent)
        except OSError as failed:
            raise self._write_error(failed) from failed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as failed:
            raise self._write_error(failed) from failed

    def _write_error(self, failed: OSError) -> RecordingNotWritten:
        hint = "choose a folder that exists, is writable and has free space"
        return RecordingNotWritten(f"cannot be written: {failed.strerror}", where=str(self._path), hint=hint)


_PATIENCE: Final = 10.0  # seconds: a slot stays active for about one after its reader's end


class FamilyCapture:
    """An open stream; `start` is its first position, `0/0` for the slot's confirmed position.

    `dial` opens a session, for replication or not, and is called again at the end if a slot must be dropped.
    """

    def __init__(
        self,
        dial: Callable[[bool], WireSession],
        plugin: str,
        options: Mapping[str, str],
        *,
        slot: str | None,
        order: OrderDomain = OrderDomain.LSN,
        status_interval: float,
        silence: float = LONGEST,
    ) -> None:
        """`slot` None: its own slot, in the order of the options. `status_interval`, `silence`: as for GaussDbStream.
        Raises SourceError.
        """
        self._dial = dial
        self._own: str | None = None
        self.start = "0/0"
        if slot is None:
            slot = f"cdc_lake_record_{secrets.token_hex(4)}"
            by_function = order is OrderDomain.CSN  # only the SQL function creates a slot in CSN order
            with closing(dial(not by_function)) as session:
                created = create_slot_by_function(session, slot, plugin, order) if by_function else None
                self.start = str((created or create_slot(session, slot, plugin)).consistent)
            self._own = slot
        try:
            self._stream = GaussDbStream(
                dial(True), slot, 0, options,
                keepalives_confirm=False, status_interval=status_interval, silence=silence,
            )  # fmt: skip
        except BaseException:
            self._drop()
            raise

    def poll(self, timeout: float) -> list[bytes]:
        """Bodies of CopyData messages (`w…`), waiting up to `timeout` seconds for the first. Raises SourceError."""
        clock = int((time.time() - _EPOCH_2000) * 1_000_000)
        return [_DATA.pack(b"w", lsn, lsn, clock) + payload for lsn, payload in self._stream.poll(timeout)]

    def close(self) -> None:
        """Close the stream and drop its own slot. Raises SourceError, which names the slot, if it cannot be dropped."""
        self._stream.close()
        self._drop()

    def _drop(self) -> None:
        if self._own is None:
            return
        try:
            session = self._dial(False)
        except ServerUnreachable as away:
            hint = f"when it is back: SELECT pg_drop_replication_slot({literal(self._own)})"
            text = f"slot `{self._own}` of the recording is left: {away.message}"
            raise ServerUnreachable(text, where=away.where, hint=hint) from away
        with closing(session):
            drop_slot_when_free(session, self._own, _PATIENCE)
        self._own = None
