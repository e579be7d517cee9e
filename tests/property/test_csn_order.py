"""CSN order: whatever a server may send, transactions leave once each, by CSN, with nothing missing.

The model is a dictionary from CSN to transaction. Streams are drawn that a server could send: commit LSNs ascend, CSNs
are up to nine places away from their order, some transactions are empty, some stay open for long, some are lost, and
now and then the connection breaks and the server starts over behind the confirmed position.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.reader import CommitRow
from cdc_lake.connectors.gaussdb.csn_order import CROWD, CROWD_BYTES, CsnOrdering
from cdc_lake.connectors.gaussdb.failover import FailoverOrdering, FailoverReplay
from cdc_lake.connectors.open_stream import CommitLsnOrdering, Gap, OrderedTransaction, TransactionOrdering
from cdc_lake.decode.gaussdb.batches import SpooledRecords
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.decode.transaction import BufferedTransaction, MemoryFrames, ReceivedTransaction
from cdc_lake.errors import CsnMissing, CsnTwice, LateTransaction, NoOrderNumber, Retry
from cdc_lake.model.change import Boundaries
from cdc_lake.model.position import Csn, Lsn
from cdc_lake.source.base import Kind, StreamIdentity
from tests.seeds import seeds
from tests.tally import tally

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
SEEDS = seeds(150 * BUDGET)
DISTANCE = 9  # the greatest that was measured on running servers
BOUND = 60.0
TIME = datetime(2026, 1, 1, tzinfo=UTC)


def transaction(csn: int | None, lsn: int, changes: int = 1, size: int | None = None) -> BufferedTransaction:
    """One whose commit record starts at `lsn`; `lsn` is also what may be confirmed."""
    bounds = Boundaries(position=csn or lsn, confirm=lsn, commit_lsn=lsn, csn=csn, xid=csn)
    frames = [b"x" * 10] * changes
    return BufferedTransaction(bounds, frames, [lsn] * changes, [None] * changes, {}, size or 10 * changes)


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Server:
    """What was committed, in the order of commit LSNs, and which of it the stream never sends."""

    sent: list[BufferedTransaction]
    lost: frozenset[int]

    def stream(self, confirmed: int) -> Iterator[BufferedTransaction]:
        """Everything whose commit record lies behind the confirmed position, as the server repeats it."""
        return (t for t in self.sent if t.bounds.confirm > confirmed)

    def csns(self) -> set[int]:
        return {t.bounds.csn for t in self.sent if t.bounds.csn is not None}


def server(chance: random.Random, start: int, *, losses: bool) -> Server:
    count = chance.randint(1, 80)
    first = start - chance.choice((0, 0, 3, 20))  # below: transactions that the initial copy holds
    by_csn = list(range(first + 1, start + count + 1))
    by_lsn = [
        csn
        for _, csn in sorted(
            (at + chance.choice((0, 0, 0, chance.uniform(0, DISTANCE))), c) for at, c in enumerate(by_csn)
        )
    ]
    lsn, sent = 1000, []
    for csn in by_lsn:
        lsn += chance.randint(1, 500)
        sent.append(transaction(csn, lsn, chance.choice((0, 0, 1, 1, 5))))
    top = sent[-1].bounds.csn
    dropped = [c for c in by_csn if c > start and c != top and chance.random() < 0.1] if losses else []
    lost = frozenset(c for c in dropped if c < max(c for c in by_lsn))
    return Server([t for t in sent if t.bounds.csn not in lost], lost)


@dataclass
class Landed:
    """What left the order, over all connections: bronze, as far as this is about it."""

    upto: int
    confirm: int
    empty: int = 0
    transactions: list[ReceivedTransaction] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    arrived: dict[int, int] = field(default_factory=dict)  # csn → confirm, of this connection

    def take(self, steps: list[OrderedTransaction] | tuple[OrderedTransaction, ...]) -> None:
        for step in steps:
            moved = step.upto > self.upto or (step.upto == self.upto and step.confirm > self.confirm)
            assert moved, "each step goes on"
            assert step.confirm >= self.confirm
            if step.gap is not None:
                assert step.gap.first == self.upto + 1
                assert step.gap.last == step.upto
                self.gaps.append(step.gap)
            elif step.upto > self.upto:
                assert step.upto == self.upto + 1, "no CSN is left out"
            if step.transaction is not None:
                assert step.transaction.bounds.position == step.upto
                self.transactions.append(step.transaction)
            waiting = [confirm for csn, confirm in self.arrived.items() if csn > step.upto]
            closed = [confirm for csn, confirm in self.arrived.items() if csn <= step.upto]
            safe = [c for c in closed if not waiting or c < min(waiting)]
            assert step.confirm == max([*safe, self.confirm]), "the greatest that every waiting one lies above"
            self.upto, self.confirm, self.empty = step.upto, step.confirm, step.empty


def order_of(landed: Landed, policy: str, clock: Time) -> CsnOrdering:
    return CsnOrdering(
        landed.upto,
        landed.confirm,
        bound=BOUND,
        policy=policy,  # type: ignore[arg-type]
        clock=clock,
        empty=landed.empty,
        recorded=landed.gaps,
    )


def replay_of(landed: Landed, confirmed: int) -> tuple[FailoverReplay, StreamCheckpoint]:
    """What a server repeats whose slot is confirmed up to there only, and the state of bronze."""
    stream = StreamIdentity("7", "db", "slot", Lsn(900), Csn(100), Kind.GAUSS)
    state = StreamCheckpoint(str(stream), 1, landed.upto, landed.confirm, b"")
    newest = [
        CommitRow(1, t.bounds.position, TIME, t.bounds.xid, {}, 1, b"", b"", commit_lsn=t.bounds.commit_lsn)
        for t in sorted(landed.transactions, key=lambda t: t.bounds.confirm)
    ]
    return FailoverReplay(state, newest, confirmed=confirmed, exact=True), state


def connection(chance: random.Random, source: Server, landed: Landed, confirmed: int | None = None) -> bool:
    """Read one connection, perhaps not to its end; True at the end. `confirmed`: where the slot is, if behind bronze."""
    clock = Time()
    order: TransactionOrdering = order_of(landed, "stop", clock)
    replay, begin = None, landed.confirm
    if confirmed is not None and confirmed < landed.confirm:
        replay, state = replay_of(landed, confirmed)
        order, begin = FailoverOrdering(order, replay, state), replay.start
    landed.arrived = {}
    for one in source.stream(begin):
        csn = one.bounds.csn
        assert csn is not None
        if (
            chance.random() < 0.05
        ):  # a transaction that stays open for hours: its BEGIN is there, and nothing else comes
            for _ in range(chance.randint(1, 5)):
                landed.take(tuple(order.expire_gaps((csn,))))
                clock.now += chance.uniform(0, 3 * BOUND)
        landed.arrived[csn] = one.bounds.confirm
        landed.take(tuple(order.add(one)))
        clock.now += 0.01
        landed.take(tuple(order.expire_gaps()))
        if chance.random() < 0.05:
            return False
    if replay is not None and not replay.agreed:  # a keepalive shows that everything was repeated
        replay.finish()
        landed.take(tuple(order.expire_gaps()))
    return True


def check(source: Server, landed: Landed, start: int) -> None:
    """Everything left once, in order, and the count of what stands in between fits."""
    expected = {t.bounds.csn: t for t in source.sent}
    passed = {csn for gap in landed.gaps for csn in range(gap.first, gap.last + 1)}
    csns = [t.bounds.csn for t in landed.transactions]
    assert csns == sorted(set(csns))
    for one in landed.transactions:
        assert replace(one.bounds, empty_before=0) == expected[one.bounds.csn].bounds
    wanted = {csn for csn, t in expected.items() if csn is not None and csn > start and t.count} - passed
    assert set(csns) == wanted
    before = start
    for one in landed.transactions:
        position = one.bounds.position
        between = set(range(before + 1, position)) - passed
        assert one.bounds.empty_before == len(between)
        before = position
    assert landed.empty == len(set(range(before + 1, landed.upto + 1)) - passed)
    assert passed & source.csns() <= set(), "only what never comes is passed over"


@pytest.mark.parametrize("seed", SEEDS)
def test_every_transaction_leaves_once_in_order_over_any_number_of_connections(seed: int) -> None:
    print("CDC_LAKE_SEED =", seed)
    chance = random.Random(seed)
    start = chance.choice((20, 100, 1 << 40))
    source = server(chance, start, losses=False)
    landed = Landed(start, 900)
    while not connection(chance, source, landed):
        pass
    check(source, landed, start)
    assert landed.upto == max([*source.csns(), start])
    assert landed.confirm == max(t.bounds.confirm for t in source.sent)
    assert landed.gaps == []
    tally("R4", histories=1, transactions=len(source.sent))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slot_behind_bronze_confirms_nothing_that_bronze_does_not_have(seed: int) -> None:
    """As after a kill between commit and acknowledgement, or on a standby: transactions come again, among new ones."""
    print("CDC_LAKE_SEED =", seed)
    chance = random.Random(seed)
    source = server(chance, 100, losses=False)
    landed, slot = Landed(100, 900), 900
    while not connection(chance, source, landed, slot):
        if chance.random() < 0.5:
            slot = landed.confirm
    check(source, landed, 100)
    assert landed.upto == max([*source.csns(), 100])
    tally("R4", histories=1, transactions=len(source.sent))


@pytest.mark.parametrize("seed", SEEDS)
def test_what_never_comes_is_passed_over_and_nothing_else(seed: int) -> None:
    print("CDC_LAKE_SEED =", seed)
    chance = random.Random(seed)
    source = server(chance, 100, losses=True)
    landed = Landed(100, 900)
    while not quiet_connection(chance, source, landed):
        pass
    check(source, landed, 100)
    top = max([*source.csns(), 100])
    assert {csn for gap in landed.gaps for csn in range(gap.first, gap.last + 1)} == {c for c in source.lost if c < top}
    assert landed.upto == top
    tally("R4", histories=1, transactions=len(source.sent))


def quiet_connection(chance: random.Random, source: Server, landed: Landed) -> bool:
    """Everything comes at once; only then does time pass."""
    clock = Time()
    order = order_of(landed, "record", clock)
    landed.arrived = {}
    for one in source.stream(landed.confirm):
        landed.arrived[one.bounds.csn or 0] = one.bounds.confirm
        landed.take(tuple(order.add(one)))
        if chance.random() < 0.02:
            return False
    for _ in range(int(BOUND + 2) * (len(source.lost) + 1)):
        clock.now += 1.0
        landed.take(tuple(order.expire_gaps()))
        if chance.random() < 0.001:
            return False
    return True


# ── a hole that does not close ───────────────────────────────────────────────────────────────────────────────────


def wait(order: CsnOrdering, clock: Time, seconds: float, *opened: int) -> list[OrderedTransaction]:
    steps: list[OrderedTransaction] = []
    for _ in range(int(seconds)):
        steps += order.expire_gaps(opened)
        clock.now += 1.0
    return [*steps, *order.expire_gaps(opened)]


def new(policy: str = "stop", recorded: tuple[Gap, ...] = (), start: int = 10) -> tuple[CsnOrdering, Time]:
    clock = Time()
    return order_of(Landed(start, 0, gaps=list(recorded)), policy, clock), clock


def test_a_csn_that_does_not_come_stops_the_stream_with_its_number_and_its_neighbours() -> None:
    order, clock = new()
    assert order.add(transaction(11, 0x100))
    assert not order.add(transaction(14, 0x200))
    assert not wait(order, clock, BOUND - 1)
    with pytest.raises(CsnMissing, match="CSNs 12 to 13 did not arrive") as missing:
        wait(order, clock, 2)
    assert "LSN 0/100" in missing.value.message
    assert "LSN 0/200" in missing.value.message
    assert missing.value.retry is Retry.LATER


def test_its_time_begins_when_its_turn_comes() -> None:
    order, clock = new()
    assert not order.add(transaction(12, 0x100))
    assert not order.add(transaction(14, 0x200))
    assert not wait(order, clock, BOUND - 1)
    assert [step.upto for step in order.add(transaction(11, 0x300))] == [11, 12]
    assert not wait(order, clock, BOUND - 1)
    with pytest.raises(CsnMissing, match="CSN 13 did not"):
        wait(order, clock, 2)


def test_nothing_is_missing_while_nothing_newer_came() -> None:
    order, clock = new()
    assert order.add(transaction(11, 0x100))
    assert not wait(order, clock, 10 * BOUND)


def test_a_long_transaction_is_no_gap_neither_its_own_nor_that_of_one_behind_it() -> None:
    order, clock = new()
    assert not order.add(transaction(12, 0x100))
    assert not wait(order, clock, 10 * BOUND, 11)  # its own
    assert [step.upto for step in order.add(transaction(11, 0x200))] == [11, 12]
    assert not wait(order, clock, 10 * BOUND, 14)  # 13 can only come behind it
    assert not order.add(transaction(14, 0x300))
    assert not order.expire_gaps()
    assert [step.upto for step in order.add(transaction(13, 0x400))] == [13, 14]


def test_a_pause_of_ours_is_no_lateness_of_the_servers() -> None:
    order, clock = new()
    assert not order.add(transaction(12, 0x100))
    assert not order.expire_gaps()
    clock.now += 100 * BOUND
    assert not order.expire_gaps()
    assert [step.upto for step in order.add(transaction(11, 0x200))] == [11, 12]


def test_memory_is_not_filled_behind_a_hole() -> None:
    order, _ = new()
    for n in range(CROWD):
        assert not order.add(transaction(12 + n, 0x100 + n, size=CROWD_BYTES // CROWD + 1))
    with pytest.raises(CsnMissing, match=f"no more than {CROWD:,} transactions"):
        order.expire_gaps()


def test_a_recorded_gap_is_passed_and_its_transaction_is_late_then() -> None:
    order, clock = new("record")
    assert not order.add(transaction(13, 0x100))
    steps = wait(order, clock, BOUND + 1)
    assert [(step.upto, step.gap) for step in steps] == [(12, Gap(11, 12, None, 0x100)), (13, None)]
    with pytest.raises(LateTransaction, match="CSN 12"):
        order.add(transaction(12, 0x200))
    assert not order.add(transaction(11, 0x300, changes=0))  # nothing is lost with it
    assert order.repeats == 1


def test_a_recorded_gap_stays_one_after_a_restart() -> None:
    order, _ = new("record", (Gap(3, 4), Gap(7, 7)))
    for csn in (3, 4, 7):
        with pytest.raises(LateTransaction):
            order.add(transaction(csn, 0x100 + csn))
    for csn in (2, 5, 6, 8, 10):
        order.add(transaction(csn, 0x200 + csn))
    assert order.repeats == 5


def test_a_gap_that_bronze_did_not_get_past_is_open_again() -> None:
    order, _ = new("record", (Gap(9, 12),))
    with pytest.raises(LateTransaction):
        order.add(transaction(10, 0x100))
    assert [step.upto for step in order.add(transaction(11, 0x200))] == [11]
    order.add(transaction(11, 0x200))
    assert order.repeats == 1


def test_what_cannot_be_counted_is_refused() -> None:
    order, _ = new()
    with pytest.raises(NoOrderNumber, match="0/100"):
        order.add(transaction(None, 0x100))
    assert not order.add(transaction(12, 0x200))
    assert not order.add(transaction(12, 0x200))
    assert order.repeats == 1
    with pytest.raises(CsnTwice, match="CSN 12"):
        order.add(transaction(12, 0x300))


def test_arrival_order_closes_each_transaction_as_it_comes() -> None:
    order = CommitLsnOrdering()
    some, none = transaction(7, 0x100), transaction(5, 0x200, changes=0)
    assert order.add(some) == (OrderedTransaction(7, 0x100, some),)
    assert order.add(none) == (OrderedTransaction(5, 0x200, None),)
    assert order.expire_gaps() == ()


class OnDisk(MemoryFrames):
    closed = False

    def close(self) -> None:
        self.closed = True


def test_a_large_transaction_takes_no_memory_and_is_given_back_where_it_is_dropped() -> None:
    order = CsnOrdering(10, 0, bound=BOUND, policy="stop", clock=Time())

    def large(csn: int) -> SpooledRecords:
        return SpooledRecords(transaction(csn, csn).bounds, Style.BINARY, OnDisk(), 10 * CROWD_BYTES, 5)

    for n in range(CROWD):
        assert not order.add(transaction(12 + n, 0x100 + n))
    waiting, again, older = large(12 + CROWD), large(12 + CROWD), large(10)
    assert not order.add(waiting)
    assert not order.expire_gaps(), "there is room"
    assert not order.add(again)
    assert [one.transaction for one in order.add(older)] == [None]
    assert [one.frames.closed for one in (waiting, again, older)] == [False, True, True]
    assert [one.transaction for one in order.add(transaction(11, 0x90))][-1] is waiting
