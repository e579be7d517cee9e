"""Rows as text: style t and test_decoding of the family."""

import pytest

from cdc_lake.decode.encoding import Codec, Policy
from cdc_lake.decode.gaussdb.records import Field, Operation, Row, Style
from cdc_lake.decode.gaussdb.serial import records
from cdc_lake.errors import MalformedMessage, StyleMismatch, TextNotInEncoding
from cdc_lake.model.change import UNCHANGED
from cdc_lake.model.relation import TableName


def row(line, *, style=Style.TEXT, codec=None, tables=frozenset()):
    data = line.encode() if isinstance(line, str) else line
    (record,) = records(data, style, batch=False, codec=codec or Codec(), header_lsn=7, tables=tables)
    return record


def values(columns):
    """The values of an INSERT with these columns."""
    return [field.value for field in row(f"table public t INSERT:{columns}").new]


ID = Field("id", "1", "integer")
T = TableName("public", "t")


def test_each_operation_has_its_tuples():
    assert row("table public t INSERT: id[integer]:1") == Row(Operation.INSERT, T, new=(ID,), lsn=7)
    assert row("table public t UPDATE: id[integer]:1") == Row(Operation.UPDATE, T, new=(ID,), lsn=7)
    both = row("table public t UPDATE: old-key: id[integer]:1 new-tuple: id[integer]:2")
    assert both == Row(Operation.UPDATE, T, new=(Field("id", "2", "integer"),), old=(ID,), lsn=7)
    assert row("table public t DELETE: id[integer]:1") == Row(Operation.DELETE, T, old=(ID,), lsn=7)
    assert row("table public.t: DELETE: id[integer]:1", style=Style.SERIAL) == Row(
        Operation.DELETE, T, old=(ID,), lsn=7
    )


@pytest.mark.parametrize("style", [Style.TEXT, Style.SERIAL])
def test_an_absent_tuple_is_none_and_an_unreadable_one_empty(style):
    head = "table public t" if style is Style.TEXT else "table public.t:"
    assert row(f"{head} DELETE: (no-tuple-data)", style=style) == Row(Operation.DELETE, T, lsn=7)
    assert row(f"{head} INSERT: (no-tuple-data)", style=style) == Row(Operation.INSERT, T, lsn=7)
    assert row(f"{head} INSERT:", style=style) == Row(Operation.INSERT, T, new=(), lsn=7)
    update = row(f"{head} UPDATE: old-key: new-tuple: (no-tuple-data)", style=style)
    assert update == Row(Operation.UPDATE, T, old=(), lsn=7)


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("1", "1"),
        (".1", ".1"),
        ("-.000001", "-.000001"),
        ("0.0", "0.0"),
        ("1e+100", "1e+100"),
        ("-1.5E-7", "-1.5E-7"),
        ("NaN", "NaN"),
        ("Infinity", "Infinity"),
        ("-Infinity", "-Infinity"),
        ("123456789012345678901234567890.123456789", "123456789012345678901234567890.123456789"),
        ("true", "t"),
        ("false", "f"),
        ("'true'", "true"),
        ("B'101'", "101"),
        ("B''", ""),
        ("null", None),
        ("'null'", "null"),
        ("''", ""),
        ("unchanged-toast-datum", UNCHANGED),
        ("'unchanged-toast-datum'", "unchanged-toast-datum"),
        ("'it''s'", "it's"),
        ("''''", "'"),
        ("'\\x00ff'", "\\x00ff"),
        ("'a\nb\tc'", "a\nb\tc"),
        ("' new-tuple: a[integer]:5'", " new-tuple: a[integer]:5"),
        ("'中😀'", "中😀"),
    ],
)
def test_a_literal_is_the_output_text_of_its_value(literal, value):
    assert values(f" a[text]:{literal} b[integer]:2") == [value, "2"]


@pytest.mark.parametrize(
    "columns",
    [
        " a[text]:'x",
        " a[text]:'x'y",
        " a[text]:x",
        " a[text]:TRUE",
        " a[text]:B'2'",
        " a[text]:",
        " a[text]: b[text]:1",
        " a[text]",
        " a:1",
        "  a[text]:1",
        " a[text]:1 ",
        ' "a[text]:1',
        ' ""[text]:1',
        " a[text]:1 (no-tuple-data)",
        " a[text]:0x10",
        " a[text]:1\u0661",
        "a[text]:1",
    ],
)
def test_what_is_not_of_the_grammar_is_an_error(columns):
    with pytest.raises(MalformedMessage):
        values(columns)


def test_the_error_says_the_byte():
    with pytest.raises(MalformedMessage) as error:
        row("table public t INSERT: é[text]:'中' b[integer]:x")
    assert error.value.offset == len("table public t INSERT: é[text]:'中' b[integer]:".encode())


def test_old_values_may_look_like_the_new_tuple():
    line = "table public t UPDATE: old-key: k[text]:' new-tuple: k[text]:''a''' new-tuple: k[text]:'b'"
    assert row(line).old == (Field("k", " new-tuple: k[text]:'a'", "text"),)
    assert row(line).new == (Field("k", "b", "text"),)


def test_names_are_unquoted_and_types_are_not():
    line = 'table public t INSERT: "a.b"[integer]:1 "e[f]"[text[]]:\'{}\' "q""q"[My."ty]:pe"]:null "new-tuple:"["char"]:\'c\''
    assert row(line).new == (
        Field("a.b", "1", "integer"),
        Field("e[f]", "{}", "text[]"),
        Field('q"q', None, 'My."ty]:pe"'),
        Field("new-tuple:", "c", '"char"'),
    )


def test_the_head_of_test_decoding_is_quoted():
    line = 'table "My Schema"."Tab.le ""x"": INSERT:": UPDATE: id[integer]:1'
    assert row(line, style=Style.SERIAL).table == TableName("My Schema", 'Tab.le "x": INSERT:')


AMBIGUOUS = "table public table x INSERT INSERT: id[integer]:1 v[text]:' INSERT: id[integer]:2'"


def test_a_raw_head_is_read_in_the_way_that_gives_a_row():
    assert row(AMBIGUOUS).table == TableName("public", "table x INSERT")
    assert row("table public x INSERT: INSERT: id[integer]:1").table == TableName("public", "x INSERT:")
    assert row("table public a\" 'b INSERT: id[integer]:1").table == TableName("public", "a\" 'b")


def test_a_raw_head_of_an_unknown_table_has_the_shortest_schema():
    line = "table My Schema tab INSERT: id[integer]:1"
    assert row(line).table == TableName("My", "Schema tab")
    assert row(line, tables=frozenset({T})).table == TableName("My", "Schema tab")


def test_a_known_table_decides_how_a_raw_head_is_read():
    known = TableName("My Schema", "tab")
    assert row("table My Schema tab INSERT: id[integer]:1", tables={known, T}).table == known
    # the longest one that fits: ` INSERT: (no-tuple-data)` could be the row of a table named `t`
    longer = TableName("public", "t INSERT: a[text]:1")
    line = "table public t INSERT: a[text]:1 INSERT: id[integer]:1"
    assert row(line, tables=[T, longer]).table == longer


def test_two_known_tables_with_one_head_are_refused():
    tables = frozenset({TableName("a b", "c"), TableName("a", "b c")})
    with pytest.raises(MalformedMessage, match="two known tables"):
        row("table a b c INSERT: id[integer]:1", tables=tables)
    assert row("table a c INSERT: id[integer]:1", tables=tables).table == TableName("a", "c")


@pytest.mark.parametrize("encoding", ["GBK", "GB18030", "EUC_CN", "EUC_JP", "UTF8"])
def test_text_is_read_in_the_encoding_of_the_database(encoding):
    codec = Codec(encoding)
    line = "table 表 名 INSERT: \"列\"[text]:'中文 ''字''' b[integer]:2"
    if encoding == "GB18030":
        line = line.replace("中文", "中文😀\u20ac")
    record = row(line.encode(codec.python), codec=codec, tables={TableName("表", "名")})
    assert record.table == TableName("表", "名")
    assert record.new[0] == Field("列", "中文 '字'" if encoding != "GB18030" else "中文😀\u20ac '字'", "text")


def test_second_bytes_that_look_like_ascii_are_none():
    # 乗 is 81 5C, 乕 81 5B, 乚 81 5D, 亄 81 7B: backslash, brackets, brace
    text = "乗乕乚亄"
    line = f"table {text} {text} INSERT: \"{text}\"[{text}]:'{text}'".encode("gbk")
    assert row(line, codec=Codec("GBK")).new == (Field(text, text, text),)


def test_an_invalid_value_is_hexadecimal_where_that_was_chosen_and_an_error_otherwise():
    # in GBK a lead byte takes the quote behind it for its second half; the server wrote byte by byte
    line = b"table public t INSERT: a[text]:'\x81' b[text]:'ok' c[text]:'x\xff''y'"
    found = row(line, codec=Codec("GBK", Policy.HEX)).new
    assert [field.value for field in found] == ["not-text:81", "ok", "not-text:78ff2779"]
    with pytest.raises(TextNotInEncoding) as error:
        row(line, codec=Codec("GBK"))
    assert error.value.offset == line.index(b"\x81")
    assert "ok" not in str(error.value)
    assert error.value.__context__ is None or not isinstance(error.value.__context__, UnicodeDecodeError)


def test_sql_ascii_is_read_as_utf8_value_by_value():
    codec = Codec("SQL_ASCII", Policy.HEX)
    line = "table public t INSERT: a[text]:'中'".encode() + b" b[text]:'\xd6\xd0'"
    assert [field.value for field in row(line, codec=codec).new] == ["中", "not-text:d6d0"]


def test_names_are_never_hexadecimal():
    with pytest.raises(TextNotInEncoding):
        row(b"table public \xff INSERT: a[text]:1", codec=Codec(policy=Policy.HEX))


def test_json_where_text_was_asked_for_is_said_to_be_json():
    with pytest.raises(StyleMismatch, match="asked for style t"):
        row('{"table_name":"public.t"}')


@pytest.mark.parametrize("unit", [' "a', " a[", " a[b]:'", '"', "'", " INSERT:", ' a["', " a[]", '""', " x INSERT: a["])
def test_no_input_takes_more_than_linear_time(unit):
    line = "table public t INSERT:" + unit * 100_000 + " !"
    with pytest.raises(MalformedMessage):
        row(line)
    with pytest.raises(MalformedMessage):
        row(line.replace("t INSERT", "t UPDATE: old-key"))
