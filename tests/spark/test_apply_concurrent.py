"""Two appliers on one lake: what was prepared on an older state is refused, whole, on both formats."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.control.coordination import apply_lease
from cdc_lake.errors import AnotherApply, ConcurrentModification, OtherWriter, SilverRestored
from cdc_lake.model.change import UNCHANGED, OldKind, Update
from cdc_lake.model.position import Span
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.applier import apply
from cdc_lake.runtime.apply.merge import merge
from cdc_lake.runtime.apply.rebuild import rebuild
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.runtime.apply.span_planning import TableTask
from cdc_lake.runtime.apply.table_span import MergePlan, prepare
from cdc_lake.silver.row_tracing import NOTHING_WAITS
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.delta_silver import DeltaSilver
from cdc_lake.tables.iceberg_table_log import iceberg_table
from cdc_lake.tables.open_silver_table import store
from cdc_lake.tables.silver_table import Marker
from cdc_lake.tables.spark_session import derive
from tests.seeds import one_seed
from tests.tally import tally

from .committed_lake import LOOKED_AT, Told
from .formats import FORMATS, either
from .test_apply_cases import Lake, T, insert, row

pytestmark = pytest.mark.spark
LONG = os.environ.get("CDC_LAKE_BUDGET", "1") != "1"
ROUNDS = 10 if LONG else 1
STATES = ["older", "gone", "foreign", "torn", "behind a cleaned log"]
"""What may have become of a checkpoint; with a small budget two of them, by the seed."""


def chosen(lake: Lake, after: int, upto: int) -> TableTask:
    """A span as another process would have chosen it."""
    reader, target, span = BronzeReader(lake.project.bronze), lake.target(), Span(1, after, upto)
    stood, layouts = lake.marker(), reader.layouts([T.table])
    return TableTask(lake.project, target, "test", span, reader.files(), layouts, NOTHING_WAITS, stood)


def plan(lake: Lake, after: int, upto: int) -> MergePlan:
    """A span as another process would have prepared it, in a session of its own."""
    prepared = prepare(derive(lake.spark), chosen(lake, after, upto))
    assert prepared is not None
    return prepared


def swap(one: str, other: str) -> tuple[Update, Update]:
    """Two rows exchange keys; their large values are not sent."""
    return (
        Update(T, (other, "1", UNCHANGED), (one, None, None), OldKind.KEY),
        Update(T, (one, "2", UNCHANGED), (other, None, None), OldKind.KEY),
    )


@FORMATS
@pytest.mark.obeys("LAK412")
def test_a_plan_made_before_anothers_commit_is_refused_wherever_it_ends(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = Told(lake_root, spark, "stale", fmt)
    first = lake.land(insert("1", "1", "one"), insert("2", "2", "two"))
    early = plan(lake, 10, first)
    lake.advance()
    behind = lake.land(*swap("1", "2"))
    shorter = plan(lake, first, behind)
    lake.land(insert("3", "3"))
    longer = plan(lake, first, lake.position)
    lake.land(insert("4", "4"))
    further = plan(lake, first, lake.position)
    bronze_top = lake.position
    # the other applier had seen bronze only up to the third transaction
    merge(longer)
    before = lake.marker()
    for stale in (early, shorter, longer, further):
        with pytest.raises(ConcurrentModification):
            merge(stale)
        assert lake.marker() == before
    lake.advance()
    assert lake.rows() == [row(1, 2, "two"), row(2, 1, "one"), row(3, 3), row(4, 4)]
    assert lake.marker().position == bronze_top
    lake.assert_kept()


@FORMATS
def test_a_span_chosen_before_anothers_commit_is_refused_when_it_is_prepared(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    lake = Lake(lake_root, spark, "chosen", fmt)
    first = lake.land(insert("1", "1", "one"))
    early = chosen(lake, 10, first)
    lake.advance()
    second = lake.land(insert("2", "2", "two"))
    late = chosen(lake, first, second)
    lake.advance()
    for stale in (early, late):
        with pytest.raises(ConcurrentModification):
            prepare(derive(spark), stale)


@FORMATS
def test_of_two_commits_that_overlap_one_is_refused_and_leaves_nothing(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = Lake(lake_root, spark, "overlap", fmt)
    lake.land(insert("1", "1"))
    lake.advance()
    ours, rivals = (store(derive(spark), lake.project, lake.target()) for _ in range(2))

    def put(value: int, meanwhile: Callable[[], None] = lambda: None) -> Callable[[str], str]:
        def statement(table: str) -> str:
            meanwhile()
            return f"UPDATE {table} SET amount = {value} WHERE id = 1"

        return statement

    for number in range(ROUNDS):
        base, upto = ours.marker("test"), 1000 * (number + 1)

        def rival(known: Marker = base, upto: int = upto) -> None:
            rivals.commit("test", known, upto, put(upto))

        with pytest.raises(ConcurrentModification):
            ours.commit("test", base, upto - 100, put(40, rival))
        assert lake.rows() == [row(1, upto)]
        assert lake.marker().position == upto
    tally("R16", {"two appliers"}, rounds=ROUNDS)


def test_a_rival_that_comes_before_delta_looks_makes_the_table_wait_and_not_hold_rows_twice_unseen(
    spark: Any, lake_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(lake_root, spark, "window", "delta", defaults={"kind": "append"})
    lake.land(insert("1", "1"))
    lake.advance()
    base = lake.marker().position
    lake.land(insert("2", "2"))
    rivals = plan(lake, base, lake.position)
    lake.land(insert("3", "3"))
    looked = DeltaSilver._check_base  # the last look at the watermark

    def meanwhile(silver: DeltaSilver, stream: str, known: Marker) -> None:
        looked(silver, stream, known)
        monkeypatch.undo()
        merge(rivals)

    monkeypatch.setattr(DeltaSilver, "_check_base", meanwhile)
    for _ in range(2):  # at once, and at every later start
        with pytest.raises(OtherWriter, match="another apply process"):
            lake.advance()
        lake.land(insert("4", "4"))
    rebuild(lake.project, "public.t", spark=spark)
    lake.advance()
    assert [one["id"] for one in lake.rows()] == [1, 2, 3, 4, 4]


def test_a_second_apply_on_one_machine_is_refused_before_it_does_anything(spark: Any, lake_root: Path) -> None:
    lake = Told(lake_root, spark, "leased", "delta")
    lake.land(insert("1", "1"))
    with apply_lease(lake.project), pytest.raises(AnotherApply) as refused:
        lake.apply()
    assert refused.value.exit_status == 4
    lake.apply()
    assert lake.rows() == [row(1, 1)]
    lake.assert_kept()
    tally("R13", ["two deployments of one name apply"], losses=1, refused=1)


@FORMATS
def test_cuts_that_were_lost_come_back_true(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = Told(lake_root, spark, "cuts", fmt)
    positions = []
    for n in range(1, 5):
        positions.append(lake.land(insert(str(n), str(n))))
        lake.advance()
    cuts = ControlTables(lake.project.control)
    cuts.delete("cuts", pc.field("position") > positions[0])
    short = lake.project.pipeline.apply.model_copy(update={"span_rows": 1})  # spans end between the cut and the table
    lake.project = replace(lake.project, pipeline=lake.project.pipeline.model_copy(update={"apply": short}))
    lake.advance()
    lake.assert_kept()
    last = cuts.last_cut("test")
    assert last is not None
    assert last.position == positions[-1]
    cuts.delete("cuts", pc.field("position") > 0)
    apply(lake.project, once=True, goal=positions[1], stop=threading.Event(), report=silent, spark=spark)
    lake.judged().assert_held(*LOOKED_AT)
    lake.apply()
    lake.assert_kept()
    assert lake.rows() == [row(n, n) for n in range(1, 5)]
    tally("R13", ["cuts lost"], losses=2)


@pytest.mark.parametrize("state", STATES if LONG else random.Random(one_seed()).sample(STATES, 2))
def test_a_checkpoint_is_only_a_hint(spark: Any, lake_root: Path, tmp_path: Path, state: str) -> None:
    lake = Told(lake_root, spark, f"hint_{state[:4]}", "delta")
    checkpoint, log = lake.project.checkpoint, lake.project.bronze / "_delta_log"
    lake.land(insert("1", "1"))
    lake.apply()
    shutil.copytree(checkpoint, tmp_path / "older")
    lake.land(insert("2", "2"))
    lake.apply()
    if state == "gone":
        shutil.rmtree(checkpoint)
    elif state == "torn":
        newest = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda f: int(f.name))
        newest.write_text("v1\n{")
    else:
        shutil.rmtree(checkpoint)
        shutil.copytree(tmp_path / "older", checkpoint)
    if state == "foreign":
        for file in (checkpoint / "offsets").glob("[0-9]*"):
            header, metadata, offset = file.read_text().split("\n")
            moved = json.loads(offset) | {"reservoirId": "00000000-0000-0000-0000-000000000000"}
            file.write_text("\n".join([header, metadata, json.dumps(moved)]))
        for crc in (checkpoint / "offsets").glob(".*.crc"):
            crc.unlink()
    if state == "behind a cleaned log":
        table = DeltaTable(str(lake.project.bronze))
        table.create_checkpoint()
        for file in log.glob("*.json"):
            if int(file.stem) < table.version():
                file.unlink()
    for n in (3, 4):
        lake.land(insert(str(n), str(n)))
        lake.apply()
    assert lake.rows() == [row(n, n) for n in range(1, 5)]
    aside = list(checkpoint.parent.glob(f"{checkpoint.name}.aside-*"))
    assert len(aside) == (state not in {"older", "gone"})
    lake.assert_kept()
    tally("R13", [f"checkpoint {state}"], losses=1)


def put_back(lake: Lake, version: int) -> None:
    """What somebody does by hand, to an older version or forward again."""
    if lake.target().format == "delta":
        DeltaTable(str(lake.project.silver_path(lake.target()))).restore(version)
        return
    table = iceberg_table(lake.project, lake.target())
    assert table is not None
    with table.manage_snapshots() as snapshots:
        snapshots.set_current_snapshot(version)


@FORMATS
def test_a_table_that_was_put_back_waits_until_it_is_put_forward_or_rebuilt(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    lake = Told(lake_root, spark, "back", fmt)
    lake.land(insert("1", "1"))
    lake.advance()
    older = lake.marker().version
    lake.land(insert("2", "2"))
    lake.advance()
    newest = lake.marker().version
    put_back(lake, older)
    for _ in range(2):  # also where nothing came meanwhile, and again
        with pytest.raises(SilverRestored):
            lake.advance()
    lake.land(insert("3", "3"))
    with pytest.raises(SilverRestored):
        lake.advance()
    assert lake.rows() == [row(1, 1)]
    put_back(lake, newest)
    lake.advance()
    assert lake.rows() == [row(n, n) for n in range(1, 4)]
    put_back(lake, older)
    with pytest.raises(SilverRestored):
        lake.advance()
    rebuild(lake.project, "public.t", spark=spark)
    lake.land(insert("4", "4"))
    lake.advance()
    assert lake.rows() == [row(n, n) for n in range(1, 5)]
    verdict = lake.judged(applied=True)
    assert verdict.broken.keys() <= {"I5"}, str(verdict)  # Iceberg's history says that it was put back
    tally("R13", ["a table that its watermark is ahead of"], losses=2, refused=2)


@either("delta")
def test_rows_of_another_writer_make_a_table_wait_or_are_told_as_the_pipeline_says(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    lake = Lake(lake_root, spark, "others", fmt)
    lake.land(insert("1", "1"))
    lake.advance()
    session = derive(spark)
    session.sql(f"INSERT INTO {store(session, lake.project, lake.target()).name} VALUES (9, 9, 'b')")
    lake.land(insert("2", "2"))
    for _ in range(2):
        with pytest.raises(OtherWriter):
            lake.advance()
    assert lake.rows() == [row(1, 1), row(9, 9)]
    warns = lake.project.pipeline.apply.model_copy(update={"other_writers": "warn"})
    lake.project = replace(lake.project, pipeline=lake.project.pipeline.model_copy(update={"apply": warns}))
    told: list[str] = []
    for number in (3, 4):
        lake.land(insert(str(number), str(number)))
        with SpanLoop(lake.project, spark, lambda progress: told.append(progress.stage)) as advance:
            advance.run(None, threading.Event())
            assert not advance.totals.failed
    assert told.count("warning") == 1, "once, not at every span"
    assert lake.rows() == [row(1, 1), row(2, 2), row(3, 3), row(4, 4), row(9, 9)]


@pytest.mark.parametrize(
    ("kind", "fmt"),
    [("current", "iceberg"), ("append", "delta"), *([("current", "delta"), ("append", "iceberg")] if LONG else ())],
)
def test_a_plan_made_before_a_rebuild_is_refused_behind_it_and_a_rebuild_behind_a_commit(
    spark: Any, lake_root: Path, fmt: str, kind: str
) -> None:
    lake = Told(lake_root, spark, f"swap_{kind}", fmt, defaults={"kind": kind})
    first = lake.land(insert("1", "1"))
    lake.advance()
    lake.land(insert("2", "2"))
    stale = plan(lake, first, lake.position)
    before = lake.marker()
    rebuild(lake.project, "public.t", spark=spark)
    swapped = lake.marker()
    assert (swapped.position, swapped.generation) == (before.position, 2)
    with pytest.raises(ConcurrentModification):
        merge(stale)
    assert lake.marker() == swapped
    lake.advance()
    assert [r["id"] for r in lake.rows()] == [1, 2]
    lake.assert_kept()
    session = derive(spark)
    silver = store(session, lake.project, lake.target())
    columns = silver.columns()
    assert columns is not None
    newest = lake.marker()
    with pytest.raises(ConcurrentModification):
        silver.replace("test", swapped, 3, first, columns, f"SELECT * FROM {silver.name}")
    assert lake.marker() == newest
