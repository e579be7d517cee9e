"""A silver table belongs to one pipeline: no other replaces it, until it is told to."""

from __future__ import annotations

import json
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.control.cuts import last_cut
from cdc_lake.errors import OtherWriter, SilverNameShared, SilverNotOwned
from cdc_lake.model.change import Insert
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.applier import apply
from cdc_lake.runtime.apply.rebuild import rebuild
from cdc_lake.tables.control_schema import SnapshotRow, StreamRow, utc_now
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.open_silver_table import store, table_log
from cdc_lake.tables.silver_table import PIPELINE, STREAM, Owner
from cdc_lake_testing.messages import table
from tests.pipeline_file import make_project

from .formats import FORMATS, drawn
from .test_apply_cases import Lake, T, insert, row

pytestmark = pytest.mark.spark


class Named(Lake):
    """A pipeline of its own stream, which writes into the namespace of a lake that others write into too."""

    def __init__(self, root: Path, spark: Any, name: str, namespace: str, fmt: str, **sections: Any) -> None:
        self.spark = spark
        defaults = {"format": fmt, "namespace": f"{namespace}_{fmt}"}
        self.project = make_project(
            root, f"{name}_{fmt}", silver={"defaults": defaults}, snapshot={"mode": "none"}, **sections
        )
        self.bronze = DeltaBronze(self.project.bronze, durability="os")
        self.begin(f"pg:1:d:{self.project.name}:0/10")
        self.position = 100

    def begin(self, stream: str) -> None:
        self.stream = stream
        state = self.bronze.begin_stream(stream, 10)
        ControlTables(self.project.control).record(StreamRow(state.epoch, stream, 10, "s", "1", "d", "lsn", utc_now()))

    def run(self, *adopt: str) -> Any:
        words = frozenset(f"adopt {label}" for label in adopt)
        return apply(self.project, once=True, stop=threading.Event(), report=silent, spark=self.spark, allowed=words)

    @property
    def label(self) -> str:
        return str(self.target().label)


def forget_owner(spark: Any, lake: Named) -> None:
    """The table as version 0.3.0 made it."""
    name = store(spark, lake.project, lake.target()).name
    spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES IF EXISTS ('{PIPELINE}', '{STREAM}')")


@FORMATS
@pytest.mark.parametrize("old", [0, 1])
def test_another_pipelines_table_is_refused_with_both_names_and_stays_as_it_is(
    spark: Any, lake_root: Path, fmt: str, old: int
) -> None:
    own = Named(lake_root, spark, f"own{old}", f"owned{old}", fmt)
    own.land(insert("1", "1"), insert("2", "2"))
    own.run()
    if old:
        forget_owner(spark, own)
    other = Named(lake_root, spark, f"other{old}", f"owned{old}", fmt)
    other.land(insert("9", "9"))
    for _ in range(2):  # the cut that lists it as waiting makes it no one else's
        with pytest.raises(SilverNotOwned) as refused:
            other.run()
        assert f"`{own.project.name}`" in refused.value.message
        assert f"`{other.project.name}`" in refused.value.message
        assert f"cdc-lake run --adopt {other.label}" in refused.value.remedy
    assert own.rows() == [row(1, 1), row(2, 2)]
    own.land(insert("3", "3"))
    own.run()
    assert own.rows() == [row(1, 1), row(2, 2), row(3, 3)]


@FORMATS
def test_an_adopted_table_starts_over_its_versions_stay_and_its_former_pipeline_stops(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    own, other = (Named(lake_root, spark, name, "adopted", fmt) for name in ("former", "present"))
    own.land(insert("1", "1"), insert("2", "2"))
    own.run()
    cut = last_cut(ControlTables(own.project.control), own.stream)
    assert cut is not None
    other.land(insert("9", "9"))
    other.run(other.label)
    assert table_log(own.project, own.target()).owner() == Owner(other.project.name, other.stream)
    assert other.rows() == [row(9, 9)]
    assert table_log(own.project, own.target()).read(cut.tables["public.t"].version).num_rows == 2
    other.land(insert("8", "8"))
    other.run(other.label)  # as a service says it again: it is its own by now
    assert other.rows() == [row(8, 8), row(9, 9)]
    own.land(insert("3", "3"))
    with pytest.raises(SilverNotOwned) as refused:
        own.run()
    assert f"`{other.project.name}`" in refused.value.message
    assert "cdc-lake rebuild public.t --adopt" in refused.value.remedy
    with pytest.raises(SilverNotOwned):
        rebuild(own.project, "t", spark=spark)
    assert other.rows() == [row(8, 8), row(9, 9)]
    rebuild(own.project, "t", adopt=True, spark=spark)
    own.run()
    assert own.rows() == [row(1, 1), row(2, 2), row(3, 3)]
    with pytest.raises(SilverNotOwned):
        other.run()


@FORMATS
def test_a_table_that_cdc_lake_did_not_write_is_refused_and_adopted_whatever_its_columns(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    lake = Named(lake_root, spark, "stranger", "strange", fmt)
    name = store(spark, lake.project, lake.target()).name
    if fmt == "iceberg":
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name.rsplit('.', 1)[0]}")
    spark.sql(f"CREATE TABLE {name} USING {fmt} AS SELECT 7 AS id, 'x' AS whose")
    lake.land(Insert(table("public.t", id="int4", since="timestamp"), ("1", "2026-01-02 00:00:00")))
    with pytest.raises(SilverNotOwned, match="was not written by cdc_lake"):
        lake.run()
    lake.run(lake.label)
    assert lake.rows() == [{"id": 1, "since": datetime(2026, 1, 2)}]  # noqa: DTZ001


@FORMATS
def test_a_lake_of_version_0_3_0_goes_on_and_so_does_one_whose_stream_begins_again(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    lake = Named(lake_root, spark, "older", "older", fmt)
    lake.land(insert("1", "1"))
    lake.run()
    forget_owner(spark, lake)
    lake.land(insert("2", "2"))
    lake.run()
    assert lake.rows() == [row(1, 1), row(2, 2)]
    lake.begin(f"pg:1:d:{lake.project.name}:0/9000")
    lake.position = 0x9000
    lake.land(insert("5", "5"))
    lake.run()
    assert {one["id"] for one in lake.rows()} >= {5}


@FORMATS
def test_who_writes_in_spite_of_other_writers_warn_is_stopped_where_it_is_another_pipeline(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    warn = {"apply": {"other_writers": "warn"}}
    own, other = (Named(lake_root, spark, name, "warned", fmt, **warn) for name in ("warn", "taker"))
    own.land(insert("1", "1"))
    own.run()
    other.land(insert("9", "9"))
    other.run(other.label)
    with pytest.raises(SilverNotOwned):
        own.run()
    assert not issubclass(SilverNotOwned, OtherWriter)
    assert other.rows() == [row(9, 9)]


@drawn
def test_of_tables_of_one_silver_name_the_one_that_has_it_goes_on_and_the_other_waits(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    """Also at the beginning of a new stream, where a marker names no source table."""
    lake = Named(lake_root, spark, "folds", "folds", fmt)
    beside, other = (table(f"public.{name}", id="int4", n="int4") for name in ("beside", "T"))
    lake.land(insert("1", "1"))
    lake.advance()
    lake.land(insert("2", "2"), Insert(other, ("7", "7")), Insert(beside, ("1", "1")))
    for _ in range(2):
        with pytest.raises(SilverNameShared, match=r"`public\.T` and `public\.t` would both be written"):
            lake.advance()
        assert lake.rows() == [row(1, 1), row(2, 2)]
        assert len(lake.rows(beside)) == 1
    with pytest.raises(SilverNameShared):
        rebuild(lake.project, "public.T", spark=spark)
    lake.begin(f"pg:1:d:{lake.project.name}:0/9000")
    lake.project = make_project(
        lake_root, lake.project.name, silver={"defaults": {"namespace": f"folds_{fmt}", "format": fmt}}
    )
    copied = []
    for layout, rows in ((T, [["1", "1", "b"], ["3", "3", "b"]]), (other, [["7", "7"]]), (beside, [["2", "2"]])):
        lake.bronze.append_snapshot("initial-2", len(copied), layout, pa.array(rows, pa.list_(pa.string())), 0, 100)
        copied.append({"relation": str(layout.table), "layout": layout.layout, "rows": len(rows), "chunks": 1})
    control = ControlTables(lake.project.control)
    control.record(SnapshotRow("initial-2", lake.stream, 2, 100, json.dumps(copied), "complete", utc_now()))
    with pytest.raises(SilverNameShared):
        lake.advance()
    assert (lake.rows(), lake.rows(beside)) == ([row(1, 1), row(3, 3)], [{"id": 2, "n": 2}])
    tables = [{"from": "public.T", "to": "capital"}]
    silver = {"defaults": {"namespace": f"folds_{fmt}", "format": fmt}, "tables": tables}
    lake.project = make_project(lake_root, lake.project.name, silver=silver)
    lake.advance()
    assert (lake.rows(), lake.rows(other)) == ([row(1, 1), row(3, 3)], [{"id": 7, "n": 7}])
