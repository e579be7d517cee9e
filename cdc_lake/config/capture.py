r"""Patterns of names: which tables a pipeline captures (`source.tables`), which columns a rule means.

A pattern is `schema.table` or `schema.table.column`; `*` and `?` match within a part and never across the dot, `\`
escapes as in a `TableName`. In `source.tables` a leading `!` takes tables out again, and patterns are read in order: a
later one may take in what an earlier one took out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cdc_lake.model.relation import TableName, escaped, parts_of

_ANY, _ONE = "*", "?"
_ENDS = ("", ".")  # what no wildcard matches


def compile_pattern(text: str) -> re.Pattern[str]:
    """A pattern without its `!` as a regular expression over `str(TableName)`. Raises ValueError where it is none."""
    TableName.parse(text)
    return _compiled(text)


def compile_columns(text: str) -> re.Pattern[str]:
    """A pattern of columns as a regular expression over `TableName.column`. Raises ValueError where it is none."""
    if len(parts_of(text)) != 3:
        msg = f"`{text}` is not a column pattern: expected schema.table.column"
        raise ValueError(msg)
    return _compiled(text)


def exact_column(text: str) -> tuple[TableName, str] | None:
    """The one column that a pattern of columns can mean; None where it has a wildcard."""
    if any(token in (_ANY, _ONE) for token in _tokens(text)):
        return None
    schema, table, column = parts_of(text)
    return TableName(schema, table), column


def overlap(one: str, other: str) -> bool:
    """Whether some name matches both patterns, which have as many parts."""
    mine, theirs = [*_tokens(one), ""], [*_tokens(other), ""]
    places, seen = [(0, 0)], {(0, 0)}
    while places:
        i, j = places.pop()
        a, b = mine[i], theirs[j]
        if not a and not b:
            return True
        steps = set()
        if _ANY in (a, b):  # it ends here, or takes one character more of the other
            steps |= {(i + 1, j), (i, j + (b not in _ENDS))} if a == _ANY else {(i, j + 1), (i + (a not in _ENDS), j)}
        elif a == b or (_ONE in (a, b) and a not in _ENDS and b not in _ENDS):
            steps = {(i + 1, j + 1)}
        places += steps - seen
        seen |= steps
    return False


def _tokens(text: str) -> list[str]:
    r"""A pattern by character: `*`, `?` and the dots between parts as they are, every other one behind a `\`."""
    tokens, behind = [], False
    for char in text:
        if char == "\\" and not behind:
            behind = True
            continue
        tokens.append(char if char in ".*?" and not behind else f"\\{char}")
        behind = False
    return tokens


def _compiled(text: str) -> re.Pattern[str]:
    wild = {_ANY: r"(?:[^.\\]|\\.)*", _ONE: r"(?:[^.\\]|\\.)", ".": r"\."}
    pieces = [wild.get(token) or re.escape(escaped(token[1])) for token in _tokens(text)]
    return re.compile("".join(pieces), re.DOTALL)


def captures(patterns: Sequence[str], table: TableName) -> bool:
    """Whether the patterns take a table in."""
    name, taken = str(table), False
    for pattern in patterns:
        if compile_pattern(pattern.removeprefix("!")).fullmatch(name):
            taken = not pattern.startswith("!")
    return taken
