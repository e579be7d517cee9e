"""Mapping of PostgreSQL types and names of columns, without Spark."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lake.model.relation import Column, Relation, ReplicaIdentity, TableName, numeric_modifier
from cdc_lake.tables.casts import cast_sql, fits_sql, widens
from cdc_lake.tables.types import LEDGER, Loss, column_type, names_for


def numeric(precision: int, scale: int) -> int:
    return ((precision << 16) | (scale & 0x7FF)) + 4


def relation(*columns: Column) -> Relation:
    return Relation(TableName("public", "t"), columns, ReplicaIdentity.DEFAULT, ("id",))


ID = Column("id", "int8", 20, key=True)


@pytest.mark.parametrize(
    ("modifier", "expected"),
    [
        (numeric(10, 2), "decimal(10,2)"),
        (numeric(38, 0), "decimal(38,0)"),
        (numeric(38, 38), "decimal(38,38)"),
        (numeric(1, 0), "decimal(1,0)"),
        (numeric(39, 2), "string"),
        (numeric(1000, 1000), "string"),
        (numeric(5, -2), "string"),
        (numeric(2, 4), "string"),
        (-1, "string"),
    ],
)
def test_numeric_is_a_decimal_where_a_decimal_holds_it(modifier, expected):
    assert column_type(Column("n", "numeric", 1700, modifier)).sql == expected


@pytest.mark.parametrize("pair", [(10, 2), (1000, 1000), (5, -3), (1, -1000), (38, 38), (3, 5)])
def test_numeric_modifier_reads_what_the_server_packs(pair):
    assert numeric_modifier(numeric(*pair)) == pair
    assert numeric_modifier(-1) is None


def test_a_type_nobody_knows_stays_text_and_says_so():
    kind = column_type(Column("mood", "mood", 16385))
    assert (kind.sql, kind.loss) == ("string", Loss.CONVERTED)
    assert kind.note


def test_a_users_type_named_like_a_built_in_one_is_not_taken_for_it():
    assert column_type(Column("x", "int4", 16390)).sql == "string"


def test_names_count_only_where_the_source_gives_no_oid():
    assert column_type(Column("x", "timestamp with time zone", 0)).sql == "timestamp"
    assert column_type(Column("x", "decimal", 0, numeric(4, 1))).sql == "decimal(4,1)"


def test_ledger_names_each_type_once():
    names = [n for row in LEDGER for n in (row.name, *row.aliases)]
    assert len(names) == len(set(names))
    assert len({row.oid for row in LEDGER}) == len(LEDGER)


def test_text_is_neither_cast_nor_checked():
    kind = column_type(Column("t", "text", 25))
    assert cast_sql("new[0]", kind) == "new[0]"
    assert fits_sql("new[0]", kind) == "true"


@pytest.mark.parametrize(
    ("old", "new", "wider"),
    [
        ("decimal(10,2)", "decimal(12,4)", True),
        ("decimal(10,2)", "decimal(11,4)", False),
        ("decimal(10,2)", "decimal(12,1)", False),
        ("smallint", "bigint", True),
        ("bigint", "int", False),
        ("int", "double", False),
        ("float", "double", True),
        ("date", "timestamp_ntz", True),
        ("date", "timestamp", False),
        ("int", "string", False),
    ],
)
def test_widening_keeps_every_value(old, new, wider):
    assert widens(old, new) is wider


NAMES = st.lists(
    st.one_of(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12),
        st.sampled_from(["id", "ID", "Id", "a b", "a_b", "a,b", "a.b", "\u0131", "I", "i", "_deleted", "ß", "SS", "İ"]),
    ),
    unique=True,
    max_size=12,
)


def test_ordinary_names_stay():
    assert names_for(["id", "größe", "Preis2", "_x"]) == ("id", "größe", "Preis2", "_x")


def test_the_first_of_names_that_differ_by_case_keeps_its_name():
    first, second = names_for(["Id", "ID"])
    assert first == "Id"
    assert second != "ID"
    assert second.startswith("ID_")


def test_names_the_formats_keep_for_themselves_are_changed():
    assert all(name.endswith(re.findall("[0-9a-f]{6}$", name)[0]) for name in names_for(["_deleted", "_Pos"]))


@given(NAMES)
def test_names_are_distinct_whatever_the_case_and_hold_nothing_refused(columns):
    names = names_for(columns)
    assert len({n.lower() for n in names}) == len({n.upper() for n in names}) == len(columns)
    assert not any(set(n) & set(" ,;{}()\n\t=.`") for n in names)


@given(NAMES, NAMES)
def test_added_columns_rename_none(columns, added):
    more = [c for c in added if c not in columns]
    assert names_for([*columns, *more])[: len(columns)] == names_for(columns)
