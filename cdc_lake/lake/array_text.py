"""Array text: the elements of an array as PostgreSQL prints it, read without Spark.

The second opinion on the SQL of `lake.casts`: a walk over characters, as array_in of arrayfuncs.c reads them.
"""

from __future__ import annotations

from collections.abc import Iterator

_BLANK = " \t\n\r\v\f"


def elements_of(text: str) -> list[str | None] | None:
    """The texts of the elements of an array of one dimension from 1 on; None where the text is none."""
    if text == "{}":
        return []
    if len(text) < 3 or text[0] != "{" or text[-1] != "}":
        return None
    found: list[str | None] = []
    characters = iter(text[1:-1])
    while True:
        element, behind = _element(characters)
        if behind is None:
            return None
        found.append(element)
        if behind == "":
            return found


def _element(characters: Iterator[str]) -> tuple[str | None, str | None]:
    """One element, and what stands behind it: a comma, nothing, or None where the text is no array."""
    first = next(characters, "")
    if first == '"':
        inner = _quoted(characters)
        behind = next(characters, "")
        return (inner, behind) if inner is not None and behind in {",", ""} else (None, None)
    parts: list[str] = []
    while first not in {",", ""}:
        if first in '{}"\\' or first in _BLANK:
            return None, None
        parts.append(first)
        first = next(characters, "")
    element = "".join(parts)
    if not element:
        return None, None
    return (None if element == "NULL" else element), first


def _quoted(characters: Iterator[str]) -> str | None:
    """The rest of a quoted element; None where it does not end."""
    parts: list[str] = []
    for one in characters:
        if one == '"':
            return "".join(parts)
        if one == "\\":
            escaped = next(characters, "")
            if escaped not in {'"', "\\"}:
                return None
            parts.append(escaped)
        else:
            parts.append(one)
    return None
