"""Encrypted connections to a real PostgreSQL, and how libpq finds a password: by its own rules."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from pydantic import SecretStr

from cdc_lake.config.source import PostgresSource, PostgresTls
from cdc_lake.errors import AuthenticationRefused, SourceError, TlsRefused
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.source.postgres.connection import connect
from cdc_lake_testing.beside import streams, until
from cdc_lake_testing.server import EmbeddedServer
from tests.certificates import make_authority
from tests.conftest import CDC_PASSWORD, Database, make_database, make_role
from tests.live.test_receive_loop import assert_equal_to_source, bronze_rows, once, project_of, running
from tests.postgres_with_test_decoding import start_decoding_server
from tests.source_losses import lived_through

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def encrypted(authority: Path) -> Iterator[Database]:
    """A server that speaks TLS (the wheel's cannot) and knows the role `client` by its certificate alone."""
    server = start_decoding_server()
    try:
        make_role(server)
        database = make_database(server)
        with psycopg.connect(server.dsn(database.name), autocommit=True) as admin:
            admin.execute("CREATE ROLE client LOGIN REPLICATION IN ROLE cdc")
            admin.execute("CREATE ROLE old LOGIN REPLICATION; SET password_encryption = md5")
            admin.execute(sql.SQL("ALTER ROLE old PASSWORD {}").format(sql.Literal(CDC_PASSWORD)))
        server.stop()
        _encrypt(server, authority)
        server.start()
        yield database
    finally:
        server.remove()


def _encrypt(server: EmbeddedServer, authority: Path) -> None:
    owner = server.data.stat()
    for name in ("server.pem", "server.key", "ca.pem"):
        file = server.data / name
        shutil.copyfile(authority / name, file)
        os.chown(file, owner.st_uid, owner.st_gid)
        file.chmod(0o600)
    with (server.data / "postgresql.conf").open("a") as conf:
        conf.write("ssl = on\nssl_cert_file = 'server.pem'\nssl_key_file = 'server.key'\nssl_ca_file = 'ca.pem'\n")
    rules = server.data / "pg_hba.conf"
    ours = "hostssl all client 127.0.0.1/32 cert\nhostssl all old 127.0.0.1/32 md5\n"
    rules.write_text(ours + rules.read_text())


def source(database: Database, authority: Path, mode: str, root: str | None = None, **changed: Any) -> PostgresSource:
    """As the role `cdc`; `changed`: `cert` and `key` by name, `channel_binding`, and what else a source has."""
    tls = {name: changed.pop(name) for name in ("cert", "key", "channel_binding") if name in changed}
    files = {name: authority / value if name != "channel_binding" else value for name, value in tls.items()}
    given = PostgresTls(mode=mode, root_cert=None if root is None else authority / root, **files)  # type: ignore[arg-type]
    document = {**database.source, "host": "localhost", **changed, "tls": given}
    return PostgresSource.model_validate({k: v for k, v in document.items() if v is not None})


def is_encrypted(where: PostgresSource) -> bool:
    """Both kinds of connection are made, and alike."""
    connect(where, Path("/"), replication=True).close()
    with connect(where, Path("/")) as session:
        row = session.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone()
    assert row is not None
    return bool(row[0])


@pytest.mark.parametrize(
    ("mode", "root", "host", "expected"),
    [
        ("disable", None, "127.0.0.1", False),
        ("prefer", None, "127.0.0.1", True),
        ("require", None, "127.0.0.1", True),
        ("require", "ca.pem", "127.0.0.1", True),
        ("verify-ca", "ca.pem", "127.0.0.1", True),
        ("verify-full", "ca.pem", "localhost", True),
    ],
)
def test_a_mode_encrypts_as_it_says(
    encrypted: Database, authority: Path, mode: str, root: str | None, host: str, expected: bool
) -> None:
    assert is_encrypted(source(encrypted, authority, mode, root, host=host)) is expected


@pytest.mark.parametrize(
    ("mode", "root", "host"),
    [
        ("verify-full", "ca.pem", "127.0.0.1"),  # the certificate is for localhost
        ("verify-full", "other.pem", "localhost"),
        ("verify-ca", "other.pem", "127.0.0.1"),
        ("require", "other.pem", "127.0.0.1"),  # as libpq has it: a root that is given is looked at
        ("verify-full", "absent.pem", "localhost"),
    ],
)
def test_a_server_that_cannot_prove_who_it_is_gets_no_password(
    encrypted: Database, authority: Path, mode: str, root: str, host: str
) -> None:
    with pytest.raises(TlsRefused):
        connect(source(encrypted, authority, mode, root, host=host), Path("/"))


def test_a_pipeline_runs_by_its_certificate_alone(encrypted: Database, authority: Path, tmp_path: Path) -> None:
    with encrypted.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    for name in ("ca.pem", "client.pem", "client.key"):
        shutil.copyfile(authority / name, tmp_path / name)
    (tmp_path / "client.key").chmod(0o600)
    tls = {"mode": "verify-full", "root_cert": "ca.pem", "cert": "client.pem", "key": "client.key"}
    by_certificate = {"host": "localhost", "user": "client", "password": None, "tls": tls}
    project = project_of(encrypted, tmp_path, source=by_certificate)
    once(project)
    with encrypted.connect() as conn:
        conn.execute("INSERT INTO t VALUES (2)")
        assert once(project).transactions == 1
        assert_equal_to_source(project, encrypted)
        conn.execute("SELECT pg_drop_replication_slot(%s)", [project.slot])


def test_a_server_that_another_authority_vouches_for_ends_the_run(
    encrypted: Database, authority: Path, tmp_path: Path
) -> None:
    """As after a change of certificates that the receiver's own file did not follow."""
    with encrypted.connect() as conn:
        conn.execute("CREATE TABLE moved (id int PRIMARY KEY)")
    shutil.copyfile(authority / "ca.pem", tmp_path / "trusted.pem")
    trusting = {"host": "localhost", "tls": {"mode": "verify-full", "root_cert": "trusted.pem"}}
    project = project_of(
        encrypted, tmp_path, source={**trusting, "tables": ["public.moved"], "slot": {"name": "moved"}}
    )
    told: list[ProgressEvent] = []
    try:
        with pytest.raises(TlsRefused) as caught, running(project, told) as receiver:  # noqa: PT012 - what it lives through
            until(lambda: streams(told), "it streams")
            shutil.copyfile(authority / "other.pem", tmp_path / "trusted.pem")
            with encrypted.admin() as admin:
                admin.execute("INSERT INTO moved VALUES (1)")
                admin.execute("SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots")
            receiver.exception(timeout=120)
            receiver.result()
        lived_through("wrong authority", tmp_path, told, caught.value)
        shutil.copyfile(authority / "ca.pem", tmp_path / "trusted.pem")
        once(project)
        assert [row["new"] for row in bronze_rows(project) if row["op"] == "I"] == [["1"]]
    finally:
        with encrypted.admin() as admin:
            admin.execute("SELECT pg_drop_replication_slot('moved'); DROP TABLE moved")


def test_who_shows_no_certificate_or_leaves_its_key_open_is_refused(
    encrypted: Database, authority: Path, tmp_path: Path
) -> None:
    nobody = source(encrypted, authority, "require", user="client", password=None)
    with pytest.raises(TlsRefused, match="certificate"):
        connect(nobody, Path("/"))
    key = tmp_path / "client.key"
    shutil.copyfile(authority / "client.key", key)
    key.chmod(0o644)
    careless = source(encrypted, authority, "require", user="client", password=None, cert="client.pem", key=key)
    with pytest.raises(TlsRefused, match="private key file"):
        connect(careless, Path("/"))


def test_a_password_is_bound_to_the_connection_where_that_is_asked_for(encrypted: Database, authority: Path) -> None:
    assert is_encrypted(source(encrypted, authority, "require", channel_binding="require"))
    for mode, user in (("disable", encrypted.user), ("require", "old")):
        with pytest.raises(TlsRefused, match="channel binding"):
            connect(source(encrypted, authority, mode, user=user, channel_binding="require"), Path("/"))
    assert is_encrypted(source(encrypted, authority, "require", user="old"))


# ── passwords that the pipeline file does not have ───────────────────────────────────────────────────────────────


@pytest.fixture
def unaided(database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PostgresSource:
    """A source without a password, for a user whose home has nothing of libpq."""
    for name in ("PGPASSWORD", "PGPASSFILE", "PGSERVICE", "PGSERVICEFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = PostgresSource.model_validate({k: v for k, v in database.source.items() if k != "password"})
    with pytest.raises(AuthenticationRefused):
        connect(found, Path("/"))
    return found


def test_a_password_of_pgpass_is_found_and_only_where_nobody_else_reads_it(
    unaided: PostgresSource, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "pgpass"
    file.write_text(f"127.0.0.1:{unaided.port}:{unaided.database}:{unaided.user}:{CDC_PASSWORD}\n")
    monkeypatch.setenv("PGPASSFILE", str(file))
    file.chmod(0o644)
    with pytest.raises(AuthenticationRefused):
        connect(unaided, Path("/"))
    file.chmod(0o600)
    connect(unaided, Path("/")).close()
    file.write_text(f"*:*:*:{unaided.user}:{CDC_PASSWORD}\n")  # a replication connection names a database too
    connect(unaided, Path("/"), replication=True).close()


def test_a_service_gives_what_the_pipeline_file_does_not(
    unaided: PostgresSource, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "services.conf"
    file.write_text(f"[library]\npassword={CDC_PASSWORD}\ndbname=elsewhere\nuser=somebody\n")
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    by_service = unaided.model_copy(update={"service": "library"})
    with connect(by_service, Path("/")) as session:
        assert session.info.dbname == unaided.database, "what the pipeline file says counts"
    with pytest.raises(AuthenticationRefused, match="definition of service"):
        connect(unaided.model_copy(update={"service": "absent"}), Path("/"))


def test_names_with_blanks_and_quotes_are_names_and_no_options(database: Database) -> None:
    odd = "odd 'role' \\ host=elsewhere sslmode=disable"
    with database.admin() as admin:
        name = sql.Identifier(odd)
        words = sql.Literal(CDC_PASSWORD)
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN REPLICATION PASSWORD {}").format(name, words))
        admin.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(name, name))
        try:
            here = PostgresSource.model_validate({**database.source, "user": odd, "database": odd})
            for replication in (False, True):
                with connect(here, Path("/"), application="it's a name", replication=replication) as session:
                    assert (session.info.user, session.info.dbname) == (odd, odd)
            with pytest.raises(SourceError) as refused:
                connect(here.model_copy(update={"password": SecretStr("not it' host=x")}), Path("/"))
            assert "not it" not in refused.value.message
        finally:
            admin.execute(sql.SQL("DROP DATABASE {}").format(name))
            admin.execute(sql.SQL("DROP ROLE {}").format(name))
