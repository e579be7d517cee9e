"""Connecting: from a target to an open session, on the host that is the primary where several are given."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from cdc_lake.errors import ServerUnreachable
from cdc_lake.source.ending import Opened, nobody
from cdc_lake.source.primary import find_primary, find_standby
from cdc_lake.source.silence import probes
from cdc_lake.source.wire.channel import Channel
from cdc_lake.source.wire.session import WireSession
from cdc_lake.source.wire.target import WireTarget
from cdc_lake.source.wire.tls import encrypted


def connect(
    target: WireTarget, *, application: str = "cdc_lake", replication: bool = False, told: Opened = nobody
) -> WireSession:
    """Open a session; with `replication` a replication connection, at the HA port. The caller closes it. `told`: of
    each connection before anything is asked on it, also of those to other hosts.

    Where several hosts are given, the one that is no standby; the session's own target names that one alone.
    Raises the SourceError that fits; with several hosts its message says of each why not. SeveralPrimaries.
    """
    hosts = _hosts(target, application, replication, told)
    return hosts[0][1]() if len(hosts) == 1 else find_primary(hosts, _in_recovery, None if target.alike else _started)


def connect_to_standby(target: WireTarget, *, application: str) -> WireSession:
    """A replication connection to the first host that is a standby. Raises StandbyNeeded, or what `connect` does."""
    return find_standby(_hosts(target, application, replication=True), _in_recovery)


def _hosts(
    target: WireTarget, application: str, replication: bool, told: Opened = nobody
) -> list[tuple[str, Callable[[], WireSession]]]:
    """The place of each host, and what opens a session there."""
    hosts: list[tuple[str, Callable[[], WireSession]]] = []
    for service, (host, port) in zip(target.hosts, target.ports(replication=replication), strict=True):
        alone = replace(target, hosts=(service,))
        dial = partial(_open, alone, host, port, application=application, replication=replication, told=told)
        hosts.append((target.place(host, port), dial))
    return hosts


def _in_recovery(session: WireSession) -> bool:
    return session.query("SELECT pg_is_in_recovery()", doing="asking for the server's role").rows != (("f",),)


def _started(session: WireSession) -> object:
    return session.query("SELECT pg_postmaster_start_time()", doing="asking when the server was started").rows


def _open(
    target: WireTarget, host: str, port: int, *, application: str, replication: bool, told: Opened
) -> WireSession:
    place = target.place(host, port)
    deadline = time.monotonic() + target.connect_timeout
    sock = _dial(host, port, target.connect_timeout, place)
    try:
        told(sock.fileno())
        if not host.startswith("/"):
            _probed(sock, target.silence)
        sock = encrypted(sock, target.tls, host, place)
        session = WireSession(Channel(sock, place, deadline), target)
        session.start(application=application, replication=replication)
    except BaseException:
        with contextlib.suppress(OSError):
            sock.close()
        raise
    return session


def _dial(host: str, port: int, timeout: float, place: str) -> socket.socket:
    try:
        if host.startswith("/"):
            return _dial_unix(f"{host}/.s.PGSQL.{port}", timeout)
        return socket.create_connection((host, port), timeout)
    except TimeoutError as late:
        raise ServerUnreachable(f"no connection within {timeout:g} s", where=place) from late
    except (OSError, UnicodeError) as refused:  # UnicodeError: a host name that cannot be one
        why = getattr(refused, "strerror", None) or refused
        raise ServerUnreachable(f"no connection: {why}", where=place) from refused


def _probed(sock: socket.socket, silence: float) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in probes(silence).items():
        if hasattr(socket, name):  # not every system names them alike
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _dial_unix(path: str, timeout: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(timeout)
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    return sock
