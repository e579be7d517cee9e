"""Upkeep of silver on both formats: rows, pinned versions and the marker stay, apply goes on, whoever comes first."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.control.cuts import ACTIVE, PinnedCut, TableState, kept_versions, last_cut, parse_cut, record
from cdc_lake.errors import SilverBusy, SilverMissing
from cdc_lake.model.change import UNCHANGED, Update
from cdc_lake.model.position import Span
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.table_planner import Load, TablePlanner
from cdc_lake.runtime.maintain import maintain_silver
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.iceberg_table_log import iceberg_table
from cdc_lake.tables.maintenance import (
    DeltaSilverMaintenance,
    IcebergSilverMaintenance,
    Keep,
    MaintenanceStep,
    retry_on_conflict,
    spent_versions,
)
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.spark_session import derive

from .conftest import BUDGET
from .formats import FORMATS
from .test_apply_cases import Lake, T, insert, row

pytestmark = pytest.mark.spark


def upkeep(lake: Lake, *versions: int, age: timedelta = -timedelta(minutes=9)) -> Iterator[MaintenanceStep]:
    """What is not among `versions` is old above `age`, by default already now: then nobody may write meanwhile."""
    session, target, now = derive(lake.spark), lake.target(), datetime.now(UTC)
    if target.format == "delta":
        keep = Keep(frozenset(versions), now - age)
        return DeltaSilverMaintenance(session, lake.project, target, timedelta(milliseconds=1)).run_steps(keep, now)
    keep = Keep(frozenset(versions), now + timedelta(days=1))
    return IcebergSilverMaintenance(session, lake.project, target).run_steps(keep, now)


def filled(root: Path, spark: Any, name: str, fmt: str, spans: int = 2) -> tuple[Lake, list[int]]:
    """A lake after some spans, and the version that each of them made; the third one changes a row, so that its file is
    written anew.
    """
    lake, versions = Lake(root, spark, name, fmt), []
    for n in range(spans):
        lake.land(insert(str(n), str(n)), *([Update(T, ("0", "7", UNCHANGED))] if n == 2 else []))
        lake.advance()
        versions.append(lake.marker().version)
    return lake, versions


@FORMATS
def test_after_upkeep_everything_reads_the_same_and_only_pinned_versions_are_left(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    lake, versions = filled(lake_root, spark, "upkept", fmt, spans=4)
    then, now, marker = _rows(lake, versions[1]), _rows(lake), lake.marker()
    control = ControlTables(lake.project.control)
    pinned = parse_cut(next(r for r in _cuts(control) if f'"version": {versions[1]},' in r.tables))
    record(control, PinnedCut("month_end", scheduled=False, cut=pinned, until=None), datetime.now(UTC))
    kept = kept_versions(control, datetime.now(UTC))["public.t"]
    assert {versions[1], versions[-1]} <= kept

    steps = [step.part for step in upkeep(lake, *kept)]
    # Delta keeps all versions from the oldest pinned one on, and what is younger than an hour.
    assert steps == (["compaction"] if fmt == "delta" else ["compaction", "expiry"])
    assert _rows(lake) == now
    assert _rows(lake, versions[1]) == then
    assert lake.marker().position == marker.position
    if fmt == "iceberg":
        with pytest.raises(SilverMissing):
            _rows(lake, versions[0])
    assert [step.part for step in upkeep(lake, *kept)] == [], "nothing is left to do"

    lake.land(Update(T, ("0", "8", UNCHANGED)), insert("9", "9"))
    lake.advance()
    assert _rows(lake) == sorted([*({**r, "amount": 8} if r["id"] == 0 else r for r in now), row(9, 9)], key=_id)
    assert _rows(lake, versions[1]) == then
    if fmt == "delta":
        now = _rows(lake)
        assert [step.part for step in upkeep(lake)][-1] == "removal"  # a merge may leave nothing to put together
        assert _rows(lake) == now
        with pytest.raises(Exception, match=r"not there|No such file|not found"):
            _rows(lake, versions[1])


@FORMATS
def test_upkeep_that_was_broken_off_anywhere_goes_on(spark: Any, lake_root: Path, fmt: str) -> None:
    lake, _ = filled(lake_root, spark, "broken_off", fmt)
    now = _rows(lake)
    for n in range(2 if BUDGET == 1 else 3):
        steps = upkeep(lake)
        next(steps, None)
        steps.close()  # as if killed behind the step
        lake.land(Update(T, ("0", str(n), UNCHANGED)))
        lake.advance()
        assert _rows(lake) == [{**r, "amount": n} if r["id"] == 0 else r for r in now]
    list(upkeep(lake))
    assert list(upkeep(lake)) == []
    assert _rows(lake) == [{**r, "amount": n} if r["id"] == 0 else r for r in now]


@FORMATS
def test_a_merge_that_was_planned_before_upkeep_is_planned_again_and_done_once(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    lake, _ = filled(lake_root, spark, "meets", fmt)
    state = bronze_reader(lake.project).state()
    assert state is not None
    cut = last_cut(ControlTables(lake.project.control), "test")
    assert cut is not None
    upto = lake.land(Update(T, ("0", "30", UNCHANGED)), insert("9", "9"))
    tables: dict[str, TableState] = dict(cut.tables)
    with TablePlanner(lake.project, lake.spark, silent) as planner:
        state = replace(state, upto=upto)
        span = Span(state.epoch, cut.position, upto)
        prepared = planner.prepare(planner.plan_span(state, tables, ["public.t"], span, Load(2, 100)))
        assert "compaction" in [step.part for step in upkeep(lake)]
        tables = planner.merge(prepared)
    assert tables["public.t"].state == ACTIVE
    assert lake.marker().position == upto
    assert [r["amount"] for r in _rows(lake) if r["id"] in (0, 9)] == [30, 9]


@FORMATS
def test_upkeep_beside_a_running_apply_loses_or_wins_and_both_end(spark: Any, lake_root: Path, fmt: str) -> None:
    lake, _ = filled(lake_root, spark, "beside", fmt)
    over, busy = threading.Event(), 0

    def keep_up() -> None:
        nonlocal busy
        while not over.is_set():
            try:
                list(upkeep(lake, age=timedelta(hours=1)))
            except SilverBusy:
                busy += 1

    beside = threading.Thread(target=keep_up)
    beside.start()
    rounds = 2 if BUDGET == 1 else 3 * BUDGET
    try:
        for n in range(rounds):
            lake.land(Update(T, ("0", str(100 + n), UNCHANGED)), insert(str(10 + n), "1"))
            lake.advance()
    finally:
        over.set()
        beside.join()
    print(f"{busy} times busy")
    assert [r["amount"] for r in _rows(lake) if r["id"] == 0] == [99 + rounds]
    assert len(_rows(lake)) == 2 + rounds


def test_the_way_to_the_marker_is_never_cut(spark: Any, lake_root: Path) -> None:
    lake, versions = filled(lake_root, spark, "marked", "iceberg", spans=3)
    session = derive(spark)
    for _ in range(2):  # two versions without a marker above the last one that has it
        session.sql(f"CALL lake.system.rewrite_manifests(table => '{lake.target().label}')")
    table = iceberg_table(lake.project, lake.target())
    assert table is not None
    head = table.current_snapshot()
    assert head is not None
    assert head.snapshot_id != versions[-1]
    late = datetime.now(UTC) + timedelta(days=9)

    def spent(*kept: int) -> list[int]:
        return [one for one in spent_versions(table, Keep(frozenset(kept), late)) if one in versions]

    assert spent() == versions[:2]
    assert spent(versions[0]) == []  # all are on the way to a pinned one
    assert spent(versions[1]) == versions[:1]


@FORMATS
def test_maintain_says_of_every_table_what_it_did(spark: Any, lake_root: Path, fmt: str) -> None:
    lake, _ = filled(lake_root, spark, "said", fmt)
    state = bronze_reader(lake.project).state()
    assert state is not None
    now = datetime.now(UTC)
    planned = maintain_silver(lake.project, state, dry_run=True, now=now, report=silent, spark=spark)
    done = maintain_silver(lake.project, state, dry_run=False, now=now, report=silent, spark=spark)
    assert [(t.table, [s.part for s in t.steps]) for t in planned] == [(lake.target().label, ["compaction"])]
    assert [(t.table, [s.part for s in t.steps]) for t in done] == [(lake.target().label, ["compaction"])]
    facts = done[0].steps[0].facts
    assert facts["into"] == 1
    assert facts["files"] == planned[0].steps[0].facts["files"]
    assert json.dumps(facts)


@pytest.mark.obeys("LAK478")
def test_a_step_that_always_loses_is_said_and_wins_when_less_is_applied(spark: Any, lake_root: Path) -> None:
    lake, rivals = Lake(lake_root, spark, "loses", "delta"), iter([ValueError] * 3)

    def work() -> None:
        for rival in rivals:
            raise rival

    with pytest.raises(SilverBusy, match="3 times"):
        retry_on_conflict(work, lake.target(), lambda _: True)
    retry_on_conflict(work, lake.target(), lambda _: True)


def _id(r: dict[str, Any]) -> int:
    return int(r["id"])


def _rows(lake: Lake, version: int | None = None) -> list[dict[str, Any]]:
    return sorted(table_log(lake.project, lake.target()).read(version).to_pylist(), key=_id)


def _cuts(control: ControlTables) -> list[Any]:
    return list(control.cuts(control.cut_places()))
