"""Rows of the text formats as they are taken apart: names, types and values beside each other, one tuple each.

Names and types of rows of one layout are the same tuples, not only equal ones, as long as the decoders remember it: so
a layout is found by identity, and a record of `Field`s is only built where one is wanted.
"""

from __future__ import annotations

from typing import NamedTuple

from cdc_lake.decode.mppdb.records import Field, Operation, Row
from cdc_lake.model.change import Value
from cdc_lake.model.relation import TableName


class Cells(NamedTuple):
    """One tuple of a row: unquoted names, type names as printed, values; all of one length."""

    names: tuple[str, ...]
    types: tuple[str, ...]
    values: tuple[Value, ...]

    def fields(self) -> tuple[Field, ...]:
        """The same as a record has it."""
        return tuple(map(Field, self.names, self.values, self.types))


class RowCells(NamedTuple):
    """A change of one row. None: the server sent no such tuple."""

    operation: Operation
    table: TableName
    new: Cells | None
    old: Cells | None

    def record(self, lsn: int | None) -> Row:
        """The record of it."""
        new = None if self.new is None else self.new.fields()
        return Row(self.operation, self.table, new, None if self.old is None else self.old.fields(), lsn)
