"""Tables: which ones the patterns of `source.tables` choose."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from cdc_lake.errors import NoTableMatches
from cdc_lake.model.relation import TableName

VERSION: Final = (
    "c.oid::text || ' ' || c.xmin::text || ' ' || c.relfilenode::text || ' ' || (SELECT "
    "count(*)::text || ' ' || sum(a.xmin::text::bigint)::text FROM pg_attribute AS a WHERE a.attrelid = c.oid) || ' ' "
    "|| (SELECT count(*)::text || ' ' || coalesce(sum(i.xmin::text::bigint), 0)::text FROM pg_index AS i "
    "WHERE i.indrelid = c.oid) || ' ' || (SELECT t.xmin::text || ' ' || t.typowner::text FROM pg_type AS t "
    "WHERE t.oid = c.reltype)"
)
"""SQL, of a table `c` in the catalog of either family: a text that is another one once the table is altered. Its last
two words are `decode.mppdb.facts.named_by`.
"""


def select_tables(patterns: Sequence[str], tables: Iterable[TableName]) -> list[TableName]:
    """The tables that the patterns choose, sorted; raises NoTableMatches for a pattern that chooses nothing."""
    known = sorted(tables)
    chosen: set[TableName] = set()
    for pattern in patterns:
        taken_out = pattern.startswith("!")
        match = _compiled(pattern.removeprefix("!"))
        found = {t for t in known if match(t)}
        if taken_out:
            chosen -= found
        elif found:
            chosen |= found
        else:
            raise NoTableMatches(f"`{pattern}` of `source.tables` matches no table in the database")
    if not chosen:
        raise NoTableMatches("`source.tables` leaves no table over")
    return sorted(chosen)


def left_out(tables: Sequence[TableName]) -> str:
    """What to write into `source.tables` so that tables are left out."""
    return f"{', '.join(f'`!{table}`' for table in tables)} in `source.tables`"


def chooses(patterns: Sequence[str]) -> Callable[[TableName], bool]:
    """The patterns as a predicate, whatever tables there are; raises NoTableMatches for a text that is no pattern."""
    steps = [(not pattern.startswith("!"), _compiled(pattern.removeprefix("!"))) for pattern in patterns]

    def chosen(table: TableName) -> bool:
        inside = False
        for takes_in, match in steps:
            if takes_in is not inside and match(table):
                inside = takes_in
        return inside

    return chosen


def _compiled(pattern: str) -> Callable[[TableName], bool]:
    """A pattern as a predicate: `schema.table`, escaped as in `TableName`, `*` and `?` within a part."""
    try:
        parts = TableName.parse(pattern)
    except ValueError as wrong:
        raise NoTableMatches(f"`{pattern}` of `source.tables` is not a pattern: {wrong}") from wrong
    schema, name = (_wildcards(part) for part in (parts.schema, parts.name))
    return lambda table: bool(schema.fullmatch(table.schema) and name.fullmatch(table.name))


def _wildcards(part: str) -> re.Pattern[str]:
    known = {"*": ".*", "?": "."}
    return re.compile("".join(known.get(char) or re.escape(char) for char in part), re.DOTALL)
