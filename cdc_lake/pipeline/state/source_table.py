"""A source table as people name it."""

from __future__ import annotations

from cdc_lake.errors import TableNotKnown
from cdc_lake.model.relation import TableName


def source_table(text: str) -> TableName:
    """`schema.table`, escaped as `TableName` prints it, or a table of `public`. Raises TableNotKnown."""
    try:
        return TableName.parse(text if "." in text else f"public.{text}")
    except ValueError as wrong:
        raise TableNotKnown(str(wrong)) from wrong
