"""How fast a server of the family decodes and we receive, measured and printed; nothing is asserted on time."""

from __future__ import annotations

import os
import time

import pytest

from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.decode.gaussdb.batches import RecordTransaction
from cdc_lake.decode.gaussdb.columnar import tabulate
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.model.position import OrderDomain
from cdc_lake.source.gaussdb.catalog import GaussDbCatalog
from tests.live.opengauss.receiving import FAST, KINDS, Kind, Place, once, streaming

pytestmark = pytest.mark.live

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
PER_TRANSACTION = 1000
COLUMNS = "id int PRIMARY KEY, a bigint, b text, c timestamptz, d numeric(12,2)"
VALUES = (
    "n, n::bigint * 1000003, md5(n::text), timestamptz '2026-01-01 00:00:00+00' + n * interval '1 second', n / 100.0"
)


def load(place: Place, rows: int) -> None:
    """So many rows in transactions of a thousand, then a marker."""
    with place.site.sql() as session:
        for first in range(0, rows, PER_TRANSACTION):
            numbers = f"generate_series({first}, {first + PER_TRANSACTION - 1}) AS n"
            session.query(f"INSERT INTO {place.table('many')} SELECT {VALUES} FROM {numbers}")
        session.query(f"INSERT INTO {place.table('many')} (id, b) VALUES (-1, 'the marker')")


def make(place: Place) -> int:
    """The table; how many rows it is to have."""
    with place.site.sql() as session:
        session.query(f"CREATE SCHEMA {place.name}")
        session.query(f"CREATE TABLE {place.table('many')} ({COLUMNS})")
    return (100_000 if place.site.real else 5_000) * BUDGET


def read(place: Place, kind: Kind) -> tuple[list[RecordTransaction], int]:
    """Everything up to the marker, and its bytes."""
    assembler = GaussDbAssembler(kind.style, batch=kind.batch, domain=OrderDomain.CSN)
    done: list[RecordTransaction] = []
    size, found = 0, False
    with streaming(place, kind) as stream:
        while not found:
            for number, payload in stream.poll(10):
                size += len(payload)
                found = found or b"the marker" in payload
                done.extend(assembler.feed(payload, number))
    return done, size


@pytest.mark.timeout(900)
def test_rates_of_every_way_to_read(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    rows = make(place)
    place.slot()
    load(place, rows)
    with place.site.sql() as session:
        layouts = RelationResolver(GaussDbCatalog(session))
        for kind in KINDS:
            start = time.perf_counter()
            raws, size = read(place, kind)
            received = time.perf_counter() - start
            start = time.perf_counter()
            changes = tabulate(raws, layouts=layouts)
            decoded = time.perf_counter() - start
            assert sum(raw.count for raw in raws) == rows + 1
            del changes
            with capsys.disabled():
                print(
                    f"\n{kind!s:9} {size / 1e6:6.1f} MB, received at {size / received / 1e6:6.1f} MB/s = "
                    f"{rows / received:9,.0f} changes/s, decoded at {size / decoded / 1e6:6.1f} MB/s",
                    end="",
                )
            time.sleep(1.5)  # until the server lets the slot go


@pytest.mark.timeout(900)
def test_rate_of_the_whole_receive_loop(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    rows = make(place)
    project = place.project(FAST, bronze={"batch": {"max_transactions": 100_000, "max_delay": "1 s"}})
    once(project)
    load(place, rows)
    start = time.perf_counter()
    summary = once(project)
    took = time.perf_counter() - start
    assert summary.transactions >= rows // PER_TRANSACTION
    state = BronzeReader(project.bronze).state()
    assert state is not None
    with capsys.disabled():
        print(f"\n{FAST!s:9} from the slot into committed bronze: {rows / took:9,.0f} changes/s, {took:.1f} s")
