"""Free ports for servers that are started on this machine."""

from __future__ import annotations

import secrets
import socket

_FIRST, _LAST = 20_000, 32_000
"""Below the ports that operating systems give outgoing connections: one of those may be taken before it is bound."""


def free_port(host: str = "127.0.0.1", run: int = 1) -> int:
    """A port that nobody listens at, the first of `run` neighbours. Raises RuntimeError where none is found."""
    for _ in range(1000):
        port = _FIRST + secrets.randbelow(_LAST - _FIRST)
        if all(is_free(host, one) for one in range(port, port + run)):
            return port
    msg = f"no free port of {host} from {_FIRST} to {_LAST}"
    raise RuntimeError(msg)


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen at the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
