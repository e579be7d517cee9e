"""A stream: the work of a walsender between CopyBothResponse and the end of the connection.

One thread sends, receives and keeps the timers. Only the flush position of a reply advances the slot.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from struct import Struct
from typing import Final

from cdc_lake.decode.gaussdb.records import Heartbeat, Row, Style
from cdc_lake_testing.gaussdb.backlog import Backlog
from cdc_lake_testing.gaussdb.batches import UNIX_TO_2000, Batcher, encode, message
from cdc_lake_testing.gaussdb.encode import Print, framed, heartbeat
from cdc_lake_testing.gaussdb.faults import Faults, HeartbeatForm, Sender
from cdc_lake_testing.gaussdb.ledger import LedgerTransaction
from cdc_lake_testing.gaussdb.shape import View
from cdc_lake_testing.gaussdb.slots import Slot, SlotOrder
from cdc_lake_testing.gaussdb.sql import Failed
from cdc_lake_testing.gaussdb.state import ServerState
from cdc_lake_testing.gaussdb.wire import Channel, packet

_KEEPALIVE: Final = Struct("<cQiiqBB6s")
_REPLY: Final = Struct("<QQQQQiiqB3xI")
_CHUNK: Final = 4 << 20
"""Bytes gathered before they are handed to the socket."""
_LARGE: Final = 256 << 10
"""Bytes of a message above which copying it costs more than sending it by itself."""

_IDLE: Final = 0.01
"""Seconds between looks at the client while nothing is to be sent."""


class Ended(Exception):
    """The stream is over; `failed` is the server's last word, if it has one."""

    def __init__(self, failed: Failed | None = None) -> None:
        super().__init__()
        self.failed = failed


@dataclass(slots=True)
class Clock:
    """When things happened last, monotonic seconds."""

    data: float
    keepalive: float
    heard: float
    beat: float
    asked: bool = False


class Stream:
    """One stream of a slot. `released` lets the transactions go that a fault holds back."""

    def __init__(
        self,
        state: ServerState,
        channel: Channel,
        sender: Sender,
        slot: Slot,
        start: int,
        view: View,
        faults: Faults,
        released: threading.Event,
        stopping: threading.Event,
    ) -> None:
        self._state = state
        self._channel = channel
        self._sender = sender
        self._slot = slot
        self._view = view
        self._faults = faults
        self._released = released
        self._stopping = stopping
        dialect = view.dialect
        codec = state.codec
        self._how = Print(view.options.style, codec, view.plugin, dialect.label, dialect.upper_commit)
        position = slot.starts_after(start) if faults.repeat_from is None else faults.repeat_from
        at_start = dialect.at_start or view.options.serial
        self._backlog = Backlog(state.ledger, position, slot.order, self._hold_back, at_start=at_start)
        self._batcher = Batcher(view, slot.order, state.batch_bytes, faults.cuts)
        self._prepared = state.prepared.get(view, {})
        self._sending = False
        self._owed: bool | None = None
        self._recorded = iter(state.recordings.get(slot.name, ()))
        self._newest = 0
        self._announced = 0
        timeout = view.options.sender_timeout
        self._timeout = state.sender_timeout if timeout is None else timeout
        now = time.monotonic()
        self._clock = Clock(now, now, now, now)
        channel.while_waiting = self._look_around

    def run(self) -> None:
        """Stream until somebody ends it; raises Ended or OSError."""
        if self._view.options.serial:
            self._keepalive(self._slot.confirmed, catching_up=True)
        else:
            self._keepalive(0)
            self._keepalive(self._read_up_to())
        while not self._stopping.is_set():
            self._look_around()
            if not self._send_more():
                self._timers()
                self._state.ledger.wait(self._backlog.index + self._hold_back(), _IDLE)
        raise Ended

    def _hold_back(self) -> int:
        return 0 if self._released.is_set() else self._faults.hold_last

    def _read_up_to(self) -> int:
        """What a keepalive names: the reader's position in parallel decoding, the end of what was sent otherwise."""
        if self._slot.order is SlotOrder.CSN:
            return self._newest
        ledger = self._state.ledger
        end = ledger.through(self._backlog.index) if self._view.options.serial else ledger.end_lsn
        return end + self._faults.keepalive_ahead

    def _send_more(self) -> bool:
        """Send what is there, up to a chunk; False where nothing was."""
        messages: list[bytes] = []
        size = 0
        for data in self._recorded:
            messages.append(data)
            size += len(data)
            if size >= _CHUNK:
                break
        while size < _CHUNK and (found := self._backlog.next()) is not None:
            index, transaction = found
            self._check_replicated(transaction)
            encoded = self._prepared.get(index) or encode(transaction, self._view, self._how)
            if encoded is None:
                continue
            for data in self._batcher.add(encoded):
                if self._faults.heartbeat:
                    messages.append(self._heartbeat())
                messages.append(data)
                size += len(data)
            self._newest = transaction.csn
        if messages:
            for data in messages if size >= _LARGE * len(messages) else [b"".join(messages)]:
                self._send(data)
            self._clock.data = self._clock.keepalive = time.monotonic()
        return bool(messages)

    def _check_replicated(self, transaction: LedgerTransaction) -> None:
        """A data node that is read in CSN order has to know its slice to decode a replicated table."""
        state = self._state
        if state.node != "data_node" or self._slot.order is SlotOrder.LSN or self._view.options.slice_id is not None:
            return
        changed = {change.table for change in transaction.changes if isinstance(change, Row)}
        if changed & state.replicated:
            raise Ended(Failed("22023", "slice-id is needed to decode a replicated table", severity="FATAL"))

    def _timers(self) -> None:
        now = time.monotonic()
        clock = self._clock
        if self._batcher.waiting and now - clock.data >= self._state.batch_seconds:
            self._send(self._batcher.flush())
            clock.data = now
        if self._view.options.heartbeat and now - clock.beat >= self._state.heartbeat_every:
            self._send(self._heartbeat())
            clock.beat = now
        if self._view.options.serial:
            end = self._read_up_to()
            if end != self._announced:
                self._keepalive(end)
        elif now - clock.keepalive >= self._state.keepalive_every:
            self._keepalive(self._read_up_to())

    def _look_around(self) -> None:
        """Read what the client says, and judge its silence."""
        for kind, body in self._channel.available():
            match kind:
                case b"d":
                    self._reply(body)
                case b"c" | b"X":
                    raise Ended
                case _:
                    word = f'invalid standby message type "{kind.decode("latin-1")}"'
                    raise Ended(Failed("08P01", word, severity="FATAL"))
        if self._stopping.is_set():
            raise Ended
        if not self._timeout:
            return
        silence = time.monotonic() - self._clock.heard
        if silence >= self._timeout:
            if self._view.dialect.running_header:
                raise Ended  # without a word
            words = "terminating Walsender process due to replication timeout"
            raise Ended(Failed("42809", words, severity="FATAL"))
        if silence >= self._timeout / 2 and not self._clock.asked:
            self._clock.asked = True
            self._keepalive(self._read_up_to(), ask=True)

    def _reply(self, body: bytes) -> None:
        if body[:1] != b"r":
            raise Ended  # the server logs it and goes
        if len(body) < 1 + _REPLY.size:
            raise Ended(Failed("08P01", "insufficient data left in message", severity="FATAL"))
        _, _, flush, _, _, _, _, _, wants, _ = _REPLY.unpack_from(body, 1)
        self._clock.heard = time.monotonic()
        self._clock.asked = False
        if flush:
            self._state.slots.confirm(self._slot.name, flush)
        if wants:
            self._keepalive(self._read_up_to())

    def _send(self, data: bytes) -> None:
        """Send; what the client asks for meanwhile is answered behind it, not inside."""
        self._sending = True
        try:
            self._sender.send(data)
        finally:
            self._sending = False
        if self._owed is not None:
            ask, self._owed = self._owed, None
            self._keepalive(self._read_up_to(), ask=ask)

    def _keepalive(self, position: int, *, ask: bool = False, catching_up: bool = False) -> None:
        if self._sending:
            self._owed = ask or bool(self._owed)
            return
        now = time.time_ns() // 1000 - UNIX_TO_2000
        body = _KEEPALIVE.pack(b"k", position, 1, 1, now, ask, catching_up, os.urandom(6))
        self._send(packet(b"d", body))
        self._clock.keepalive = time.monotonic()
        self._announced = position

    def _heartbeat(self) -> bytes:
        ledger, form = self._state.ledger, self._state.heartbeat_form
        if self._slot.order is SlotOrder.CSN:
            read, flushed = self._newest, ledger.next_csn
        else:
            read = flushed = ledger.end_lsn
        newest = ledger[len(ledger) - 1].time_us if len(ledger) else 0
        return message(self._heartbeat_payload(Heartbeat(read, flushed, newest, read), form), read)

    def _heartbeat_payload(self, beat: Heartbeat, form: HeartbeatForm) -> bytes:
        body = heartbeat(beat)
        if self._how.style is Style.BINARY:
            return (Struct(">IQ").pack(len(body) + 8, beat.lsn or 0) + body if form.framed else body) + b"F"
        if not self._view.options.batch:
            return body
        return (framed(beat, self._how) if form.framed else body) + form.end
