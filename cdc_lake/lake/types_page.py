"""The reference page of types, `docs/reference/types.md`, made from the ledger that converts.

::

    python -m cdc_lake.lake.types_page docs/reference/types.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from cdc_lake.lake.types import LEDGER, SPARK_MAX_PRECISION, ColumnType, Loss, column_type
from cdc_lake.model.relation import Column

_HEAD = """<!-- made by `python -m cdc_lake.lake.types_page docs/reference/types.md` -->
# Types

Which type a PostgreSQL column has in silver. `lossless`: every value is the same value there, but for the ones named in
the last column, which are **held**: the change goes to quarantine with its text under the rule `type_<column>`, and
later changes of its key wait behind it. A value is never clipped, rounded or replaced by NULL. `converted`: silver has
the text that the server prints, so nothing is lost, but it is text.

| PostgreSQL | also called | silver | | note | held |
|---|---|---|---|---|---|
"""

_TAIL = """
Everything that is not listed (enums, domains, composites, arrays, ranges, geometric types, extensions' types) is
`string`, converted: the text the server prints. A domain is text even over a type that is listed, because the stream
names the domain only.

## How values are read

The server prints values with `DateStyle` ISO, `TimeZone` UTC, `IntervalStyle` iso_8601, `bytea_output` hex and the
shortest exact floats, in the initial copy and in the stream alike; servers of the GaussDB family with `IntervalStyle`
postgres, and in parallel decoding with the database's own `TimeZone`. A text fits where the typed value prints as
exactly that text again; floats, which have many texts, must be a number or `NaN`, `Infinity`, `-Infinity`.

A `character(n)` keeps its padding. An instant (`timestamptz`) is the same instant in silver; the zone it was written
with is not kept, because PostgreSQL does not keep it either. A numeric with a precision of at most {digits} and a scale
between 0 and the precision is a `decimal`; others stay text with all their digits.

## Names

A column keeps its name unless Delta, Iceberg or Spark cannot have it: one with a blank or one of `,;{{}}()=.` or a
backtick, one that differs from an earlier column only by case, and the names that the formats keep for their own
metadata columns (`_file`, `_pos`, `_deleted`, …). Such a name has these characters replaced by `_` and six hexadecimal
digits appended that depend only on the name. Adding a column at the source renames none that were there.
"""

_BOUNDED = Column("n", "numeric", 1700, ((10 << 16) | 2) + 4)  # numeric(10,2)


def page() -> str:
    """The whole page."""
    rows = []
    for row in LEDGER:
        if row.name == "numeric":
            bounded = column_type(_BOUNDED)
            sql = ColumnType("decimal(p,s)", bounded.family, bounded.loss, bounded.note, bounded.held)
            rows.append(_row("numeric(p,s)", "decimal(p,s)", sql, f"p ≤ {SPARK_MAX_PRECISION} and 0 ≤ s ≤ p"))
        rows.append(_row(row.name, ", ".join(f"`{name}`" for name in row.aliases), row.type))
    return _HEAD + "\n".join(rows) + "\n" + _TAIL.format(digits=SPARK_MAX_PRECISION)


def _row(name: str, also: str, kind: ColumnType, note: str = "") -> str:
    loss = kind.loss.value if kind.loss is Loss.LOSSLESS else f"**{kind.loss.value}**"
    return f"| `{name}` | {also} | `{kind.sql}` | {loss} | {note or kind.note} | {kind.held} |"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
