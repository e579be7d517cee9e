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

import pytest

from cdc_lake.errors import ConcurrentModification, NameElsewhere
from cdc_lake.model.relation import TableName
from cdc_lake.tables.maintenance import DeltaSilverMaintenance, Keep
from cdc_lake.tables.open_silver_table import silver_frame, store, table_log
from cdc_lake.tables.schema_evolution import AddColumn, ChangeType
from cdc_lake.tables.silver_table import table_ref
from cdc_lake.tables.spark_session import derive, start
from cdc_lake.tables.types import SilverColumn
from cdc_lake_testing.java_catalogs import HiveMetastore
from tests.catalog_silver import COLUMNS, MERGE
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
    with pytest.raises(NameElsewhere):
        store(derive(spark), project, project.target(TableName("public", "taken")))
    return {"steps": steps, "position": log.marker("s").position}


def main() -> int:
    with tempfile.TemporaryDirectory() as name, HiveMetastore(Path(name) / "hive") as metastore:
        print(json.dumps(check(Path(name), metastore.uri)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
