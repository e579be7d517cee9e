"""Names: what a source column is called in silver.

An ordinary name stays as it is. Delta refuses blanks and `,;{}()=` in column names, a dot or backtick needs quoting
in every query, Spark sees no difference of case, and Iceberg keeps some names for itself. Such a name has these
characters replaced by `_` and a mark of its original appended, `order id` → `order_id_5c1f3a`, so that it cannot meet
an ordinary name by chance. Names depend only on the columns before them: adding a column renames none.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from cdc_lake.model.relation import Relation

_REFUSED = re.compile(r"[\s,;{}()=.`\x00-\x1f\x7f]")
# Iceberg's metadata columns (MetadataColumns.java), Delta's of the change data feed, Spark's hidden one
_RESERVED = frozenset(
    {
        "_file",
        "_pos",
        "_deleted",
        "_spec_id",
        "_partition",
        "_row_id",
        "_last_updated_sequence_number",
        "_change_type",
        "_change_ordinal",
        "_commit_snapshot_id",
        "_commit_version",
        "_commit_timestamp",
        "_metadata",
    }
)


def silver_names(relation: Relation) -> tuple[str, ...]:
    """The silver name of each column, by position: no two are equal, whatever the case."""
    return names_for(relation.names)


def names_for(columns: Sequence[str]) -> tuple[str, ...]:
    """The silver names of columns in layout order; the first of those that differ only by case keeps its name."""
    taken: set[str] = set()
    names: list[str] = []
    for column in columns:
        name = _free(column, taken)
        taken.add(folded(name))
        names.append(name)
    return tuple(names)


def _free(column: str, taken: set[str]) -> str:
    ordinary = _REFUSED.search(column) is None and folded(column) not in _RESERVED
    if ordinary and folded(column) not in taken:
        return column
    stem, turn = _REFUSED.sub("_", column), 0
    while True:
        mark = hashlib.sha256(f"{turn}:{column}".encode()).hexdigest()[:6]
        if folded(name := f"{stem}_{mark}") not in taken:
            return name
        turn += 1


def folded(name: str) -> str:
    """A name as catalogs that see no difference of case know it."""
    # Wider than Java's equalsIgnoreCase, which compares upper case forms too (a dotless i equals an i there).
    return name.upper().casefold()
