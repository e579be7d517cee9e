r"""Which tables a pipeline captures: the patterns of `source.tables`.

A pattern is `schema.table`; `*` and `?` match within a part and never across the dot, `\` escapes as in a `TableName`,
a leading `!` takes tables out again. Patterns are read in order: a later one may take in what an earlier one took out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cdc_lake.model.relation import TableName


def compile_pattern(text: str) -> re.Pattern[str]:
    """A pattern without its `!` as a regular expression over `str(TableName)`. Raises ValueError where it is none."""
    TableName.parse(text)
    pieces, escaped = [], False
    for char in text:
        if escaped:
            pieces.append(re.escape("\\" + char if char in "\\." else char))
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == "*":
            pieces.append(r"(?:[^.\\]|\\.)*")
        elif char == "?":
            pieces.append(r"(?:[^.\\]|\\.)")
        else:
            pieces.append(re.escape(char))
    return re.compile("".join(pieces), re.DOTALL)


def captures(patterns: Sequence[str], table: TableName) -> bool:
    """Whether the patterns take a table in."""
    name, taken = str(table), False
    for pattern in patterns:
        if compile_pattern(pattern.removeprefix("!")).fullmatch(name):
            taken = not pattern.startswith("!")
    return taken
