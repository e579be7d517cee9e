"""A story of verbs on a server: each works once, and the forms of its output are all of what it did then."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.ops.findings import CheckLine
from cdc_lake_testing.beside import beside
from tests.conftest import Database
from tests.golden_commands import Once, Shell
from tests.pipeline_file import pipeline_file

SILVER = """\
silver:
  defaults: {namespace: golden, on_drop: drop}
  tables:
    - from: public.orders
      rules:
        - {rule: between, column: amount, min: 0, max: 100, on_fail: quarantine}
"""
THIS_MACHINE = (
    CheckLine(ok=True, subject="java", text="Java 17 (from PATH)"),
    CheckLine(
        ok=None,
        subject="jars",
        text="not downloaded yet: sqlite-jdbc",
        fix="the first start downloads them",
        code="LAK403",
    ),
)
SCRUBBED = (
    (r"\b[0-9A-F]{1,8}/[0-9A-F]{1,8}\b", "POSITION"),
    (r"\bpg:\d+:", "pg:SYSTEM:"),
    (r"\b\d+(\.\d)? (B|KiB|MiB|GiB)\b", "<size>"),
    (r"\b(decoded +)\d+ transactions?\b", r"\1<some> transactions"),  # servers count them when they get round to it
    (r'"(run|content|hash)": "[0-9a-f]{8,}"', r'"\1": "<digest>"'),
    (r'"(upto|position|confirm|xid|keepalives|\w+_bytes|\w+_transactions)": \d+', r'"\1": 0'),
    (r'"(catalog_xmin|catalog_age|unconfirmed)": \d+', r'"\1": 0'),
    (r"\btransaction \d+, [\d,]+ transactions? ago", "transaction <xid>"),
    (r'"(bytes|seconds)": (null|[\d.]+)', r'"\1": 0'),
    (r"(?m)^(received|landed|applied) +[P-].*", r"\1  <lag>"),
    (r"\b\d+ keepalives?\b", "<keepalives>"),
    (r"(?m)^( +)\d{6,}$", r"\g<1>0"),  # a position in a list
    (r"\bPostgreSQL \d+", "PostgreSQL <major>"),
    (r"\b\d+ of \d+ in use", "<some> in use"),
    (r"(?<=\S) {2,}(?=\S)", "  "),  # columns are as wide as what was scrubbed …
    (r"\n {10,}(?=[A-Za-z])", " "),  # … and lines are broken where it was
)


@dataclass(frozen=True)
class Step:
    """A verb, its exit code, and what happens before it: statements at the source, another command. `work`: what the
    verb does, done once; `meanwhile`: a statement that is committed again and again until it has.
    """

    arguments: list[str]
    work: str
    code: int = 0
    before: Sequence[str] = ()
    first: Sequence[str] = ()
    meanwhile: str = ""


def project(database: Database, folder: Path) -> Path:
    """A project on two tables, one of whose rows breaks a rule."""
    folder.mkdir(parents=True)
    pipeline_file(database, folder, SILVER, pipeline="golden")
    with database.connect() as db:
        db.execute("CREATE TABLE orders (id int PRIMARY KEY, amount int, note text)")
        db.execute("CREATE TABLE customers (id int PRIMARY KEY, name text)")
        db.execute("INSERT INTO orders VALUES (1, 10, 'a'), (2, 20, 'b'), (3, 900, 'far too much')")
        db.execute("INSERT INTO customers VALUES (1, 'Ann'), (2, 'Bob')")
        db.execute("ANALYZE")
    return folder


def play(
    story: Mapping[str, Step], database: Database, folder: Path, monkeypatch: pytest.MonkeyPatch, **given: Any
) -> None:
    """Do one step after the other; each prints what is kept of it. `given`: for what takes it, as `spark`."""
    monkeypatch.setattr(import_module("cdc_lake.ops.check.runner"), "machine", lambda _, **_more: THIS_MACHINE)
    own = ((database.name, "shopdb"), (f"{database.host}:{database.port}", "HOST:PORT"))
    shell = Shell(folder, monkeypatch, scrubbed=(*own, *SCRUBBED))
    for case, step in story.items():
        with database.connect() as db:
            for statement in step.before:
                db.execute(statement.encode())
        if step.first:
            shell([*step.first], 0)
        module, _, name = step.work.rpartition(".")
        found = import_module(f"cdc_lake.{module}")
        with monkeypatch.context() as patch, beside(partial(_again_and_again, database, step.meanwhile)):
            patch.setattr(found, name, Once(getattr(found, name), **given))
            shell.prints_what_is_kept(case, step.arguments, step.code)
        _unread(database)


def _again_and_again(database: Database, statement: str, over: threading.Event) -> None:
    with database.connect() as db:
        while statement and not over.wait(0.02):
            db.execute(statement.encode())


def _unread(database: Database) -> None:
    """The server has noticed that nobody reads the slot any more."""
    with database.admin() as db:
        db.execute(
            "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots"
            " WHERE active AND database = current_database()"
        )
