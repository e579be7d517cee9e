"""Target of the wire client of the GaussDB family: whatever a server answers, from the log-in to the stream."""

from __future__ import annotations

import random
import socket
import struct
import time
from functools import cache
from unittest import mock

from cdc_lake.errors import SourceError
from cdc_lake.source.gaussdb.stream import GaussDbStream
from cdc_lake.source.gaussdb.wire import auth
from cdc_lake.source.gaussdb.wire.protocol import Channel, WireTarget
from cdc_lake.source.gaussdb.wire.session import WireSession
from tests.fuzz.target import Finding, Target, refused
from tests.scripted_server import complete, error, frame, keepalive, row_description, status, table

TARGET = WireTarget((("h", 1),), "d", "u", "a password")
READY = b"Z\0\0\0\x05I"
LOGGED_IN = b"R\0\0\0\x08\0\0\0\0" + status("server_version", "9.2.4") + b"K\0\0\0\x0c\0\0\0\1\0\0\0\2" + READY
COPY_BOTH = b"W\0\0\0\x07\0\0\0"
COPIED = b"H\0\0\0\x07\0\0\0" + b"d\0\0\0\x081\ta\n" + b"c\0\0\0\4" + complete("COPY 1") + READY
ASKS = (
    b"R\0\0\0\x08\0\0\0\3",
    b"R\0\0\0\x0c\0\0\0\5salt",
    b"R" + struct.pack(">Ii", 4 + 4 + 4 + 64 + 8 + 4, 10) + struct.pack(">i", 2) + b"ab" * 32 + b"cd" * 4 + struct.pack(">i", 2048),
    b"R" + struct.pack(">Ii", 4 + 4 + 64 + 4, 11) + b"ef" * 32 + b"salt",
)  # fmt: skip
WORDS = (
    b"R",
    b"E",
    b"N",
    b"S",
    b"T",
    b"D",
    b"C",
    b"Z",
    b"d",
    b"c",
    b"H",
    b"W",
    b"\0\0\0\4",
    b"\0\0\0\5",
    b"SFATAL\0",
    b"C57P01\0",
)
SOME_ITERATIONS = 5_000  # hashing more of them takes time and nothing else


def some_answers() -> list[bytes]:
    dice = random.Random(6)
    answers = table(("a", "b"), ("1", None), ("", "é")) + READY
    stream = [frame(5, b"payload"), keepalive(9, wanted=True), frame(6, b""), error("57P01", "going down", "FATAL")]
    found = []
    for nth in range(40):
        log_in = (dice.choice(ASKS) if nth % 2 else b"") + LOGGED_IN
        refusal = error("42501", "not you") + READY
        parts = [log_in, dice.choice((answers, refusal, row_description("a") + complete() + READY)), COPIED, COPY_BOTH]
        found.append(b"".join([*parts, *dice.sample(stream, dice.randrange(1, 4))]))
    return found


def a_server(data: bytes) -> bool:
    """Everything the server will ever say is there when the client begins; then the server hangs up."""
    ours, theirs = socket.socketpair()
    with ours, theirs, mock.patch.object(auth, "_MOST_ITERATIONS", SOME_ITERATIONS):
        theirs.setblocking(False)
        sent = theirs.send(data) if data else 0
        if sent != len(data):
            return False  # more than a socket holds
        theirs.shutdown(socket.SHUT_WR)
        frames: list[tuple[int, bytes]] = []
        try:
            # not in real time: everything is there
            _session(Channel(ours, "h:1/d", time.monotonic() + 3600), frames)
        except SourceError as wrong:
            return refused(wrong) or bool(frames)
    raise Finding("the server hung up, and nothing was said of it")


def _session(channel: Channel, frames: list[tuple[int, bytes]]) -> None:
    """Everything that is asked of a server; `frames` takes what its stream brought."""
    session = WireSession(channel, TARGET)
    session.start(application="fuzz", replication=True)
    try:
        session.query("SELECT 1").records()
    except SourceError as wrong:
        refused(wrong)
    list(session.copy_out("COPY t TO STDOUT"))
    stream = GaussDbStream(session, "s", 0, {}, keepalives_confirm=True, status_interval=1e9)
    try:
        while True:
            for position, payload in stream.poll(0.0):
                if not isinstance(payload, bytes) or not 0 <= position < 1 << 64:
                    raise Finding(f"a frame at {position}")
                frames.append((position, payload))
            _ = stream.reply_requested, stream.keepalive_end
    finally:
        stream.close()


@cache
def wire() -> Target:
    return Target("wire", a_server, some_answers, WORDS)
