"""A real server whose tables change: plan, run, allow, compare, on both formats at once."""

from __future__ import annotations

import re
import shlex
import threading
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cdc_lake.comparison.compare import compare
from cdc_lake.config.project import Project
from cdc_lake.control.table_pauses import pause
from cdc_lake.control.verdicts import Verdict
from cdc_lake.errors import DestructiveChange
from cdc_lake.observability.events import silent
from cdc_lake.ops.check.runner import ddl_sql
from cdc_lake.ops.plan import ActionKind, plan
from cdc_lake.ops.report_data import Evidence
from cdc_lake.ops.status import status
from cdc_lake.runtime.apply.applier import apply
from cdc_lake.runtime.resync import resync
from cdc_lake.runtime.run import run
from cdc_lake.tables.control_tables import control_tables
from tests.conftest import Database
from tests.live.test_receive_loop import once
from tests.pipeline_file import make_project

pytestmark = [
    pytest.mark.spark,
    pytest.mark.live,
    # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
]


def project_of(database: Database, root: Path, namespace: str, **sections: Any) -> Project:
    name = database.name[:63].lower()
    source = {
        "type": "postgres",
        "host": database.host,
        "port": database.port,
        "database": database.name,
        "user": database.user,
        "password": database.password,
        "slot": {"name": name},
        "tables": ["public.*"],
        "decoding": {"messages": True},
    }
    silver = {
        "defaults": {"on_drop": "drop", "namespace": namespace},
        "tables": [{"from": "public.ice", "format": "iceberg"}],
    }
    return make_project(root, name, source=source, **{"silver": silver, **sections})


class Shop:
    def __init__(self, spark: Any, database: Database, folder: Path, namespace: str = "live", **sections: Any) -> None:
        self.spark, self.database = spark, database
        self.project = project_of(database, folder, namespace, **sections)
        self.warned: list[object] = []

    def both(self, statement: str) -> None:
        """Run it for both tables."""
        with self.database.connect() as conn:
            for table in ("delta", "ice"):
                conn.execute(statement.replace("@", table))

    def run(self, *allowed: str) -> None:
        run(self.project, once=True, only="receive", stop=threading.Event(), report=silent)
        apply(
            self.project,
            once=True,
            goal=None,
            stop=threading.Event(),
            report=lambda told: self.warned.append(told.facts["operation"]) if told.stage == "warning" else None,
            spark=self.spark,
            allowed=frozenset(allowed),
        )

    def pending(self) -> list[tuple[str, bool]]:
        actions = [a for a in plan(self.project).actions if "column" in a.kind.value or "type" in a.kind.value]
        return [(a.text, a.destructive) for a in actions]

    def equal(self) -> bool:
        found = compare(self.project, [], report=silent)
        return {t.silver: t.verdict for t in found.tables} == {
            "live.delta": Verdict.EQUAL,
            "live.ice": Verdict.EQUAL,
        }


def test_plan_says_what_run_does_and_silver_equals_the_source_after_it(
    spark: Any, database: Database, lake_root: Path
) -> None:
    shop = Shop(spark, database, lake_root)
    shop.both('CREATE TABLE @ (id int PRIMARY KEY, n int, r real, "Or der" text, note text)')
    shop.both("INSERT INTO @ SELECT g, g, g / 10.0, 'o' || g, 'n' FROM generate_series(1, 9) AS g")
    shop.run()
    assert shop.equal()
    shop.both("ALTER TABLE @ ALTER COLUMN n TYPE bigint")
    shop.both("ALTER TABLE @ ADD COLUMN since timestamp DEFAULT now(), ADD COLUMN kind text DEFAULT 'it''s'")
    shop.both("UPDATE @ SET note = 'later' WHERE id = 3")
    assert shop.pending() == [
        (words, False)
        for table in ("live.delta", "live.ice")
        for words in (
            f"change column n of {table} from int to bigint",
            f"add column since timestamp_ntz to {table}",
            f"add column kind string to {table}",
        )
    ]
    shop.run()
    assert shop.pending() == []
    shop.both('ALTER TABLE @ RENAME COLUMN "Or der" TO "Order"')
    shop.both("ALTER TABLE @ DROP COLUMN note, ALTER COLUMN r TYPE double precision")
    shop.both("INSERT INTO @ (id, n, r) VALUES (10, 10, 0.1)")
    with pytest.raises(DestructiveChange):
        shop.run("drop column nota of live.delta")
    assert shop.warned == ["drop column nota of live.delta"]
    wanted = [words for words, destructive in shop.pending() if destructive]
    assert len(wanted) == 4
    shop.run(*wanted)
    assert len(shop.warned) == 1
    assert shop.pending() == []
    with database.admin() as admin:  # from here on the stream tells: by the catalog of then, `was` was never there
        admin.execute(ddl_sql(shop.project))  # type: ignore[arg-type]
    shop.both('ALTER TABLE @ RENAME COLUMN "Order" TO was')
    shop.both("UPDATE @ SET was = 'seen' WHERE id = 4")
    shop.both("ALTER TABLE @ RENAME COLUMN was TO now")
    shop.both("DELETE FROM @ WHERE id = 5")
    steps = (("Order", "was"), ("was", "now"))
    shop.run(*(f"rename column {a} of live.{table} to {b}" for table in ("delta", "ice") for a, b in steps))
    assert len(shop.warned) == 1
    assert shop.equal()


def test_silver_follows_names_that_come_to_mean_other_tables(spark: Any, database: Database, lake_root: Path) -> None:
    """Swapped with another table, renamed, dropped: with changes pending, nobody stops, and what is there is equal."""
    shop = Shop(spark, database, lake_root, "swapped")
    for name in ("@", "@_new", "@_more", "@_gone"):
        shop.both(f"CREATE TABLE {name} (id int PRIMARY KEY, note text); INSERT INTO {name} VALUES (1, '{name}')")
    shop.run()
    shop.both("UPDATE @ SET note = 'pending'; INSERT INTO @_gone VALUES (2, 'its last')")
    shop.both("ALTER TABLE @ RENAME TO @_old; ALTER TABLE @_new RENAME TO @; ALTER TABLE @_more RENAME TO @_renamed")
    shop.both("DROP TABLE @_gone; INSERT INTO @ VALUES (2, 'swapped'); INSERT INTO @_renamed VALUES (2, 'renamed')")
    shop.run()
    shop.both("UPDATE @ SET note = 'later'; UPDATE @_renamed SET note = 'later'; INSERT INTO @_old VALUES (5, 'aside')")
    shop.run()
    standing = {table.table: table.state for table in status(shop.project).tables}
    found = {table.silver: table.verdict for table in compare(shop.project, [], report=silent).tables}
    for name in ("delta", "ice"):
        assert {found[f"swapped.{name}{end}"] for end in ("", "_old", "_renamed")} == {Verdict.EQUAL}, found
        assert {standing[f"swapped.{name}{end}"] for end in ("", "_old", "_renamed")} == {"live"}, standing
        assert {standing[f"swapped.{name}{end}"] for end in ("_new", "_more", "_gone")} == {"left"}, standing
    assert not shop.warned


def test_every_view_says_the_same_of_a_table(spark: Any, database: Database, lake_root: Path, tmp_path: Path) -> None:
    """`status`, `plan`, `compare`, the report, and the metrics, of tables in every state that stays."""
    rule = {"rule": "between", "column": "n", "max": 9, "on_fail": "quarantine"}
    defaults = {"namespace": "states", "on_drop": "drop", "format": "delta"}
    silver = {"defaults": defaults, "tables": [{"from": "public.held", "rules": [rule]}]}
    metrics = tmp_path / "cdc_lake.prom"
    shop = Shop(spark, database, lake_root, silver=silver, observe={"textfile": str(metrics)})
    names = ("live", "held", "broken", "paused", "dropped", "former")
    with database.connect() as conn:
        for name in names:
            conn.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, n int); INSERT INTO {name} VALUES (1, 1)")
    shop.run()
    pause(shop.project, "public.paused")
    with database.connect() as conn:
        conn.execute("ALTER TABLE broken DROP COLUMN n; INSERT INTO broken VALUES (2)")
        conn.execute(
            "INSERT INTO held VALUES (2, 99); INSERT INTO paused VALUES (2, 2); INSERT INTO live VALUES (2, 2)"
        )
        conn.execute("DROP TABLE dropped; ALTER TABLE former RENAME TO latter; INSERT INTO latter VALUES (2, 2)")
    with pytest.raises(DestructiveChange):
        shop.run()

    states = {"live": "live", "held": "quarantined", "broken": "failed", "paused": "paused", "latter": "live"}
    states |= {"dropped": "left", "former": "left"}
    found = status(shop.project)
    assert {table.table.removeprefix("states."): table.state for table in found.tables} == states
    assert {table.table for table in found.tables if table.remedy} == {"states.held", "states.broken"}
    assert all(table.reason for table in found.tables)
    report = Evidence(shop.project, control_tables(shop.project), found).collect()
    assert {table.name.removeprefix("states."): table.state for table in report.tables} == states
    assert {table.name for table in report.tables if table.remedy} == {"states.held", "states.broken"}
    samples = [s for family in text_string_to_metric_families(metrics.read_text()) for s in family.samples]
    shown = [s.labels for s in samples if s.name == "cdc_lake_table_state"]
    measured = {labels["table"]: labels["state"] for labels in shown}
    assert {name.removeprefix("states."): state for name, state in measured.items()} == states
    planned = {(action.kind, action.subject.removeprefix("states.")) for action in plan(shop.project).actions}
    assert {(kind, name) for kind, name in planned if name in states} == {
        (ActionKind.TABLE_PAUSED, "paused"), (ActionKind.DROP_COLUMN, "broken"),
    }  # fmt: skip
    compared = {
        table.silver.removeprefix("states."): table for table in compare(shop.project, [], report=silent).tables
    }
    assert {name: table.verdict for name, table in compared.items()} == {
        "live": Verdict.EQUAL, "latter": Verdict.EQUAL, "paused": Verdict.EQUAL, "held": Verdict.EQUAL_BUT_QUARANTINED,
        "broken": Verdict.INCONCLUSIVE,
    }  # fmt: skip
    assert "`cdc-lake resume public.paused`" in compared["paused"].hint
    assert "LAK410" in compared["broken"].hint + compared["broken"].reason


def test_what_changes_rows_without_a_message_is_found_and_the_copy_that_is_named_mends_it(
    spark: Any, database: Database, lake_root: Path
) -> None:
    """Renamed labels of an enum; rows that go and come with a partition, as by DROP and EXCHANGE PARTITION."""
    shop = Shop(spark, database, lake_root, "unsent")
    ids = "FROM generate_series(1, 9) AS id"
    with database.connect() as conn:
        conn.execute(
            "CREATE TYPE mood AS ENUM ('so so', 'well'); CREATE TABLE delta (id int PRIMARY KEY, m mood, n int)"
        )
        conn.execute("CREATE TABLE ice (id int PRIMARY KEY, note text) PARTITION BY RANGE (id); CREATE SCHEMA aside")
        for place, low, high in (("low", 0, 4), ("middle", 4, 7), ("high", 7, 20)):
            conn.execute(f"CREATE TABLE aside.{place} PARTITION OF ice FOR VALUES FROM ({low}) TO ({high})")
        conn.execute(f"INSERT INTO delta SELECT id, (ARRAY['so so', 'well']::mood[])[id % 2 + 1], 0 {ids}")
        conn.execute(f"INSERT INTO ice SELECT id, 'old' {ids}")
        shop.run()
        conn.execute("ALTER TYPE mood RENAME VALUE 'so so' TO 'unwell'; UPDATE delta SET n = 1 WHERE id = 2")
        conn.execute(
            "ALTER TABLE ice DETACH PARTITION aside.low; DROP TABLE aside.middle; CREATE TABLE aside.fill (LIKE ice)"
        )
        conn.execute("INSERT INTO aside.fill VALUES (1, 'new'), (3, 'old')")
        conn.execute(
            "ALTER TABLE ice ATTACH PARTITION aside.fill FOR VALUES FROM (0) TO (4); UPDATE ice SET note = 'x' WHERE id = 9"
        )
    once(shop.project)
    delta, ice = compare(shop.project, [], report=silent).tables
    assert (delta.verdict, delta.changed, delta.columns) == (Verdict.DIFFERENT, 3, (("m", 3),))
    assert (ice.verdict, ice.missing, ice.extra, ice.changed) == (Verdict.DIFFERENT, 0, 4, 1)
    commands = [shlex.split(re.findall("`cdc-lake (resync [^`]*)`", one.hint)[0]) for one in (delta, ice)]
    assert commands == [["resync", "public.delta"], ["resync", "public.ice"]]
    resync(shop.project, [table for _, table in commands])
    shop.run()
    assert [(one.verdict, one.hint) for one in compare(shop.project, [], report=silent).tables] == [
        (Verdict.EQUAL, "")
    ] * 2
