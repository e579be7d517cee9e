"""From the family's wire to silver: a live PostgreSQL's workload, retold as GaussDB, ends equal to the source, proven.

By default one way of a kind: batches in CSN order, a CSN-ordered slot, serial decoding; all ways with a greater budget.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.comparison.compare import compare
from cdc_lake.config.project import Project
from cdc_lake.control.verdicts import Verdict
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake_testing.workload import Workload
from tests.live.test_gaussdb_receive import project_of
from tests.live.test_gaussdb_workload import KINDS, Kind, StandIn, stand_in
from tests.live.test_receive_loop import once
from tests.seeds import one_seed

pytestmark = [pytest.mark.spark, pytest.mark.live]

__all__ = ["stand_in"]

SEED = one_seed()
BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
SOME = [Kind(Style.BINARY, batch=True), Kind(Style.TEXT, by_csn=True), Kind(Style.SERIAL)]


def advance(project: Project, spark: Any) -> None:
    with SpanLoop(project, spark, silent) as one:
        one.run(None, threading.Event())
        assert one.totals.failed == {}


@pytest.mark.parametrize("kind", SOME if BUDGET == 1 else KINDS, ids=lambda kind: kind.slot)
def test_silver_is_the_source_after_copy_changes_and_more_changes(
    spark: Any, lake_root: Path, stand_in: StandIn, kind: Kind
) -> None:
    print("CDC_LAKE_SEED =", SEED)
    tables = [{"from": "public.w_items"}, {"from": "public.w_pairs", "format": "iceberg"}]
    silver = {"defaults": {"namespace": kind.slot}, "tables": tables}
    project = project_of(
        stand_in, kind, lake_root, silver=silver, source={"tables": ["public.w_items", "public.w_pairs"]}
    )
    with stand_in.database.connect() as conn:
        workload = Workload(conn, SEED, truncates=kind.style is Style.SERIAL)
        workload.run(40)
        once(project)
        advance(project, spark)
        for _ in range(2):
            workload.run(40)
            once(project)
            advance(project, spark)
    found = compare(project, (), silent)
    assert {table.table for table in found.tables} == {"public.w_items", "public.w_pairs"}
    assert found.verdict is Verdict.EQUAL, [(table.table, table.text, table.reason) for table in found.tables]
