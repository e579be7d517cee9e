r"""Which tables a pipeline captures: the patterns of `source.tables`.

A pattern is `schema.table`; `*` and `?` match within a part and never across the dot, `\` escapes as in a `TableName`,
a leading `!` takes tables out again. The order of the patterns does not matter.
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
    name = str(table)
    taken = any(compile_pattern(p).fullmatch(name) for p in patterns if not p.startswith("!"))
    return taken and not any(compile_pattern(p[1:]).fullmatch(name) for p in patterns if p.startswith("!"))
