"""Column lineage: from which columns of its source table each column of a silver table comes, and how.

Not to be taken for `silver.lineage`, which follows rows. It says what a projection says: nothing is worked out twice.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from cdc_lake.lake.store import SilverColumn
from cdc_lake.silver.own_columns import old_column
from cdc_lake.silver.projection import Projection
from cdc_lake.silver.shape import Shape


class How(enum.Enum):
    """What becomes of a value: it is kept, also under another name or type; worked out; or redacted before bronze."""

    SAME = "same"
    COMPUTED = "computed"
    MASKED = "masked"


@dataclass(frozen=True, slots=True)
class From:
    """A column of the source that a column of silver comes from; `sql`: the expression, where there is one."""

    column: str
    how: How
    sql: str = ""


def columns_from(projection: Projection, columns: Sequence[SilverColumn]) -> dict[str, tuple[From, ...]]:
    """Of each silver column that comes from the source what it comes from, by name. Columns that tell of the change and
    not of the row are left out.
    """
    taken = {column.name: at for at, column in _places(projection)}
    old = {old_column(column).name: at for at, column in _places(projection)}
    out: dict[str, tuple[From, ...]] = {}
    computed = dict(zip((column.name for column in _computed(projection)), projection.computed, strict=True))
    for column in columns:
        if column.name in taken:
            out[column.name] = (_from(projection.source, taken[column.name]),)
        elif column.name in computed:
            expression = computed[column.name]
            read = sorted(projection.read_by(expression))
            out[column.name] = tuple(
                From(one.column, one.how if one.how is How.MASKED else How.COMPUTED, expression.sql)
                for one in (_from(projection.source, at) for at in read)
            )
        elif column.name in old:
            out[column.name] = (_from(projection.source, old[column.name]),)
    return out


def rows_by(projection: Projection) -> tuple[str, ...]:
    """The columns of the source that decide which rows silver has."""
    made = projection.source.made
    return tuple(dict.fromkeys(made[at].source.name for at in sorted(projection.condition)))


def _places(projection: Projection) -> list[tuple[int, SilverColumn]]:
    """The silver columns that are a column of the source, each with its place there."""
    of = getattr(projection.silver, "of", None)
    if of is None:
        return list(enumerate(projection.silver.columns))
    return [(at, column) for at, column in zip(of, projection.silver.columns, strict=True) if at is not None]


def _computed(projection: Projection) -> tuple[SilverColumn, ...]:
    return projection.silver.columns[len(projection.silver.columns) - len(projection.computed) :]


def _from(source: Shape, at: int) -> From:
    one = source.made[at]
    how = How.COMPUTED if one.companion else How.SAME
    return From(one.source.name, how if one.source.redacted is None else How.MASKED)
