"""A test server for GaussDB, openGauss or MogDB: two ports, slots that survive, and streams of its ledger.

It implements the protocol of the family's servers and was verified against streams recorded from three of them. It has
one thread per listener and connection. Use it as a context manager::

    with GaussServer(ledger, version="6.0.2", users={"cdc": "Secret@123"}, method=Method.SHA256) as server:
        connect(server.host, server.port, server.replication_port)
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import socket
import ssl
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

from cdc_lake_testing.gaussdb.authentication import Credentials, Method
from cdc_lake_testing.gaussdb.batches import encode
from cdc_lake_testing.gaussdb.dialect import Product, Version
from cdc_lake_testing.gaussdb.encode import Print
from cdc_lake_testing.gaussdb.faults import Faults
from cdc_lake_testing.gaussdb.ledger import Ledger, LedgerTransaction
from cdc_lake_testing.gaussdb.options import Pairs, parse_options
from cdc_lake_testing.gaussdb.recorded import on_the_wire
from cdc_lake_testing.gaussdb.scripted import ScriptedAnswers
from cdc_lake_testing.gaussdb.session import Access, Connection
from cdc_lake_testing.gaussdb.shape import Plugin, View
from cdc_lake_testing.gaussdb.sql import Exported, SqlAnswers
from cdc_lake_testing.gaussdb.state import ServerState
from cdc_lake_testing.gaussdb.wire import Channel
from cdc_lake_testing.ports import free_port

HOST = "127.0.0.1"


class GaussServer:
    """The server; see the module. `state` holds its facts, slots and timings, which may be changed at any time.

    `users`: passwords (or Credentials) by user. `method`: the line of pg_hba.conf for every connection,
    `replication_method` the one for replication. `thread_pool`: replication is refused on `port` and everything else
    on `replication_port`; without it both ports take both. `tls`: certificate and key files. `faults` strike every
    stream for which none were injected. Ports are free ones unless given.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        version: Version = "6.0.2",
        product: Product = "openGauss",
        users: Mapping[str, str | Credentials] | None = None,
        method: Method = Method.TRUST,
        replication_method: Method | None = None,
        databases: Iterable[str] | None = None,
        strangers: Iterable[str] = (),
        answers: SqlAnswers | None = None,
        thread_pool: bool = False,
        faults: Faults | None = None,
        tls: tuple[Path, Path] | None = None,
        encoding: str = "UTF8",
        compatibility: str = "PG",
        port: int = 0,
        replication_port: int = 0,
    ) -> None:
        self.ledger = ledger
        self.state = ServerState(ledger, version, product, encoding, compatibility, thread_pool=thread_pool)
        self.answers: SqlAnswers = ScriptedAnswers() if answers is None else answers
        self._access = Access(
            users={name: u if isinstance(u, Credentials) else Credentials(u) for name, u in (users or {}).items()},
            method=method,
            replication_method=replication_method,
            databases=None if databases is None else frozenset(databases),
            strangers=frozenset(strangers),
            tls=None if tls is None else _tls(*tls),
        )
        self._faults = faults or Faults()
        self._injected: collections.deque[Faults] = collections.deque()
        self._ports = [port, replication_port]
        self._listeners: list[socket.socket] = []
        self._connections: set[Connection] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._pids = itertools.count(1_001)
        self._stopping = threading.Event()
        self._released = threading.Event()
        self.host = HOST

    @property
    def port(self) -> int:
        """The service port."""
        return self._ports[0]

    @property
    def replication_port(self) -> int:
        """The HA port."""
        return self._ports[1]

    def start(self) -> Self:
        """Listen on both ports."""
        self._stopping = threading.Event()
        for at, port in enumerate(self._ports):
            self._ports[at] = port or free_port(HOST)
            listener = socket.create_server((HOST, self._ports[at]), backlog=64, reuse_port=False)
            self._listeners.append(listener)
            self._thread(self._listen, listener, at == 1, self._stopping)
        return self

    def stop(self) -> None:
        """Close the ports and every connection; slots and ledger stay."""
        self._stopping.set()
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._listeners.clear()
        self.disconnect()
        self.ledger.wake()
        for thread in self._threads:
            thread.join(10)
        self._threads.clear()

    def restart(self) -> None:
        """Stop and start on the same ports: slots keep what was confirmed, everything else is sent again."""
        self.stop()
        self.state.slots.checkpoint()
        self.start()

    def crash(self) -> None:
        """Restart without a checkpoint: what was confirmed since the last one is forgotten, and sent again."""
        self.stop()
        self.state.slots.crash()
        self.start()

    def standby(self, *, following: bool = False) -> Self:
        """A standby that received everything up to now, slots as they are included, and nothing from then on.

        With `following` it goes on receiving, without a delay. On ports of its own, not started. `promote` makes a
        primary of one that does not follow.
        """
        mine = self.state
        other = type(self)(
            self.ledger if following else self.ledger.copy(),
            version=mine.version,
            product=mine.product,
            answers=self.answers,
            thread_pool=mine.thread_pool,
            encoding=mine.encoding,
            compatibility=mine.compatibility,
        )
        other._access = self._access  # noqa: SLF001  # one of its own kind
        other.state.system, other.state.timeline, other.state.in_recovery = mine.system, mine.timeline, True
        if following:
            other.state.slots = mine.slots
            return other
        for slot, _ in mine.slots.all():
            other.state.slots.create(slot)
        return other

    def promote(self, *, timeline: int | None = None) -> None:
        """End recovery; the open source stays on the timeline it is on."""
        self.state.in_recovery = False
        self.state.timeline = timeline or self.state.timeline

    def disconnect(self) -> None:
        """Close every connection."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.channel.close()

    def inject(self, *faults: Faults) -> None:
        """Faults of the next streams, one each."""
        self._injected.extend(faults)

    def release(self) -> None:
        """Let the transactions go that `Faults.hold_last` keeps back, in every stream from now on."""
        self._released.set()

    def play(self, slot: str, bodies: Iterable[bytes], *, database: str = "postgres") -> None:
        """Make a slot whose streams send these CopyData bodies as they are: a recording's, keepalives included."""
        point = Exported("", self.ledger.next_csn, self.ledger.end_lsn)
        self.state.create_slot(slot, "mppdb_decoding", database, point)
        self.state.recordings[slot] = on_the_wire(bodies)

    def prepare(
        self,
        transactions: Iterable[LedgerTransaction],
        options: Pairs,
        *,
        database: str = "postgres",
        plugin: Plugin = "mppdb_decoding",
    ) -> int:
        """Append transactions, encoded now for streams with exactly these options, and keep their bytes only.

        For benchmarks: other streams see these transactions as empty. Gives the number of bytes.
        """
        view = View(database, plugin, parse_options(options, self.state.dialect), self.state.dialect)
        how = Print(view.options.style, self.state.codec, plugin, view.dialect.label, view.dialect.upper_commit)
        held = self.state.prepared.setdefault(view, {})
        size = 0
        for transaction in transactions:
            encoded = encode(transaction, view, how)
            index = self.ledger.append(replace(transaction, changes=()))
            if encoded is not None:
                held[index] = encoded
                size += len(encoded.data)
        return size

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _thread(self, target: object, *args: object) -> None:
        assert callable(target)
        thread = threading.Thread(target=target, args=args, daemon=True, name="gauss-server")
        self._threads.append(thread)
        thread.start()

    def _listen(self, listener: socket.socket, ha_port: bool, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            connection = Connection(
                self.state,
                self._access,
                self.answers,
                Channel(accepted),
                ha_port=ha_port,
                faults=self._next_faults,
                released=self._released,
                stopping=stopping,
                pid=next(self._pids),
            )
            with self._lock:
                self._connections.add(connection)
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._thread(self._serve, connection)

    def _serve(self, connection: Connection) -> None:
        try:
            connection.run()
        finally:
            with self._lock:
                self._connections.discard(connection)

    def _next_faults(self) -> Faults:
        try:
            return self._injected.popleft()
        except IndexError:
            return self._faults


def _tls(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
