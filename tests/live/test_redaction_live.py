"""Redaction against live servers: what is redacted is in no file, and everything else is as it would be without."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.connectors.base import all_rows
from cdc_lake.connectors.factory import compare_source
from cdc_lake.connectors.redaction import RedactedComparison, redaction_of
from cdc_lake.control.snapshots import courses
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.errors import RedactionUnfit
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.ops.check.runner import check
from cdc_lake.ops.plan import plan
from cdc_lake.tables.control_tables import ControlTables, control_tables
from tests.bronze_replay import bronze_rows
from tests.canary import leaks
from tests.conftest import Database
from tests.live.test_gaussdb_receive import project_of as family_project
from tests.live.test_gaussdb_workload import Kind, StandIn, stand_in
from tests.live.test_receive_loop import once, project_of

pytestmark = pytest.mark.live

__all__ = ["stand_in"]

KEY = "a key of more than 16 bytes"
CANARY = "kanari3n"
NUMBERS = ("31415926", "27182818", "16180339", "14142135")
RULES: list[dict[str, Any]] = [
    {"columns": ["public.*.email", "public.codes.code"], "strategy": "sha256"},
    {"columns": ["public.*.ssn"], "strategy": "drop"},
    {"columns": ["public.*.body"], "strategy": "null"},
]
BRONZE: dict[str, Any] = {"redact": RULES, "redact_key": KEY}


def canary(what: str, size: int = 0) -> str:
    """A text that is found again; with a size, one that TOAST keeps outside of its row, uncompressed."""
    text = f"{CANARY}-{what}"
    return text + "".join(hashlib.md5(f"{what}{at}".encode()).hexdigest() for at in range(size // 32))


def hashed(text: str) -> str:
    return hmac.new(KEY.encode(), text.encode(), hashlib.sha256).hexdigest()


def begin(conn: psycopg.Connection) -> None:
    conn.execute("CREATE TABLE users (id int PRIMARY KEY, email text, ssn text, body text, note text)")
    conn.execute("ALTER TABLE users ALTER body SET STORAGE EXTERNAL, ALTER email SET STORAGE EXTERNAL")
    conn.execute("CREATE TABLE logins (email text PRIMARY KEY, body text, at int)")
    conn.execute("CREATE TABLE whole (id int PRIMARY KEY, email text, ssn text, body text)")
    conn.execute("ALTER TABLE whole REPLICA IDENTITY FULL")
    conn.execute("CREATE TABLE codes (code int PRIMARY KEY, ssn int, at int)")
    conn.execute("INSERT INTO codes VALUES (31415926, 27182818, 1), (16180339, NULL, 2)")
    for number in (1, 2):
        what = canary(f"copy{number}")
        conn.execute("INSERT INTO users VALUES (%s, %s, %s, %s, 'plain')", [number, what, what, canary("copy", 6000)])
        conn.execute("INSERT INTO logins VALUES (%s, %s, 1)", [what, what])
        conn.execute("INSERT INTO whole VALUES (%s, %s, %s, %s)", [number, what, what, what])


def change(conn: psycopg.Connection) -> None:
    conn.execute(
        "INSERT INTO users VALUES (3, %s, %s, %s, 'plain')", [canary("big", 6000), canary("in"), canary("b", 6000)]
    )
    conn.execute("UPDATE users SET note = 'touched'")  # what TOAST keeps is not sent
    conn.execute("UPDATE users SET email = %s, ssn = NULL WHERE id = 2", [canary("new")])
    conn.execute("DELETE FROM users WHERE id = 1")
    conn.execute("UPDATE logins SET email = %s WHERE email = %s", [canary("moved"), canary("copy1")])
    conn.execute("DELETE FROM logins WHERE email = %s", [canary("copy2")])
    conn.execute("UPDATE whole SET email = %s, body = %s WHERE id = 1", [canary("full"), canary("full")])
    conn.execute("DELETE FROM whole WHERE id = 2")
    conn.execute("UPDATE codes SET code = 14142135 WHERE code = 31415926")


def values(project: Project, table: str) -> list[tuple[str, list[str | None] | None, list[str | None] | None]]:
    return [(r["op"], r["new"], r["old"]) for r in bronze_rows(project) if r["relation"] == table and r["op"] in "IUDS"]


def test_no_file_holds_what_is_redacted(database: Database, tmp_path: Path) -> None:
    project = project_of(database, tmp_path, bronze=BRONZE)
    told: list[ProgressEvent] = []
    with database.connect() as conn:
        begin(conn)
        once(project, told.append)
        change(conn)
        conn.execute("ALTER TABLE whole ADD COLUMN ssn2 text, DROP COLUMN ssn")
        conn.execute("ALTER TABLE whole RENAME COLUMN ssn2 TO ssn")  # a column of a rule that comes later
        conn.execute("INSERT INTO whole VALUES (9, %s, %s, %s)", [canary("x"), canary("y"), canary("later")])
        conn.execute("CREATE TABLE late (id int PRIMARY KEY, email text, ssn text)")
        conn.execute(f"ALTER PUBLICATION {project.publication} ADD TABLE late")
        conn.execute("INSERT INTO late VALUES (1, %s, %s)", [canary("late"), canary("late")])
        conn.execute("SELECT pg_logical_emit_message(true, %s, %s)", [canary("prefix"), canary("content")])
        once(project, told.append)
    assert leaks(tmp_path, [CANARY, KEY, *NUMBERS]) == []
    assert CANARY not in repr(told)
    assert KEY not in repr(told) + repr(project) + project.pipeline.model_dump_json()

    assert verify(bronze_reader(project)).holds
    users = values(project, "public.users")
    assert users[0] == ("S", ["1", hashed(canary("copy1")), None, "plain"], None)
    assert ("I", ["3", hashed(canary("big", 6000)), None, "plain"], None) in users
    untouched = [
        r for r in bronze_rows(project) if r["op"] == "U" and r["relation"] == "public.users" and r["unchanged"]
    ]
    assert [(r["new"], r["unchanged"]) for r in untouched] == [(["3", None, None, "touched"], [1])]
    moved = ("U", [hashed(canary("moved")), None, "1"], [hashed(canary("copy1")), None, None])
    assert moved in values(project, "public.logins")
    assert values(project, "public.whole")[-1] == ("I", ["9", hashed(canary("x")), None], None)
    # it came to the publication: its change, and then its copy
    assert values(project, "public.late") == [(op, ["1", hashed(canary("late"))], None) for op in "IS"]
    state = bronze_reader(project).state()
    assert state is not None
    late = courses(control_tables(project).snapshots(), state.stream)["public.late"].copy_at(state.upto)
    assert late is not None
    assert late.layout in bronze_reader(project).layouts([late.relation]), "it is the layout that landed"


def test_layouts_say_what_was_done_to_which_column(database: Database, tmp_path: Path) -> None:
    project = project_of(database, tmp_path, bronze=BRONZE)
    with database.connect() as conn:
        begin(conn)
        once(project)
    layouts = {str(r.table): r for r in bronze_reader(project).layouts().values()}
    columns = [replace(column, number=None) for column in layouts["public.users"].columns]
    assert [column.describe() for column in columns] == [
        {"name": "id", "type": "int4", "oid": 23, "modifier": -1, "key": True},
        {"name": "email", "type": "text", "oid": 25, "modifier": -1, "key": False, "redacted": "sha256"},
        {"name": "body", "type": "text", "oid": 25, "modifier": -1, "key": False, "redacted": "null"},
        {"name": "note", "type": "text", "oid": 25, "modifier": -1, "key": False},
    ]


@pytest.mark.parametrize(
    "rule",
    [
        {"columns": ["public.users.id"], "strategy": "drop"},
        {"columns": ["public.users.emial"], "strategy": "drop"},
        {"columns": ["public.*.id"], "strategy": "null"},
    ],
)
def test_rules_that_do_not_fit_the_tables_stop_before_anything_is_made(
    database: Database, tmp_path: Path, rule: dict[str, Any]
) -> None:
    project = project_of(database, tmp_path, bronze={"redact": [rule]})
    with database.connect() as conn:
        begin(conn)
    assert [line.ok for line in check(project) if line.subject == "redaction"] == [False]
    with pytest.raises(RedactionUnfit):
        once(project)
    assert not project.bronze.exists()
    with database.admin() as admin:
        assert admin.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)


def test_another_configuration_has_the_next_number(database: Database, tmp_path: Path) -> None:
    def run(**bronze: Any) -> list[int]:
        project = project_of(database, tmp_path, bronze=bronze)
        with database.connect() as conn:
            conn.execute("UPDATE users SET note = note || '.'")
        told: list[ProgressEvent] = []
        once(project, told.append)
        rows = DeltaTable(str(project.bronze)).to_pyarrow_table(columns=["op", "position", "info"])
        commits = rows.filter(pc.equal(rows["op"], "C")).sort_by("position")["info"].to_pylist()
        return [json.loads(info)["configuration"] for info in commits]

    with database.connect() as conn:
        begin(conn)
    assert run() == []
    assert run() == [1]
    assert run(**BRONZE) == [1, 2]
    assert run(**BRONZE) == [1, 2, 2]
    assert run(redact=RULES, redact_key=KEY + ".") == [1, 2, 2, 3]
    rows = ControlTables(tmp_path / "lake" / "control" / database.name).read("configurations").sort_by("number")
    assert rows["number"].to_pylist() == [1, 2, 3]
    assert [json.loads(text)["key"] is None for text in rows["settings"].to_pylist()] == [True, False, False]
    assert len(set(rows["fingerprint"].to_pylist())) == 3
    first, second, third = (json.loads(text) for text in rows["changed"].to_pylist())
    assert first == []
    assert {"public.users.email", "public.users.ssn", "public.whole.body"} <= set(second)
    assert third == ["public.codes.code", "public.logins.email", "public.users.email", "public.whole.email"]
    assert leaks(tmp_path, [KEY]) == []
    assert leaks(tmp_path, [CANARY]), "what was landed before is found, so what is not found is not there"


def test_the_plan_says_which_columns_change_by_a_new_rule(database: Database, tmp_path: Path) -> None:
    project = project_of(database, tmp_path, bronze=BRONZE)
    with database.connect() as conn:
        begin(conn)
    assert plan(project).changes


@pytest.mark.parametrize("kind", [Kind(Style.BINARY, batch=True), Kind(Style.SERIAL)], ids=lambda kind: kind.slot)
def test_no_file_of_a_family_stream_holds_what_is_redacted(stand_in: StandIn, kind: Kind, tmp_path: Path) -> None:
    project = family_project(stand_in, kind, tmp_path, bronze=BRONZE)
    told: list[ProgressEvent] = []
    with stand_in.database.connect() as conn:
        begin(conn)
        once(project, told.append)
        change(conn)
        once(project, told.append)
        # the first changes of a connection: their layouts are those that bronze has
        conn.execute("DELETE FROM logins; DELETE FROM codes WHERE at = 2")
        once(project, told.append)
    assert leaks(tmp_path, [CANARY, KEY, *NUMBERS]) == []
    assert CANARY not in repr(told)
    assert verify(bronze_reader(project)).holds
    users = values(project, "public.users")
    assert users[0] == ("S", ["1", hashed(canary("copy1")), None, "plain"], None)
    assert ("D", None, [hashed(canary("moved")), None, None]) in values(project, "public.logins")
    assert values(project, "public.codes")[-1] == ("D", None, [hashed("16180339"), None])
    layouts = {(str(r.table), r.names) for r in bronze_reader(project).layouts().values()}
    assert {names for name, names in layouts if name == "public.codes"} == {("code", "at")}
    state = bronze_reader(project).state()
    assert state is not None
    with compare_source(project, state) as opened:
        side = RedactedComparison(opened, redaction_of(project))
        (codes,) = (one for one in side.captured_tables() if one.table.name == "codes")
        with side.snapshot([codes.table]):
            rows = all_rows(side, side.relation_of(codes), codes)
    assert rows.to_pylist() == [{"code": hashed("14142135"), "at": "1"}]
