"""Reading a stream of the GaussDB family from a local sender: MB/s and processor time, by size of message.

    python benchmarks/wire_read.py [--megabytes 400]

A process sends prebuilt CopyData messages over TCP: in pieces of 64 KiB as fast as they are taken ("free"), one a call
("each"), as a server that flushes every message does, or one every 20 microseconds ("paced"). "per message" is a reader
that wakes up for each: the gathering pauses are off.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import struct
import time

from measured import show, table

from cdc_lake.source import socket_io
from cdc_lake.source.gaussdb.stream import GaussDbStream
from cdc_lake.source.gaussdb.wire.protocol import WireTarget, WireTls, copy_data, message
from cdc_lake.source.gaussdb.wire.session import connect

SIZES = ((1 << 20, "free"), (8 << 10, "free"), (300, "free"), (300, "each"), (300, "paced"))
PACE = 20e-6  # seconds from one paced message to the next


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=400)
    given = parser.parse_args()
    rows: list[tuple[object, ...]] = []
    for size, how in SIZES:
        total = (given.megabytes if size > 300 else given.megabytes // 8) << 20
        for name, pauses in (("gathering", 8), ("per message", 0)):
            socket_io._PAUSES = pauses  # noqa: SLF001
            wall, cpu, count = read(size, how, total)
            megabytes = count * (size + 30) / 1e6
            rows.append(
                (
                    f"{size:,} B, {how}",
                    name,
                    f"{megabytes / wall:,.0f}",
                    f"{megabytes / cpu:,.0f}",
                    f"{count / wall:,.0f}",
                )
            )
    show([table("Reading", ("messages", "reader", "MB/s", "MB per second of processor", "messages/s"), rows)])


def read(size: int, how: str, total: int) -> tuple[float, float, int]:
    """Seconds, processor seconds of the reader, messages."""
    listener = socket.create_server(("127.0.0.1", 0))
    child = multiprocessing.get_context("fork").Process(target=send, args=(listener, size, how, total))
    child.start()
    port = listener.getsockname()[1]
    listener.close()
    target = WireTarget((("127.0.0.1", port),), "db", "u", None, replication_port=port, tls=WireTls("disable"))
    stream = GaussDbStream(connect(target, replication=True), "s", 0, {}, keepalives_confirm=False, status_interval=10)
    count = -(-total // (size + 30))
    seen, began, busy = 0, time.perf_counter(), time.process_time()
    while seen < count:
        seen += len(stream.poll(1.0))
    wall, cpu = time.perf_counter() - began, time.process_time() - busy
    stream.close()
    child.join()
    return wall, cpu, count


def send(listener: socket.socket, size: int, how: str, total: int) -> None:
    sock, _ = listener.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.recv(65536)
    ready = message(b"R", bytes(4)) + message(b"Z", b"I")
    sock.sendall(ready)
    sock.recv(65536)
    sock.sendall(message(b"W", bytes(3)))
    one = copy_data(struct.pack(">cQQq", b"w", 1, 1, 0) + bytes(size))
    count = -(-total // (size + 30))
    try:
        if how != "free":
            pace, due = PACE if how == "paced" else 0.0, time.perf_counter()
            for _ in range(count):
                while time.perf_counter() < due:
                    pass
                due += pace
                sock.sendall(one)
        else:
            block = one * max(1, (64 << 10) // len(one))
            per = len(block) // len(one)
            for _ in range(count // per):
                sock.sendall(block)
            sock.sendall(one * (count % per))
        sock.recv(1 << 16)
    except OSError:
        pass


if __name__ == "__main__":
    main()
