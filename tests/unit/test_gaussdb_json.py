"""Rows as JSON: serial mppdb_decoding and style j."""

import json

import pytest

from cdc_lake.decode.encoding import Codec, Policy
from cdc_lake.decode.gaussdb.records import Field, Operation, Row, Style
from cdc_lake.decode.gaussdb.serial import records
from cdc_lake.errors import MalformedMessage, StyleMismatch, TextNotInEncoding
from cdc_lake.model.change import UNCHANGED
from cdc_lake.model.relation import TableName

T = TableName("public", "t")


def row(line, *, style=Style.JSON, codec=None):
    data = line.encode() if isinstance(line, str) else line
    (record,) = records(data, style, batch=False, codec=codec or Codec(), header_lsn=7)
    return record


def line(new=(), old=(), operation="INSERT", table="public.t"):
    """What the server would print for columns (name, type, literal)."""
    keys = ["columns_name", "columns_type", "columns_val", "old_keys_name", "old_keys_type", "old_keys_val"]
    arrays = [[column[at] for column in part] for part in (new, old) for at in range(3)]
    found = {"table_name": table, "op_type": operation, **dict(zip(keys, arrays, strict=True))}
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False)


ID = ("id", "integer", "1")
NOTE = ("note", "text", "'x'")


@pytest.mark.parametrize("style", [Style.JSON, Style.SERIAL])
def test_each_operation_has_its_tuples(style):
    one, two = Field("id", "1", "integer"), Field("note", "x", "text")
    assert row(line([ID, NOTE]), style=style) == Row(Operation.INSERT, T, new=(one, two), lsn=7)
    update = row(line([ID, NOTE], [ID], "UPDATE"), style=style)
    assert update == Row(Operation.UPDATE, T, new=(one, two), old=(one,), lsn=7)
    assert row(line((), [ID], "DELETE"), style=style) == Row(Operation.DELETE, T, old=(one,), lsn=7)
    assert row(line((), (), "DELETE"), style=style) == Row(Operation.DELETE, T, lsn=7)


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("null", None),
        ("'null'", "null"),
        ("''", ""),
        ("true", "t"),
        ("B'101'", "101"),
        ("-.5", "-.5"),
        ("unchanged-toast-datum", UNCHANGED),
        ("'unchanged-toast-datum'", "unchanged-toast-datum"),
        ("'it''s \"quoted\"'", 'it\'s "quoted"'),
        ("'\\x00ff'", "\\x00ff"),
        ("'],\"columns_val\":['", '],"columns_val":['),
        ("'\",\"'", '","'),
        ("'a\nb\t\b\f\r\x01\x1f'", "a\nb\t\b\f\r\x01\x1f"),
        ("'中😀'", "中😀"),
    ],
)
def test_a_literal_in_a_string_is_the_output_text_of_its_value(literal, value):
    found = row(line([ID, ("v", "text", literal), ID], [("v", "text", literal)], "UPDATE"))
    assert [field.value for field in found.new] == ["1", value, "1"]
    assert [field.value for field in found.old] == [value]


def test_the_table_and_its_columns_are_unquoted():
    found = row(line([('"a.b""c"', '"my.type"', "1")], table='"a.b"."c""d,"'))
    assert found.table == TableName("a.b", 'c"d,')
    assert found.new == (Field('a.b"c', "1", '"my.type"'),)


def test_blanks_and_another_order_of_keys_do_not_matter():
    loose = json.dumps(dict(reversed(json.loads(line([ID, NOTE], [ID], "UPDATE")).items())), indent=1)
    assert row(loose) == row(line([ID, NOTE], [ID], "UPDATE"))


@pytest.mark.parametrize(
    "broken",
    [
        "{",
        "{}",
        '{"table_name":' + "[" * 100_000,
        line([ID])[:-1],
        line([ID]) + " x",
        line([ID]).replace("INSERT", "MERGE"),
        line([ID], table="public"),
        line([ID], table='"public.t'),
        line([ID]).replace('"columns_name":["id"]', '"columns_name":[]'),
        line([ID]).replace('"columns_val":["1"]', '"columns_val":[1]'),
        line([ID]).replace('"columns_val":["1"]', '"columns_val":["1",]'),
        line([ID]).replace('"columns_val":["1"]', '"columns_val":["1""2"]'),
        line([ID]).replace('"columns_val":["1"]', '"columns_val":["1"x]'),
        line([ID]).replace('"columns_val":["1"]', '"columns_val":[null]'),
        line([ID]).replace('"columns_val":["1"]', '"columns_val":["x"]'),
        line([ID]).replace('"columns_val":["1"]', '"columns_val":["\\"]'),
        line([ID]).replace('"columns_val":["1"]', '"columns_val":["\'\\ud800\'"]'),
        line([ID]).replace('"op_type"', '"op"'),
        line([ID]).replace('"op_type":"INSERT"', '"op_type":"INSERT","op_type":"DELETE"'),
        line([ID]).replace('"columns_val":["1"]', '"columns_val":["2"],"columns_val":["1"]'),
        line([ID]).replace('"columns_val":["1"]', '"columns_val":["1"],"more":["2"]'),
        line([ID]).replace('"columns_val":["1"]', '"columns_val":["1"],"":["2"]'),
        line([ID], [ID], "UPDATE").replace('"old_keys_val":["1"]', '"old_keys_val":["2"],"old_keys_val":["1"]'),
        line([("", "integer", "1")]),
        line([('""', "integer", "1")]),
    ],
)
@pytest.mark.parametrize("encoding", ["UTF8", "GBK"])
def test_what_is_not_of_the_format_is_an_error(broken, encoding):
    with pytest.raises(MalformedMessage):
        row(broken, codec=Codec(encoding))


def server_line(text, encoding):
    """A row whose value the server escaped byte by byte."""
    raw = text.encode(encoding).replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    return line([("v", "text", "'@'"), ID]).encode().replace(b"@", raw)


@pytest.mark.parametrize("encoding", ["GBK", "GB18030"])
def test_backslashes_inside_characters_were_doubled_and_are_undone_on_bytes(encoding):
    codec = Codec(encoding)
    text = '乗\\"乗"乕{乚\\\\'
    assert b"\\" in "乗".encode(encoding)
    assert row(server_line(text, encoding), codec=codec).new[0].value == text


@pytest.mark.parametrize("encoding", ["EUC_CN", "EUC_KR", "EUC_JP", "LATIN1", "WIN1252", "UTF8"])
def test_text_is_read_in_the_encoding_of_the_database(encoding):
    codec = Codec(encoding)
    text = "中\\n" if encoding.startswith("EUC") else "é\\n"
    assert row(server_line(text, codec.python), codec=codec).new[0].value == text
    assert row(server_line(text[0], codec.python), codec=codec).new[0].value == text[0]


def test_names_are_read_in_the_encoding_of_the_database():
    data = line([('"乗"', "text", "1")], table='public."乗"').encode("gbk")
    second = "乗".encode("gbk")
    found = row(data.replace(second, second + b"\\"), codec=Codec("GBK"))
    assert found.table == TableName("public", "乗")
    assert found.new[0].name == "乗"


def test_an_invalid_value_is_hexadecimal_where_that_was_chosen_and_an_error_otherwise():
    data = line([("v", "text", "'@'"), ID, ("w", "bytea", "'\\x00'")]).encode().replace(b"@", b"a\xff")
    found = row(data, codec=Codec(policy=Policy.HEX)).new
    assert [field.value for field in found] == ["not-text:61ff", "1", "\\x00"]
    with pytest.raises(TextNotInEncoding) as error:
        row(data)
    assert data[error.value.offset - 20 :].find(b"\xff") >= 0


def test_text_where_json_was_asked_for_is_said_to_be_text():
    with pytest.raises(StyleMismatch, match="asked for style j"):
        row("table public t INSERT: id[integer]:1")
