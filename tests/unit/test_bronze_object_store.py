"""Bronze in an object store: the suites of a local one, two receivers at once, and what a commit asks of the store."""

from __future__ import annotations

import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyarrow.fs import FileSelector

from cdc_lake.bronze.compaction import compact, tidy
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.errors import AnotherReceiver, Retry, StoreRefused, StoreUnavailable, StoreUnfenced
from cdc_lake.model.position import Span
from cdc_lake.tables import iceberg_log
from cdc_lake.tables.object_store import ObjectStore
from cdc_lake.tables.orphan_files import OrphanFiles
from cdc_lake_testing.faulty_store import Fault, FaultyStore, Request
from cdc_lake_testing.object_store import LocalStore
from tests.bronze_object_stores import BUCKET, FORMATS, Stored, stored
from tests.unit.test_bronze_hash_chain import (
    landed,
    test_every_epoch_is_verified,
    test_what_was_landed_holds,
)
from tests.unit.test_bronze_reader import (
    reader,
    test_a_table_that_is_not_there_is_empty,
    test_changes_of_a_table_come_in_order,
    test_only_files_that_can_hold_the_span_are_chosen,
)
from tests.unit.test_bronze_writer import (
    bronze,
    test_a_commit_that_did_not_land_is_said_and_can_be_tried_again,
    test_a_commit_that_landed_before_its_call_failed_counts_as_landed,
    test_a_replayed_batch_changes_nothing,
    test_markers_advance_without_rows_and_never_go_back,
    test_of_an_overlapping_batch_only_the_new_lands,
    test_snapshot_chunks_land_once_and_leave_the_stream_alone,
    test_the_second_of_two_writers_is_refused_and_stays_refused,
    transaction,
)

# the suites of a local bronze, collected here too: their fixtures ask for `place`
__all__ = [
    "bronze",
    "landed",
    "reader",
    "test_a_commit_that_did_not_land_is_said_and_can_be_tried_again",
    "test_a_commit_that_landed_before_its_call_failed_counts_as_landed",
    "test_a_replayed_batch_changes_nothing",
    "test_a_table_that_is_not_there_is_empty",
    "test_changes_of_a_table_come_in_order",
    "test_every_epoch_is_verified",
    "test_markers_advance_without_rows_and_never_go_back",
    "test_of_an_overlapping_batch_only_the_new_lands",
    "test_only_files_that_can_hold_the_span_are_chosen",
    "test_snapshot_chunks_land_once_and_leave_the_stream_alone",
    "test_the_second_of_two_writers_is_refused_and_stays_refused",
    "test_what_was_landed_holds",
]


@pytest.fixture(params=FORMATS)
def place(request: pytest.FixtureRequest, store: LocalStore, tmp_path: Path) -> Stored:
    return stored(request.param, store, tmp_path, patience=900)


def test_of_two_receivers_at_the_same_moment_one_lands_and_one_is_fenced(place: Stored):
    place.writer().begin_stream("s1", 100)
    for at in range(101, 104):
        writers = [place.writer(), place.writer()]
        for writer in writers:
            writer.state()
        with ThreadPoolExecutor(2) as both:
            done = [both.submit(writer.append, [transaction(at)]) for writer in writers]
        outcomes = sorted(type(one.exception()).__name__ for one in done)
        assert outcomes == [AnotherReceiver.__name__, "NoneType"]
    verdict = verify(place.reader())
    assert verdict.holds, verdict.reason
    assert verdict.transactions == 3


@pytest.mark.parametrize("place", ["delta"], indirect=True)
def test_a_commit_lists_only_what_is_behind_the_last_checkpoint(place: Stored):
    with FaultyStore(place.store) as proxy:
        writer = place.writer(proxy.endpoint)
        writer.begin_stream("s1", 100)
        for at in range(101, 123):
            writer.append([transaction(at)])
        proxy.requests.clear()
        writer.append([transaction(123)])
    assert len(proxy.requests) <= 11
    assert all("start-after" in request.query for request in proxy.requests if request.lists)
    puts = [request for request in proxy.requests if request.method == "PUT"]
    assert [(put.key.endswith(".parquet"), put.conditional) for put in puts] == [(True, False), (False, True)]


def test_looking_again_where_nothing_is_new_costs_a_few_requests(place: Stored):
    writer = place.writer()
    writer.begin_stream("s1", 100)
    writer.append([transaction(101)])
    with FaultyStore(place.store) as proxy:
        reader = place.reader(proxy.endpoint)
        first = reader.state()
        proxy.requests.clear()
        assert reader.state() == first
        assert len(proxy.requests) <= 3
        writer.append([transaction(102)])
        state = reader.state()
    assert state is not None
    assert state.upto == 102


@pytest.mark.parametrize("place", ["delta"], indirect=True)
def test_what_a_listing_leaves_out_is_found_by_its_name(place: Stored):
    stale = [3]

    def choose(request: Request) -> Fault | None:
        if not request.lists or not stale[0]:
            return None
        stale[0] -= 1
        return Fault.STALE

    writer = place.writer()
    writer.begin_stream("s1", 100)
    for at in (101, 102, 103):
        writer.append([transaction(at)])
    with FaultyStore(place.store, choose) as proxy:
        behind = place.writer(proxy.endpoint)
        state = behind.state()
        assert state is not None
        assert state.upto == 103
        assert behind.append([transaction(104)]).upto == 104
    assert proxy.done[Fault.STALE] == 3


@pytest.mark.parametrize("place", ["delta"], indirect=True)
def test_a_commit_whose_reply_is_lost_each_time_lands_once(place: Stored):
    writer = place.writer()
    writer.begin_stream("s1", 100)
    with FaultyStore(place.store, lambda r: Fault.UNHEARD if r.conditional else None) as proxy:
        cut = place.writer(proxy.endpoint)
        assert cut.append([transaction(101)]).upto == 101
        assert cut.append([transaction(101), transaction(102)]).repeats == 1
    verdict = verify(place.reader())
    assert verdict.holds, verdict.reason
    assert verdict.transactions == 2


def test_a_store_that_is_down_is_said_without_a_secret(place: Stored):
    place.writer().begin_stream("s1", 100)
    with FaultyStore(place.store, lambda _: Fault.FAILED) as proxy, pytest.raises(StoreUnavailable) as down:
        place.reader(proxy.endpoint).state()
    assert "kit-secret" not in "".join(traceback.format_exception(down.value))
    assert down.value.retry is Retry.LATER


@pytest.mark.parametrize("place", ["delta"], indirect=True)
def test_a_bucket_that_is_not_there_is_said_at_once(place: Stored, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.bronze_object_stores.BUCKET", "another")
    with pytest.raises(StoreRefused):
        place.writer().state()


@pytest.mark.parametrize("place", ["delta"], indirect=True)
def test_a_store_that_ignores_conditions_is_refused_before_anything_is_in_it(place: Stored):
    with FaultyStore(place.store, lambda r: Fault.UNFENCED if r.conditional else None) as proxy:
        writer = place.writer(proxy.endpoint)
        with pytest.raises(StoreUnfenced):
            writer.begin_stream("s1", 100)
    assert place.writer().state() is None


@pytest.mark.parametrize("place", ["delta"], indirect=True)
def test_a_store_that_checks_a_condition_before_it_writes_is_refused(place: Stored):
    first_at: dict[str, float] = {}

    def check_and_write_in_two_steps(request: Request) -> Fault | None:
        if not request.conditional:
            return None
        first = first_at.setdefault(request.key, time.monotonic())
        return Fault.UNFENCED if 0 < time.monotonic() - first < 0.05 else None

    with FaultyStore(place.store, check_and_write_in_two_steps) as proxy, pytest.raises(StoreUnfenced):
        place.writer(proxy.endpoint).begin_stream("s1", 100)
    assert place.writer().state() is None
    folder = FileSelector(f"{BUCKET}/{place.key}/_cdc_lake_fence", allow_not_found=True)
    assert not ObjectStore(place.store.storage()).filesystem.get_file_info(folder)


def test_what_upkeep_replaced_goes_when_nobody_reads_it_any_more(place: Stored, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(iceberg_log, "KEEP", 2)
    writer = place.writer()
    writer.begin_stream("s1", 100)
    for at in range(101, 107):
        writer.append([transaction(at)])
    before, early = place.data_files(), time.time()
    assert compact(place.table(), 2, ignore_tiers=True)
    writer = place.writer()
    for at in (107, 108, 109):  # Iceberg's older versions leave
        writer.append([transaction(at)])
    live, table = set(place.reader().files().paths), place.table()
    assert table.refresh()
    assert tidy(table, 3600.0, early + 3000) == OrphanFiles((), (), 0)
    assert set(place.data_files()) == {*before, *live}
    found = tidy(table, 3600.0, early + 100_000)
    assert found is not None
    assert len(found.files) == len(before) + 1  # and the note
    assert len(found.entries) > 5 or place.format == "iceberg"
    assert set(place.data_files()) == live
    reader = place.reader()
    assert verify(reader).holds
    assert [commit.position for commit in reader.commits(Span(1, 0, 200))] == list(range(101, 110))
    assert place.writer().append([transaction(110)]).upto == 110


def test_a_file_that_was_just_replaced_stays_however_old_it_is(place: Stored):
    writer = place.writer()
    writer.begin_stream("s1", 100)
    for at in range(101, 105):
        writer.append([transaction(at)])
    old = place.data_files()
    time.sleep(2.2)  # the store's clock counts seconds
    replaced_at = time.time()
    assert compact(place.table(), 2, ignore_tiers=True)
    table = place.table()
    assert table.refresh()
    assert tidy(table, 3600.0, replaced_at + 3600 - 1.5) == OrphanFiles((), (), 0)
    assert set(old) <= set(place.data_files())
