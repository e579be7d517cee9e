"""How a span is written: appended, merged by key with marks or without; what is read afterwards is the same."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.span_index import SpanPartitioner
from cdc_lake.errors import BaseRowMissing
from cdc_lake.model.change import UNCHANGED, Delete, Insert, OldKind, Update
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.runtime.apply import table_planner
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.tables import open_silver_table
from cdc_lake.tables.open_silver_table import store, table_log
from cdc_lake_testing.messages import table

from .formats import FORMATS, drawn
from .test_apply_cases import Lake, T, insert, row

pytestmark = pytest.mark.spark


def facts(lake: Lake) -> dict[str, Any]:
    """Apply what was landed; how its one merge was done."""
    heard: list[ProgressEvent] = []
    with SpanLoop(lake.project, lake.spark, heard.append) as advance:
        advance.run(None, threading.Event())
        for error in advance.totals.failed.values():
            raise error
    (merged,) = [one for one in heard if one.stage == "merge"]
    return dict(merged.facts)


def update(key: str, amount: str, body: Any) -> Update:
    return Update(T, (key, amount, body))


def delete(key: str) -> Delete:
    return Delete(T, (key, None, None), OldKind.KEY)


@pytest.mark.compiled
@FORMATS
def test_a_large_table_gets_marks_and_all_readers_see_the_same_rows(
    spark: Any, lake_root: Path, monkeypatch: pytest.MonkeyPatch, fmt: str
) -> None:
    lake = Lake(lake_root, spark, "marks", fmt)
    lake.land(*(insert(str(n), "1", "x") for n in range(20)))
    lake.advance()
    lake.land(update("3", "2", "y"), delete("4"))
    small = facts(lake)
    assert (small["files_marked"], small["files_replaced"] > 0) == (0, True), "a small table is rewritten"
    monkeypatch.setitem(open_silver_table.MARKED_FROM, fmt, 1)
    before, target = table_log(lake.project, lake.target()).version(), lake.target()
    lake.land(update("5", "2", UNCHANGED), delete("6"), insert("30", "1"))
    large = facts(lake)
    assert large["mode"] == "merge"
    assert large["broadcast"]
    assert (large["files_marked"] > 0, large["files_replaced"]) == (True, 0)
    lake.land(update("7", "9", "z"))
    assert facts(lake)["files_replaced"] == 0, "marks are there to stay"
    want = {n: row(n, 1, "x") for n in range(20) if n not in {4, 6}}
    want |= {3: row(3, 2, "y"), 5: row(5, 2, "x"), 7: row(7, 9, "z"), 30: row(30, 1)}
    assert lake.rows() == [want[n] for n in sorted(want)]
    assert table_log(lake.project, target).count_rows() == len(want)
    name = store(spark, lake.project, target).name
    assert {r["id"]: r.asDict() for r in spark.table(name).collect()} == want
    then = table_log(lake.project, target).read(before)
    assert sorted(then["id"].to_pylist()) == [n for n in range(20) if n != 4]


@FORMATS
def test_marks_are_not_made_where_readers_do_not_know_them(
    spark: Any, lake_root: Path, monkeypatch: pytest.MonkeyPatch, fmt: str
) -> None:
    lake = Lake(lake_root, spark, "unmarked", fmt, apply={"merge_on_read": "never"})
    monkeypatch.setitem(open_silver_table.MARKED_FROM, fmt, 1)
    lake.land(insert("1", "1"), insert("2", "2"))
    lake.advance()
    lake.land(delete("1"))
    assert facts(lake)["files_marked"] == 0


@FORMATS
def test_new_keys_are_appended_and_others_are_not(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = Lake(lake_root, spark, "ways", fmt)
    lake.land(insert("1", "1"), insert("2", "2"))
    assert facts(lake)["mode"] == "append", "the table is empty"
    lake.land(insert("5", "5"), insert("4", "4"), update("5", "6", "new"), insert("7", "7"), delete("7"))
    later = facts(lake)
    assert (later["mode"], later["files_replaced"]) == ("append", 0)
    lake.land(insert("3", "3"))
    assert facts(lake)["mode"] == "merge", "the table may have had the key"
    lake.land(insert("9", "9"), update("1", "8", "old"))
    assert facts(lake)["mode"] == "merge"
    lake.land(insert("20", "1"), Update(T, ("21", "5", None), ("5", None, None), OldKind.KEY))
    assert facts(lake)["mode"] == "merge", "a key moved"
    assert lake.rows() == [row(1, 8, "old"), row(2, 2), row(3, 3), row(4, 4), row(9, 9), row(20, 1), row(21, 5, None)]
    lake.land(insert("31", "1"), update("32", "1", UNCHANGED))
    with pytest.raises(BaseRowMissing):
        facts(lake)


@drawn
def test_a_span_that_is_split_by_table_gives_the_same_and_leaves_nothing_behind(
    spark: Any, lake_root: Path, monkeypatch: pytest.MonkeyPatch, fmt: str
) -> None:
    lake = Lake(lake_root, spark, "split", fmt)
    folder = lake.project.scratch.with_name(f"{lake.project.name}.spans")
    left = folder / "left-by-a-killed-run.parquet"
    left.parent.mkdir(parents=True)
    left.touch()
    other = table("public.other", id="int4", amount="int4", body="text")
    split: list[int] = []
    real = SpanPartitioner.split

    def counted(self: SpanPartitioner, files: Any, span: Any) -> Any:
        parts = real(self, files, span)
        split.append(len(parts))
        assert not left.exists()
        return parts

    monkeypatch.setattr(SpanPartitioner, "split", counted)
    monkeypatch.setattr(table_planner, "SPLIT_FROM", 2)
    lake.land(insert("1", "1"), Insert(other, ("1", "7", "x")), insert("2", "2"), Insert(other, ("2", "8", "y")))
    lake.land(update("1", "5", UNCHANGED), Update(other, ("3", "8", "y"), ("2", None, None), OldKind.KEY))
    lake.advance()
    assert split == [2]
    assert lake.rows() == [row(1, 5), row(2, 2)]
    assert lake.rows(other) == [row(1, 7, "x"), row(3, 8, "y")]
    assert not folder.exists()
    lake.land(delete("2"))
    lake.advance()
    assert split == [2], "one table alone reads bronze as it is"
    assert lake.rows() == [row(1, 5)]


@pytest.mark.compiled
@drawn
def test_spans_that_are_alike_share_what_spark_compiled(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = Lake(lake_root, spark, "alike", fmt)
    lake.land(*(insert(str(n), "1", "x") for n in range(80)))
    lake.advance()
    compilations = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    counts = []
    for number in range(1, 5):
        before = compilations.getCount()
        lake.land(update(str(number), "2", "y"), update(str(79 - number), "2", "y"), insert(str(79 + number), "1"))
        facts(lake)
        counts.append(compilations.getCount() - before)
    assert counts[0] > 0, "they are counted"
    assert counts[-1] == 0, counts
