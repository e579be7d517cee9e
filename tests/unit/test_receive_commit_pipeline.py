"""Landing: what is decoded in parts lands as if it had been decoded at once, and nothing is passed over."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pyarrow as pa
import pytest

from cdc_lake.bronze.contract import BronzeCommit, StreamCheckpoint, Tabulate, TransactionBatch
from cdc_lake.bronze.row_builder import build
from cdc_lake.decode.change_batch import ChangeColumns, concat_changes
from cdc_lake.decode.hashing import GENESIS
from cdc_lake.decode.pgoutput.columnar import columns_of
from cdc_lake.decode.transaction import DecodedMarker, ReceivedTransaction
from cdc_lake.errors import MalformedMessage
from cdc_lake.model.change import Boundaries, Change, Delete, Insert, Message, OldKind, Update
from cdc_lake.model.relation import Column, Relation, ReplicaIdentity, TableName
from cdc_lake.runtime.receive.commit_pipeline import BronzeCommitPipeline

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
