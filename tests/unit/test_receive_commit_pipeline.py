"""From the wire to bronze: how batches close, what is decoded in parts lands whole, and how many files an INSERT passes.

Measured as it runs, over a server in memory: the loop, the assembler, the decoder, the writer and Delta are the real
ones. What opens a stream, redaction, and the retries around a lake that is away are not on that way, nor is what
reports the commit. Of `apply` see tests/spark/test_apply_merge_plans.py.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import cdc_lake
from cdc_lake.bronze.contract import BronzeCommit, StreamCheckpoint, Tabulate, TransactionBatch
from cdc_lake.bronze.row_builder import build
from cdc_lake.config.model import Batch
from cdc_lake.connectors.open_stream import OrderedTransaction
from cdc_lake.decode.change_batch import ChangeColumns, concat_changes
from cdc_lake.decode.hashing import GENESIS
from cdc_lake.decode.pgoutput.columnar import columns_of
from cdc_lake.decode.transaction import BufferedTransaction, DecodedMarker, ReceivedTransaction
from cdc_lake.errors import MalformedMessage
from cdc_lake.model.change import Boundaries, Change, Delete, Insert, Message, OldKind, Update
from cdc_lake.model.relation import Column, Relation, ReplicaIdentity, TableName
from cdc_lake.runtime.receive.commit_pipeline import BronzeCommitPipeline
from cdc_lake.runtime.receive.loop import OpenBatch, ReceiveLoop
from cdc_lake_testing.memory_server import MemoryServer
from cdc_lake_testing.messages import table
from tests.pipeline_file import make_project

COLUMNS = (Column("id", "int4", 23, -1, True), Column("name", "text", 25, -1, False))
A, B = (Relation(TableName("public", name), COLUMNS, ReplicaIdentity.DEFAULT, ("id",)) for name in "ab")
CHANGES: tuple[list[Change], ...] = (
    [Insert(A, ("1", "é")), Update(A, ("1", None), ("1", None), OldKind.KEY)],
    [Delete(B, ("7", None), OldKind.KEY), Message("p", b"x")],
    [Insert(B, ("2", "b")), Insert(A, ("3", ""))],
    [Delete(A, ("1", None), OldKind.KEY)],
)
RAW = [DecodedMarker(Boundaries(nth + 1, nth + 1), 100, len(changes)) for nth, changes in enumerate(CHANGES)]


def tabulate(batch: Sequence[ReceivedTransaction]) -> ChangeColumns:
    numbers = [raw.bounds.position - 1 for raw in batch]
    return columns_of([(at, n, change) for at, n in enumerate(numbers) for change in CHANGES[n]])


def rows_of(batch: Sequence[ReceivedTransaction], columns: ChangeColumns) -> tuple[pa.Table, bytes]:
    return build(batch, columns, stream="s", epoch=1, previous=GENESIS, ingest_ts=0)


class Kept:
    """A bronze writer that keeps rows; `upto` was there before."""

    def __init__(self, upto: int = 0) -> None:
        self.upto = upto
        self.rows: list[tuple[pa.Table, bytes]] = []

    def append(self, batch: TransactionBatch, given: Tabulate) -> BronzeCommit:
        fresh = [raw for raw in batch.transactions if raw.bounds.position > self.upto]
        self.rows.append(rows_of(fresh, given(fresh)))
        return BronzeCommit(batch.upto, batch.confirm, len(fresh), 0, 0, 0, 1)

    def advance(self, position: int, confirm: int, empty: int) -> BronzeCommit:
        return BronzeCommit(position, confirm, 0, 0, 0, 0, 1)

    def state(self) -> StreamCheckpoint | None:
        raise AssertionError

    begin_stream = turn_back = append_snapshot = state


@pytest.mark.parametrize("cuts", [(4,), (1, 2, 4), (1, 2, 3, 4)])
@pytest.mark.parametrize("upto", [0, 1, 3])
def test_a_batch_decoded_in_parts_lands_as_if_it_was_decoded_at_once(cuts: tuple[int, ...], upto: int) -> None:
    bronze = Kept(upto)
    with BronzeCommitPipeline(bronze, tabulate) as landing:  # type: ignore[arg-type]
        for first, behind in zip((0, *cuts), cuts, strict=False):
            landing.decode(RAW[first:behind])
        landing.append(TransactionBatch(RAW, 4, 4))
        assert landing.drain() is not None
    (found, head), (expected, wanted) = bronze.rows[0], rows_of(RAW[upto:], tabulate(RAW[upto:]))
    assert head == wanted
    changes = found["op"].to_pylist().index("B")  # layouts of transactions that were there stay: harmless, and seldom
    assert found.slice(changes).to_pylist() == expected.slice(expected["op"].to_pylist().index("B")).to_pylist()
    assert upto or found.equals(expected)


def test_chunks_are_joined_without_being_copied() -> None:
    parts = [(tabulate([raw]), 1) for raw in RAW]
    whole = concat_changes(parts, pa.chunked_array)
    assert whole.new.num_chunks == len(RAW)
    rows, _ = rows_of(RAW, whole)
    values = {chunk.values.buffers()[2].address for chunk in rows["new"].chunks if len(chunk.values)}
    assert values <= {part.new.values.buffers()[2].address for part, _ in parts if len(part.new.values)}


def failing(at: int) -> Tabulate:
    """Cannot decode the transaction at a position; says how many are good before it."""

    def fails(batch: Sequence[ReceivedTransaction]) -> ChangeColumns:
        positions = [raw.bounds.position for raw in batch]
        if at in positions:
            error = MalformedMessage("bad")
            error.good = positions.index(at)
            raise error
        return tabulate(batch)

    return fails


STEPS = [(raw.bounds.position, raw.bounds.position - 1, 0) for raw in RAW]


@pytest.mark.parametrize("cuts", [(4,), (1, 2, 4), (1, 2, 3, 4)])
@pytest.mark.parametrize("bad", [2, 3, 4])
def test_what_stands_before_the_undecodable_lands_and_nothing_behind_it(cuts: tuple[int, ...], bad: int) -> None:
    bronze = Kept()
    with BronzeCommitPipeline(bronze, failing(bad)) as landing:  # type: ignore[arg-type]
        for first, behind in zip((0, *cuts), cuts, strict=False):
            landing.decode(RAW[first:behind])
        landing.append(TransactionBatch(RAW, 9, 9, steps=STEPS))
        landed = landing.drain()
        assert landed is not None
        assert (landed.upto, landed.confirm, landed.transactions) == (bad - 1, bad - 2, bad - 1)
        assert isinstance(landing.fault, MalformedMessage)
    (found,) = bronze.rows
    assert found[1] == rows_of(RAW[: bad - 1], tabulate(RAW[: bad - 1]))[1]


def test_an_undecodable_transaction_with_nothing_before_it_is_an_error_at_once() -> None:
    bronze = Kept()
    with BronzeCommitPipeline(bronze, failing(1)) as landing:  # type: ignore[arg-type]
        landing.decode(RAW)
        landing.append(TransactionBatch(RAW, 4, 4, steps=STEPS))
        with pytest.raises(MalformedMessage):
            landing.drain()
    assert not bronze.rows


def test_decoding_is_behind_until_its_bytes_are_columns() -> None:
    go = threading.Event()

    def waits(batch: Sequence[ReceivedTransaction]) -> ChangeColumns:
        go.wait(60)
        return tabulate(batch)

    large = [DecodedMarker(raw.bounds, 4 << 20, raw.count) for raw in RAW]
    with BronzeCommitPipeline(Kept(), waits) as landing:  # type: ignore[arg-type]
        landing.decode(large[:1])
        assert not landing.is_saturated
        landing.decode(large[1:2])
        assert [landing.is_saturated] == [True]
        go.set()
        landing.join_decoders()
        assert [landing.is_saturated] == [False]
        landing.append(TransactionBatch(large[:2], 2, 2))
        assert landing.drain() is not None


def raw(frames: int, size: int) -> BufferedTransaction:
    return BufferedTransaction(Boundaries(1, 1), [b""] * frames, [0] * frames, [None] * frames, {}, size)


def test_a_batch_closes_at_whichever_limit_comes_first() -> None:
    now = [0.0]
    for limits, more in (
        (Batch(max_bytes=10, max_rows=99, max_transactions=99), raw(1, 5)),
        (Batch(max_bytes=99, max_rows=10, max_transactions=99), raw(5, 1)),
        (Batch(max_bytes=99, max_rows=99, max_transactions=2), raw(1, 1)),
    ):
        batch = OpenBatch(limits, lambda: now[0], 0, 0)
        batch.add(OrderedTransaction(1, 1, more))
        assert not batch.is_full
        batch.add(OrderedTransaction(1, 1, more))
        assert batch.is_full
        assert batch.take() == TransactionBatch([more, more], 1, 1)
        assert not batch.is_full
        assert len(batch) == 0


def test_after_a_pause_a_transaction_is_due_at_once_and_then_one_batch_every_delay() -> None:
    now = [100.0]
    batch = OpenBatch(Batch(max_delay=200), lambda: now[0], 0, 0)
    batch.add(OrderedTransaction(1, 1, raw(1, 1)))
    assert batch.due_in <= 0
    batch.take()
    now[0] = 100.05
    batch.add(OrderedTransaction(2, 2, raw(1, 1)))
    now[0] = 100.15
    batch.add(OrderedTransaction(3, 3, raw(1, 1)))
    assert 0.049 < batch.due_in < 0.051
    now[0] = 100.2
    assert batch.due_in <= 0
    batch.take()
    now[0] = 101.0
    batch.add(OrderedTransaction(4, 4, raw(1, 1)))
    assert batch.due_in <= 0


def test_what_is_handed_over_for_decoding_is_held_without_its_bytes() -> None:
    batch = OpenBatch(Batch(), lambda: 0.0, 0, 0)
    first, second = raw(1, 5), raw(2, 7)
    batch.add(OrderedTransaction(1, 1, first))
    assert batch.to_decode == 5
    assert batch.hand_over() == [first]
    batch.add(OrderedTransaction(2, 2, second))
    assert batch.to_decode == 7
    assert batch.hand_over() == [second]
    assert batch.to_decode == 0
    assert batch.hand_over() == []
    kept = [DecodedMarker(one.bounds, one.size, one.count) for one in (first, second)]
    assert batch.take() == TransactionBatch(kept, 2, 2)
    batch.add(OrderedTransaction(3, 3, first))
    assert batch.hand_over() == [first]


PACKAGE = f"{Path(str(cdc_lake.__file__)).parent}/"
FILES_AT_MOST, DEPTH_AT_MOST = 25, 10
ORDERS = table("public.orders", id="int8", note="text")


class Calls(threading.local):
    """The functions of the package that a thread is in, as far as they count."""

    def __init__(self) -> None:
        self.under: list[str] = []


def test_an_insert_gets_from_the_wire_to_bronze_through_few_files_and_calls(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    server = MemoryServer([ORDERS])
    server.commit(Insert(ORDERS, ("1", "note")))
    assert server.received(project) is None  # the table is made
    server.commit(Insert(ORDERS, ("2", "note")))
    calls, files, deepest = Calls(), set[str](), list[str]()

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event not in {"call", "return"} or not code.co_filename.startswith(PACKAGE) or "<" in code.co_name:
            return
        if event == "return":
            if calls.under:
                calls.under.pop()
            return
        calls.under.append(f"{code.co_filename.removeprefix(PACKAGE)}:{code.co_qualname}")
        if not any(name.endswith("._report_commit") for name in calls.under):
            files.add(code.co_filename.removeprefix(PACKAGE))
            deepest[:] = max(deepest, [*calls.under], key=len)

    run = ReceiveLoop.run

    def traced(loop: ReceiveLoop, stream: Any) -> None:
        threading.setprofile(profile)
        sys.setprofile(profile)
        try:
            run(loop, stream)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    with mock.patch.object(ReceiveLoop, "run", traced):
        assert server.received(project) is None
    print(f"{len(files)} files, {len(deepest)} calls deep:", *sorted(files), *deepest, sep="\n")
    assert {"runtime/receive/loop.py", "decode/pgoutput/parser.py", "bronze/writer.py", "tables/delta_log.py"} <= files
    assert len(files) <= FILES_AT_MOST
    assert len(deepest) <= DEPTH_AT_MOST
