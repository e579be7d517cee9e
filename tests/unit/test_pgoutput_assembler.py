"""The assembler gives whole transactions only, as bytes, under the layouts in force, with the logical messages that land."""

from __future__ import annotations

import pytest

from cdc_lake.decode.pgoutput.assembler import Assembler, TableFacts
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.errors import MalformedMessage, OutOfSequence, TruncatedMessage, UnknownRelation, UnknownType
from cdc_lake.model.change import (
    OWN_MESSAGES,
    Boundaries,
    Delete,
    Insert,
    Message,
    OldKind,
    Transaction,
    Truncate,
    Update,
)
from cdc_lake.model.relation import Column, Relation, ReplicaIdentity, TableName
from cdc_lake_testing import messages
from cdc_lake_testing.decoded import of_messages as transaction
from cdc_lake_testing.messages import boundaries, catalog_of, encode_stream, encode_transaction, raw_transaction, table
from cdc_lake_testing.streaming import inside, stream_commit, stream_start, stream_stop
from tests.unit.test_pgoutput_streaming import fed

ORDERS = table("public.orders", id="int8", note="text")
WIDER = table("public.orders", id="int8", note="text", more="text")
ITEMS = table("public.items", key=("order_id", "line"), line="int4", order_id="int8")


@pytest.fixture
def assembler():
    return Assembler(catalog_of(ORDERS, WIDER, ITEMS))


def feed_all(assembler, payloads):
    return [raw for lsn, payload in payloads for raw in assembler.feed(payload, lsn)]


def test_a_transaction_comes_out_at_its_commit_and_not_before(assembler):
    one = Transaction(boundaries(900), (Insert(ORDERS, ("1", "x")), Delete(ORDERS, ("1", None), OldKind.KEY)), (10, 20))
    *before, last = encode_transaction(one)
    assert feed_all(assembler, before) == []
    assert assembler.open_bytes == sum(len(messages.encode_change(c)) for c in one.changes)
    assert assembler.feed(last[1], last[0]) == (raw_transaction(one),)
    assert assembler.open_bytes == 0


def test_boundaries_are_the_numbers_of_commit(assembler):
    payloads = [
        messages.begin(0x100, 42, 5_000_000),
        messages.origin("elsewhere"),
        messages.commit(0x100, 0x130, 6_000_000),
    ]
    [raw] = [assembler.feed(p, 1) for p in payloads][-1]
    assert raw is not None
    assert raw.bounds == Boundaries(
        position=0x130, confirm=0x130, commit_lsn=0x100, xid=42, commit_ts=6_000_000, origin="elsewhere"
    )


def test_an_empty_transaction_comes_out_too(assembler):
    [raw] = feed_all(assembler, encode_transaction(Transaction(boundaries(900), ())))
    assert (raw.frames, raw.lsns, raw.layouts, raw.truncated, raw.size) == ([], [], [], {}, 0)


def test_a_layout_that_changes_in_mid_transaction_counts_from_there_on(assembler):
    one = Transaction(
        boundaries(900), (Insert(ORDERS, ("1", "x")), Insert(WIDER, ("2", "x", "y")), Update(WIDER, ("1", "x", None)))
    )
    [raw] = feed_all(assembler, encode_transaction(one))
    assert raw.layouts == [ORDERS, WIDER, WIDER]


def test_a_layout_holds_key_flags_of_the_stream_and_primary_key_of_the_catalog(assembler):
    [raw] = feed_all(assembler, encode_transaction(Transaction(boundaries(900), (Insert(ITEMS, ("1", "2")),))))
    [layout] = raw.layouts
    assert layout == ITEMS
    assert layout.primary_key == ("order_id", "line")


def test_a_layout_announced_again_keeps_its_object(assembler):
    payloads = encode_transaction(Transaction(boundaries(900), (Insert(ORDERS, ("1", "x")),)))
    [first] = feed_all(assembler, payloads)
    assembler.reset()
    [second] = feed_all(assembler, payloads)
    assert first.layouts[0] is second.layouts[0]


def test_a_catalog_function_is_asked_at_each_announcement():
    asked = []

    def catalog(oid, name):
        asked.append((oid, name))
        return TableFacts(("id",), {20: "int8", 25: "text"})

    one = Transaction(boundaries(900), (Insert(ORDERS, ("1", "x")), Insert(ORDERS, ("2", "x"))))
    [raw] = feed_all(Assembler(catalog), encode_transaction(one))
    assert asked == [(messages.oid_of(ORDERS.table), ORDERS.table)]
    assert raw.layouts == [ORDERS, ORDERS]


def test_a_type_the_catalog_lost_takes_its_name_from_the_stream():
    moody = Relation(TableName("public", "m"), (Column("mood", "app.mood", 20_000),), ReplicaIdentity.NOTHING)
    assembler = Assembler({moody.table: TableFacts((), {})})
    assembler.feed(messages.begin(900), 1)
    assembler.feed(messages.type_name(20_000, "app", "mood"), 1)
    assembler.feed(messages.relation(moody), 1)
    assembler.feed(messages.insert(moody, ("happy",)), 1)
    [raw] = assembler.feed(messages.commit(900, 948), 1)
    assert raw is not None
    assert raw.layouts == [moody]


def test_a_type_nobody_names_is_an_error():
    assembler = Assembler({ORDERS.table: TableFacts(("id",), {20: "int8"})})
    with pytest.raises(UnknownType, match="`note` is of type OID 25"):
        assembler.feed(messages.relation(ORDERS), 1)


def test_a_truncate_holds_all_of_its_layouts(assembler):
    payloads = [messages.begin(900), messages.relation(ORDERS), messages.relation(ITEMS)]
    payloads += [messages.insert(ORDERS, ("1", "x")), messages.truncate([ITEMS, ORDERS]), messages.commit(900, 948)]
    [raw] = feed_all(assembler, [(1, p) for p in payloads])
    assert raw.truncated == {1: (ITEMS, ORDERS)}


def test_messages_inside_a_transaction_are_kept_and_those_outside_counted(assembler):
    outside = messages.message("p", b"x", transactional=False)
    inside = Transaction(boundaries(900), (Message("p", b"x"),))
    [raw] = feed_all(assembler, [(1, outside), *encode_transaction(inside), (2, outside)])
    assert raw == raw_transaction(inside)
    assert assembler.outside_messages == 2


@pytest.mark.parametrize(
    ("payloads", "kind", "words"),
    [
        ([messages.commit(1, 2)], OutOfSequence, "a COMMIT outside a transaction"),
        ([messages.begin(1), messages.begin(1)], OutOfSequence, "a BEGIN inside a transaction"),
        ([messages.relation(ORDERS), messages.insert(ORDERS, ("1", "x"))], OutOfSequence, "a change outside"),
        ([messages.relation(ORDERS), messages.truncate([ORDERS])], OutOfSequence, "a truncate outside"),
        ([messages.message("p", b"x")], OutOfSequence, "a message outside"),
        ([messages.origin("o")], OutOfSequence, "an origin outside"),
        ([messages.begin(1), messages.insert(ORDERS, ("1", "x"), 99)], UnknownRelation, "OID 99"),
        ([messages.begin(1), messages.truncate([ORDERS])], UnknownRelation, "was not announced"),
        (
            [messages.begin(1), messages.commit(2, 3)],
            MalformedMessage,
            "a COMMIT at 0/2 for a BEGIN that announced 0/1",
        ),
        ([messages.begin(2), messages.commit(2, 1)], MalformedMessage, "ends before it starts"),
        ([messages.begin(1), b"I\x00\x00"], TruncatedMessage, "4 bytes announced, 2 left"),
        ([b""], TruncatedMessage, "1 bytes announced, 0 left"),
        ([messages.relation(table("public.other", id="int8"))], UnknownRelation, "no information about public.other"),
    ],
)
def test_what_the_protocol_does_not_allow_is_an_error_with_its_place(assembler, payloads, kind, words):
    *before, last = payloads
    for payload in before:
        assembler.feed(payload, 1)
    with pytest.raises(kind, match=words) as caught:
        assembler.feed(last, 0x1_0000_00FF)
    assert caught.value.where == "the message at 1/FF"


def test_after_a_reset_the_stream_starts_over(assembler):
    one = Transaction(boundaries(900), (Insert(ORDERS, ("1", "x")), Truncate(ORDERS)))
    for lsn, payload in encode_transaction(one)[:-1]:
        assembler.feed(payload, lsn)
    assembler.reset()
    assert assembler.open_bytes == 0
    with pytest.raises(OutOfSequence):
        assembler.feed(messages.insert(ORDERS, ("1", "x")), 1)
    assembler.feed(messages.begin(1), 1)
    with pytest.raises(UnknownRelation):  # the server announces every relation anew
        assembler.feed(messages.insert(ORDERS, ("1", "x")), 1)
    assembler.reset()
    assert feed_all(assembler, encode_transaction(one)) == [raw_transaction(one)]


def test_one_connection_announces_a_layout_once():
    both = [Transaction(boundaries(at), (Insert(ORDERS, ("1", "x")),)) for at in (900, 1900)]
    letters = b"".join(payload[:1] for _, payload in encode_stream(both))
    assert letters == b"BRICBIC"


OUTSIDE = messages.message("p", b"\0c", 184, transactional=False)


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
