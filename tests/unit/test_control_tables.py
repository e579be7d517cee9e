"""Control tables: what goes in comes out, once where it says so, from several processes; the lease on silver."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from cdc_lake.errors import BronzeNotWritten, LakeError, Retry
from cdc_lake.tables import delta_log
from cdc_lake.tables.control_schema import TABLES, CutRow, RunRow, SnapshotRow, StreamRow, schema_of, utc_now
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.delta_storage import LocalDeltaStorage, ObjectStoreDeltaStorage
from cdc_lake.tables.object_store import ObjectStore
from cdc_lake_testing.azurite import Azurite
from cdc_lake_testing.faulty_store import Chance, FaultyStore
from cdc_lake_testing.object_store import LocalStore
from tests.seeds import seeds

T0 = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def control(tmp_path: Path) -> ControlTables:
    return ControlTables(tmp_path / "control", durability="os")


@pytest.fixture(params=["folder", "store"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, store: LocalStore) -> Callable[[], ControlTables]:
    """The same tables again and again, as another process would open them."""
    if request.param == "folder":
        return lambda: ControlTables(tmp_path / "control", durability="os")
    return partial(stored, store, uuid4().hex)


def stored(store: LocalStore | Azurite, key: str, endpoint: str | None = None, patience: int = 2_000) -> ControlTables:
    client = ObjectStore(store.storage(endpoint, patience=patience))
    return ControlTables(lambda name: ObjectStoreDeltaStorage(client, store.address("lake", f"{key}/{name}")))


def cut(position: int, epoch: int = 1, stream: str = "s") -> CutRow:
    return CutRow(epoch, stream, position, None, "{}", T0)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_is_not_there_reads_as_empty_with_its_schema(control: ControlTables, name: str):
    assert control.read(name).schema == schema_of(name)
    assert control.read(name).num_rows == 0
    assert control.delete(name, pc.scalar(True)) == 0


def test_rows_come_back_as_they_went_in(opened: Callable[[], ControlTables]):
    control = opened()
    stream = StreamRow(1, "s", 100, "slot", "7", "db", "lsn", utc_now())
    snapshot = SnapshotRow("i", "s", 1, 100, '{"public.a": 3}', "complete", T0)
    for row in (stream, snapshot, cut(200), RunRow("r", "run", T0, None, "running", "{}")):
        control.record(row)
    assert control.streams() == [stream]
    assert control.snapshots() == [snapshot]
    assert control.last_cut() == cut(200)
    assert control.read("runs")["ended_at"].null_count == 1


def test_the_newest_row_of_a_snapshot_counts(control: ControlTables):
    for minute, state in enumerate(("started", "complete")):
        control.record(SnapshotRow("i", "s", 1, 100, "{}", state, T0.replace(minute=minute)))
    assert [row.state for row in control.snapshots()] == ["complete"]


def test_the_last_cut_is_the_highest_position_of_the_highest_epoch(control: ControlTables):
    for row in (cut(900), cut(100, 2, "s2"), cut(50, 2, "s2")):
        control.record(row)
    assert control.last_cut() == cut(100, 2, "s2")
    assert control.last_cut("s") == cut(900)
    assert control.last_cut("none") is None


def quarantined(position: int, reason: str = "failed") -> dict[str, object]:
    row: dict[str, object] = dict.fromkeys(schema_of("quarantine").names)
    return row | {
        "stream": "s",
        "epoch": 1,
        "position": position,
        "relation": "public.a",
        "reason": reason,
        "rules": ["positive"],
        "new": ["1", None],
        "unchanged": [1],
        "recorded_at": T0,
    }


def test_held_rows_keep_their_arrays_and_are_found_by_any_column(opened: Callable[[], ControlTables]):
    control = opened()
    control.append("quarantine", [quarantined(1), quarantined(2, "waiting")])
    control.append("quarantine", [quarantined(3)])
    rows = control.read("quarantine", pc.field("reason") == "failed").sort_by("position").to_pylist()
    assert [row["position"] for row in rows] == [1, 3]
    assert (rows[0]["new"], rows[0]["unchanged"], rows[0]["rules"]) == (["1", None], [1], ["positive"])


def test_an_arrow_table_is_taken_as_it_is(control: ControlTables):
    rows = pa.Table.from_pylist([quarantined(1)], schema=schema_of("quarantine"))
    assert control.append("quarantine", rows)
    assert control.read("quarantine").equals(rows)


def test_a_step_repeated_under_its_application_id_leaves_its_rows_once(opened: Callable[[], ControlTables]):
    control = opened()
    row = [quarantined(1)]
    assert control.append("quarantine", row, app=("apply:public.a", 10))
    assert not control.append("quarantine", row, app=("apply:public.a", 10))
    assert not opened().append("quarantine", row, app=("apply:public.a", 9))
    assert control.append("quarantine", row, app=("apply:public.b", 10))
    assert control.read("quarantine").num_rows == 2


def test_deleting_takes_what_the_predicate_says_and_stays_deleted(opened: Callable[[], ControlTables]):
    control = opened()
    control.append("quarantine", [quarantined(1), quarantined(2), quarantined(3)])
    assert control.delete("quarantine", (pc.field("position") >= 2) & (pc.field("stream") == "s")) == 2
    assert control.delete("quarantine", pc.field("position") >= 2) == 0
    control.append("quarantine", [quarantined(4)])
    again = opened()
    assert sorted(again.read("quarantine")["position"].to_pylist()) == [1, 4]


def test_two_instances_append_in_turn(opened: Callable[[], ControlTables]):
    control = opened()
    other = opened()
    for position in range(10):
        (control if position % 2 else other).record(cut(position))
    assert control.read("cuts").num_rows == other.read("cuts").num_rows == 10


APPEND = """
from pathlib import Path
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.control_schema import RunRow, utc_now

control = ControlTables(Path(folder))
for n in range(8):
    control.record(RunRow(f"{name}{n}", "run", utc_now(), None, "running", "{}"))
"""


def test_one_of_several_that_create_a_table_at_once_creates_it(tmp_path: Path):
    def create(folder: Path) -> bool:
        together.wait()
        try:
            LocalDeltaStorage(folder, durable=False).create(schema_of("runs"), {})
        except BronzeNotWritten:
            return False
        return True

    together = threading.Barrier(4)
    with ThreadPoolExecutor(4) as threads:
        for number in range(10):
            folder = tmp_path / str(number)
            assert sum(threads.map(create, [folder] * 4)) == 1
            assert DeltaTable(folder).version() == 0


def test_an_append_is_repeated_if_the_properties_of_its_table_changed_meanwhile(
    control: ControlTables, monkeypatch: pytest.MonkeyPatch
):
    control.record(cut(0))
    write, place = control._write, control.place("cuts")

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.undo()
        place.set_properties(place.open(), {"other": "1"}, {})
        return write(*arguments)

    monkeypatch.setattr(control, "_write", overtaken)
    control.record(cut(1))
    assert control.read("cuts").num_rows == 2


def test_a_step_that_another_process_records_meanwhile_adds_its_rows_once(
    control: ControlTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    control.record(cut(0))
    write, step = control._write, ("step", 1)

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.undo()
        assert ControlTables(tmp_path / "control", durability="os").append("cuts", [asdict(cut(1))], step)
        return write(*arguments)

    monkeypatch.setattr(control, "_write", overtaken)
    assert not control.append("cuts", [asdict(cut(1))], step)
    assert control.read("cuts").num_rows == 2


def test_processes_that_append_at_the_same_time_lose_nothing(control: ControlTables, tmp_path: Path):
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["cdc_lake.tables.control_tables"])
    writers = [
        processes.Process(target=exec, args=(APPEND, {"folder": str(tmp_path / "control"), "name": name}))
        for name in "ab"
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert sorted(control.read("runs")["run"].to_pylist()) == [f"{name}{n}" for name in "ab" for n in range(8)]


def test_writers_that_append_to_a_store_at_the_same_time_lose_nothing(store: LocalStore):
    key = uuid4().hex

    def write(name: str) -> None:
        tables = stored(store, key)
        for n in range(8):
            tables.record(run(f"{name}{n}"))

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(write, "abc"))
    found = stored(store, key).read("runs")["run"].to_pylist()
    assert sorted(found) == [f"{name}{n}" for name in "abc" for n in range(8)]


@pytest.mark.parametrize("seed", seeds(1))
def test_what_a_store_that_fails_took_is_there_once(store: LocalStore, seed: int):
    """A failure that was told may have landed, so the step is repeated under its application id; none lands twice."""
    key = uuid4().hex
    with FaultyStore(store) as proxy:
        proxy.choose = Chance(seed, every=12)
        for n in range(8):
            while True:
                tables = stored(store, key, proxy.endpoint, patience=500)
                try:
                    tables.append("runs", [asdict(run(str(n)))], app=("test", n))
                    if n % 4 == 3:
                        tables.compact("runs", 2)
                        tables.delete("runs", pc.field("run") == str(n - 1))
                    break
                except LakeError as failure:
                    if failure.retry is not Retry.LATER:
                        raise
    found = stored(store, key).read("runs")["run"].to_pylist()
    assert Counter(found) == Counter(str(n) for n in range(8) if n % 4 != 2)


def run(name: str) -> RunRow:
    return RunRow(name, "run", T0, None, "done", "{}")


def test_a_deletion_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    control = ControlTables(tmp_path / "control")
    control.append("quarantine", [quarantined(1), quarantined(2)])
    synced: set[str] = set()
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.add(Path(f"/proc/self/fd/{handle}").resolve().name)
        real(handle)

    monkeypatch.setattr(delta_log.os, "fsync", fsync)
    assert control.delete("quarantine", pc.field("position") == 2) == 1
    assert f"{2:020d}.json" in synced
    assert any(name.endswith(".parquet") for name in synced)


def test_a_row_with_other_columns_is_refused(control: ControlTables):
    with pytest.raises(LakeError, match="colour"):
        control.append("cuts", [{"colour": 1}])


def test_nothing_appended_makes_no_table(control: ControlTables, tmp_path: Path):
    assert not control.append("cuts", [])
    assert not (tmp_path / "control" / "cuts").exists()


def test_the_places_of_cuts_are_those_of_their_rows_whoever_wrote_the_file(control: ControlTables, tmp_path: Path):
    rows = [cut(position, epoch) for epoch, position in ((2, 5), (1, 300), (1, 100), (2, 70))]
    rows[1] = replace(rows[1], commit_ts=T0.replace(microsecond=123_457), recorded_at=T0.replace(microsecond=1))
    rows[2:] = [replace(row, recorded_at=T0.replace(microsecond=2)) for row in rows[2:]]
    for row in rows[:2]:
        control.record(row)
    control.append("cuts", [asdict(row) for row in rows[2:]])  # a file of several rows
    ordered = sorted(rows, key=lambda row: (row.epoch, row.position))
    assert control.cuts(control.cut_places()) == ordered
    DeltaTable(str(tmp_path / "control" / "cuts")).optimize.compact()
    other = ControlTables(tmp_path / "control", durability="os")
    assert other.cuts(other.cut_places()) == ordered
    assert other.cuts(other.cut_places().slice(1, 2)) == ordered[1:3]


def test_the_last_of_many_cuts_is_found_without_opening_the_others(control: ControlTables, tmp_path: Path):
    for position in range(30):
        control.record(cut(position))
    for path in control.cut_places()["path"].to_pylist()[:-1]:
        (tmp_path / "control" / "cuts" / path).unlink()
    assert control.last_cut() == cut(29)


def test_files_are_put_together_and_rows_stay_and_new_cuts_are_found_beside_them(opened: Callable[[], ControlTables]):
    control = opened()
    rows = [cut(position, epoch) for epoch, position in ((1, 9), (1, 3), (2, 1), (2, 2))]
    for row in rows:
        control.record(row)
    assert not control.compact("cuts", 4)
    assert control.compact("cuts", 3)
    assert control.files("cuts").num_rows == 1
    assert control.last_cut() == rows[3]
    ordered = sorted(rows, key=lambda row: (row.epoch, row.position))
    assert control.cuts(control.cut_places()) == ordered
    for row in (cut(3, 2), cut(5, 1)):
        control.record(row)
    assert control.last_cut() == cut(3, 2)
    assert control.last_cut("s") == cut(3, 2)
    assert [row.position for row in control.cuts(control.cut_places())] == [3, 5, 9, 1, 2, 3]
    control.record(cut(1, 2, "other"))
    assert control.last_cut("other") == cut(1, 2, "other")
    assert not control.compact("pins", 0)


def test_files_that_are_full_are_not_written_again(
    opened: Callable[[], ControlTables], monkeypatch: pytest.MonkeyPatch
):
    control = opened()
    for position in range(4):
        control.record(cut(position))
    monkeypatch.setattr("cdc_lake.tables.control_tables._COMPACTED", 1)
    assert not control.compact("cuts", 3)


def test_a_cut_in_a_compacted_file_is_still_the_last_of_its_stream(opened: Callable[[], ControlTables]):
    control = opened()
    for row in (cut(70, 1, "a"), cut(80, 1, "a")):
        control.record(row)
    control.compact("cuts", 1)
    control.record(cut(75, 1, "b"))
    assert control.last_cut("a") == cut(80, 1, "a")
    assert control.last_cut("b") == cut(75, 1, "b")
    assert control.last_cut() == cut(80, 1, "a")
