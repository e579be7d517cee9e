"""Silver stops before what could not be decoded, for every table, and after a retry is as if nothing had failed."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Project
from cdc_lake.control.cuts import last_cut
from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.undecodable import PgoutputFormat, StoreUndecodable
from cdc_lake.errors import MalformedMessage, TransactionUndecoded
from cdc_lake.model.change import Transaction
from cdc_lake.model.position import Lsn
from cdc_lake.observability.events import ProgressEvent, ProgressReporter, silent
from cdc_lake.runtime.apply.applier import apply
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.runtime.redecode import retry
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake_testing.beside import beside, until
from cdc_lake_testing.histories import History, interleave
from cdc_lake_testing.messages import raw_transaction, table
from cdc_lake_testing.oracle import Oracle
from tests.pipeline_file import make_project

pytestmark = pytest.mark.spark
SEED = 20
ONE, TWO = table("public.one", id="int4", body="text"), table("public.two", id="int4", body="text")


def refusing(positions: set[int]) -> Any:
    def faulty(batch: Sequence[Any]) -> ChangeColumns:
        if any(raw.bounds.position in positions for raw in batch):
            raise MalformedMessage("a fault")
        return tabulate(batch)

    return faulty


def advance(project: Project, spark: Any) -> None:
    with SpanLoop(project, spark, silent) as walking:
        walking.run(None, threading.Event())
        for error in walking.totals.failed.values():
            raise error


def silver(project: Project, relation: Any) -> dict[str, str | None]:
    """Body by id."""
    return {
        str(row["id"]): row["body"] for row in table_log(project, project.target(relation.table)).read().to_pylist()
    }


@pytest.mark.obeys("STA655")
def test_silver_stops_before_it_and_after_a_retry_equals_the_source(spark: Any, lake_root: Path):
    print(f"seed {SEED}")
    project = make_project(
        lake_root,
        "undecodable",
        silver={"defaults": {"namespace": "undecodable"}},
        snapshot={"mode": "none"},
        bronze={"undecodable": "land"},
    )
    history = interleave(SEED, [History(SEED, [ONE, TWO])], 10)
    odd = {t.bounds.position for t in random.Random(SEED).sample(history[4:], 2)}
    writer = DeltaBronze(project.bronze, durability="os")
    writer.begin_stream("undecodable", 10)
    form = PgoutputFormat(refusing(odd))
    for first in range(0, len(history), 4):
        writer.append([raw_transaction(t) for t in history[first : first + 4]], StoreUndecodable(form))

    with pytest.raises(TransactionUndecoded) as stopped:
        advance(project, spark)
    first = min(odd)
    assert stopped.value.code == "STA655"
    cut = last_cut(ControlTables(project.control), "undecodable")
    before = [t for t in history if t.bounds.position < first]
    assert cut is not None
    assert cut.position == before[-1].bounds.position
    assert all(state.position <= cut.position for state in cut.tables.values())
    _equal(project, before)

    assert retry(project, first, silent).failed_count == 0
    told: list[ProgressEvent] = []
    with running(project, spark, told.append):  # a run without end goes on to the next one, says so, and waits
        until(lambda: any(f"{_shown(sorted(odd)[1])} is in bronze as bytes" in one.text for one in told))
        assert retry(project, None, silent).failed_count == 0
        until(lambda: _cut(project) == history[-1].bounds.position)
    _equal(project, history)


def running(project: Project, spark: Any, tell: ProgressReporter) -> AbstractContextManager[Any]:
    """Apply without end, in a thread of its own."""
    return beside(lambda stop: apply(project, once=False, stop=stop, report=tell, spark=spark))


def _shown(position: int) -> str:
    return str(Lsn(position))


def _cut(project: Project) -> int | None:
    cut = last_cut(ControlTables(project.control), "undecodable")
    return None if cut is None else cut.position


def _equal(project: Project, history: Sequence[Transaction]) -> None:
    state = Oracle().run(history)
    for relation in (ONE, TWO):
        wanted = {key[0]: row["body"] for key, row in state.get(relation.table, {}).items()}
        assert silver(project, relation) == wanted
