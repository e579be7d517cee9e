"""Rebuild: a silver table again from bronze, in one commit of a new generation, on Delta and on Iceberg.

Where the format makes no difference to what is shown one of them is taken, both with `CDC_LAKE_BUDGET` 10.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lake.config.model import SilverTable
from cdc_lake.config.project import Project
from cdc_lake.control.cuts import last_cut
from cdc_lake.errors import (
    DestructiveChange,
    KindChanged,
    PositionUnavailable,
    RebuildNeedsPlace,
    RebuildPlaceTaken,
    SilverLost,
)
from cdc_lake.model.change import UNCHANGED, Delete, Insert, OldKind, Update
from cdc_lake.observability.failpoints import BRANCH_WRITTEN, REBUILT, REPLACED
from cdc_lake.runtime.apply.rebuild import Rebuilt, rebuild
from cdc_lake.runtime.quarantine import list_quarantine
from cdc_lake.silver.kinds import Columns
from cdc_lake.tables import open_silver_table
from cdc_lake.tables.control_schema import SnapshotRow, utc_now
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake_testing.broken_off import broken_off
from cdc_lake_testing.faults import assert_cuts_are_true
from cdc_lake_testing.messages import table

from .formats import FORMATS, either
from .test_apply_cases import Lake, T, insert, row

pytestmark = pytest.mark.spark

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
UPTO_10 = {"rule": "between", "column": "amount", "max": 10, "on_fail": "quarantine"}


def again(lake: Lake, **options: Any) -> Rebuilt:
    return rebuild(lake.project, "public.t", spark=lake.spark, **options)


def configure(lake: Lake, **defaults: Any) -> None:
    """The pipeline file says something else from now on."""
    silver = lake.project.pipeline.silver
    changed = silver.model_copy(update={"defaults": silver.defaults.model_copy(update=defaults)})
    lake.project = replace(lake.project, pipeline=lake.project.pipeline.model_copy(update={"silver": changed}))


def rules(lake: Lake, *given: dict[str, Any]) -> None:
    silver = lake.project.pipeline.silver
    changed = silver.model_copy(update={"tables": [SilverTable(from_="public.t", rules=[*given])]})
    lake.project = replace(lake.project, pipeline=lake.project.pipeline.model_copy(update={"silver": changed}))


def assert_a_copy_and_a_change_are_rebuilt(lake: Lake) -> None:
    """An initial copy of two rows at position 10, and a change of one: the draft is written, then merged into."""
    of = lake.project.pipeline.snapshot.model_copy(update={"mode": "initial"})
    lake.project = replace(lake.project, pipeline=lake.project.pipeline.model_copy(update={"snapshot": of}))
    lake.bronze.append_snapshot("initial-1", 0, T, pa.array([["1", "10", "a"], ["2", None, None]]), 0, 10)
    copied = [{"relation": "public.t", "layout": T.layout, "rows": 2, "chunks": 1}]
    ControlTables(lake.project.control).record(
        SnapshotRow("initial-1", "test", 1, 10, json.dumps(copied), "complete", utc_now())
    )
    lake.land(Update(T, ("1", "11", UNCHANGED)))
    lake.advance()
    done = again(lake)
    assert (done.difference.added, done.difference.removed, done.difference.changed) == (0, 0, 0)
    assert lake.rows() == [row(1, 11, "a"), row(2, None, None)]


def named(project: Project, name: str) -> Any:
    return replace(project.target(T.table), name=name)


@either("iceberg")
def test_what_something_else_spoilt_is_mended_and_the_old_version_stays_readable(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    lake = Lake(lake_root, spark, "mended", fmt)
    lake.land(insert("1", "1", "large"), insert("2", "2"), insert("3", "3"))
    lake.land(Update(T, ("1", "5", UNCHANGED)), Delete(T, ("3", None, None), OldKind.KEY))
    lake.advance()
    name = f"delta.`{lake.project.silver_path(lake.target())}`" if fmt == "delta" else f"lake.mended_{fmt}.t"
    spark.sql(f"UPDATE {name} SET amount = 99 WHERE id = 1")
    spark.sql(f"DELETE FROM {name} WHERE id = 2")
    if fmt == "delta":
        spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 9 days')")
    before = lake.marker()
    seen = again(lake, dry_run=True, keys=5)
    assert (seen.version, lake.marker()) == (None, before)
    assert (seen.difference.added, seen.difference.removed, seen.difference.changed) == (1, 0, 1)
    assert seen.difference.keys == {"added": [("2",)], "changed": [("1",)]}
    done = again(lake)
    assert (done.generation, done.position, done.difference.keys) == (2, "0/78", {})
    assert lake.rows() == [row(1, 5, "large"), row(2, 2)]
    assert (lake.marker().position, lake.marker().generation) == (before.position, 2)
    if fmt == "delta":
        kept = spark.sql(f"SHOW TBLPROPERTIES {name}").collect()
        assert ("delta.deletedFileRetentionDuration", "interval 9 days") in [tuple(one) for one in kept]
    old = table_log(lake.project, lake.target()).read(before.version).to_pylist()
    assert sorted(r["amount"] for r in old) == [99]
    lake.land(insert("4", "4"), Update(T, ("1", "6", UNCHANGED)))
    lake.advance()
    assert lake.rows() == [row(1, 6, "large"), row(2, 2), row(4, 4)]
    assert_cuts_are_true(lake.project)


KINDS = [("history", "iceberg"), ("append", "delta")]
OTHERS = [("soft", "delta"), ("history", "delta"), ("append", "iceberg"), ("soft", "iceberg")]


@pytest.mark.parametrize(("kind", "fmt"), [*KINDS, *(OTHERS if BUDGET > 1 else ())])
def test_a_table_takes_the_kind_that_the_pipeline_says_now(spark: Any, lake_root: Path, fmt: str, kind: str) -> None:
    lake = Lake(lake_root, spark, f"becomes_{kind}", fmt)
    one = lake.land(insert("1", "1", "large"), insert("2", "2"))
    two = lake.land(Update(T, ("1", "5", UNCHANGED)), Delete(T, ("2", None, None), OldKind.KEY))
    lake.advance()
    configure(lake, **({"deletes": "soft"} if kind == "soft" else {"kind": kind}))
    three = lake.land(insert("3", "3"))
    with pytest.raises(KindChanged):
        lake.advance()
    done = again(lake)
    assert (done.difference.added, done.difference.before) == (None, 1)
    four = lake.land(insert("4", "4"))
    lake.advance()
    columns, expected = {
        "history": (
            ("id", "amount", "body", "valid_from", "valid_to", "is_current"),
            [
                (1, 1, "large", one, two, False),
                (1, 5, "large", two, None, True),
                (2, 2, "b", one, two, False),
                (3, 3, "b", three, None, True),
                (4, 4, "b", four, None, True),
            ],
        ),
        "append": (
            ("_position", "_ordinal", "_op", "id", "amount", "body"),
            [
                (one, 1, "I", 1, 1, "large"),
                (one, 2, "I", 2, 2, "b"),
                (two, 1, "U", 1, 5, None),
                (two, 2, "D", 2, None, None),
                (three, 1, "I", 3, 3, "b"),
                (four, 1, "I", 4, 4, "b"),
            ],
        ),
        "soft": (
            ("id", "amount", "body", "_is_deleted"),
            [(1, 5, "large", False), (2, 2, "b", True), (3, 3, "b", False), (4, 4, "b", False)],
        ),
    }[kind]
    found = table_log(lake.project, lake.target()).read().to_pylist()
    assert sorted((tuple(r[name] for name in columns) for r in found), key=lambda r: r[:2]) == expected


@either("delta")
def test_a_table_whose_columns_changed_at_the_source_is_rebuilt_with_what_a_run_would_wait_with(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    lake = Lake(lake_root, spark, "reformed", fmt)
    lake.land(insert("1", "1"), insert("2", "2"))
    lake.advance()
    other = table("public.t", id="int4", amount="text", note="text", since="timestamp")
    lake.land(
        Insert(other, ("3", "three", "n", "2026-01-02 00:00:00")), Update(other, ("1", UNCHANGED, "changed", None))
    )
    with pytest.raises(DestructiveChange):
        lake.advance()
    done = again(lake)
    assert done.difference.columns == Columns(added=("note", "since"), changed=("amount",))
    assert sorted(done.operations) == [
        f"add column note string to reformed_{fmt}.t, rows before it unknown",
        f"change column amount of reformed_{fmt}.t from int to string",
    ]
    expected = [
        {"id": 1, "amount": "1", "body": None, "note": "changed", "since": None},
        {"id": 2, "amount": "2", "body": "b", "note": None, "since": None},
        {"id": 3, "amount": "three", "body": None, "note": "n", "since": datetime(2026, 1, 2)},  # noqa: DTZ001
    ]
    assert lake.rows() == expected
    lake.land(Insert(other, ("4", "four", None, None)))
    lake.advance()
    assert lake.rows() == [*expected, {"id": 4, "amount": "four", "body": None, "note": None, "since": None}]


@either("delta")
def test_rules_judge_again_and_what_they_held_before_counts_no_more(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = Lake(lake_root, spark, "judged", fmt, [UPTO_10])
    lake.land(insert("1", "1"), insert("2", "99"), insert("3", "3"))
    lake.land(Update(T, ("2", "5", "b")))
    lake.advance()
    assert lake.rows() == [row(1, 1), row(3, 3)]
    rules(lake, {**UPTO_10, "max": 100}, {"rule": "between", "column": "id", "min": 2, "on_fail": "quarantine"})
    done = again(lake)
    assert (done.quarantined, lake.rows()) == (1, [row(2, 5), row(3, 3)])
    quarantined = ControlTables(lake.project.control).read("quarantine").to_pylist()
    assert [(r["generation"], r["key"]) for r in quarantined] == [(2, ["1"])]
    lake.land(Update(T, ("1", "7", "b")), Update(T, ("2", "8", "b")))
    lake.advance()
    assert lake.rows() == [row(2, 8), row(3, 3)]
    assert [change.key for change in list_quarantine(lake.project).changes] == [("1",), ("1",)]
    cut = last_cut(ControlTables(lake.project.control), "test")
    assert cut is not None
    assert cut.tables["public.t"].quarantined_keys == 1


@either("iceberg")
@pytest.mark.obeys("STA671", "STA672", "LAK468")
def test_the_past_is_put_into_a_table_of_its_own(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = Lake(lake_root, spark, "past", fmt)
    first = lake.land(insert("1", "1"))
    lake.land(Update(T, ("1", "2", UNCHANGED)))
    lake.advance()
    with pytest.raises(RebuildNeedsPlace):
        again(lake, to=first)
    with pytest.raises(PositionUnavailable):
        again(lake, to=lake.position + 1000, into="t_then")
    with pytest.raises(RebuildPlaceTaken):
        again(lake, to=first, into="t")
    before = lake.marker()
    done = again(lake, to=first, into="t_then")
    assert (done.table, done.difference.before, done.difference.after) == (f"past_{fmt}.t_then", None, 1)
    assert table_log(lake.project, named(lake.project, "t_then")).read().to_pylist() == [row(1, 1)]
    assert (lake.marker(), lake.rows()) == (before, [row(1, 2)])
    with pytest.raises(RebuildPlaceTaken):
        again(lake, into="t_then")


@either("delta")
def test_it_begins_with_the_rows_of_the_initial_copy(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = Lake(lake_root, spark, "copied_again", fmt)
    assert_a_copy_and_a_change_are_rebuilt(lake)
    again(lake, to=10, into="t_copy")
    found = table_log(lake.project, named(lake.project, "t_copy")).read().to_pylist()
    assert sorted(r["amount"] or 0 for r in found) == [0, 10]


@FORMATS
def test_what_was_built_may_have_rows_that_are_marked_as_gone(
    spark: Any, lake_root: Path, fmt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a draft has from 64 MB on. Delta refuses to read such a table inside of a statement that writes into another
    format; `make bench` found it.
    """
    monkeypatch.setitem(open_silver_table.MARKED_FROM, "delta", 0)
    lake = Lake(lake_root, spark, "rows_marked", fmt)
    assert_a_copy_and_a_change_are_rebuilt(lake)


def test_a_table_that_was_lost_is_made_again(spark: Any, lake_root: Path) -> None:
    lake = Lake(lake_root, spark, "found_again", "delta")
    lake.land(insert("1", "1"))
    lake.advance()
    folder = lake.project.silver_path(lake.target())
    folder.rename(folder.with_name("away"))
    with pytest.raises(SilverLost):
        lake.advance()
    again(lake)
    lake.land(insert("2", "2"))
    lake.advance()
    assert lake.rows() == [row(1, 1), row(2, 2)]


BREAKS = [(BRANCH_WRITTEN, "iceberg"), (REPLACED, "delta")]
MORE_BREAKS = [(REBUILT, "iceberg"), (REBUILT, "delta"), (REPLACED, "iceberg")]


@pytest.mark.parametrize(("point", "fmt"), [*BREAKS, *(MORE_BREAKS if BUDGET > 1 else ())])
def test_broken_off_anywhere_a_rebuild_leaves_a_table_to_go_on_from_and_a_second_one_ends(
    spark: Any, lake_root: Path, fmt: str, point: str
) -> None:
    lake = Lake(lake_root, spark, f"broken_{point[-4:]}", fmt, [UPTO_10])
    lake.land(insert("1", "1"), insert("2", "99"))
    lake.land(Update(T, ("2", "5", "b")))
    lake.advance()
    rules(lake)
    with broken_off(point) as reached:
        again(lake)
    assert reached
    swapped = point == REPLACED
    assert lake.rows() == ([row(1, 1), row(2, 5)] if swapped else [row(1, 1)])
    assert len(list_quarantine(lake.project).changes) == (0 if swapped else 2)
    lake.land(insert("3", "3"))
    lake.advance()
    assert len(lake.rows()) == (3 if swapped else 2)
    assert_cuts_are_true(lake.project)
    again(lake)
    assert lake.rows() == [row(1, 1), row(2, 5), row(3, 3)]
    assert list_quarantine(lake.project).changes == ()
    assert not list((lake.project.lake / "scratch").glob(f"{lake.project.name}.rebuild"))
