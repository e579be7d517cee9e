"""`run --once` starts Spark only for something to apply, and finds everything that needs it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from cdc_lake.config.project import Project
from cdc_lake.control.table_pauses import pause, resume
from cdc_lake.errors import OtherWriter
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.runtime.resync import resync
from cdc_lake.runtime.run import RunSummary, run
from cdc_lake.tables.control_tables import control_tables
from tests.conftest import Database
from tests.spark.test_evolution_source import project_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.live,
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
]


class Shop:
    """A pipeline of one Delta and one Iceberg table; what its runs told, and whether they asked for Spark."""

    def __init__(self, spark: Any, database: Database, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.project: Project = project_of(database, root, "idle")
        self.asked = 0

        def started(_: object) -> Any:
            self.asked += 1
            return spark

        monkeypatch.setattr("cdc_lake.tables.spark_session.start", started)
        with database.connect() as conn:
            for name in ("delta", "ice"):
                conn.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, note text); INSERT INTO {name} VALUES (1, 'a')")
        self.database = database

    def run(self) -> tuple[RunSummary, bool]:
        before, told = self.asked, list[ProgressEvent]()
        done = run(self.project, once=True, only=None, stop=threading.Event(), report=told.append)
        return done, self.asked > before

    def sql(self, *statements: str) -> None:
        with self.database.connect() as conn:
            for one in statements:
                conn.execute(one)


def test_spark_is_started_only_for_something_to_apply(
    spark: Any, database: Database, lake_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(spark, database, lake_root, monkeypatch)
    first, started = shop.run()
    assert started
    assert first.apply is not None
    for _ in range(2):
        idle, started = shop.run()
        assert not started
        assert idle.apply is not None
        assert (idle.apply.upto, idle.apply.spans) == (first.apply.upto, 0)
    rows = control_tables(shop.project).read("runs").to_pylist()
    assert [row["outcome"] for row in rows if row["verb"] == "apply"] == ["done"] * 3

    shop.sql("UPDATE ice SET note = 'b'")
    changed, started = shop.run()
    assert started
    assert changed.apply is not None
    assert changed.apply.changes == 1
    assert not shop.run()[1]

    resync(shop.project, ["public.delta"])
    assert shop.run()[1]
    assert not shop.run()[1]

    pause(shop.project, "public.ice")
    assert not shop.run()[1]
    shop.sql("UPDATE ice SET note = 'while it is paused'")
    shop.run()
    _, started = shop.run()
    assert not started, "a table that stays paused needs nothing"
    resume(shop.project, "public.ice")
    assert shop.run()[1]
    assert not shop.run()[1]

    silver = DeltaTable(str(shop.project.silver_path(shop.project.target(TableName("public", "delta")))))
    silver.optimize.compact()
    assert not shop.run()[1], "others may keep a table up"
    silver.delete("id = 1")
    with pytest.raises(OtherWriter):
        shop.run()
