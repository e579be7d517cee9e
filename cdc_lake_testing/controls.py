"""Negative controls of the receiver: each plants one bug in one place of the product while it is entered.

The checker must find each of them, or it does not prove their absence. The product has no switch for them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias
from unittest import mock

from cdc_lake.bronze.contract import BronzeCommit, Tabulate, TransactionBatch
from cdc_lake.bronze.writer import TableBronze
from cdc_lake.connectors.gaussdb.csn_order import CsnOrdering
from cdc_lake.connectors.open_stream import OrderedTransaction
from cdc_lake.decode.pgoutput.assembler import Assembler
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.pgoutput.spooled import SpooledTransaction
from cdc_lake.decode.transaction import BufferedTransaction, ReceivedTransaction
from cdc_lake.errors import DecodeError

Transactions: TypeAlias = tuple[BufferedTransaction | SpooledTransaction, ...]


@contextmanager
def acknowledge_before_commit() -> Iterator[None]:
    """Of each batch the loop is told that it landed; it lands with the next one."""
    append, waiting = TableBronze.append, dict[TableBronze, tuple[TransactionBatch, Tabulate]]()

    def boasting(bronze: TableBronze, batch: TransactionBatch, tabulate: Tabulate = tabulate) -> BronzeCommit:
        before = waiting.get(bronze, (TransactionBatch((), 0, 0), tabulate))
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


def _once_each(one: BufferedTransaction | SpooledTransaction) -> BufferedTransaction | SpooledTransaction:
    if not isinstance(one, BufferedTransaction):
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

    def dropping(order: CsnOrdering, transaction: ReceivedTransaction, csn: int) -> Sequence[OrderedTransaction]:
        del transaction, csn
        order.repeats += 1
        return ()

    with mock.patch.object(CsnOrdering, "_handle_repeat", dropping):
        yield
