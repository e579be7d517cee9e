"""What others did to a silver table since our last commit, and which generation of its content counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from cdc_lake.config.project import Project
from cdc_lake.control.cuts import table_states
from cdc_lake.errors import SilverMissing
from cdc_lake.tables.iceberg_table_log import iceberg_table
from cdc_lake.tables.object_store import LEASE, HeldLease
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.silver_table import FIRST, ForeignCommit, Marker, app_id, commit_note, planned_for
from tests.silver_commits import FORMATS, STREAM, make, write


class Table:
    """A silver table with two commits of ours."""

    def __init__(self, root: Path, fmt: str) -> None:
        self.project: Project
        self.project, self.target = make(root, fmt)
        self.versions = [self.ours(100), self.ours(110)]

    def ours(self, position: int, generation: int = FIRST, planned: str | None = None) -> int:
        return write(self.project, self.target, app_id(STREAM, self.target, generation), position, planned)

    def strangers(self) -> int:
        return write(self.project, self.target, None)

    def put_back(self, version: int) -> None:
        if self.target.format == "delta":
            self.delta().restore(version)
            return
        with self.iceberg().manage_snapshots() as snapshots:
            snapshots.set_current_snapshot(version)

    def delta(self) -> DeltaTable:
        return DeltaTable(str(self.project.silver_path(self.target)))

    def iceberg(self) -> Any:
        return iceberg_table(self.project, self.target)

    def found(self, known: int | None = None, generation: int = FIRST) -> ForeignCommit | None:
        now = table_log(self.project, self.target).marker(STREAM).version
        assert now is not None
        known = self.versions[-1] if known is None else known
        return table_log(self.project, self.target).foreign_commit(STREAM, known, now, generation)

    def untouched(self) -> bool:
        return table_log(self.project, self.target).is_latest(self.versions[-1])


@FORMATS
def test_our_own_commits_are_no_strangers(tmp_path: Path, fmt: str) -> None:
    table = Table(tmp_path, fmt)
    assert table.untouched()
    table.ours(120)
    assert not table.untouched()
    assert table.found() is None


@FORMATS
def test_rows_of_others_are_seen_also_below_a_commit_of_ours(tmp_path: Path, fmt: str) -> None:
    table = Table(tmp_path, fmt)
    written = table.strangers()
    table.ours(120)
    found = table.found()
    assert found is not None
    assert not found.put_back
    assert str(written) in found.text


@FORMATS
def test_a_table_that_was_put_back_is_seen_and_one_that_was_put_forward_again_is_whole(
    tmp_path: Path, fmt: str
) -> None:
    table = Table(tmp_path, fmt)
    table.put_back(table.versions[0])
    found = table.found()
    assert found is not None
    assert found.put_back
    table.put_back(table.versions[1])
    assert table.found() is None


@FORMATS
def test_a_table_that_was_made_anew_is_not_ours(tmp_path: Path, fmt: str) -> None:
    table = Table(tmp_path, fmt)
    if fmt == "delta":
        folder = table.project.silver_path(table.target)
        folder.rename(folder.with_name("away"))
    else:
        table.iceberg().catalog.drop_table((table.target.namespace, table.target.name))
    table.strangers()
    found = table.found()
    assert found is not None
    assert found.put_back


def test_files_put_together_and_properties_are_no_change(tmp_path: Path) -> None:
    table = Table(tmp_path, "delta")
    table.delta().optimize.compact()
    table.delta().alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    table.delta().vacuum(dry_run=False, retention_hours=0, enforce_retention_duration=False)
    assert table.found() is None


def test_the_metadata_of_a_commit_says_for_which_watermark_it_was_planned() -> None:
    assert planned_for(commit_note("app", 7, Marker(5, 1))) == (5,)
    assert planned_for(commit_note("app", 7, Marker(None, None))) == (None,)
    held = LEASE.set(HeldLease("apply", 3))
    try:
        assert json.loads(commit_note("app", 7, Marker(5, 1)))["cdc_lake"]["epoch"] == 3
    finally:
        LEASE.reset(held)
    assert planned_for("cdc_lake: planned for 5") == (5,)
    assert planned_for("cdc_lake: planned for no watermark") == (None,)
    for other in ("", "null", "5", "[]", '{"cdc_lake": 1}', '{"cdc_lake": {}}', '{"cdc_lake": {"planned_for": "x"}}'):
        assert planned_for(other) is None


@pytest.mark.parametrize("listed", [0, 1, 2])
@pytest.mark.parametrize("note", [commit_note("", 0, Marker(110, 1)), "cdc_lake: planned for 110"])
def test_a_commit_that_was_planned_before_another_appliers_is_told_from_those_in_turn(
    tmp_path: Path, listed: int, note: str
) -> None:
    table = Table(tmp_path, "delta")
    table.versions.append(table.ours(120, planned=note))
    table.delta().optimize.compact()
    assert table.found(table.versions[listed]) is None
    table.ours(130, planned=note)
    found = table.found(table.versions[listed])
    assert found is not None
    assert not found.put_back
    assert "another apply process" in found.text
    _replaced(table)
    assert table.found(table.versions[listed]) is None


def _replaced(table: Table) -> None:
    """What `REPLACE TABLE … AS SELECT` leaves, as far as it is looked at."""
    log = table.project.silver_path(table.target) / "_delta_log"
    version = table.ours(110, generation=2)
    entry = log / f"{version:020}.json"
    entry.write_text(entry.read_text().replace('"operation":"WRITE"', '"operation":"REPLACE TABLE AS SELECT"'))


def test_what_was_done_to_a_content_that_was_replaced_is_of_no_account(tmp_path: Path) -> None:
    table = Table(tmp_path, "delta")
    table.strangers()
    _replaced(table)
    assert table.found() is None
    table.strangers()
    assert table.found() is not None


@pytest.mark.parametrize("gone", [1, 2])
def test_a_log_that_was_cleaned_is_asked_as_far_as_it_goes(tmp_path: Path, gone: int) -> None:
    table = Table(tmp_path, "delta")
    for position in range(120, 150, 10):
        table.ours(position)
    table.delta().create_checkpoint()
    for version in range(gone + 1):
        (table.project.silver_path(table.target) / "_delta_log" / f"{version:020}.json").unlink()
    assert table.found(known=0) is None


def test_the_log_says_whether_another_commit_is_in_the_place_of_our_merge(tmp_path: Path) -> None:
    table = Table(tmp_path, "delta")
    version = table.versions[-1]

    def said(position: int) -> bool:
        return table_log(table.project, table.target).is_replaced(STREAM, version, position)

    assert not said(110)
    assert said(120)
    log = table.project.silver_path(table.target) / "_delta_log"
    (log / f"{version:020}.json").write_text('{"commitInfo":{"operation":"OPTIMIZE"}}\n')
    assert said(110)
    (log / f"{version:020}.json").unlink()
    assert not said(110)


def test_a_catalog_gives_a_version_to_one_commit(tmp_path: Path) -> None:
    table = Table(tmp_path, "iceberg")
    assert not table_log(table.project, table.target).is_replaced(STREAM, table.versions[-1], 120)


@FORMATS
def test_the_generation_in_force_is_the_one_that_was_begun_last_wherever_it_stands(tmp_path: Path, fmt: str) -> None:
    project, target = make(tmp_path, fmt)
    assert table_log(project, target).marker(STREAM) == Marker(None, None, 1)
    first = write(project, target, app_id(STREAM, target, 1), 200)
    assert table_log(project, target).marker(STREAM) == Marker(200, first, 1)
    second = write(project, target, app_id(STREAM, target, 2), 150)
    assert table_log(project, target).marker(STREAM) == Marker(150, second, 2), "a rebuild may stand lower"
    others = write(project, target, None)
    assert table_log(project, target).marker(STREAM) == Marker(150, others, 2)
    assert table_log(project, target).marker(STREAM, first) == Marker(200, first, 1), "old versions say what they were"
    assert table_log(project, target).marker("another").position is None


@FORMATS
def test_a_version_that_is_not_there_has_no_marker(tmp_path: Path, fmt: str) -> None:
    project, target = make(tmp_path, fmt)
    write(project, target, app_id(STREAM, target, 1), 200)
    with pytest.raises(SilverMissing):
        table_log(project, target).marker(STREAM, 99)


def test_a_cut_of_an_older_version_knew_only_the_first_generation() -> None:
    facts = {"table": "silver.t", "format": "delta", "version": 3, "position": 10, "state": "active", "held": 0}
    assert table_states(json.dumps({"public.t": facts}))["public.t"].generation == 1
