"""The endpoint of a process: `/metrics` for Prometheus, `/healthz` for who asks whether it does its work.

Nothing else is answered, nothing is asked of who calls, and who calls slowly keeps nobody else waiting.
"""

from __future__ import annotations

import json
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Final, Self

from prometheus_client.exposition import choose_encoder

from cdc_lake.config.source import host_and_port
from cdc_lake.errors import MetricsNotServed
from cdc_lake.observability.exposition import Exposition

_PATIENCE: Final = 10.0  # seconds for a caller to say what it wants and to take the answer


class Endpoint:
    """Answers while it is entered. `health`: whether all is well, and a JSON document that says more."""

    def __init__(
        self, address: str, exposition: Exposition, health: Callable[[], tuple[bool, Mapping[str, object]]]
    ) -> None:
        self._address = address
        self._exposition = exposition
        self._health = health

    def __enter__(self) -> Self:
        """Raises MetricsNotServed where the address cannot be had."""
        host, port = host_and_port(self._address)
        exposition, health = self._exposition, self._health

        class Handler(_Handler):
            def answer(self) -> tuple[HTTPStatus, str, bytes]:
                match self.path.partition("?")[0]:
                    case "/metrics":
                        encode, kind = choose_encoder(self.headers.get("Accept", ""))
                        return HTTPStatus.OK, kind, encode(exposition)
                    case "/healthz":
                        well, said = health()
                        status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
                        return status, "application/json", json.dumps(said).encode() + b"\n"
                    case _:
                        return HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"/metrics, /healthz\n"

        try:
            family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._server = _server(family, place, Handler)
        except OSError as failure:
            text = f"nothing can be served at `{self._address}`: {failure.strerror or type(failure).__name__}"
            raise MetricsNotServed(text, where="observe.metrics") from failure
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="cdc-lake-endpoint", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _server(family: int, place: object, handler: type[BaseHTTPRequestHandler]) -> socketserver.TCPServer:
    class Server(socketserver.ThreadingTCPServer):
        address_family = family
        allow_reuse_address = True  # of a process that just ended; one that listens keeps it
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            if not isinstance(sys.exception(), OSError):  # a caller that went away is no matter of ours
                super().handle_error(request, client_address)  # type: ignore[arg-type]  # as they came

    return Server(place, handler)  # type: ignore[arg-type]  # as getaddrinfo gives it


class _Handler(BaseHTTPRequestHandler):
    """GET alone; says neither which Python this is nor anything on standard error."""

    timeout = _PATIENCE
    server_version, sys_version = "cdc_lake", ""

    def answer(self) -> tuple[HTTPStatus, str, bytes]:
        """What is asked for: status, content type, body."""
        raise NotImplementedError

    def do_GET(self) -> None:
        """See the module."""
        status, kind, body = self.answer()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Nothing: a scrape every few seconds is no news."""
