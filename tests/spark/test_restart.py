"""A pipeline whose slot is lost begins a new stream: silver is the source's, and a table that keeps a past keeps it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.comparison.compare import compare
from cdc_lake.config.project import Target
from cdc_lake.control.cuts import table_states
from cdc_lake.control.verdicts import Verdict
from cdc_lake.errors import OtherWriter, PastTrimmed, SlotMissing
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.applier import apply
from cdc_lake.runtime.apply.rebuild import rebuild
from cdc_lake.runtime.restart import restart
from cdc_lake.runtime.resync import resync
from cdc_lake.runtime.run import run
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.open_silver_table import store, table_log
from cdc_lake.tables.spark_session import derive
from tests.conftest import Database
from tests.pipeline_file import make_project

from .formats import drawn

pytestmark = [
    pytest.mark.spark,
    pytest.mark.live,
    # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "past": {"kind": "history"},
    "marked": {"deletes": "soft"},
    "log": {"kind": "append"},
    "altered": {},
    "emptied": {},
}


class Shop:
    def __init__(self, spark: Any, database: Database, root: Path, fmt: str) -> None:
        self.spark, self.database = spark, database
        self.name = f"{database.name}_{fmt}"
        source = {**database.source, "slot": {"name": self.name}, "tables": [f"public.{name}" for name in KINDS]}
        tables = [{"from": f"public.{name}", **given} for name, given in KINDS.items()]
        silver = {"defaults": {"namespace": self.name, "format": fmt}, "tables": tables}
        self.project = make_project(root, self.name, source=source, silver=silver)

    def all(self, *statements: str) -> None:
        with self.database.connect() as conn:
            for table in KINDS:
                for statement in statements:
                    conn.execute(statement.replace("@", table).encode())

    def run(self) -> None:
        run(self.project, once=True, only="receive", stop=threading.Event(), report=silent)
        apply(self.project, once=True, stop=threading.Event(), report=silent, spark=self.spark)

    def rows(self, table: str) -> list[dict[str, Any]]:
        return list(table_log(self.project, self.target(table)).read().to_pylist())

    def target(self, table: str) -> Target:
        return self.project.target(TableName("public", table))


@drawn
def test_a_lost_slot_is_followed_by_a_new_stream_and_what_was_is_kept(
    spark: Any, database: Database, lake_root: Path, fmt: str
) -> None:
    shop = Shop(spark, database, lake_root, fmt)
    shop.all(
        "CREATE TABLE @ (id int PRIMARY KEY, n int, gone int DEFAULT 4)",
        "ALTER TABLE @ REPLICA IDENTITY FULL",
        "INSERT INTO @ SELECT g, g FROM generate_series(1, 6) AS g",
    )
    shop.run()
    shop.all("UPDATE @ SET n = 100 WHERE id = 1", "DELETE FROM @ WHERE id = 6")
    shop.run()
    before = {table: shop.rows(table) for table in KINDS}
    cut = ControlTables(shop.project.control).last_cut()
    assert cut is not None
    with database.admin() as admin:
        admin.execute(b"SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE active")
        admin.execute(f"SELECT pg_drop_replication_slot('{shop.name}')".encode())
    shop.all("UPDATE @ SET n = 200 WHERE id = 2", "DELETE FROM @ WHERE id = 3", "INSERT INTO @ VALUES (7, 7)")
    shop.all("ALTER TABLE @ ADD extra int NOT NULL DEFAULT 5")
    with database.connect() as conn:
        conn.execute(b"ALTER TABLE altered DROP n, ADD n text DEFAULT 'unknown', ADD more int NOT NULL DEFAULT 6")
        conn.execute(b"TRUNCATE emptied")
        conn.execute(b"ALTER TABLE plain DROP gone")
    with pytest.raises(SlotMissing):
        shop.run()
    spark.sql(f"DELETE FROM {store(derive(spark), shop.project, shop.target('past')).name} WHERE id = 5")
    with pytest.raises(
        OtherWriter, match=r"make the damage to the past of .+ permanent: \S+\.past was modified outside"
    ) as refused:
        restart(shop.project, yes=True)
    assert "`cdc-lake rebuild public.past`" in refused.value.remedy
    rebuild(shop.project, "past", spark=spark)
    assert not restart(shop.project).done
    assert restart(shop.project, yes=True).done
    shop.run()
    shop.all("UPDATE @ SET n = '300' WHERE id = 4")
    shop.run()
    found = {table.table.split(".")[1]: table.verdict for table in compare(shop.project, [], report=silent).tables}
    assert {found[table] for table in KINDS if table != "log"} == {Verdict.EQUAL}, found
    assert sorted((r["id"], r["n"]) for r in shop.rows("plain")) == [(1, 100), (2, 200), (4, 300), (5, 5), (7, 7)]
    assert {r["gone"] for r in shop.rows("plain")} == {None}, "it is kept"
    assert [{r["n"], r["extra"], r["more"]} for r in shop.rows("altered") if r["id"] == 2] == [{"unknown", 5, 6}]
    assert shop.rows("emptied") == []
    past = shop.rows("past")
    assert len([r for r in past if r["valid_from_epoch"] == 1]) == len(before["past"])
    assert {r["valid_to_epoch"] for r in past if r["id"] == 3} == {2}
    assert {r["id"] for r in shop.rows("marked")} >= {3, 6}
    log = shop.rows("log")
    assert len([r for r in log if {name: r[name] for name in r if name != "extra"} in before["log"]]) == len(
        before["log"]
    )
    states = table_states(cut.tables)
    version = states["public.plain"].version
    old = table_log(shop.project, shop.project.target(TableName("public", "plain"))).read(version)
    assert old.num_rows == len(before["plain"])
    with pytest.raises(PastTrimmed):
        rebuild(shop.project, "past", spark=spark)
    with pytest.raises(PastTrimmed):
        resync(shop.project, ["public.past"])
    rebuild(shop.project, "plain", spark=spark)
    assert sorted(r["id"] for r in shop.rows("plain")) == [1, 2, 4, 5, 7]
