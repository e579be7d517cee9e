"""Open streams: what the receive loop gets from whichever server, and patience with a slot that is still active."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cdc_lake.bronze.port import BronzeState, Tabulate
from cdc_lake.errors import SlotActive
from cdc_lake.model.position import OrderDomain
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.stream.copying import Stopped
from cdc_lake.pipeline.stream.order import Order
from cdc_lake.pipeline.stream.parked import ParkedTransactions
from cdc_lake.source.stream import FrameSource, TransactionAssembler

PATIENCE = 15.0
"""Seconds to wait for a slot that is still active: after a crash the server needs a while to notice."""

T = TypeVar("T")


def nothing() -> None:
    """Nothing goes on beside it."""


@dataclass(frozen=True, slots=True)
class OpenStream:
    """A running stream after bronze's last position, and what belongs to it.

    `assembler` makes transactions of its frames, `order` says when they may be landed, `tabulate` makes columns of
    them, `again` of those that come again, to be compared, at the same time as the other. `goal` is a position in
    `domain`: everything committed before the connection was opened is at or below it. `copied`: rows of the initial
    copy that was made first. `spilled`: bytes of transactions that its spool has written; 0 where there is none.
    `parked`: prepared transactions that wait for their end, where such are kept. `heed` raises what ended that goes on
    beside the stream, and has to end it too. `synchronous`: whether commits at the source wait for the receiver's
    answer (`synchronous_standby_names` of PostgreSQL); asked by the thread that reads the stream. `newest_decoded`: see
    `Pulse`.
    """

    frames: FrameSource
    assembler: TransactionAssembler
    order: Order
    tabulate: Tabulate
    again: Tabulate
    domain: OrderDomain
    state: BronzeState
    goal: int
    copied: int
    spilled: Callable[[], int] = int
    parked: ParkedTransactions | None = None
    heed: Callable[[], None] = nothing
    synchronous: Callable[[], bool] = bool
    newest_decoded: Callable[[], int | None] = nothing


def patiently(attempt: Callable[[], T], stop: threading.Event, tell: Tell, patience: float) -> T:
    """Try again while the slot is active elsewhere, for at most `patience` seconds; then raises SlotActive."""
    until, delay = time.monotonic() + patience, 0.1
    while True:
        try:
            return attempt()
        except SlotActive as active:
            if time.monotonic() + delay > until:
                raise
            tell(Progress("retry", active.message, facts={"code": active.code}))
        if stop.wait(delay):
            raise Stopped
        delay = min(2 * delay, 2.0)
