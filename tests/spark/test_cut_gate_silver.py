"""Apply judges silver as it goes, on both formats: a cut to which a rule objects is merged and written, not pinned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc_lake.control.cuts import pinned_cuts
from cdc_lake.errors import CutWithheld
from cdc_lake.model.change import Update
from cdc_lake.model.position import as_of
from cdc_lake.runtime.cut_gate import withheld
from cdc_lake.runtime.cut_retention import pin_cut
from cdc_lake.tables.control_tables import ControlTables
from tests.pipeline_file import make_project

from .formats import drawn
from .test_apply_cases import Lake, T, insert

pytestmark = pytest.mark.spark
RULES: list[dict[str, Any]] = [
    {"rule": "unique", "columns": ["body"], "thresholds": {"error": 0.5}},
    {"rule": "not_null", "column": "amount", "thresholds": {"warn": 0.1, "critical": 0.9}},
    {"rule": "expression", "expression": "amount < 5"},
]


@drawn
def test_apply_pins_a_cut_only_where_silver_at_it_is_well(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = Lake(lake_root, spark, "judged_cuts", fmt)
    label = lake.project.name
    silver = {
        "defaults": {"format": fmt, "namespace": label},
        "tables": [{"from": "public.t", "rules": RULES}],
        "cuts": {"pin_every": "1 h"},
    }
    quality = {"pin_below": "error", "every": "1 d"}
    lake.project = make_project(
        lake_root, label, silver=silver, quality=quality, snapshot={"mode": "none"},
        observe={"textfile": f"judged_{fmt}.prom"},
    )  # fmt: skip
    control = ControlTables(lake.project.control)
    lake.land(insert("1", "1", "same"), insert("2", None, "same"), insert("3", "9", "other"))
    lake.advance()
    assert [row["body"] for row in lake.rows()] == ["same", "same", "other"]
    (kept,) = withheld(control)
    assert (kept.reason, pinned_cuts(control)) == (f"{label}.t unique_body: error, 2 of 3", ())
    shown = lake.shown()
    assert shown[f"cdc_lake_cut_withheld {label}"] == 1
    assert shown[f"cdc_lake_rule_failed_rows error {label} {label}.t unique_body"] == 2
    assert shown[f"cdc_lake_rule_failed_rows {label} {label}.t not_null_amount warn"] == 1
    assert shown[f"cdc_lake_rule_failures_total expression {label} {label}.t"] == 1
    with pytest.raises(CutWithheld):
        pin_cut(lake.project, "bad", as_of("latest"), None, None)
    lake.land(Update(T, ("2", "2", "mended")))
    lake.advance()
    assert pinned_cuts(control) == (), "the schedule asks again an hour later"
    pin_cut(lake.project, "good", as_of("latest"), None, None)
    assert [one.name for one in pinned_cuts(control)] == ["good"]
    judged = control.read("quality").sort_by("judged_at").to_pylist()
    assert [row["failed"] for row in judged if row["rule"] == "unique_body"] == [2, 2, 0]
