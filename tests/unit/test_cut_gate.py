"""A cut is pinned only where silver at it was judged and no rule objects; who dies in between asks again."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cdc_lake.cli.commands.cuts import cut_text, list_text
from cdc_lake.cli.commands.status import status_text
from cdc_lake.config.project import Project
from cdc_lake.control.cuts import WrittenCut, parse_cut, pinned_cuts
from cdc_lake.errors import CutWithheld
from cdc_lake.model.position import as_of
from cdc_lake.observability import failpoints
from cdc_lake.observability.events import ProgressEvent, silent
from cdc_lake.ops.html_pages import remember, render
from cdc_lake.ops.report_data import Evidence
from cdc_lake.ops.status import status
from cdc_lake.runtime.apply.metrics import RuleSamples
from cdc_lake.runtime.cut_gate import still_withheld, withheld
from cdc_lake.runtime.cut_retention import JudgingClock, Keeper, list_cuts, pin_cut, show_cut
from cdc_lake.tables.control_tables import ControlTables
from tests.cut_lake import PG, CutLake, at

UNIQUE = {"rule": "unique", "columns": ["mail"], "thresholds": {"warn": 0.1, "error": 0.5, "critical": 0.9}}
SECTIONS = {"pin_below": "error"}


def made(root: Path, *rules: dict[str, Any], pin_every: str | None = "1 h", **quality: Any) -> CutLake:
    cuts = {} if pin_every is None else {"pin_every": pin_every}
    tables = [{"from": "public.t", "rules": list(rules or [UNIQUE])}]
    return CutLake(root, silver={"tables": tables, "cuts": cuts}, quality={**SECTIONS, **quality})


def cut(lake: CutLake, position: int, minutes: float, mails: Sequence[str | None]) -> WrittenCut:
    """A version of silver with these rows, and a cut of it that is written then."""
    version = lake.write("t", pa.table({"id": range(len(mails)), "mail": pa.array(mails, pa.string())}))
    lake.cut(position, minutes, t=lake.state("t", version, position))
    row = lake.control.last_cut(PG)
    assert row is not None
    return parse_cut(row)


def keeper(lake: CutLake, told: list[ProgressEvent]) -> Keeper:
    return Keeper(lake.project, lake.control, None, told.append)


BAD, FAIR, GOOD = ["a", "a", "b"], ["a", "a", "b", "c", "d"], ["a", "b", None]


def test_the_schedule_pins_no_cut_to_which_a_rule_objects_and_asks_again_an_interval_later(tmp_path: Path) -> None:
    lake, told = made(tmp_path), list[ProgressEvent]()
    keeper(lake, told).cut(cut(lake, 100, 0, BAD))
    (one,) = told
    assert one.facts == {"code": "QUA507"}
    assert one.text == "the cut is not pinned as `at_20260101T010000Z`: silver.t unique_mail: error, 2 of 3"
    other = keeper(lake, told)  # another run
    other.cut(cut(lake, 200, 30, GOOD))
    assert pinned_cuts(lake.control) == ()
    other.cut(cut(lake, 300, 60, FAIR))
    assert [one.cut.position for one in pinned_cuts(lake.control)] == [300]
    found = lake.control.read("quality").sort_by("judged_at").to_pylist()
    assert [(row["judged_at"], row["failed"], row["level"]) for row in found] == [
        (at(60), 2, "error"),
        (at(120), 2, "warn"),
    ]


def test_lists_and_status_say_which_rule_kept_a_cut_back(tmp_path: Path) -> None:
    lake = made(tmp_path)
    cut(lake, 100, 0, GOOD)
    keeper(lake, []).cut(cut(lake, 200, 1, BAD))
    newest, older = list_cuts(lake.project, 5).cuts
    assert ([one.reason for one in newest.withheld], older.withheld) == (["silver.t unique_mail: error, 2 of 3"], ())
    shown = show_cut(lake.project, as_of("latest"), None)
    assert shown.withheld == newest.withheld
    why = "at_20260101T010100Z: silver.t unique_mail: error, 2 of 3"
    assert f"not as {why}" in list_text(list_cuts(lake.project, 5))
    assert f"not pinned as {why}" in cut_text(shown)
    known = status(lake.project)
    assert known.withheld == newest.withheld[0]
    assert f"withheld  the cut at 0/C8 is not pinned as {why}" in status_text(known, 120)
    assert f"0/C8 as {why}." in render(remember(lake.project, known))
    assert f"The cut at 0/C8 is not pinned as {why}." in Evidence(lake.project, lake.control, known).collect().notes
    assert still_withheld(lake.project, lake.control) == newest.withheld[0]
    pin_cut(lake.project, "fair", as_of("0/64"), None, None)
    assert still_withheld(lake.project, lake.control) == newest.withheld[0], "of an older cut"
    keeper(lake, []).cut(cut(lake, 300, 120, GOOD))
    assert still_withheld(lake.project, lake.control) is None


def test_what_rules_came_to_is_shown_to_monitoring(tmp_path: Path) -> None:
    many = {"rule": "row_count", "min": 1}
    lake = made(tmp_path, UNIQUE, {"rule": "unique", "columns": ["nowhere"]}, many)
    shown = RuleSamples(lake.project, lake.control)
    assert values(shown) == {"cut_withheld": 0}
    keeper(lake, []).cut(cut(lake, 100, 0, BAD))
    lake.control.append("quality", [{**lake.control.read("quality").to_pylist()[0], "rule": "a former rule"}])
    assert values(shown) == {
        "rule_failed_rows silver.t unique_mail error": 2,
        "rule_failed_rows silver.t unique_nowhere broken": 0,
        "rule_failed_rows silver.t row_count none": 0,
        "cut_withheld": 1,
    }


def values(shown: RuleSamples) -> dict[str, float]:
    return {" ".join([s.metric.name.removeprefix("cdc_lake_"), *s.labels]): s.value for s in shown.samples()}


def test_a_named_pin_is_refused_with_the_rule_and_one_of_a_better_cut_is_made(tmp_path: Path) -> None:
    lake = made(tmp_path, pin_every=None)
    cut(lake, 100, 0, GOOD)
    cut(lake, 200, 1, BAD)
    with pytest.raises(CutWithheld, match=r"0/C8 is not pinned as `month`: silver.t unique_mail: error, 2 of 3") as no:
        pin_cut(lake.project, "month", as_of("latest"), None, None)
    assert no.value.exit_status == 5
    assert pinned_cuts(lake.control) == ()
    assert pin_cut(lake.project, "month", as_of("0/64"), None, None).position == "0/64"
    assert [one.name for one in withheld(lake.control)] == ["month"]


@pytest.mark.parametrize(
    ("rule", "quality", "why"),
    [
        (UNIQUE, {"max_rows": 2}, "silver.t has 3 rows; tables with up to 2 rows are checked."),
        ({"rule": "unique", "columns": ["gone"]}, {}, "there is no column `gone` in silver"),
        ({"rule": "expression", "expression": "id > 5"}, {}, None),
        (UNIQUE, {"pin_below": "critical"}, None),
        (UNIQUE, {"pin_below": None}, None),
    ],
)
def test_what_nobody_judged_is_not_pinned_and_what_the_gate_judges_is(
    tmp_path: Path, rule: dict[str, Any], quality: dict[str, Any], why: str | None
) -> None:
    lake = made(tmp_path, rule, **quality)
    keeper(lake, []).cut(cut(lake, 100, 0, BAD))
    assert [o.why for one in withheld(lake.control) for o in one.objections] == ([] if why is None else [why])
    assert len(pinned_cuts(lake.control)) == (why is None)


def test_a_table_that_holds_nothing_yet_keeps_no_cut_back(tmp_path: Path) -> None:
    lake = made(tmp_path)
    lake.cut(100, 0, t=lake.state("t", None, 100))
    row = lake.control.last_cut(PG)
    assert row is not None
    keeper(lake, []).cut(parse_cut(row))
    assert len(pinned_cuts(lake.control)) == 1


def dies(project: Project, newest: WrittenCut, point: str) -> None:
    failpoints.arm(point)
    Keeper(project, ControlTables(project.control), None, silent).cut(newest)


@pytest.mark.parametrize("point", [failpoints.CUT_JUDGED])
def test_who_dies_between_judging_and_pinning_leaves_nothing_and_the_next_one_asks_again(
    tmp_path: Path, point: str
) -> None:
    lake = made(tmp_path)
    newest = cut(lake, 100, 0, GOOD)
    child = multiprocessing.get_context("spawn").Process(target=dies, args=(lake.project, newest, point))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert (pinned_cuts(lake.control), withheld(lake.control)) == ((), ())
    assert lake.control.read("quality").num_rows == 0
    keeper(lake, []).cut(newest)
    assert len(pinned_cuts(lake.control)) == 1


def test_silver_is_judged_every_so_often_and_a_judgement_by_others_counts(tmp_path: Path) -> None:
    lake, told = made(tmp_path, pin_every=None, pin_below=None, every="1 h"), list[ProgressEvent]()
    clock = JudgingClock(lake.project, lake.control, told.append)
    cut(lake, 100, 0, BAD)
    clock.tick(PG)
    clock.tick(PG)
    JudgingClock(lake.project, lake.control, told.append).tick(PG)
    assert [one.stage for one in told] == ["judge"]
    (row,) = lake.control.read("quality").to_pylist()
    assert (row["rule"], row["failed"], row["level"]) == ("unique_mail", 2, "error")
    lake.control.delete("quality", pc.field("failed") >= 0)
    past = {**row, "judged_at": row["judged_at"] - timedelta(hours=2)}
    lake.control.append("quality", [past])
    JudgingClock(lake.project, lake.control, told.append).tick(PG)
    assert lake.control.read("quality").num_rows == 2


def test_without_a_time_nothing_is_judged_and_a_failure_is_told_and_stops_nothing(tmp_path: Path) -> None:
    lake, told = made(tmp_path, pin_every=None), list[ProgressEvent]()
    cut(lake, 100, 0, BAD)
    JudgingClock(lake.project, lake.control, told.append).tick(PG)
    assert told == []
    assert lake.control.read("quality").num_rows == 0
    lake = made(tmp_path / "other", pin_every=None, every="1 h")
    cut(lake, 100, 0, BAD)
    for file in (lake.project.control / "cuts").glob("*.parquet"):
        file.unlink()
    JudgingClock(lake.project, ControlTables(lake.project.control), told.append).tick(PG)
    assert [one.stage for one in told] == ["warning"]
    assert "this is retried later" in told[0].text
