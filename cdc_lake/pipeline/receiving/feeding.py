"""How the receive loop gives messages to an assembler: straight, but where a failpoint between two of them is armed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from cdc_lake.decode.raw import Raw
from cdc_lake.observe.failpoint import BEGUN, CHANGE_TAKEN, armed, failpoint
from cdc_lake.source.stream import TransactionAssembler

Feed: TypeAlias = Callable[[bytes, int], Sequence[Raw]]


def feeding(assembler: TransactionAssembler) -> Feed:
    """The assembler's `feed`; where a failpoint inside transactions is armed, it is passed behind each message."""
    feed = assembler.feed
    if not armed(BEGUN, CHANGE_TAKEN):
        return feed

    def fed(payload: bytes, lsn: int) -> Sequence[Raw]:
        done = feed(payload, lsn)
        if assembler.in_transaction:
            failpoint(CHANGE_TAKEN if assembler.open_bytes else BEGUN)
        return done

    return fed
