"""A lake whose tables are all in an object store: nothing of it is on this machine but what a run needs while it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.config.loader import load_project
from cdc_lake.model.relation import TableName
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake_testing.object_store import LocalStore
from tests.conftest import Database
from tests.pipeline_file import pipeline_file

pytestmark = [pytest.mark.spark, pytest.mark.live]

LAKE = """\
lake:
  path: s3://lake/shop
  storage:
    endpoint: {endpoint}
    region: us-east-1
    access_key_id: kit
    secret_access_key: kit-secret
    allow_http: true
  iceberg:
    uri: postgresql://{user}@{host}:{port}/{name}
    properties: {{password: x}}
silver:
  tables:
    - {{from: public.loans, format: iceberg}}
    - {{from: public.books, rules: [{{rule: not_null, column: title, on_fail: quarantine}}]}}
"""


@pytest.fixture
def store() -> Iterator[LocalStore]:
    with LocalStore() as running:
        running.bucket("lake")
        yield running


def cdc_lake(file: Path, *words: str) -> Any:
    """The JSON of a command that runs in a process of its own."""
    command = [sys.executable, "-m", "cdc_lake.cli.app", *words, "--json"]
    done = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, check=False, env={**os.environ})
    assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


def test_a_lake_in_a_store_equals_its_source(database: Database, tmp_path: Path, store: LocalStore) -> None:
    file = pipeline_file(database, tmp_path)
    more = LAKE.format(
        endpoint=store.endpoint, **{k: database.source[k] for k in ("user", "host", "port")}, name=database.name
    )
    more = more.replace(f"{database.source['user']}@", f"{database.source['user']}:{database.password}@").replace(
        "    properties: {password: x}\n", ""
    )
    file.write_text(file.read_text() + more)
    with database.connect() as conn:
        conn.execute("CREATE TABLE books (id int PRIMARY KEY, title text)")
        conn.execute("CREATE TABLE loans (id int PRIMARY KEY, book int, note text)")
        conn.execute("INSERT INTO books SELECT g, 'book ' || g FROM generate_series(1, 100) AS g")
        conn.execute("INSERT INTO loans SELECT g, g, 'note' FROM generate_series(1, 100) AS g")
    cdc_lake(file, "run", "--once")
    with database.connect() as conn:
        for number in range(3):
            conn.execute("UPDATE books SET title = title || '!' WHERE id % 3 = %s", [number])
            conn.execute("DELETE FROM loans WHERE id = %s", [number + 1])
            conn.execute("INSERT INTO loans VALUES (%s, 1, 'new')", [number + 1000])
    cdc_lake(file, "run", "--once")
    compared = cdc_lake(file, "compare")
    print(compared)
    project = load_project(file)
    for name in ("books", "loans"):
        log = table_log(project, project.target(TableName("public", name)))
        assert log.count_rows() == 100
        assert log.is_readable(log.version() or 0)
    left = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert not left & {".parquet", ".avro", ".crc"}, left
