"""A restart keeps pasts: one that others damaged is mended before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project, Target
from cdc_lake.control.cuts import ACTIVE, FAILED, TableState
from cdc_lake.errors import OtherWriter
from cdc_lake.model.relation import TableName
from cdc_lake.runtime.restart import check_pasts

PAST = Target(TableName("public", "past"), "silver", "past", "delta", None, (), kind="history")
WRITTEN = ("LAK467", "silver.past was modified outside cdc_lake", "run `cdc-lake rebuild public.past` for it")
LISTED = TableState("silver.past", "delta", 7, 100, FAILED, 0, error=WRITTEN)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    source = {"type": "postgres", "host": "h", "database": "d", "user": "u", "tables": ["public.*"]}
    pipeline = Pipeline.model_validate({"version": 1, "pipeline": "shop", "source": source})
    return Project(pipeline, tmp_path / "p", tmp_path)


def test_a_past_that_others_damaged_is_mended_first(project: Project):
    with pytest.raises(OtherWriter, match=r"make the damage to the past of silver\.past permanent") as refused:
        check_pasts(project, "s", [PAST], {"public.past": LISTED})
    assert refused.value.remedy.startswith("run `cdc-lake rebuild public.past` for it, before you restart")


@pytest.mark.parametrize(
    ("target", "listed"),
    [
        (PAST, replace(LISTED, state=ACTIVE)),
        (PAST, replace(LISTED, error=("LAK410", "another layout", "allow"))),
        (replace(PAST, name="anew"), LISTED),
        (replace(PAST, kind="current"), LISTED),
    ],
    ids=["gone", "waits for something else", "goes to another table", "begins with the copy"],
)
def test_a_restart_goes_on_where_nothing_of_a_past_is_damaged(project: Project, target: Target, listed: TableState):
    check_pasts(project, "s", [target], {"public.past": listed})
