"""Determines the kind of a silver table from the pipeline or from its columns, and reads tables as of a position.

`history` and `append` can answer for every position of their content from a later version, whatever became of older
versions: a version of a row is valid if it began at or before the position and ends after it, and a change exists if
its place is at or before it. For `current` only the version itself is the answer.

Also compares two contents of a silver table, in rows and in columns. Rows are matched by what identifies them in their
kind: the key, in a history with the beginning of the version, among changes their place. Columns whose types differ are
compared as text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, assert_never

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.config.project import Target
from cdc_lake.errors import KindChanged
from cdc_lake.model.position import Position
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.silver.changes import F
from cdc_lake.silver.current import AppendKind, Scd1Kind
from cdc_lake.silver.kind import CHANGE, COPY, IS_CURRENT, LINEAGE, VALID_FROM, VALID_TO, Kind, RowIdentity, old_column
from cdc_lake.silver.layout_mapping import RelationMapping, without_key
from cdc_lake.silver.net_change import all_of, any_of
from cdc_lake.silver.scd2 import Scd2Kind
from cdc_lake.silver.soft_delete import KeylessKind, SoftDeleteKind
from cdc_lake.tables.types import SilverColumn, quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


_PLAIN: Final = Scd1Kind()
_KNOWN: Final[tuple[Kind, ...]] = (Scd2Kind(), AppendKind(), SoftDeleteKind(), KeylessKind())
"""The kinds that are recognized by a table's columns."""


def kind_of(target: Target, relation: Relation) -> Kind:
    """The kind in the pipeline file, for a table with this layout."""
    match target.kind:
        case "current":
            if target.deletes == "soft":
                return SoftDeleteKind()
            return KeylessKind() if not target.keys and without_key(relation) else _PLAIN
        case "history":
            return Scd2Kind(target.track)
        case "append":
            return AppendKind(old_values=target.old_values)
        case other:
            assert_never(other)


def check_kind(have: Collection[str], wanted: Collection[str], label: str, source: TableName) -> None:
    """Raise KindChanged if the columns of a silver table are those of another kind than `wanted`.

    The two kinds of current rows differ by whether there is a key, which the source may change.
    """
    current_kind, wanted_kind = kind_by_columns(have), kind_by_columns(wanted)
    if current_kind.words != wanted_kind.words:
        hint = None
        if {current_kind.words, wanted_kind.words} == {_PLAIN.words, KeylessKind.words}:
            hint = (
                f"if the primary key of {source} was added or removed, `cdc-lake resync {source}` copies the table "
                "again while the other tables continue; if `keys` of the pipeline file changed, restore them, or "
                f"run `cdc-lake rebuild {source}`"
            )
        raise KindChanged(f"{label} was created as {current_kind.words}, but now is {wanted_kind.words}", hint=hint)


def kind_by_columns(have: Collection[str]) -> Kind:
    """The kind of a silver table with these columns."""
    names = set(have)
    return next((kind for kind in _KNOWN if {column.name for column in kind.own} <= names), _PLAIN)


def own_names(target: Target, relation: Relation, have: Collection[str]) -> frozenset[str]:
    """The names of all columns of a target's silver table, which has `have`, that are not the source's."""
    own = [*(LINEAGE if target.lineage else ()), *kind_of(target, relation).own]
    old = [old_column(SilverColumn(name, "")) for name in have] if target.old_values else []
    return frozenset(column.name for column in (*own, *old))


def live_rows(kind: Kind, rows: DataFrame) -> DataFrame:
    """The rows of a silver table that changes may concern: one per key."""
    flag = kind.flag
    return rows if flag is None else rows.where(f"{'' if flag.value else 'NOT '}{quote_identifier(flag.column.name)}")


def source_rows(rows: pa.Table, target: Target, relation: Relation) -> pa.Table:
    """The current content of the source table according to a table of kind `current` or `history`."""
    if (flag := kind_of(target, relation).flag) is not None:
        rows = rows.filter(pc.field(flag.column.name) == flag.value)
    own = own_names(target, relation, rows.column_names)
    return rows.select([name for name in rows.column_names if name not in own])


_HISTORY = frozenset(column.name for column in Scd2Kind().own)
_APPEND = frozenset(column.name for column in AppendKind().own)


def answers_alone(columns: Collection[str]) -> bool:
    """Whether a table with these columns can answer for any position by itself."""
    return _HISTORY.issubset(columns) or _APPEND.issubset(columns)


def rows_as_of(rows: pa.Table, as_of: Position, *, versions: bool) -> pa.Table:
    """The rows of a silver table as of a position; of a history those valid then, with the source's columns.

    `versions`: of a history every version up to then instead, with its validity.
    """
    names = rows.column_names
    if _HISTORY.issubset(names):
        began = rows.filter(_is_reached(pc.field, VALID_FROM[0].name, VALID_FROM[1].name, as_of))
        ended = _is_reached(pc.field, VALID_TO[0].name, VALID_TO[1].name, as_of)
        if versions:
            return _reopen_versions(began, as_of)
        holds = pc.field(VALID_TO[1].name).is_null() | ~ended
        return began.filter(holds).select([name for name in names if name not in _HISTORY])
    if _APPEND.issubset(names):
        return rows.filter(_is_reached(pc.field, "_epoch", "_position", as_of))
    return rows


def _reopen_versions(rows: pa.Table, as_of: Position) -> pa.Table:
    """Undo the end of versions that ended after the position."""
    epoch, position = (rows[VALID_TO[place].name] for place in (0, 1))
    same = pc.and_(pc.equal(epoch, as_of.epoch), pc.less_equal(position, as_of.value))
    ended = pc.fill_null(pc.or_(pc.less(epoch, as_of.epoch), same), False)
    for column in VALID_TO:
        at_column = rows.column_names.index(column.name)
        field = rows.schema.field(column.name)
        none = pa.scalar(None, field.type)
        rows = rows.set_column(at_column, field, pc.if_else(ended, rows[column.name], none))
    current = rows.column_names.index(IS_CURRENT.name)
    return rows.set_column(current, rows.schema.field(IS_CURRENT.name), pc.invert(ended))


def frame_as_of(rows: DataFrame, as_of: Position, *, versions: bool) -> DataFrame:
    """The same for a DataFrame."""
    names = rows.columns
    if not versions or not _HISTORY.issubset(names):
        columns, condition = sql_as_of(names, as_of)
        return rows.where(condition).select([quote_identifier(name) for name in columns])
    ended = F.coalesce(_is_reached(F.col, VALID_TO[0].name, VALID_TO[1].name, as_of), F.lit(False))
    own = {column.name: F.when(ended, F.col(column.name)) for column in VALID_TO}
    began = rows.where(_is_reached(F.col, VALID_FROM[0].name, VALID_FROM[1].name, as_of))
    return began.withColumns({**own, IS_CURRENT.name: ~ended})


def sql_as_of(names: Sequence[str], as_of: Position) -> tuple[list[str], str]:
    """The columns, and the condition in SQL, of the rows of a table with these columns that are valid at a position."""

    def is_reached(epoch: str, position: str) -> str:
        return f"({epoch} < {as_of.epoch} OR ({epoch} = {as_of.epoch} AND {position} <= {as_of.value}))"

    if _HISTORY.issubset(names):
        began, ended = (is_reached(columns[0].name, columns[1].name) for columns in (VALID_FROM, VALID_TO))
        return [name for name in names if name not in _HISTORY], f"{began} AND NOT coalesce({ended}, false)"
    return list(names), is_reached("_epoch", "_position") if _APPEND.issubset(names) else "true"


def _is_reached(column: Any, epoch: str, position: str, as_of: Position) -> Any:
    """The condition that a place is at or before the position; `column` makes an expression from a name."""
    return (column(epoch) < as_of.epoch) | ((column(epoch) == as_of.epoch) & (column(position) <= as_of.value))


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of columns that were added, removed, and whose type changed, compared with the content before."""

    added: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """A content compared with the one before. `before`, `after`: number of rows; before is None without a table.
    `added`, `removed`, `changed`: None if rows cannot be matched. `keys`: what identifies some differing rows, if
    requested.
    """

    before: int | None
    after: int
    added: int | None = None
    removed: int | None = None
    changed: int | None = None
    columns: Columns = Columns()
    keys: Mapping[str, Sequence[tuple[str | None, ...]]] = field(default_factory=dict)


def difference(
    before: DataFrame | None, after: DataFrame, target: Target, shape: RelationMapping, keys: int = 0
) -> Difference:
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
    joined = _join_rows(before, after, identity, compared)
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
        # For rows without a key this would be all of their values.
        keys=_sample_keys(joined, identity, keys) if keys and kind.identity is not RowIdentity.CONTENT else {},
    )


def _identity(kind: Kind, target: Target, shape: RelationMapping) -> tuple[str, ...]:
    """The columns that identify a row; empty if none do."""
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


def _join_rows(before: DataFrame, after: DataFrame, identity: Sequence[str], compared: Sequence[str]) -> DataFrame:
    """The rows of both with `what` changed, and what identifies them."""
    was, now = dict(before.dtypes), dict(after.dtypes)

    def side(rows: DataFrame, name: str) -> DataFrame:
        values = {column: F.col(quote_identifier(column)) for column in (*identity, *compared)}
        casts = [(v if was[c] == now[c] else v.cast("string")).alias(c) for c, v in values.items()]
        return rows.select(F.struct(*casts).alias(name))

    def pair(column: str) -> tuple[Column, Column]:
        return F.col(f"was.{quote_identifier(column)}"), F.col(f"now.{quote_identifier(column)}")

    on = all_of([left.eqNullSafe(right) for left, right in map(pair, identity)])
    differs = any_of([~left.eqNullSafe(right) for left, right in map(pair, compared)])
    what = F.when(F.col("was").isNull(), "added").when(F.col("now").isNull(), "removed")
    what = what.when(differs, "changed").otherwise("same")
    keys = [F.coalesce(*reversed(pair(c))).cast("string").alias(f"id_{n}") for n, c in enumerate(identity)]
    return side(before, "was").join(side(after, "now"), on, "full_outer").select(what.alias("what"), *keys)


def _sample_keys(joined: DataFrame, identity: Sequence[str], number: int) -> dict[str, list[tuple[str | None, ...]]]:
    """What identifies a few differing rows of each kind, in order."""
    names = [f"id_{n}" for n in range(len(identity))]
    samples = {}
    for what in ("added", "removed", "changed"):
        rows = joined.where(joined["what"] == what).select(*names).orderBy(*names).limit(number).collect()
        if rows:
            samples[what] = [tuple(row) for row in rows]
    return samples
