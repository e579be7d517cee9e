"""Delta tables by their names in a Hive metastore, as Spark sees them; in a process, which has one Spark.

    python -m tests.hive_silver

Prints one line of JSON.
"""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lake.errors import ConcurrentModification, NameElsewhere, NotPinned
from cdc_lake.model.position import as_of
from cdc_lake.model.relation import TableName
from cdc_lake.runtime.cut_retention import create_views, pin_cut
from cdc_lake.silver.kinds import AppendKind
from cdc_lake.tables.maintenance import DeltaSilverMaintenance, Keep
from cdc_lake.tables.open_silver_table import silver_frame, store, table_log
from cdc_lake.tables.schema_evolution import AddColumn, ChangeType
from cdc_lake.tables.silver_table import table_ref
from cdc_lake.tables.spark_session import derive, start
from cdc_lake.tables.types import SilverColumn
from cdc_lake_testing.java_catalogs import HiveMetastore
from tests.catalog_silver import COLUMNS, MERGE
from tests.cut_lake import CutLake, ids
from tests.pipeline_file import make_project


def check(root: Path, metastore: str) -> dict[str, Any]:
    """What came of a row of commits; asserts what must not happen."""
    plain = make_project(root)
    project = make_project(root, lake={"delta": {"metastore": metastore}})
    target = project.target(TableName("public", "t"))
    log, spark = table_log(project, target), start(project)
    silver = store(derive(spark), project, target)

    def rows() -> list[Any]:
        """As another engine of the metastore reads them."""
        return sorted(tuple(row) for row in spark.sql("SELECT * FROM silver.t").collect())

    silver.create(COLUMNS, "s")
    first = silver.commit("s", silver.marker("s"), 10, lambda to: f"INSERT INTO {to} VALUES (1, 'a')")
    stale = silver.marker("s")
    silver.commit("s", stale, 20, MERGE.format)
    assert rows() == [(1, "new"), (2, "b")]
    with pytest.raises(ConcurrentModification):
        silver.commit("s", stale, 30, MERGE.format)
    silver.reshape("s", silver.marker("s"), 40, [AddColumn(SilverColumn("more", "int"))], "true")
    silver.reshape("s", silver.marker("s"), 41, [ChangeType("id", "int", "string")], "true")
    assert rows() == [("1", "new", None), ("2", "b", None)]
    silver.replace("s", silver.marker("s"), 2, 50, COLUMNS, "SELECT 7 AS id, 'z' AS note")
    assert rows() == [(7, "z")]
    keep = Keep(frozenset({first}), datetime.now(UTC) - timedelta(hours=2))
    steps = [
        step.part for step in DeltaSilverMaintenance(derive(spark), project, target).run_steps(keep, datetime.now(UTC))
    ]
    assert [tuple(row) for row in silver_frame(spark, project, target, first).collect()] == [(1, "a")]
    silver.take_over(COLUMNS, "t")
    assert rows() == []
    assert log.marker("t").generation == 3
    # a table of a lake that had no metastore is registered with the first use; one that was moved away is made anew
    older = plain.target(TableName("public", "older"))
    store(derive(spark), plain, older).create(COLUMNS, "s")
    store(derive(spark), project, older)
    assert spark.table("silver.older").columns == ["id", "note"]
    moved = project.target(TableName("public", "moved"))
    store(derive(spark), project, moved).create(COLUMNS, "s")
    folder = Path(str(table_ref(project, moved).address))
    folder.rename(folder.with_name("away"))
    store(derive(spark), project, moved).create(COLUMNS, "s")
    assert spark.table("silver.moved").count() == 0
    spark.sql("CREATE TABLE silver.taken (id int) USING delta")
    taken = project.target(TableName("public", "taken"))
    with pytest.raises(NameElsewhere):
        store(derive(spark), project, taken)
    spark.sql("DROP TABLE silver.taken")
    store(derive(spark), project, taken).create(COLUMNS, "s")
    assert spark.table("silver.taken").columns == ["id", "note"]
    check_views(root / "cuts", metastore, spark)
    return {"steps": steps, "position": log.marker("s").position}


def check_views(root: Path, metastore: str, spark: Any) -> None:
    """Views of a pinned cut show it while the tables advance, until they are made for another."""
    namespace = {"defaults": {"format": "delta", "namespace": "shop"}}
    lake = CutLake(root, silver=namespace, lake={"delta": {"metastore": metastore}})
    for position in (200, 300):
        lake.land(position, minutes=position / 100)
        own = {column.name: [1, 1, 1] for column in AppendKind().own}
        log = pa.table({"id": [200, position, 999], **own, "_position": [200, position, 999]})  # ahead of the cut
        versions = {"a": lake.write("a", ids(position)), "h": lake.write("h", log)}
        lake.cut(position, position / 100, **{n: lake.state(n, v, position) for n, v in versions.items()})
        if position == 200:
            pin_cut(lake.project, "first", as_of("latest"), None, None)

    def shown(name: str) -> tuple[list[int], list[int]]:
        made = create_views(lake.project, name, "report", spark)
        assert made.views == ("report.a", "report.h")
        a, h = (spark.sql(f"SELECT id FROM {view} ORDER BY id").collect() for view in made.views)
        return [row[0] for row in a], [row[0] for row in h]

    with pytest.raises(NotPinned):
        shown("last")
    assert shown("first") == ([200], [200, 200])
    pin_cut(lake.project, "last", as_of("latest"), None, None)
    assert shown("last") == ([300], [200, 300])
    assert spark.newSession().table("report.a").count() == 1


def main() -> int:
    with tempfile.TemporaryDirectory() as name, HiveMetastore(Path(name) / "hive") as metastore:
        print(json.dumps(check(Path(name), metastore.uri)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
