"""Large transactions of the GaussDB family and of test_decoding: in parts they land as they would from memory."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cdc_lake.bronze.contract import BronzeCommit, Tabulate, TransactionBatch
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.row_builder import BatchRows
from cdc_lake.bronze.writer import TableBronze
from cdc_lake.config.model import Batch
from cdc_lake.connectors.gaussdb.csn_order import keep_late
from cdc_lake.connectors.open_stream import CommitLsnOrdering
from cdc_lake.connectors.spool import Spool
from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb import columnar, framing
from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler, Whole
from cdc_lake.decode.gaussdb.batches import RecordTransaction, SpooledRecords, TableFilter
from cdc_lake.decode.gaussdb.columnar import tabulate
from cdc_lake.decode.gaussdb.records import Begin, Commit, Field, Operation, Record, Row, Style, Truncated
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.decode.gaussdb.undecodable import GaussDbFormat
from cdc_lake.decode.test_decoding import LineAssembler
from cdc_lake.decode.transaction import FrameStoreFactory
from cdc_lake.decode.undecodable import StoreUndecodable
from cdc_lake.errors import LakeError
from cdc_lake.model.change import UNCHANGED
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import TableName
from cdc_lake.runtime.receive.commit_pipeline import BronzeCommitPipeline
from cdc_lake.runtime.receive.loop import OpenBatch
from cdc_lake.tables.control_files import LocalControlFiles
from cdc_lake_testing.gaussdb.encode import Ending, Framing, Print, encode_payload
from tests.property.test_gaussdb_binary_agreement import CATALOG, NAMES, random_row
from tests.seeds import seeds
from tests.unit.test_receive_large_transactions import bronze, rows

ROUNDS = 2 * int(os.environ.get("CDC_LAKE_BUDGET", "1"))
LEFT_OUT = TableName("public", "wide")
WRONG = Row(
    Operation.INSERT,
    TableName("public", "a"),
    (Field("id", "1", "text", 25), Field("note", "not text", "text", 25)),
    lsn=8,
)


@dataclass(frozen=True)
class Way:
    """A plugin and how it writes."""

    how: Print
    batch: bool = False
    postgres: bool = False


WAYS = {
    "binary": Way(Print(Style.BINARY), batch=True),
    "text": Way(Print(Style.TEXT), batch=True),
    "json": Way(Print(Style.JSON)),
    "serial": Way(Print(Style.SERIAL)),
    "test_decoding": Way(Print(Style.SERIAL, plugin="test_decoding"), postgres=True),
}


def a_change(dice: random.Random, way: Way) -> list[Record]:
    """A row (a DELETE may name none), an INSERT that is taken back at once, or a TRUNCATE where the style prints them."""
    if way.how.style is Style.SERIAL and dice.random() < 0.03:
        return [Truncated(tuple(dice.sample(list(NAMES), dice.randint(1, 2))), lsn=5)]
    row = random_row(dice, altered=True)
    new, old = ([replace(f, type_name="text") for f in some] if some else None for some in (row.new, row.old))
    if new and way.postgres and dice.random() < 0.1:
        new[-1] = replace(new[-1], value=UNCHANGED)
    lsn = dice.randrange(1, 1000)
    row = Row(row.operation, row.table, None if new is None else (*new,), None if old is None else (*old,), lsn)
    if row.operation is Operation.INSERT and row.table.name == "a" and not way.postgres and dice.random() < 0.5:
        return [row, Row(Operation.DELETE, row.table, lsn=lsn)]
    return [row]


def sent(dice: random.Random, way: Way, *, wrong: bool) -> list[tuple[int, bytes]]:
    """The frames of some transactions, small ones and large ones; with `wrong` some cannot be decoded."""
    frames = []
    sizes = [1, 3, 120, 120, *dice.choices([1, 3, 120], k=2)]
    for nth, size in enumerate(dice.sample(sizes, len(sizes)), 1):
        records: list[Record] = [Begin(lsn=nth, csn=50 + nth, first_lsn=100 * nth, xid=nth)]
        for _ in range(size):
            records += a_change(dice, way)
        if wrong and dice.random() < 0.4:
            records.insert(dice.randrange(1, len(records) + 1), WRONG)
        records.append(Commit(lsn=60 + nth, xid=nth, csn=None if way.postgres else 50 + nth))
        step = dice.choice([1, 7, 50]) if way.batch else 1
        for first in range(0, len(records), step):
            some = records[first : first + step]
            payload = encode_payload(some, way.how, Framing(batch=way.batch, ending=Ending.SIZE))
            frames.append((some[-1].lsn or 0, payload.replace(b"not text", b"\xffot text")))
    return frames


def assembled(
    way: Way,
    frames: Sequence[tuple[int, bytes]],
    layouts: RelationResolver,
    store: FrameStoreFactory | None,
    *,
    captured: bool,
) -> Iterator[Whole]:
    one: Any
    if way.postgres:
        one = LineAssembler(Codec(), lambda table: not captured or table != LEFT_OUT, keeps=True, frames=store)
    else:
        taken = TableFilter(layouts, lambda table: table != LEFT_OUT) if captured else None
        one = GaussDbAssembler(
            way.how.style, batch=way.batch, domain=OrderDomain.CSN, keeps=True, frames=store, captured=taken
        )
    for lsn, payload in frames:
        yield from one.feed(payload, lsn)
    assert (one.open_bytes, one.in_transaction) == (0, False)


class OftenAway(TableBronze):
    """Bronze whose lake is away in the middle of many commits; what is given then is given again."""

    def __init__(self, bronze: TableBronze, dice: random.Random) -> None:
        self._bronze = bronze
        self._dice = dice

    def append(self, batch: TransactionBatch | Sequence[Any], tabulate: Tabulate = tabulate) -> BronzeCommit:
        state = self._bronze.state()
        assert isinstance(batch, TransactionBatch)
        assert state is not None
        for _ in range(self._dice.randrange(3)):
            left = self._dice.randrange(1, 9)

            def write(_rows: Any) -> list[None]:
                nonlocal left
                left -= 1
                if not left:
                    raise LakeError("away")
                return []

            with contextlib.suppress(LakeError):
                BatchRows(batch.transactions, tabulate, state, 0).map_tables(write)
        return self._bronze.append(batch, tabulate)


def slowly(batch: Sequence[RecordTransaction], layouts: RelationResolver) -> ChangeColumns:
    if batch[0].part is not None:
        time.sleep(0.001)  # who does not wait for it is ahead of it
    return tabulate(batch, layouts)


def land(writer: TableBronze, transactions: Sequence[Whole], columns: Tabulate, cuts: random.Random) -> None:
    """As the receiver does it, in commits that are cut anywhere."""
    batch, order = OpenBatch(Batch(), lambda: 0.0, 50, 50), CommitLsnOrdering()
    with BronzeCommitPipeline(writer, columns) as landing:
        for one in transactions:
            for closed in order.add(one):
                batch.add(closed)
            if cuts.random() < 0.5:
                landing.decode(batch.hand_over())
            if len(batch) and cuts.random() < 0.3 and (not landing.in_flight or landing.drain()):
                landing.decode(batch.hand_over())
                landing.append(batch.take())
        landing.drain()
        if len(batch):
            landing.decode(batch.hand_over())
            landing.append(batch.take())
            landing.drain()


def told(folder: Path) -> list[dict[str, Any]]:
    """The rows; what is kept with bytes says each time what the catalog said of the tables in its part."""
    return [row | {"info": None} if row["op"] == "X" else row for row in rows(folder)]


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("seed", seeds(1))
def test_in_parts_they_land_as_they_would_from_memory(
    seed: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, way, large = random.Random(seed), WAYS[name], 0
    for nth in range(ROUNDS):
        monkeypatch.setattr(columnar, "SMALL", dice.choice([1, 32]))
        monkeypatch.setattr(framing, "SMALL", dice.choice([0, 1 << 60]))
        monkeypatch.setattr(framing, "LONG", 2)
        frames, captured, cut = sent(dice, way, wrong=nth % 2 == 1), dice.random() < 0.5, dice.getrandbits(32)
        writers = [bronze(tmp_path, f"{name} {nth}"), bronze(tmp_path, f"{name} {nth} in parts")]
        with Spool(tmp_path / "spool", 1 << 30, dice.choice([500, 2000])) as spool:
            for writer, store in zip(writers, (None, spool), strict=True):
                layouts = RelationResolver(CATALOG.get, tables=frozenset(NAMES), takes_back=not way.postgres)
                given = list(assembled(way, frames, layouts, store, captured=captured))
                large += sum(isinstance(one, SpooledRecords) for one in given)
                columns = StoreUndecodable(GaussDbFormat(layouts, "plugin", tabulate if store is None else slowly))
                land(writer if store is None else OftenAway(writer, dice), given, columns, random.Random(cut))
            assert spool.used == 0
        memory, parts = tmp_path / f"{name} {nth}", tmp_path / f"{name} {nth} in parts"
        assert told(parts) == told(memory)
        assert writers[0].state() == writers[1].state()
        assert verify(BronzeReader(parts)).holds
    assert large > ROUNDS


def test_one_that_comes_too_late_is_kept_as_from_memory(tmp_path: Path) -> None:
    dice, way = random.Random(5), WAYS["binary"]
    frames = sent(dice, way, wrong=False)
    state = bronze(tmp_path, "state").state()
    assert state is not None
    found = []
    with Spool(tmp_path / "spool", 1 << 30, 500) as spool:
        for store in (None, spool):
            layouts = RelationResolver(CATALOG.get)
            given = list(assembled(way, frames, layouts, store, captured=False))
            largest = max(given, key=lambda one: one.count)
            assert isinstance(largest, SpooledRecords) is (store is not None)
            folder = tmp_path / ("memory" if store is None else "parts")
            path = keep_late(LocalControlFiles(folder), state, largest, GaussDbFormat(layouts, "plugin").tabulate)
            rows = pq.read_table(path).drop_columns(["ingest_ts"]).to_pylist()
            found.append(sorted(rows, key=lambda row: (row["op"] != "R", row["ordinal"], row["layout"])))
    assert found[0] == found[1]
