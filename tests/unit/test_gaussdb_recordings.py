"""What running servers sent: every recorded stream decodes, and every style says the same."""

from __future__ import annotations

import csv
import io
import lzma
import struct
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb.records import Begin, Commit, Ddl, Other, Record, Row, Style, Truncated
from cdc_lake.decode.gaussdb.serial import micros, records
from cdc_lake.model.relation import TableName

DATA = Path(__file__).parents[1] / "data" / "opengauss"
VERSIONS = ("6.0.2", "5.0.3", "3.0.0")
CODEC = Codec()
SPECIAL = TableName("My Schema", 'Tab.le "x"')  # the one table whose raw head can be read in two ways
TABLES = frozenset({SPECIAL})
# transactions 6.0.2 tells only in serial decoding: rows after DDL, clean speculative inserts (by table)
SERIAL_ONLY = {"t_copy", "t_ddl2", "t_newintx", "t_other_in_tx", "t_pk", "t_ctas", "u_nokey", "mvw", "t_wide"}
WITHHELD = {"6.0.2": SERIAL_ONLY, "5.0.3": set(), "3.0.0": {"t_nokey", "t_ridnothing", "t_ups"}}


@cache
def archive(version: str) -> dict[str, bytes]:
    """The streams of a version by name."""
    with tarfile.open(DATA / version / "streams.tar.xz") as tar:
        members = [member for member in tar.getmembers() if member.isfile()]
        return {Path(member.name).stem: tar.extractfile(member).read() for member in members}


def payloads(stream: bytes) -> Iterator[tuple[int, bytes]]:
    """Header LSN and payload of each `w`."""
    at = 0
    while at < len(stream):
        (size,) = struct.unpack_from(">I", stream, at)
        body = stream[at + 4 : at + 4 + size]
        at += 4 + size
        if body[:1] == b"w":
            yield struct.unpack_from(">Q", body, 1)[0], body[25:]


def how(name: str) -> tuple[Style, bool]:
    """Style and batches of a stream, by its name."""
    parts = name.split("_")
    if "ser" in parts or parts[-2:] == ["test", "decoding"]:
        return Style.SERIAL, False
    letter = next(part for part in parts if part in ("b", "t", "j", "tb1"))
    return Style(letter[0]), "batch1" in parts or letter == "tb1"


@cache
def read(version: str, name: str) -> list[Record]:
    style, batch = how(name)
    found: list[Record] = []
    for lsn, payload in payloads(archive(version)[name]):
        found += records(payload, style, batch=batch, codec=CODEC, header_lsn=lsn, tables=TABLES)
    return found


def rows(version: str, name: str, *, fake_oids: bool = False) -> list[tuple[object, ...]]:
    """Rows as operation, table, and names with values; types have no common form in binary and text."""
    found = [record for record in read(version, name) if isinstance(record, Row)]
    return [(row.operation, row.table, said(row.new, fake_oids), said(row.old, fake_oids)) for row in found]


def said(fields, fake_oids):
    """The text formats of 3.0.0 print an `oid` in front: of tables that have one, and in ustore storage made up."""
    if fields is None:
        return None
    made_up = fake_oids and fields and (fields[0].name, fields[0].type_name) == ("oid", "oid")
    return tuple((field.name, field.value) for field in fields[1 if made_up else 0 :])


def transactions(version: str, name: str) -> dict[int, list[tuple[object, ...]]]:
    found, current = {}, []
    for record in read(version, name):
        match record:
            case Begin():
                current = []
            case Row():
                current.append((record.operation, record.table, said(record.new, False), said(record.old, False)))
            case Commit():
                found[record.xid] = current
    return found


STREAMS = [(version, name) for version in VERSIONS for name in sorted(archive(version))]


@pytest.mark.parametrize(("version", "name"), STREAMS)
def test_every_recorded_stream_decodes_to_whole_transactions(version, name):
    open_transaction, count = False, 0
    for record in read(version, name):
        match record:
            case Begin():
                assert not open_transaction
                open_transaction = True
                assert record.time is None or micros(record.time) > 0
            case Commit():
                assert open_transaction
                open_transaction, count = False, count + 1
                assert record.time is None or micros(record.time) > 0
            case Other():
                # test_decoding of 3.0.0 withholds the rows of ustore tables
                assert (version, name) == ("3.0.0", "og_a_test_decoding")
                assert record.text.startswith("table public.u_")
            case _:
                assert open_transaction
    assert count
    assert not open_transaction


@pytest.mark.parametrize("version", VERSIONS)
def test_parallel_styles_say_the_same_rows(version):
    binary = rows(version, "og_a_par2_b_batch1")
    assert len(binary) > 8000
    assert rows(version, "og_a_par2_j_batch1") == binary
    text = rows(version, "og_a_par2_t_batch1", fake_oids=version == "3.0.0")
    # in style t 3.0.0 leaves out the columns of rows in ustore storage before a DDL statement of their transaction
    empty = [at for at, row in enumerate(text) if row[2] == ()]
    assert [str(text[at][1]) for at in empty] == (["public.u_pk", "public.u_nokey"] if version == "3.0.0" else [])
    assert [row for at, row in enumerate(text) if at not in empty] == [
        row for at, row in enumerate(binary) if at not in empty
    ]


def test_batches_and_options_change_no_row():
    binary = rows("6.0.2", "og_a_par2_b_batch1")
    for name in ("og_a_par2_j_batch0", "og_a_par2_t_batch0", "og_a_par2_t_batch1_xon_ton_soff", "og_a_par2_b_batch0"):
        assert rows("6.0.2", name) == binary


@pytest.mark.parametrize("version", ["6.0.2", "5.0.3"])
def test_both_plugins_of_serial_decoding_say_the_same(version):
    serial, text = read(version, "og_a_ser_default"), read(version, "og_a_test_decoding")
    assert serial == text  # LSNs, xids, CSNs, times, types and truncates included


def test_both_plugins_say_the_same_of_3_0_but_for_the_rows_one_withholds():
    serial = read("3.0.0", "og_a_ser_default")
    text = read("3.0.0", "og_a_test_decoding")
    assert len(serial) == len(text)
    for one, other in zip(serial, text, strict=True):
        if isinstance(other, Other):
            assert other.text == f"table {one.table}:"
        elif isinstance(other, Row):
            assert (one.operation, one.table, one.lsn) == (other.operation, other.table, other.lsn)
            assert said(one.new, False) == said(other.new, True)
            assert said(one.old, False) == said(other.old, True)
        else:
            assert one == other


@pytest.mark.parametrize("version", VERSIONS)
def test_serial_and_parallel_decoding_say_the_same_but_for_what_parallel_withholds(version):
    serial, parallel = transactions(version, "og_a_ser_default"), transactions(version, "og_a_par2_j_batch1")
    differing = {xid for xid in serial if serial[xid] != parallel.get(xid)}
    assert {row[1].name for xid in differing for row in (*serial[xid], *parallel[xid])} == WITHHELD[version]
    assert not [xid for xid in parallel if xid not in serial and parallel[xid]]


@pytest.mark.parametrize(("version", "styles"), [("6.0.2", "tj"), ("3.0.0", "tj"), ("5.0.3", "tj")])
def test_boundaries_of_batches_are_those_of_style_b(version, styles):
    binary = [r for r in read(version, "og_a_par2_b_batch1") if isinstance(r, Begin | Commit)]
    for style in styles:
        found = [r for r in read(version, f"og_a_par2_{style}_batch1") if isinstance(r, Begin | Commit)]
        if version == "3.0.0":  # the LSNs of its empty BEGINs are stale memory
            assert [(type(r), r.csn, r.xid) for r in found] == [(type(r), r.csn, r.xid) for r in binary]
            assert [r for r in found if isinstance(r, Commit)] == [r for r in binary if isinstance(r, Commit)]
        else:
            assert found == binary


def test_serial_and_parallel_decoding_name_the_same_csns():
    serial = {r.xid: r.csn for r in read("6.0.2", "og_a_ser_default") if isinstance(r, Commit)}
    parallel = {r.xid: r.csn for r in read("6.0.2", "og_a_par2_t_batch1") if isinstance(r, Begin)}
    assert serial.items() <= parallel.items()


def test_options_put_times_and_origins_where_they_are_asked_for():
    begins = [r for r in read("6.0.2", "og_a_par2_t_batch1_xon_ton_soff") if isinstance(r, Begin)]
    assert all(begin.time and begin.xid for begin in begins)
    assert all(r.origin_id is not None for r in read("6.0.2", "og_a_par2_t_batch1_originid") if isinstance(r, Begin))
    assert all(r.origin_id is not None for r in read("6.0.2", "og_a_ser_originid") if isinstance(r, Begin))
    bare = read("6.0.2", "og_a_ser_xoff_toff_son")
    assert all(r.xid is None and r.lsn is None for r in bare if isinstance(r, Begin))
    assert all(r.time is None and r.csn is not None for r in bare if isinstance(r, Commit))
    older = [r for r in read("3.0.0", "og_a_par2_t_batch1_xon_ton_soff") if isinstance(r, Begin)]
    assert all(begin.time and begin.xid is None for begin in older)


def test_ddl_and_truncates_are_read_where_the_server_tells_them():
    found = read("6.0.2", "ddlpub_ser")
    assert [r.command for r in found if isinstance(r, Ddl)].count("Simple") > 5
    assert all(r.prefix == "deparse" and r.relation_id is not None for r in found if isinstance(r, Ddl))
    assert [str(t) for r in found if isinstance(r, Truncated) for t in r.tables] == ["public.d1"]


def peeked(name: str) -> list[list[str]]:
    with lzma.open(DATA / "6.0.2" / name) as file:
        return list(csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline="")))


def test_rows_of_the_sql_functions_decode_alike_with_both_plugins():
    found = []
    for name in ("peek_og_pg_default.csv.xz", "peek_og_pg_testdecoding.csv.xz"):
        out: list[Record] = []
        for location, _, data in peeked(name):
            high, low = location.split("/")
            lsn = int(high, 16) << 32 | int(low, 16)
            out += records(data.encode(), Style.SERIAL, batch=False, codec=CODEC, header_lsn=lsn)
        found.append(out)
    assert found[0] == found[1]
    assert len(found[0]) > 2500
