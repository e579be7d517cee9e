"""BEGIN, COMMIT and every other line that is no row, in each dialect a server or a document is known to print."""

import pytest

from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb.records import Begin, Commit, Ddl, Other, Style, TransactionEnd, Truncated
from cdc_lake.decode.gaussdb.serial import line_boundary, micros, records
from cdc_lake.errors import DecodeError, MalformedMessage, UnknownStatement, UnreadableTime
from cdc_lake.model.relation import TableName

TIME = "2024-02-06 07:17:19.45874+08"


def serial(line, lsn=7, **given):
    (record,) = records(line.encode(), Style.SERIAL, batch=False, codec=Codec(), header_lsn=lsn, **given)
    return record


@pytest.mark.parametrize(
    ("line", "record"),
    [
        ("BEGIN", Begin()),
        ("BEGIN 16039", Begin(xid=16039)),
        ("BEGIN ORIGIN_ID 0", Begin(origin_id=0)),
        ("BEGIN 14727 ORIGIN_ID 3", Begin(xid=14727, origin_id=3)),
        ("BEGIN CSN: 2014 first_lsn: 0/2816A28", Begin(csn=2014, first_lsn=0x2816A28)),
        ("BEGIN CSN: 2014 commit_lsn: A/0", Begin(csn=2014, first_lsn=0xA00000000)),
        ("BEGIN CSN: 1 first_lsn: 6D6F6320/656C6269", Begin(csn=1, first_lsn=0x6D6F6320656C6269)),
        ("BEGIN CSN: 1 first_lsn: 0/1 xid: 9", Begin(csn=1, first_lsn=1, xid=9)),
        (f"BEGIN CSN: 1 first_lsn: 0/1 commit_time: {TIME}", Begin(csn=1, first_lsn=1, time=TIME)),
        ("BEGIN CSN: 1 first_lsn: 0/1 origin_id: 0", Begin(csn=1, first_lsn=1, origin_id=0)),
        (
            f"BEGIN CSN: 1 first_lsn: 0/1 xid: 9 commit_time: {TIME} origin_id: 4",
            Begin(csn=1, first_lsn=1, xid=9, time=TIME, origin_id=4),
        ),
        (
            f"BEGIN CSN: 1 first_lsn: 0/1 commit_time: {TIME} user_name: cdc user origin_id: 4",
            Begin(csn=1, first_lsn=1, time=TIME, origin_id=4, user="cdc user"),
        ),
        ("BEGIN CSN: 1 first_lsn: 0/1 node: n1", Begin(csn=1, first_lsn=1)),
        ("COMMIT", Commit()),
        ("commit", Commit()),
        ("COMMIT 16039", Commit(xid=16039)),
        ("COMMIT CSN 1961", Commit(csn=1961)),
        ("COMMIT 5 CSN 18446744073709551615", Commit(xid=5, csn=2**64 - 1)),
        (f"COMMIT (at {TIME}) CSN 1", Commit(csn=1, time=TIME)),
        (f"COMMIT 4 (at {TIME}) CSN 1", Commit(xid=4, csn=1, time=TIME)),
        (f"COMMIT 4 (at {TIME})", Commit(xid=4, time=TIME)),
        ("commit xid: 1004573", Commit(xid=1004573)),
        ("COMMIT XID: 15504", Commit(xid=15504)),
        (f"commit xid: 1 (at {TIME})", Commit(xid=1, time=TIME)),
        (f"commit (at {TIME})", Commit(time=TIME)),
    ],
)
def test_a_boundary_is_read_in_every_dialect(line, record):
    assert line_boundary(line.encode()) == record


@pytest.mark.parametrize("line", ["BEGINNING", "COMMITTED 4", "", "b", "table a b INSERT:", "Commit 4"])
def test_what_only_looks_like_a_boundary_is_none(line):
    assert line_boundary(line.encode()) is None


@pytest.mark.parametrize(
    "line",
    [
        "BEGIN x",
        "BEGIN 1 2",
        "BEGIN CSN: 1",
        "BEGIN CSN: 1 first_lsn: 0/123456789",
        "BEGIN CSN: 18446744073709551616 first_lsn: 0/1",
        "BEGIN CSN: 1 first_lsn: 0/1 xid: 9 xid: 9",
        "BEGIN CSN: 1 first_lsn: 0/1 commit_time: yesterday",
        "BEGIN CSN: 1 first_lsn: 0/1 junk",
        "COMMIT x",
        "COMMIT 1 (at noon)",
        "commit xid: 1 CSN",
    ],
)
def test_a_boundary_that_cannot_be_read_is_an_error_and_no_other_line(line):
    with pytest.raises(MalformedMessage):
        serial(line) if not line.startswith(("BEGIN CSN", "commit")) else line_boundary(line.encode())


def test_a_serial_begin_without_an_lsn_has_none():
    assert serial("BEGIN 5", lsn=0) == Begin(xid=5)
    assert serial("COMMIT 5 CSN 6", lsn=9) == Commit(lsn=9, xid=5, csn=6)


def test_area_decoding_ends_transactions_otherwise():
    assert serial(f"ABORT 5 (at {TIME})") == TransactionEnd("ABORT", lsn=7, xid=5, time=TIME)
    assert serial("PREPARE") == TransactionEnd("PREPARE", lsn=7)


def test_a_truncate_names_its_tables_and_flags():
    one = TableName("public", "t_copy")
    assert serial("table public.t_copy: TRUNCATE: (no-flags)") == Truncated((one,), lsn=7)
    assert serial('table public.t_copy, "A.b"."c, d": TRUNCATE: restart_seqs cascade') == Truncated(
        (one, TableName("A.b", "c, d")), cascade=True, restart_identity=True, lsn=7
    )
    assert serial("table public.t_copy: TRUNCATE: cascade") == Truncated((one,), cascade=True, lsn=7)


def test_ddl_lines_keep_their_line_feeds_and_tails():
    tail = '{"fmt": "x"}\ndecode to: CREATE TABLE t(a int), [owner none]'
    line = f"prefix: deparse, lsn: 62129464, relid 18466, cmdtype: Drop Table End, size: 12, content: {tail}"
    assert serial(line) == Ddl("deparse", "Drop Table End", tail, 18466, lsn=62129464)
    tail = '{"fmt": "x"}\ndecode to : CREATE TABLE t(a int), [owner gaussdb]'
    line = f"message: prefix deparse, relid 18466, cmdtype: Simple, sz: 12 content: {tail}"
    assert serial(line) == Ddl("deparse", "Simple", tail, 18466, lsn=7)


@pytest.mark.parametrize("line", ["", "hello", "prefix: x", "PREPARE TRANSACTION 'g'", "table public.u_pk:", "\x01"])
def test_other_lines_of_serial_decoding_are_noted_and_never_an_error(line):
    assert serial(line) == Other(line, lsn=7)


def test_other_lines_need_not_be_of_the_encoding():
    (record,) = records(b"notice \xff", Style.SERIAL, batch=False, codec=Codec())
    assert record == Other("notice \\xff")


def test_parallel_decoding_has_no_other_lines():
    with pytest.raises(UnknownStatement):
        records(b"notice", Style.TEXT, batch=False, codec=Codec())


def test_sql_decoding_is_refused():
    with pytest.raises(DecodeError, match="sql_decoding"):
        serial("BEGIN 5", plugin="sql_decoding")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01 00:00:00+00", 0),
        ("1970-01-01 08:05:43.000001+08:05:43", 1),
        ("2024-02-06 07:17:19.45874+08", 1707175039458740),
        ("2024-02-29 23:59:59.5-11:30", 1709292599500000),
        ("0001-01-01 00:00:00+00 BC", -62167219200000000),
        ("12024-01-01 00:00:00+00", 317273587200000000),
    ],
)
def test_server_times_become_microseconds(text, expected):
    assert micros(text) == expected


@pytest.mark.parametrize("text", ["", "now", "2024-13-01 00:00:00+00", "2023-02-29 00:00:00+00", "2024-01-01 00:00:00"])
def test_other_times_are_refused(text):
    with pytest.raises(UnreadableTime):
        micros(text)
