"""Logical messages: which are landed, where they stand, and which a run writes for itself alone."""

from __future__ import annotations

import pytest

from cdc_lake.decode.pgoutput.assembler import Assembler
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.errors import OutOfSequence
from cdc_lake.model.change import OWN_MESSAGES, Boundaries, Message
from cdc_lake_testing import messages
from cdc_lake_testing.decoded import of_messages as transaction
from cdc_lake_testing.streaming import inside, stream_commit, stream_start, stream_stop

OUTSIDE = messages.message("p", b"\0c", 184, transactional=False)


def fed(assembler: Assembler, *payloads: bytes) -> list[BufferedTransaction]:
    out = [raw for nth, payload in enumerate(payloads) for raw in assembler.feed(payload, nth)]
    assert all(isinstance(raw, BufferedTransaction) for raw in out)
    return out  # type: ignore[return-value]


def test_a_message_outside_of_transactions_is_one_of_its_own_between_those_around_it() -> None:
    before = (messages.begin(100), messages.message("p", b"b"), messages.commit(100, 160))
    behind = (messages.begin(200), messages.message("p", b"a"), messages.commit(200, 248))
    assembler = Assembler({}, messages=True)
    raws = fed(assembler, *before, OUTSIDE, *behind)
    assert [raw.bounds.position for raw in raws] == [160, 184, 248]
    assert raws[1].bounds == Boundaries(position=184, confirm=184)
    assert transaction(raws[1]).changes == (Message("p", b"\0c"),)
    assert len(tabulate(raws)) == 3
    assert (assembler.outside_messages, assembler.in_transaction) == (0, False)


def test_without_being_asked_for_it_is_dropped_and_counted() -> None:
    assembler = Assembler({})
    assert fed(assembler, OUTSIDE) == []
    assert assembler.outside_messages == 1


def test_it_cannot_stand_inside_a_transaction() -> None:
    with pytest.raises(OutOfSequence, match="inside one"):
        fed(Assembler({}, messages=True), messages.begin(100), OUTSIDE)


@pytest.mark.parametrize("transactional", [True, False])
def test_what_a_run_writes_itself_is_never_landed(transactional: bool) -> None:
    own = messages.message(OWN_MESSAGES, b"heartbeat", 120, transactional=transactional)
    if not transactional:
        assert fed(Assembler({}, messages=True), own) == []
        return
    [whole] = fed(Assembler({}, messages=True), messages.begin(100), own, messages.commit(100, 148))
    started, stop = stream_start(7, first=True), stream_stop()
    [streamed] = fed(Assembler({}, messages=True), started, inside(own, 7), stop, stream_commit(7, 100, 148))
    assert (whole.count, streamed.count) == (0, 0)
