"""History: control tables as Arrow in order and in bounds; the examples of the guide run as they stand."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from deltalake import DeltaTable, QueryBuilder

import cdc_lake
from cdc_lake.control.cut_session import read_history, time_of
from cdc_lake.errors import LakeError
from cdc_lake.tables.control_schema import ControlName, QualityRow, RunRow, schema_of
from tests.cut_lake import GAUSS_CSN, CutLake, at

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "history.md"
ASKED = ("runs", "cuts", "quality", "quarantine")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def lake(tmp_path: Path) -> CutLake:
    """A pipeline with something in every table that the guide asks."""
    lake = CutLake(tmp_path)
    for number in range(1, 5):
        lake.cut(100 + number, number, t=lake.state("t", number, 100 + number))
    now = datetime.now(UTC)
    for number, outcome in enumerate(("done", "failed", "done")):
        facts = {"error": "SRC201"} if outcome == "failed" else {"changes": 7}
        began = now - timedelta(hours=number)
        lake.control.record(RunRow(f"r{number}", "run", began, began, outcome, json.dumps(facts)))
    for number in range(3):
        judged = QualityRow(at(number), "silver.t", "not_null_id", "not_null", "id", 10, number, "none", "", "")
        lake.control.append("quality", [{**dict.fromkeys(schema_of("quality").names), **asdict(judged)}])
    quarantined = {
        **dict.fromkeys(schema_of("quarantine").names),
        "table": "silver.t",
        "relation": "public.t",
        "reason": "failed",
    }
    lake.control.append("quarantine", [{**quarantined, "stream": lake.stream, "position": 102, "recorded_at": at(1)}])
    return lake


def test_rows_come_oldest_first_with_positions_to_paste(lake: CutLake) -> None:
    cuts = read_history(lake.project, "cuts")
    assert cuts["position"].to_pylist() == [101, 102, 103, 104]
    assert cuts["shown"].to_pylist() == ["0/65", "0/66", "0/67", "0/68"]
    assert cuts.column_names == [*schema_of("cuts").names, "shown"]
    assert read_history(lake.project, "runs").column_names == schema_of("runs").names


def test_positions_are_shown_as_their_stream_counts(tmp_path: Path) -> None:
    lake = CutLake(tmp_path, stream=GAUSS_CSN)
    lake.cut(4711, 1, t=lake.state("t", 1, 4711))
    assert read_history(lake.project, "cuts")["shown"].to_pylist() == ["4711"]


def test_times_bound_and_a_limit_keeps_the_newest(lake: CutLake) -> None:
    def positions(**bounds: Any) -> list[int]:
        return read_history(lake.project, "cuts", **bounds)["position"].to_pylist()

    assert positions(since=at(62)) == [102, 103, 104], "a cut is written an hour after its minutes"
    assert positions(until=at(62)) == [101]
    assert positions(since=at(62), until=at(64)) == [102, 103]
    assert positions(limit=2) == [103, 104]
    assert positions(since=at(62), until=at(64), limit=1) == [103]
    assert positions(limit=0) == []
    assert positions(since=at(1000)) == []


@pytest.mark.parametrize("name", get_args(ControlName))
def test_every_control_table_can_be_asked_also_before_there_is_one(tmp_path: Path, name: ControlName) -> None:
    found = read_history(CutLake(tmp_path).project, name, since=at(0), until=at(9))
    assert found.num_rows == 0
    assert time_of(name) in found.column_names


def test_what_cannot_be_asked_says_what_can(lake: CutLake) -> None:
    with pytest.raises(LakeError, match="no control table `run`") as unknown:
        read_history(lake.project, "run")
    assert "runs" in unknown.value.remedy
    with pytest.raises(LakeError, match="has no time zone"):
        read_history(lake.project, "runs", since=datetime(2026, 1, 1))  # noqa: DTZ001 - the mistake


def test_the_python_of_the_guide_runs(
    lake: CutLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "shop.yaml").write_text(
        "version: 1\npipeline: shop\nsource: {type: postgres, host: h, database: d, user: u, tables: ['public.*']}\n"
    )
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {}
    for block in blocks("python"):
        exec(block, known)
    said = capsys.readouterr().out
    assert len(blocks("python")) == 4
    assert "run SRC201" in said
    assert "longest 3600000" in said
    assert "0/68 public.t silver.t 4 active 0" in said
    assert "'outcome': 'failed', 'runs': 1" in said
    assert cdc_lake.Pipeline.load("pipelines/shop.yaml").history("runs").num_rows == 3


@pytest.mark.parametrize("number", range(4))
def test_the_sql_of_the_guide_finds_something(lake: CutLake, number: int) -> None:
    asked = QueryBuilder()
    for name in ASKED:
        asked.register(name, DeltaTable(str(lake.project.control / name)))
    assert len(blocks("sql")) == 4
    assert asked.execute(blocks("sql")[number].rstrip().rstrip(";")).read_all().num_rows > 0
