"""What every log of a silver table says (`tables.silver_table.TableLog`), wherever it is read.

A module of tests imports all of this and has a fixture `place`: `tests/unit/test_tables_table_log.py`,
`tests/spark/test_table_log_contract.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow.fs as pafs
import pytest
from deltalake import DeltaTable

from cdc_lake.config.project import Project
from cdc_lake.errors import SilverMissing
from cdc_lake.tables.delta_table_log import DeltaSqlLog, silver_storage
from cdc_lake.tables.iceberg_table_log import IcebergSqlLog, iceberg_table
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.silver_table import (
    FIRST,
    ForeignCommit,
    Marker,
    Owner,
    TableLayout,
    TableLog,
    TableStatistics,
    app_id,
    commit_note,
    table_ref,
)
from cdc_lake.tables.types import SilverColumn
from tests.silver_commits import FORMATS, STREAM, delta_options, write


@dataclass(frozen=True)
class Place:
    """Where a silver table is, and its log there. `spark`: the session by whose SQL alone it is read."""

    project: Project
    target: Any
    spark: Any = None

    @property
    def log(self) -> TableLog:
        if self.spark is None:
            return table_log(self.project, self.target)
        sql_log = DeltaSqlLog if self.target.format == "delta" else IcebergSqlLog
        return sql_log(self.spark, self.target, table_ref(self.project, self.target).sql)


MakePlace = Callable[[str], Place]
"""Makes a place for a table that does not exist yet, of a format. Each suite has its fixture `place`."""


class Table:
    """A silver table with two commits of ours."""

    def __init__(self, place: Place) -> None:
        self.place, self.project, self.target = place, place.project, place.target
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
        folder = table_ref(self.project, self.target).address
        assert folder is not None
        return DeltaTable(folder, storage_options=delta_options(self.project))

    def entry(self, version: int) -> str:
        """The file of a log entry."""
        return silver_storage(self.project, self.target).path(f"_delta_log/{version:020}.json")

    @property
    def files(self) -> pafs.FileSystem:
        return silver_storage(self.project, self.target).filesystem

    def rewrite(self, version: int, change: Callable[[str], str]) -> None:
        text = silver_storage(self.project, self.target).entry(version)
        assert text is not None
        with self.files.open_output_stream(self.entry(version)) as file:
            file.write(change(text).encode())

    def iceberg(self) -> Any:
        return iceberg_table(self.project, self.target)

    def found(self, known: int | None = None, generation: int = FIRST) -> ForeignCommit | None:
        now = self.place.log.marker(STREAM).version
        assert now is not None
        known = self.versions[-1] if known is None else known
        return self.place.log.foreign_commit(STREAM, known, now, generation)

    def untouched(self) -> bool:
        return self.place.log.is_latest(self.versions[-1])


@FORMATS
def test_our_own_commits_are_no_strangers(place: MakePlace, fmt: str) -> None:
    table = Table(place(fmt))
    assert table.untouched()
    table.ours(120)
    assert not table.untouched()
    assert table.found() is None


@FORMATS
def test_rows_of_others_are_seen_also_below_a_commit_of_ours(place: MakePlace, fmt: str) -> None:
    table = Table(place(fmt))
    written = table.strangers()
    table.ours(120)
    found = table.found()
    assert found is not None
    assert not found.put_back
    assert str(written) in found.text


@FORMATS
def test_a_table_that_was_put_back_is_seen_and_one_that_was_put_forward_again_is_whole(
    place: MakePlace, fmt: str
) -> None:
    table = Table(place(fmt))
    table.put_back(table.versions[0])
    found = table.found()
    assert found is not None
    assert found.put_back
    table.put_back(table.versions[1])
    assert table.found() is None


@FORMATS
def test_a_table_that_was_made_anew_is_not_ours(place: MakePlace, fmt: str) -> None:
    table = Table(place(fmt))
    if fmt == "delta":
        storage = silver_storage(table.project, table.target)
        storage.filesystem.delete_dir(storage.path(""))
    else:
        table.iceberg().catalog.drop_table((table.target.namespace, table.target.name))
    table.strangers()
    found = table.found()
    assert found is not None
    assert found.put_back


def test_files_put_together_and_properties_are_no_change(place: MakePlace) -> None:
    table = Table(place("delta"))
    table.delta().optimize.compact()
    table.delta().alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    table.delta().vacuum(dry_run=False, retention_hours=0, enforce_retention_duration=False)
    assert table.found() is None


@pytest.mark.parametrize("listed", [0, 1, 2])
@pytest.mark.parametrize("note", [commit_note("", 0, Marker(110, 1)), "cdc_lake: planned for 110"])
def test_a_commit_that_was_planned_before_another_appliers_is_told_from_those_in_turn(
    place: MakePlace, listed: int, note: str
) -> None:
    table = Table(place("delta"))
    if table.place.spark is not None and not note.startswith("{"):
        pytest.skip("versions before 0.5 did not note what SQL needs")
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
    version = table.ours(110, generation=2)
    table.rewrite(version, lambda text: text.replace('"operation":"WRITE"', '"operation":"REPLACE TABLE AS SELECT"'))


def test_what_was_done_to_a_content_that_was_replaced_is_of_no_account(place: MakePlace) -> None:
    table = Table(place("delta"))
    table.strangers()
    _replaced(table)
    assert table.found() is None
    table.strangers()
    assert table.found() is not None


@pytest.mark.parametrize("gone", [1, 2])
def test_a_log_that_was_cleaned_is_asked_as_far_as_it_goes(place: MakePlace, gone: int) -> None:
    table = Table(place("delta"))
    for position in range(120, 150, 10):
        table.ours(position)
    table.delta().create_checkpoint()
    for version in range(gone + 1):
        table.files.delete_file(table.entry(version))
    assert table.found(known=0) is None


def test_the_log_says_whether_another_commit_is_in_the_place_of_our_merge(place: MakePlace) -> None:
    table = Table(place("delta"))
    version = table.versions[-1]

    def said(position: int) -> bool:
        return table.place.log.is_replaced(STREAM, version, position)

    assert not said(110)
    assert said(120)
    table.rewrite(version, lambda _: '{"commitInfo":{"operation":"OPTIMIZE"}}\n')
    assert said(110)
    table.files.delete_file(table.entry(version))
    assert not said(110)


def test_a_catalog_gives_a_version_to_one_commit(place: MakePlace) -> None:
    table = Table(place("iceberg"))
    assert not table.place.log.is_replaced(STREAM, table.versions[-1], 120)


@FORMATS
def test_the_generation_in_force_is_the_one_that_was_begun_last_wherever_it_stands(place: MakePlace, fmt: str) -> None:
    there = place(fmt)
    project, target, log = there.project, there.target, there.log
    assert log.marker(STREAM) == Marker(None, None, 1)
    first = write(project, target, app_id(STREAM, target, 1), 200)
    assert log.marker(STREAM) == Marker(200, first, 1)
    second = write(project, target, app_id(STREAM, target, 2), 150)
    assert log.marker(STREAM) == Marker(150, second, 2), "a rebuild may stand lower"
    others = write(project, target, None)
    assert log.marker(STREAM) == Marker(150, others, 2)
    assert log.marker(STREAM, first) == Marker(200, first, 1), "old versions say what they were"
    assert log.marker("another").position is None


@FORMATS
def test_a_version_that_is_not_there_has_no_marker(place: MakePlace, fmt: str) -> None:
    there = place(fmt)
    project, target, log = there.project, there.target, there.log
    write(project, target, app_id(STREAM, target, 1), 200)
    with pytest.raises(SilverMissing):
        log.marker(STREAM, 99)


@FORMATS
def test_a_table_that_is_not_there_has_nothing(place: MakePlace, fmt: str) -> None:
    log = place(fmt).log
    assert not log.exists()
    assert (log.version(), log.layout(), log.owner(), log.columns()) == (None, None, None, None)
    assert log.statistics() == TableStatistics(0, 0, marked=False)
    assert log.all_below(None, "id", 0)
    assert not log.is_readable(0)
    for read in (log.read, log.read_empty, log.read_blocks, log.count_rows):
        with pytest.raises(SilverMissing):
            read()


@FORMATS
def test_rows_are_those_of_the_version(place: MakePlace, fmt: str) -> None:
    table = Table(place(fmt))
    log, (first, second) = table.place.log, table.versions
    rows = [100] if fmt == "delta" else [100, 110]
    assert log.read(first)["id"].to_pylist() == [100]
    assert sorted({100, *log.read(columns=["id"])["id"].to_pylist()}) == [100, 110]
    schema, blocks = log.read_blocks(second)
    assert sum(block.num_rows for block in blocks) == log.count_rows(second) == log.count_rows() == len(rows)
    assert schema.names == log.read_empty().schema.names == ["id"]
    assert log.read_empty().num_rows == 0
    assert log.columns() == (SilverColumn("id", "bigint"),)
    assert log.is_readable(first)
    assert not log.is_readable(99)
    for ask in (log.read, log.count_rows, log.read_blocks):
        with pytest.raises(SilverMissing):
            ask(99)


@FORMATS
def test_what_was_written_is_counted(place: MakePlace, fmt: str) -> None:
    table = Table(place(fmt))
    log = table.place.log
    statistics = log.statistics()
    if table.place.spark is None or fmt == "iceberg":  # delta-rs gives the metrics in its history other names
        metrics = log.commit_metrics(table.versions[-1])
        assert (metrics.files, metrics.replaced, metrics.marked) == (1, 1 if fmt == "delta" else 0, 0)
    assert statistics.files == (1 if fmt == "delta" else 2)
    assert statistics.size > 0
    assert not statistics.marked


@FORMATS
def test_no_value_is_said_to_be_below_what_is_not_above_it(place: MakePlace, fmt: str) -> None:
    table = Table(place(fmt))
    log = table.place.log
    assert not log.all_below(table.versions[-1], "id", 110)
    assert not log.all_below(table.versions[-1], "nothing", 111)
    assert log.all_below(table.versions[-1], "id", 111) is not (table.place.spark is not None and fmt == "delta")


@FORMATS
def test_the_owner_is_in_the_table(place: MakePlace, fmt: str) -> None:
    table = Table(place(fmt))
    assert table.place.log.owner() == Owner(None, STREAM)
    assert table.place.log.layout() == TableLayout("", (), ())
    assert not table.place.log.was_clustered()
