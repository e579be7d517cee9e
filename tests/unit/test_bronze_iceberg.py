"""What Iceberg bronze does of its own: catalogs, the fence, lost replies, versions that leave, manifests that merge."""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table

from cdc_lake.bronze.contract import SCHEMA
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.iceberg_table import IcebergBronzeTable
from cdc_lake.bronze.open import bronze_reader, bronze_writer
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import TableBronze
from cdc_lake.config.loader import load_project
from cdc_lake.errors import AnotherReceiver, BronzeNotWritten, CatalogUnreachable, CommitUncertain
from cdc_lake.model.position import Span
from cdc_lake.runtime.maintain import maintain
from cdc_lake.tables import iceberg_io, iceberg_log
from cdc_lake.tables import iceberg_log as iceberg_manifests
from cdc_lake.tables.catalog import CatalogAddress, open_catalog
from cdc_lake.tables.orphan_files import OrphanFiles
from cdc_lake_testing.rest_catalog import Loss, RestCatalogServer
from tests.bronze_formats import ORDERS, Place, loaded, transaction
from tests.conftest import Database

ALL = Span(1, 0, 1 << 62)


@pytest.fixture(params=["sqlite", "postgresql", "rest"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CatalogAddress]:
    """A catalog of each kind, all of them real."""
    warehouse = f"file://{tmp_path / 'warehouse'}"
    match request.param:
        case "sqlite":
            yield CatalogAddress("lake", "sql", f"sqlite:///{tmp_path / 'catalog.db'}", warehouse)
        case "postgresql":
            database: Database = request.getfixturevalue("database")
            who = f"{database.user}:{database.password.replace(' ', '%20')}"
            uri = f"postgresql+psycopg://{who}@{database.host}:{database.port}/{database.name}"
            yield (given := CatalogAddress("lake", "sql", uri, warehouse))
            sql_catalog(given).close()
        case _:
            with RestCatalogServer(tmp_path) as server:
                yield CatalogAddress("lake", "rest", server.uri, None)


def sql_catalog(address: CatalogAddress) -> SqlCatalog:
    catalog = open_catalog(address)
    assert isinstance(catalog, SqlCatalog)
    return catalog


def writer(address: CatalogAddress) -> TableBronze:
    return TableBronze(IcebergBronzeTable(address, "shop"))


def reader(address: CatalogAddress) -> BronzeReader:
    return BronzeReader(IcebergBronzeTable(address, "shop"))


@pytest.fixture
def iceberg(tmp_path: Path) -> Place:
    """A SQLite catalog with a stream begun at 100."""
    place = Place("iceberg", tmp_path / "b")
    place.writer().begin_stream("s1", 100)
    return place


def test_every_catalog_keeps_rows_markers_and_the_fence(address: CatalogAddress):
    assert writer(address).state() is None
    first = writer(address)
    state = first.begin_stream("s1", 100)
    assert writer(address).state() == state
    late = writer(address)
    late.state()
    assert first.append([transaction(200), transaction(300, rows=3)]).upto == 300
    assert first.advance(900, 800).confirm == 800
    with pytest.raises(AnotherReceiver):
        late.append([transaction(200)])
    again = writer(address)
    assert again.state() == first.state()
    assert again.append([transaction(300), transaction(950)]).repeats == 1
    with pytest.raises(AnotherReceiver):
        first.append([transaction(960)])
    assert [c.position for c in reader(address).commits(ALL)] == [200, 300, 950]
    assert verify(reader(address)).holds


def test_of_writers_that_commit_at_once_one_lands(address: CatalogAddress):
    writer(address).begin_stream("s1", 100)
    for position in range(200, 203):
        rivals = [writer(address) for _ in range(4)]
        for rival in rivals:
            rival.state()
        together = threading.Barrier(len(rivals))

        def lands(rival: TableBronze, position: int = position, together: threading.Barrier = together) -> bool:
            together.wait()
            try:
                rival.append([transaction(position)])
            except AnotherReceiver:
                return False
            return True

        with ThreadPoolExecutor(len(rivals)) as threads:
            assert sum(threads.map(lands, rivals)) == 1
    assert [c.position for c in reader(address).commits(ALL)] == list(range(200, 203))
    assert verify(reader(address)).holds


@pytest.mark.parametrize("loss", [Loss.REPLY, Loss.ERROR, Loss.SILENCE])
def test_a_commit_that_a_rest_server_made_and_did_not_answer_counts_as_landed(
    tmp_path: Path, loss: Loss, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(iceberg_io, "ANSWER_SECONDS", 2.0)
    with RestCatalogServer(tmp_path) as server:
        address = CatalogAddress("lake", "rest", server.uri, None)
        bronze = writer(address)
        bronze.begin_stream("s1", 100)
        server.loss = loss
        assert bronze.append([transaction(200)]).upto == 200
        assert bronze.append([transaction(300)]).upto == 300
        server.loss = Loss.NONE
        assert bronze.append([transaction(300), transaction(400)]).repeats == 1
        assert server.commits == 4
        assert [c.position for c in reader(address).commits(ALL)] == [200, 300, 400]
        assert verify(reader(address)).holds


def test_a_commit_that_never_reached_the_server_is_said_and_can_be_tried_again(tmp_path: Path):
    with RestCatalogServer(tmp_path) as server:
        bronze = writer(CatalogAddress("lake", "rest", server.uri, None))
        bronze.begin_stream("s1", 100)
        server.loss = Loss.REQUEST
        with pytest.raises(BronzeNotWritten):
            bronze.append([transaction(200)])
        server.loss = Loss.NONE
        assert bronze.append([transaction(200)]).transactions == 1


def test_a_catalog_that_goes_away_in_a_commit_leaves_it_open_until_it_is_back(
    iceberg: Place, monkeypatch: pytest.MonkeyPatch
):
    bronze = iceberg.writer()
    bronze.state()
    real = SqlCatalog.commit_table

    def gone(*_: object, **__: object) -> None:
        raise ConnectionError

    def commits_and_goes(*args: Any, **given: Any) -> None:
        real(*args, **given)
        monkeypatch.setattr(SqlCatalog, "load_table", gone)
        raise ConnectionError

    monkeypatch.setattr(SqlCatalog, "commit_table", commits_and_goes)
    with pytest.raises(CommitUncertain):
        bronze.append([transaction(200)])
    monkeypatch.undo()
    assert bronze.append([transaction(200), transaction(300)]).repeats == 1
    assert verify(iceberg.reader()).holds


def test_a_server_that_is_not_there_is_named_without_its_secrets(tmp_path: Path):
    with RestCatalogServer(tmp_path) as server:
        uri = server.uri
    address = CatalogAddress("lake", "rest", uri, None, (("token", "secret-token"),))
    with pytest.raises(CatalogUnreachable) as failure:
        writer(address).state()
    assert "secret" not in f"{failure.value} {address!r}"
    assert "lake" in failure.value.message


def test_a_rival_that_commits_on_top_of_a_lost_reply_overtakes_the_next_commit(
    iceberg: Place, monkeypatch: pytest.MonkeyPatch
):
    bronze, rival = iceberg.writer(), iceberg.writer()
    bronze.state()
    real = SqlCatalog.commit_table

    def loses_the_reply(*args: Any, **given: Any) -> None:
        real(*args, **given)
        monkeypatch.setattr(SqlCatalog, "commit_table", real)
        rival.append([transaction(300)])
        raise ConnectionError

    monkeypatch.setattr(SqlCatalog, "commit_table", loses_the_reply)
    assert bronze.append([transaction(200)]).upto == 200
    with pytest.raises(AnotherReceiver):
        bronze.append([transaction(400)])
    assert [c.position for c in iceberg.reader().commits(ALL)] == [200, 300]
    assert verify(iceberg.reader()).holds


def test_a_change_of_properties_by_others_is_no_rival(iceberg: Place):
    bronze = iceberg.writer()
    bronze.append([transaction(200)])
    with loaded(iceberg).transaction() as change:
        change.set_properties({"comment": "by hand"})
    assert bronze.append([transaction(300)]).upto == 300
    assert loaded(iceberg).properties["comment"] == "by hand"


def test_a_version_of_others_without_our_summary_hides_neither_state_nor_chunks(iceberg: Place):
    bronze = iceberg.writer()
    chunk = pa.array([["1", "a"]], pa.list_(pa.string()))
    bronze.append_snapshot("init", 3, ORDERS, chunk, 0, 100)
    bronze.append([transaction(200)])
    before = bronze.state()
    append = loaded(iceberg).transaction()
    append.update_snapshot(snapshot_properties={"by": "others"}).fast_append().commit()
    append.commit_transaction()
    again = iceberg.writer()
    assert again.state() == before
    assert again.append_snapshot("init", 3, ORDERS, chunk, 0, 100).bytes_written == 0
    assert again.append([transaction(300)]).upto == 300
    assert verify(iceberg.reader()).holds


def test_chunks_of_an_older_stream_are_not_carried_on(iceberg: Place):
    bronze = iceberg.writer()
    bronze.append_snapshot("init", 3, ORDERS, pa.array([["1", "a"]], pa.list_(pa.string())), 0, 100)
    bronze.begin_stream("s2", 100)
    head = loaded(iceberg).current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert [key for key in head.summary.additional_properties if "chunk" in key] == []


def test_old_versions_leave_with_their_lists_and_no_data_file_does(iceberg: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(iceberg_log, "KEEP", 5)
    monkeypatch.setattr(iceberg_manifests, "TIER", 4)
    bronze = iceberg.writer()
    for number in range(40):
        bronze.append([transaction(200 + number)])
    found = loaded(iceberg)
    assert len(found.snapshots()) == 5
    assert len(iceberg.data_files()) == 40
    metadata = iceberg.folder / "warehouse" / "bronze" / "shop" / "metadata"
    lists = sorted(metadata.glob("snap-*.avro"))
    assert sorted(f"file://{path}" for path in lists) == sorted(s.manifest_list for s in found.snapshots())
    manifests = {m.manifest_path for s in found.snapshots() for m in s.manifests(found.io)}
    assert sorted(f"file://{path}" for path in metadata.glob("*-m0.avro")) == sorted(manifests)
    assert len(list(metadata.glob("*.json"))) <= 21 + 1
    assert len(iceberg.reader().files().paths) == 40
    assert verify(iceberg.reader()).transactions == 40


def test_a_tagged_version_stays(iceberg: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(iceberg_log, "KEEP", 3)
    bronze = iceberg.writer()
    bronze.append([transaction(200)])
    tagged = loaded(iceberg).current_snapshot()
    assert tagged is not None
    loaded(iceberg).manage_snapshots().create_tag(tagged.snapshot_id, "kept").commit()
    for number in range(8):
        bronze.append([transaction(300 + number)])
    found = loaded(iceberg)
    assert len(found.snapshots()) == 4
    assert found.scan(snapshot_id=tagged.snapshot_id).to_arrow().num_rows == 4


def test_a_reader_whose_version_has_left_reads_a_newer_one(iceberg: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(iceberg_log, "KEEP", 2)
    bronze, behind = iceberg.writer(), iceberg.table()
    bronze.append([transaction(200)])
    assert behind.refresh()
    for number in range(5):
        bronze.append([transaction(300 + number)])
    assert len(behind.files().paths) == 6


def test_merged_manifests_keep_every_file_and_its_bounds(iceberg: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(iceberg_manifests, "TIER", 3)
    listed: list[int] = []
    for number in range(30):
        iceberg.writer().append([transaction(200 + number)])  # each reads the manifests of the one before
        listed.append(len(manifests(loaded(iceberg))))
    assert max(listed) <= 2 + 2 + 30 // 9
    files = iceberg.reader().files()
    assert files.actions["min.position"].to_pylist() == list(range(200, 230))
    assert len(files.select(epoch=1, after=210, upto=212)) == 2
    assert verify(iceberg.reader()).transactions == 30


def manifests(found: Table) -> list[ManifestFile]:
    head = found.current_snapshot()
    return [] if head is None else head.manifests(found.io)


def test_other_readers_of_iceberg_see_the_same_rows(iceberg: Place):
    bronze = iceberg.writer()
    bronze.append([transaction(200, rows=3), transaction(300)])
    bronze.append([transaction(400)])
    found = loaded(iceberg)
    rows = found.scan().to_arrow()
    assert rows.schema.names == SCHEMA.names
    assert rows.num_rows == 5 + 1 + 3 + 1 + 3
    pruned = found.scan(row_filter="position > 300 and relation = 'public.orders'")
    assert len(list(pruned.plan_files())) == 1
    assert found.properties["cdc_lake.contract"] == "1"


def test_a_look_makes_no_catalog(tmp_path: Path):
    place = Place("iceberg", tmp_path / "none")
    assert place.reader().version() is None
    assert not (tmp_path / "none").exists()


def test_the_metadata_does_not_grow(iceberg: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(iceberg_log, "KEEP", 25)
    bronze = iceberg.writer()
    sizes = []
    for number in range(3 * iceberg_log.KEEP):
        bronze.append([transaction(200 + number)])
        sizes.append(len(json.dumps(loaded(iceberg).metadata.model_dump(mode="json"))) if number % 25 == 24 else 0)
    small, large = sizes[49], sizes[74]
    assert large < 1.02 * small


def test_maintain_puts_an_iceberg_bronze_in_order_beside_its_receiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(iceberg_log, "KEEP", 6)
    file = tmp_path / "pipelines" / "shop.yaml"
    file.parent.mkdir()
    file.write_text(
        "{version: 1, pipeline: shop, bronze: {format: iceberg, durability: os, maintenance: {keep_replaced: 1 h}},"
        " source: {type: postgres, host: h, database: d, user: u, tables: ['public.*']}}"
    )
    project = load_project(file)
    bronze = bronze_writer(project)
    bronze.begin_stream("s1", 100)
    for number in range(12):
        bronze.append([transaction(200 + number)])
    dry = maintain(project, dry_run=True)
    assert ([step.kind for step in dry.steps], dry.files) == (["compaction"], 12)
    done = maintain(project)
    assert ([step.kind for step in done.steps], done.files) == (["compaction"], 1)
    data = tmp_path / "lake" / "warehouse" / "bronze" / "shop" / "data"
    assert len(list(data.iterdir())) == 13
    assert bronze.append([transaction(300)]).upto == 300
    assert verify(bronze_reader(project)).transactions == 13
    for number in range(iceberg_log.KEEP):
        bronze.append([transaction(400 + number)])
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=2)
    kinds = [step.kind for step in maintain(project, started_at=later).steps]
    assert kinds == ["compaction", "removal"]
    assert len(list(data.iterdir())) == 3 + iceberg_log.KEEP  # what this compaction replaced is still named
    assert verify(bronze_reader(project)).transactions == 13 + iceberg_log.KEEP


def test_what_an_interrupted_commit_left_is_found_and_removed(iceberg: Place, monkeypatch: pytest.MonkeyPatch):
    bronze = iceberg.writer()
    bronze.append([transaction(200)])

    def refused(*_: object, **__: object) -> None:
        raise OSError

    monkeypatch.setattr(SqlCatalog, "commit_table", refused)
    with pytest.raises(BronzeNotWritten):
        bronze.append([transaction(300)])
    monkeypatch.undo()
    bronze.append([transaction(300)])
    table = iceberg.table()
    assert isinstance(table, IcebergBronzeTable)
    assert table.refresh()
    now = time.time()
    assert table.leftovers(now, 3600.0) == OrphanFiles((), (), 0)
    found = table.tidy(now + 4000, 3600.0)
    assert found is not None
    assert (len(found.entries), len(found.files)) == (2, 1)
    assert table.leftovers(now + 4000, 3600.0) == OrphanFiles((), (), 0)
    assert verify(iceberg.reader()).transactions == 2
