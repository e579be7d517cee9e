"""Types that a pipeline declares: how they are written, what columns may have them, what `check` and `plan` say of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import cast

import pytest
from pydantic import ValidationError

from cdc_lake.cli.commands.status import ledger_text
from cdc_lake.config.model import DefaultTypes, TableTypes
from cdc_lake.config.silver_tables import UNDECLARED, Declared, TypePolicy
from cdc_lake.connectors.base import SourceIntrospection
from cdc_lake.errors import NameTaken, TypeRefused
from cdc_lake.model.relation import Column, Relation, ReplicaIdentity, TableName
from cdc_lake.ops.check.runner import transforms
from cdc_lake.ops.plan import KEY_ONLY, ColumnLedger, TableLedger, ledger_of, lines
from cdc_lake.silver.layout_mapping import make_shape
from cdc_lake.tables.canonical_values import elements_of
from cdc_lake.tables.casts import key_text
from cdc_lake.tables.schema_evolution import AddColumn, ChangeType, layout_columns, operations
from cdc_lake.tables.types import (
    Family,
    Loss,
    SilverColumn,
    check_declared,
    column_type,
    companion_type,
    source_type,
    typed_columns,
)
from tests.mistakes import kept
from tests.pipeline_file import make_project

NUMERIC = Column("n", "numeric", 1700)
BOUNDED = Column("b", "numeric", 1700, ((10 << 16) | 2) + 4)


def policy(numeric: str = "string", **columns: str) -> TypePolicy:
    return TypePolicy(Declared.parse(numeric), tuple((name, Declared.parse(text)) for name, text in columns.items()))


def relation(*columns: Column) -> Relation:
    return Relation(TableName("public", "t"), columns, ReplicaIdentity.DEFAULT)


@pytest.mark.parametrize(
    ("text", "sql", "both"),
    [
        ("string", "string", False),
        ("decimal(38, 9)", "decimal(38,9)", False),
        ("both(12,0)", "decimal(12,0)", True),
        ("array<decimal(5,2)>", "array<decimal(5,2)>", False),
        ("array< int >", "array<int>", False),
    ],
)
def test_declared_types_are_read(text, sql, both):
    assert Declared.parse(text) == Declared(sql, both)


@pytest.mark.parametrize(
    "text",
    ["", "text", "decimal", "decimal(39,2)", "decimal(0,0)", "decimal(2,3)", "both(5)", "array<smallint>"],
)
def test_what_is_no_silver_type_is_refused_when_the_file_is_read(text):
    with pytest.raises(ValueError, match=r"is no|array"):
        Declared.parse(text)
    with pytest.raises(ValidationError):
        TableTypes(columns={"a": text})


@pytest.mark.parametrize(
    "text", ["array<both(3,1)>", "array<array<int>>", "array<>", "Decimal(3,1)", "int4", "decimal(3,-1)", "variant"]
)
def test_neither_is_an_array_of_what_has_no_elements_of_its_own(text):
    with pytest.raises(ValueError, match=r"is no|array"):
        Declared.parse(text)


def test_the_policy_of_numerics_takes_numbers_and_text_only():
    assert DefaultTypes(numeric="both(10,2)").numeric == "both(10,2)"
    with pytest.raises(ValidationError):
        DefaultTypes(numeric="int")


def test_the_policy_of_numerics_leaves_those_alone_that_a_decimal_holds():
    given = policy("decimal(20,4)")
    assert column_type(BOUNDED, given).sql == "decimal(10,2)"
    assert column_type(NUMERIC, given).sql == "decimal(20,4)"
    assert column_type(NUMERIC, UNDECLARED).sql == "string"
    assert column_type(NUMERIC, policy("decimal(20,4)", n="string")).sql == "string"


def test_a_numeric_both_ways_is_two_columns():
    made = typed_columns(relation(Column("id", "int4", 23, key=True), NUMERIC, BOUNDED), policy("both(20,4)"))
    assert [(one.name, one.type.sql, one.companion) for one in made] == [
        ("id", "int", False),
        ("n", "string", False),
        ("b", "decimal(10,2)", False),
        ("n_decimal", "decimal(20,4)", True),
    ]
    assert companion_type(BOUNDED, policy("both(20,4)")) is None
    assert companion_type(BOUNDED, policy(b="both(9,2)")) is not None


def test_a_companion_takes_no_name_that_the_source_has():
    with pytest.raises(NameTaken):
        typed_columns(relation(NUMERIC, Column("N_Decimal", "int4", 23)), policy("both(20,4)"))


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (Column("c", "bytea", 17), "int"),
        (Column("c", "timestamptz", 1184), "timestamp_ntz"),
        (Column("c", "int8", 20), "int"),
        (Column("c", "int4", 23), "decimal(10,0)"),
        (Column("c", "float8", 701), "float"),
        (Column("c", "numeric", 1700), "bigint"),
        (Column("c", "text", 25), "both(10,2)"),
        (Column("c", "bool", 16), "array<boolean>"),
    ],
)
def test_a_type_that_the_column_cannot_become_is_refused(column, text):
    with pytest.raises(TypeRefused, match="cannot be") as refused:
        column_type(column, policy(c=text))
    if column.type_name == "bytea":
        kept("no-lossless-type", refused.value)


def test_every_column_may_be_text_and_integers_may_be_wider():
    for oid in (16, 17, 23, 701, 1082, 1114, 1184, 1700, 16999):
        assert column_type(Column("c", "x", oid), policy(c="string")).family is Family.TEXT
    assert column_type(Column("c", "int2", 21), policy(c="bigint")).loss is Loss.LOSSLESS


def test_a_name_that_fits_no_column_is_refused():
    with pytest.raises(TypeRefused, match="`amont`"):
        check_declared(relation(NUMERIC), policy(amont="string"))


def test_a_policy_that_changed_is_a_change_of_the_table():
    had, has = relation(Column("m", "int4", 23)), relation(Column("m", "int4", 23), NUMERIC)
    changes = operations(had, has, types=policy("both(9,3)"))
    assert changes == (
        AddColumn(SilverColumn("n", "string")),
        AddColumn(SilverColumn("n_decimal", "decimal(9,3)")),
    )
    (change,) = operations(relation(NUMERIC), relation(Column("n", "numeric", 1700, BOUNDED.modifier)))
    assert isinstance(change, ChangeType)
    assert operations(has, has, layout_columns(has), types=policy("both(9,3)")) == (
        AddColumn(SilverColumn("n_decimal", "decimal(9,3)"), unknown=True),
    )


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        (BOUNDED, "numeric(10,2)"),
        (NUMERIC, "numeric"),
        (Column("c", "varchar", 1043, 24), "varchar(20)"),
        (Column("c", "bpchar", 1042, 9), "bpchar(5)"),
        (Column("c", "_text", 1009), "text[]"),
        (Column("c", "shop._mood", 16400), "shop.mood[]"),
        (Column("c", "varbit", 1562, 5), "varbit"),
    ],
)
def test_a_source_type_is_shown_as_people_write_it(column, shown):
    assert source_type(column) == shown


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        ("{}", []),
        ("{1,NULL,3}", ["1", None, "3"]),
        ('{"a b",NULL,"NULL","","q\\"\\\\","{},"}', ["a b", None, "NULL", "", 'q"\\', "{},"]),
        ("{null}", ["null"]),
        *((text, None) for text in ("", "{", "{,}", "{a,}", "{a}b}", '{"a"b}', "{a\\b}", '{"a}', "{a b}", '{"\\n"}')),
        *((text, None) for text in ("[0:1]={1,2}", "{{1},{2}}", "{1},{2}", " {1}")),
    ],
)
def test_the_elements_of_an_array_are_those_the_server_printed(text, elements):
    assert elements_of(text) == elements


def test_the_ledger_says_what_becomes_of_each_column_and_counts_it():
    columns = (
        ColumnLedger("id", "int8", "id", "bigint", Loss.LOSSLESS),
        ColumnLedger("a b", "date", "a_b_1", "date", Loss.LOSSLESS, "", "infinity"),
        ColumnLedger("m", "mood", "m", "string", Loss.CONVERTED, "the text that the server prints"),
        ColumnLedger("x", "bytea", "", "", Loss.REFUSED, "column `x` of type bytea cannot be int"),
    )
    ledger = [TableLedger("public.t", "silver.t", columns, "`types.columns` names `y`")]
    text = ledger_text(ledger, colour=False)
    assert text.splitlines() == [
        "types of public.t → silver.t",
        "  id   int8   → bigint      lossless",
        "  a b  date   → a_b_1 date  lossless   held: infinity",
        "  m    mood   → string      converted  the text that the server prints",
        "  x    bytea  →             refused    column `x` of type bytea cannot be int",
        "  `types.columns` names `y`",
        "",
    ]
    assert ledger_text([], colour=False) == ""
    found = list(lines(ledger))
    assert [(line.ok, line.code) for line in found] == [(False, "LAK479"), (False, "LAK479"), (False, "")]
    assert found[-1].text == "4 columns: 2 lossless, 1 converted, 1 refused"


def test_the_ledger_knows_what_a_table_takes_leaves_out_renames_and_computes(tmp_path):
    given = {
        "exclude": ["born", "note"],
        "rename": {"n": "net", "a b": "ab"},
        "compute": {"age": "year(born)", "twice": "net * 2"},
        "types": {"numeric": "both(20,4)"},
    }
    project = make_project(tmp_path, "p", silver={"tables": [{"from": "public.t", **given}]})
    texts = (Column("note", "text", 25), Column("a b", "text", 25))
    layout = relation(Column("id", "int4", 23, key=True), NUMERIC, Column("born", "date", 1082), *texts)
    source = cast("SourceIntrospection", Fixed(layout))
    ledger = ledger_of(project, source, lambda _: (SilverColumn("age", "int"),))
    beside = "every digit; the second column has the value if it is a valid decimal(20,4)"
    infinite = "infinity, -infinity, BC, years above 9999"
    assert ledger_text(ledger, colour=False).splitlines() == [
        "types of public.t → silver.t",
        "  id    int4     → int                      lossless",
        "  n     numeric  → net string               converted  " + beside,
        "  born  date     →                          left out   read by expressions or rules; held: " + infinite,
        "  note  text     →                          left out",
        "  a b   text     → ab string                lossless",
        "  n     numeric  → n_decimal decimal(20,4)  converted  NULL if `n` is not a valid decimal(20,4)",
        "                 → age int                  computed   year(born)",
        "                 → twice                    computed   net * 2",
        f"  replica identity primary key (id): {KEY_ONLY}",
        "",
    ]
    assert [line.text for line in lines(ledger)] == ["8 columns: 2 lossless, 2 converted, 2 left out, 2 computed"]
    project = make_project(
        tmp_path, "p", silver={"tables": [{"from": "public.t", **given, "types": {"columns": {"id": "date"}}}]}
    )
    (alone,) = ledger_of(project, source)
    assert [(c.column or c.silver_column, c.loss.value) for c in alone.columns] == [
        ("id", "refused"),
        ("n", "converted"),
        ("born", "left out"),
        ("note", "left out"),
        ("a b", "lossless"),
        ("age", "computed"),
        ("twice", "computed"),
    ]


KEYED = Relation(TableName("public", "t"), (Column("id", "int4", 23, key=True),), ReplicaIdentity.DEFAULT, ("id",))
BARE = Relation(TableName("public", "t"), (Column("id", "int4", 23, key=True),), ReplicaIdentity.FULL, ())


@pytest.mark.parametrize(
    ("layout", "given", "said"),
    [
        (KEYED, {"rename": {"gone": "there"}}, "`rename` names `gone`"),
        (BARE, {"rename": {"id": "number"}}, "public.t has no key"),
        (BARE, {"rename": {"id": "number"}, "kind": "append", "old_values": True}, None),
    ],
)
def test_check_says_of_transforms_what_the_first_row_would_say(tmp_path, monkeypatch, layout, given, said):
    project = make_project(tmp_path, "p", silver={"tables": [{"from": "public.t", **given}]})
    monkeypatch.setattr("cdc_lake.ops.findings.source_view", lambda _: nullcontext(Fixed(layout)))
    (line,) = transforms(project)
    assert (line.ok, line.code) == ((True, "") if said is None else (False, "LAK475"))
    assert said is None or said in line.text


@dataclass(frozen=True)
class Fixed:
    """The tables of a source, without a server."""

    layout_: Relation

    def tables(self) -> Sequence[TableName]:
        return (self.layout_.table,)

    def layout(self, _: TableName) -> Relation:
        return self.layout_


def test_a_table_says_what_differs_from_the_defaults(tmp_path):
    silver = {
        "defaults": {"types": {"numeric": "decimal(20,4)", "misfit": "stop"}},
        "tables": [
            {"from": "public.a", "types": {"misfit": "quarantine", "columns": {"c": "array<int>"}}},
            {"from": "public.b", "types": {"numeric": "string"}},
        ],
    }
    project = make_project(tmp_path, "p", silver=silver)
    a, b, c = (project.target(TableName("public", name)).types for name in "abc")
    assert (a.numeric.sql, a.misfit, a.declared_for("c")) == ("decimal(20,4)", "quarantine", Declared("array<int>"))
    assert (b.numeric.sql, b.misfit, b.declared_for("c")) == ("string", "stop", None)
    assert (c.numeric.sql, c.misfit) == ("decimal(20,4)", "stop")


def test_the_ledger_says_where_a_value_stops_the_run():
    column = ColumnLedger("at", "date", "at", "date", Loss.LOSSLESS, "", "infinity")
    text = ledger_text([TableLedger("public.t", "silver.t", (column,), misfit="stop")], colour=False)
    assert "stops: infinity" in text


def test_a_rule_finds_a_companion_by_its_name():
    layout = Relation(
        TableName("public", "t"), (Column("id", "int4", 23, key=True), NUMERIC), ReplicaIdentity.DEFAULT, ("id",)
    )
    shape = make_shape([1], {1: layout}, None, types=policy("both(20,4)"))
    assert [shape.position(name) for name in ("id", "n", "n_decimal", "m")] == [0, 1, 2, None]
    assert shape.text(2, "new") == "new[1]"
    assert [shape.may_misfit(at) for at in (0, 1, 2)] == [True, False, False]


@pytest.mark.parametrize(
    ("declared", "texts"),
    [
        (
            "decimal(10,4)",
            [("1.0", "1.0000"), (".5", "0.5000"), ("-0", "0.0000"), ("1.00005", "1.00005"), ("NaN",) * 2],
        ),
        ("decimal(5,0)", [("7", "7"), ("7.0", "7"), ("123456", "123456")]),
    ],
)
def test_texts_of_one_number_in_a_key_have_one_text(declared, texts):
    kind = column_type(Column("c", "numeric", 1700), policy(c=declared))
    assert [key_text(text, kind) for text, _ in texts] == [text for _, text in texts]
    instant = column_type(Column("c", "timestamptz", 1184))
    assert key_text("2024-01-01 08:00:00.5+08", instant) == "2024-01-01 00:00:00.5+00"
    assert key_text("infinity", instant) == "infinity"
