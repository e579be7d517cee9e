"""Tables that are altered while the receiver is away: what waits is allowed in its words, and silver is the source."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.config.project import Project
from cdc_lake.errors import DestructiveChange, NoKey
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import ProgressEvent, silent
from cdc_lake.runtime.apply.applier import apply
from cdc_lake.runtime.resync import resync
from cdc_lake.runtime.run import run
from tests.conftest import Database
from tests.pipeline_file import make_project
from tests.silver_rows import silver_rows

from .formats import either

pytestmark = [
    pytest.mark.spark,
    pytest.mark.live,
    # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
]

MADE = "CREATE TABLE @ (id int PRIMARY KEY, a text, code int NOT NULL)"
KEY = "ALTER TABLE @ DROP CONSTRAINT @_pkey; ALTER TABLE @ ADD PRIMARY KEY (code)"
FULL = "ALTER TABLE @ REPLICA IDENTITY FULL"
SWAP = "ALTER TABLE @ RENAME a TO c; ALTER TABLE @ RENAME b TO a; ALTER TABLE @ RENAME c TO b"
REPLACE = """ALTER TABLE @ ADD a_new text; UPDATE @ SET a_new = 'new ' || id;
ALTER TABLE @ RENAME a TO a_old; ALTER TABLE @ RENAME a_new TO a"""
PARTS = f"""{MADE} PARTITION BY RANGE (id);
CREATE TABLE @_1 PARTITION OF @ FOR VALUES FROM (0) TO (3); CREATE TABLE @_2 PARTITION OF @ DEFAULT"""
LARGE = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 300) AS n)"
CASES: dict[str, tuple[str, list[str]]] = {
    "replaced": (
        MADE,
        [REPLACE, "UPDATE @ SET a_old = 'seen' WHERE id = 1"],
    ),
    "swapped": (
        MADE.replace("a text", "a text, b text"),
        [
            "UPDATE @ SET b = 'b' WHERE id = 1",
            "INSERT INTO @ VALUES (7, 'a', 'b', 7)",
            SWAP,
            "DELETE FROM @ WHERE id = 2",
        ],
    ),
    "defaulted": (
        PARTS,
        [
            "ALTER TABLE @ ADD c int NOT NULL DEFAULT 5; ALTER TABLE @ ALTER c DROP DEFAULT",
            "UPDATE @ SET a = 'x' WHERE id = 1",
        ],
    ),
    "moved_at_once": (
        f"{MADE}; {FULL}",
        [f"UPDATE @ SET code = code + 100, a = 'x'; {KEY}", "UPDATE @ SET a = 'y' WHERE id < 3"],
    ),
    "moved_behind": (f"{MADE}; {FULL}", ["UPDATE @ SET code = code + 1", "DELETE FROM @ WHERE id = 3", KEY]),
    "moved_with_key": (
        MADE,
        [
            "UPDATE @ SET id = id + 10 WHERE id = 1",
            "ALTER TABLE @ DROP CONSTRAINT @_pkey",
            "INSERT INTO @ VALUES (8, 'without', 8)",
            "ALTER TABLE @ ADD PRIMARY KEY (code)",
            "UPDATE @ SET code = code + 100",
            "DELETE FROM @ WHERE id = 4",
        ],
    ),
    "mixed": (  # the root's identity says that old rows are whole, and they are not
        f"{PARTS}; {FULL}; ALTER TABLE @_2 REPLICA IDENTITY FULL",
        [
            f"UPDATE @ SET a = {LARGE} || id",
            "UPDATE @ SET id = -id WHERE id IN (1, 4)",
            "UPDATE @ SET code = -code WHERE id IN (-1, 2, 5)",
            "DELETE FROM @ WHERE id IN (3, -4)",
        ],
    ),
}


ASKED: dict[str, tuple[str, list[str]]] = {
    "another": (
        "CREATE TABLE @ (id int PRIMARY KEY, code int NOT NULL, a text)",
        ["UPDATE @ SET a = 'x' WHERE id = 1", "ALTER TABLE @ DROP a; ALTER TABLE @ ADD a text DEFAULT 'n'"],
    ),
    "unknown": (
        MADE,
        [
            "ALTER TABLE @ ADD c int NOT NULL DEFAULT 5; ALTER TABLE @ ALTER c DROP DEFAULT",
            "VACUUM FULL @",
            "UPDATE @ SET a = 'x' WHERE id = 1",
        ],
    ),
    "inside": (MADE, [f"UPDATE @ SET id = -id WHERE id = 1; {KEY}; UPDATE @ SET code = -code WHERE id = 2"]),
}


def project_of(database: Database, root: Path, fmt: str, cases: Iterable[str] = CASES) -> Project:
    name = database.name[:63].lower()
    source = {**database.source, "slot": {"name": name}, "tables": [f"public.{one}" for one in cases]}
    tables = [{"from": "public.mixed", "where": "code > 0"}] if "mixed" in cases else []
    silver = {"defaults": {"format": fmt, "namespace": name}, "tables": tables}
    return make_project(root, name, source=source, silver=silver)


def receive(project: Project) -> None:
    run(project, once=True, only="receive", stop=threading.Event(), report=silent)


def apply_allowing(project: Project, spark: Any) -> None:
    """Allow what tables wait with, as its hint says, until none waits."""
    allowed: list[str] = []
    for _ in range(4 * len(CASES)):
        try:
            applied(project, spark, allowed)
        except DestructiveChange as waits:
            words = shlex.split(waits.remedy.split("`")[1])
            allowed += [word for option, word in pairwise(words) if option == "--allow"]
        else:
            return
    raise AssertionError(allowed)


def applied(project: Project, spark: Any, allowed: list[str], told: list[str] | None = None) -> None:
    """`told`: takes the codes of what tables wait for."""

    def tell(progress: ProgressEvent) -> None:
        if told is not None and progress.stage == "failed":
            told.append(f"{progress.facts['table']} {progress.facts['code']}".partition(".")[2])

    given = frozenset(allowed)
    apply(project, once=True, goal=None, stop=threading.Event(), report=tell, spark=spark, allowed=given)


@either("iceberg")
def test_silver_is_the_source_however_tables_were_altered_meanwhile(
    spark: Any, database: Database, lake_root: Path, fmt: str
) -> None:
    project = project_of(database, lake_root, fmt)
    with database.connect() as conn:
        for table, (made, _) in CASES.items():
            conn.execute(made.replace("@", table))  # type: ignore[call-overload]
            columns = "id, a, code"
            conn.execute(f"INSERT INTO {table} ({columns}) SELECT n, 'old ' || n, n FROM generate_series(1, 5) AS n")  # type: ignore[call-overload]
        receive(project)
        apply_allowing(project, spark)
        for table, (_, steps) in CASES.items():
            for step in steps:
                conn.execute(step.replace("@", table))  # type: ignore[call-overload]
    receive(project)
    apply_allowing(project, spark)
    assert_equal(project, database, CASES)


@either("delta")
def test_what_nobody_knows_waits_and_a_new_copy_mends_it(
    spark: Any, database: Database, lake_root: Path, fmt: str
) -> None:
    project = project_of(database, lake_root, fmt, ASKED)
    with database.connect() as conn:
        for table, (made, _) in ASKED.items():
            conn.execute(made.replace("@", table))  # type: ignore[call-overload]
            conn.execute(f"INSERT INTO {table} (id, a, code) SELECT n, 'old ' || n, n FROM generate_series(1, 5) AS n")  # type: ignore[call-overload]
        receive(project)
        applied(project, spark, [])
        for table, (_, steps) in ASKED.items():
            for step in steps:
                conn.execute(step.replace("@", table))  # type: ignore[call-overload]
        receive(project)
        told: list[str] = []
        with pytest.raises((DestructiveChange, NoKey)):
            applied(project, spark, [], told)
        assert sorted(told) == ["another LAK410", "inside STA610", "unknown LAK410"]
        resync(project, [f"public.{table}" for table in ASKED])
        for table in ASKED:
            conn.execute(f"DELETE FROM {table} WHERE code = 4")  # type: ignore[call-overload]
        receive(project)
        applied(project, spark, [])
    assert_equal(project, database, ASKED)


def assert_equal(project: Project, database: Database, tables: Iterable[str]) -> None:
    with database.connect() as conn:
        for table in tables:
            cursor = conn.execute(f"SELECT * FROM {table} WHERE {'code > 0' if table == 'mixed' else 'true'}")  # type: ignore[call-overload]
            names = [one.name for one in cursor.description or ()]
            theirs = sorted(tuple("" if v is None else str(v) for v in row) for row in cursor)
            rows = silver_rows(project, project.target(TableName("public", table)))
            ours = sorted(tuple("" if row[one] in (None, "None") else str(row[one]) for one in names) for row in rows)
            assert ours == theirs, table
