"""The embedded server itself: everything else stands on it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
import pytest

from cdc_lake.config.source import PostgresSource
from cdc_lake.errors import ServerUnreachable
from cdc_lake.source.postgres.connection import connect
from cdc_lake.source.socket_io import ConnectionRegistry
from cdc_lake_testing.server import EmbeddedServer
from tests.conftest import Database, start_server

pytestmark = pytest.mark.live


def test_the_fixture_gives_a_fresh_database_with_logical_decoding(database: Database) -> None:
    with database.connect() as conn:
        assert conn.execute("SHOW wal_level").fetchone() == ("logical",)
        assert conn.execute("SELECT rolreplication FROM pg_roles WHERE rolname = current_user").fetchone() == (True,)
        assert conn.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)


def test_a_wrong_password_is_refused(database: Database) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(database.server.dsn(database.name, database.user, "wrong"))


def test_a_killed_server_starts_again_on_its_port_with_its_data() -> None:
    server = start_server(version=16)
    try:
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            assert conn.info.server_version // 10000 == 16
            conn.execute("CREATE TABLE kept AS SELECT 1 AS one")
        port = server.port
        server.kill()
        assert not server.running
        server.start()
        assert server.port == port
        with psycopg.connect(server.dsn()) as conn:
            assert conn.execute("SELECT one FROM kept").fetchone() == (1,)
    finally:
        server.remove()


def test_the_command_starts_a_server_that_outlives_it() -> None:
    folder = Path(tempfile.mkdtemp(prefix="cdc_test_")) / "deep" / "server"
    command = [sys.executable, "-m", "cdc_lake_testing.server"]
    try:
        said = subprocess.run([*command, "start", folder], capture_output=True, text=True, check=True).stdout
        assert "PGPORT=" in said
        again = subprocess.run([*command, "status", folder], capture_output=True, text=True, check=True).stdout
        assert again == said
        with psycopg.connect(EmbeddedServer(folder).dsn()) as conn:
            assert conn.execute("SELECT 1").fetchone() == (1,)
        subprocess.run([*command, "stop", folder], check=True)
        assert subprocess.run([*command, "status", folder], check=False).returncode == 3
    finally:
        EmbeddedServer(folder).remove()
        shutil.rmtree(folder.parents[1])


def test_connections_are_told_of_before_anything_is_asked_on_them(database: Database) -> None:
    address = f"{database.source['host']}:{database.source['port']}"
    given = {name: value for name, value in database.source.items() if name not in {"host", "port"}}
    source, ending = PostgresSource(**given, hosts=[address] * 2), ConnectionRegistry()
    ending.end()
    with pytest.raises(ServerUnreachable):
        connect(source, Path("/"), on_open=ending.add)
    ending.forget()
