"""A proxy in front of an object store that fails as stores and networks do, scripted or at random.

The store behind it really executes what is passed on; the proxy's answer may say something else.
"""

from __future__ import annotations

import enum
import random
import re
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

from cdc_lake_testing.azurite import Azurite
from cdc_lake_testing.object_store import LocalStore

_CONDITIONS = ("If-None-Match", "If-Match")


class Fault(enum.StrEnum):
    """What is done to a request."""

    LOST = "lost"
    """Nothing reaches the store, the connection breaks."""
    FAILED = "failed"
    """Nothing is done, and 503 says so."""
    UNHEARD = "unheard"
    """It is done, and the connection breaks before a reply."""
    DENIED = "denied"
    """It is done, and 500 is the reply."""
    TORN = "torn"
    """The connection breaks in the middle of the reply."""
    STALE = "stale"
    """A listing leaves out its newest names."""
    UNFENCED = "unfenced"
    """A put is done whatever its condition says."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request: `key` is bucket and key, empty query values are kept."""

    method: str
    key: str
    query: Mapping[str, str]
    conditional: bool

    @property
    def lists(self) -> bool:
        """Whether it is a listing."""
        return self.method == "GET" and "list-type" in self.query

    @property
    def writes(self) -> bool:
        """Whether the store is another one afterwards."""
        return self.method not in {"GET", "HEAD"}


Choose: TypeAlias = Callable[[Request], Fault | None]


def honest(request: Request) -> None:
    """No fault at all."""
    del request


class Chance:
    """Faults by chance: one request in `every`, of those that write four times as many, now and then all for a while.

    The same for the same seed and order. `faults` counts them; requests that fail for a while are one.
    """

    def __init__(self, seed: int, every: int) -> None:
        self._random = random.Random(seed)
        self._every = every
        self.faults = 0
        self._storm = 0
        self._stale = 0
        self._turn = threading.Lock()

    def __call__(self, request: Request) -> Fault | None:
        """The fault of the next request."""
        with self._turn:
            if self._storm:
                self._storm -= 1
                return Fault.FAILED
            if request.lists and self._stale:
                self._stale -= 1
                return Fault.STALE
            if self._random.randrange(max(2, self._every // 4) if request.writes else self._every):
                return None
            self.faults += 1
            return self._one(request)

    def _one(self, request: Request) -> Fault:
        kinds = [Fault.LOST, Fault.FAILED, Fault.TORN]
        kinds += [Fault.UNHEARD, Fault.DENIED] * 2 if request.writes else []
        kinds += [Fault.STALE] * 3 if request.lists else []
        fault = self._random.choice(kinds)
        if fault is Fault.FAILED:
            self._storm = self._random.choice((0, 0, 3, 15))
        if fault is Fault.STALE:
            self._stale = self._random.choice((0, 1, 5))
        return fault


class FaultyStore:
    """The proxy. `choose` may be replaced at any time; `done` counts faults, `requests` what came, in order. With `tls`
    it is a server for localhost.
    """

    def __init__(self, store: LocalStore | Azurite, choose: Choose = honest, tls: ssl.SSLContext | None = None) -> None:
        self.choose: Choose = choose
        self.done: Counter[Fault] = Counter()
        self.requests: list[Request] = []
        self._server = _Server(self, store)
        self._tls = tls
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """Its address."""
        place = "http://127.0.0.1" if self._tls is None else "https://localhost"
        return f"{place}:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, request: Request) -> Fault | None:
        """Note a request and decide on it."""
        self.requests.append(request)
        fault = self.choose(request)
        if fault is not None:
            self.done[fault] += 1
        return fault


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # clients of a race come at once

    def __init__(self, proxy: FaultyStore, store: LocalStore | Azurite) -> None:
        self.proxy = proxy
        self.store = store
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no error here: clients of a faulty store do."""


_OWN = ("connection", "keep-alive", "transfer-encoding", "expect", "host", "content-length", "date", "server")
"""Headers of one connection, or that each side writes itself."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Nothing: the test says what it wants to know."""

    def handle_expect_100(self) -> bool:
        """Ask for a body, if there is one: pyarrow's client of Azure aborts the process if it reads `100 Continue` and
        an error at once.
        """
        return self.headers.get("Content-Length") == "0" or super().handle_expect_100()

    def do_any(self) -> None:
        """Take a request, decide, pass it on, answer."""
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        conditional = any(name in self.headers for name in _CONDITIONS)
        request = Request(self.command, unquote(parts.path).lstrip("/"), query, conditional)
        body = self._body()
        fault = self.server.proxy.take(request)
        if fault is Fault.LOST:
            self._break()
        elif fault is Fault.FAILED:
            self._reply(503, {"Content-Type": "application/xml"}, b"<Error><Code>SlowDown</Code></Error>")
        else:
            if fault is Fault.UNFENCED:
                for name in _CONDITIONS:
                    del self.headers[name]
            status, headers, reply = self._pass_on(body)
            self._answer(fault, status, headers, reply)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_any  # noqa: N815 - the base class's names

    def _answer(self, fault: Fault | None, status: int, headers: dict[str, str], reply: bytes) -> None:
        if fault is Fault.UNHEARD:
            self._break()
        elif fault is Fault.DENIED:
            self._reply(500, {"Content-Type": "application/xml"}, b"<Error><Code>InternalError</Code></Error>")
        elif fault is Fault.TORN:
            self._reply(status, headers, reply, part=len(reply) // 2)
            self._break()
        elif fault is Fault.STALE:
            self._reply(status, headers, _without_newest(reply))
        else:
            self._reply(status, headers, reply)

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(chunks)

    def _pass_on(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection(self.server.store.host, self.server.store.port, timeout=30)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN}
            connection.request(self.command, self.path, body or None, {**headers, "Content-Length": str(len(body))})
            reply = connection.getresponse()
            said = {name: value for name, value in reply.getheaders() if name.lower() not in _OWN}
            if self.command == "HEAD" and (length := reply.getheader("Content-Length")):
                said["Content-Length"] = length
            return reply.status, said, reply.read()
        finally:
            connection.close()

    def _reply(self, status: int, headers: dict[str, str], body: bytes, part: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if part is None else body[:part])
        self.wfile.flush()

    def _break(self) -> None:
        """Let the connection end in a reset."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


def _without_newest(listing: bytes) -> bytes:
    """A listing without its last names: those of a log are its newest entries."""
    entries = list(re.finditer(rb"<Contents>.*?</Contents>", listing, re.DOTALL))
    for entry in reversed(entries[-2:]):
        listing = listing[: entry.start()] + listing[entry.end() :]
    left = str(max(0, len(entries) - 2)).encode()
    return re.sub(rb"<KeyCount>\d+</KeyCount>", b"<KeyCount>" + left + b"</KeyCount>", listing)
