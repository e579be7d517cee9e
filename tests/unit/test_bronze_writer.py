"""The bronze writer, in each format: one commit a batch, once, by one writer, whatever the call said."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cdc_lake.bronze import contract
from cdc_lake.bronze.contract import BronzeWriter, StreamCheckpoint
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze, TableBronze
from cdc_lake.decode.hashing import GENESIS
from cdc_lake.errors import AnotherReceiver, BronzeNotWritten, BronzeUnknown, NoStream, NotInOrder
from cdc_lake.model.position import Span
from cdc_lake.tables import delta_log
from cdc_lake.tables.catalog import open_catalog
from cdc_lake.tables.iceberg_log import IcebergLog
from tests.bronze_formats import ORDERS, Place, transaction
from tests.seeds import one_seed

ALL = Span(1, 0, 1 << 62)


@pytest.fixture
def bronze(place: Place) -> TableBronze:
    writer = place.writer()
    writer.begin_stream("s1", 100)
    return writer


@pytest.fixture
def delta(tmp_path: Path) -> DeltaBronze:
    writer = DeltaBronze(tmp_path / "delta")
    writer.begin_stream("s1", 100)
    return writer


def test_the_writer_is_a_bronze_writer(place: Place):
    port: BronzeWriter = place.writer()
    assert port.state() is None


def test_a_stream_starts_with_both_markers_and_no_rows(bronze: TableBronze, place: Place):
    state = StreamCheckpoint("s1", 1, 100, 100, GENESIS)
    assert bronze.state() == state
    assert place.writer().state() == state
    assert place.data_files() == []


def test_the_next_stream_has_the_next_epoch_and_a_chain_of_its_own(bronze: TableBronze):
    bronze.append([transaction(200)])
    assert bronze.begin_stream("s2", 50) == StreamCheckpoint("s2", 2, 50, 50, GENESIS)
    assert bronze.append([transaction(60)]).upto == 60


def test_a_stream_is_not_started_twice(bronze: TableBronze):
    with pytest.raises(NoStream):
        bronze.begin_stream("s1", 100)


def test_nothing_lands_without_a_stream(place: Place):
    with pytest.raises(NoStream):
        place.writer().append([transaction(200)])


def test_a_batch_is_one_file_and_one_commit_with_both_markers(bronze: TableBronze, place: Place):
    landed = bronze.append([transaction(200, rows=3), transaction(300)])
    assert (landed.upto, landed.confirm, landed.transactions, landed.changes, landed.repeats) == (300, 300, 2, 4, 0)
    assert landed.version == 2
    (path,) = place.data_files()
    assert landed.bytes_written == path.stat().st_size
    state = place.writer().state()
    assert state is not None
    assert (state.upto, state.confirm) == (300, 300)


def test_delta_keeps_the_markers_as_application_transactions(delta: DeltaBronze, tmp_path: Path):
    delta.append([transaction(200, rows=3), transaction(300)])
    table = DeltaTable(str(tmp_path / "delta"))
    assert table.transaction_version(contract.order_app("s1")) == 300
    assert table.transaction_version(contract.confirm_app("s1")) == 300
    assert table.to_pyarrow_table().schema.names == contract.SCHEMA.names
    assert (table.protocol().min_reader_version, table.protocol().min_writer_version) == (1, 2)


def test_a_reopened_writer_says_the_same(bronze: TableBronze, place: Place):
    bronze.append([transaction(200)])
    bronze.advance(250, 250)
    assert place.writer().state() == bronze.state()


def test_a_replayed_batch_changes_nothing(bronze: TableBronze, place: Place):
    first = bronze.append([transaction(200), transaction(300)])
    again = place.writer().append([transaction(200), transaction(300)])
    assert (again.transactions, again.repeats, again.version, again.upto) == (0, 2, first.version, 300)


def test_of_an_overlapping_batch_only_the_new_lands(bronze: TableBronze, place: Place):
    bronze.append([transaction(200), transaction(300)])
    landed = bronze.append([transaction(300), transaction(400)])
    assert (landed.transactions, landed.repeats, landed.upto) == (1, 1, 400)
    commits = place.reader().commits(ALL)
    assert [c.position for c in commits] == [200, 300, 400]


def test_an_empty_batch_changes_nothing(bronze: TableBronze):
    assert bronze.append([]).version == 1


@pytest.mark.parametrize("positions", [(200, 200), (300, 200)])
def test_positions_that_do_not_ascend_are_refused(bronze: TableBronze, positions: tuple[int, int]):
    with pytest.raises(NotInOrder):
        bronze.append([transaction(p) for p in positions])
    state = bronze.state()
    assert state is not None
    assert state.upto == 100


def test_markers_advance_without_rows_and_never_go_back(bronze: TableBronze, place: Place):
    landed = bronze.advance(500, 500)
    assert (landed.upto, landed.confirm, landed.version, landed.bytes_written) == (500, 500, 2, 0)
    assert bronze.advance(400, 400).version == 2
    assert bronze.advance(500, 500).upto == 500
    assert place.data_files() == []
    assert bronze.append([transaction(450)]).repeats == 1


def test_markers_are_turned_back_where_that_is_said_and_a_new_writer_sees_them_so(bronze: TableBronze, place: Place):
    bronze.append([transaction(200)])
    bronze.advance(500, 500)
    turned = bronze.turn_back(300)
    assert (turned.upto, turned.confirm) == (300, 300)
    again = place.writer()
    assert again.state() == turned
    assert again.turn_back(400) == turned
    landed = again.append([transaction(200), transaction(310)])
    assert (landed.transactions, landed.repeats, landed.upto) == (1, 1, 310)
    assert [commit.position for commit in place.reader().commits(ALL)] == [200, 310]


def test_an_advance_keeps_the_head_of_the_chain(bronze: TableBronze):
    bronze.append([transaction(200)])
    before = bronze.state()
    bronze.advance(500, 500)
    after = bronze.state()
    assert before is not None
    assert after is not None
    assert after.head == before.head


def test_snapshot_chunks_land_once_and_leave_the_stream_alone(bronze: TableBronze, place: Place):
    bronze.append([transaction(200)])
    before = bronze.state()
    rows = pa.array([["1", "a"], ["2", None]], pa.list_(pa.string()))
    first = bronze.append_snapshot("init", 1, ORDERS, rows, 1, 100)
    again = bronze.append_snapshot("init", 1, ORDERS, rows, 1, 100)
    second = bronze.append_snapshot("init", 2, ORDERS, rows, 3, 100)
    assert (first.version, again.version, second.version) == (3, 3, 4)
    assert (first.changes, again.changes) == (2, 0)
    assert bronze.state() == before
    assert place.writer().state() == before
    rows_read = place.reader().rows(100)
    assert rows_read.filter(pa.compute.equal(rows_read["op"], "S"))["ordinal"].to_pylist() == [1, 2, 3, 4]


def test_the_second_of_two_writers_is_refused_and_stays_refused(bronze: TableBronze, place: Place):
    other = place.writer()
    other.state()
    bronze.append([transaction(200)])
    for _ in range(2):
        with pytest.raises(AnotherReceiver):
            other.append([transaction(200), transaction(300)])
    with pytest.raises(AnotherReceiver):
        other.state()
    assert [c.position for c in place.reader().commits(ALL)] == [200]


def test_a_writer_overtaken_by_a_new_stream_is_refused(bronze: TableBronze, place: Place):
    other = place.writer()
    other.begin_stream("s2", 10)
    with pytest.raises(AnotherReceiver):
        bronze.advance(900, 900)


def test_a_rival_right_behind_a_commit_is_not_built_upon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ours, rival = DeltaBronze(tmp_path / "t"), DeltaBronze(tmp_path / "t")
    ours.begin_stream("s1", 100)
    real = DeltaTable.update_incremental

    def late(table: DeltaTable) -> None:
        monkeypatch.setattr(DeltaTable, "update_incremental", real)
        rival.append([transaction(300)])
        real(table)

    monkeypatch.setattr(DeltaTable, "update_incremental", late)
    assert ours.append([transaction(200)]).upto == 200
    with pytest.raises(AnotherReceiver):
        ours.append([transaction(300), transaction(400)])
    reader = BronzeReader(tmp_path / "t")
    assert [c.position for c in reader.commits(ALL)] == [200, 300]
    assert verify(reader).holds


def test_a_commit_that_landed_before_its_call_failed_counts_as_landed(
    bronze: TableBronze, place: Place, monkeypatch: pytest.MonkeyPatch
):
    library, call = place.commit_call
    real = getattr(library, call)

    def breaks_after(*args: object, **given: object) -> None:
        real(*args, **given)
        raise OSError("the answer was lost")

    monkeypatch.setattr(library, call, breaks_after)
    assert bronze.append([transaction(200)]).upto == 200
    monkeypatch.undo()
    assert bronze.append([transaction(200), transaction(300)]).repeats == 1
    assert verify(place.reader()).holds


def test_a_commit_that_did_not_land_is_said_and_can_be_tried_again(
    bronze: TableBronze, place: Place, monkeypatch: pytest.MonkeyPatch
):
    def breaks_before(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(*place.commit_call, breaks_before)
    with pytest.raises(BronzeNotWritten):
        bronze.append([transaction(200)])
    monkeypatch.undo()
    assert bronze.append([transaction(200)]).transactions == 1
    assert len(place.data_files()) == 2  # the first one belongs to no commit: harmless
    assert len(place.reader().files().paths) == 1


def test_every_commit_is_synced_before_it_is_acknowledged(place: Place, monkeypatch: pytest.MonkeyPatch):
    synced: set[Path] = set()
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.add(Path(f"/proc/self/fd/{handle}").resolve())
        real(handle)

    writer = place.writer(durable=True)
    writer.begin_stream("s1", 100)
    before = set(place.folder.rglob("*"))
    monkeypatch.setattr(os, "fsync", fsync)
    writer.append([transaction(200)])
    new = {path for path in set(place.folder.rglob("*")) - before if path.is_file()}
    assert len(new) == {"delta": 2, "iceberg": 4}[place.format]  # data, log entry; data, manifest, list, metadata
    assert synced >= new | {path.parent for path in new}


def test_durability_os_syncs_nothing(place: Place, monkeypatch: pytest.MonkeyPatch):
    def refused(_: int) -> None:
        pytest.fail("fsync was called")

    monkeypatch.setattr(os, "fsync", refused)
    writer = place.writer()
    writer.begin_stream("s1", 100)
    assert writer.append([transaction(200)]).upto == 200


def test_state_survives_checkpoints_and_a_log_that_was_cleaned_up(delta: DeltaBronze, tmp_path: Path):
    folder = tmp_path / "delta"
    for n in range(2 * delta_log.CHECKPOINT_INTERVAL):
        delta.append([transaction(200 + n)])
    before = delta.state()
    checkpoints = sorted(folder.glob("_delta_log/*.checkpoint.parquet"))
    assert len(checkpoints) == 2
    DeltaTable(str(folder)).create_checkpoint()
    for entry in folder.glob("_delta_log/*.json"):
        entry.unlink()
    assert DeltaBronze(folder).state() == before


def make_table(place: Place, properties: dict[str, str]) -> None:
    schema = pa.schema([("a", pa.int64())])
    if place.format == "delta":
        delta_log.create_table(place.folder, schema, properties, durable=False)
    else:
        IcebergLog(open_catalog(place.address()), ("bronze", "shop")).create(schema, properties)


def test_a_foreign_table_is_refused(place: Place):
    make_table(place, {})
    with pytest.raises(BronzeUnknown):
        place.writer().state()


def test_a_newer_contract_is_refused(place: Place):
    make_table(place, {"cdc_lake.contract": str(contract.CONTRACT_VERSION + 1)})
    with pytest.raises(BronzeUnknown, match="contract 2"):
        place.writer().state()


def test_a_transaction_larger_than_a_file_is_several_files_in_one_commit(
    bronze: TableBronze, place: Place, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("cdc_lake.bronze.writer.FILE_BYTES", 20_000)
    landed = bronze.append([transaction(200, rows=500)])
    assert landed.version == 2
    assert len(place.data_files()) > 1
    assert verify(place.reader()).holds


WRITE_UNTIL_KILLED = """
from tests.bronze_formats import Place
from cdc_lake.model.change import Insert
from cdc_lake.model.change import Transaction
from cdc_lake_testing.messages import boundaries, raw_transaction, table

orders = table("public.orders", id="int8", note="text")
writer = Place(*given).writer(durable=True)
state = writer.state() or writer.begin_stream("s1", 100)
position = max(state.upto - 20, 100)  # as a server does: some of it again
with open(acks, "a", buffering=1) as told:
    while True:
        batch = []
        for _ in range(3):
            position += 10
            changes = tuple(Insert(orders, (str(position + n), "note")) for n in range(4))
            batch.append(raw_transaction(Transaction(boundaries(position), changes)))
        print(writer.append(batch).upto, file=told)
"""


def acknowledged(acks: Path) -> list[int]:
    lines = acks.read_text().splitlines(keepends=True) if acks.exists() else []
    return [int(line) for line in lines if line.endswith("\n")]


def test_kill_9_at_any_moment_loses_and_doubles_nothing(place: Place, tmp_path: Path):
    acks = tmp_path / "acks"
    seed = one_seed()
    print("seed", seed)
    chance = random.Random(seed)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.bronze_formats", "cdc_lake_testing.messages"])
    for _ in range({"delta": 10, "iceberg": 4}[place.format]):
        before = len(acknowledged(acks))
        given = {"given": (place.format, place.folder), "acks": str(acks)}
        writer = processes.Process(target=exec, args=(WRITE_UNTIL_KILLED, given))
        writer.start()
        while len(acknowledged(acks)) < before + 2 and writer.is_alive():
            time.sleep(0.002)
        time.sleep(chance.random() * 0.04)
        assert writer.is_alive()
        writer.kill()
        writer.join()
        positions = [c.position for c in place.reader().commits(ALL)]
        assert positions[-1] >= acknowledged(acks)[-1]
        assert positions == list(range(110, positions[-1] + 1, 10))
    verdict = verify(place.reader())
    assert verdict.holds, verdict.reason
    assert verdict.changes == 4 * verdict.transactions
