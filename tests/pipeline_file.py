"""Pipelines of tests: the file of a test's database, as people write one, and projects that need no server."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from cdc_lake.config.loader import load_project
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake_testing.object_store import ACCESS_KEY, SECRET_KEY, LocalStore
from tests.conftest import Database

FILE = """\
version: 1
pipeline: {pipeline}

source:
  type: postgres
  host: {database.host}
  port: {database.port}
  database: {database.name}
  user: {database.user}
  password: ${{file:password.txt}}
  slot: {{name: {database.name}}}
  tables: ["public.*"]

{more}"""


@cache
def running_store() -> LocalStore:
    """The store of this process."""
    store = LocalStore()
    store.bucket("lake")
    return store


def lake_section(root: Path) -> dict[str, Any]:
    """Section `lake` of a pipeline in this folder: in an object store if CDC_LAKE_TEST_LAKE is `s3`, otherwise nothing."""
    if os.environ.get("CDC_LAKE_TEST_LAKE") != "s3":
        return {}
    storage = {
        "endpoint": running_store().endpoint, "region": "us-east-1", "allow_http": True,
        "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY,
    }  # fmt: skip
    folder = "-".join(root.parts[-2:])
    return {
        "lake": {"path": f"s3://lake/{folder}", "storage": storage, "iceberg": {"uri": f"sqlite:///{root}/catalog.db"}}
    }


def make_project(root: Path, name: str = "shop", **sections: Any) -> Project:
    """A project of which nothing is on disk, on a PostgreSQL that nobody asks."""
    source = {"type": "postgres", "host": "h", "database": "d", "user": "u", "tables": ["public.*"]}
    values = {"version": 1, "pipeline": name, "source": source, **lake_section(root), **sections}
    root.mkdir(parents=True, exist_ok=True)
    return Project(Pipeline.model_validate(values), root / "shop.yaml", root)


def pipeline_file(
    database: Database, folder: Path, more: str = "", *, pipeline: str = "shop", password: str | None = None
) -> Path:
    """`shop.yaml` in this folder, on all tables of `public`, the password in a file beside it; `more`: its last sections."""
    secret, file = folder / "password.txt", folder / "shop.yaml"
    secret.write_text(password or database.password)
    secret.chmod(0o600)
    file.write_text(FILE.format(pipeline=pipeline, database=database, more=more))
    return file


def with_orders(database: Database, folder: Path) -> Project:
    """A project on a table `orders` of a hundred rows."""
    with database.connect() as conn:
        conn.execute("CREATE TABLE orders (id int PRIMARY KEY, amount numeric(10,2))")
        conn.execute("INSERT INTO orders SELECT g, g FROM generate_series(1, 100) AS g")
    return load_project(pipeline_file(database, folder))
