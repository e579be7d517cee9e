"""What a publication leaves out or changes: silver is the part of the tables that it carries, by copy and by stream."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc_lake.comparison.compare import compare
from cdc_lake.config.project import Project
from cdc_lake.control.verdicts import Verdict
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.applier import apply
from cdc_lake.runtime.run import run
from tests.conftest import Database
from tests.pipeline_file import make_project
from tests.silver_rows import silver_rows

pytestmark = [
    pytest.mark.spark,
    pytest.mark.live,
    # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
]

TABLES = """
CREATE TABLE listed (secret text, id int PRIMARY KEY, a text, b int);
CREATE TABLE chosen (id int PRIMARY KEY, n int); ALTER TABLE chosen REPLICA IDENTITY FULL;
CREATE TABLE parts (id int, region text, note text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE parts_north PARTITION OF parts FOR VALUES IN ('n') PARTITION BY RANGE (id);
CREATE TABLE parts_north_low PARTITION OF parts_north FOR VALUES FROM (0) TO (10);
CREATE TABLE parts_north_high PARTITION OF parts_north DEFAULT;
CREATE TABLE parts_others (note text, region text NOT NULL, id int NOT NULL);
ALTER TABLE parts ATTACH PARTITION parts_others DEFAULT;
CREATE TABLE made (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (2 * id) STORED, note text,
  thrice int GENERATED ALWAYS AS (3 * id) VIRTUAL);
INSERT INTO listed SELECT 'secret', n, 'copied', n FROM generate_series(1, 9) AS n;
INSERT INTO chosen SELECT n, n FROM generate_series(1, 20) AS n;
INSERT INTO parts SELECT n, CASE WHEN n % 2 = 0 THEN 'n' ELSE 's' END, 'copied' FROM generate_series(1, 20) AS n;
INSERT INTO made (id, note) SELECT n, 'copied' FROM generate_series(1, 9) AS n;
"""
CHANGES = """
INSERT INTO listed VALUES ('secret', 10, 'new', 10); UPDATE listed SET a = 'changed', secret = 's' WHERE id < 4;
UPDATE listed SET id = -id WHERE id = 5; DELETE FROM listed WHERE id = 6;
INSERT INTO chosen VALUES (30, 3), (31, 30); UPDATE chosen SET n = n + 8 WHERE id BETWEEN 1 AND 5;
UPDATE chosen SET n = 1 WHERE id = 15; DELETE FROM chosen WHERE id IN (6, 16); UPDATE chosen SET id = -id WHERE id = 7;
INSERT INTO parts VALUES (40, 'n', 'new'), (41, 'x', 'new'); UPDATE parts SET region = 'n' WHERE id IN (1, 11);
UPDATE parts SET id = id + 100 WHERE id = 4; UPDATE parts SET note = 'changed' WHERE id = 2; DELETE FROM parts WHERE id = 6;
ALTER TABLE parts_north DETACH PARTITION parts_north_high; ALTER TABLE parts_north ATTACH PARTITION parts_north_high DEFAULT;
UPDATE parts SET note = 'behind it' WHERE id = 18;
INSERT INTO made (id, note) VALUES (10, 'new'); UPDATE made SET id = 20 WHERE id = 2; UPDATE made SET note = 'x' WHERE id = 3;
DELETE FROM made WHERE id = 4;
"""
CARRIED = {
    "listed": "SELECT id, a, b FROM listed",
    "chosen": "SELECT id, n FROM chosen WHERE n < 10",
    "parts": "SELECT id, region, note FROM parts",
    "made": "SELECT id, twice, note FROM made",
}


def project_of(database: Database, root: Path) -> Project:
    source = {**database.source, "publication": "published", "slot": {"name": database.name}}
    tables = [f"public.{name}" for name in CARRIED]
    silver = {"defaults": {"namespace": "published"}}
    return make_project(root, "published", source={**source, "tables": tables}, silver=silver)


def receive(project: Project) -> None:
    run(project, once=True, only="receive", stop=threading.Event(), report=silent)


def published(conn: psycopg.Connection[Any]) -> None:
    """Column lists and filters came with PostgreSQL 15, published generated columns with 18."""
    conn.execute(TABLES)
    conn.execute(
        "CREATE PUBLICATION published FOR TABLE listed (id, a, b), chosen WHERE (n < 10), parts, made "
        "WITH (publish_via_partition_root = true, publish_generated_columns = stored)"
    )


def test_silver_is_the_part_that_the_publication_carries(spark: Any, database: Database, lake_root: Path) -> None:
    project = project_of(database, lake_root)
    with database.connect() as conn:
        published(conn)
        receive(project)
        for statement in filter(None, map(str.strip, CHANGES.split(";"))):
            conn.execute(statement)  # type: ignore[call-overload]
    receive(project)
    apply(project, once=True, goal=None, stop=threading.Event(), report=silent, spark=spark)
    with database.connect() as conn:
        for name, query in CARRIED.items():
            found = silver_rows(project, project.target(TableName("public", name)))
            theirs = [tuple(map(str, row)) for row in conn.execute(query)]  # type: ignore[call-overload]
            columns = [one.name for one in conn.execute(query).description or ()]  # type: ignore[call-overload]
            assert sorted(tuple(row[one] for one in columns) for row in found) == sorted(theirs), name
            assert {len(row) for row in found} == {len(columns)}, name
    assert {one.verdict for one in compare(project, [], report=silent).tables} == {Verdict.EQUAL}
