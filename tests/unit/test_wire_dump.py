"""Messages as JSON objects: pgoutput's, with names from the relations seen before, and payloads whose format is guessed."""

from __future__ import annotations

import json
import struct

import pytest

from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.devtools.wire_dump import PgoutputDescriber, guess, time_text
from cdc_lake.errors import DecodeError, UnknownStatement
from cdc_lake.model.change import UNCHANGED, Insert, OldKind, Transaction
from cdc_lake.model.relation import ReplicaIdentity
from cdc_lake_testing import messages
from cdc_lake_testing.messages import boundaries, encode_transaction, oid_of, table

ORDERS = table("public.orders", id="int8", note="text", big="text")
OID = oid_of(ORDERS.table)


def read(*payloads: bytes) -> list[dict]:
    describer = PgoutputDescriber()
    found = [describer.describe(payload) for payload in payloads]
    assert json.loads(json.dumps(found)) == found, "plain JSON"
    return found


def test_a_transaction_is_begin_relation_insert_commit():
    one = Transaction(boundaries(0x2816B90, xid=7), (Insert(ORDERS, ("1", None, "")),))
    begin, relation, insert, commit = read(*(payload for _, payload in encode_transaction(one)))
    assert begin == {
        "type": "begin",
        "lsn": "0/2816B60",
        "xid": 7,
        "timestamp": "2026-01-01T00:00:00.000000+00:00",
    }
    assert relation["type"] == "relation"
    assert (relation["schema"], relation["table"], relation["relation_oid"]) == ("public", "orders", OID)
    assert relation["replica_identity"] == "default"
    assert relation["columns"][0] == {"name": "id", "type_oid": 20, "modifier": -1, "key": True}
    assert insert == {
        "type": "insert",
        "relation_oid": OID,
        "schema": "public",
        "table": "orders",
        "new": [
            {"name": "id", "type_oid": 20, "value": "1"},
            {"name": "note", "type_oid": 25, "value": None},
            {"name": "big", "type_oid": 25, "value": ""},
        ],
    }
    assert (commit["type"], commit["lsn"], commit["end_lsn"]) == ("commit", "0/2816B60", "0/2816B90")


def test_unchanged_is_no_value():
    _, update = read(messages.relation(ORDERS), messages.update(ORDERS, ("1", "n", UNCHANGED)))
    assert update["new"][2] == {"name": "big", "type_oid": 25, "unchanged": True}
    assert "old" not in update
    assert "old_kind" not in update


def test_an_old_key_has_only_key_columns():
    _, delete = read(messages.relation(ORDERS), messages.delete(ORDERS, ("1", None, None)))
    assert delete["old_kind"] == "key"
    assert delete["old"] == [{"name": "id", "type_oid": 20, "value": "1"}]
    assert "new" not in delete


def test_a_full_old_row_has_its_nulls():
    full = table("public.f", identity=ReplicaIdentity.FULL, a="int4", b="text")
    _, update = read(messages.relation(full), messages.update(full, ("2", "x"), ("1", None), OldKind.FULL))
    assert update["old_kind"] == "full"
    assert [c["value"] for c in update["old"]] == ["1", None]


def test_a_relation_that_was_not_announced_leaves_its_oid_and_unnamed_values():
    (insert,) = read(messages.insert(ORDERS, ("1", None, UNCHANGED)))
    assert insert["relation_oid"] == OID
    assert "table" not in insert
    assert insert["new"] == [
        {"name": None, "value": "1"},
        {"name": None, "value": None},
        {"name": None, "unchanged": True},
    ]


def test_a_truncate_lists_its_tables():
    other = table("public.lines", id="int8")
    *_, known, one, unknown = read(
        messages.relation(ORDERS),
        messages.relation(other),
        messages.truncate([ORDERS, other], cascade=True),
        messages.truncate([ORDERS], restart_identity=True),
        messages.truncate([table("public.nobody", id="int8")]),
    )
    assert [t["table"] for t in known["tables"]] == ["orders", "lines"]
    assert (known["cascade"], known["restart_identity"]) == (True, False)
    assert (one["table"], one["restart_identity"]) == ("orders", True)
    assert "table" not in unknown["tables"][0]


def test_messages_types_and_origins():
    message, binary, kind, origin = read(
        messages.message("app", "grüße".encode(), 0x16B3748),
        messages.message("app", b"\xff", transactional=False),
        messages.type_name(70001, "public", "mood"),
        messages.origin("other", 16),
    )
    assert message == {
        "type": "message",
        "lsn": "0/16B3748",
        "prefix": "app",
        "transactional": True,
        "content": "grüße",
    }
    assert (binary["content_hex"], binary["transactional"]) == ("ff", False)
    assert kind == {"type": "type", "type_oid": 70001, "schema": "public", "name": "mood"}
    assert origin == {"type": "origin", "lsn": "0/10", "origin": "other"}


def test_a_tuple_that_does_not_fit_its_relation_is_an_error():
    describer = PgoutputDescriber()
    describer.describe(messages.relation(ORDERS))
    with pytest.raises(DecodeError):
        describer.describe(messages.insert(ORDERS, ("1",)))


@pytest.mark.parametrize("payload", [b"", b"Z", b"I", b"I\x00\x00\x00\x01N"])
def test_what_is_no_message_is_an_error(payload):
    with pytest.raises(DecodeError):
        PgoutputDescriber().describe(payload)


def test_a_time_beyond_what_iso_can_write_is_a_number():
    assert time_text(0) == "1970-01-01T00:00:00.000000+00:00"
    assert time_text(-62135596800_000_000) == "0001-01-01T00:00:00.000000+00:00"
    assert time_text(1 << 62) == 1 << 62


# ── protocol versions 2 to 4 ─────────────────────────────────────────────────────────────────────────────────────

AT = 1_000_000  # µs since 2000
WHEN = "2000-01-01T00:00:01.000000+00:00"
LATER = [
    (b"S" + struct.pack(">IB", 7, 1), {"type": "stream_start", "xid": 7, "first": True}),
    (b"E", {"type": "stream_stop"}),
    (b"c" + struct.pack(">IBQQq", 7, 0, 16, 32, AT), {"type": "stream_commit", "lsn": "0/10", "end_lsn": "0/20", "timestamp": WHEN, "xid": 7}),
    (b"A" + struct.pack(">II", 7, 8), {"type": "stream_abort", "xid": 7, "subxid": 8}),
    (b"A" + struct.pack(">IIQq", 7, 8, 16, AT), {"type": "stream_abort", "xid": 7, "subxid": 8, "lsn": "0/10", "timestamp": WHEN}),
    (b"b" + struct.pack(">QQqI", 16, 32, AT, 7) + b"gid\x00", {"type": "begin_prepare", "lsn": "0/10", "end_lsn": "0/20", "timestamp": WHEN, "xid": 7, "gid": "gid"}),
    (b"P" + struct.pack(">BQQqI", 0, 16, 32, AT, 7) + b"gid\x00", {"type": "prepare", "lsn": "0/10", "end_lsn": "0/20", "timestamp": WHEN, "xid": 7, "gid": "gid"}),
    (b"K" + struct.pack(">BQQqI", 0, 16, 32, AT, 7) + b"gid\x00", {"type": "commit_prepared", "lsn": "0/10", "end_lsn": "0/20", "timestamp": WHEN, "xid": 7, "gid": "gid"}),
    (b"r" + struct.pack(">BQQqqI", 0, 16, 32, AT, AT, 7) + b"gid\x00", {"type": "rollback_prepared", "lsn": "0/10", "end_lsn": "0/20", "timestamp": WHEN, "xid": 7, "gid": "gid"}),
    (b"p" + struct.pack(">BQQqI", 0, 16, 32, AT, 7) + b"gid\x00", {"type": "stream_prepare", "lsn": "0/10", "end_lsn": "0/20", "timestamp": WHEN, "xid": 7, "gid": "gid"}),
]  # fmt: skip


@pytest.mark.parametrize(("payload", "expected"), LATER)
def test_messages_of_later_versions(payload, expected):
    assert read(payload) == [expected]
    for size in range(1, len(payload)):
        if payload[:size] != b"E" and not (payload[:1] == b"A" and size == 9):
            with pytest.raises(DecodeError):
                PgoutputDescriber().describe(payload[:size])
    with pytest.raises(DecodeError):
        PgoutputDescriber().describe(payload + b"x" * 30)


def test_messages_inside_a_streamed_block_have_their_transaction():
    def streamed(message: bytes) -> bytes:
        return message[:1] + struct.pack(">I", 9) + message[1:]

    start, stop = LATER[0][0], LATER[1][0]
    _, relation, insert, _, plain = read(
        start,
        streamed(messages.relation(ORDERS)),
        streamed(messages.insert(ORDERS, ("1", None, UNCHANGED))),
        stop,
        messages.insert(ORDERS, ("2", None, "x")),
    )
    assert (relation["table"], relation["xid"]) == ("orders", 9)
    assert (insert["new"][0]["value"], insert["xid"]) == ("1", 9)
    assert (plain["new"][0]["value"], "xid" in plain) == ("2", False)


def test_binary_values_are_given_in_hexadecimal():
    def value(kind: bytes, data: bytes = b"") -> bytes:
        return kind + (struct.pack(">I", len(data)) + data if kind in b"tb" else b"")

    row = struct.pack(">H", 3) + value(b"b", bytes(7) + b"\x01") + value(b"t", b"text") + value(b"u")
    key = struct.pack(">H", 3) + value(b"b", bytes(7) + b"\x02") + value(b"n") + value(b"n")
    head = b"U" + struct.pack(">I", OID)
    _, update, unnamed = read(messages.relation(ORDERS), head + b"K" + key + b"N" + row, b"I" + bytes(4) + b"N" + row)
    assert update["new"] == [
        {"name": "id", "type_oid": 20, "value_hex": "0000000000000001"},
        {"name": "note", "type_oid": 25, "value": "text"},
        {"name": "big", "type_oid": 25, "unchanged": True},
    ]
    assert update["old"] == [{"name": "id", "type_oid": 20, "value_hex": "0000000000000002"}]
    assert unnamed["new"][0] == {"name": None, "value_hex": "0000000000000001"}
    with pytest.raises(DecodeError):
        PgoutputDescriber().describe(b"I" + bytes(4) + b"N" + row[:-3])
    with pytest.raises(DecodeError):
        PgoutputDescriber().describe(b"I" + bytes(4) + b"N" + row.replace(b"u", b"z"))


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
