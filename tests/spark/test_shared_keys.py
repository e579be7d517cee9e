"""Two rows of one key inside transactions of a real server, by a deferrable primary key and by NULL in a table's own
`keys`: whichever of the two goes, silver has the other one.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc_lake.comparison.compare import compare
from cdc_lake.config.project import Project
from cdc_lake.control.verdicts import Verdict
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.applier import apply
from cdc_lake.runtime.run import run
from tests.conftest import Database
from tests.pipeline_file import make_project
from tests.seeds import one_seed

from .formats import drawn

pytestmark = [
    pytest.mark.spark,
    pytest.mark.live,
    # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
]

TABLES = """
CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, n int, note text, large text);
CREATE TABLE nullable (id int, n int, note text, large text);
CREATE TABLE versions (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, n int, note text, large text);
"""
NAMES = ("deferred", "nullable", "versions")
KEYS = (None, 1, 2)
"""The last ones are those of a table that cannot have NULL."""


def advance(project: Project, spark: Any) -> None:
    run(project, once=True, only="receive", stop=threading.Event(), report=silent)
    apply(project, once=True, goal=None, stop=threading.Event(), report=silent, spark=spark)


def value(dice: random.Random) -> tuple[int | None, str | None, str]:
    """Few of them, so that two rows of a key are alike now and then; the last one is not sent where it stays."""
    return dice.choice((None, 1)), dice.choice((None, "a")), dice.choice("xy") * 9000


def shared(conn: psycopg.Connection[Any], name: str, dice: random.Random) -> None:
    """A transaction in which a second row comes to a key, the two are changed, and one goes or gets another key."""
    key, free = dice.choice(KEYS if name == "nullable" else KEYS[1:]), dice.randrange(100, 1_000_000)
    with conn.transaction():
        places = [
            row[0] for row in conn.execute(f"SELECT ctid::text FROM {name} WHERE id IS NOT DISTINCT FROM %s", [key])
        ]
        for _ in range(dice.choice((1, 1, 2))):
            came = conn.execute(f"INSERT INTO {name} VALUES (%s, %s, %s, %s) RETURNING ctid::text", [key, *value(dice)])
            places.append(came.fetchone()[0])
        for _ in range(dice.randrange(4)):
            at, (n, note, _) = dice.randrange(len(places)), value(dice)
            changed = conn.execute(
                f"UPDATE {name} SET n = %s, note = %s WHERE ctid = %s::tid RETURNING ctid::text", [n, note, places[at]]
            )
            places[at] = changed.fetchone()[0]
        dice.shuffle(places)
        for place in places[1:]:
            goes = f"UPDATE {name} SET id = {free}" if dice.random() < 0.3 else f"DELETE FROM {name}"
            conn.execute(f"{goes} WHERE ctid = %s::tid", [place])
            free += 1


@drawn
def test_whichever_of_two_rows_of_a_key_goes_silver_has_the_other(
    spark: Any, database: Database, lake_root: Path, fmt: str
) -> None:
    dice = random.Random(seed := one_seed())
    print(f"CDC_LAKE_SEED={seed}")
    source = {**database.source, "slot": {"name": database.name}, "tables": ["public.*"]}
    tables = [{"from": "public.nullable", "keys": ["id"]}, {"from": "public.versions", "kind": "history"}]
    silver = {"defaults": {"namespace": f"shared_{fmt}", "format": fmt}, "tables": tables}
    project = make_project(lake_root, f"shared_{fmt}", source=source, silver=silver)
    with database.connect() as conn:
        conn.execute(TABLES)
        for name in NAMES:
            conn.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
            conn.execute(f"ALTER TABLE {name} ALTER large SET STORAGE EXTERNAL")
            conn.execute(f"INSERT INTO {name} VALUES (1, 1, 'a', repeat('x', 9000))")
        run(project, once=True, only="receive", stop=threading.Event(), report=silent)
        for _ in range(2):
            for _ in range(20):
                for name in NAMES:
                    shared(conn, name, dice)
            advance(project, spark)
            found = compare(project, [], report=silent).tables
            assert {one.table: (one.verdict, one.quarantined_keys) for one in found} == {
                f"public.{name}": (Verdict.EQUAL, 0) for name in NAMES
            }
