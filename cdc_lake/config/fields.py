r"""Types that fields share: quantities with units (`32 MiB`, `200 ms`), releases (`6.0.2`), patterns of names.

A pattern is `schema.table` or `schema.table.column`; `*` and `?` match within a part and never across the dot, `\`
escapes as in a `TableName`. In `source.tables` a leading `!` excludes tables, and patterns are read in order: a later
one may include again what an earlier one excluded.

The white list that servers of the GaussDB family filter by is `schema.table,…`: `*` stands for a whole schema name,
table name or both, never for a part of one. Names are compared as they are in the catalog, without quotes; a comma or
a dot in one cannot be written. TRUNCATE and DDL lines ignore the list, so the receiver filters again by `tables`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from cdc_lake.model.relation import TableName, escape_part, parts_of

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_TIMES = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)")


def _parse(value: object, units: dict[str, int], example: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and (m := _QUANTITY.fullmatch(value.strip())) and m[2] in units:
        return round(float(m[1]) * units[m[2]])
    raise ValueError(f"expected a quantity with a unit ({', '.join(units)}), for example `{example}`")


def _bytes(value: object) -> int:
    return _parse(value, _UNITS, "32 MiB")


def parse_milliseconds(value: object) -> int:
    """A length of time as people write it, `90 d`. Raises ValueError."""
    return _parse(value, _TIMES, "200 ms")


BYTES = BeforeValidator(_bytes, json_schema_input_type=int | str)
MILLISECONDS = BeforeValidator(parse_milliseconds, json_schema_input_type=int | str)

Bytes = Annotated[int, BYTES, Field(ge=1, examples=["32 MiB"])]
"""A number of bytes, written with a unit."""

Milliseconds = Annotated[int, MILLISECONDS, Field(ge=0, examples=["200 ms"])]
"""A length of time in milliseconds, written with a unit."""


def format_bytes(value: int) -> str:
    """The largest unit that gives a whole number: `32 MiB`, exact and ready to be written back."""
    return _format(value, _UNITS)


def format_milliseconds(value: int) -> str:
    """The largest unit that gives a whole number: `10 s`, exact and ready to be written back."""
    return _format(value, _TIMES)


def _format(value: int, units: dict[str, int]) -> str:
    name, size = max(((n, s) for n, s in units.items() if value % s == 0 and s <= max(value, 1)), key=lambda u: u[1])
    return f"{value // size} {name}"


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1, strict=True)]
Port = Annotated[int, Field(ge=1, le=65535, strict=True)]


class Section(BaseModel):
    """What every section is: frozen, strict about unknown keys, silent about values in errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, populate_by_name=True, use_attribute_docstrings=True
    )


Release: TypeAlias = tuple[int, int, int]
"""Three numbers; what a text does not say is 0. GaussDB's numbers are of another line than openGauss's and MogDB's."""


def parse_release(text: str) -> Release:
    """The numbers a release begins with; raises ValueError where it begins with none."""
    match = re.match(r"([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?", text)
    if match is None:
        raise ValueError(f"`{text}` is not a release: expected numbers with dots")
    return int(match[1]), int(match[2] or 0), int(match[3] or 0)


def pad_release(numbers: tuple[int, ...]) -> Release:
    """Three numbers of however many there are: a shorter tuple would sort before its own release."""
    first, second, third = (*numbers, 0, 0, 0)[:3]
    return first, second, third


def show_release(release: Release) -> str:
    """The release as people write it."""
    return ".".join(map(str, release))


_ANY, _ONE = "*", "?"
_ENDS = ("", ".")  # what no wildcard matches


def compile_pattern(text: str) -> re.Pattern[str]:
    """A pattern without its `!` as a regular expression over `str(TableName)`. Raises ValueError where it is none."""
    TableName.parse(text)
    return _compile_regex(text)


def compile_columns(text: str) -> re.Pattern[str]:
    """A pattern of columns as a regular expression over `TableName.column`. Raises ValueError where it is none."""
    if len(parts_of(text)) != 3:
        raise ValueError(f"`{text}` is not a column pattern: expected schema.table.column")
    return _compile_regex(text)


def exact_column(text: str) -> tuple[TableName, str] | None:
    """The one column that a pattern of columns can mean; None where it has a wildcard."""
    if any(token in (_ANY, _ONE) for token in _tokens(text)):
        return None
    schema, table, column = parts_of(text)
    return TableName(schema, table), column


def overlap(pattern: str, other: str) -> bool:
    """Whether some name matches both patterns, which have as many parts."""
    own_tokens, theirs = [*_tokens(pattern), ""], [*_tokens(other), ""]
    places, visited = [(0, 0)], {(0, 0)}
    while places:
        i, j = places.pop()
        a, b = own_tokens[i], theirs[j]
        if not a and not b:
            return True
        steps = set()
        if _ANY in (a, b):  # it ends here, or takes one character more of the other
            steps |= {(i + 1, j), (i, j + (b not in _ENDS))} if a == _ANY else {(i, j + 1), (i + (a not in _ENDS), j)}
        elif a == b or (_ONE in (a, b) and a not in _ENDS and b not in _ENDS):
            steps = {(i + 1, j + 1)}
        places += steps - visited
        visited |= steps
    return False


def _tokens(text: str) -> list[str]:
    r"""A pattern by character: `*`, `?` and the dots between parts as they are, every other one behind a `\`."""
    tokens, after_backslash = [], False
    for char in text:
        if char == "\\" and not after_backslash:
            after_backslash = True
            continue
        tokens.append(char if char in ".*?" and not after_backslash else f"\\{char}")
        after_backslash = False
    return tokens


def _compile_regex(text: str) -> re.Pattern[str]:
    wild = {_ANY: r"(?:[^.\\]|\\.)*", _ONE: r"(?:[^.\\]|\\.)", ".": r"\."}
    pieces = [wild.get(token) or re.escape(escape_part(token[1])) for token in _tokens(text)]
    return re.compile("".join(pieces), re.DOTALL)


def captures(patterns: Sequence[str], table: TableName) -> bool:
    """Whether the patterns take a table in."""
    name, captured = str(table), False
    for pattern in patterns:
        if compile_pattern(pattern.removeprefix("!")).fullmatch(name):
            captured = not pattern.startswith("!")
    return captured


_PLAIN = re.compile(r"[A-Za-z0-9_$#@ ]+")
"""Names that can be written in every mode: ASCII, since the server compares bytes of its own encoding."""


def white_list(patterns: Sequence[str]) -> str | None:
    """The narrowest list that lets through every table that `tables` takes in; None where that is every table.

    Names with a wildcard inside or a character the list cannot hold become `*`: the list may let through more than
    the patterns take in, never less. Patterns that take tables out are left to the receiver.
    """
    required = [_required_entry(p) for p in patterns if not p.startswith("!")]
    entries = dict.fromkeys(tuple(part if _PLAIN.fullmatch(part) else _ANY for part in entry) for entry in required)
    remaining = [e for e in entries if not any(other != e and covers(other, e) for other in entries)]
    if not remaining or (_ANY, _ANY) in remaining:
        return None
    return ",".join(".".join(entry) for entry in remaining)


def find_uncovered(listed: str, patterns: Sequence[str]) -> list[str]:
    """Patterns of `tables` of which a list that somebody wrote does not let through everything."""
    entries = [entry.split(".") for entry in listed.split(",")]
    positive = [p for p in patterns if not p.startswith("!")]
    return [p for p in positive if not any(covers(entry, _required_entry(p)) for entry in entries)]


def covers(entry: Sequence[str], other: Sequence[str]) -> bool:
    """Whether an entry lets through everything that another does."""
    return all(a in (_ANY, b) for a, b in zip(entry, other, strict=True))


def wrong_entry(listed: str) -> str | None:
    """The first entry that the server refuses or compares with nothing; None where all are right."""
    for entry in listed.split(","):
        schema, dot, table = entry.partition(".")
        right = dot and schema and table and "." not in table and not re.search(r"\s", entry)
        if not right or any(_ANY in part and part != _ANY for part in (schema, table)):
            return entry
    return None


def _required_entry(pattern: str) -> list[str]:
    """A pattern's parts, `*` for one that has a wildcard."""
    name = TableName.parse(pattern)
    return [_ANY if re.search(r"[*?]", part) else part for part in (name.schema, name.name)]
