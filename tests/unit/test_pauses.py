"""A table that is paused: what is recorded, shown and kept of it; `tests/spark/test_pauses.py` applies."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import cdc_lake
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.cli.app import app
from cdc_lake.cli.process import run_command
from cdc_lake.errors import NoStream, TableBehind, TableNotKnown
from cdc_lake.lake.control_rows import SnapshotRow
from cdc_lake.model.span import Span
from cdc_lake.pipeline.cut_list import list_cuts
from cdc_lake.pipeline.cuts import BROKEN, IN, PAUSED
from cdc_lake.pipeline.maintain import maintain
from cdc_lake.pipeline.pauses import pause, paused_tables, resume, settled
from cdc_lake.pipeline.status import status
from tests.cut_lake import CutLake, at, ids
from tests.spark.conftest import make_project

YAML = """\
version: 1
pipeline: shop
source: {type: postgres, host: 127.0.0.1, port: 1, database: d, user: u, tables: ["public.*"]}
bronze: {retention: {min_age: 1 d, rebuilds: false}}
"""


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CutLake:
    """Tables t, which has all transactions, and b; cuts at 200 and 300."""
    (tmp_path / "shop.yaml").write_text(YAML)
    monkeypatch.chdir(tmp_path)
    lake = CutLake(tmp_path)
    lake.control.record(SnapshotRow("initial-1", lake.stream, 1, 100, "[]", "complete", at(0)))
    for position in (200, 300):
        lake.land(position, minutes=position / 100)
        versions = {name: lake.write(name, ids(position)) for name in ("t", "b")}
        lake.cut(position, position / 100, **{n: lake.state(n, v, position) for n, v in versions.items()})
    return lake


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert run_command(app, [*arguments]) == code
    heard = capsys.readouterr()
    return heard.out if code == 0 else heard.err


def test_pause_and_resume_say_what_stands_and_do_nothing_twice(lake: CutLake, capsys: Any) -> None:
    assert "silver.t is paused: a run stops it at its next span" in said(capsys, "pause", "t")
    document = json.loads(said(capsys, "pause", "public.t", "--json"))
    assert document["schema"] == "cdc-lake/pause/1"
    assert (document["source"], document["paused"], document["changed"]) == ("public.t", True, False)
    assert "is paused already, since" in said(capsys, "pause", "t")
    assert list(paused_tables(lake.control)) == ["public.t"]
    assert "silver.t goes on with the next span" in said(capsys, "resume", "t")
    assert "silver.t is not paused" in said(capsys, "resume", "t")
    assert "silver.b is not paused" in said(capsys, "resume", "b")
    assert paused_tables(lake.control) == {}
    assert lake.control.read("pauses").num_rows == 2


def test_a_table_that_bronze_does_not_know_is_refused(lake: CutLake, capsys: Any, tmp_path: Path) -> None:
    assert "error[STA690]: bronze knows no table `orders`; it knows public.b, public.t" in said(
        capsys, "pause", "orders", code=1
    )
    with pytest.raises(TableNotKnown):
        resume(lake.project, "silver.t")
    with pytest.raises(NoStream):
        pause(make_project(tmp_path / "new"), "t")
    assert lake.control.read("pauses").num_rows == 0


def test_status_says_paused_since_when_and_how_many_transactions_wait(lake: CutLake) -> None:
    pause(lake.project, "t")
    lake.land(400)
    lake.cut(400, 4, t=lake.state("t", 1, 300, state=PAUSED), b=lake.state("b", 1, 400))
    lake.land(500)
    found = {one.source: one for one in status(cdc_lake.load_pipeline("shop.yaml")).tables}
    assert (found["public.t"].state, found["public.t"].position) == ("paused", "0/12C")
    assert ", 2 transactions wait: `cdc-lake resume public.t`" in found["public.t"].reason
    resume(lake.project, "t")
    found = {one.source: one for one in status(cdc_lake.load_pipeline("shop.yaml")).tables}
    assert (found["public.t"].state, found["public.t"].reason) == (
        "catching-up",
        "it was paused, and goes on with the next run",
    )


def test_cuts_list_it_as_behind_and_readers_are_told(lake: CutLake) -> None:
    lake.land(400)
    lake.cut(400, 4, t=lake.state("t", 1, 300, state=PAUSED), b=lake.state("b", 1, 400))
    assert list_cuts(lake.project, 1).cuts[0].behind == ("silver.t",)
    with pytest.raises(TableBehind, match="stays behind at 0/12C"):
        cdc_lake.session(lake.project).read("t")


def test_retention_keeps_what_a_paused_table_does_not_have(lake: CutLake) -> None:
    for position in (400, 500):
        lake.land(position)
    lake.cut(500, 5, t=lake.state("t", 1, 300, state=PAUSED), b=lake.state("b", 1, 500))
    project = cdc_lake.load_pipeline("shop.yaml")
    later = at(0) + timedelta(days=3650)
    done = maintain(project, at=later, only="bronze")
    assert done.kept == "public.t stands at 0/12C"
    reader = bronze_reader(project)
    assert reader.trimmed()[1][0] <= 300
    assert [one.position for one in reader.commits(Span(1, 300, 500))] == [400, 500]
    forced = maintain(project, at=later, only="bronze", force=True)
    assert "what silver.t (paused) does not have of public.t from 0/12C on" in forced.lost


def test_what_pauses_make_of_the_tables_of_a_cut(lake: CutLake) -> None:
    here, there = lake.state("t", 1, 300), lake.state("b", 1, 200, state=BROKEN)
    tables = {"public.t": here, "public.b": there}
    assert settled(lake.project, tables, (), 300) == tables
    stopped = settled(lake.project, tables, ["public.t", "public.b", "public.new"], 300)
    assert stopped["public.t"] == replace(here, state=PAUSED)
    assert stopped["public.b"] == replace(there, state=PAUSED)
    new = stopped["public.new"]
    assert (new.table, new.version, new.position, new.state) == ("silver.new", None, 300, PAUSED)
    gone_on = settled(lake.project, stopped, ["public.b"], 300)
    assert [gone_on[f"public.{name}"].state for name in ("t", "b", "new")] == [BROKEN, PAUSED, BROKEN]
    assert IN not in {table.state for table in gone_on.values()}
