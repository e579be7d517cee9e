"""Whole transactions out of payloads, however they are cut; what they may be confirmed by; what is out of sequence."""

from __future__ import annotations

import pytest

from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.decode.gaussdb.binary import record_of
from cdc_lake.decode.gaussdb.records import Begin, Commit, Field, Heartbeat, Operation, Record, Row, Style
from cdc_lake.errors import DecodeError, MalformedMessage, NoOrderNumber, OutOfSequence, StyleMismatch
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import TableName
from cdc_lake_testing.gaussdb.encode import Ending, Framing, Print, encode_payload

T = TableName("public", "t")
TIME = "2026-11-21 15:00:00.5+01"
BIG = 1 << 63


def row(value: str, lsn: int = 110, operation: Operation = Operation.INSERT) -> Row:
    return Row(operation, T, (Field("id", value, "integer", 23),), None, lsn)


def begin(csn: int = 7, lsn: int = 100, **more: object) -> Begin:
    return Begin(lsn=lsn, csn=csn, first_lsn=lsn, **more)


BINARY = Print(Style.BINARY)
ONE: list[Record] = [begin(xid=5), row("1"), row("2", 120), Commit(lsn=200, xid=5)]
EMPTY: list[Record] = [begin(8, 210), Commit(lsn=220, xid=6)]
BEAT = Heartbeat(1, 2, 3_000_000_000_000_000)


def payload(records: list[Record], ending: Ending = Ending.SIZE) -> bytes:
    return encode_payload(records, BINARY, Framing(batch=True, ending=ending))


def assembler(style: Style = Style.BINARY, domain: OrderDomain = OrderDomain.CSN, **more: object) -> GaussDbAssembler:
    return GaussDbAssembler(style, **({"batch": True, "domain": domain} | more))


def lines(*texts: str) -> list[bytes]:
    return [text.encode() for text in texts]


# ── cutting ──


@pytest.mark.parametrize("ending", [Ending.SIZE, Ending.TIMER])
def test_a_stream_gives_the_same_transactions_however_it_is_cut(ending):
    records = [*ONE, *EMPTY, begin(9, 230), row("3", 235), Commit(lsn=240)]
    whole = assembler().feed(payload(records, ending), 1)
    assert [(raw.bounds.csn, raw.count, raw.size) for raw in whole] == [(7, 2, 2 * 28), (8, 0, 0), (9, 1, 28)]
    assert [record_of(data, Codec()) for data in whole[0].records] == [
        Row(Operation.INSERT, T, (Field("id", value, type_oid=23),)) for value in "12"
    ]
    assert whole[0].lsns == [110, 120]
    for first in range(1, len(records)):
        for second in range(first, len(records)):
            feed = assembler().feed
            parts = [part for part in (records[:first], records[first:second], records[second:]) if part]
            assert [raw for part in parts for raw in feed(payload(part, ending), 1)] == whole


def test_the_open_transaction_is_counted():
    one = assembler()
    assert (one.open_csn, one.in_transaction, one.open_bytes) == (None, False, 0)
    one.feed(payload(ONE[:2]), 1)
    one.feed(payload(ONE[2:3], Ending.TIMER), 1)
    assert (one.open_csn, one.in_transaction, one.open_bytes) == (7, True, 56)
    one.reset()
    assert (one.open_csn, one.in_transaction, one.open_bytes) == (None, False, 0)
    assert len(one.feed(payload(ONE), 1)) == 1
    assert (one.open_csn, one.in_transaction, one.open_bytes) == (None, False, 0)


@pytest.mark.parametrize("bare", [True, False])
def test_heartbeats_stand_anywhere_and_are_nothing(bare):
    one = assembler()
    if bare:
        payloads = [payload(ONE[:2]), encode_payload([BEAT], BINARY, Framing()), payload(ONE[2:])]
    else:
        payloads = [payload([*ONE[:1], BEAT, ONE[1], BEAT, *ONE[2:]])]
    fed = [raw for each in payloads for raw in one.feed(each, 1)]
    assert fed == assembler().feed(payload(ONE), 1)
    assert one.heartbeats == (1 if bare else 2)


# ── boundaries ──


def test_boundaries_are_what_the_source_gave():
    records = [begin(xid=4, time="", origin_id=3, user="app"), row("1"), Commit(lsn=200, xid=5, time=TIME)]
    (raw,) = assembler().feed(payload(records), 150)
    bounds = raw.bounds
    assert (bounds.position, bounds.csn, bounds.commit_lsn, bounds.first_lsn) == (7, 7, 200, 100)
    assert (bounds.xid, bounds.origin, bounds.user) == (5, "3", "app")
    assert bounds.commit_ts == 1_795_269_600_500_000
    (raw,) = assembler().feed(payload([begin(xid=4, time=TIME, origin_id=0), row("1"), Commit(lsn=200)]), 150)
    assert (raw.bounds.xid, raw.bounds.origin, raw.bounds.commit_ts) == (4, None, 1_795_269_600_500_000)


def test_the_first_lsn_of_a_transaction_without_rows_is_not_believed():
    """3.0.x prints stale memory there."""
    garbage = Begin(lsn=0, csn=8, first_lsn=0xFD6F6320656C6269)
    (raw,) = assembler().feed(payload([garbage, Commit(lsn=220)]), 1)
    assert raw.bounds.first_lsn is None
    (raw,) = assembler().feed(payload([garbage, row("1"), Commit(lsn=220)]), 1)
    assert raw.bounds.first_lsn is None


ROW_TEXT = "table public t INSERT: id[integer]:1"
ROW_JSON = '{"table_name":"public.t","op_type":"INSERT","columns_name":["id"],"columns_type":["integer"],"columns_val":["1"],"old_keys_name":[],"old_keys_type":[],"old_keys_val":[]}'
PARALLEL = ("BEGIN CSN: 7 first_lsn: 0/64", ROW_TEXT, "commit xid: 5")
SERIAL = ("BEGIN 5", ROW_JSON, f"COMMIT 5 (at {TIME}) CSN 7")


def test_binary_confirms_the_byte_before_the_end_of_the_commit_record():
    """The end itself loses the next transaction on 3.0.x."""
    for domain, position in ((OrderDomain.CSN, 7), (OrderDomain.LSN, 200)):
        (raw,) = assembler(domain=domain).feed(payload(ONE), 150)
        assert (raw.bounds.position, raw.bounds.confirm) == (position, 199)


def test_text_in_batches_confirms_as_binary_does():
    how = Print(Style.TEXT)
    batch = encode_payload(ONE, how, Framing(batch=True))
    (raw,) = assembler(Style.TEXT, OrderDomain.LSN).feed(batch, 150)
    assert (raw.bounds.position, raw.bounds.confirm, raw.bounds.commit_lsn) == (200, 199, 200)
    assert raw.records == lines(ROW_TEXT, ROW_TEXT.replace(":1", ":2"))
    assert (raw.lsns, raw.size) == ([110, 120], 72)


def test_text_without_batches_confirms_the_header_and_one():
    one = assembler(Style.TEXT, OrderDomain.LSN, batch=False)
    fed = [raw for lsn, text in zip((100, 110, 180), lines(*PARALLEL), strict=True) for raw in one.feed(text, lsn)]
    (raw,) = fed
    assert (raw.bounds.position, raw.bounds.confirm, raw.bounds.csn, raw.bounds.first_lsn) == (180, 181, 7, 100)
    assert raw.lsns == [110]


def test_serial_decoding_confirms_the_header_of_commit():
    one = assembler(Style.SERIAL)
    fed = [raw for lsn, text in zip((100, 110, 200), lines(*SERIAL), strict=True) for raw in one.feed(text, lsn)]
    (raw,) = fed
    assert (raw.bounds.position, raw.bounds.confirm, raw.bounds.commit_lsn, raw.bounds.first_lsn) == (7, 200, 200, 100)
    assert (raw.records, raw.style) == ([ROW_JSON.encode()], Style.SERIAL)


def test_a_slot_in_csn_order_is_confirmed_by_csn():
    (raw,) = assembler(confirms_csn=True).feed(payload(ONE), 150)
    assert (raw.bounds.position, raw.bounds.confirm) == (7, 7)


def test_lines_of_serial_decoding_that_are_no_changes_are_counted():
    one = assembler(Style.SERIAL)
    ddl = "prefix: deparse, lsn: 1, relid 1, cmdtype: Simple, size: 2, content: {}\nline"
    texts = lines(SERIAL[0], ddl, "something new", ROW_JSON, "table public.t: TRUNCATE: (no-flags)", SERIAL[2], ddl)
    (raw,) = [raw for text in texts for raw in one.feed(text, 100)]
    assert (one.ddl, one.others, raw.count) == (2, 1, 2)


def test_what_is_left_out_is_said_once_and_without_its_text():
    said: list[str] = []
    one = GaussDbAssembler(Style.SERIAL, batch=False, domain=OrderDomain.CSN, note=said.append)
    ddl = "prefix: deparse, lsn: 1, relid 1, cmdtype: Simple, size: 2, content: {}"
    for text in lines(SERIAL[0], ddl, "secret news", "secret again", ddl, "h 0/28 of a new form", "h", SERIAL[2]):
        one.feed(text, 100)
    assert (one.ddl, one.others, one.heartbeats) == (2, 2, 2)
    assert len(said) == 3
    assert not any("secret" in text for text in said)
    one.feed(b"h" + bytes(24), 100)
    assert len(said) == 3, "a heartbeat that can be read is nothing to speak of"


def test_an_option_nobody_knows_is_said_once_and_without_its_value():
    said: list[str] = []
    one = GaussDbAssembler(Style.BINARY, batch=True, domain=OrderDomain.CSN, note=said.append)
    for csn in (7, 8):
        at = csn * 100
        whole = payload([begin(csn, at, xid=5), row("1", at + 10), Commit(lsn=at + 50, xid=5)])
        odd = with_option(with_option(whole, b"B", b"Qsecret"), b"C", b"Zsecret")
        (raw,) = one.feed(odd, at)
        assert (raw.bounds.xid, raw.count) == (5, 1)
    assert [text.partition(";")[0] for text in said] == [
        "option `Q` of BEGIN, and what follows it there, is omitted",
        "option `Z` of COMMIT, and what follows it there, is omitted",
    ]


def with_option(payload: bytes, letter: bytes, option: bytes) -> bytes:
    """A payload of style b, with an option more behind the record of this kind."""
    at = 0
    while payload[at + 12 : at + 13] != letter:
        at += 5 + int.from_bytes(payload[at : at + 4], "big")
    size = int.from_bytes(payload[at : at + 4], "big")
    end = at + 4 + size
    return payload[:at] + (size + len(option)).to_bytes(4, "big") + payload[at + 4 : end] + option + payload[end:]


# ── errors ──


@pytest.mark.parametrize(
    ("records", "kind", "offset"),
    [
        ([row("1")], OutOfSequence, 12),
        ([begin(), begin()], OutOfSequence, 42),
        ([Commit(lsn=1)], OutOfSequence, 12),
        ([*EMPTY, Commit(lsn=1)], OutOfSequence, 65),
        ([begin(), row("1", BIG), Commit(lsn=1)], MalformedMessage, 83),
        ([begin(xid=BIG), Commit(lsn=1)], MalformedMessage, 51),
        ([begin(), Commit(lsn=1, xid=BIG)], MalformedMessage, 42),
        ([begin(), Commit(lsn=BIG)], MalformedMessage, 42),
        ([begin(csn=BIG), Commit(lsn=1)], NoOrderNumber, 42),
        ([begin(), Commit(lsn=1, time="yesterday")], DecodeError, None),
    ],
)
def test_what_is_out_of_sequence_or_too_large_is_refused(records, kind, offset):
    with pytest.raises(kind) as caught:
        assembler().feed(payload(records), 0x1_0000_0010)
    assert caught.value.where == "the message at 1/10"
    assert offset is None or caught.value.offset == offset


@pytest.mark.parametrize("cut", range(1, 140))
def test_a_torn_payload_is_a_decode_error(cut):
    whole = payload(ONE)
    assert len(whole) > 140
    with pytest.raises(DecodeError):
        assembler().feed(whole[:cut], 1)


@pytest.mark.parametrize(
    ("texts", "style", "kind"),
    [
        ([ROW_TEXT], Style.TEXT, OutOfSequence),
        ([PARALLEL[0], PARALLEL[0]], Style.TEXT, OutOfSequence),
        ([PARALLEL[2]], Style.JSON, OutOfSequence),
        ([PARALLEL[0], "what is this"], Style.TEXT, DecodeError),
        (["BEGIN 5", "COMMIT 5"], Style.SERIAL, NoOrderNumber),
        (["BEGIN 5", "ABORT 5"], Style.SERIAL, OutOfSequence),
        (["BEGIN 5"], Style.TEXT, StyleMismatch),
        ([PARALLEL[0]], Style.BINARY, StyleMismatch),
    ],
)
def test_text_out_of_sequence_or_of_another_style_is_refused(texts, style, kind):
    *before, wrong = lines(*texts)
    one = assembler(style, batch=False)
    for text in before:
        one.feed(text, 8)
    with pytest.raises(kind) as caught:
        one.feed(wrong, 16)
    assert caught.value.where == "the message at 0/10"


def test_serial_decoding_without_csn_goes_in_lsn_order():
    one = assembler(Style.SERIAL, OrderDomain.LSN)
    one.feed(b"BEGIN 5", 100)
    (raw,) = one.feed(b"COMMIT 5", 200)
    assert (raw.bounds.position, raw.bounds.csn, raw.count) == (200, None, 0)
