"""The white list of tables that a server of the GaussDB family filters by: `schema.table,…`.

`*` stands for a whole schema name, table name or both, never for a part of one. Names are compared as they are in the
catalog, without quotes; a comma or a dot in one cannot be written. TRUNCATE and DDL lines ignore the list, so whoever
receives filters again by `tables`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cdc_lake.model.relation import TableName

ANY = "*"
_PLAIN = re.compile(r"[A-Za-z0-9_$#@ ]+")
"""Names that can be written in every mode: ASCII, since the server compares bytes of its own encoding."""


def white_list(patterns: Sequence[str]) -> str | None:
    """The narrowest list that lets through every table that `tables` takes in; None where that is every table.

    Names with a wildcard inside or a character the list cannot hold become `*`: the list may let through more than
    the patterns take in, never less. Patterns that take tables out are left to the receiver.
    """
    entries = dict.fromkeys(_entry(p) for p in patterns if not p.startswith("!"))
    kept = [e for e in entries if not any(other != e and covers(other, e) for other in entries)]
    return None if not kept or (ANY, ANY) in kept else ",".join(f"{schema}.{table}" for schema, table in kept)


def uncovered(listed: str, patterns: Sequence[str]) -> list[str]:
    """Patterns of `tables` of which a list that somebody wrote does not let through everything."""
    entries = [(schema, table) for schema, _, table in (e.partition(".") for e in listed.split(","))]
    positive = [p for p in patterns if not p.startswith("!")]
    return [p for p in positive if not any(covers(entry, _needed(p)) for entry in entries)]


def covers(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Whether an entry lets through everything that another does."""
    return all(a in (ANY, b) for a, b in zip(one, other, strict=True))


def wrong_entry(listed: str) -> str | None:
    """The first entry that the server refuses or compares with nothing; None where all are right."""
    for entry in listed.split(","):
        schema, dot, table = entry.partition(".")
        right = dot and schema and table and "." not in table and not re.search(r"\s", entry)
        if not right or any(ANY in part and part != ANY for part in (schema, table)):
            return entry
    return None


def _entry(pattern: str) -> tuple[str, str]:
    schema, table = _needed(pattern)
    return (schema if _PLAIN.fullmatch(schema) else ANY, table if _PLAIN.fullmatch(table) else ANY)


def _needed(pattern: str) -> tuple[str, str]:
    """A pattern's parts, `*` for one that has a wildcard."""
    name = TableName.parse(pattern)
    return _part(name.schema), _part(name.name)


def _part(part: str) -> str:
    return ANY if re.search(r"[*?]", part) else part
