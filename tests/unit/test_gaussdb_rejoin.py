"""Rejoining in CSN order: what is new and comes before all that is sent again was seen, goes on when it was; what lies
before all that was asked for again, and comes all the same, is dropped.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.reader import CommitRow
from cdc_lake.connectors.gaussdb.csn_order import CsnOrdering
from cdc_lake.connectors.gaussdb.failover import AGAIN, FailoverFrames, FailoverOrdering, FailoverReplay
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.errors import HistoryDiffers
from cdc_lake.model.change import Boundaries
from cdc_lake.model.position import Csn, Lsn
from cdc_lake.source.base import Kind, StreamIdentity

STREAM = StreamIdentity("7", "db", "slot", Lsn(10), Csn(2021), Kind.GAUSS)
STATE = StreamCheckpoint(str(STREAM), 1, upto=2027, confirm=100, head=b"")
TIME = datetime(2026, 1, 1, tzinfo=UTC)


def transaction(csn: int, lsn: int) -> BufferedTransaction:
    bounds = Boundaries(position=csn, confirm=lsn, commit_lsn=lsn, csn=csn, xid=csn)
    return BufferedTransaction(bounds, [b"x"], [lsn], [None], {}, 1)


def landed(csn: int, lsn: int) -> CommitRow:
    return CommitRow(1, csn, TIME, csn, {"public.t": {"I": 1}}, 1, b"", b"", commit_lsn=lsn)


class Quiet:
    """Frames of a server that has sent all and says so."""

    reply_requested = False
    keepalive_end = 1000

    def poll(self, timeout: float) -> list[tuple[int, bytes]]:
        del timeout
        return []

    def confirm(self, position: int) -> None: ...

    def tick(self, *, ping: bool = False) -> None: ...

    def close(self) -> None: ...


def test_what_came_between_goes_on_where_a_keepalive_says_that_all_was_sent_again():
    rejoin = FailoverReplay(STATE, [landed(2026, 110), landed(2027, 140)], confirmed=100, exact=False)
    order = FailoverOrdering(CsnOrdering(2027, 100, bound=60.0, policy="stop", clock=lambda: 0.0), rejoin, STATE)
    frames = FailoverFrames(Quiet(), rejoin)
    for again, lsn in ((2026, 110), (2028, 120), (2029, 130), (2027, 140)):
        assert order.add(transaction(again, lsn)) == ()
    assert order.waiting == 2
    assert frames.poll(0.1) == []
    assert rejoin.agreed
    closed = [*order.expire_gaps(), *order.add(transaction(2030, 150))]
    assert [one.transaction.bounds.csn for one in closed if one.transaction is not None] == [2028, 2029, 2030]
    assert order.waiting == 0


@pytest.mark.parametrize("by_csn", [False, True])
def test_only_what_was_asked_for_again_is_held_against_bronze(by_csn: bool):
    before, last = 2021 + 72, 2021 + 72 + 2 * AGAIN
    missing = last - 5
    state = replace(STATE, upto=last, confirm=10 * last)
    held = [landed(csn, 10 * csn) for csn in range(before + 1, last + 1) if csn != missing]
    confirmed = before if by_csn else 10 * 2021
    rejoin = FailoverReplay(state, held, confirmed=confirmed, exact=False, by_csn=by_csn)
    order = FailoverOrdering(CsnOrdering(last, 10 * last, bound=60.0, policy="stop", clock=lambda: 0.0), rejoin, state)
    for again in range(2022, missing):
        assert order.add(transaction(again, 10 * again)) == ()
    assert order.repeats == missing - 2022
    with pytest.raises(HistoryDiffers, match="that bronze does not contain"):
        order.add(transaction(missing, 10 * missing))
