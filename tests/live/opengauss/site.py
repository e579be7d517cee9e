"""Where the suite runs: a real server that CDC_LAKE_OPENGAUSS names, or the kit's stand-in before a PostgreSQL.

    CDC_LAKE_OPENGAUSS="host=127.0.0.1 port=5432 replication_port=5433 user=cdc password=…" pytest tests/live/opengauss

`replication_port` is the HA port (default: port + 1). The role must make databases and may replicate: a system
administrator, or CREATEDB with REPLICATION. `compatibility` (PG, A, B, C; default PG) is that of the database the suite
makes for itself, `database` (default `postgres`) the one it connects to for making it. The server needs
`wal_level = logical`, ten free replication slots and WAL senders. CDC_LAKE_OPENGAUSS=stand-in runs the same tests
without a real server.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from cdc_lake.errors import SlotActive, SourceError
from cdc_lake.source.gaussdb.server import GaussDbServerFacts, identify
from cdc_lake.source.gaussdb.slot import drop_slot
from cdc_lake.source.gaussdb.wire.protocol import WireTarget, WireTls
from cdc_lake.source.gaussdb.wire.session import WireSession, connect
from cdc_lake.source.sql_text import identifier, literal
from cdc_lake_testing.gaussdb.answers import LiveAnswers
from cdc_lake_testing.gaussdb.authentication import Method
from cdc_lake_testing.gaussdb.live import LivePostgres
from cdc_lake_testing.gaussdb.server import GaussServer
from tests.conftest import Database

VARIABLE: Final = "CDC_LAKE_OPENGAUSS"
STAND_IN: Final = "stand-in"
HOW: Final = f'set {VARIABLE}="host=… port=… replication_port=… user=… password=…" to run this on a real server'
_PATIENCE: Final = 75.0  # seconds a server may need to notice that a receiver is gone


@dataclass(frozen=True)
class Site:
    """A server, and the database on it that the suite may do anything in. `real`: it is no stand-in."""

    address: WireTarget
    real: bool
    compatibility: str = "PG"

    def sql(self, **changes: Any) -> WireSession:
        """An ordinary session; `changes` to the target."""
        return connect(replace(self.address, **changes))

    def replication(self, **changes: Any) -> WireSession:
        """A replication connection."""
        return connect(replace(self.address, **changes), replication=True)

    def facts(self) -> GaussDbServerFacts:
        """Who the server is."""
        with self.replication() as session:
            return identify(session)

    def source(self) -> dict[str, Any]:
        """The `source` section of a pipeline here, without tables."""
        ((host, port),) = self.address.hosts
        return {
            "type": "opengauss",
            "host": host,
            "port": port,
            "replication_port": self.address.ports(replication=True)[0][1],
            "database": self.address.database,
            "user": self.address.user,
            "password": self.address.password,
            "tls": {"mode": self.address.tls.mode},
        }

    def without_slot(self, name: str) -> None:
        """Drop a slot, as soon as the server lets it go; no harm where there is none."""
        deadline = time.monotonic() + _PATIENCE
        with self.sql() as session:
            while session.query(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = {literal(name)}").rows:
                try:
                    drop_slot(session, name)
                except SlotActive:
                    assert time.monotonic() < deadline, f"slot {name} stays active"
                    time.sleep(0.2)


def given() -> str:
    """What CDC_LAKE_OPENGAUSS says; empty where it is not set."""
    return os.environ.get(VARIABLE, "")


@contextmanager
def real_site(text: str) -> Iterator[Site]:
    """A database of its own on a server that `text` names; dropped at the end."""
    words = dict(word.split("=", 1) for word in shlex.split(text))
    known = {"host", "port", "replication_port", "user", "password", "compatibility", "database"}
    assert words.keys() <= known, f"{VARIABLE} takes {sorted(known)}"
    port = int(words.get("port", "5432"))
    address = WireTarget(
        ((words.get("host", "127.0.0.1"), port),),
        words.get("database", "postgres"),
        words["user"],
        words.get("password"),
        int(words.get("replication_port", port + 1)),
        WireTls("prefer"),
    )
    compatibility = words.get("compatibility", "PG")
    name = f"cdc_lake_live_{secrets.token_hex(4)}"
    made = f"TEMPLATE template0 ENCODING 'UTF8' DBCOMPATIBILITY {literal(compatibility)}"
    with connect(address) as session:
        session.query(f"CREATE DATABASE {identifier(name)} WITH {made}", doing="making a database")
    site = Site(replace(address, database=name), real=True, compatibility=compatibility)
    try:
        yield site
    finally:
        _drop_database(address, name)


def _drop_database(address: WireTarget, name: str) -> None:
    with connect(address) as session:
        slots = session.query(f"SELECT slot_name FROM pg_replication_slots WHERE database = {literal(name)}").rows
        for (slot,) in slots:
            with contextlib.suppress(SlotActive):
                drop_slot(session, slot or "")
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                session.query(f"DROP DATABASE {identifier(name)}", doing="dropping the database")
            except SourceError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
            else:
                return


@contextmanager
def stand_in_site(database: Database) -> Iterator[Site]:
    """The stand-in of a server in front of a fresh database."""
    password = "Gauss@123"
    with LivePostgres(database.server.dsn(database.name), inversions=0.3, foreign=0.2) as live:
        answers = LiveAnswers(live, database.dsn)
        users = {database.user: password}
        with GaussServer(
            live.ledger,
            databases=[database.name],
            users=users,
            method=Method.SHA256,
            answers=answers,
            thread_pool=True,
        ) as server:
            hosts = ((server.host, server.port),)
            tls = WireTls("disable")
            address = WireTarget(hosts, database.name, database.user, password, server.replication_port, tls)
            yield Site(address, real=False)
