"""Tables that were copied at several positions, as a copy that broke off leaves them: silver is the source's at each cut."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Project
from cdc_lake.control.cuts import ACTIVE, last_cut
from cdc_lake.control.snapshots import COMPLETE, CopiedTable
from cdc_lake.control.streams import record_copy
from cdc_lake.model.change import Transaction
from cdc_lake.model.relation import Relation
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake_testing.histories import History, interleave
from cdc_lake_testing.messages import raw_transaction
from cdc_lake_testing.oracle import Oracle
from tests.pipeline_file import make_project
from tests.seeds import one_seed

from .two_tables import PLAIN, WHOLE, same

pytestmark = pytest.mark.spark

TABLES = (PLAIN, WHOLE)


def state_at(transactions: list[Transaction], relation: Relation) -> list[dict[str, Any]]:
    oracle = Oracle()
    oracle.run(transactions)
    return list(oracle.tables.get(relation.table, {}).values())


def rows_of(state: list[dict[str, Any]], relation: Relation) -> pa.ListArray:
    return pa.array([[row[name] for name in relation.names] for row in state], pa.list_(pa.string()))


def assert_silver(project: Project, transactions: list[Transaction], *relations: Relation) -> None:
    for relation in relations:
        rows = table_log(project, project.target(relation.table)).read().to_pylist()
        assert same(rows, state_at(transactions, relation)), relation.table


def advance(project: Project, spark: Any) -> None:
    with SpanLoop(project, spark, silent) as walk:
        walk.run(None, threading.Event())
        assert not walk.totals.failed


def test_each_table_begins_at_its_own_position(spark: Any, lake_root: Path) -> None:
    seed = one_seed()
    print(f"seed {seed}")
    name = f"apart{seed}"
    tables = [{"from": "public.plain", "format": "delta"}, {"from": "public.whole", "format": "iceberg"}]
    silver = {"defaults": {"namespace": name}, "tables": tables}
    project = make_project(lake_root, name, silver=silver, apply={"span_rows": 40})
    transactions = interleave(seed, [History(seed, list(TABLES), truncates=30)], 60)
    first, second = transactions[:20], transactions[:40]
    begun, later = (some[-1].bounds.position for some in (first, second))
    bronze = DeltaBronze(project.bronze, durability="os")
    state = bronze.begin_stream("test", begun)
    copied = []
    for chunk, relation in enumerate(TABLES):  # of the second table a part: then the copy broke off
        there = state_at(first, relation)
        bronze.append_snapshot("initial-1", chunk, relation, rows_of(there, relation), 1000 * chunk, begun)
        copied.append(CopiedTable(relation.table, relation.layout, len(there), 1, begun))
    bronze.append([raw_transaction(one) for one in second[20:]][:10])
    anew = state_at(second, WHOLE)
    bronze.append_snapshot(f"initial-1-{later}", 0, WHOLE, rows_of(anew, WHOLE), 0, later)
    copied[1] = CopiedTable(WHOLE.table, WHOLE.layout, len(anew), 1, later)
    control = control_tables(project)
    record_copy(control, state, COMPLETE, copied)

    advance(project, spark)
    assert_silver(project, transactions[:30], PLAIN)
    assert_silver(project, second, WHOLE)
    assert last_cut(control, "test") is None, "there is none before both tables are at one position"
    bronze.append([raw_transaction(one) for one in transactions[30:]])
    advance(project, spark)
    assert_silver(project, transactions, *TABLES)
    cut = last_cut(control, "test")
    assert cut is not None
    assert {(t.state, t.position) for t in cut.tables.values()} == {(ACTIVE, transactions[-1].bounds.position)}
