"""Columns of a silver table that its source table does not have: which change made a row, since when it is one.

Their names start with an underscore, but for those of history, which people query by: a source column of the same name
is an error of the pipeline (`NameTaken`), never a column that is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cdc_lake.errors import NameTaken
from cdc_lake.lake.store import SilverColumn
from cdc_lake.silver.shape import Shape

LINEAGE: Final = {
    SilverColumn("_csn", "bigint"): "csn",
    SilverColumn("_lsn", "bigint"): "lsn",
    SilverColumn("_xid", "bigint"): "xid",
    SilverColumn("_ordinal", "bigint"): "ordinal",
    SilverColumn("_commit_ts", "timestamp"): "commit_ts",
}
"""Which column of bronze each column of lineage is; those of the last change of a row."""

DELETED: Final = SilverColumn("_is_deleted", "boolean")
"""Soft deletes: the source does not have the row any more. Its values are the last ones. (Iceberg keeps the name
`_deleted` for itself.)"""

VALID_FROM: Final = (
    SilverColumn("valid_from_epoch", "int"),
    SilverColumn("valid_from", "bigint"),
    SilverColumn("valid_from_ts", "timestamp"),
)
VALID_TO: Final = (
    SilverColumn("valid_to_epoch", "int"),
    SilverColumn("valid_to", "bigint"),
    SilverColumn("valid_to_ts", "timestamp"),
)
IS_CURRENT: Final = SilverColumn("is_current", "boolean")
"""History: a version holds from the transaction at `(valid_from_epoch, valid_from)`, committed at `valid_from_ts`,
until before the one at `(valid_to_epoch, valid_to)`; NULL there: until now. Rows of the initial copy have the copy's
position and no time."""

CHANGE: Final = {
    SilverColumn("_op", "string"): "op",
    SilverColumn("_epoch", "int"): "epoch",
    SilverColumn("_position", "bigint"): "position",
    SilverColumn("_ordinal", "bigint"): "ordinal",
    SilverColumn("_csn", "bigint"): "csn",
    SilverColumn("_lsn", "bigint"): "lsn",
    SilverColumn("_xid", "bigint"): "xid",
    SilverColumn("_commit_ts", "timestamp"): "commit_ts",
}
"""Append: the place of each change, from bronze."""

WORKING: Final = "_cdc_"
"""What the names of columns begin with that exist only while a span is applied."""

COPY: Final = SilverColumn("_copy", "bigint")
"""Rows of a table that has no key: the number of this row among those with the same values, from 1 on."""

UNSENT: Final = SilverColumn("_unchanged", "array<string>")
"""Append: silver columns whose value was not sent, because it did not change; NULL where all were."""


def old_column(column: SilverColumn) -> SilverColumn:
    """Append: what the server said of a column of the row as it was before."""
    return SilverColumn(f"_old_{column.name}", column.type)


def with_own(shape: Shape, own: Sequence[SilverColumn] = ()) -> tuple[SilverColumn, ...]:
    """The source's columns, then those that come with changes, then `own`. Raises NameTaken."""
    extra = (*shape.carried, *own)
    ours = {column.name.casefold() for column in extra}
    for column in shape.columns:
        if column.name.casefold() in ours or column.name.casefold().startswith(WORKING):
            raise NameTaken(f"{shape.relation.table} has a column `{column.name}`, which is one of silver's own here")
    return (*shape.columns, *extra)
