"""`cdc-lake maintain`: what retention may let go, what forcing gives up, what a dry run leaves alone, and what it says."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pytest

from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.loader import load_project
from cdc_lake.config.project import Project
from cdc_lake.errors import NoStream
from cdc_lake.model.change import Insert, Transaction
from cdc_lake.model.diagnostic import ConfigInvalid
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.runtime.maintain import maintain
from cdc_lake.runtime.receive.wal_budget_monitor import BronzeMaintenance
from cdc_lake.tables.control_schema import CutRow, utc_now
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.shell import QuickShell

ORDERS = table("public.orders", id="int8")
FILE = """\
version: 1
pipeline: shop
source: {{type: postgres, host: 127.0.0.1, port: 1, database: d, user: u, tables: ["public.*"]}}
bronze: {{durability: os, {more}}}
"""
LATER = dt.datetime.now(dt.UTC) + dt.timedelta(days=100)
KEPT_90_DAYS = "retention: {min_age: 90 d, rebuilds: false}"


def project_of(folder: Path, more: str = "") -> Project:
    file = folder / "pipelines" / "shop.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(FILE.format(more=more))
    return load_project(file)


def fill(project: Project, streams: int = 2, count: int = 5) -> DeltaBronze:
    """Streams of transactions at 11, 12, … each."""
    writer = DeltaBronze(project.bronze, "os")
    for epoch in range(1, streams + 1):
        writer.begin_stream(f"s{epoch}", 10)
        for position in range(11, 11 + count):
            inserted = Transaction(boundaries(position), (Insert(ORDERS, (str(position),)),))
            writer.append([raw_transaction(inserted)])
    return writer


def cut(project: Project, epoch: int, **positions: int) -> None:
    """A cut at the highest of the tables' positions; those below are behind."""
    top = max(positions.values())
    tables = {
        f"public.{name}": {
            "table": f"silver.{name}", "format": "delta", "version": 1, "position": at, "held": 0,
            "state": "active" if at == top else "failed",
        }
        for name, at in positions.items()
    }  # fmt: skip
    ControlTables(project.control, "os").record(CutRow(epoch, f"s{epoch}", top, None, json.dumps(tables), utc_now()))


def places(project: Project) -> list[tuple[int, int]]:
    """Epoch and position of every transaction that is left."""
    files = BronzeReader(project.bronze).files()
    rows = files.read(files.paths, ["epoch", "position", "op"]).to_pylist()
    return [(row["epoch"], row["position"]) for row in rows if row["op"] == "C"]


def test_without_retention_everything_stays(tmp_path: Path):
    project = project_of(tmp_path)
    fill(project)
    cut(project, 2, orders=15)
    done = maintain(project, started_at=LATER)
    assert [step.kind for step in done.steps] == ["compaction", "removal"]
    assert (done.files, done.kept, done.lost) == (2, "", ())
    assert len(places(project)) == 10


def test_a_dry_run_says_it_and_does_nothing(tmp_path: Path):
    project = project_of(tmp_path, KEPT_90_DAYS)
    fill(project)
    cut(project, 2, orders=15)
    version = BronzeReader(project.bronze).version()
    done = maintain(project, dry_run=True, started_at=LATER)
    assert (done.done, done.files) == (False, 10)
    assert [step.kind for step in done.steps] == ["retention", "compaction"]
    assert BronzeReader(project.bronze).version() == version


def test_retention_stops_at_the_slowest_table(tmp_path: Path):
    project = project_of(tmp_path, KEPT_90_DAYS)
    fill(project)
    cut(project, 2, orders=15, prices=13)
    done = maintain(project, started_at=LATER)
    assert places(project) == [(2, 14), (2, 15)]
    assert done.kept == "public.prices is at 0/D"
    assert verify(BronzeReader(project.bronze)).holds


def test_retention_keeps_what_is_young(tmp_path: Path):
    project = project_of(tmp_path, KEPT_90_DAYS)
    fill(project)
    cut(project, 2, orders=15)
    maintain(project, started_at=dt.datetime.now(dt.UTC) + dt.timedelta(days=89))
    assert len(places(project)) == 10


def test_retention_keeps_what_silver_could_be_built_again_from(tmp_path: Path):
    project = project_of(tmp_path, "retention: {min_age: 90 d}")
    fill(project)
    cut(project, 2, orders=15)
    done = maintain(project, started_at=LATER)
    assert places(project) == [(2, position) for position in range(11, 16)]
    assert "rebuilt" in done.kept


def test_nothing_leaves_before_silver_has_taken_over_the_newest_stream(tmp_path: Path):
    project = project_of(tmp_path, KEPT_90_DAYS)
    fill(project)
    cut(project, 1, orders=15)
    done = maintain(project, started_at=LATER)
    assert len(places(project)) == 10
    assert "not taken over" in done.kept


def test_forced_it_says_what_is_lost(tmp_path: Path):
    project = project_of(tmp_path, KEPT_90_DAYS)
    writer = fill(project)
    cut(project, 2, orders=12)
    done = maintain(project, force=True, started_at=LATER)
    assert places(project) == []
    assert done.lost == (
        "silver cannot be rebuilt from bronze",
        "up to 3 transactions after 0/C that silver does not contain",
    )
    assert writer.state() == DeltaBronze(project.bronze).state()
    verdict = verify(BronzeReader(project.bronze))
    assert (verdict.holds, verdict.transactions, verdict.behind) == (True, 0, (2, 15))


def test_there_is_nothing_to_maintain_before_the_first_run(tmp_path: Path):
    with pytest.raises(NoStream):
        maintain(project_of(tmp_path))


def test_files_in_use_are_kept_for_an_hour_at_least(tmp_path: Path):
    with pytest.raises(ConfigInvalid):
        project_of(tmp_path, "maintenance: {keep_replaced: 5 min}")


def test_a_receiver_keeps_its_files_few_by_itself(tmp_path: Path):
    project = project_of(tmp_path, "maintenance: {compact_after_files: 5}")
    told: list[ProgressEvent] = []
    for _ in range(2):
        with BronzeMaintenance(project, told.append) as upkeep:
            fill(project, streams=0)
            upkeep.on_progress(ProgressEvent("landed", ""))
    assert not [p for p in told if p.stage == "maintain"], "no table yet"
    writer = fill(project, streams=1, count=12)
    with BronzeMaintenance(project, told.append) as upkeep:
        upkeep.on_progress(ProgressEvent("landed", ""))
    assert [p.text for p in told if p.stage == "maintain"] == ["12 files of bronze compacted into 1"]
    assert writer.advance(50, 50).upto == 50


def test_what_fails_in_upkeep_is_told_and_stops_nobody(tmp_path: Path):
    project = project_of(tmp_path, "maintenance: {compact_after_files: 5}")
    fill(project, streams=1, count=6)
    lost = BronzeReader(project.bronze).files().paths[3]
    Path(lost).unlink()
    told: list[ProgressEvent] = []
    with BronzeMaintenance(project, told.append) as upkeep:
        upkeep.on_progress(ProgressEvent("landed", ""))
    assert [p.stage for p in told] == ["landed", "maintain"]
    assert "retried later" in told[1].text


def test_the_command_says_what_it_did(tmp_path: Path):
    project = project_of(tmp_path, KEPT_90_DAYS)
    fill(project, streams=1)
    shell = QuickShell(tmp_path)
    assert shell.fine("maintain", "-q", "--dry-run").splitlines() == [
        "5 files would become 1",
        "bronze has 5 data files",
        "retention: silver has not taken over the latest stream yet, so nothing is removed",
        "nothing was changed",
    ]
    document = json.loads(shell.fine("maintain", "-q", "--json"))
    assert (document["schema"], document["done"], document["files"]) == ("cdc-lake/maintain/1", True, 1)
    assert document["steps"][0]["facts"] == {"files": 5, "into": 1, "bytes": document["steps"][0]["facts"]["bytes"]}


def test_copies_that_a_killed_run_of_an_older_version_left_are_removed(tmp_path: Path):
    project = project_of(tmp_path)
    fill(project, streams=1, count=1)
    project.scratch.mkdir(parents=True)
    (project.scratch / "0.parquet").write_bytes(b"PAR1")
    spool = project.spool / "open"
    spool.mkdir(parents=True)
    for dry_run, verb in ((True, "would be removed"), (False, "removed")):
        [step] = maintain(project, dry_run=dry_run).steps
        assert step.text == f"{project.scratch}, copies of bronze that version 0.4 left, {verb}"
        assert project.scratch.exists() is dry_run
    assert spool.exists()


def test_one_of_the_two_can_be_maintained_alone_and_silver_without_tables_needs_no_spark(tmp_path: Path):
    project = project_of(tmp_path)
    fill(project)
    before = len(places(project))
    assert maintain(project, only="silver").silver == ()
    assert maintain(project, only="silver").steps == ()
    assert maintain(project, only="bronze").silver is None
    assert maintain(project).silver == ()
    assert len(places(project)) == before


def test_how_long_versions_of_silver_stay_is_a_day_at_least(tmp_path: Path):
    file = tmp_path / "shop.yaml"
    file.write_text(FILE.format(more="") + "silver: {maintenance: {keep_versions: 1 h}}\n")
    with pytest.raises(ConfigInvalid, match="at least 86400000"):
        load_project(file)
