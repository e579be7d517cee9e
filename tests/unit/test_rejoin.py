"""Rejoining in CSN order: what is new and comes before all that is sent again was seen, goes on when it was."""

from __future__ import annotations

from datetime import UTC, datetime

from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.reader import CommitRow
from cdc_lake.decode.raw import RawTransaction
from cdc_lake.model.position import Csn, Lsn
from cdc_lake.model.transaction import Boundaries
from cdc_lake.pipeline.gaussdb.csn_order import CsnOrder
from cdc_lake.pipeline.gaussdb.rejoin import Rejoin, RejoiningFrames, RejoiningOrder
from cdc_lake.source.stream import Kind, StreamIdentity

STREAM = StreamIdentity("7", "db", "slot", Lsn(10), Csn(2021), Kind.GAUSS)
STATE = BronzeState(str(STREAM), 1, upto=2027, confirm=100, head=b"")
TIME = datetime(2026, 1, 1, tzinfo=UTC)


def transaction(csn: int, lsn: int) -> RawTransaction:
    bounds = Boundaries(position=csn, confirm=lsn, commit_lsn=lsn, csn=csn, xid=csn)
    return RawTransaction(bounds, [b"x"], [lsn], [None], {}, 1)


def landed(csn: int, lsn: int) -> CommitRow:
    return CommitRow(1, csn, TIME, csn, {"public.t": {"I": 1}}, 1, b"", b"", commit_lsn=lsn)


class Quiet:
    """Frames of a server that has sent all and says so."""

    asked = False
    keepalive_end = 1000

    def poll(self, timeout: float) -> list[tuple[int, bytes]]:
        del timeout
        return []

    def confirm(self, position: int) -> None: ...

    def tick(self, *, ping: bool = False) -> None: ...

    def close(self) -> None: ...


def test_what_came_between_goes_on_where_a_keepalive_says_that_all_was_sent_again():
    rejoin = Rejoin(STATE, [landed(2026, 110), landed(2027, 140)], confirmed=100, exact=False)
    order = RejoiningOrder(CsnOrder(2027, 100, bound=60.0, policy="stop", clock=lambda: 0.0), rejoin, STATE)
    frames = RejoiningFrames(Quiet(), rejoin)
    for again, lsn in ((2026, 110), (2028, 120), (2029, 130), (2027, 140)):
        assert order.take(transaction(again, lsn)) == ()
    assert order.waiting == 2
    assert frames.poll(0.1) == []
    assert rejoin.agreed
    closed = [*order.tend(), *order.take(transaction(2030, 150))]
    assert [one.transaction.bounds.csn for one in closed if one.transaction is not None] == [2028, 2029, 2030]
    assert order.waiting == 0
