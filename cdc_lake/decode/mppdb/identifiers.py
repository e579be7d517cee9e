"""SQL identifiers as the server quotes them: bare, or in double quotes with `"` doubled.

Which words need quotes differs between releases, so names are always unquoted and never compared as they are printed.
"""

from __future__ import annotations

import re
from typing import Final

from cdc_lake.errors import MalformedMessage
from cdc_lake.model.relation import TableName

QUOTED: Final = r'"[^"]*+(?:""[^"]*+)*+"'
"""Pattern of an identifier in quotes."""
NAME: Final = rf'(?:{QUOTED}|[^ \t\r\n"\'\[\]:.,(){{}}]++)'
"""Pattern of an identifier: in quotes, or without any sign that could end it."""

_QUALIFIED: Final = re.compile(rf"({NAME})\.({NAME})")


def unquote(name: str, at: int = 0) -> str:
    """The name an identifier stands for. `at` is the byte it stands at, for the error."""
    if not name.startswith('"'):
        if not name:
            raise MalformedMessage("a name of no characters", offset=at)
        return name
    inner = name[1:-1]
    if not inner or name[-1] != '"' or '"' in inner.replace('""', ""):
        raise MalformedMessage("a name whose quotes do not match", offset=at)
    return inner.replace('""', '"')


def table_name(text: str, at: int = 0) -> TableName:
    """A schema and a table joined by a dot; a dot inside quotes belongs to the name."""
    parts = _QUALIFIED.fullmatch(text)
    if parts is None:
        raise MalformedMessage("a name that is not `schema.table`", offset=at)
    return TableName(unquote(parts[1], at), unquote(parts[2], at))
