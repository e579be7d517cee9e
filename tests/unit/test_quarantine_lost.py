"""What a cut counts as held must be recorded; apply itself is in tests/spark/test_silver_state_loss.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.control.cuts import ACTIVE, TableState
from cdc_lake.control.quarantine import quarantine_log
from cdc_lake.model.relation import TableName
from cdc_lake.runtime.apply.table_integrity import missing_quarantine_rows
from cdc_lake.tables.control_schema import schema_of
from cdc_lake.tables.control_tables import ControlTables

LISTED = TableState("silver.orders", "delta", 7, 40, ACTIVE, held=2)


def row(position: int, key: str | None, reason: str = "failed") -> dict[str, Any]:
    place = {"relation": "public.orders", "epoch": 1, "generation": 1, "position": position, "ordinal": 1}
    empty = dict.fromkeys(schema_of("held").names)
    return {**empty, **place, "reason": reason, "key": None if key is None else [key]}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    source = {"type": "postgres", "host": "h", "database": "d", "user": "u", "tables": ["public.*"]}
    return Project(
        Pipeline.model_validate({"version": 1, "pipeline": "shop", "source": source}), tmp_path / "p", tmp_path
    )


def lost(project: Project, listed: TableState) -> str:
    held = quarantine_log(ControlTables(project.control))
    error = missing_quarantine_rows(held, project.target(TableName.parse("public.orders")), 1, listed)
    return "" if error is None else error.message


def test_keys_that_a_cut_counts_and_nothing_records_are_lost(project: Project) -> None:
    control = ControlTables(project.control)
    assert "counts 2 held keys of silver.orders, but 0 are recorded" in lost(project, LISTED)
    control.append("held", [row(20, "1"), row(30, "2", "waiting"), row(50, "3")])
    assert not lost(project, LISTED)
    assert "but 2 are" in lost(project, replace(LISTED, held=3)), "what lies above the table's position is not merged"
    assert "but 0 are" in lost(project, replace(LISTED, generation=2)), "nor is it of another content"
    control.delete("held", pc.field("position") == 20)
    assert "but 1 are" in lost(project, LISTED)


def test_what_ended_since_is_not_lost(project: Project) -> None:
    """A cut that counts fewer keys than were ever held: a truncate or a decision ended the others."""
    ControlTables(project.control).append("held", [row(20, "1"), row(30, "2"), row(35, None, "closed")])
    assert not lost(project, replace(LISTED, held=0))
    assert not lost(project, replace(LISTED, held=1))
