"""Database encodings, and bytes that are no text: in hexadecimal digits where a column may hold them."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pytest

from cdc_lake.decode.encoding import PREFIX, Codec, Policy
from cdc_lake.decode.gaussdb import columnar
from cdc_lake.decode.gaussdb.batches import RecordTransaction, tabulate_plain
from cdc_lake.decode.gaussdb.catalog_facts import GaussDbColumn, GaussDbTableMetadata
from cdc_lake.decode.gaussdb.columnar import tabulate
from cdc_lake.decode.gaussdb.records import Field, Operation, Row, Style
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.decode.pgoutput import columnar as pgoutput_columnar
from cdc_lake.decode.pgoutput.columnar import tabulate as tabulate_pgoutput
from cdc_lake.decode.pgoutput.columnar import tabulate_plain as plain_pgoutput
from cdc_lake.errors import InvalidText, TextNotInEncoding, UnknownEncoding
from cdc_lake.model.change import Boundaries, Delete, Insert, OldKind, Transaction, Update
from cdc_lake.model.relation import Column, Relation, ReplicaIdentity, TableName
from cdc_lake.source.copy_format import chunks_of, csv_chunks, csv_tables
from cdc_lake_testing.gaussdb.encode import Print, binary_record, statement
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.decoded_columns import assert_same


@pytest.mark.parametrize(
    ("name", "python"),
    [
        ("UTF8", "utf-8"),
        ("utf-8", "utf-8"),
        ("SQL_ASCII", "utf-8"),
        ("GBK", "gbk"),
        ("GB18030", "gb18030"),
        ("EUC_CN", "gb2312"),
        ("LATIN1", "iso8859-1"),
        ("LATIN5", "iso8859-9"),
        ("LATIN9", "iso8859-15"),
        ("ISO_8859_5", "iso8859-5"),
        ("WIN1251", "cp1251"),
        ("KOI8R", "koi8-r"),
    ],
)
def test_server_names_of_encodings_are_known(name, python):
    codec = Codec(name)
    assert codec.python == python
    assert codec.text(b"a") == "a"


@pytest.mark.parametrize("name", ["", "EUC_TW", "MULE_INTERNAL", "GB18030_2022", "latin99"])
def test_other_encodings_are_refused_by_name(name):
    with pytest.raises(UnknownEncoding, match=f"`{name}`"):
        Codec(name)


def test_characters_a_user_defined_in_gbk_are_read():
    codec = Codec("GBK")
    assert codec.text(b"\xaa\xa1a") == "\ue000a"
    with pytest.raises(TextNotInEncoding):
        codec.text(b"\xaa\xa1\x81\x30\x81\x30")  # four bytes are of GB18030, not of GBK


@pytest.mark.parametrize("name", ["EUC_CN", "EUC_JP", "EUC_KR", "EUC_JIS_2004", "LATIN1", "UTF8", "SQL_ASCII"])
def test_only_gbk_and_gb18030_have_ascii_bytes_inside_characters(name):
    codec = Codec(name)
    assert codec.ascii_apart
    for first in range(0x80, 0x100):
        for second in range(0x80):
            with suppress(UnicodeDecodeError):
                assert bytes([first, second]).decode(codec.python).endswith(chr(second))


@pytest.mark.parametrize("name", ["GBK", "GB18030"])
def test_no_sign_the_formats_are_made_of_is_inside_a_character(name):
    codec = Codec(name)
    assert not codec.ascii_apart
    for first in range(0x81, 0xFF):
        for sign in b"'\" :(),.":
            with pytest.raises(UnicodeDecodeError):
                bytes([first, sign, 0x30, 0x81]).decode(codec.python)


def test_the_policy_is_for_values_and_not_for_names():
    assert Codec(policy=Policy.HEX).text(b"a\xff", 5) == "not-text:61ff"
    with pytest.raises(TextNotInEncoding) as error:
        Codec(policy=Policy.HEX).name(b"a\xff", 5)
    assert error.value.offset == 6


NOTES = table("public.notes", id="int8", body="text", memo="text")
WRONG, SENT = b"\xff\xfe!", "WRONG"
HEXED = f"{PREFIX}fffe21"


def only_body(name: TableName, column: str) -> bool:
    return (str(name), column) == ("public.notes", "body")


@pytest.fixture(autouse=True)
def columnar_from_the_first_row(monkeypatch):
    monkeypatch.setattr(columnar, "SMALL", 1)
    monkeypatch.setattr(pgoutput_columnar, "SMALL", 1)


# ── pgoutput ──


def pgoutput(*changes):
    raw = raw_transaction(Transaction(boundaries(200), changes))
    raw.frames[:] = [f.replace(b"\0\0\0\5WRONG", b"\0\0\0\3" + WRONG) for f in raw.frames]
    return [raw]


def test_pgoutput_keeps_them_where_it_may():
    batch = pgoutput(
        Insert(NOTES, ("1", SENT, "x")),
        Update(NOTES, ("1", None, "x"), ("1", SENT, None), OldKind.FULL),
        Delete(NOTES, ("1", SENT, None), OldKind.FULL),
    )
    found = tabulate_pgoutput(batch, only_body)
    assert_same(found, plain_pgoutput(batch, only_body))
    assert found.new.to_pylist() == [["1", HEXED, "x"], ["1", None, "x"], None]
    assert found.old.to_pylist() == [None, ["1", HEXED, None], ["1", HEXED, None]]


def test_a_few_odd_values_among_many_transactions_change_nothing_else():
    batch = [
        raw
        for n in range(40)
        for raw in pgoutput(
            Insert(NOTES, (str(n), SENT if n in (3, 29) else "x", "y")),
            Delete(NOTES, (str(n), None, None), OldKind.KEY),
        )
    ]
    assert_same(tabulate_pgoutput(batch, only_body), plain_pgoutput(batch, only_body))
    how = STYLES[0]
    many = [family(how, b"\xff" if n in (3, 29) else b"x", b"y")[0] for n in range(40)]
    assert_same(tabulate(many, layouts("UTF8")), tabulate_plain(many, layouts("UTF8")))


@pytest.mark.parametrize("in_hex", [None, only_body])
def test_pgoutput_stops_where_it_may_not(in_hex):
    for decode in (tabulate_pgoutput, plain_pgoutput):
        with pytest.raises(InvalidText) as error:
            decode(pgoutput(Insert(NOTES, ("1", "x", SENT))), in_hex)
        assert error.value.where == "change 1 of the transaction at 0/C8"
        assert error.value.offset == 25


def test_a_text_that_looks_like_them_is_told_apart():
    batch = pgoutput(Insert(NOTES, ("1", HEXED, HEXED)))
    found = tabulate_pgoutput(batch, only_body)
    assert_same(found, plain_pgoutput(batch, only_body))
    assert found.new.to_pylist() == [["1", PREFIX + HEXED.encode().hex(), HEXED]]
    assert tabulate_pgoutput(batch).new.to_pylist() == [["1", HEXED, HEXED]]


# ── the family ──

COLUMNS = (GaussDbColumn("id", "int8", 20), GaussDbColumn("body", "text", 25), GaussDbColumn("memo", "text", 25))
FACTS = {TableName("public", "notes"): GaussDbTableMetadata(COLUMNS, ("id",), identity_columns=("id",))}
STYLES = [
    Print(Style.BINARY, "latin-1"),
    Print(Style.TEXT, "latin-1"),
    Print(Style.JSON, "latin-1"),
    Print(Style.SERIAL, "latin-1"),
    Print(Style.SERIAL, "latin-1", plugin="test_decoding"),
]


def family(how: Print, body: bytes, memo: bytes) -> list[RecordTransaction]:
    fields = tuple(
        Field(name, data.decode("latin-1"), kind, oid)
        for name, data, kind, oid in (
            ("id", b"1", "bigint", 20),
            ("body", body, "text", 25),
            ("memo", memo, "text", 25),
        )
    )
    row = Row(Operation.INSERT, TableName("public", "notes"), fields)
    data = binary_record(row, "latin-1")[12:] if how.style is Style.BINARY else statement(row, how)
    return [RecordTransaction(Boundaries(200, 200), how.style, [data], [200], len(data))]


def layouts(encoding: str) -> RelationResolver:
    return RelationResolver(FACTS.get, Codec(encoding, Policy.HEX, only_body), tables=frozenset(FACTS))


@pytest.mark.parametrize("how", STYLES, ids=lambda how: f"{how.style.value} {how.plugin}")
@pytest.mark.parametrize(("encoding", "wrong"), [("SQL_ASCII", b"\xd6\xd0"), ("GBK", b"\xff'\"\\"), ("UTF8", b"\xff")])
def test_every_style_keeps_them_where_it_may(how: Print, encoding: str, wrong: bytes):
    batch = family(how, wrong, b"x")
    found = tabulate(batch, layouts(encoding))
    assert_same(found, tabulate_plain(batch, layouts(encoding)))
    assert found.new.to_pylist() == [["1", PREFIX + wrong.hex(), "x"]]
    for decode in (tabulate, tabulate_plain):
        with pytest.raises(TextNotInEncoding) as error:
            decode(family(how, b"x", wrong), layouts(encoding))
        assert error.value.where == "change 1 of the transaction at 200"


@pytest.mark.parametrize("how", STYLES, ids=lambda how: f"{how.style.value} {how.plugin}")
def test_every_style_tells_a_text_that_looks_like_them_apart(how: Print):
    like = HEXED.encode()
    batch = family(how, like, like)
    found = tabulate(batch, layouts("GBK"))
    assert found.new.to_pylist() == [["1", PREFIX + like.hex(), HEXED]]
    same = tabulate(batch, layouts("UTF8"))
    assert_same(same, tabulate_plain(batch, layouts("UTF8")))
    assert same.new.to_pylist() == found.new.to_pylist()


def test_a_text_in_another_encoding_is_written_by_the_bytes_it_has_there():
    data = PREFIX.encode() + "中".encode("gbk")
    found = tabulate(family(STYLES[0], data, b""), layouts("GBK"))
    assert found.new.to_pylist() == [["1", PREFIX + data.hex(), ""]]


# ── tables that are read as a whole ──

RELATION = Relation(
    TableName("public", "notes"), tuple(Column(c.name, "text", 25) for c in COLUMNS), ReplicaIdentity.DEFAULT
)


def test_the_copy_gives_what_the_stream_gives():
    lines = [
        b"1\t\xff\\t\\\\\tx\n",
        b"2\tplain \xc3\xa9\t\\N\n",
        b"3\tnot-text:00\tnot-text:00\n",
        b"\\N\t\\N\t\n",
    ]
    chunks = list(chunks_of(lines, RELATION, 3, Codec("SQL_ASCII", Policy.HEX, only_body)))
    rows = [row for chunk in chunks for row in chunk.to_pylist()]
    assert rows == [
        ["1", f"{PREFIX}ff095c", "x"],
        ["2", "plain é", None],
        ["3", f"{PREFIX}{b'not-text:00'.hex()}", "not-text:00"],
        [None, None, ""],
    ]


def test_the_copy_names_the_table_where_it_stops():
    for codec, line in ((Codec("SQL_ASCII"), b"1\t\xff\tx\n"), (Codec("UTF8", Policy.HEX, only_body), b"1\tx\t\xff\n")):
        with pytest.raises(TextNotInEncoding) as error:
            list(chunks_of([line], RELATION, 3, codec))
        assert error.value.where == "a row of public.notes"


def test_a_comparison_reads_the_same():
    sent = [b'"1","\xff","x"\n', b'"2",,""\n', b'"3","not-text:00","\xc3\xa9"\n']
    (found,) = csv_tables(sent, RELATION, Codec("SQL_ASCII", Policy.HEX, only_body))
    assert found["body"].to_pylist() == [f"{PREFIX}ff", None, f"{PREFIX}{b'not-text:00'.hex()}"]
    assert found["memo"].to_pylist() == ["x", "", "é"]
    assert found.schema.field("body").type == pa.large_string()


def test_a_database_in_gbk_is_copied_as_it_is():
    gbk = "中\\文".encode("gbk")
    sent = [b'"1","' + gbk + b'","' + "乗\\".encode("gbk") + b'"\n', b'"2","\xff""","x"\n']
    (chunk,) = csv_chunks(sent, RELATION, Codec("GBK", Policy.HEX, only_body))
    assert chunk.to_pylist() == [["1", "中\\文", "乗\\"], ["2", f"{PREFIX}ff22", "x"]]
