"""Columns of a silver table that its source table does not have: which change made a row, since when it is one.

Their names start with an underscore, but for those of history, which people query by: a source column of the same name
is an error of the pipeline (`NameTaken`), never a column that is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, assert_never

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.config.project import Target
from cdc_lake.errors import KindChanged, NameTaken
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

UNSENT: Final = SilverColumn("_unchanged", "array<string>")
"""Append: silver columns whose value was not sent, because it did not change; NULL where all were."""


def with_own(shape: Shape, own: Sequence[SilverColumn] = ()) -> tuple[SilverColumn, ...]:
    """The source's columns, then those that come with changes, then `own`. Raises NameTaken."""
    extra = (*shape.carried, *own)
    taken = {column.name for column in extra} & {column.name for column in shape.columns}
    if taken:
        raise NameTaken(f"{shape.relation.table} has a column `{min(taken)}`, which is one of silver's own here")
    return (*shape.columns, *extra)


def own_names(target: Target) -> frozenset[str]:
    """The names of all columns that the silver table of a target has besides its source's."""
    own: list[SilverColumn] = [*(LINEAGE if target.lineage else ()), *_SIGNS[_made(target)]]
    return frozenset(column.name for column in own)


def source_rows(rows: pa.Table, target: Target) -> pa.Table:
    """What a silver table of kind `current` or `history` says the source's table is now: live rows, its columns."""
    if target.kind == "history":
        rows = rows.filter(pc.field(IS_CURRENT.name))
    elif target.deletes == "soft":
        rows = rows.filter(~pc.field(DELETED.name))
    own = own_names(target)
    return rows.select([name for name in rows.column_names if name not in own])


def check_kind(have: Collection[str], target: Target) -> None:
    """Raise KindChanged where the columns of a silver table are those of another kind than the pipeline says."""
    found = [made for made, columns in _SIGNS.items() if columns and {c.name for c in columns} <= set(have)]
    made = found[0] if found else _PLAIN
    if made != _made(target):
        raise KindChanged(f"{target.label} was made as {made}, and the pipeline says {_made(target)}")


_PLAIN: Final = "`kind: current`"
_SIGNS: Final[dict[str, tuple[SilverColumn, ...]]] = {
    "`kind: history`": (*VALID_FROM, *VALID_TO, IS_CURRENT),
    "`kind: append`": (*CHANGE, UNSENT),
    "`kind: current` with soft deletes": (DELETED,),
    _PLAIN: (),
}
"""The columns by which a table's kind is known."""


def _made(target: Target) -> str:
    history, append, soft, plain = _SIGNS
    match target.kind:
        case "history":
            return history
        case "append":
            return append
        case "current":
            return soft if target.deletes == "soft" else plain
        case other:
            assert_never(other)
