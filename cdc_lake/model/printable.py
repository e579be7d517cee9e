"""Text for a terminal: names of tables and columns are whatever somebody called them, and give it no commands."""

from __future__ import annotations

import re
import unicodedata

_COLOUR = re.compile(r"(\x1b\[\d*m)")  # ECMA-48: select graphic rendition, as `cli.render` writes it


def printable(text: str, *, keep: str = "\n", colour: bool = False) -> str:
    """The text with control and format characters as escapes, but for those that are kept, and for `colour`."""
    if text.isprintable():
        return text
    parts = _COLOUR.split(text) if colour else [text]
    return "".join(part if nth % 2 else _escaped(part, keep) for nth, part in enumerate(parts))


def _escaped(text: str, keep: str) -> str:
    return "".join(
        one.encode("unicode_escape").decode()
        if one not in keep and unicodedata.category(one) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
        else one
        for one in text
    )
