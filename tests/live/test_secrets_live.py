"""No secret in what a command shows while a real server refuses it, and none in what a whole run leaves behind."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
import yaml
from psycopg import sql

from tests.canary import CANARY, Told, leaks
from tests.conftest import Database
from tests.tally import tally

pytestmark = pytest.mark.live

VERBS = (
    ["check"], ["check", "--sql"], ["plan"], ["status"], ["compare"], ["run", "--once", "--only", "receive"],
    ["inspect", "chain", "--against", "source"], ["record", "--seconds", "0.1", "pipelines/shop.yaml", "r"],
)  # fmt: skip
FAULTS = {
    "a wrong password": {},
    "a database that is not there": {"database": "nowhere"},
    "no TLS on the server": {"tls": {"mode": "require"}},
    "certificates that are none": {"tls": {"mode": "verify-full", "root_cert": "secret.pem"}},
    "a host that is none": {"host": "nowhere.invalid"},
    "a role without the right": {"user": "plain"},
}


@pytest.fixture
def secret(database: Database) -> None:
    """The role `plain` has the secret for its password."""
    with database.admin() as admin:
        admin.execute("DROP ROLE IF EXISTS plain")
        admin.execute(sql.SQL("CREATE ROLE plain LOGIN PASSWORD {}").format(sql.Literal(CANARY)))
        admin.execute("CREATE TABLE t (id int PRIMARY KEY)")


@pytest.mark.usefixtures("secret")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_refuses_shows_no_secret(told: Told, database: Database, fault: str, tmp_path: Path) -> None:
    (tmp_path / "password").write_text(CANARY)
    (tmp_path / "secret.pem").write_text(CANARY)
    source = {**database.source, "password": "${file:password}", "connect_timeout": "2 s", **FAULTS[fault]}
    text = yaml.safe_dump({"version": 1, "pipeline": "shop", "source": source})
    failed = 0
    for arguments in VERBS:
        code, said = told(text, "--json", "--debug", *arguments)
        assert CANARY not in said, (arguments, said)
        failed += code != 0
    assert failed >= 5
    (tmp_path / "password").unlink()
    (tmp_path / "secret.pem").unlink()
    assert leaks(tmp_path, [CANARY]) == []
    tally("R20", {fault}, paths=failed)


def test_a_whole_run_leaves_no_secret_behind(told: Told, database: Database, tmp_path: Path) -> None:
    with psycopg.connect(database.server.dsn(database.name), autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS canary")
        role = sql.SQL("CREATE ROLE canary LOGIN REPLICATION SUPERUSER PASSWORD {}")
        admin.execute(role.format(sql.Literal(CANARY)))
        admin.execute("CREATE TABLE t (id int PRIMARY KEY)")
        admin.execute("INSERT INTO t VALUES (1)")
    source = {**database.source, "user": "canary", "password": CANARY}
    text = yaml.safe_dump({"version": 1, "pipeline": "shop", "source": source, "lake": {"path": "lake"}})
    for arguments in (["run", "--once", "--only", "receive"], ["status"], ["report"], ["inspect", "chain"], ["check"]):
        code, said = told(text, "--debug", "-v", *arguments)
        assert CANARY not in said, (arguments, said)
        assert code == 0 or arguments == ["check"], said
    (tmp_path / "pipelines" / "shop.yaml").unlink()
    assert leaks(tmp_path, [CANARY]) == []
    with psycopg.connect(database.server.dsn(database.name), autocommit=True) as admin:
        admin.execute("DROP OWNED BY canary")
        admin.execute("DROP ROLE canary")
