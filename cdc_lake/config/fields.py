r"""Shared field types: quantities with units (`32 MiB`, `200 ms`), releases (`6.0.2`), and name patterns.

A pattern is `schema.table` or `schema.table.column`. `*` and `?` match within one part, never across a dot; `\` escapes
a character as in `TableName`. In `source.tables`, a leading `!` excludes tables; patterns apply in order, so a later
pattern can include what an earlier one excluded.

Servers of the GaussDB family filter by a white list, `schema.table,…`, in which `*` stands for an entire schema name,
table name, or both, never for part of a name. Names are compared as stored in the catalog, without quotes; a name that
contains a comma or a dot cannot be written. TRUNCATE and DDL lines ignore the list, so the receiver filters by `tables`
again.
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
    """Parse a duration with a unit, such as `90 d`. Raises ValueError."""
    return _parse(value, _TIMES, "200 ms")


BYTES = BeforeValidator(_bytes, json_schema_input_type=int | str)
MILLISECONDS = BeforeValidator(parse_milliseconds, json_schema_input_type=int | str)

Bytes = Annotated[int, BYTES, Field(ge=1, examples=["32 MiB"])]
"""A size in bytes, written with a unit."""

Milliseconds = Annotated[int, MILLISECONDS, Field(ge=0, examples=["200 ms"])]
"""A duration in milliseconds, written with a unit."""


def format_bytes(value: int) -> str:
    """Format in the largest unit that divides the value, so that the text is exact: `32 MiB`."""
    return _format(value, _UNITS)


def format_milliseconds(value: int) -> str:
    """Format in the largest unit that divides the value, so that the text is exact: `10 s`."""
    return _format(value, _TIMES)


def _format(value: int, units: dict[str, int]) -> str:
    name, size = max(((n, s) for n, s in units.items() if value % s == 0 and s <= max(value, 1)), key=lambda u: u[1])
    return f"{value // size} {name}"


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1, strict=True)]
Port = Annotated[int, Field(ge=1, le=65535, strict=True)]


class Section(BaseModel):
    """The base of all sections: frozen; unknown keys are errors, and errors do not show values."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, populate_by_name=True, use_attribute_docstrings=True
    )


Release: TypeAlias = tuple[int, int, int]
"""Three numbers; missing ones are 0. GaussDB numbers its releases independently of openGauss and MogDB."""


def parse_release(text: str) -> Release:
    """Parse the numbers at the start of a release. Raises ValueError if there are none."""
    match = re.match(r"([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?", text)
    if match is None:
        raise ValueError(f"`{text}` is not a release: expected numbers with dots")
    return int(match[1]), int(match[2] or 0), int(match[3] or 0)


def pad_release(numbers: tuple[int, ...]) -> Release:
    """Pad or cut the numbers to three: a shorter tuple would sort before its own release."""
    first, second, third = (*numbers, 0, 0, 0)[:3]
    return first, second, third


def show_release(release: Release) -> str:
    """Format a release: `6.0.2`."""
    return ".".join(map(str, release))


_ANY, _ONE = "*", "?"
_ENDS = ("", ".")  # what no wildcard matches


def compile_pattern(text: str) -> re.Pattern[str]:
    """Compile a table pattern, without its `!`, for matching `str(TableName)`. Raises ValueError if it is invalid."""
    TableName.parse(text)
    return _compile_regex(text)


def compile_columns(text: str) -> re.Pattern[str]:
    """Compile a column pattern for matching `TableName.column`. Raises ValueError if it is invalid."""
    if len(parts_of(text)) != 3:
        raise ValueError(f"`{text}` is not a column pattern: expected schema.table.column")
    return _compile_regex(text)


def exact_column(text: str) -> tuple[TableName, str] | None:
    """The only column that a column pattern can match; None if the pattern has a wildcard."""
    if any(token in (_ANY, _ONE) for token in _tokens(text)):
        return None
    schema, table, column = parts_of(text)
    return TableName(schema, table), column


def overlap(pattern: str, other: str) -> bool:
    """Whether a name can match both patterns, which have the same number of parts."""
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
    r"""Split a pattern into characters: `*`, `?` and the dots between parts unchanged, others preceded by `\`."""
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
    """Whether the patterns include a table."""
    name, captured = str(table), False
    for pattern in patterns:
        if compile_pattern(pattern.removeprefix("!")).fullmatch(name):
            captured = not pattern.startswith("!")
    return captured


_PLAIN = re.compile(r"[A-Za-z0-9_$#@ ]+")
"""Names that can be written in every mode: only ASCII, because the server compares bytes in its own encoding."""


def white_list(patterns: Sequence[str]) -> str | None:
    """The narrowest white list that lets through every table that `tables` captures; None if that is every table.

    A name with a wildcard in it, or with a character that the list cannot represent, becomes `*`: the list may let
    through more than the patterns capture, never less. The receiver applies patterns that exclude tables.
    """
    required = [_required_entry(p) for p in patterns if not p.startswith("!")]
    entries = dict.fromkeys(tuple(part if _PLAIN.fullmatch(part) else _ANY for part in entry) for entry in required)
    remaining = [e for e in entries if not any(other != e and covers(other, e) for other in entries)]
    if not remaining or (_ANY, _ANY) in remaining:
        return None
    return ",".join(".".join(entry) for entry in remaining)


def find_uncovered(listed: str, patterns: Sequence[str]) -> list[str]:
    """The patterns of `tables` whose tables a configured white list does not let through completely."""
    entries = [entry.split(".") for entry in listed.split(",")]
    positive = [p for p in patterns if not p.startswith("!")]
    return [p for p in positive if not any(covers(entry, _required_entry(p)) for entry in entries)]


def covers(entry: Sequence[str], other: Sequence[str]) -> bool:
    """Whether an entry lets through everything that another entry does."""
    return all(a in (_ANY, b) for a, b in zip(entry, other, strict=True))


def wrong_entry(listed: str) -> str | None:
    """The first entry that the server rejects or never matches; None if all are valid."""
    for entry in listed.split(","):
        schema, dot, table = entry.partition(".")
        right = dot and schema and table and "." not in table and not re.search(r"\s", entry)
        if not right or any(_ANY in part and part != _ANY for part in (schema, table)):
            return entry
    return None


def _required_entry(pattern: str) -> list[str]:
    """The parts of a pattern, with `*` in place of a part that has a wildcard."""
    name = TableName.parse(pattern)
    return [_ANY if re.search(r"[*?]", part) else part for part in (name.schema, name.name)]
