"""The physical plans of a merge: what a large table costs is decided here, so their essential nodes are held to."""

from __future__ import annotations

import itertools
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import cdc_lake
from cdc_lake.model.change import Delete, OldKind, Update
from cdc_lake.runtime.apply import merge
from cdc_lake.tables import open_silver_table
from cdc_lake.tables.spark_session import RUNTIME_SETTINGS

from .formats import FORMATS
from .test_apply_cases import Lake, T, insert

PACKAGE = f"{Path(str(cdc_lake.__file__)).parent}/"
pytestmark = [pytest.mark.spark, pytest.mark.compiled]


@pytest.fixture(autouse=True)
def said_at_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what each node reads and gives, in sessions that are made from now on."""
    monkeypatch.setitem(RUNTIME_SETTINGS, "spark.sql.ui.explainMode", "formatted")


def plans_of(spark: Any, work: Callable[[], None]) -> list[str]:
    """The plans that ran, as they were at their end."""
    store = spark._jsparkSession.sharedState().statusStore()

    def newest() -> Iterator[Any]:
        found = store.executionsList()
        return (found.apply(n) for n in reversed(range(found.size())))

    before = next(newest()).executionId()
    work()
    time.sleep(1)  # what a listener is told comes a little later
    since = itertools.takewhile(
        lambda one: one.executionId() > before, newest()
    )  # a test process has a thousand others
    return [one.physicalPlanDescription() for one in since if one.completionTime().isDefined()]


def merge_plans(lake: Lake) -> list[str]:
    """Those in which the silver table is joined with the net change, of a span of updates and deletes."""
    lake.land(*(insert(str(n), "1") for n in range(100)))
    lake.advance()
    lake.land(Update(T, ("3", "2", "x")), Update(T, ("50", "2", "x")), Delete(T, ("4", None, None), OldKind.KEY))
    found = plans_of(lake.spark, lake.advance)
    return [plan for plan in found if "Join" in plan and scans(plan, lake)]


def scans(plan: str, lake: Lake) -> list[str]:
    """The nodes that read the silver table."""
    namespace = lake.target().namespace
    nodes = [node for node in plan.split("\n\n") if re.match(r"\s*\(\d+\) (Scan parquet|BatchScan)", node)]
    return [node for node in nodes if f"/{namespace}/t]" in node or f".{namespace}.t" in node]


def columns_read(plans: list[str], lake: Lake) -> set[str]:
    """The table's own columns that are read of it."""
    outputs = [re.search(r"Output \[\d+\]: .*", node) for plan in plans for node in scans(plan, lake)]
    return {name for output in outputs if output for name in re.findall(r"\b(id|amount|body)#", output[0])}


@FORMATS
def test_a_merge_with_marks_reads_the_keys_alone(
    spark: Any, lake_root: Path, monkeypatch: pytest.MonkeyPatch, fmt: str
) -> None:
    monkeypatch.setitem(open_silver_table.MARKED_FROM, fmt, 1)
    lake = Lake(lake_root, spark, "plans", fmt)
    plans = merge_plans(lake)
    assert columns_read(plans, lake) == {"id"}
    if fmt == "delta":
        assert all("BroadcastHashJoin" in plan and "SortMergeJoin" not in plan for plan in plans)
    else:
        # Iceberg joins by RIGHT OUTER, for which Spark can send only the table: keys and places of rows are shuffled.
        assert all("RightOuter" in plan for plan in plans)


@FORMATS
def test_a_net_change_that_may_not_fit_is_shuffled(
    spark: Any, lake_root: Path, monkeypatch: pytest.MonkeyPatch, fmt: str
) -> None:
    monkeypatch.setattr(merge, "_HEAP_SHARE", 1 << 40)
    lake = Lake(lake_root, spark, "shuffled", fmt)
    plans = merge_plans(lake)
    assert any("SortMergeJoin" in plan or "ShuffledHashJoin" in plan for plan in plans)


@FORMATS
def test_a_merge_opens_only_the_parts_that_keys_lie_in(spark: Any, lake_root: Path, fmt: str) -> None:
    part = "bucket(8, id)" if fmt == "iceberg" else "id"
    lake = Lake(lake_root, spark, "parted", fmt, table={"partition_by": [part]})
    lake.land(*(insert(str(n), "1") for n in range(24)))
    lake.advance()
    lake.land(*(Update(T, (key, "2", "x")) for key in "28"))
    # The files of all other parts are away meanwhile, also of those between the smallest and the largest key.
    touched = spark.sql("SELECT lake.system.bucket(8, 2) AS a, lake.system.bucket(8, 8) AS b").first()
    names = {f"id_bucket={touched.a}", f"id_bucket={touched.b}"} if fmt == "iceberg" else {"id=2", "id=8"}
    folder = next(path for path in lake.project.lake.rglob("t") if path.parent.name == lake.target().namespace)
    away = [path for path in folder.rglob("id*=*") if path.name not in names]
    assert len(away) >= 4
    for path in away:
        path.rename(path.with_name(f"_{path.name}"))
    lake.advance()
    for path in away:
        path.with_name(f"_{path.name}").rename(path)
    assert {row["id"]: row["amount"] for row in lake.rows()} == {n: 2 if n in {2, 8} else 1 for n in range(24)}
    lake.land(Update(T, ("60", "3", "y"), ("4", None, None), OldKind.KEY), Update(T, ("5", "3", "x")))
    lake.advance()
    assert {row["id"] for row in lake.rows() if row["amount"] == 3} == {5, 60}, "a row that moves is found where it was"
    assert 4 not in {row["id"] for row in lake.rows()}


def test_the_merge_statement_is_few_calls_below_the_loop(
    spark: Any, lake_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the thread that merges a table, and of the one that waits for it."""
    lake, sql, loop = Lake(lake_root, spark, "depth", "delta"), type(spark).sql, threading.get_ident()
    stacks: list[list[str]] = []

    def seen(session: Any, query: str, *given: Any, **more: Any) -> Any:
        if query.startswith("MERGE"):
            waiting = [*calls_of(sys._current_frames()[loop])]
            stacks.append([*waiting[waiting.index("SpanLoop.run") :], *calls_of(sys._getframe())])
        return sql(session, query, *given, **more)

    monkeypatch.setattr(type(spark), "sql", seen)
    lake.land(insert("1", "1"))
    lake.advance()
    lake.land(Update(T, ("1", "2", "x")))
    lake.advance()
    (calls,) = stacks
    print(len(calls), "calls:", *calls, sep="\n")
    assert calls[0] == "SpanLoop.run"
    assert calls[-1] == "DeltaSilver.commit"
    assert len(calls) <= 8


def calls_of(frame: FrameType | None) -> Iterator[str]:
    """The functions of the package that a thread is in, the outermost first."""
    stack = [one for one, _ in traceback.walk_stack(frame)]
    for one in reversed(stack):
        if one.f_code.co_filename.startswith(PACKAGE) and "<" not in one.f_code.co_name:
            yield one.f_code.co_qualname
