"""The status page: the worst first, what the control tables remember, every text escaped, nothing fetched."""

from __future__ import annotations

import json
import re
from dataclasses import astuple, replace
from itertools import chain, product
from pathlib import Path

import pytest

import cdc_lake
from cdc_lake.cli.commands.status import status_text
from cdc_lake.control.coordination import ReceiverWait
from cdc_lake.control.cuts import table_states
from cdc_lake.control.snapshots import COMPLETE
from cdc_lake.control.streams import UndecodedTransaction, record_copy
from cdc_lake.errors import ReportNotWritten
from cdc_lake.observability.html import bars
from cdc_lake.ops import status as standing
from cdc_lake.ops.html_pages import findings, remember, render, write_status_page
from cdc_lake.ops.status import status
from cdc_lake.runtime.receive.lag import QuarantinedRows, SlotStatus, SourceSide, Status, TableStatus, lags_of
from cdc_lake.tables.control_schema import RunRow
from tests.canary import Told
from tests.cut_lake import GAUSS_CSN, PG, CutLake, at
from tests.live.test_status_browser import NOW, PAGE, STATUS

LIVE = replace(
    STATUS,
    tables=tuple(replace(table, state="live", quarantined=0) for table in STATUS.tables),
    quarantined=(),
)
ONE = LIVE.tables[0]
WAITS = ReceiverWait(NOW, NOW, "LAK420", "the disk is full", "lake/bronze")
ODD = UndecodedTransaction(1, "0/5F", None, 7, ("public.t",), 1, 10, "DEC310", "no such message", "byte 7", "0.3.0")


@pytest.mark.parametrize(
    ("found", "states", "text"),
    [
        (LIVE, ["good"], "All 5 tables are live"),
        (replace(LIVE, tables=(ONE,)), ["good"], "1 table live"),
        (replace(LIVE, tables=(replace(ONE, state="catching-up"),)), ["unknown"], "Silver is catching up"),
        (replace(LIVE, stream=None, tables=()), ["unknown"], "Nothing has been received yet"),
        (replace(LIVE, stream=None, slot=SlotStatus("shop", "missing", "")), ["unknown"], "Nothing has been"),
        (replace(LIVE, stream=None, reachable=False), ["attention", "unknown"], "The source cannot be reached"),
        (replace(LIVE, reachable=False, unreachable_because="away"), ["attention"], "The source cannot be reached"),
        (replace(LIVE, receiver_waits=WAITS), ["attention"], "The receiver waits"),
        (
            replace(LIVE, tables=(replace(ONE, state="quarantined", quarantined=2),)),
            ["attention"],
            "2 changes held by rules",
        ),
        (replace(LIVE, tables=(replace(ONE, state="paused"),)), ["attention"], "1 table paused"),
        (replace(LIVE, tables=(replace(ONE, different_at=NOW),)), ["bad"], "Silver differs from the source"),
        (replace(LIVE, undecodable=(ODD,)), ["bad"], "Silver stops before 0/5F"),
        (replace(LIVE, slot=SlotStatus("shop", "lost", "WAL was removed")), ["bad"], "The slot is lost"),
        (replace(STATUS, reachable=False), ["bad", "attention", "attention"], "1 table cannot continue"),
    ],
)
def test_the_worst_comes_first_and_everything_is_said(found: Status, states: list[str], text: str) -> None:
    said = list(findings(found))
    assert [one.state for one in said] == states
    assert said[0].text.startswith(text)


HOSTILE = '<script src="https://evil.example/x.js">alert(1)</script>" onload="x'


def test_hostile_names_stay_text_and_nothing_is_fetched() -> None:
    table = TableStatus(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1, 1)
    hostile = replace(
        STATUS, pipeline=HOSTILE, source=HOSTILE, unreachable_because=HOSTILE, reachable=False, tables=(table,),
        quarantined=(QuarantinedRows(HOSTILE, HOSTILE, 1),), slot=SlotStatus(HOSTILE, HOSTILE, HOSTILE), silver_position=HOSTILE,
        receiver_waits=replace(WAITS, message=HOSTILE),
    )  # fmt: skip
    runs = (replace(PAGE.runs[0], verb=HOSTILE, outcome=HOSTILE, codes=(HOSTILE,)),)
    html = render(replace(PAGE, status=hostile, runs=runs, errors=(replace(PAGE.errors[0], code=HOSTILE),)))
    assert "<script" not in html
    assert not re.search(r'<[^>]*\sonload="', html)
    assert html.count("&lt;script") > 15
    assert re.findall(r"(?:src|href)=\"([^\"]*)\"", html) == ["data:,"]


def test_an_empty_pipeline_has_a_page(tmp_path: Path) -> None:
    lake = CutLake(tmp_path)
    html = render(remember(lake.project, status(lake.project, checked_at=NOW)))
    assert "No table yet." in html
    assert "No cut yet." in html
    assert "Over time" not in html


def test_the_page_remembers_cuts_runs_and_errors(tmp_path: Path) -> None:
    lake = CutLake(tmp_path)
    for number in range(1, 70):
        lake.cut(100 + number, number, t=lake.state("t", None, 100 + number, quarantined_keys=number % 2))
    for number in range(12):
        facts = {"changes": 10 * number, "failed": {"silver.t": "LAK410"} if number == 3 else {}}
        lake.control.record(RunRow(f"a{number}", "apply", at(number), at(number + 0.5), "done", json.dumps(facts)))
    lake.control.record(RunRow("f", "run", at(20), at(21), "failed", json.dumps({"error": "SRC201"})))
    lake.control.record(RunRow("r", "run", at(22), at(23), "done", json.dumps({"receive": {"changes": 7}})))
    page = remember(lake.project, LIVE)
    assert [(cut.position, cut.age, cut.there, cut.tables, cut.quarantined) for cut in page.cuts[:2]] == [
        ("0/A9", 3600.0, 1, 1, 1), ("0/A8", 3600.0, 1, 1, 0),
    ]  # fmt: skip
    assert (len(page.cuts), len(page.ages), page.ages[0]) == (8, 60, 3600.0)
    assert page.changes == tuple(10 * number for number in range(1, 12))
    assert [(run.run, run.seconds, run.changes, run.codes) for run in page.runs[:3]] == [
        ("r", 60.0, 7, ()), ("f", 60.0, None, ("SRC201",)), ("a11", 30.0, 110, ()),
    ]  # fmt: skip
    assert [(one.code, one.times) for one in page.errors] == [("SRC201", 1), ("LAK410", 1)]


@pytest.mark.parametrize("stream", [PG, GAUSS_CSN])
def test_no_lag_is_below_nothing_where_this_clock_is_behind_or_the_source_ends_before_bronze(
    tmp_path: Path, stream: str
) -> None:
    lake = CutLake(tmp_path, stream=stream)
    lake.land(105, csn=105, minutes=5)
    record_copy(lake.control, lake.bronze.state(), COMPLETE, [])
    side = standing._ask_lake(lake.project)
    for end, received in product((None, 60, 105, 900), (None, 70, 901)):
        lags = lags_of(SourceSide(end=end, received=received), side, at(0))
        known = {name: [one for one in astuple(lag) if one is not None] for name, lag in lags.items()}
        assert min(chain(*known.values())) == 0, (end, received, known)
        assert lags["applied"].seconds == 0
        assert (795 in known["landed"]) == (end == 900)


def test_no_bar_that_stands_for_something_is_too_low_to_be_seen() -> None:
    assert bars([0, 1, 1000], 30, 10) == [(1.0, 10, 8.0, 0.0), (11.0, 9.0, 8.0, 1.0), (21.0, 0.0, 8.0, 10.0)]
    assert bars([5], 30, 10) == [(1.0, 0.0, 8.0, 10.0)]
    assert bars([]) == []


def test_a_page_that_cannot_be_written_is_an_error_with_its_place(tmp_path: Path) -> None:
    lake = CutLake(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportNotWritten) as failed:
        write_status_page(lake.project, LIVE, tmp_path / "file" / "status.html")
    assert failed.value.where == str(tmp_path / "file")


def test_the_function_and_the_command_write_the_same_page(told: Told, tmp_path: Path) -> None:
    pipeline = (
        "version: 1\npipeline: shop\nsource: {type: postgres, host: 127.0.0.1, port: 1, database: d, user: u,"
        " tables: ['public.*'], connect_timeout: 1 s}\n"
    )
    code, said = told(pipeline, "status", "--html", "out/status.html")
    assert code == 0, said
    html = (tmp_path / "out" / "status.html").read_text()
    assert "The source cannot be reached" in html
    assert said.startswith("pipeline  shop")
    page = cdc_lake.Pipeline.load("pipelines/shop.yaml").write_status_page(tmp_path / "again.html")
    assert page.status.pipeline == "shop"
    times = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")
    assert times.sub("", (tmp_path / "again.html").read_text()) == times.sub("", html)


@pytest.mark.parametrize(
    ("found", "troubles"),
    [
        (LIVE, []),
        (replace(LIVE, tables=(replace(ONE, state="paused"), replace(ONE, state="quarantined", quarantined=2))), []),
        (replace(LIVE, stream=None, slot=SlotStatus("shop", "missing", "it is created by the first run")), []),
        (replace(LIVE, reachable=False, unreachable_because="away"), ["the source is not reachable: away"]),
        (replace(LIVE, slot=SlotStatus("shop", "lost", "WAL is gone")), ["slot `shop` is lost: WAL is gone"]),
        (
            replace(LIVE, slot=SlotStatus("shop", "missing", "it no longer exists")),
            ["slot `shop` is missing: it no longer exists"],
        ),
        (replace(LIVE, receiver_waits=WAITS), ["the receiver waits: the disk is full"]),
        (replace(LIVE, undecodable=(ODD,)), ["silver stops before 0/5F, which could not be decoded"]),
        (replace(LIVE, tables=(replace(ONE, state="failed", reason="why"),)), [f"{ONE.table} failed: why"]),
    ],
)
def test_trouble_is_what_somebody_has_to_look_at(found: Status, troubles: list[str]) -> None:
    assert list(found.troubles) == troubles


def test_a_broken_table_says_what_it_could_not_go_on_for_and_what_to_do(tmp_path: Path) -> None:
    lake = CutLake(tmp_path)
    lake.land(105)
    record_copy(lake.control, lake.bronze.state(), COMPLETE, [])
    error = ("LAK410", "public.t was altered", "run `cdc-lake run --allow …`")
    lake.cut(105, 1, t=lake.state("t", None, 104, state="failed", error=error))
    (found,) = status(lake.project, checked_at=NOW).tables
    assert (found.state, found.reason) == ("failed", "public.t was altered [LAK410]")
    assert (found.code, found.remedy) == (error[0], error[2])
    assert f"  → {error[2]}" in status_text(status(lake.project, checked_at=NOW), 200).splitlines()
    lake.cut(105, 2, t=lake.state("t", None, 105, error=error))  # it goes on
    assert status(lake.project, checked_at=NOW).tables[0].code == ""
    older = {
        "public.t": {
            "table": "silver.t",
            "format": "delta",
            "version": None,
            "position": 99,
            "state": "broken",
            "held": 0,
        }
    }
    assert table_states(json.dumps(older))["public.t"].error is None
