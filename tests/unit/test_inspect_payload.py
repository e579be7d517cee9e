"""`inspect payload`: what people hand over, as JSON lines. Worked examples and printed samples are golden."""

from __future__ import annotations

import json
import struct
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from cdc_lake.cli.app import app
from cdc_lake.cli.process import run_command
from cdc_lake.devtools.recording import RecordingHeader, RecordingWriter
from cdc_lake.model.change import Insert, Transaction
from cdc_lake_testing import messages
from cdc_lake_testing.messages import boundaries, encode_transaction, table

TIME = "2024-02-06 07:17:19.45874+08"


class Shell:
    """Runs `inspect payload` on payloads, each a file of its own; gives the objects and the exit code."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture) -> None:
        self.folder, self.capture = folder, capture

    def __call__(self, *payloads: bytes | str, options: str = "") -> tuple[list[dict], int]:
        names = []
        for number, payload in enumerate(payloads):
            file = self.folder / f"{number}.bin"
            file.write_bytes(payload if isinstance(payload, bytes) else payload.encode())
            names.append(str(file))
        return self.run(["inspect", "payload", *options.split(), *names])

    def run(self, arguments: list[str]) -> tuple[list[dict], int]:
        code = run_command(app, arguments)
        return [json.loads(line) for line in self.capture.readouterr().out.splitlines()], code


@pytest.fixture
def inspect(tmp_path, capsys) -> Shell:
    return Shell(tmp_path, capsys)


def record(lsn: int, body: bytes, letter: bytes) -> bytes:
    return struct.pack(">IQ", 8 + len(body), lsn) + body + letter


def text(value: str) -> bytes:
    return struct.pack(">I", len(value)) + value.encode()


def name(value: str) -> bytes:
    return struct.pack(">H", len(value.encode())) + value.encode()


def columns(letter: bytes, *given: tuple[str, int, str | None]) -> bytes:
    body = letter + struct.pack(">H", len(given))
    for column, oid, value in given:
        body += name(column) + struct.pack(">I", oid)
        body += b"\xff\xff\xff\xff" if value is None else text(value)
    return body


T1 = name("public") + name("t1")
ROW = (("a", 23, "1"), ("b", 23, "2"), ("c", 25, "hello"))

EXAMPLE = (
    record(0x2816A28, b"B" + struct.pack(">QQ", 2014, 0x2816A28) + b"T" + text(TIME) + b"N" + text("cdc_user"), b"P")
    + record(0x2816A28, b"I" + T1 + columns(b"N", *ROW), b"P")
    + record(0x2816B90, b"C" + b"X" + struct.pack(">Q", 15504) + b"T" + text(TIME), b"F")
)
"""A whole transaction in style b, 197 bytes, with the option N of GaussDB."""


def test_the_worked_transaction_of_style_b(inspect):
    assert EXAMPLE[:13].hex(" ") == "00 00 00 47 00 00 00 00 02 81 6a 28 42"
    assert EXAMPLE[0x4B:0x59].hex(" ") == "50 00 00 00 40 00 00 00 00 02 81 6a 28 49"
    assert (len(EXAMPLE), EXAMPLE[0x90:0x95].hex()) == (0xC9, "5000000033")
    assert inspect(EXAMPLE, options="--plugin mppdb_decoding --style b") == (
        [
            {
                "type": "begin",
                "lsn": "0/2816A28",
                "csn": 2014,
                "first_lsn": "0/2816A28",
                "timestamp": TIME,
                "user": "cdc_user",
            },
            {
                "type": "insert",
                "lsn": "0/2816A28",
                "schema": "public",
                "table": "t1",
                "new": [
                    {"name": "a", "type_oid": 23, "value": "1"},
                    {"name": "b", "type_oid": 23, "value": "2"},
                    {"name": "c", "type_oid": 25, "value": "hello"},
                ],
            },
            {"type": "commit", "lsn": "0/2816B90", "xid": 15504, "timestamp": TIME},
        ],
        0,
    )


def test_the_style_and_plugin_need_not_be_said(inspect):
    assert inspect(EXAMPLE) == inspect(EXAMPLE, options="--plugin mppdb_decoding --style b --batch 1")


@pytest.mark.parametrize(
    ("payload", "extra"),
    [
        ("00000019 0000000002816a28 42 00000000000007de 0000000002816a28 46", {}),
        ("00000022 0000000002816a28 42 00000000000007de 0000000002816a28 58 0000000000003c90 46", {"xid": 15504}),
        ("00000022 0000000002816a28 42 00000000000007de 0000000002816a28 58 0000000000003c90 50 00000000", {"xid": 15504}),
        ("0000001e 0000000002816a28 42 00000000000007de 0000000002816a28 4f 00000007 46", {"origin_id": 7}),
    ],
)  # fmt: skip
def test_begin_with_its_options(inspect, payload, extra):
    expected = {"type": "begin", "lsn": "0/2816A28", "csn": 2014, "first_lsn": "0/2816A28", **extra}
    assert inspect(bytes.fromhex(payload)) == ([expected], 0)


def test_the_worked_update_new_row_first(inspect):
    new = (("a", 23, "1"), ("b", 23, "5"), ("c", 25, "hello"))
    payload = record(0x2816C20, b"U" + T1 + columns(b"N", *new) + columns(b"O", ("a", 23, "1")), b"F")
    assert (len(payload), payload[0x44:0x47].hex()) == (0x54, "4f0001")
    (update,), code = inspect(payload)
    assert (update["type"], update["lsn"], code) == ("update", "0/2816C20", 0)
    assert [c["value"] for c in update["new"]] == ["1", "5", "hello"]
    assert update["old"] == [{"name": "a", "type_oid": 23, "value": "1"}]


def test_the_worked_delete_with_and_without_key(inspect):
    with_key = record(0x2816D60, b"D" + T1 + columns(b"O", ("a", 23, "1")), b"F")
    without = record(0x2816D60, b"D" + T1, b"F")
    assert (with_key[:4].hex(), without[:4].hex()) == ("00000024", "00000015")
    (one, none), _ = inspect(with_key, without)
    assert one["old"] == [{"name": "a", "type_oid": 23, "value": "1"}]
    assert none == {"type": "delete", "lsn": "0/2816D60", "schema": "public", "table": "t1"}


def test_null_is_not_the_empty_string_and_a_zero_length_ends(inspect):
    payload = record(0x3000028, b"I" + T1 + columns(b"N", ("n", 25, None), ("e", 25, "")), b"P") + bytes(4)
    assert len(payload) == 0x37
    (insert,), code = inspect(payload)
    assert [c["value"] for c in insert["new"]] == [None, ""]
    assert code == 0


BEAT = bytes.fromhex("68 0000000002816a28 0000000002816c20 0000018d7b8fd1e2 46")
FRAMED_BEAT = bytes.fromhex("00000021 0000000002816a28") + BEAT


@pytest.mark.parametrize("payload", [BEAT, FRAMED_BEAT])
def test_the_worked_heartbeat_bare_and_framed(inspect, payload):
    assert inspect(payload) == (
        [
            {
                "type": "heartbeat",
                "lsn": "0/2816A28",
                "read": 0x2816A28,
                "flushed": 0x2816C20,
                "timestamp": "2024-02-05T23:17:19.458000+00:00",
            }
        ],
        0,
    )


def test_a_batch_of_style_t(inspect):
    lines = [
        "BEGIN CSN: 2014 first_lsn: 0/2816A28",
        "table public t1 INSERT: a[integer]:1 b[integer]:2 c[text]:'hello'",
    ]
    payload = b"".join(struct.pack(">IQ", 8 + len(line), 0x2816A28) + line.encode() for line in lines) + bytes(4)
    assert payload[:4].hex() == "0000002c"
    assert payload[0x30:0x34].hex() == "00000049"
    (begin, insert), code = inspect(payload)
    assert begin == {"type": "begin", "lsn": "0/2816A28", "csn": 2014, "first_lsn": "0/2816A28"}
    assert insert["new"][2] == {"name": "c", "type": "text", "value": "hello"}
    assert inspect(payload, options="--style t --batch 1") == ([begin, insert], code)


JSON_UPDATE = (
    '{"table_name":"public.t1","op_type":"UPDATE","columns_name":["a","b","c"],'
    '"columns_type":["integer","integer","text"],"columns_val":["1","5","\'hello\'"],'
    '"old_keys_name":["a"],"old_keys_type":["integer"],"old_keys_val":["1"]}'
)


def new(*values: str | None, kinds: tuple[str, ...] = ("integer", "integer", "text")) -> list[dict]:
    return [{"name": n, "type": k, "value": v} for n, k, v in zip("abc", kinds, values, strict=True)]


OLD_A = [{"name": "a", "type": "integer", "value": "1"}]
IN_T1 = {"schema": "public", "table": "t1"}

PRINTED = [
    # GaussDB, parallel text
    ("BEGIN CSN: 2014 first_lsn: 0/2816A28", {"type": "begin", "csn": 2014, "first_lsn": "0/2816A28"}),
    ("table public t1 INSERT: a[integer]:1 b[integer]:2 c[text]:'hello'", {"type": "insert", **IN_T1, "new": new("1", "2", "hello")}),
    ("COMMIT XID: 15504", {"type": "commit", "xid": 15504}),
    ("table public t1 UPDATE: old-key: a[integer]:1 new-tuple: a[integer]:1 b[integer]:5 c[text]:'hello'", {"type": "update", **IN_T1, "new": new("1", "5", "hello"), "old": OLD_A}),
    ("table public t1 DELETE: a[integer]:1", {"type": "delete", **IN_T1, "old": OLD_A}),
    ("table public t1 DELETE: (no-tuple-data)", {"type": "delete", **IN_T1}),
    # parallel, openGauss
    ("BEGIN CSN: 951909 first_lsn: 5/59825858", {"type": "begin", "csn": 951909, "first_lsn": "5/59825858"}),
    ("BEGIN CSN: 1 first_lsn: 0/2F xid: 7 commit_time: 2024-02-06 07:17:19.45874+08 origin_id: 3", {"type": "begin", "csn": 1, "first_lsn": "0/2F", "xid": 7, "timestamp": TIME, "origin_id": 3}),
    ("BEGIN CSN: 799 commit_lsn: 0/23225A0", {"type": "begin", "csn": 799, "first_lsn": "0/23225A0"}),
    ("commit xid: 1004573", {"type": "commit", "xid": 1004573}),
    ("commit xid: 7 (at 2024-02-06 07:17:19.45874+08)", {"type": "commit", "xid": 7, "timestamp": TIME}),
    ("commit", {"type": "commit"}),
    # JSON
    (JSON_UPDATE, {"type": "update", **IN_T1, "new": new("1", "5", "hello"), "old": OLD_A}),
    # serial
    ("BEGIN 1004573", {"type": "begin", "xid": 1004573}),
    ("BEGIN", {"type": "begin"}),
    ("BEGIN 5 ORIGIN_ID 1", {"type": "begin", "xid": 5, "origin_id": 1}),
    ("COMMIT 1004573 (at 2024-03-14 20:31:12.098179+08) CSN 951909", {"type": "commit", "csn": 951909, "xid": 1004573, "timestamp": "2024-03-14 20:31:12.098179+08"}),
    ("COMMIT 1010023 CSN 1010022", {"type": "commit", "csn": 1010022, "xid": 1010023}),
    ("COMMIT CSN 5", {"type": "commit", "csn": 5}),
    ("COMMIT 16039", {"type": "commit", "xid": 16039}),
    ("ABORT 12", {"type": "abort", "xid": 12}),
    ("PREPARE 12 (at 2024-02-06 07:17:19.45874+08)", {"type": "prepare", "xid": 12, "timestamp": TIME}),
    ("table public.t_copy: TRUNCATE: (no-flags)", {"type": "truncate", "schema": "public", "table": "t_copy", "tables": [{"schema": "public", "table": "t_copy"}], "cascade": False, "restart_identity": False}),
    ('table public.a, "S".b: TRUNCATE: restart_seqs cascade', {"type": "truncate", "tables": [{"schema": "public", "table": "a"}, {"schema": "S", "table": "b"}], "cascade": True, "restart_identity": True}),
]  # fmt: skip


@pytest.mark.parametrize(("payload", "expected"), PRINTED)
def test_a_printed_line(inspect, payload, expected):
    assert inspect(payload) == ([expected], 0)
    assert inspect(payload + "\n") == ([expected], 0), "as an editor saves it"


def test_a_transaction_printed_on_several_lines(inspect):
    lines = [payload for payload, _ in PRINTED[:3]]
    assert inspect("\n".join(lines) + "\n") == ([expected for _, expected in PRINTED[:3]], 0)


PEEKED = """\
0/140001C8{0}16020{0}BEGIN 16020
0/140001C8{0}16020{0}table public.t1: INSERT: a[integer]:14 b[text]:'two
lines'
0/14000538{0}16020{0}COMMIT 16020 (at 2024-02-05 14:46:35.203057+08) CSN 2155
"""


@pytest.mark.parametrize("between", ["\t", " | ", "|"])
def test_rows_of_the_peek_function_have_their_location(inspect, between):
    (begin, insert, commit), code = inspect(PEEKED.format(between), options="--plugin test_decoding")
    assert (begin, code) == ({"type": "begin", "lsn": "0/140001C8", "xid": 16020}, 0)
    assert [c["value"] for c in insert["new"]] == ["14", "two\nlines"]
    assert (commit["lsn"], commit["csn"]) == ("0/14000538", 2155)


@pytest.mark.parametrize(
    "value", ["one\nBEGIN 5\nCOMMIT 5", "\ntable public t INSERT: a[integer]:1", "0/10\t5\tBEGIN 5\n"]
)
def test_a_value_may_hold_any_line(inspect, value):
    row = f"table public t INSERT: a[text]:'{value}'"
    (insert,), code = inspect(row)
    assert (insert["new"][0]["value"], code) == (value, 0)
    found, code = inspect(f"BEGIN CSN: 1 first_lsn: 0/1\n{row}\ncommit\n")
    assert ([f["type"] for f in found], code) == (["begin", "insert", "commit"], 0)
    assert found[1]["new"][0]["value"] == value
    message = f"message: transactional: 1 prefix: p, sz: {len(value)} content:{value}"
    (found,), code = inspect(message, options="--plugin test_decoding")
    assert (found["content"], code) == (value, 0)


SALES = (
    '{"table_name":"public.t_sales","op_type":"INSERT","columns_name":["id","goods_name","sales_date"],'
    '"columns_type":["integer","character","timestamp without time zone"],'
    '"columns_val":["1","\'aq                  \'","\'2024-03-14 20:30:58\'"],'
    '"old_keys_name":[],"old_keys_type":[],"old_keys_val":[]}'
)


@pytest.mark.parametrize(
    ("begin", "commit", "csn"),
    [
        ("BEGIN CSN: 951909 first_lsn: 5/59825858", "commit xid: 1004573", 951909),
        ("BEGIN 1004573", "COMMIT 1004573 (at 2024-03-14 20:31:12.098179+08) CSN 951909", 951909),
        ("BEGIN 1010024", "COMMIT 1010024 CSN 1010023", 1010023),
    ],
)
def test_a_transaction_in_json_as_documents_print_it(inspect, begin, commit, csn):
    (first, insert, last), code = inspect(f"{begin}\n{SALES}\n{commit}\n")
    assert (first["type"], insert["type"], last["type"], code) == ("begin", "insert", "commit", 0)
    assert csn in (first.get("csn"), last.get("csn"))
    assert [c["value"] for c in insert["new"]] == ["1", "aq                  ", "2024-03-14 20:30:58"]
    assert "old" not in insert


SERIAL_TEXT = [
    ("BEGIN 16039", {"type": "begin", "xid": 16039}),
    ("table public.t: INSERT: a[integer]:4 b[integer]:null", {"type": "insert", "schema": "public", "table": "t", "new": [{"name": "a", "type": "integer", "value": "4"}, {"name": "b", "type": "integer", "value": None}]}),
    ("table public.t: UPDATE: a[integer]:4 b[text]:unchanged-toast-datum", {"type": "update", "schema": "public", "table": "t", "new": [{"name": "a", "type": "integer", "value": "4"}, {"name": "b", "type": "text", "unchanged": True}]}),
    ("table public.t: UPDATE: a[integer]:4 b[text]:'unchanged-toast-datum'", {"type": "update", "schema": "public", "table": "t", "new": [{"name": "a", "type": "integer", "value": "4"}, {"name": "b", "type": "text", "value": "unchanged-toast-datum"}]}),
    ("table public.t: UPDATE: old-key: a[integer]:1 new-tuple: a[integer]:4 b[bit]:B'101'", {"type": "update", "schema": "public", "table": "t", "new": [{"name": "a", "type": "integer", "value": "4"}, {"name": "b", "type": "bit", "value": "101"}], "old": [{"name": "a", "type": "integer", "value": "1"}]}),
    ("table public.t: DELETE: (no-tuple-data)", {"type": "delete", "schema": "public", "table": "t"}),
    ('table "My Schema"."Tab.le ""x""": DELETE: "a.b"[integer[]]:\'{1,2}\' b[boolean]:true', {"type": "delete", "schema": "My Schema", "table": 'Tab.le "x"', "old": [{"name": "a.b", "type": "integer[]", "value": "{1,2}"}, {"name": "b", "type": "boolean", "value": "t"}]}),
    ("table public.a, public.b: TRUNCATE: (no-flags)", {"type": "truncate", "tables": [{"schema": "public", "table": "a"}, {"schema": "public", "table": "b"}], "cascade": False, "restart_identity": False}),
    ("COMMIT 16039", {"type": "commit", "xid": 16039}),
    ("COMMIT 693 (at 2024-02-06 07:17:19.45874+08)", {"type": "commit", "xid": 693, "timestamp": TIME}),
    # PostgreSQL only
    ("message: transactional: 1 prefix: test, sz: 4 content:msg1", {"type": "message", "prefix": "test", "transactional": True, "content": "msg1"}),
    ("PREPARE TRANSACTION 'test_prepared#1', txid 529", {"type": "prepare", "gid": "test_prepared#1", "xid": 529}),
    ("COMMIT PREPARED 'test_prepared#1', txid 529", {"type": "commit_prepared", "gid": "test_prepared#1", "xid": 529}),
]  # fmt: skip


@pytest.mark.parametrize(("payload", "expected"), SERIAL_TEXT)
def test_a_line_of_test_decoding(inspect, payload, expected):
    assert inspect(payload, options="--plugin test_decoding") == ([expected], 0)


@pytest.mark.parametrize(("payload", "expected"), [*SERIAL_TEXT[:3], *PRINTED[:3]])
def test_text_of_test_decoding_has_two_forms(inspect, payload, expected):
    assert inspect(payload, options="--plugin test_decoding --style t") == ([expected], 0)


def test_a_ddl_line_keeps_its_line_feed(inspect):
    content = '{"fmt": "CREATE TABLE"}\ndecode to: CREATE TABLE public.t (a int), [owner none]'
    line = f"prefix: deparse, lsn: 58720256, relid 16384, cmdtype: Simple, size: 23, content: {content}"
    (ddl,), code = inspect(line)
    assert (ddl["type"], ddl["command"], ddl["relation_oid"], code) == ("ddl", "Simple", 16384, 0)
    assert ddl["lsn"] == "0/3800000"
    assert ddl["content"] == content


ORDERS = table("public.orders", id="int8", note="text")


def test_pgoutput_names_columns_over_files(inspect):
    one = Transaction(boundaries(1000), (Insert(ORDERS, ("1", None)),))
    given = [payload for _, payload in encode_transaction(one)]
    found, code = inspect(*given, options="--plugin pgoutput")
    assert inspect(*given, options="--plugin pgoutput --style serial --batch 0") == (found, code)
    assert ([f["type"] for f in found], code) == (["begin", "relation", "insert", "commit"], 0)
    assert found[2]["new"][1] == {"name": "note", "type_oid": 25, "value": None}


@pytest.mark.parametrize("plugin", ["pgoutput", "mppdb_decoding"])
@pytest.mark.parametrize("printed", ["psql", "psql with crlf", "bars", "tabs", "digits", "escaped digits"])
def test_rows_of_peek_binary_changes_are_read_as_they_are_printed(inspect, plugin, printed):
    """`pg_logical_slot_peek_binary_changes` gives bytea, of which psql prints hexadecimal digits."""
    if plugin == "pgoutput":
        one = Transaction(boundaries(1000), (Insert(ORDERS, ("1", "a")),))
        payloads = [payload for _, payload in encode_transaction(one)]
    else:
        payloads = [EXAMPLE]
    expected, code = inspect(*payloads, options=f"--plugin {plugin}")
    assert code == 0
    assert expected
    if "digits" in printed:
        escape = "\\x" if printed == "escaped digits" else ""
        found, code = inspect(*(f"{escape}{one.hex()}\n" for one in payloads), options=f"--plugin {plugin}")
    else:
        between = "\t" if printed == "tabs" else " | "
        rows = [f" 0/16B3748{between}763{between}\\x{one.hex()}" for one in payloads]
        lines = ["    lsn    | xid |   data", "-----------+-----+---------", *rows, f"({len(rows)} rows)", ""]
        end = "\r\n" if "crlf" in printed else "\n"
        found, code = inspect(end.join(lines if "psql" in printed else rows) + end, options=f"--plugin {plugin}")
    assert code == 0
    told = ("lsn", "xid")
    assert [{k: v for k, v in one.items() if k not in told} for one in found] == [
        {k: v for k, v in one.items() if k not in told} for one in expected
    ]


def test_what_psql_prints_around_rows_of_text_is_left_out(inspect):
    rows = [
        " 0/16B3748 | 763 | BEGIN 763",
        " 0/16B3748 | 763 | table public.t: INSERT: id[integer]:1",
        " 0/16B37E0 | 763 | COMMIT 763",
    ]
    printed = "\n".join(["    lsn    | xid |  data", "-----------+-----+--------", *rows, "(3 rows)", "", ""])
    assert inspect(printed, options="--plugin test_decoding") == inspect(
        "\n".join(rows), options="--plugin test_decoding"
    )
    found, code = inspect(printed, options="--plugin test_decoding")
    assert [one["type"] for one in found] == ["begin", "insert", "commit"]
    assert code == 0


def test_what_cannot_be_decoded_is_an_error_object_and_the_rest_is_read(inspect):
    found, code = inspect(EXAMPLE[:100], EXAMPLE, b"", options="--style b")
    assert code == 1
    assert [f["type"] for f in found] == ["error", "begin", "insert", "commit", "error"]
    assert found[0]["file"].endswith("0.bin")
    assert found[0]["code"].startswith("DEC3")
    assert 0 < found[0]["offset"] <= 100
    assert found[0]["message"]


@pytest.mark.parametrize("payload", [b"", b"\x00", b"\x00\x00\x00\x09", bytes(range(256)), b"\xff" * 40])
@pytest.mark.parametrize("options", ["", "--style t", "--style j --batch 1", "--plugin pgoutput"])
def test_rubbish_is_an_error_object_never_a_traceback(inspect, payload, options):
    found, code = inspect(payload, options=options)
    assert (code, [f["type"] for f in found]) == (1, ["error"])


def test_a_file_that_is_not_there_is_an_error_object(inspect, tmp_path):
    found, code = inspect.run(["inspect", "payload", str(tmp_path / "none.bin")])
    assert (code, found[0]["type"], found[0]["file"]) == (1, "error", str(tmp_path / "none.bin"))


def test_a_line_nobody_knows_is_other_where_serial_decoding_was_said(inspect):
    assert inspect("whatever", options="--style serial") == ([{"type": "other", "text": "whatever"}], 0)
    (error,), code = inspect("whatever")
    assert (error["type"], error["code"], code) == ("error", "DEC313", 1)


def test_a_wrong_style_is_said(inspect):
    (error,), code = inspect("BEGIN CSN: 2014 first_lsn: 0/2816A28", options="--style b")
    assert (error["type"], code) == ("error", 1)


def test_the_header_may_be_left_on(inspect):
    body = struct.pack(">cQQq", b"w", 0x10, 0x10, 0) + b"BEGIN 5"
    assert inspect(body) == ([{"type": "begin", "lsn": "0/10", "xid": 5}], 0)


def test_a_recording_is_read_as_such_and_errors_name_the_entry(inspect, tmp_path):
    header = struct.Struct(">cQQq")
    bodies = [
        header.pack(b"w", 0x10, 0x10, 0) + b"BEGIN 5",
        struct.pack("<cQiiqBB6s", b"k", 0x11, 1, 1, 5, 0, 0, bytes(6)),
        header.pack(b"w", 0x12, 0x12, 0) + b"COMMIT x",
        header.pack(b"w", 0x13, 0x13, 0) + b"COMMIT 5 CSN 6",
    ]
    bare = b"".join(struct.pack(">I", len(body)) + body for body in bodies)
    found, code = inspect(bare)
    assert (code, [(f["type"], f.get("lsn"), f.get("entry")) for f in found]) == (
        1,
        [("begin", "0/10", None), ("error", None, 3), ("commit", "0/13", None)],
    )
    with RecordingWriter(tmp_path / "a.rec", RecordingHeader("opengauss", "mppdb_decoding")) as writer:
        for body in bodies:
            writer.append(body)
    again, _ = inspect.run(["inspect", "payload", str(tmp_path / "a.rec")])
    assert [f["type"] for f in again] == ["begin", "error", "commit"]


def test_a_recording_says_its_plugin_itself(inspect, tmp_path):
    one = Transaction(boundaries(1000), (Insert(ORDERS, ("1", None)),))
    with RecordingWriter(tmp_path / "a.rec", RecordingHeader("postgres", "pgoutput")) as writer:
        for lsn, payload in encode_transaction(one):
            writer.append(struct.pack(">cQQq", b"w", lsn, lsn, 0) + payload)
    found, code = inspect.run(["inspect", "payload", str(tmp_path / "a.rec")])
    assert (code, [f["type"] for f in found]) == (0, ["begin", "relation", "insert", "commit"])


def test_standard_input_is_a_file_too(inspect, monkeypatch):
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(EXAMPLE)))
    found, code = inspect.run(["inspect", "payload", "-"])
    assert (len(found), code) == (3, 0)


def test_another_encoding(inspect):
    row = b"table public t INSERT: a[text]:'" + "中文".encode("gbk") + b"'"
    (insert,), code = inspect(row, options="--encoding GBK")
    assert (insert["new"][0]["value"], code) == ("中文", 0)
    (error,), code = inspect(row)
    assert (error["type"], code) == ("error", 1)
    (insert,), code = inspect(row, options="--encoding-errors hex")
    assert (insert["new"][0]["value"], code) == ("not-text:d6d0cec4", 0)


@pytest.mark.parametrize(
    "options", ["--plugin pgoutput --style b", "--plugin pgoutput --encoding GBK", "--style x", "--plugin wal2json"]
)
def test_options_that_do_not_go_together_are_usage_errors(inspect, options):
    assert inspect(EXAMPLE, options=options) == ([], 2)


def test_a_replay_counts_what_a_recording_holds(tmp_path, capsys):
    path = tmp_path / "a.rec"
    with RecordingWriter(path, RecordingHeader("postgres", "pgoutput")) as writer:
        for position in (1000, 2000):
            one = Transaction(boundaries(position), (Insert(ORDERS, ("1", None)), Insert(ORDERS, ("2", ""))))
            for lsn, payload in encode_transaction(one):
                writer.append(struct.pack(">cQQq", b"w", lsn, lsn, 0) + payload)
        writer.append(struct.pack(">cQQq", b"w", 1, 1, 0) + messages.begin(3000))
        writer.append(struct.pack(">cQQq", b"w", 1, 1, 0) + messages.insert(ORDERS, ("3", None)))
    assert run_command(app, ["replay", str(path), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["recordings"]
    assert (found["transactions"], found["changes"], found["open_changes"]) == (2, {"public.orders": {"insert": 4}}, 1)
    assert run_command(app, ["replay", str(path)]) == 0
    assert "ends inside a transaction" in capsys.readouterr().out


def test_a_replay_stops_where_the_stream_is_none(tmp_path, capsys):
    path = tmp_path / "a.rec"
    with RecordingWriter(path, RecordingHeader("opengauss", "mppdb_decoding")) as writer:
        writer.append(struct.pack(">cQQq", b"w", 1, 1, 0) + b"COMMIT 5 CSN 6")
    assert run_command(app, ["replay", str(path)]) == 1
    said = capsys.readouterr().err
    assert "DEC305" in said
    assert "entry 1" in said


@pytest.mark.parametrize("between", ["\t", " | "])
def test_rows_of_area_decoding_are_told_apart_by_the_column_of_transactions(inspect, between):
    """`pg_logical_get_area_changes` prints no BEGIN, mixes transactions, and shows those that were aborted."""
    lines = (
        ("0/28", "5", "table public.t: INSERT: a[integer]:1"),
        ("0/30", "6", "table public.t: INSERT: a[integer]:2"),
        ("0/38", "6", "ABORT 6 (at 2024-03-14 20:31:12+08)"),
        ("0/40", "5", "COMMIT (at 2024-03-14 20:31:12+08) CSN 9"),
        ("0/48", "7", "PREPARE"),
        ("0/50", "8", "BEGIN 8"),
        ("0/50", "8", "table public.t: INSERT: a[integer]:3"),
        ("0/58", "8", "COMMIT 8"),
    )
    found, code = inspect("\n".join(between.join(line) for line in lines) + "\n", options="--style serial")
    assert code == 0
    assert [(one["type"], one["lsn"], one.get("xid")) for one in found] == [
        ("insert", "0/28", 5),
        ("insert", "0/30", 6),
        ("abort", "0/38", 6),
        ("commit", "0/40", 5),
        ("prepare", "0/48", 7),
        ("begin", "0/50", 8),
        ("insert", "0/50", None),
        ("commit", "0/58", 8),
    ]


def test_an_option_that_nobody_knows_is_shown_by_its_letter(inspect):
    begin, commit = b"B" + struct.pack(">QQ", 2014, 100), b"C" + b"Qsecret"
    records, code = inspect(record(100, begin + b"Zsecret", b"P") + record(200, commit, b"F"))
    assert ([one["skipped_option"] for one in records], code) == (["Z", "Q"], 0)
