"""The file of metrics of apply: true at every moment it is written, replaced as a whole, and never in apply's way."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cdc_lake.config.model import Observe
from cdc_lake.config.project import Project
from cdc_lake.control.cuts import FAILED
from cdc_lake.errors import DestructiveChange, GroupWaits, RuleStopped, StoreUnavailable, Unconvertible
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.observability.metrics import ERRORS_TOTAL
from cdc_lake.runtime.apply import metrics as apply_metrics
from cdc_lake.runtime.apply.applier import NullListener, watching
from cdc_lake.runtime.apply.merge import ApplyTotals
from cdc_lake.runtime.apply.metrics import ApplyMetrics
from cdc_lake.tables.control_schema import VerifiedRow
from tests.cut_lake import PG, CutLake, at


def shown(file: Path, *, zeros: bool = False) -> dict[str, float]:
    """Values by name and labels, without the pipeline's; of errors those that happened, unless `zeros`."""
    return {
        " ".join([one.name, *(f"{k}={v}" for k, v in sorted(one.labels.items()) if k != "pipeline")]): one.value
        for family in text_string_to_metric_families(file.read_text())
        for one in family.samples
        if one.value or zeros or one.name != ERRORS_TOTAL.name
    }


def watched(lake: CutLake, file: str = "shop.prom") -> Project:
    observe = Observe(textfile=file)
    pipeline = lake.project.pipeline.model_copy(update={"observe": observe})
    return Project(pipeline, lake.project.file, lake.project.root)


def metrics_of(lake: CutLake, told: list[ProgressEvent]) -> ApplyMetrics:
    project = watched(lake)
    assert project.textfile is not None
    return ApplyMetrics(project, project.textfile, told.append)


def test_nobody_watches_unless_the_pipeline_names_a_file(tmp_path: Path) -> None:
    lake, told = CutLake(tmp_path), list[ProgressEvent]()
    assert isinstance(watching(lake.project, told.append), NullListener)
    assert isinstance(watching(watched(lake), told.append), ApplyMetrics)


def test_the_file_says_what_the_run_and_the_last_cut_say(tmp_path: Path) -> None:
    lake, told, done = CutLake(tmp_path), list[ProgressEvent](), ApplyTotals(stream=PG)
    lake.land(200)
    lake.land(300, minutes=5)
    lake.cut(200, 0, t=lake.state("t", 1, 200, quarantined_keys=3), u=lake.state("u", None, 100, state=FAILED))
    for name, verdict in (("t", "equal"), ("u", "different")):
        lake.control.record(VerifiedRow(PG, 1, 1, f"public.{name}", f"silver.{name}", 100, verdict, 0, at(4)))
    merge = ProgressEvent("merge", "silver.t", 7, unit="changes", facts={"seconds": 1.5})
    with metrics_of(lake, told) as metrics:
        metrics.follow(done)
        metrics.on_progress(merge)
        metrics.on_progress(ProgressEvent("layout", "add column …", facts={"kind": "add_column"}))
        metrics.on_progress(ProgressEvent("failed", "silver.u waits", facts={"code": "LAK410"}))
        done.top, done.upto, done.transactions, done.changes = 300, 200, 1, 7
        done.rules["silver.t", "between_a", "quarantine"] = [7, 2]
        done.quarantined_by.update({("silver.t", "between_a"): 2, ("silver.t", "waiting"): 1})
        metrics.on_pass_end()
    file = tmp_path / "shop.prom"
    seen = shown(file)
    lag = seen.pop("cdc_lake_applied_lag_seconds")
    assert abs(lag - (datetime.now(UTC) - at(5)).total_seconds()) < 60
    buckets = {key: value for key, value in seen.items() if "_bucket" in key}
    assert buckets["cdc_lake_merge_duration_seconds_bucket le=1.0 table=silver.t"] == 0
    assert buckets["cdc_lake_merge_duration_seconds_bucket le=2.0 table=silver.t"] == 1
    assert {key: value for key, value in seen.items() if key not in buckets} == {
        "cdc_lake_applied_transactions_total": 1,
        "cdc_lake_applied_changes_total": 7,
        "cdc_lake_merge_duration_seconds_sum table=silver.t": 1.5,
        "cdc_lake_merge_duration_seconds_count table=silver.t": 1,
        "cdc_lake_rule_failures_total rule=between_a table=silver.t": 2,
        "cdc_lake_quarantined_rows_total rule=between_a table=silver.t": 2,
        "cdc_lake_quarantined_rows_total rule=waiting table=silver.t": 1,
        "cdc_lake_quarantined_keys table=silver.t": 3,
        "cdc_lake_quarantined_keys table=silver.u": 0,
        "cdc_lake_table_state state=quarantined table=silver.t": 1,
        "cdc_lake_table_state state=failed table=silver.u": 1,
        "cdc_lake_table_failed table=silver.t": 0,
        "cdc_lake_table_failed table=silver.u": 1,
        "cdc_lake_table_different table=silver.t": 0,
        "cdc_lake_table_different table=silver.u": 1,
        "cdc_lake_verified_timestamp_seconds table=silver.t": at(4).timestamp(),
        "cdc_lake_schema_changes_total kind=add_column": 1,
        "cdc_lake_errors_total code=LAK410 loop=apply": 1,
    }, "nothing of a success: the walk was to go further"
    assert told[0] == merge
    assert [found.name for found in tmp_path.iterdir() if "prom" in found.name] == ["shop.prom"], (
        "nothing lies beside it"
    )


@pytest.mark.parametrize(("top", "upto", "well"), [(200, 200, True), (300, 200, False), (None, None, False)])
def test_a_walk_succeeds_where_it_gets_to_what_bronze_held_as_it_began(
    tmp_path: Path, top: int | None, upto: int | None, well: bool
) -> None:
    lake = CutLake(tmp_path)
    with metrics_of(lake, []) as metrics:
        metrics.follow(ApplyTotals(stream=PG, top=top, upto=upto))
        metrics.on_pass_end()
    seen = shown(tmp_path / "shop.prom").get("cdc_lake_last_success_timestamp_seconds loop=apply")
    assert (seen is not None and abs(time.time() - seen) < 60) == well


def test_what_ends_a_run_is_shown_with_0_while_it_runs_and_the_last_success_outlives_a_run_that_fails(
    tmp_path: Path,
) -> None:
    lake = CutLake(tmp_path)
    with metrics_of(lake, []) as metrics:
        metrics.follow(ApplyTotals(stream=PG, top=1, upto=1))
        metrics.on_pass_end()
    success = shown(tmp_path / "shop.prom")["cdc_lake_last_success_timestamp_seconds loop=apply"]
    metrics, stops = metrics_of(lake, []), RuleStopped("rule `a` stops the run")
    metrics.__enter__()
    assert shown(tmp_path / "shop.prom", zeros=True)["cdc_lake_errors_total code=QUA501 loop=apply"] == 0
    metrics.__exit__(RuleStopped, stops, None)
    seen = shown(tmp_path / "shop.prom")
    assert seen["cdc_lake_errors_total code=QUA501 loop=apply"] == 1
    assert seen["cdc_lake_last_success_timestamp_seconds loop=apply"] == success
    (tmp_path / "shop.prom").write_text("not { of ours")
    with metrics_of(lake, []):
        assert "cdc_lake_last_success_timestamp_seconds loop=apply" not in shown(tmp_path / "shop.prom")


def test_the_error_that_ends_a_run_is_in_the_file_and_one_that_was_told_counts_once(tmp_path: Path) -> None:
    lake, done = CutLake(tmp_path), ApplyTotals(stream=PG)
    with pytest.raises(RuleStopped), metrics_of(lake, []):
        raise RuleStopped("rule `a` stops the run")
    assert shown(tmp_path / "shop.prom")["cdc_lake_errors_total code=QUA501 loop=apply"] == 1
    waits = StoreUnavailable("the store is away")
    metrics = metrics_of(lake, [])
    metrics.follow(done)
    metrics.on_progress(ProgressEvent("failed", "silver.t waits", facts={"code": waits.code}))
    done.failed["silver.t"] = waits
    with pytest.raises(StoreUnavailable), metrics:
        raise waits
    assert shown(tmp_path / "shop.prom")["cdc_lake_errors_total code=LAK435 loop=apply"] == 1


def test_a_lake_that_does_not_answer_leaves_out_what_only_it_knows(tmp_path: Path) -> None:
    lake = CutLake(tmp_path)
    lake.cut(100, 0, t=lake.state("t", 1, 100))
    for entry in (lake.project.control / "cuts" / "_delta_log").iterdir():
        entry.write_text("{")
    with metrics_of(lake, []) as metrics:
        metrics.follow(ApplyTotals(stream=PG, transactions=4))
    seen = shown(tmp_path / "shop.prom")
    assert seen == {"cdc_lake_applied_transactions_total": 4, "cdc_lake_applied_changes_total": 0}


def test_a_file_that_cannot_be_written_is_told_once_and_stops_nothing(tmp_path: Path) -> None:
    lake, told = CutLake(tmp_path), list[ProgressEvent]()
    project = watched(lake, "missing/shop.prom")
    assert project.textfile is not None
    with ApplyMetrics(project, project.textfile, told.append) as metrics:
        metrics.follow(ApplyTotals(stream=PG))
        metrics.on_pass_end()
    assert [(one.stage, one.facts["code"]) for one in told] == [("warning", "DEP711")]
    assert "No such file or directory" in told[0].text
    assert "create the folder of `observe.textfile`" in told[0].text
    (tmp_path / "missing").mkdir()
    with ApplyMetrics(project, project.textfile, told.append):
        pass
    assert (tmp_path / "missing" / "shop.prom").exists()
    assert len(told) == 1


def test_cuts_that_follow_one_another_write_the_file_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, file = CutLake(tmp_path), tmp_path / "shop.prom"
    with metrics_of(lake, []) as metrics:
        metrics.on_progress(ProgressEvent("cut", "1 of 1 tables"))
        file.unlink()
        monkeypatch.setattr(apply_metrics, "WRITE_EVERY", 3600)
        metrics.on_progress(ProgressEvent("cut", "1 of 1 tables"))
        assert not file.exists()
        monkeypatch.setattr(apply_metrics, "WRITE_EVERY", 0)
        metrics.on_progress(ProgressEvent("cut", "1 of 1 tables"))
        assert file.exists()


def test_the_error_of_a_run_names_every_table_that_waits() -> None:
    waits = GroupWaits("silver.a is in a group with silver.b")
    done = ApplyTotals(failed={"silver.a": waits, "silver.b": DestructiveChange("b"), "silver.c": Unconvertible("c")})
    error = done.error()
    assert isinstance(error, DestructiveChange)
    assert error.remedy.startswith(DestructiveChange.hint)
    assert "; silver.c (LAK456), silver.a (QUA515) also wait: `cdc-lake status`" in error.remedy
    many = ApplyTotals(failed={f"silver.t{n}": DestructiveChange("t") for n in range(25)}).error()
    assert many is not None
    assert "silver.t20 (LAK410) and 4 more also wait" in many.remedy
    assert ApplyTotals().error() is None
