"""Rewrites statements: replaces what the family has and PostgreSQL lacks by plain SQL.

Common table expressions in front of the statement shadow views and catalogs of the same name; calls of functions are
replaced by their result. String constants are not modified. One statement at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdc_lake.source.sql_text import literal

_OPAQUE: Final = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
_ARGUMENT: Final = re.compile(
    r"\s*(?:E?'((?:[^']|'')*)'|(NULL)|(-?\d+|true|false))(?:::[a-z_ \[\]0-9]+)?\s*(?:,|$)", re.IGNORECASE
)
_ALIAS: Final = re.compile(r"\s+(?:AS\s+)?(\w+|\"[^\"]+\")", re.IGNORECASE)
_NO_ALIAS: Final = frozenset(
    {
        *("where", "order", "limit", "group", "having", "for", "offset", "window", "union", "on"),
        *("join", "cross", "left", "right", "inner", "full", "natural"),
    }
)
_HEAD: Final = re.compile(r"\s*(COPY\s*\(\s*)?(WITH\s+(?!RECURSIVE\b)|SELECT\b|VALUES\b)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Rows:
    """A result to be written into a statement: columns as name → type, rows of text, None for NULL."""

    columns: Mapping[str, str]
    rows: Sequence[Sequence[str | None]]

    def query(self) -> str:
        """A query that gives it."""
        names = list(self.columns)
        kinds = list(self.columns.values())
        if not self.rows:
            nothing = ", ".join(f"NULL::{kind} AS {name}" for name, kind in self.columns.items())
            return f"SELECT {nothing} WHERE false"
        rows = ", ".join("(" + ", ".join(map(_constant, row, kinds)) + ")" for row in self.rows)
        return f"SELECT * FROM (VALUES {rows}) AS given({', '.join(names)})"


Function = Callable[[list[str | None]], Rows]
"""What a call gives, from its arguments: constants as text, None for NULL. May raise what the caller handles."""


class NotConstant(Exception):
    """An argument that is no constant."""


def masked(statement: str) -> str:
    """The statement with strings, quoted names and comments blanked out, character by character."""
    return _OPAQUE.sub(lambda m: "'" + " " * (len(m[0]) - 2) + "'" if m[0][0] == "'" else " " * len(m[0]), statement)


def constants(text: str) -> list[str | None]:
    """Arguments of a call; raises NotConstant."""
    out: list[str | None] = []
    at = 0
    while at < len(text) and text[at:].strip():
        if (match := _ARGUMENT.match(text, at)) is None:
            raise NotConstant(text[at:].strip())
        quoted, null, bare = match.groups()
        out.append(None if null else quoted.replace("''", "'") if quoted is not None else bare)
        at = match.end()
    return out


def call_of(statement: str, names: Sequence[str]) -> tuple[str, list[str | None], int, int] | None:
    """The first call of one of these functions: its name, arguments, start and end. Raises NotConstant."""
    shown = masked(statement)
    pattern = rf"(?<![\w.])(?:pg_catalog\s*\.\s*)?({'|'.join(map(re.escape, names))})\s*\(([^()]*)\)"
    if (match := re.search(pattern, shown, re.IGNORECASE)) is None:
        return None
    return match[1].lower(), constants(statement[match.start(2) : match.end(2)]), match.start(), match.end()


def with_calls(statement: str, functions: Mapping[str, Function]) -> str:
    """Replace every call of these functions; raises NotConstant."""
    while (call := call_of(statement, list(functions))) is not None:
        name, arguments, start, end = call
        rows = functions[name](arguments)
        if re.search(r"\b(FROM|JOIN)\s*$", masked(statement)[:start], re.IGNORECASE):
            alias = _ALIAS.match(statement, end)
            given = alias is not None and alias[1].lower() not in _NO_ALIAS
            put = f"({rows.query()})" + ("" if given else f' AS "{name}"')
        elif len(rows.columns) == 1:
            (kind,) = rows.columns.values()
            put = f'(SELECT {_constant(rows.rows[0][0], kind)} AS "{name}")'
        else:
            values = ", ".join(map(_constant, rows.rows[0], rows.columns.values()))
            put = f'(SELECT ROW({values}) AS "{name}")'
        # quoted, so that the name put in is not found again
        statement = statement[:start] + put + statement[end:]
    return statement


def with_views(statement: str, views: Mapping[str, Callable[[], str]]) -> str:
    """Shadow these relations where the statement names them, each by the query its function gives."""
    shown = masked(statement)
    named = [name for name in views if re.search(rf"\b{name}\b", shown, re.IGNORECASE)]
    head = _HEAD.match(statement)
    if not named or head is None:
        return statement
    shadows = ", ".join(f"{name} AS ({views[name]()})" for name in named)
    body = statement[head.start(2) :]
    for name in named:
        body = _replaced(body, rf"\bpg_catalog\s*\.\s*({name})\b")
    if head[2].upper().startswith("WITH"):
        return f"{head[1] or ''}WITH {shadows}, {body[len(head[2]) :]}"
    return f"{head[1] or ''}WITH {shadows} {body}"


def _replaced(statement: str, pattern: str) -> str:
    """Every match outside strings by its first group."""
    while (match := re.search(pattern, masked(statement), re.IGNORECASE)) is not None:
        statement = statement[: match.start()] + match[1] + statement[match.end() :]
    return statement


def _constant(value: str | None, kind: str) -> str:
    return f"NULL::{kind}" if value is None else f"{literal(value).strip()}::{kind}"
