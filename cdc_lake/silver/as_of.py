"""A silver table as of a position, from a version that may hold more: what `history` and `append` keep, they can say.

A version of a row holds where it began at or before the position and ends behind it; a change is there where its place
is at or before it. So these kinds answer for every position of their content, whatever became of older versions. Of
`current` rows only the version itself is the answer.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.lake.store import quoted
from cdc_lake.model.position import Position
from cdc_lake.silver.append import Append
from cdc_lake.silver.history import History
from cdc_lake.silver.own_columns import IS_CURRENT, VALID_FROM, VALID_TO

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HISTORY = frozenset(column.name for column in History().own)
_APPEND = frozenset(column.name for column in Append().own)


def answers_alone(columns: Collection[str]) -> bool:
    """Whether a table with these columns says of any position what it was."""
    return _HISTORY.issubset(columns) or _APPEND.issubset(columns)


def rows_as_of(rows: pa.Table, at: Position, *, versions: bool) -> pa.Table:
    """The rows of a silver table as of a position; of a history those that held, as the source had them.

    `versions`: of a history every version up to then instead, with the columns that say from when until when.
    """
    names = rows.column_names
    if _HISTORY.issubset(names):
        began = rows.filter(_reached(pc.field, VALID_FROM[0].name, VALID_FROM[1].name, at))
        ended = _reached(pc.field, VALID_TO[0].name, VALID_TO[1].name, at)
        if versions:
            return _reopened(began, at)
        holds = pc.field(VALID_TO[1].name).is_null() | ~ended
        return began.filter(holds).select([name for name in names if name not in _HISTORY])
    if _APPEND.issubset(names):
        return rows.filter(_reached(pc.field, "_epoch", "_position", at))
    return rows


def _reopened(rows: pa.Table, at: Position) -> pa.Table:
    """Versions that ended behind the position, as they were before."""
    epoch, position = (rows[VALID_TO[place].name] for place in (0, 1))
    same = pc.and_(pc.equal(epoch, at.epoch), pc.less_equal(position, at.value))
    ended = pc.fill_null(pc.or_(pc.less(epoch, at.epoch), same), False)
    for column in VALID_TO:
        at_column = rows.column_names.index(column.name)
        field = rows.schema.field(column.name)
        none = pa.scalar(None, field.type)
        rows = rows.set_column(at_column, field, pc.if_else(ended, rows[column.name], none))
    current = rows.column_names.index(IS_CURRENT.name)
    return rows.set_column(current, rows.schema.field(IS_CURRENT.name), pc.invert(ended))


def frame_as_of(rows: DataFrame, at: Position, *, versions: bool) -> DataFrame:
    """The same of a DataFrame."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - DataFrames come from a session that has it

    names = rows.columns
    if _HISTORY.issubset(names):
        began = rows.where(_reached(F.col, VALID_FROM[0].name, VALID_FROM[1].name, at))
        ended = F.coalesce(_reached(F.col, VALID_TO[0].name, VALID_TO[1].name, at), F.lit(False))
        if not versions:
            return began.where(~ended).select([quoted(name) for name in names if name not in _HISTORY])
        own = {column.name: F.when(ended, F.col(column.name)) for column in VALID_TO}
        return began.withColumns({**own, IS_CURRENT.name: ~ended})
    if _APPEND.issubset(names):
        return rows.where(_reached(F.col, "_epoch", "_position", at))
    return rows


def _reached(column: Any, epoch: str, position: str, at: Position) -> Any:
    """The condition that a place is at or before the position; `column` makes an expression of a name."""
    return (column(epoch) < at.epoch) | ((column(epoch) == at.epoch) & (column(position) <= at.value))
