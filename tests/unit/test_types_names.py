"""Silver names of columns."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from cdc_lake.tables.types import names_for

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
