"""The canary: distinctive values in redacted columns of a live PostgreSQL, on every way into the lake and out of it.

Received, applied by Spark, held by a rule, compared, reported, recorded: then every file is unpacked and searched.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.comparison.compare import compare
from cdc_lake.config.project import Project
from cdc_lake.control.verdicts import Verdict
from cdc_lake.devtools.replay import Limits, record
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.ops.html_pages import report
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.tables.open_silver_table import table_log
from tests.canary import leaks
from tests.conftest import Database
from tests.live.test_receive_loop import once, project_of
from tests.live.test_redaction_live import BRONZE, CANARY, KEY, NUMBERS, RULES, begin, canary, change, hashed
from tests.log_lines import logged

pytestmark = [pytest.mark.spark, pytest.mark.live]

RULE = {"rule": "not_null", "column": "note", "on_fail": "quarantine"}


def test_no_file_and_no_output_holds_a_canary(
    spark: Any, lake_root: Path, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[ProgressEvent] = []
    silver = {
        "defaults": {"namespace": database.name},
        "tables": [
            {"from": "public.users", "rules": [RULE]},
            {"from": "public.logins", "keys": ["email"], "format": "iceberg"},
        ],
    }
    project = project_of(database, lake_root, bronze=BRONZE, silver=silver)

    def go_on(project: Project = project) -> set[str]:
        once(project, told.append)
        with SpanLoop(project, spark, told.append) as one:
            one.run(None, threading.Event())
            return set(one.totals.failed)

    with database.connect() as conn:
        begin(conn)
        conn.execute("CREATE TABLE nobody (id int PRIMARY KEY, email text)")
        assert go_on() == set(), "also a table without rows has its first content"
        change(conn)
        conn.execute("CREATE TABLE late (id int PRIMARY KEY, email text, ssn text)")
        conn.execute(f"ALTER PUBLICATION {project.publication} ADD TABLE late")
        conn.execute("INSERT INTO late VALUES (1, %s, %s)", [canary("late"), canary("late")])
        conn.execute("INSERT INTO users VALUES (7, %s, %s, %s, NULL)", [canary("held")] * 3)
        conn.execute("SELECT pg_logical_emit_message(true, %s, %s)", [canary("prefix"), canary("content")])
        assert go_on() == set()
        found = compare(project, (), told.append)
        verdicts = {table.table: table.verdict for table in found.tables}
        conn.execute("UPDATE logins SET email = %s", [canary("unknown to silver")])
        compared = compare(project, ("logins",), told.append)
        recorded(project, conn, lake_root / "canary.rec")
    reported = report(project)

    assert leaks(lake_root, [CANARY, KEY, *NUMBERS]) == []
    output = capsys.readouterr()
    assert CANARY not in output.out + output.err + repr(told) + logged(told) + repr(found) + repr(compared) + repr(
        reported
    )
    assert verify(bronze_reader(project)).holds
    assert verdicts == {
        "public.codes": Verdict.EQUAL,
        "public.late": Verdict.EQUAL,
        "public.logins": Verdict.EQUAL,
        "public.nobody": Verdict.EQUAL,
        "public.users": Verdict.EQUAL_BUT_QUARANTINED,
        "public.whole": Verdict.EQUAL,
    }
    logins = table_log(project, project.target(TableName("public", "logins"))).read(None)
    assert logins.select(["email", "body", "at"]).to_pylist() == [
        {"email": hashed(canary("moved")), "body": None, "at": 1}
    ]
    users = table_log(project, project.target(TableName("public", "users"))).read(None)
    assert "ssn" not in users.column_names

    rules = [*RULES, {"columns": ["public.late.id"], "strategy": "sha256"}]
    changed = project_of(database, lake_root, bronze={**BRONZE, "redact": rules}, silver=silver)
    with database.connect() as conn:
        conn.execute("UPDATE late SET ssn = 'other'; UPDATE whole SET ssn = 'other', email = 'new@example.com'")
    assert go_on(changed) == {f"{database.name}.late"}, "its rows would be there twice, under both kinds of key"
    whole = table_log(project, project.target(TableName("public", "whole"))).read(None)
    assert whole["email"].to_pylist() == [hashed("new@example.com")]


def recorded(project: Any, conn: Any, file: Path) -> None:
    """A redacted recording of a canary on its way."""
    stop = threading.Event()
    writing = threading.Thread(
        target=record,
        args=(project, file, Limits(transactions=1, seconds=120)),
        kwargs={"redact": True, "stop": stop, "report": lambda _: None},
    )
    writing.start()
    while writing.is_alive():
        conn.execute("UPDATE whole SET email = %s", [canary("recorded")])
        writing.join(0.1)
