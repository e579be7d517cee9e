"""Silver stops before what could not be decoded, for every table, and after a retry is as if nothing had failed."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Project
from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.columnar import tabulate
from cdc_lake.decode.kept import PgoutputFormat
from cdc_lake.decode.undecodable import Landing
from cdc_lake.errors import MalformedMessage, TransactionUndecoded
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.read import read_silver
from cdc_lake.model.transaction import Transaction
from cdc_lake.observe.progress import Progress, silent
from cdc_lake.pipeline.advance import Advance
from cdc_lake.pipeline.cuts import last_cut
from cdc_lake.pipeline.redecode import retry
from cdc_lake.testing.histories import History, interleave
from cdc_lake.testing.messages import raw_transaction, table
from cdc_lake.testing.oracle import Oracle

from .conftest import make_project

pytestmark = pytest.mark.spark
SEED = 20
ONE, TWO = table("public.one", id="int4", body="text"), table("public.two", id="int4", body="text")


def refusing(positions: set[int]) -> Any:
    def faulty(batch: Sequence[Any]) -> ChangeColumns:
        if any(raw.bounds.position in positions for raw in batch):
            raise MalformedMessage("a fault")
        return tabulate(batch)

    return faulty


def advance(project: Project, spark: Any, *, waits: bool = False, told: list[Progress] | None = None) -> None:
    tell = silent if told is None else told.append
    with Advance(project, spark, tell, waits=waits) as walking:
        walking.run(None, threading.Event())
        for error in walking.done.broken.values():
            raise error


def silver(project: Project, relation: Any) -> dict[str, str | None]:
    """Body by id."""
    return {str(row["id"]): row["body"] for row in read_silver(project, project.target(relation.table)).to_pylist()}


def test_silver_stops_before_it_and_after_a_retry_equals_the_source(spark: Any, lake_root: Path):
    print(f"seed {SEED}")
    project = make_project(
        lake_root,
        "undecodable",
        silver={"defaults": {"namespace": "undecodable"}},
        snapshot={"mode": "none"},
        bronze={"undecodable": "land"},
    )
    history = interleave(SEED, [History(SEED, [ONE, TWO])], 12)
    odd = {t.bounds.position for t in random.Random(SEED).sample(history[4:], 3)}
    writer = DeltaBronze(project.bronze, durability="os")
    writer.begin_stream("undecodable", 10)
    form = PgoutputFormat(refusing(odd))
    for first in range(0, len(history), 4):
        writer.append([raw_transaction(t) for t in history[first : first + 4]], Landing(form))

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

    told: list[Progress] = []
    advance(project, spark, waits=True, told=told)  # a run without end says it and waits
    assert any("silver waits" in progress.text for progress in told)

    assert retry(project, first, silent).failed == 0
    with pytest.raises(TransactionUndecoded):
        advance(project, spark)
    _equal(project, [t for t in history if t.bounds.position < sorted(odd)[1]])
    assert retry(project, None, silent).failed == 0
    advance(project, spark)
    _equal(project, history)


def _equal(project: Project, history: Sequence[Transaction]) -> None:
    state = Oracle().run(history)
    for relation in (ONE, TWO):
        wanted = {key[0]: row["body"] for key, row in state.get(relation.table, {}).items()}
        assert silver(project, relation) == wanted
