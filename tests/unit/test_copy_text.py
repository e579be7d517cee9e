"""COPY text lines are read back exactly (PostgreSQL docs, COPY: Text Format), and batches close where they must."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cdc_lake.bronze.port import ClosedBatch
from cdc_lake.config.model import Batch
from cdc_lake.decode.raw import RawTransaction
from cdc_lake.model.transaction import Boundaries
from cdc_lake.pipeline.batches import OpenBatch
from cdc_lake.pipeline.order import Closed
from cdc_lake.source.copy_text import parse_line

_WRITTEN = {"\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
_TEXT = st.text(st.one_of(st.sampled_from("\\\\Nbfnrtv\b\f\n\r\t\v"), st.characters(exclude_categories=["Cs"])))


def written(value: str | None) -> str:
    """As the server's CopyAttributeOutText does it."""
    return "\\N" if value is None else "".join(_WRITTEN.get(char, char) for char in value)


@given(st.lists(st.one_of(st.none(), _TEXT), min_size=1))
def test_a_line_reads_back_as_its_values(values: list[str | None]) -> None:
    assert parse_line("\t".join(map(written, values)), len(values)) == values


def raw(frames: int, size: int) -> RawTransaction:
    return RawTransaction(Boundaries(1, 1), [b""] * frames, [0] * frames, [None] * frames, {}, size)


def test_a_batch_closes_at_whichever_limit_comes_first() -> None:
    now = [0.0]
    for limits, more in (
        (Batch(max_bytes=10, max_rows=99, max_transactions=99), raw(1, 5)),
        (Batch(max_bytes=99, max_rows=10, max_transactions=99), raw(5, 1)),
        (Batch(max_bytes=99, max_rows=99, max_transactions=2), raw(1, 1)),
    ):
        batch = OpenBatch(limits, lambda: now[0], 0, 0)
        batch.add(Closed(1, 1, more))
        assert not batch.full
        batch.add(Closed(1, 1, more))
        assert batch.full
        assert batch.take() == ClosedBatch([more, more], 1, 1)
        assert not batch.full
        assert len(batch) == 0


def test_a_batch_is_as_old_as_its_oldest_transaction() -> None:
    now = [100.0]
    batch = OpenBatch(Batch(max_delay=200), lambda: now[0], 0, 0)
    batch.add(Closed(1, 1, raw(1, 1)))
    now[0] = 100.15
    batch.add(Closed(1, 1, raw(1, 1)))
    assert 0 < batch.due_in < 0.051
    now[0] = 100.3
    assert batch.due_in < 0
