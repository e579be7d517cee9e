"""The stream of a GaussDB slot over real sockets: data, keepalives, replies, ends, and bytes in any pieces."""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cdc_lake.errors import (
    LogUndecodable,
    OptionRefused,
    OptionUnknown,
    ServerUnreachable,
    SlotActive,
    SourceError,
    StreamProtocol,
)
from cdc_lake.source.gaussdb.stream import GaussDbStream, read_keepalive, reply
from cdc_lake.source.gaussdb.wire.protocol import copy_data, message
from cdc_lake.source.gaussdb.wire.session import connect
from cdc_lake.source.sql_text import start_command
from cdc_lake_testing.beside import until
from tests.scripted_server import READY, Peer, Scripted, error, frame, keepalive, status
from tests.seeds import one_seed

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
RECORDED = json.loads((Path(__file__).parents[1] / "data/opengauss/refusals.json").read_text())
REPLY = struct.Struct("<cQQQQQiiqB3xI")
SERIAL, PARALLEL = True, False


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def streaming(
    script: Callable[[Peer], object],
    *,
    start: int = 0,
    serial: bool = PARALLEL,
    interval: float = 1000.0,
    clock: Callable[[], float] = time.monotonic,
    piece: int | None = None,
    unix: Path | None = None,
) -> Iterator[GaussDbStream]:
    with Scripted(script, piece=piece, unix=unix) as server:
        stream = GaussDbStream(
            connect(server.target(), replication=True),
            "shop",
            start,
            {"parallel-decode-num": "4"},
            keepalives_confirm=serial,
            status_interval=interval,
            clock=clock,
        )
        try:
            yield stream
        finally:
            stream.close()


def sends(*messages: bytes) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.stream()
        peer.send(*messages)
        peer.hang()

    return script


def collect(stream: GaussDbStream, count: int, seconds: float = 60.0) -> list[tuple[int, bytes]]:
    frames: list[tuple[int, bytes]] = []
    end = time.monotonic() + seconds
    while len(frames) < count and time.monotonic() < end:
        frames += stream.poll(0.05)
    return frames


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_command_quotes_slot_and_options_in_the_servers_words() -> None:
    options = {"parallel-decode-num": "4", "white-table-list": "public.it's,a.b"}
    assert start_command("a-b", (1 << 32) + 0xAB, options) == (
        "START_REPLICATION SLOT \"a-b\" LOGICAL 1/AB (\"parallel-decode-num\" '4', \"white-table-list\" 'public.it''s,a.b')"
    )
    assert start_command("s", 0, {}) == 'START_REPLICATION SLOT "s" LOGICAL 0/0'


def test_the_command_is_what_the_server_gets() -> None:
    got: list[str] = []

    def script(peer: Peer) -> None:
        got.append(peer.stream())
        peer.hang()

    with streaming(script, start=255):
        pass
    assert got == ['START_REPLICATION SLOT "shop" LOGICAL 0/FF ("parallel-decode-num" \'4\')']


# ── data ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("piece", [None, 1, 2, 7, 29, 30, 31])
def test_payloads_come_whole_and_in_order_in_whatever_pieces(piece: int | None) -> None:
    expected = [(n + 1, bytes([n]) * size) for n, size in enumerate([0, 1, 25, 300, 5, 0, 70])]
    messages = [frame(*one) for one in expected]
    messages.insert(3, keepalive(99))
    messages.insert(5, error("00000", "by the way", "NOTICE", b"N"))
    messages.insert(6, status("TimeZone", "UTC"))
    with streaming(sends(*messages), piece=piece) as stream:
        assert collect(stream, len(expected)) == expected


def test_many_small_and_a_few_huge_messages_arrive_as_they_were_sent() -> None:
    chance = random.Random(7)
    sizes = [chance.randrange(400) for _ in range(20_000)] + [3 << 20, 17, 9 << 20, 0, 1 << 20]
    chance.shuffle(sizes)
    expected = [(n, bytes([n % 251]) * size) for n, size in enumerate(sizes)]
    with streaming(sends(*(frame(*one) for one in expected))) as stream:
        got = collect(stream, len(expected))
    assert got == expected


def test_a_poll_returns_after_about_a_megabyte() -> None:
    with streaming(sends(*(frame(n, bytes(10_000)) for n in range(1000)))) as stream:
        time.sleep(0.2)
        sizes = []
        total = 0
        while total < 1000:
            frames = stream.poll(1.0)
            total += len(frames)
            sizes.append(sum(len(payload) for _, payload in frames))
    assert max(sizes) < 2 << 20


def test_a_stream_over_a_unix_socket_works_as_well() -> None:
    expected = [(n, bytes(n)) for n in range(500)]
    with TemporaryDirectory() as folder, streaming(sends(*(frame(*f) for f in expected)), unix=Path(folder)) as stream:
        assert collect(stream, 500) == expected


def test_nothing_to_read_is_an_empty_list_in_time() -> None:
    with streaming(sends()) as stream:
        assert stream.poll(0.01) == []
        assert stream.poll(0.0) == []


def test_a_server_is_held_back_by_not_reading() -> None:
    sent = [0]

    def script(peer: Peer) -> None:
        peer.stream()
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        peer.socket.settimeout(0.5)
        with suppress(TimeoutError):
            for _ in range(400):
                peer.socket.sendall(frame(1, bytes(1 << 20)))
                sent[0] += 1
        peer.hang()

    with streaming(script) as stream:
        stream.poll(1.0)
        time.sleep(1.0)
    assert sent[0] < 100


# ── keepalives and replies ───────────────────────────────────────────────────────────────────────────────────────


def replies(
    got: list[tuple[object, ...]], enough: threading.Event, *, count: int, first: bytes
) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.stream()
        peer.send(first)
        for _ in range(count):
            letter, body = peer.read()
            assert letter == b"d"
            got.append(REPLY.unpack(body))
        enough.set()
        peer.hang()

    return script


def test_the_reply_is_the_servers_structure_byte_for_byte() -> None:
    documented = bytes.fromhex(
        "72" + "f06d810200000000" * 5 + "0000000000000000" + "b41582f3afb30200" + "0000000000000000"
    )
    clock = int.from_bytes(bytes.fromhex("b41582f3afb30200"), "little")
    made = reply(0x02816DF0, 0x02816DF0, 946_684_800 + clock / 1e6)
    assert made == documented
    assert len(made) == 65


def test_the_documented_keepalive_is_read_whatever_its_padding_holds() -> None:
    raw = bytes.fromhex("6bf06d810200000000 02000000 01000000 b41582f3afb30200 00 00 000000000000".replace(" ", ""))
    for padding in (bytes(6), b"\xff" * 6, b"\x33\0kU\0\0"):
        alive = read_keepalive(raw[:27] + padding)
        assert (alive.end, alive.role, alive.state, alive.reply_wanted) == (0x02816DF0, 2, 1, False)
    assert read_keepalive(raw[:25] + b"\x01\x01" + raw[27:]).reply_wanted


@pytest.mark.parametrize("size", [0, 1, 17, 18, 32, 34])
def test_a_keepalive_of_another_size_is_an_error(size: int) -> None:
    with pytest.raises(StreamProtocol):
        read_keepalive((b"k" + bytes(40))[:size])


def test_a_wanted_reply_goes_out_at_once_and_is_noticed_once() -> None:
    got: list[tuple[object, ...]] = []
    enough = threading.Event()
    first = frame(700, b"x") + keepalive(900, wanted=True)
    with streaming(replies(got, enough, count=1, first=first), start=500) as stream:
        assert collect(stream, 1) == [(700, b"x")]
        while not enough.wait(0.05):
            stream.poll(0.01)
        assert stream.reply_requested
        assert not stream.reply_requested
    _, receive, write, flush, apply, applied, role, state, _, wanted, flags = got[0]
    assert (receive, write, flush, apply, applied) == (700, 700, 500, 500, 500)
    assert (role, state, wanted, flags) == (0, 0, 0, 0)


def test_confirming_goes_out_at_once_and_never_goes_back() -> None:
    got: list[tuple[object, ...]] = []
    enough = threading.Event()
    with streaming(replies(got, enough, count=3, first=b""), start=10) as stream:
        stream.confirm(100)
        stream.confirm(50)
        stream.tick(ping=True)
        assert enough.wait(60)
    assert [(r[1], r[3]) for r in got] == [(100, 100)] * 3
    assert [r[9] for r in got] == [0, 0, 1]


def test_replies_go_by_the_clock_also_while_nobody_polls() -> None:
    got: list[tuple[object, ...]] = []
    enough = threading.Event()
    clock = Clock()
    with streaming(replies(got, enough, count=2, first=b""), interval=10.0, clock=clock) as stream:
        stream.tick()
        clock.now += 9.9
        stream.tick()
        time.sleep(0.1)
        assert got == []
        clock.now += 0.2
        stream.tick()
        stream.tick()  # and not again before the next interval
        until(lambda: got, "the first reply")
        time.sleep(0.1)
        assert len(got) == 1
        clock.now += 10
        stream.poll(0.0)
        assert enough.wait(60)
    assert len(got) == 2


def test_waiting_for_data_does_not_miss_the_time_to_reply() -> None:
    def script(peer: Peer) -> None:
        peer.stream()
        for _ in range(3):
            assert peer.read()[0] == b"d"
        peer.send(frame(1, b"x"))
        peer.hang()

    with streaming(script, interval=0.05) as stream:
        assert stream.poll(60.0) == [(1, b"x")]


def test_serial_keepalives_say_how_far_the_server_has_sent() -> None:
    with streaming(sends(keepalive(900), keepalive(800), frame(1, b"x")), start=500, serial=SERIAL) as stream:
        assert stream.keepalive_end == 500
        collect(stream, 1)
        assert stream.keepalive_end == 900


def test_parallel_keepalives_are_never_believed() -> None:
    with streaming(sends(keepalive(0), keepalive(900), frame(1, b"x")), start=500) as stream:
        collect(stream, 1)
        assert stream.keepalive_end == 500


def test_a_flood_of_keepalives_is_read_through() -> None:
    with streaming(sends(keepalive(1) * 20_000, frame(1, b"x"))) as stream:
        assert collect(stream, 1) == [(1, b"x")]


def test_replies_to_a_server_that_does_not_read_do_not_pile_up() -> None:
    def script(peer: Peer) -> None:
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.stream()
        time.sleep(1.0)

    with streaming(script) as stream:
        stream._session.channel.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        for n in range(20_000):
            stream.confirm(n)
        assert len(stream._outgoing) < 1 << 17


# ── ends and errors ──────────────────────────────────────────────────────────────────────────────────────────────


def ends(*messages: bytes) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.stream()
        peer.send(*messages)

    return script


def until_error(stream: GaussDbStream) -> tuple[list[tuple[int, bytes]], SourceError]:
    frames: list[tuple[int, bytes]] = []
    for _ in range(1000):
        try:
            frames += stream.poll(0.05)
        except SourceError as ended:
            return frames, ended
    raise AssertionError("the stream goes on")


@pytest.mark.parametrize("piece", [None, 1])
def test_what_came_before_an_error_is_delivered_before_it(piece: int | None) -> None:
    last = error("XX000", "missing chunk number 0 for toast value", "FATAL")
    with streaming(ends(frame(1, b"a"), frame(2, b"b"), last, READY), piece=piece) as stream:
        frames, wrong = until_error(stream)
        assert frames == [(1, b"a"), (2, b"b")]
        assert isinstance(wrong, LogUndecodable)
        assert "missing chunk" in wrong.message


def test_what_came_before_the_end_of_the_connection_is_delivered_before_it() -> None:
    with streaming(ends(frame(1, b"a"), frame(2, b"b"), frame(3, b"never whole")[:-3])) as stream:
        frames, wrong = until_error(stream)
        assert frames == [(1, b"a"), (2, b"b")]
        assert isinstance(wrong, ServerUnreachable)
        with pytest.raises(ServerUnreachable):
            stream.poll(0.0)
        stream.confirm(2)  # too late, and no harm
        stream.tick(ping=True)


@pytest.mark.parametrize("last", [message(b"c"), READY, b""])
def test_a_copy_that_ends_is_a_connection_that_broke_off(last: bytes) -> None:
    with streaming(ends(last)) as stream:
        assert isinstance(until_error(stream)[1], ServerUnreachable)


@pytest.mark.parametrize(
    "wrong",
    [
        copy_data(b""),
        copy_data(b"w"),
        copy_data(b"w" + bytes(23)),
        copy_data(b"k" + bytes(17)),  # PostgreSQL's keepalive
        copy_data(b"s" + bytes(40)),
        message(b"T", bytes(30)),
        b"d\0\0\0\0",
        b"d\xff\xff\xff\xff" + bytes(30),
    ],
)
def test_a_message_the_protocol_does_not_have_is_an_error(wrong: bytes) -> None:
    with streaming(sends(wrong)) as stream:
        assert isinstance(until_error(stream)[1], StreamProtocol)


@pytest.mark.parametrize(
    "refusal",
    [r for r in RECORDED if r["command"].startswith("START") and r["sqlstate"] == "22023"],
    ids=lambda r: f"{'in' if r['in_copy'] else 'before'} {r['message']}",
)
def test_refused_options_are_named_inside_and_before_the_copy(refusal: dict[str, str]) -> None:
    fatal = error(refusal["sqlstate"], refusal["message"], "FATAL")

    def before(peer: Peer) -> None:
        peer.login()
        peer.sql()
        peer.send(fatal)

    expected = (OptionUnknown, OptionRefused)
    if refusal["in_copy"]:
        with streaming(ends(fatal, READY)) as stream:
            wrong: SourceError = until_error(stream)[1]
        assert isinstance(wrong, expected)
    else:
        with pytest.raises(expected) as caught, streaming(before):
            pass
        wrong = caught.value
    assert refusal["message"] in wrong.message
    assert wrong.remedy


def test_an_active_slot_is_told_apart_and_closes_the_session() -> None:
    def script(peer: Peer) -> None:
        peer.login()
        peer.sql()
        peer.send(error("55006", 'replication slot "shop" is already active', "FATAL"))

    with Scripted(script) as server:
        session = connect(server.target(), replication=True)
        with pytest.raises(SlotActive, match="shop"):
            GaussDbStream(session, "shop", 0, {}, keepalives_confirm=False, status_interval=10)
        assert session.is_closed


def test_any_bytes_are_frames_or_an_error() -> None:
    seed = one_seed()
    print(f"seed {seed}")
    chance = random.Random(seed)
    whole = frame(1, b"payload") + keepalive(9, wanted=True) + frame(2, b"") + frame(3, bytes(200)) + message(b"c")

    def script(raw: bytes) -> Callable[[Peer], None]:
        return ends(raw)

    broken = []
    for _ in range(150 * BUDGET):
        raw = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        broken.append(bytes(raw))
    with Scripted(*(script(raw) for raw in broken)) as server:
        for _ in broken:
            session = connect(server.target(), replication=True)
            stream = GaussDbStream(session, "s", 0, {}, keepalives_confirm=True, status_interval=10)
            until_error(stream)
            stream.close()
