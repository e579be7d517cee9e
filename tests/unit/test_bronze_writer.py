"""The Delta bronze writer: one commit a batch, once, by one writer, whatever the call said."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from cdc_lake.bronze import contract
from cdc_lake.bronze.chain import verify
from cdc_lake.bronze.port import BronzeState, BronzeWriter
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.decode.digest import GENESIS
from cdc_lake.decode.raw import RawTransaction
from cdc_lake.errors import AnotherReceiver, BronzeNotWritten, BronzeUnknown, NoStream, NotInOrder
from cdc_lake.lake import delta_log
from cdc_lake.model.change import Insert
from cdc_lake.model.span import Span
from cdc_lake.model.transaction import Transaction
from cdc_lake.testing.messages import boundaries, raw_transaction, table

ORDERS = table("public.orders", id="int8", note="text")
ALL = Span(1, 0, 1 << 62)


def transaction(position: int, rows: int = 1) -> RawTransaction:
    return raw_transaction(
        Transaction(boundaries(position), tuple(Insert(ORDERS, (f"{position}{n}", "note")) for n in range(rows)))
    )


@pytest.fixture
def bronze(tmp_path: Path) -> DeltaBronze:
    writer = DeltaBronze(tmp_path / "lake" / "bronze")
    writer.begin_stream("s1", 100)
    return writer


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.parquet"))


def test_the_writer_is_a_bronze_writer(tmp_path: Path):
    port: BronzeWriter = DeltaBronze(tmp_path)
    assert port.state() is None


def test_a_stream_starts_with_both_markers_and_no_rows(bronze: DeltaBronze, tmp_path: Path):
    state = BronzeState("s1", 1, 100, 100, GENESIS)
    assert bronze.state() == state
    assert DeltaBronze(tmp_path / "lake" / "bronze").state() == state
    assert files(tmp_path / "lake" / "bronze") == []


def test_the_next_stream_has_the_next_epoch_and_a_chain_of_its_own(bronze: DeltaBronze):
    bronze.append([transaction(200)])
    assert bronze.begin_stream("s2", 50) == BronzeState("s2", 2, 50, 50, GENESIS)
    assert bronze.append([transaction(60)]).upto == 60


def test_a_stream_is_not_started_twice(bronze: DeltaBronze):
    with pytest.raises(NoStream):
        bronze.begin_stream("s1", 100)


def test_nothing_lands_without_a_stream(tmp_path: Path):
    with pytest.raises(NoStream):
        DeltaBronze(tmp_path / "b").append([transaction(200)])


def test_a_batch_is_one_file_and_one_commit_with_both_markers(bronze: DeltaBronze, tmp_path: Path):
    landed = bronze.append([transaction(200, rows=3), transaction(300)])
    assert (landed.upto, landed.confirm, landed.transactions, landed.changes, landed.repeats) == (300, 300, 2, 4, 0)
    assert landed.version == 2
    folder = tmp_path / "lake" / "bronze"
    (name,) = files(folder)
    assert landed.bytes_written == (folder / name).stat().st_size
    delta = DeltaTable(str(folder))
    assert delta.transaction_version(contract.order_app("s1")) == 300
    assert delta.transaction_version(contract.confirm_app("s1")) == 300
    assert delta.to_pyarrow_table().schema.names == contract.SCHEMA.names
    assert (delta.protocol().min_reader_version, delta.protocol().min_writer_version) == (1, 2)


def test_a_reopened_writer_says_the_same(bronze: DeltaBronze, tmp_path: Path):
    bronze.append([transaction(200)])
    bronze.advance(250, 250)
    assert DeltaBronze(tmp_path / "lake" / "bronze").state() == bronze.state()


def test_a_replayed_batch_changes_nothing(bronze: DeltaBronze, tmp_path: Path):
    first = bronze.append([transaction(200), transaction(300)])
    again = DeltaBronze(tmp_path / "lake" / "bronze").append([transaction(200), transaction(300)])
    assert (again.transactions, again.repeats, again.version, again.upto) == (0, 2, first.version, 300)


def test_of_an_overlapping_batch_only_the_new_lands(bronze: DeltaBronze, tmp_path: Path):
    bronze.append([transaction(200), transaction(300)])
    landed = bronze.append([transaction(300), transaction(400)])
    assert (landed.transactions, landed.repeats, landed.upto) == (1, 1, 400)
    commits = BronzeReader(tmp_path / "lake" / "bronze").commits(ALL)
    assert [c.position for c in commits] == [200, 300, 400]


def test_an_empty_batch_changes_nothing(bronze: DeltaBronze):
    assert bronze.append([]).version == 1


@pytest.mark.parametrize("positions", [(200, 200), (300, 200)])
def test_positions_that_do_not_ascend_are_refused(bronze: DeltaBronze, positions: tuple[int, int]):
    with pytest.raises(NotInOrder):
        bronze.append([transaction(p) for p in positions])
    state = bronze.state()
    assert state is not None
    assert state.upto == 100


def test_markers_advance_without_rows_and_never_go_back(bronze: DeltaBronze, tmp_path: Path):
    landed = bronze.advance(500, 500)
    assert (landed.upto, landed.confirm, landed.version, landed.bytes_written) == (500, 500, 2, 0)
    assert bronze.advance(400, 400).version == 2
    assert bronze.advance(500, 500).upto == 500
    assert files(tmp_path / "lake" / "bronze") == []
    assert bronze.append([transaction(450)]).repeats == 1


def test_an_advance_keeps_the_head_of_the_chain(bronze: DeltaBronze):
    bronze.append([transaction(200)])
    before = bronze.state()
    bronze.advance(500, 500)
    after = bronze.state()
    assert before is not None
    assert after is not None
    assert after.head == before.head


def test_snapshot_chunks_land_once_and_leave_the_stream_alone(bronze: DeltaBronze, tmp_path: Path):
    bronze.append([transaction(200)])
    before = bronze.state()
    rows = pa.array([["1", "a"], ["2", None]], pa.list_(pa.string()))
    first = bronze.append_snapshot("init", 1, ORDERS, rows, 1, 100)
    again = bronze.append_snapshot("init", 1, ORDERS, rows, 1, 100)
    second = bronze.append_snapshot("init", 2, ORDERS, rows, 3, 100)
    assert (first.version, again.version, second.version) == (3, 3, 4)
    assert (first.changes, again.changes) == (2, 0)
    assert bronze.state() == before
    assert DeltaBronze(tmp_path / "lake" / "bronze").state() == before
    rows_read = BronzeReader(tmp_path / "lake" / "bronze").rows(100)
    assert rows_read.filter(pa.compute.equal(rows_read["op"], "S"))["ordinal"].to_pylist() == [1, 2, 3, 4]


def test_the_second_of_two_writers_is_refused_and_stays_refused(bronze: DeltaBronze, tmp_path: Path):
    other = DeltaBronze(tmp_path / "lake" / "bronze")
    other.state()
    bronze.append([transaction(200)])
    for _ in range(2):
        with pytest.raises(AnotherReceiver):
            other.append([transaction(200), transaction(300)])
    with pytest.raises(AnotherReceiver):
        other.state()
    assert [c.position for c in BronzeReader(tmp_path / "lake" / "bronze").commits(ALL)] == [200]


def test_a_writer_overtaken_by_a_new_stream_is_refused(bronze: DeltaBronze, tmp_path: Path):
    other = DeltaBronze(tmp_path / "lake" / "bronze")
    other.begin_stream("s2", 10)
    with pytest.raises(AnotherReceiver):
        bronze.advance(900, 900)


def test_a_commit_that_landed_before_its_call_failed_counts_as_landed(
    bronze: DeltaBronze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    real = DeltaTable.create_write_transaction

    def breaks_after(self: DeltaTable, *args: object, **given: object) -> None:
        real(self, *args, **given)
        raise CommitFailedError("the answer was lost")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", breaks_after)
    assert bronze.append([transaction(200)]).upto == 200
    monkeypatch.undo()
    assert bronze.append([transaction(200), transaction(300)]).repeats == 1
    assert verify(BronzeReader(tmp_path / "lake" / "bronze")).holds


def test_a_commit_that_did_not_land_is_said_and_can_be_tried_again(
    bronze: DeltaBronze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def breaks_before(*_: object, **__: object) -> None:
        raise CommitFailedError("no space left")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", breaks_before)
    with pytest.raises(BronzeNotWritten):
        bronze.append([transaction(200)])
    monkeypatch.undo()
    assert bronze.append([transaction(200)]).transactions == 1
    assert len(files(tmp_path / "lake" / "bronze")) == 2  # the first one belongs to no commit: harmless
    assert DeltaTable(str(tmp_path / "lake" / "bronze")).to_pyarrow_table().num_rows == 4


def test_every_commit_is_synced_before_it_is_acknowledged(
    bronze: DeltaBronze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    synced: set[str] = set()
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.add(Path(f"/proc/self/fd/{handle}").resolve().name)
        real(handle)

    monkeypatch.setattr(delta_log.os, "fsync", fsync)
    bronze.append([transaction(200)])
    (data,) = files(tmp_path / "lake" / "bronze")
    assert synced >= {data, "bronze", "_delta_log", f"{2:020d}.json"}


def test_durability_os_syncs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(_: int) -> None:
        pytest.fail("fsync was called")

    monkeypatch.setattr(delta_log.os, "fsync", refused)
    writer = DeltaBronze(tmp_path / "b", durability="os")
    writer.begin_stream("s1", 100)
    assert writer.append([transaction(200)]).upto == 200


def test_state_survives_checkpoints_and_a_log_that_was_cleaned_up(bronze: DeltaBronze, tmp_path: Path):
    folder = tmp_path / "lake" / "bronze"
    for n in range(2 * delta_log.CHECKPOINT_INTERVAL):
        bronze.append([transaction(200 + n)])
    before = bronze.state()
    checkpoints = sorted(folder.glob("_delta_log/*.checkpoint.parquet"))
    assert len(checkpoints) == 2
    DeltaTable(str(folder)).create_checkpoint()
    for entry in folder.glob("_delta_log/*.json"):
        entry.unlink()
    assert DeltaBronze(folder).state() == before


def test_a_foreign_table_is_refused(tmp_path: Path):
    DeltaTable.create(str(tmp_path / "t"), schema=pa.schema([("a", pa.int64())]))
    with pytest.raises(BronzeUnknown):
        DeltaBronze(tmp_path / "t").state()


def test_a_newer_contract_is_refused(tmp_path: Path):
    newer = {"cdc_lake.contract": str(contract.CONTRACT_VERSION + 1)}
    delta_log.create_table(tmp_path / "t", contract.SCHEMA, newer, durable=False)
    with pytest.raises(BronzeUnknown, match="contract 2"):
        DeltaBronze(tmp_path / "t").state()


def test_a_transaction_larger_than_a_file_is_several_files_in_one_commit(
    bronze: DeltaBronze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("cdc_lake.bronze.writer.FILE_BYTES", 20_000)
    landed = bronze.append([transaction(200, rows=500)])
    assert landed.version == 2
    assert len(files(tmp_path / "lake" / "bronze")) > 1
    assert verify(BronzeReader(tmp_path / "lake" / "bronze")).holds


WRITE_UNTIL_KILLED = """
from pathlib import Path
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.model.change import Insert
from cdc_lake.model.transaction import Transaction
from cdc_lake.testing.messages import boundaries, raw_transaction, table

orders = table("public.orders", id="int8", note="text")
writer = DeltaBronze(Path(folder))
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


def test_kill_9_at_any_moment_loses_and_doubles_nothing(tmp_path: Path):
    folder, acks = tmp_path / "bronze", tmp_path / "acks"
    seed = int.from_bytes(os.urandom(4))
    print("seed", seed)
    chance = random.Random(seed)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["cdc_lake.bronze.writer", "cdc_lake.testing.messages"])
    for _ in range(10):
        before = len(acknowledged(acks))
        given = {"folder": str(folder), "acks": str(acks)}
        writer = processes.Process(target=exec, args=(WRITE_UNTIL_KILLED, given))
        writer.start()
        while len(acknowledged(acks)) < before + 2 and writer.is_alive():
            time.sleep(0.002)
        time.sleep(chance.random() * 0.04)
        assert writer.is_alive()
        writer.kill()
        writer.join()
        positions = [c.position for c in BronzeReader(folder).commits(ALL)]
        assert positions[-1] >= acknowledged(acks)[-1]
        assert positions == list(range(110, positions[-1] + 1, 10))
    verdict = verify(BronzeReader(folder))
    assert verdict.holds, verdict.reason
    assert verdict.changes == 4 * verdict.transactions
