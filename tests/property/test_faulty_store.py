"""Stores that fail and lie: whatever they do, bronze holds each transaction once and nothing wrong can be read."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, Self

import pytest

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.data_files import WrittenFile
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import TableBronze
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.errors import AnotherReceiver, CdcLakeError, CommitUncertain, Retry, StaleObjectListing
from cdc_lake.model.change import Insert, Transaction
from cdc_lake.model.position import Span
from cdc_lake.tables.delta_storage import ObjectStoreDeltaStorage
from cdc_lake_testing.doubted import Doubts, torn_metadata
from cdc_lake_testing.faulty_store import Chance, Fault, FaultyStore, Request, honest
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from cdc_lake_testing.object_store import LocalStore
from tests.bronze_object_stores import FORMATS, Stored, stored
from tests.seeds import one_seed
from tests.tally import tally

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
FAULTS, COMMITS = 20 * BUDGET, 10 * BUDGET
"""How many requests, and how many calls that make a commit, are hit at least."""
ORDERS = table("public.orders", id="int8", note="text")
END = 1 << 62


def transaction(position: int) -> BufferedTransaction:
    rows = tuple(Insert(ORDERS, (f"{position}{n}", "note")) for n in range(position % 4 + 1))
    return raw_transaction(Transaction(boundaries(position), rows))


class Polling:
    """A reader that looks all the while, through a store that fails it too."""

    def __init__(self, place: Stored, proxy: FaultyStore) -> None:
        self._reader = place.reader(proxy.endpoint)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.looks = self.failures = 0
        self.wrong: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.3):
            try:
                self.looks += is_a_whole_beginning(self._reader)
            except CdcLakeError as error:
                self.failures += 1
                if error.retry is not Retry.LATER:
                    self.wrong = error
                    return
            except Exception as wrong:  # noqa: BLE001 - the test raises it
                self.wrong = wrong
                return


def is_a_whole_beginning(reader: BronzeReader) -> bool:
    state = reader.state()
    if state is None or state.upto == 100:
        return False
    whole = list(range(101, state.upto + 1))
    assert [commit.position for commit in reader.commits(Span(1, 100, state.upto))] == whole
    rows = {at: len(rows) for at, rows in reader.transactions(Span(1, state.upto - 3, state.upto), ["position"])}
    assert rows == {at: at % 4 + 3 for at in whole[-3:]}
    return True


def assert_each_once(reader: BronzeReader, upto: int) -> None:
    """Every transaction up to the last one acknowledged, once and whole."""
    assert is_a_whole_beginning(reader)
    verdict = verify(reader)
    assert verdict.holds, verdict
    assert verdict.last is not None
    assert verdict.last[1] >= upto


@contextmanager
def commits_doubted(place: Stored, proxy: FaultyStore, doubts: Doubts) -> Iterator[None]:
    """The calls that make commits fail too. On Delta one is torn where the log's entry gets nowhere, and the data is there;
    on Iceberg where half of the metadata is there, and the catalog hears nothing.
    """

    @contextmanager
    def torn_entry() -> Iterator[None]:
        usual = proxy.choose
        proxy.choose = lambda request: Fault.FAILED if is_an_entry(request) else usual(request)
        try:
            yield
        finally:
            proxy.choose = usual

    owner, name = place.commit_call
    torn = torn_entry if place.format == "delta" else torn_metadata
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, doubts.failing(getattr(owner, name), torn))
        yield


def is_an_entry(request: Request) -> bool:
    return request.conditional and "_delta_log" in request.key


@pytest.mark.parametrize("kind", FORMATS)
def test_a_store_that_fails_and_lies_loses_and_doubles_nothing(kind: str, store: LocalStore, tmp_path: Path):
    seed = one_seed()
    print(f"CDC_LAKE_SEED={seed}")
    place = stored(kind, store, tmp_path, patience=900)
    writing, reading, doubts = Chance(seed, 15), Chance(seed + 1, 30), Doubts(seed + 2)
    with FaultyStore(store, writing) as proxy, FaultyStore(store, reading) as other, Polling(place, other) as polling:
        restarts, upto = 0, 100

        def goes_on() -> bool:  # by some seeds all faults come before anything can land
            return writing.faults < FAULTS or doubts.done.total() < COMMITS or upto == 100

        with commits_doubted(place, proxy, doubts):
            while goes_on():
                try:
                    writer = place.writer(proxy.endpoint)  # as a receiver that is started again would
                    state = writer.state() or writer.begin_stream("s1", 100)
                    assert state.upto >= upto, "what was acknowledged is not there"
                    upto = state.upto
                    while goes_on():
                        batch = [transaction(at) for at in range(upto + 1, upto + seed % 3 + 2)]
                        upto = writer.append(batch).upto
                except CdcLakeError as error:
                    if error.retry is not Retry.LATER:
                        raise  # a human is needed
                    restarts += 1
        proxy.choose = other.choose = honest
    assert polling.wrong is None, repr(polling.wrong)
    reader = place.reader()
    assert_each_once(reader, upto)
    gone = {request.key for request in proxy.requests if request.method == "DELETE"}
    assert not any("delete" in request.query for request in proxy.requests), "many were deleted at once"
    assert not gone & ({*reader.files().paths} | place.named())
    assert not any(key.endswith(".parquet") for key in gone), "a data file was deleted"
    counts = {"requests hit": sum(proxy.done.values()), "restarts": restarts, "looks of a reader": polling.looks}
    counts |= {"commits to bronze hit": doubts.done.total()}
    tally("R10", [*map(str, proxy.done), *(f"{one}, {kind}" for one in doubts.done)], **counts)


class Believing(TableBronze):
    """The planted bug: a commit that failed did not land, so what was known before is still so."""

    def _commit(self, state: StreamCheckpoint, files: Sequence[WrittenFile], chunks: dict[str, int]) -> int:
        known = self._cached_state
        try:
            return super()._commit(state, files, chunks)
        except CommitUncertain:
            self._cached_state = known
            raise


def silent(*_: object) -> NoReturn:
    raise ConnectionRefusedError


@contextmanager
def reply_lost(place: Stored, proxy: FaultyStore) -> Iterator[None]:
    """The next commit lands, its reply does not come, and neither does an answer to any question after it."""

    def unheard(request: Request) -> Fault | None:
        if proxy.done[Fault.DENIED]:
            return Fault.FAILED
        return Fault.DENIED if is_an_entry(request) else None

    with pytest.MonkeyPatch.context() as patched:
        if place.format == "delta":
            proxy.choose = unheard
        else:  # the catalog of these tests is a file: its answers are lost here
            owner, name = place.commit_call
            commit = getattr(owner, name)

            def done(*given: object) -> None:
                commit(*given)
                patched.setattr(owner, "load_table", silent)
                raise ConnectionResetError

            patched.setattr(owner, name, done)
        yield
    proxy.choose = honest


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("made", [TableBronze, Believing])
def test_a_writer_that_believes_a_failed_reply_is_found_out(
    kind: str, made: type[TableBronze], store: LocalStore, tmp_path: Path
):
    """The negative control; the same done by the writer that ships is in order."""
    place = stored(kind, store, tmp_path, patience=900)
    with FaultyStore(store) as proxy:
        bronze = place.table(proxy.endpoint)
        writer = made(bronze)
        writer.begin_stream("s1", 100)
        writer.append([transaction(101)])
        with reply_lost(place, proxy), pytest.raises(CommitUncertain):
            writer.append([transaction(102)])
        bronze.refresh()
        again = writer.append([transaction(102), transaction(103)])
    if made is TableBronze:
        assert again.repeats == 1
        assert_each_once(place.reader(), 103)
    else:
        with pytest.raises(AssertionError):
            assert_each_once(place.reader(), 103)


def test_a_writer_that_trusts_a_stale_listing_is_found_out(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The other one, of Delta alone: of Iceberg nothing is found by listing."""
    place = stored("delta", store, tmp_path, patience=900)
    with FaultyStore(store) as proxy:
        writer = place.writer(proxy.endpoint)
        writer.begin_stream("s1", 100)
        upto = [writer.append([transaction(at)]).upto for at in range(101, 105)][-1]
        proxy.choose = lambda request: Fault.STALE if request.lists else None
        with pytest.raises(StaleObjectListing):
            place.writer(proxy.endpoint).state()
        monkeypatch.setattr(ObjectStoreDeltaStorage, "_advance", lambda *_: None)
        trusting = place.writer(proxy.endpoint)
        state = trusting.state()
        assert state is not None
        assert state.upto < upto, "the harness sees that what was acknowledged is not there"
        proxy.choose = honest
        with pytest.raises(AnotherReceiver):  # and the fence holds all the same
            trusting.append([transaction(state.upto + 1)])
    assert_each_once(place.reader(), upto)
