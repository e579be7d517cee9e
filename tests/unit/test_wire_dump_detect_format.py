"""Guessing how a payload is written, on payloads of every style."""

from __future__ import annotations

import struct

import pytest

from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.devtools.wire_dump import guess
from cdc_lake.errors import UnknownStatement


def batch(*statements: bytes) -> bytes:
    return b"".join(struct.pack(">IQ", 8 + len(s), 1) + s for s in statements) + bytes(4)


def record(body: bytes) -> bytes:
    return struct.pack(">IQ", 8 + len(body), 1) + body + b"F"


BEGIN = b"B" + struct.pack(">QQ", 5, 1)
ROW = b"\x00\x06public\x00\x01t"
BEAT = b"h" + bytes(24)

CASES = [
    (record(BEGIN), Style.BINARY, True),
    (record(b"C"), Style.BINARY, True),
    (record(b"CX" + bytes(8)), Style.BINARY, True),
    (record(b"I" + ROW), Style.BINARY, True),
    (record(BEAT), Style.BINARY, True),
    (BEAT + b"F", Style.BINARY, False),
    (bytes(4), Style.BINARY, True),
    (batch(b"BEGIN CSN: 1 first_lsn: 0/1", b"commit xid: 5"), Style.TEXT, True),
    (batch(b"COMMIT XID: 5"), Style.TEXT, True),
    (batch(b"commit", b'{"table_name":"public.t"}'), Style.JSON, True),
    (batch(b"table public t INSERT: a[integer]:1"), Style.TEXT, True),
    (b"BEGIN CSN: 1 first_lsn: 0/1", Style.TEXT, False),
    (b"commit", Style.TEXT, False),
    (b"COMMIT XID: 5", Style.TEXT, False),
    (b"table public t INSERT: a[integer]:1", Style.TEXT, False),
    (b"table public table x INSERT INSERT: a[integer]:1", Style.TEXT, False),
    (b"table public.t: INSERT: a[integer]:1", Style.SERIAL, False),
    (b'table "My Schema"."Tab.le ""x""": DELETE: (no-tuple-data)', Style.SERIAL, False),
    (b"table public.a, public.b: TRUNCATE: (no-flags)", Style.SERIAL, False),
    (b"table public.u_pk:", Style.SERIAL, False),
    (b'{"table_name":"public.t"}', Style.JSON, False),
    (b"BEGIN", Style.SERIAL, False),
    (b"BEGIN 5", Style.SERIAL, False),
    (b"COMMIT 5 CSN 6", Style.SERIAL, False),
    (b"ABORT 5", Style.SERIAL, False),
    (b"prefix: deparse, lsn: 1, relid 1, cmdtype: Simple, size: 1, content: x", Style.SERIAL, False),
]


@pytest.mark.parametrize(("payload", "style", "batched"), CASES)
def test_a_payload_says_how_it_is_written(payload, style, batched):
    assert guess(payload) == (style, batched)


def test_a_style_that_is_known_is_kept():
    assert guess(batch(b"commit"), Style.JSON) == (Style.JSON, True)
    assert guess(b"commit", Style.JSON) == (Style.JSON, False)
    assert guess(b"\x00", Style.SERIAL) == (Style.SERIAL, False)


@pytest.mark.parametrize("payload", [b"whatever", b"BEGINNING", b"COMMITTED"])
def test_a_line_of_no_known_kind_is_said(payload):
    with pytest.raises(UnknownStatement):
        guess(payload)


@pytest.mark.parametrize("payload", [b"", b"\x00", b"\xff\xff", bytes(12), bytes(range(40))])
def test_any_bytes_have_an_answer(payload):
    assert guess(payload)[0] is Style.BINARY


def test_what_pg_recvlogical_made_of_style_b_is_named():
    line = b"current_lsn: 0/CFE5C80 BEGIN CSN: 2357 first_lsn: 0/CFE5C80"
    with pytest.raises(UnknownStatement, match="pg_recvlogical") as caught:
        guess(line)
    assert "cdc-lake record" in caught.value.remedy
