"""Payloads: batches, heartbeats in every reading, and styles that were not asked for."""

import struct

import pytest

from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb import framing
from cdc_lake.decode.gaussdb.framing import RecordRun, records_of_batch
from cdc_lake.decode.gaussdb.records import Begin, Commit, Field, Heartbeat, Operation, Row, Style
from cdc_lake.decode.gaussdb.serial import records
from cdc_lake.errors import DecodeError, MalformedMessage, StyleMismatch, TruncatedMessage
from cdc_lake.model.relation import TableName

END = bytes(4)
BEGIN, COMMIT = b"BEGIN CSN: 2014 first_lsn: 0/2816A28", b"commit xid: 15504"
ROW = b"table public t1 INSERT: a[integer]:1"
NUMBERS = struct.pack(">QQq", 0x2816A28, 0x2816C20, 1707203839458)  # milliseconds
HEARTBEAT = b"h" + NUMBERS
BEAT = Heartbeat(0x2816A28, 0x2816C20, 1707203839458000)


def framed(*statements):
    return b"".join(struct.pack(">IQ", len(text) + 8, 5 + at) + text for at, text in enumerate(statements))


def read(payload, style=Style.TEXT, *, batch=True, header_lsn=None):
    return records(payload, style, batch=batch, codec=Codec(), header_lsn=header_lsn)


def test_each_statement_of_a_batch_has_its_own_lsn():
    row = Row(Operation.INSERT, TableName("public", "t1"), new=(Field("a", "1", "integer"),), lsn=6)
    begin = Begin(lsn=5, csn=2014, first_lsn=0x2816A28)
    assert read(framed(BEGIN, ROW, COMMIT) + END, header_lsn=99) == [begin, row, Commit(lsn=7, xid=15504)]
    assert records_of_batch(framed(BEGIN, COMMIT) + END) == [(5, BEGIN), (6, COMMIT)]
    assert read(END) == []


@pytest.mark.parametrize("row", [ROW, b'{"table_name":"public.t1","op_type":"INSERT"}'])
@pytest.mark.parametrize(
    "odd",
    [b"", b"t", b"{", b"table", b"h" * 20, b"commit xid: 5", b"table public t2 INSERT: a[text]:'\0\0table '", None],
)
def test_long_sequences_of_rows_are_runs_of_what_stands_there(row, odd, monkeypatch):
    monkeypatch.setattr(framing, "SMALL", 1)
    statements = [BEGIN, *[row] * 70, odd or b"", *[row] * 64, odd or b"", *[row] * 63, COMMIT, odd or b""]
    payload = framed(*(statements if odd is not None else [row] * 65)) + END
    parts = framing.parts_of_batch(payload)
    runs = [part for part in parts if isinstance(part, RecordRun)]
    assert len(runs) == (1 if odd is None or odd.startswith(b"table ") else 2)
    found = []
    for part in parts:
        found += zip(part.lsn.tolist(), part.rows(), strict=True) if isinstance(part, RecordRun) else [part]
    assert found == records_of_batch(payload)


@pytest.mark.parametrize(
    "broken", [b"\0\0\0\0x", b"", b"\0\0\0\1", framed(BEGIN)[:-1], b"\0\0\0\7" + bytes(8), HEARTBEAT, b"\xff" * 12]
)
def test_what_is_no_whole_batch_has_no_runs(broken, monkeypatch):
    monkeypatch.setattr(framing, "SMALL", 1)
    payload = framed(*[ROW] * 80) + broken

    def given(read):
        try:
            return read(payload)
        except DecodeError as error:
            return error.code, str(error)

    assert given(framing.parts_of_batch) == given(records_of_batch)


def test_an_lsn_that_bronze_cannot_hold_is_left_to_where_it_is_refused(monkeypatch):
    monkeypatch.setattr(framing, "SMALL", 1)
    payload = framed(*[ROW] * 80) + struct.pack(">IQ", 8 + len(ROW), 1 << 63) + ROW + END
    assert framing.parts_of_batch(payload) == records_of_batch(payload)


def test_without_batches_the_header_gives_the_lsn_but_of_no_commit():
    assert read(BEGIN, batch=False, header_lsn=9)[0].lsn == 9
    assert read(ROW, batch=False, header_lsn=9)[0].lsn == 9
    assert read(COMMIT, batch=False, header_lsn=9) == [Commit(xid=15504)]
    assert read(b"COMMIT 1 CSN 2", Style.SERIAL, batch=False, header_lsn=9) == [Commit(lsn=9, csn=2, xid=1)]


@pytest.mark.parametrize("size", range(len(framed(BEGIN, ROW, COMMIT) + END)))
def test_a_batch_that_is_cut_is_an_error(size):
    with pytest.raises(DecodeError):
        read((framed(BEGIN, ROW, COMMIT) + END)[:size])


def test_errors_of_a_batch_count_from_the_start_of_the_payload():
    good = framed(BEGIN)
    with pytest.raises(TruncatedMessage) as short:
        read(good + framed(ROW)[:-1])
    assert short.value.offset == len(good) + 4
    with pytest.raises(MalformedMessage) as long:
        read(good + END + b"x")
    assert long.value.offset == len(good) + 4
    with pytest.raises(MalformedMessage) as little:
        read(good + struct.pack(">IQ", 7, 0) + END)
    assert little.value.offset == len(good)
    with pytest.raises(MalformedMessage) as wrong:
        read(good + framed(ROW + b" b[integer]:x") + END)
    assert wrong.value.offset == len(good) + 12 + len(ROW + b" b[integer]:")


@pytest.mark.parametrize("style", [Style.TEXT, Style.JSON])
@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("mark", [b"", b"F", b"0", b"\0", END])
def test_a_bare_heartbeat_is_read_with_any_end_mark(style, batch, mark):
    assert read(HEARTBEAT + mark, style, batch=batch) == [BEAT]


@pytest.mark.parametrize("mark", [b"", b"0", b"\0", END])
def test_a_framed_heartbeat_may_stand_anywhere_in_a_batch(mark):
    payload = framed(BEGIN, HEARTBEAT, COMMIT, HEARTBEAT) + mark
    beats = [record for record in read(payload) if isinstance(record, Heartbeat)]
    assert [(beat.read, beat.newest, beat.lsn) for beat in beats] == [
        (0x2816A28, 1707203839458000, 6),
        (0x2816A28, 1707203839458000, 8),
    ]
    assert len(read(payload)) == 4


def test_a_heartbeat_without_length_may_stand_in_a_batch():
    assert len(read(framed(BEGIN) + HEARTBEAT + framed(COMMIT) + END)) == 3
    assert len(read(framed(BEGIN, COMMIT) + HEARTBEAT)) == 3


def test_a_heartbeat_in_text_never_fails():
    assert read(b"heartbeat: who knows", batch=False, header_lsn=3) == [Heartbeat(lsn=3)]
    assert read(framed(b"h") + END) == [Heartbeat(lsn=5)]
    # 25 letters are text: no position is that high
    assert read(b"heartbeat: 0/1 0/2 1234567", batch=False) == [Heartbeat()]


@pytest.mark.parametrize(
    ("time", "micros"),
    [(1707203839, 1707203839000000), (1707203839458, 1707203839458000), (1707203839458740,) * 2, (0, 0)],
)
def test_the_unit_of_a_heartbeats_time_is_told_by_its_magnitude(time, micros):
    assert read(b"h" + struct.pack(">QQq", 1, 2, time), batch=False)[0].newest == micros


BINARY = struct.pack(">IQcQQ", 25, 1, b"B", 2014, 1) + b"F"
BINARY_COMMIT = struct.pack(">IQc", 9, 1, b"C") + b"F"
SERIAL, JSON = b"BEGIN 5", b'{"table_name":"public.t"'


@pytest.mark.parametrize(
    ("style", "batch", "payload", "found"),
    [
        (Style.SERIAL, False, BINARY, "style b"),
        (Style.SERIAL, False, BINARY_COMMIT, "style b"),
        (Style.SERIAL, False, framed(BEGIN) + END, "style t or j in batches"),
        (Style.SERIAL, False, BEGIN, "style t or j without batches"),
        (Style.SERIAL, False, COMMIT, "style t or j without batches"),
        (Style.SERIAL, False, b"COMMIT XID: 5", "style t or j without batches"),
        (Style.BINARY, True, b"BEGIN", "serial decoding"),
        (Style.BINARY, True, SERIAL, "serial decoding"),
        (Style.BINARY, True, BEGIN, "style t or j without batches"),
        (Style.BINARY, True, framed(BEGIN) + END, "style t or j in batches"),
        (Style.BINARY, True, framed(b"COMMIT XID: 5") + END, "style t or j in batches"),
        (Style.BINARY, True, ROW, "text"),
        (Style.BINARY, True, JSON, "JSON"),
        (Style.TEXT, True, BINARY, "style b"),
        (Style.TEXT, True, BEGIN, "style t or j without batches"),
        (Style.TEXT, False, framed(BEGIN) + END, "style t or j in batches"),
        (Style.TEXT, False, SERIAL, "serial decoding"),
        (Style.TEXT, False, b"BEGIN ORIGIN_ID 0", "serial decoding"),
        (Style.TEXT, False, b"COMMIT 5 CSN 6", "serial decoding"),
        (Style.TEXT, False, JSON, "JSON"),
        (Style.TEXT, True, framed(JSON) + END, "style j"),
        (Style.JSON, False, ROW, "text"),
        (Style.JSON, True, framed(ROW) + END, "style t"),
        (Style.JSON, True, JSON, "JSON without batches"),
    ],
)
def test_another_style_than_the_one_asked_for_is_named(style, batch, payload, found):
    with pytest.raises(StyleMismatch, match=f"looks like {found}"):
        read(payload, style, batch=batch)


def test_a_binary_heartbeat_is_no_other_style():
    assert read(HEARTBEAT + b"F", Style.BINARY, batch=True)[0].read == 0x2816A28
    framed_beat = framed(HEARTBEAT)[:12] + HEARTBEAT + b"F"
    assert read(framed_beat, Style.BINARY, batch=True)[0].read == 0x2816A28
