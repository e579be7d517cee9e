"""Negative controls of the receiver: each plants one bug at one place of the product, for as long as it is entered.

The checker must find each of them; what it does not find it does not prove either. The product has no switch for any.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias
from unittest import mock

from cdc_lake.bronze.port import ClosedBatch, Landed, Tabulate
from cdc_lake.bronze.writer import TableBronze
from cdc_lake.decode.assembler import Assembler
from cdc_lake.decode.columnar import tabulate
from cdc_lake.decode.large import LargeTransaction
from cdc_lake.decode.raw import Raw, RawTransaction
from cdc_lake.errors import DecodeError
from cdc_lake.pipeline.gaussdb.csn_order import CsnOrder
from cdc_lake.pipeline.stream.order import Closed

Transactions: TypeAlias = tuple[RawTransaction | LargeTransaction, ...]


@contextmanager
def acknowledge_before_commit() -> Iterator[None]:
    """Of each batch the loop is told that it landed; it lands with the next one."""
    append, waiting = TableBronze.append, dict[TableBronze, tuple[ClosedBatch, Tabulate]]()

    def boasting(bronze: TableBronze, batch: ClosedBatch, tabulate: Tabulate = tabulate) -> Landed:
        before = waiting.get(bronze, (ClosedBatch((), 0, 0), tabulate))
        waiting[bronze] = (batch, tabulate)
        landed = append(bronze, *before)
        return replace(landed, upto=batch.upto, confirm=batch.confirm, transactions=len(batch.transactions))

    with mock.patch.object(TableBronze, "append", boasting):
        yield


@contextmanager
def lsn_as_identity() -> Iterator[None]:
    """What has the LSN of a change before it in its transaction is taken for that one, sent again."""
    feed = Assembler.feed

    def once_each(assembler: Assembler, payload: bytes, lsn: int) -> Transactions:
        return tuple(_once_each(one) for one in feed(assembler, payload, lsn))

    with mock.patch.object(Assembler, "feed", once_each):
        yield


def _once_each(one: RawTransaction | LargeTransaction) -> RawTransaction | LargeTransaction:
    if not isinstance(one, RawTransaction):
        return one
    kept = [at for at, lsn in enumerate(one.lsns) if lsn not in one.lsns[:at]]
    frames = [one.frames[at] for at in kept]
    layouts, truncated = (
        [one.layouts[at] for at in kept],
        {n: one.truncated[at] for n, at in enumerate(kept) if at in one.truncated},
    )
    lsns, size = [one.lsns[at] for at in kept], sum(map(len, frames))
    return replace(one, frames=frames, lsns=lsns, layouts=layouts, truncated=truncated, size=size)


@contextmanager
def unknown_frames_ignored() -> Iterator[None]:
    """A frame that cannot be read is passed over."""
    feed = Assembler._feed  # noqa: SLF001 - the place that raises

    def ignoring(assembler: Assembler, payload: bytes, lsn: int) -> Transactions:
        try:
            return feed(assembler, payload, lsn)
        except DecodeError:
            return ()

    with mock.patch.object(Assembler, "_feed", ignoring):
        yield


@contextmanager
def no_fsync() -> Iterator[None]:
    """What is written is left to the system."""
    with mock.patch.object(os, "fsync", return_value=None):
        yield


@contextmanager
def late_csn_dropped() -> Iterator[None]:
    """A transaction whose number was passed over is taken for one that came again."""

    def dropping(order: CsnOrder, transaction: Raw, csn: int) -> Sequence[Closed]:
        del transaction, csn
        order.repeats += 1
        return ()

    with mock.patch.object(CsnOrder, "_again", dropping):
        yield
