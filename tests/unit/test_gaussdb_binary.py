"""Style b, byte by byte: worked examples, both endings, options in any order, and what is refused."""

from __future__ import annotations

import pytest

from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb.binary import record_of, records_binary
from cdc_lake.decode.gaussdb.records import Begin, Commit, Field, Heartbeat, Operation, Row
from cdc_lake.errors import DecodeError, MalformedMessage, TextNotInEncoding, TruncatedMessage, UnexpectedRecord
from cdc_lake.model.relation import TableName

UTF8 = Codec()
T1 = TableName("public", "t1")
TIME = "2024-02-06 07:17:19.45874+08"


def octets(text: str) -> bytes:
    """Bytes from hexadecimal digits, with `"…"` for text."""
    return b"".join(
        part.encode() if nth % 2 else bytes.fromhex(part.replace("|", " ")) for nth, part in enumerate(text.split('"'))
    )


def field(name: str, value: str | None, oid: int = 25) -> Field:
    return Field(name, value, type_oid=oid)


HEAD = '0006 "public" 0002 "t1"'
A1 = '0001 "a" 00000017 00000001 "1"'
TRANSACTION = octets(
    f'00000047 0000000002816a28 42 00000000000007de 0000000002816a28 54 0000001c "{TIME}" 4e 00000008 "cdc_user" 50'
    f"00000040 0000000002816a28 49 {HEAD} 4e 0003 {A1}"
    '0001 "b" 00000017 00000001 "2" 0001 "c" 00000019 00000005 "hello" 50'
    f'00000033 0000000002816b90 43 58 0000000000003c90 54 0000001c "{TIME}" 46'
)
UPDATE = octets(
    f"0000004f 0000000002816c20 55 {HEAD} 4e 0003 {A1}"
    f'0001 "b" 00000017 00000001 "5" 0001 "c" 00000019 00000005 "hello" 4f 0001 {A1} 46'
)
DELETE = octets(f"00000024 0000000002816d60 44 {HEAD} 4f 0001 {A1} 46")
KEYLESS = octets(f"00000015 0000000002816d60 44 {HEAD}")
NULLS = octets(
    f'0000002e 0000000003000028 49 {HEAD} 4e 0002 0001 "n" 00000019 ffffffff 0001 "e" 00000019 00000000 50 00000000'
)
NUMBERS = octets("68 0000000002816a28 0000000002816c20 0000018d7b8fd1e2")
BEAT = Heartbeat(0x2816A28, 0x2816C20, 0x18D7B8FD1E2 * 1000)


def test_a_transaction_with_time_and_user():
    assert records_binary(TRANSACTION, UTF8) == [
        Begin(lsn=0x2816A28, csn=2014, first_lsn=0x2816A28, time=TIME, user="cdc_user"),
        Row(Operation.INSERT, T1, (field("a", "1", 23), field("b", "2", 23), field("c", "hello")), None, 0x2816A28),
        Commit(lsn=0x2816B90, xid=15504, time=TIME),
    ]


def test_an_update_has_the_new_row_first_and_then_the_old_key():
    assert records_binary(UPDATE, UTF8) == [
        Row(
            Operation.UPDATE,
            T1,
            (field("a", "1", 23), field("b", "5", 23), field("c", "hello")),
            (field("a", "1", 23),),
            0x2816C20,
        )
    ]


def test_a_delete_with_and_without_a_key():
    assert records_binary(DELETE, UTF8) == [Row(Operation.DELETE, T1, None, (field("a", "1", 23),), 0x2816D60)]
    for ending in ("46", "50 00000000"):
        assert records_binary(KEYLESS + octets(ending), UTF8) == [Row(Operation.DELETE, T1, None, None, 0x2816D60)]


def test_null_is_not_the_empty_string_and_a_length_of_zero_ends_a_payload():
    assert records_binary(NULLS, UTF8) == [
        Row(Operation.INSERT, T1, (field("n", None), field("e", "")), None, 0x3000028)
    ]
    assert records_binary(bytes(4), UTF8) == []


def test_a_heartbeat_is_read_bare_and_in_a_record():
    assert records_binary(NUMBERS + b"F", UTF8) == [BEAT]
    framed = octets("00000021 0000000002816a28") + NUMBERS
    assert records_binary(framed + b"F", UTF8) == [Heartbeat(BEAT.read, BEAT.flushed, BEAT.newest, 0x2816A28)]
    between = TRANSACTION[:-1] + b"P" + framed + b"P" + TRANSACTION
    assert [type(record) for record in records_binary(between, UTF8)] == [
        Begin,
        Row,
        Commit,
        Heartbeat,
        Begin,
        Row,
        Commit,
    ]


BEGIN = octets("42 00000000000007de 0000000002816a28")
XID, AT, ORIGIN, USER = (
    octets("58 0000000000003c90"),
    octets('54 00000002 "PF"'),
    octets("4f 00000050"),
    octets('4e 00000001 "u"'),
)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (b"", {}),
        (XID, {"xid": 15504}),
        (XID + AT + ORIGIN, {"xid": 15504, "time": "PF", "origin_id": 80}),
        (USER + ORIGIN + AT + XID, {"xid": 15504, "time": "PF", "origin_id": 80, "user": "u"}),
        (AT + USER, {"time": "PF", "user": "u"}),
        (XID + b"?" + AT, {"xid": 15504, "skipped": "?"}),  # what an unknown option hides cannot be read
        (b"P\x00\x01", {"skipped": "P"}),
        (b"\xf6", {"skipped": "0xf6"}),
    ],
)
def test_options_of_begin_come_in_any_order_and_unknown_ones_end_with_the_body(options, expected):
    body = BEGIN + options
    assert record_of(body, UTF8) == Begin(csn=2014, first_lsn=0x2816A28, **expected)
    payload = (len(body) + 8).to_bytes(4, "big") + bytes(8) + body + b"P" + TRANSACTION
    assert len(records_binary(payload, UTF8)) == 4


@pytest.mark.parametrize(
    ("options", "expected"),
    [(b"", {}), (AT + XID, {"xid": 15504, "time": "PF"}), (XID, {"xid": 15504}), (b"N" + XID, {"skipped": "N"})],
)
def test_options_of_commit(options, expected):
    assert record_of(b"C" + options, UTF8) == Commit(**expected)


def test_column_names_are_unquoted_and_tables_are_raw():
    body = b'I\x00\x02"s\x00\x02t1N\x00\x01\x00\x06"a""b"\x00\x00\x00\x19\x00\x00\x00\x00'
    assert record_of(body, UTF8) == Row(Operation.INSERT, TableName('"s', "t1"), (field('a"b', ""),))


def test_text_is_in_the_encoding_of_the_database():
    body = octets(f"49 {HEAD} 4e 0001 0001 61 00000019 00000002 d6d0")
    row = record_of(body, Codec("GBK"))
    assert isinstance(row, Row)
    assert row.new == (field("a", "中"),)
    with pytest.raises(TextNotInEncoding) as caught:
        record_of(body, UTF8)
    assert caught.value.offset == len(body) - 2


@pytest.mark.parametrize(
    ("payload", "kind", "offset"),
    [
        (b"", TruncatedMessage, 0),
        (b"\x00\x00\x00", TruncatedMessage, 0),
        (octets("00000008 0000000000000000 46"), MalformedMessage, 0),
        (octets("00000009 0000000000000000 43"), TruncatedMessage, 4),  # without the letter behind it
        (octets("00000009 0000000000000000 43 50"), TruncatedMessage, 14),
        (octets("00000009 0000000000000000 43 58"), UnexpectedRecord, 13),
        (octets("00000009 0000000000000000 43 46 00"), MalformedMessage, 14),
        (octets("00000009 0000000000000000 43 50 00000000 46"), MalformedMessage, 18),
        (octets("00000009 0000000000000000 5a 46"), UnexpectedRecord, 12),
        (octets("00000012 0000000000000000 43 54 00000005 41414141 46"), TruncatedMessage, 18),
        (octets("0000001b 0000000000000000 43 58 0000000000000001 58 0000000000000001 46"), MalformedMessage, 22),
        (octets(f"00000018 0000000000000000 49 {HEAD} 51 0000 46"), UnexpectedRecord, 25),
        (octets(f"0000001b 0000000000000000 49 {HEAD} 4e 0000 4e 0000 46"), UnexpectedRecord, 28),
        (octets(f"00000018 0000000000000000 49 {HEAD} 4e 0001 46"), TruncatedMessage, 28),
        (octets('0000000f 0000000000000000 49 0000 0002 "t1" 46'), MalformedMessage, 13),
        (octets("00000022 0000000002816a28") + NUMBERS + b"xF", MalformedMessage, 37),
    ],
)
def test_what_is_not_of_the_format_is_refused_at_its_byte(payload, kind, offset):
    with pytest.raises(kind) as caught:
        records_binary(payload, UTF8)
    assert caught.value.offset == offset


def test_no_value_is_in_an_error():
    payload = UPDATE.replace(b"hello", b"hel\xffo")
    with pytest.raises(DecodeError) as caught:
        records_binary(payload, UTF8)
    assert "hel" not in str(caught.value)
    assert caught.value.__cause__ is None
