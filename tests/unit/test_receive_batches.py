"""Batches close where they must: at a limit of size, or of age."""

from __future__ import annotations

from cdc_lake.bronze.contract import TransactionBatch
from cdc_lake.config.model import Batch
from cdc_lake.connectors.open_stream import OrderedTransaction
from cdc_lake.decode.transaction import BufferedTransaction, DecodedMarker
from cdc_lake.model.change import Boundaries
from cdc_lake.runtime.receive.loop import OpenBatch


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
