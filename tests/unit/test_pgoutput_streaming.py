"""Streamed transactions, case by case: what a block may hold, what is rolled back, what an announcement counts for."""

from __future__ import annotations

import pytest

from cdc_lake.decode.pgoutput.assembler import Assembler
from cdc_lake.decode.pgoutput.spooled import Subtransactions
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.errors import DecodeError, MalformedMessage, OutOfSequence, TruncatedMessage, UnknownRelation, UnknownType
from cdc_lake.model.relation import TableName
from cdc_lake_testing import messages
from cdc_lake_testing.messages import catalog_of, table
from cdc_lake_testing.streaming import inside, stream_abort, stream_commit, stream_start, stream_stop

NARROW = table("public.a", id="int8", note="text")
WIDE = table("public.a", id="int8", note="text", more="text")
CATALOG = catalog_of(NARROW, WIDE)
ROW, WIDE_ROW = ("1", "x"), ("1", "x", "y")


def fed(assembler: Assembler, *payloads: bytes) -> list[BufferedTransaction]:
    out = [raw for nth, payload in enumerate(payloads) for raw in assembler.feed(payload, nth)]
    assert all(isinstance(raw, BufferedTransaction) for raw in out)
    return out  # type: ignore[return-value]


def block(xid: int, *payloads: bytes, first: bool = False, sub: int | None = None) -> list[bytes]:
    return [stream_start(xid, first=first), *(inside(one, sub or xid) for one in payloads), stream_stop()]


def test_an_older_announcement_of_a_streamed_transaction_does_not_replace_a_newer_one() -> None:
    assembler = Assembler(CATALOG)
    old, new = messages.relation(NARROW), messages.relation(WIDE)
    fed(assembler, *block(7, old, messages.insert(NARROW, ROW), first=True))
    [whole] = fed(assembler, messages.begin(100), new, messages.insert(WIDE, WIDE_ROW), messages.commit(100, 148))
    [streamed] = fed(assembler, stream_commit(7, 200, 248))
    [behind] = fed(assembler, messages.begin(300), messages.insert(WIDE, WIDE_ROW), messages.commit(300, 348))
    assert [one.layouts for one in (whole, streamed, behind)] == [[WIDE], [NARROW], [WIDE]]


def test_an_announcement_that_says_what_an_older_one_said_is_the_newer_one_all_the_same() -> None:
    assembler = Assembler(CATALOG)
    narrow, change = messages.relation(NARROW), messages.insert(NARROW, ROW)
    fed(assembler, *block(7, narrow, change, first=True))
    fed(assembler, messages.begin(100), messages.relation(WIDE), messages.commit(100, 148))
    fed(assembler, *block(7, narrow, change), stream_commit(7, 200, 248))
    [behind] = fed(assembler, messages.begin(300), change, messages.commit(300, 348))
    assert behind.layouts == [NARROW]


def test_what_a_streamed_transaction_announced_counts_for_all_behind_its_commit() -> None:
    assembler = Assembler(CATALOG)
    fed(assembler, messages.begin(100), messages.relation(NARROW), messages.commit(100, 148))
    fed(assembler, *block(7, messages.relation(WIDE), messages.insert(WIDE, WIDE_ROW), first=True))
    [between] = fed(assembler, messages.begin(150), messages.insert(NARROW, ROW), messages.commit(150, 198))
    [_, behind] = fed(
        assembler,
        stream_commit(7, 200, 248),
        messages.begin(300), messages.insert(WIDE, WIDE_ROW), messages.commit(300, 348),
    )  # fmt: skip
    assert (between.layouts, behind.layouts) == ([NARROW], [WIDE])


def test_a_table_is_looked_up_when_its_transaction_is_committed() -> None:
    asked: list[TableName] = []

    def catalog(_oid: int, name: TableName) -> messages.TableFacts:
        asked.append(name)
        return CATALOG[name]

    assembler = Assembler(catalog)
    fed(assembler, *block(7, messages.relation(NARROW), messages.insert(NARROW, ROW), first=True))
    assert asked == []
    fed(assembler, *block(7, messages.relation(NARROW), messages.insert(NARROW, ROW)))
    fed(assembler, stream_commit(7, 200, 248))
    assert asked == [NARROW.table], "once, though it was announced again"


def test_the_origin_of_a_streamed_transaction_is_kept_and_a_message_outside_of_it_is_counted() -> None:
    assembler = Assembler(CATALOG)
    outside = inside(messages.message("p", b"c", transactional=False), 7)
    start, stop = stream_start(7, first=True), stream_stop()
    [raw] = fed(assembler, start, messages.origin("far"), outside, stop, stream_commit(7, 200, 248))
    assert (raw.bounds.origin, raw.frames, assembler.outside_messages) == ("far", [], 1)


def test_an_open_block_is_no_place_to_advance_and_a_reset_forgets_all() -> None:
    assembler = Assembler(CATALOG)
    opened = [stream_start(7, first=True), inside(messages.relation(NARROW), 7)]
    fed(assembler, *opened, inside(messages.insert(NARROW, ROW), 7))
    assert assembler.in_transaction
    fed(assembler, stream_stop())
    assert not assembler.in_transaction
    assert assembler.open_bytes > 0
    assembler.reset()
    assert assembler.open_bytes == 0
    with pytest.raises(OutOfSequence):
        fed(assembler, stream_commit(7, 200, 248))


def test_an_abort_of_what_never_came_is_passed_over() -> None:
    assert fed(Assembler(CATALOG), stream_abort(7, 7), stream_abort(7, 9, lsn=5)) == []


KNOWN = [stream_start(7, first=True), inside(messages.relation(NARROW), 7)]
WRONG: dict[str, tuple[list[bytes], type[DecodeError]]] = {
    "a block in a block": ([*KNOWN, stream_start(8, first=True)], OutOfSequence),
    "an end of no block": ([stream_stop()], OutOfSequence),
    "a first block again": ([*KNOWN, stream_stop(), stream_start(7, first=True)], OutOfSequence),
    "a later block first": ([stream_start(7, first=False)], OutOfSequence),
    "a BEGIN in a block": ([*KNOWN, messages.begin(100)], OutOfSequence),
    "a COMMIT in a block": ([*KNOWN, stream_commit(7, 200, 248)], OutOfSequence),
    "an abort in a block": ([*KNOWN, stream_abort(7, 7)], OutOfSequence),
    "a COMMIT of nothing": ([stream_commit(7, 200, 248)], OutOfSequence),
    "a COMMIT that ends early": ([*KNOWN, stream_stop(), stream_commit(7, 200, 100)], MalformedMessage),
    "a block in a whole transaction": ([messages.begin(100), stream_start(7, first=True)], DecodeError),
    "a change of an unknown table": ([KNOWN[0], inside(messages.insert(NARROW, ROW), 7)], UnknownRelation),
    "a truncate of an unknown table": ([KNOWN[0], inside(messages.truncate([NARROW]), 7)], UnknownRelation),
    "an announcement that ends early": ([KNOWN[0], b"R\0\0\0\7\0\0"], TruncatedMessage),
    "a message without a transaction": ([KNOWN[0], b"I\0\0"], TruncatedMessage),
    "an empty message": ([KNOWN[0], b""], TruncatedMessage),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("keeps", [False, True])
def test_messages_out_of_their_place_are_errors(case: str, keeps: bool) -> None:
    payloads, error = WRONG[case]
    with pytest.raises(error):
        fed(Assembler(CATALOG, keeps=keeps), *payloads)


def test_an_announcement_that_cannot_be_taken_in_stops_or_is_kept_before_the_changes_that_need_it() -> None:
    odd = messages.relation(NARROW).replace(b"\0\0\0\x14", b"\0\0\x99\x99")  # a type that nobody knows
    change = messages.insert(NARROW, ROW)
    payloads = [*block(7, odd, change, first=True), stream_commit(7, 200, 248)]
    with pytest.raises(UnknownType):
        fed(Assembler(CATALOG), *payloads)
    [raw] = fed(Assembler(CATALOG, keeps=True), *payloads)
    assert isinstance(raw.fault, UnknownType)
    assert (raw.frames, raw.layouts, raw.size) == ([odd, change], [None, None], len(odd) + len(change))


def test_a_subtransaction_takes_along_what_began_behind_it() -> None:
    subs = Subtransactions()
    for xid, frames in ((11, 0), (12, 4), (11, 6), (13, 7), (11, 9), (12, 9)):
        subs.begins(xid, frames, 0)
    assert subs.cut(14) is None
    assert subs.cut(13) == (7, 0)
    assert subs.cut(12) == (4, 0)
    assert subs.cut(11) == (0, 0)
    assert subs.cut(11) is None


def test_an_outer_subtransaction_may_change_something_first_behind_an_inner_one() -> None:
    subs = Subtransactions()
    subs.begins(12, 0, 0)
    subs.begins(11, 5, 1)
    subs.begins(11, 8, 1)
    assert subs.cut(11) == (5, 1)
    assert subs.cut(12) == (0, 0)


def test_transaction_ids_begin_again_after_the_last_one() -> None:
    subs = Subtransactions()
    for xid, frames in (((1 << 32) - 2, 0), ((1 << 32) - 1, 3), (3, 5), ((1 << 32) - 1, 6)):
        subs.begins(xid, frames, 0)
    assert subs.cut(3) == (5, 0)
    assert subs.cut((1 << 32) - 1) == (3, 0)
