"""SQL that the MERGEs of several kinds share: `t` is the silver table, `s` what a span amounts to."""

from __future__ import annotations

from cdc_lake.lake.store import SilverColumn, literal, quoted
from cdc_lake.silver.kind import TablePart


def same_key(part: TablePart, bounds: tuple[int, int] | None) -> str:
    """The rows of one key. `bounds` let files be skipped, but behind a truncate every row of the table is concerned.

    `<=>` only where a part of the key may be NULL: files are skipped by `=` alone.
    """
    shape = part.shape
    names = [quoted(column.name) for column in shape.key_columns]
    same = [f"t.{name} {'<=>' if at in shape.nullable else '='} s.{name}" for at, name in enumerate(names)]
    if bounds is not None and not part.truncated:
        same.append(f"t.{names[0]} BETWEEN {bounds[0]} AND {bounds[1]}")
    return " AND ".join(same)


def typed_literal(value: object, column: SilverColumn) -> str:
    """A value of a column, None for NULL."""
    return f"CAST({'NULL' if value is None else literal(str(value))} AS {column.type})"
