"""Stores that fail and lie: whatever they do, bronze holds each transaction once and nothing wrong can be read."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import Self

import pytest

from cdc_lake.bronze.chain import verify
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.decode.raw import RawTransaction
from cdc_lake.errors import CdcLakeError, Retry
from cdc_lake.model.change import Insert
from cdc_lake.model.span import Span
from cdc_lake.model.transaction import Transaction
from cdc_lake.testing.faulty_store import Chance, FaultyStore, honest
from cdc_lake.testing.messages import boundaries, raw_transaction, table
from cdc_lake.testing.object_store import LocalStore
from tests.store_places import FORMATS, Stored, store, stored

__all__ = ["store"]

FAULTS = 20 * int(os.environ.get("CDC_LAKE_BUDGET", "1"))
ORDERS = table("public.orders", id="int8", note="text")
END = 1 << 62


def transaction(position: int) -> RawTransaction:
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


@pytest.mark.parametrize("kind", FORMATS)
def test_a_store_that_fails_and_lies_loses_and_doubles_nothing(kind: str, store: LocalStore, tmp_path: Path):
    seed = int(os.environ.get("CDC_LAKE_SEED") or random.getrandbits(32))
    print(f"CDC_LAKE_SEED={seed}")
    place = stored(kind, store, tmp_path, patience=900)
    writing, reading = Chance(seed, 15), Chance(seed + 1, 30)
    with FaultyStore(store, writing) as proxy, FaultyStore(store, reading) as other, Polling(place, other) as polling:
        restarts, upto = 0, 100
        while writing.faults < FAULTS:
            try:
                writer = place.writer(proxy.endpoint)  # as a receiver that is started again would
                state = writer.state() or writer.begin_stream("s1", 100)
                assert state.upto >= upto, "what was acknowledged is not there"
                upto = state.upto
                while writing.faults < FAULTS:
                    batch = [transaction(at) for at in range(upto + 1, upto + seed % 3 + 2)]
                    upto = writer.append(batch).upto
            except CdcLakeError as error:
                if error.retry is not Retry.LATER:
                    raise  # a human is needed
                restarts += 1
        proxy.choose = other.choose = honest
    assert polling.wrong is None, repr(polling.wrong)
    reader = place.reader()
    assert is_a_whole_beginning(reader)
    verdict = verify(reader)
    assert verdict.holds, verdict
    assert verdict.last is not None
    assert verdict.last[1] >= upto
    gone = {request.key for request in proxy.requests if request.method == "DELETE"}
    assert not gone & set(reader.files().paths)
    assert not any(key.endswith(".parquet") for key in gone), "a data file was deleted"
    print(f"{sum(proxy.done.values())} requests hit, {restarts} restarts, {polling.looks} looks, {proxy.done}")
