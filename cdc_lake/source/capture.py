"""Capturing a PostgreSQL stream raw: CopyData messages as they came, for `record`.

From a temporary slot of its own, which begins now and goes with the connection, or from a slot that is given. Nothing
is ever confirmed: every status says that nothing was flushed, which the server takes for no news of the slot
(PostgreSQL's documentation, "Streaming Replication Protocol", standby status update).
"""

from __future__ import annotations

import secrets
import select
import struct
import time
from collections.abc import Mapping
from typing import Final, Protocol

import psycopg

from cdc_lake.model.position import Lsn
from cdc_lake.source.connection import Session, command, lost, raise_end, send_as_stored
from cdc_lake.source.quoting import command_literal, identifier
from cdc_lake.source.silence import LONGEST, Silence

_STATUS: Final = struct.Struct(">cQQQqB")  # 'r', written, flushed, applied, clock, reply wanted
_START: Final = struct.Struct(">Q")  # of 'w', behind its letter
_KEEPALIVE: Final = struct.Struct(">cQqB")
_DATA, _ALIVE = ord("w"), ord("k")
_EPOCH_2000: Final = 946_684_800  # seconds from 1970 to PostgreSQL's own epoch


class Capture(Protocol):
    """An open stream whose messages are kept as bytes. Raises SourceError."""

    def poll(self, timeout: float) -> list[bytes]:
        """Bodies of CopyData messages (`w…` and `k…`), waiting up to `timeout` seconds for the first."""
        ...

    def close(self) -> None:
        """Close the connection; a slot of its own goes with it."""
        ...


class PostgresCapture:
    """A capture of a PostgreSQL slot (implements `Capture`). `start` is the position it began at."""

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
        """`session` is a replication connection; `slot` None: a temporary one. `silence`: see PostgresStream. Raises
        SourceError.
        """
        self._session = session
        self._pgconn = session.pgconn
        self._interval = status_interval
        self._received = 0
        self._told_at = time.monotonic()
        self.start = "0/0"
        send_as_stored(self._pgconn)
        if slot is None:
            slot = f"cdc_lake_record_{secrets.token_hex(4)}"
            made = command(
                self._pgconn,
                f"CREATE_REPLICATION_SLOT {identifier(slot)} TEMPORARY LOGICAL {identifier(plugin)} NOEXPORT_SNAPSHOT",
                f"creating the temporary slot `{slot}`",
            )[0]
            self.start = str(Lsn.parse(made["consistent_point"] or ""))
        said = ", ".join(f"{identifier(name)} {command_literal(value)}" for name, value in options.items())
        command(
            self._pgconn,
            f"START_REPLICATION SLOT {identifier(slot)} LOGICAL 0/0" + (f" ({said})" if said else ""),
            f"starting replication from slot `{slot}`",
        )
        self._pgconn.nonblocking = 1
        self._poller = select.poll()
        self._poller.register(self._pgconn.socket, select.POLLIN)
        self._silence = Silence(silence, time.monotonic)

    def poll(self, timeout: float) -> list[bytes]:
        """See Capture; also answers keepalives, and in time where there are none."""
        if not (bodies := self._drain()):
            if self._poller.poll(max(0.0, min(timeout, self._told_at + self._interval - time.monotonic())) * 1000):
                self._silence.heard()
            elif self._silence.long and self._silence.to_ask():
                self._tell(ping=True)
            self._consume()
            bodies = self._drain()
        if time.monotonic() - self._told_at >= self._interval:
            self._tell()
        return bodies

    def close(self) -> None:
        """See Capture."""
        self._session.close()

    def _drain(self) -> list[bytes]:
        bodies: list[bytes] = []
        while True:
            try:
                length, view = self._pgconn.get_copy_data(1)
            except psycopg.OperationalError as broken:
                raise lost(self._pgconn, "reading the stream") from broken
            if length == 0:
                return bodies
            if length < 0:
                raise_end(self._pgconn, "reading the stream")
            body = bytes(view)
            bodies.append(body)
            if body[0] == _DATA:
                self._received = max(self._received, _START.unpack_from(body, 1)[0])
            elif body[0] == _ALIVE and len(body) == _KEEPALIVE.size and _KEEPALIVE.unpack(body)[3]:
                self._tell()

    def _consume(self) -> None:
        try:
            self._pgconn.consume_input()
        except psycopg.OperationalError as broken:
            raise lost(self._pgconn, "reading the stream") from broken

    def _tell(self, *, ping: bool = False) -> None:
        now = int((time.time() - _EPOCH_2000) * 1_000_000)
        try:
            self._pgconn.put_copy_data(_STATUS.pack(b"r", self._received, 0, 0, now, ping))
            self._pgconn.flush()
        except psycopg.OperationalError as broken:
            raise lost(self._pgconn, "answering the server") from broken
        self._told_at = time.monotonic()
