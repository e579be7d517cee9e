"""Faults on request: what a stream's connection does wrong, and where.

Positions are bytes sent by the server since CopyBothResponse. A server uses one of the injected `Faults` per stream;
without any, streams are healthy.
"""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass
from typing import Protocol


class Cut(ConnectionError):
    """The fault has closed the connection."""


@dataclass(frozen=True, slots=True)
class HeartbeatForm:
    """How heartbeats are framed: in a record of their own or bare, and in text and JSON batches with which end."""

    framed: bool = False
    end: bytes = b"\0\0\0\0"


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong in one stream.

    `cut_after`: close after so many bytes, in the middle of a message. `reset_after`: the same with a TCP reset.
    `stall_after`, `stall_seconds`: send nothing for a while there. `garbage_after`, `garbage`: these bytes are put
    between the server's. `single_bytes`: write the first so many bytes one by one. `keepalive_ahead`: keepalives name
    a position so far beyond the end of the log. `hold_last`: the newest so many transactions are not sent (a parallel
    reader is ahead of them) until `GaussServer.release`. `cuts`: messages close after these counts of records, in
    turn. `heartbeat`: one before every message, whatever the options. `repeat_from`: transactions confirmed already
    are sent again from this position on.
    """

    cut_after: int | None = None
    reset_after: int | None = None
    stall_after: int | None = None
    stall_seconds: float = 0.0
    garbage_after: int | None = None
    garbage: bytes = b""
    single_bytes: int = 0
    keepalive_ahead: int = 0
    hold_last: int = 0
    cuts: tuple[int, ...] = ()
    heartbeat: bool = False
    repeat_from: int | None = None


class Sender(Protocol):
    """Something bytes are sent through."""

    def send(self, data: bytes | memoryview) -> None:
        """Send all of it; raises OSError where the peer is gone."""


class FaultySender:
    """Sends through `below` until the faults strike; raises Cut where they close the connection."""

    def __init__(self, below: Sender, sock: socket.socket, faults: Faults) -> None:
        self._below = below
        self._socket = sock
        self._faults = faults
        self._sent = 0
        marks = (faults.cut_after, faults.reset_after, faults.stall_after, faults.garbage_after)
        self._marks = sorted({mark for mark in marks if mark is not None})

    def send(self, data: bytes | memoryview) -> None:
        """Send, with whatever strikes on the way."""
        view = memoryview(data)
        while view:
            self._strike()
            ends = [self._marks[0] - self._sent] if self._marks else []
            if self._sent < self._faults.single_bytes:
                ends.append(1)
            size = min([len(view), *ends])
            self._below.send(view[:size])
            self._sent += size
            view = view[size:]
        self._strike()

    def _strike(self) -> None:
        while self._marks and self._marks[0] <= self._sent:
            mark = self._marks.pop(0)
            faults = self._faults
            if mark == faults.garbage_after:
                self._below.send(faults.garbage)
            if mark == faults.stall_after:
                time.sleep(faults.stall_seconds)
            if mark == faults.reset_after:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if mark in {faults.cut_after, faults.reset_after}:
                raise Cut(f"cut after {mark} bytes")
