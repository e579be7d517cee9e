"""Apply beside upkeep: a stream on bronze sees nothing in it, survives a log that goes on without it, misses nothing."""

from __future__ import annotations

import datetime as dt
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze import compaction
from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.errors import SpanTrimmed
from cdc_lake.observability.events import ProgressEvent, silent
from cdc_lake.runtime.apply.applier import apply
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake_testing.faults import assert_cuts_are_true
from tests.tally import tally

from .test_apply_cases import Lake, insert, row

pytestmark = pytest.mark.spark
LATER = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)


def keep_up(lake: Lake, *, trim_upto: int | None = None) -> None:
    """Everything upkeep does, as if a day had passed."""
    table = DeltaBronzeTable(lake.project.bronze)
    compaction.prepare(table)
    if trim_upto is not None:
        trim = compaction.trimmable(table.files(), (1, trim_upto), LATER)
        assert trim is not None
        assert compaction.trim(table, trim)
    compaction.compact(table, 2, ignore_tiers=True)
    compaction.tidy(table, 3600.0, time.time() + 90_000)


def test_a_stream_goes_on_through_compaction_retention_and_a_log_that_went_on_without_it(
    spark: Any, lake_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(lake_root, spark, "kept", "delta")
    gate, waiting, stop, told = threading.Event(), threading.Event(), threading.Event(), list[ProgressEvent]()
    gate.set()
    run = SpanLoop.run

    def gated(self: SpanLoop, *given: Any) -> None:
        if not gate.is_set():
            waiting.set()
            assert gate.wait(240)
        run(self, *given)

    monkeypatch.setattr(SpanLoop, "run", gated)
    ids = iter(range(1, 1000))

    def land(count: int) -> None:
        for _ in range(count):
            lake.land(insert(str(next(ids)), "1"))

    def applied() -> None:
        end = time.monotonic() + 240
        while (marker := lake.marker().position) is None or marker < lake.position:
            assert time.monotonic() < end, "not applied in time"
            assert thread.is_alive()
            time.sleep(0.05)

    def service() -> None:
        apply(lake.project, once=False, stop=stop, report=told.append, spark=spark)

    land(4)
    thread = threading.Thread(target=service)
    thread.start()
    try:
        applied()
        land(3)
        keep_up(lake)
        land(3)
        applied()
        keep_up(lake, trim_upto=lake.position - 10)
        land(2)
        applied()
        gate.clear()
        land(2)
        assert waiting.wait(240)
        land(45)  # while a span takes its time
        keep_up(lake)
        land(1)
        gate.set()
        applied()
        time.sleep(1)
        land(2)
        applied()
    finally:
        gate.set()
        stop.set()
        thread.join(240)
    assert lake.rows() == [row(n, 1) for n in range(1, next(ids))]
    assert_cuts_are_true(lake.project)
    assert sum("set aside" in progress.text for progress in told) <= 3, "once for each time that upkeep was done"


def test_a_table_that_stands_below_what_left_bronze_is_refused(spark: Any, lake_root: Path) -> None:
    lake = Lake(lake_root, spark, "trimmed", "delta")
    lake.land(insert("1", "1"))
    lake.advance()
    for n in range(2, 6):
        lake.land(insert(str(n), "1"))
    keep_up(lake, trim_upto=lake.position - 10)
    with pytest.raises(SpanTrimmed, match=r"bronze begins after .*public\.t is applied only up to"):
        apply(lake.project, once=True, stop=threading.Event(), report=silent, spark=spark)
    assert lake.rows() == [row(1, 1)]
    tally("R13", ["bronze let go behind the reader"], losses=1, refused=1)
