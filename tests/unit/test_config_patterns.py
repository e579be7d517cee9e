"""Regular expressions of rules: what means the same in Java and in Python is taken, all else is refused with its place."""

from __future__ import annotations

import importlib
import re

import pytest

from cdc_lake.config.rules import EXPECTATIONS, NotPortable, check_pattern, java, python
from cdc_lake.quality.great_expectations import engine

TAKEN = [
    "^(n|x)", "(?i)NEW", r"^\w+$", "(?i:a)b", "(?-i:a)", "a++", "(?>a)b", r"\{a}", r"[\]]", "(?=a)b", "(?<!a)b", r"(a)\1",
    "(?i)(?s)a", "[a-z0-9._%+-]+", "^[^@ ]+@[^@ ]+$", "a{2}", "a{2,}b{0,3}", r"[\[{(]", r"\x41я", "[&|~-]",
]  # fmt: skip
REFUSED = {
    "(a": 1, "[a": 1, "a{,3}": 2, "a{": 2, "[[a]": 2, "[a[b]]": 3, "[a&&b]": 3, "[a||b]": 3, "[]a]": 2, "[^]a]": 3,
    r"a\Z": 2, r"a\z": 2, r"\bfoo": 1, r"a\B": 2, r"\v": 1, r"\p{L}": 1, r"\h": 1, r"\0": 1, r"\101": 1, r"(a)\10": 0,
    r"\N{DIGIT ONE}": 1, "(?m)a": 1, "(?m:a)": 1, "(?x)a": 1, "(?u)a": 0, "(?P<x>a)": 1, "(?<x>a)": 2, "(a)(?(1)b)": 4,
    "(?#x)a": 1, "a**": 3, "a{99999999999}": 0, "a{12345}": 2, "\\": 1,
}  # fmt: skip


@pytest.mark.parametrize("pattern", TAKEN)
def test_what_both_read_alike_is_taken(pattern: str) -> None:
    check_pattern(pattern)
    re.compile(python(pattern))


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_they_do_not_read_alike_is_refused_at_its_character(pattern: str) -> None:
    with pytest.raises(NotPortable) as caught:
        check_pattern(pattern)
    at = REFUSED[pattern]
    assert not at or str(caught.value).endswith(f", at character {at}")


def test_each_is_told_what_ends_a_line_and_what_a_letter_is() -> None:
    assert (python("(?i)^a"), python("^a")) == ("(?ai)^a", "(?a)^a")
    assert java("(?i)^a") == "(?d)(?i)^a"


def test_the_expectations_that_a_rule_may_name_are_those_that_are_installed() -> None:
    registry = importlib.import_module(f"{engine().__name__}.expectations.registry")
    installed = registry.list_registered_expectation_implementations()
    elsewhere = {one for one in installed if "query" in one or "other_table" in one or not one.startswith("expect_")}
    assert set(EXPECTATIONS) == set(installed) - elsewhere
