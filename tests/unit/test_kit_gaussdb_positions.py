"""Where the stand-in's transactions stand: of what is confirmed in any framing, a stream goes on with the next one."""

from __future__ import annotations

import random

import pytest

from cdc_lake.decode.gaussdb.assembler import CommitPositionPolicy
from cdc_lake.decode.gaussdb.records import Begin, Commit, Style
from cdc_lake.model.position import OrderDomain
from cdc_lake_testing.gaussdb.backlog import Backlog
from cdc_lake_testing.gaussdb.ledger import Ledger, LedgerTransaction
from cdc_lake_testing.gaussdb.live_order import EMPTY, Places
from cdc_lake_testing.gaussdb.slots import SlotOrder
from tests.seeds import one_seed

BORDER = 0x89A3890
SHORTEST = 24
"""Bytes of the shortest record of the log."""


def told(dice: random.Random, many: int) -> Ledger:
    """A log of commit records, others between them, and as many of our own behind some as there is room for."""
    ledger = Ledger(start=BORDER)
    places, at = Places(BORDER), BORDER

    def tell(start: int, end: int) -> None:
        ledger.append(LedgerTransaction(ledger.allot_csn(), ledger.allot_xid(), start, start, end, 0))

    while len(ledger) < many:
        if dice.random() < 0.3:
            at += SHORTEST
            places.reach(at)
        for _ in range(dice.choice((0, 1, 2, 9))):
            if (own := places.own()) is None:
                break
            tell(own, own + EMPTY)
        if dice.random() < 0.7:
            start, at = at, at + dice.choice((SHORTEST, 48, 352))
            tell(places.recorded(start, at), at)
    return ledger


@pytest.mark.parametrize(
    ("style", "batch", "at_start"),
    [
        (Style.BINARY, True, False),  # the 3.0 line: only what begins strictly behind is sent
        (Style.BINARY, True, True),
        (Style.TEXT, True, False),
        (Style.JSON, False, False),
        (Style.JSON, False, True),
        (Style.SERIAL, False, True),
    ],
)
def test_what_is_confirmed_of_one_brings_the_next_one(style: Style, batch: bool, at_start: bool) -> None:
    seed = one_seed()
    print("CDC_LAKE_SEED =", seed)
    ledger = told(random.Random(seed), 300)
    bounding = CommitPositionPolicy(style=style, batch=batch, domain=OrderDomain.CSN, confirms_csn=False)
    for nth, one in enumerate(ledger.since(0)[:-1]):
        header = one.commit_end if style is Style.SERIAL else one.commit_start
        commit = Commit(lsn=one.commit_end) if batch else Commit()
        bounds = bounding.bounds(Begin(csn=one.csn), commit, header, 0, has_rows=False)
        following = Backlog(ledger, bounds.confirm, SlotOrder.LSN, lambda: 0, at_start=at_start).next()
        assert following is not None
        assert following[0] == nth + 1, (one, ledger[nth + 1])


def test_there_is_room_for_three_until_the_log_goes_on() -> None:
    places = Places(BORDER)
    assert [places.own() for _ in range(4)] == [BORDER, BORDER + 2, BORDER + 4, None]
    assert places.recorded(BORDER, BORDER + 48) == BORDER + 6
    assert places.own() == BORDER + 48
    places.reach(BORDER + 48)
    assert places.own() == BORDER + 50
    places.reach(BORDER + 72)
    assert places.own() == BORDER + 72
