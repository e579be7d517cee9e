"""The difference between two contents of a silver table, in rows and in columns.

Rows are known by what identifies them in their kind: the key, in a history with the beginning of the version, among
changes their place. Where a column has another type in the two contents its values are compared as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from cdc_lake.config.project import Target
from cdc_lake.lake.store import quoted
from cdc_lake.silver.kind import Kind, RowIdentity
from cdc_lake.silver.kinds import kind_by_columns, kind_of
from cdc_lake.silver.own_columns import CHANGE, COPY, VALID_FROM
from cdc_lake.silver.shape import Shape

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns, by name, that a content has and the one before it had not, the other way round, and of another type."""

    added: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """What a content has beside the one before it. `before`, `after`: rows of each; before is None where there was no
    table. `added`, `removed`, `changed`: None where rows of the two cannot be matched. `keys`: what identifies some of
    the rows that differ, where it was asked for.
    """

    before: int | None
    after: int
    added: int | None = None
    removed: int | None = None
    changed: int | None = None
    columns: Columns = Columns()
    keys: Mapping[str, Sequence[tuple[str | None, ...]]] = field(default_factory=dict)


def difference(before: DataFrame | None, after: DataFrame, target: Target, shape: Shape, keys: int = 0) -> Difference:
    """Compare the content of a table before with the one after, which has `shape`. Reads both."""
    if before is None:
        return Difference(None, after.count())
    was, now = dict(before.dtypes), dict(after.dtypes)
    both = [name for name in after.columns if name in was]
    columns = Columns(
        added=tuple(name for name in after.columns if name not in was),
        gone=tuple(name for name in before.columns if name not in now),
        changed=tuple(name for name in both if was[name] != now[name]),
    )
    kind = kind_of(target, shape.relation)
    identity = _identity(kind, target, shape)
    if not identity or kind_by_columns(was).words != kind.words or not set(identity) <= set(both):
        return Difference(before.count(), after.count(), columns=columns)
    compared = [name for name in both if name not in identity]
    joined = _joined(before, after, identity, compared)
    counts = {row["what"]: row["count"] for row in joined.groupBy("what").count().collect()}
    added, removed, changed = (counts.get(what, 0) for what in ("added", "removed", "changed"))
    same = counts.get("same", 0)
    return Difference(
        before=same + changed + removed,
        after=same + changed + added,
        added=added,
        removed=removed,
        changed=changed,
        columns=columns,
        # Of rows without a key that would be all of their values.
        keys=_some(joined, identity, keys) if keys and kind.identity is not RowIdentity.CONTENT else {},
    )


def _identity(kind: Kind, target: Target, shape: Shape) -> tuple[str, ...]:
    """The columns that identify a row; none where nothing does."""
    match kind.identity:
        case RowIdentity.PLACE:
            return tuple(c.name for c in CHANGE if c.name in {"_epoch", "_position", "_ordinal"})
        case RowIdentity.CONTENT:
            return (*(c.name for c in shape.key_columns), COPY.name)
        case RowIdentity.KEY:
            begins = tuple(c.name for c in VALID_FROM[:2]) if target.kind == "history" else ()
            return (*(c.name for c in shape.key_columns), *begins) if shape.keys else ()
        case other:
            assert_never(other)


def _joined(before: DataFrame, after: DataFrame, identity: Sequence[str], compared: Sequence[str]) -> DataFrame:
    """A row for each that either has: `what` became of it, and what identifies it."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - DataFrames come from a session that has it

    was, now = dict(before.dtypes), dict(after.dtypes)

    def side(rows: DataFrame, name: str) -> DataFrame:
        values: list[Column] = []
        for column in (*identity, *compared):
            value = F.col(quoted(column))
            values.append((value if was[column] == now[column] else value.cast("string")).alias(column))
        return rows.select(F.struct(*values).alias(name))

    left, right = side(before, "was"), side(after, "now")
    on = F.lit(True)
    for column in identity:
        on = on & F.col(f"was.{quoted(column)}").eqNullSafe(F.col(f"now.{quoted(column)}"))
    differs = F.lit(False)
    for column in compared:
        differs = differs | ~F.col(f"was.{quoted(column)}").eqNullSafe(F.col(f"now.{quoted(column)}"))
    what = F.when(F.col("was").isNull(), "added").when(F.col("now").isNull(), "removed")
    what = what.when(differs, "changed").otherwise("same")
    known = [
        F.coalesce(F.col(f"now.{quoted(column)}"), F.col(f"was.{quoted(column)}")).cast("string").alias(f"id_{n}")
        for n, column in enumerate(identity)
    ]
    return left.join(right, on, "full_outer").select(what.alias("what"), *known)


def _some(joined: DataFrame, identity: Sequence[str], number: int) -> dict[str, list[tuple[str | None, ...]]]:
    """What identifies a few rows of each that differ, in order."""
    names = [f"id_{n}" for n in range(len(identity))]
    found = {}
    for what in ("added", "removed", "changed"):
        rows = joined.where(joined["what"] == what).select(*names).orderBy(*names).limit(number).collect()
        if rows:
            found[what] = [tuple(row) for row in rows]
    return found
