"""The physical plans of a merge: what a large table costs is decided here, so their essential nodes are held to."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.lake import row_marks
from cdc_lake.model.change import Delete, OldKind, Update
from cdc_lake.pipeline import strategy

from .test_apply_cases import FORMATS, Lake, T, insert

pytestmark = pytest.mark.spark


def plans_of(spark: Any, work: Callable[[], None]) -> list[str]:
    """The plans that ran, as they were at their end."""
    store = spark._jsparkSession.sharedState().statusStore()

    def executions() -> dict[int, str]:
        found = store.executionsList()
        every = (found.apply(n) for n in range(found.size()))
        return {one.executionId(): one.physicalPlanDescription() for one in every if one.completionTime().isDefined()}

    before = executions()
    work()
    time.sleep(1)  # what a listener is told comes a little later
    return [plan for number, plan in executions().items() if number not in before]


def merge_plans(lake: Lake, fmt: str) -> list[str]:
    """Those in which the silver table is joined with the net change, of a span of updates and deletes."""
    lake.land(*(insert(str(n), "1") for n in range(100)))
    lake.advance()
    lake.land(Update(T, ("3", "2", "x")), Update(T, ("50", "2", "x")), Delete(T, ("4", None, None), OldKind.KEY))
    found = plans_of(lake.spark, lake.advance)
    folder = os.environ.get("P_PLANS")
    if folder:
        Path(folder, f"{fmt}.txt").write_text("\n=========\n".join(found))
    of_target = [plan for plan in found if "Join" in plan and lake.project.target(T.table).namespace in plan]
    assert of_target, "no plan joins the silver table"
    return of_target


def columns_read(plan: str, namespace: str) -> set[str]:
    """The table's own columns that scans of the silver table read."""
    scans = re.findall(rf"\(\d+\) (?:Scan parquet|BatchScan)[^\n]*{namespace}.*?(?=\n\n)", plan, re.DOTALL)
    return {name for scan in scans for name in ("id", "amount", "body") if re.search(rf"\b{name}\b[:#]", scan)}


@FORMATS
def test_a_merge_with_marks_reads_the_keys_alone_and_shuffles_nothing_of_the_table(
    spark: Any, lake_root: Path, monkeypatch: pytest.MonkeyPatch, fmt: str
) -> None:
    monkeypatch.setitem(row_marks.MARKED_FROM, fmt, 1)
    lake = Lake(lake_root, spark, "plans", fmt)
    for plan in merge_plans(lake, fmt):
        assert "BroadcastHashJoin" in plan
        assert "SortMergeJoin" not in plan
        assert columns_read(plan, "plans") <= {"id"}


@FORMATS
def test_a_net_change_that_may_not_fit_is_shuffled(
    spark: Any, lake_root: Path, monkeypatch: pytest.MonkeyPatch, fmt: str
) -> None:
    monkeypatch.setattr(strategy, "_HEAP_SHARE", 1 << 40)
    lake = Lake(lake_root, spark, "shuffled", fmt)
    assert any("SortMergeJoin" in plan or "ShuffledHashJoin" in plan for plan in merge_plans(lake, fmt))
