"""The logs of silver tables by the SQL of a Spark session: the same contract, and all that Spark commits."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.errors import MarkerGone
from cdc_lake.model.relation import TableName
from cdc_lake.tables.delta_silver import DeltaSilver
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.schema_evolution import AddColumn, ChangeType
from cdc_lake.tables.silver_table import Marker
from cdc_lake.tables.types import SilverColumn
from tests.pipeline_file import make_project
from tests.table_log_contract import *  # noqa: F403 - the tests of the contract
from tests.table_log_contract import MakePlace, Place, Table

pytestmark = pytest.mark.spark

_numbers = itertools.count()


@pytest.fixture(params=["sql"])
def place(spark: Any, lake_root: Path) -> MakePlace:
    """A table of a name that no other test has in the folder they share."""

    def make_place(fmt: str) -> Place:
        silver = {"defaults": {"format": fmt, "namespace": f"contract_{next(_numbers)}"}}
        project = make_project(lake_root, silver=silver)
        return Place(project, project.target(TableName("public", "t")), spark)

    return make_place


def test_the_history_says_what_the_log_files_say_of_all_that_is_committed(place: MakePlace) -> None:
    there = place("delta")
    log, files = there.log, table_log(there.project, there.target)
    silver, name = DeltaSilver(there.spark, there.project, there.target), ""
    id_, note = SilverColumn("id", "int"), SilverColumn("note", "string")

    def agree(*, stream: str = "s", cut: int = 0, content: Marker) -> Marker:
        marker = files.marker(stream)
        assert log.marker(stream) == marker == content
        assert marker.version is not None
        assert log.version() == files.version()
        assert log.owner() == files.owner()
        assert log.layout() == files.layout()
        assert log.columns() == files.columns()
        assert log.was_clustered() == files.was_clustered()
        assert log.statistics() == files.statistics()
        foreign, expected = (each.foreign_commit(stream, cut, marker.version, 1) for each in (log, files))
        assert (foreign and foreign.put_back) == (expected and expected.put_back)
        assert sorted(map(str, log.read().to_pylist())) == sorted(map(str, files.read().to_pylist()))
        return marker

    def sql(statement: str) -> None:
        there.spark.sql(statement.format(name))

    silver.create((id_, note), "s")
    name = silver.name
    base = agree(content=Marker(None, 0))
    silver.commit("s", base, 10, lambda to: f"INSERT INTO {to} SELECT id, 'a' FROM range(100)")
    base = agree(content=Marker(10, 1))
    sql("ALTER TABLE {} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    merge = "MERGE INTO {} AS t USING (SELECT 7 AS id) AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET note = 'b'"
    version = silver.commit("s", base, 20, merge.format)
    base = agree(content=Marker(20, 3))
    assert log.commit_metrics(version).marked == files.commit_metrics(version).marked == 1
    assert log.commit_metrics(version).files == files.commit_metrics(version).files
    silver.reshape("s", base, 25, [AddColumn(SilverColumn("more", "int"))], "true")
    silver.reshape("s", base, 26, [ChangeType("id", "int", "string")], "true")
    sql("OPTIMIZE {}")
    sql("VACUUM {}")
    sql("ALTER TABLE {} ALTER COLUMN note COMMENT 'c'")
    base = agree(content=Marker(20, files.version()))
    version = silver.replace("s", base, 2, 20, (id_, note), "SELECT 1 AS id, 'z' AS note")
    agree(content=Marker(20, version, 2))
    sql("DELETE FROM {}")
    assert log.foreign_commit("s", version, version + 1, 2) is not None
    agree(content=Marker(20, version + 1, 2))
    silver.take_over((id_,), "t")
    agree(stream="t", content=Marker(None, version + 2, 3))
    agree(content=Marker(None, version + 2, 3))


def test_a_history_that_lost_the_marker_is_refused(place: MakePlace) -> None:
    table = Table(place("delta"))
    for _ in range(3):
        table.strangers()
    table.delta().create_checkpoint()
    for version in range(3):
        table.files.delete_file(table.entry(version))
    with pytest.raises(MarkerGone, match="version 3"):
        table.place.log.marker("postgres:7:slot")
    assert table_log(table.project, table.target).marker("postgres:7:slot").position == 110
