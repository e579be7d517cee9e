"""Each pgoutput message from its exact bytes, each way in which it can be wrong, and reads that are bounds-checked."""

from __future__ import annotations

import pytest

from cdc_lake.decode.pgoutput.messages import (
    AnnouncedColumn,
    Begin,
    Commit,
    DeleteMessage,
    InsertMessage,
    LogicalMessage,
    OriginMessage,
    Reader,
    RelationMessage,
    TruncateMessage,
    TypeMessage,
    UpdateMessage,
)
from cdc_lake.decode.pgoutput.parser import change_of, changes, parse
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.errors import (
    DecodeError,
    InvalidText,
    MalformedMessage,
    OutOfSequence,
    TruncatedMessage,
    UnexpectedMessage,
    UnknownRelation,
)
from cdc_lake.model.change import UNCHANGED, Delete, Insert, Message, OldKind, Truncate, Update
from cdc_lake.model.relation import ReplicaIdentity, TableName
from cdc_lake_testing import messages
from cdc_lake_testing.decoded import of_messages as transaction
from cdc_lake_testing.messages import boundaries, table

OID = b"\x00\x00\x40\x01"  # 16385
ORDERS = table("public.orders", id="int8", note="text")
ITEMS = table("public.items", id="int8")

BEGIN = b"B" + bytes.fromhex("000000000000ff00000000000000000100000007")
COMMIT = b"C\x00" + bytes.fromhex("000000000000ff00000000000000ff300000000000000001")
ONE = b"\x00\x02t\x00\x00\x00\x011n"
TWO = b"\x00\x02t\x00\x00\x00\x02\xc3\xa9u"

EXACT = {
    "begin": (BEGIN, Begin(0xFF00, 946_684_800_000_001, 7)),
    "commit": (COMMIT, Commit(0, 0xFF00, 0xFF30, 946_684_800_000_001)),
    "origin": (b"O\x00\x00\x00\x00\x00\x00\x00\x09node\x00", OriginMessage(9, "node")),
    "relation": (
        b"R" + OID + b"s\x00t\x00d\x00\x02" b"\x01id\x00\x00\x00\x00\x14\xff\xff\xff\xff" b"\x00n\x00\x00\x00\x04\x13\x00\x00\x00\x0e",
        RelationMessage(
            16385,
            TableName("s", "t"),
            ReplicaIdentity.DEFAULT,
            (AnnouncedColumn("id", 20, -1, True), AnnouncedColumn("n", 1043, 14, False)),
        ),
    ),
    "relation of pg_catalog": (
        b"R" + OID + b"\x00t\x00f\x00\x00",
        RelationMessage(16385, TableName("pg_catalog", "t"), ReplicaIdentity.FULL, ()),
    ),
    "type": (b"Y" + OID + b"s\x00mood\x00", TypeMessage(16385, "s", "mood")),
    "insert": (b"I" + OID + b"N" + ONE, InsertMessage(16385, ("1", None))),
    "update": (b"U" + OID + b"N" + TWO, UpdateMessage(16385, ("é", UNCHANGED), None, None)),
    "update with key": (b"U" + OID + b"K" + ONE + b"N" + TWO, UpdateMessage(16385, ("é", UNCHANGED), ("1", None), OldKind.KEY)),
    "update with row": (b"U" + OID + b"O" + ONE + b"N" + TWO, UpdateMessage(16385, ("é", UNCHANGED), ("1", None), OldKind.FULL)),
    "delete by key": (b"D" + OID + b"K" + ONE, DeleteMessage(16385, ("1", None), OldKind.KEY)),
    "delete by row": (b"D" + OID + b"O" + ONE, DeleteMessage(16385, ("1", None), OldKind.FULL)),
    "truncate": (b"T\x00\x00\x00\x02\x03" + OID + OID, TruncateMessage((16385, 16385), True, True)),
    "message": (
        b"M\x01\x00\x00\x00\x00\x00\x00\x00\x05p\x00\x00\x00\x00\x02\x00\xff",
        LogicalMessage(True, 5, "p", b"\x00\xff"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_a_message_says_what_its_bytes_say(name):
    payload, record = EXACT[name]
    assert parse(payload) == record


@pytest.mark.parametrize("name", EXACT)
def test_a_message_cut_anywhere_is_refused_inside_it(name):
    payload, _ = EXACT[name]
    for end in range(len(payload)):
        with pytest.raises(TruncatedMessage) as caught:
            parse(payload[:end])
        assert caught.value.offset <= end


@pytest.mark.parametrize("name", EXACT)
def test_a_byte_after_a_message_is_refused_at_its_place(name):
    payload, _ = EXACT[name]
    with pytest.raises(MalformedMessage, match="1 bytes after the end") as caught:
        parse(payload + b"\x00")
    assert caught.value.offset == len(payload)


def test_the_builders_send_the_exact_bytes():
    key, row = ("1", None), ("é", UNCHANGED)
    zero = 946_684_800_000_001
    assert messages.begin(0xFF00, 7, zero) == BEGIN
    assert messages.commit(0xFF00, 0xFF30, zero) == COMMIT
    assert messages.origin("node", 9) == EXACT["origin"][0]
    assert messages.type_name(16385, "s", "mood") == EXACT["type"][0]
    assert messages.insert(ORDERS, key, 16385) == EXACT["insert"][0]
    assert messages.update(ORDERS, row, oid=16385) == EXACT["update"][0]
    assert messages.update(ORDERS, row, key, OldKind.KEY, 16385) == EXACT["update with key"][0]
    assert messages.update(ORDERS, row, key, OldKind.FULL, 16385) == EXACT["update with row"][0]
    assert messages.delete(ORDERS, key, oid=16385) == EXACT["delete by key"][0]
    assert messages.delete(ORDERS, key, OldKind.FULL, 16385) == EXACT["delete by row"][0]
    assert messages.message("p", b"\x00\xff", 5) == EXACT["message"][0]


MALFORMED = {
    "unknown letter": (b"Z" + OID, UnexpectedMessage, 0, "`Z`: expected one of B C O R Y I U D T M"),
    "streaming": (b"S\x00\x00\x00\x07\x01", UnexpectedMessage, 0, "`S`"),
    "two-phase": (b"P" + bytes(30), UnexpectedMessage, 0, "`P`"),
    "unprintable letter": (b"\x00", UnexpectedMessage, 0, "0x00"),
    "commit flags": (COMMIT[:1] + b"\x01" + COMMIT[2:], MalformedMessage, 1, "unknown flags 0x01 of a commit"),
    "commit time": (BEGIN[:9] + b"\x7f" + b"\xff" * 7 + BEGIN[17:], MalformedMessage, 9, "64 bits"),
    "LSN": (BEGIN[:1] + b"\xff" + BEGIN[2:], MalformedMessage, 1, "63 bits"),
    "identity": (b"R" + OID + b"s\x00t\x00x\x00\x00", MalformedMessage, 9, "`x`: expected d, n, f or i"),
    "no name": (b"R" + OID + b"s\x00\x00d\x00\x00", MalformedMessage, 7, "without a name"),
    "column flags": (b"R" + OID + b"s\x00t\x00d\x00\x01\x02", MalformedMessage, 12, "of a column"),
    "insert with key": (b"I" + OID + b"K" + ONE, UnexpectedMessage, 5, "`K`: expected `N`"),
    "update without tuple": (b"U" + OID + b"X", UnexpectedMessage, 5, "`X`: expected `K` or `O` or `N`"),
    "update with old only": (b"U" + OID + b"K" + ONE + b"O", UnexpectedMessage, 15, "`O`: expected `N`"),
    "delete with new": (b"D" + OID + b"N" + ONE, UnexpectedMessage, 5, "`N`: expected `K` or `O`"),
    "binary length beyond": (b"I" + OID + b"N\x00\x01b\x00\x00\x00\x05abc", TruncatedMessage, 13, "3 left"),
    "unknown value": (b"I" + OID + b"N\x00\x01x", UnexpectedMessage, 8, "`x`: expected `n`, `u`, `t` or `b`"),
    "unchanged old": (b"D" + OID + b"K\x00\x01u", UnexpectedMessage, 8, "`u`: expected `n`, `t` or `b`"),
    "length beyond": (b"I" + OID + b"N\x00\x01t\x00\x00\x00\x05abc", TruncatedMessage, 13, "5 bytes announced, 3 left"),
    "length negative": (b"I" + OID + b"N\x00\x01t\xff\xff\xff\xffabc", TruncatedMessage, 13, "3 left"),
    "text": (b"I" + OID + b"N\x00\x01t\x00\x00\x00\x03a\xed\xa0", InvalidText, 14, "UTF-8"),
    "truncate of nothing": (b"T\x00\x00\x00\x00\x00", MalformedMessage, 1, "a truncate without a table"),
    "truncate flags": (b"T\x00\x00\x00\x01\x04" + OID, MalformedMessage, 5, "of a truncate"),
    "truncate count": (b"T\xff\xff\xff\xff\x00" + OID, TruncatedMessage, 10, "4 bytes announced"),
    "message flags": (b"M\x02", MalformedMessage, 1, "of a message"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_message_is_an_error_with_its_place(name):
    payload, kind, offset, words = MALFORMED[name]
    with pytest.raises(DecodeError) as caught:
        parse(payload)
    assert type(caught.value) is kind
    assert caught.value.offset == offset
    assert words in str(caught.value)


def test_a_tuple_of_another_width_than_its_layout_is_refused():
    with pytest.raises(MalformedMessage, match="3 values for a layout of 2 columns") as caught:
        change_of(messages.insert(ORDERS, ("1", "2", "3")), ORDERS)
    assert caught.value.offset == 6


def test_changes_come_under_the_layout_in_force():
    assert change_of(messages.insert(ORDERS, ("1", "")), ORDERS) == (Insert(ORDERS, ("1", "")),)
    assert change_of(messages.update(ORDERS, ("1", UNCHANGED)), ORDERS) == (Update(ORDERS, ("1", UNCHANGED)),)
    assert change_of(messages.delete(ITEMS, ("1",)), ITEMS) == (Delete(ITEMS, ("1",), OldKind.KEY),)
    assert change_of(messages.message("p", b"x"), None) == (Message("p", b"x"),)


def test_a_truncate_of_several_tables_is_one_change_a_table():
    frame = messages.truncate([ORDERS, ITEMS], restart_identity=True)
    raw = BufferedTransaction(boundaries(500), [frame], [77], [ORDERS], {0: (ORDERS, ITEMS)}, len(frame))
    expected = (Truncate(ORDERS, False, True), Truncate(ITEMS, False, True))
    assert list(changes(raw)) == [(0, expected[0]), (0, expected[1])]
    assert transaction(raw).lsns == (77, 77)
    with pytest.raises(UnknownRelation, match="2 tables, 1 of them known"):
        change_of(frame, ORDERS, (ORDERS,))


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (messages.insert(ORDERS, ("1", "2")), UnknownRelation),
        (messages.begin(5), OutOfSequence),
        (messages.relation(ORDERS), OutOfSequence),
    ],
)
def test_frames_that_are_no_change_of_a_transaction_are_refused(frame, kind):
    with pytest.raises(kind):
        change_of(frame, None)


def test_an_error_names_the_transaction_and_the_change():
    frames = [messages.insert(ITEMS, ("1",)), messages.insert(ITEMS, ("1",))[:-1]]
    raw = BufferedTransaction(boundaries(0x1_0000_0010), frames, [1, 2], [ITEMS, ITEMS], {}, 0)
    with pytest.raises(TruncatedMessage) as caught:
        transaction(raw)
    assert caught.value.where == "change 2 of the transaction at 1/10"


def test_numbers_are_big_endian_and_signed_as_named():
    reader = Reader(b"\xff" + b"\xff\xfe" + b"\xff" * 4 + b"\xff" * 4 + b"\xff" * 7 + b"\xfe")
    assert [reader.u8(), reader.u16(), reader.i32(), reader.u32(), reader.i64()] == [255, 65534, -1, 2**32 - 1, -2]
    reader.finish()


@pytest.mark.parametrize(
    ("read", "need"),
    [("u8", 1), ("u16", 2), ("i32", 4), ("u32", 4), ("i64", 8), ("lsn", 8), ("cstring", 1)],
)
def test_a_read_past_the_end_names_what_was_needed_and_where(read, need):
    reader = Reader(b"ab")
    reader.take(2)
    with pytest.raises(TruncatedMessage, match=f"{need} bytes announced, 0 left") as caught:
        getattr(reader, read)()
    assert caught.value.offset == 2


def test_a_refused_read_does_not_move():
    reader = Reader(b"abc")
    with pytest.raises(TruncatedMessage):
        reader.i32()
    assert (reader.offset, reader.take(3)) == (0, b"abc")


def test_a_negative_size_is_refused():
    with pytest.raises(TruncatedMessage):
        Reader(b"abc").take(-1)


def test_a_string_ends_at_its_zero_byte():
    reader = Reader(b"\xc3\xa9\x00\x00x")
    assert (reader.cstring(), reader.cstring(), reader.offset) == ("é", "", 4)
    with pytest.raises(TruncatedMessage, match="2 bytes announced, 1 left"):
        reader.cstring()


def test_invalid_utf8_names_its_byte_and_keeps_no_value():
    reader = Reader(b"__ab\xffd")
    reader.take(2)
    with pytest.raises(InvalidText) as caught:
        reader.text(4)
    assert caught.value.offset == 4
    assert caught.value.__context__ is None


def test_an_lsn_above_63_bits_is_refused():
    with pytest.raises(MalformedMessage, match="63 bits"):
        Reader(b"\x80" + bytes(7)).lsn()


def test_bytes_after_the_end_are_refused():
    reader = Reader(b"abc")
    reader.u8()
    with pytest.raises(MalformedMessage, match="2 bytes after the end") as caught:
        reader.finish()
    assert caught.value.offset == 1
