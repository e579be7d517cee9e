"""SQL that the MERGEs of several kinds share: `t` is the silver table, `s` what a span amounts to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cdc_lake.lake.store import SilverColumn, literal, quoted
from cdc_lake.silver.changes import OP
from cdc_lake.silver.kind import TablePart


def same_key(part: TablePart, within: Sequence[str]) -> str:
    """The rows of one key. `within`, conditions that all of them meet, let files be skipped, but behind a truncate
    every row of the table is concerned.

    `<=>` only where a part of the key may be NULL: files are skipped by `=` alone.
    """
    shape = part.shape
    names = [quoted(column.name) for column in shape.key_columns]
    same = [
        f"{shape.row_key(at, f't.{name}')} {'<=>' if at in shape.nullable else '='} s.{name}"
        for at, name in enumerate(names)
    ]
    return " AND ".join([*same, *([] if part.truncated else within)])


def insert(table: str, view: str, columns: Iterable[str], op: str) -> str:
    """The rows of a view that are to `op`, put behind those of the table; `columns`: as `select` has them."""
    return f"INSERT INTO {table} BY NAME {select(view, columns, op)}"


def select(view: str, columns: Iterable[str], op: str) -> str:
    """The rows of a view that are to `op`; `columns`: names, or SQL over `s` AS a name."""
    return f"SELECT {', '.join(columns)} FROM {view} s WHERE s.{OP} = {literal(op)}"


def typed_literal(value: object, column: SilverColumn) -> str:
    """A value of a column, None for NULL."""
    return f"CAST({'NULL' if value is None else literal(str(value))} AS {column.type})"
