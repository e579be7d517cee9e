"""Which kind a silver table is of: the one its pipeline says, and the one its columns say."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final, assert_never

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.config.project import Target
from cdc_lake.errors import KindChanged
from cdc_lake.lake.store import SilverColumn, quoted
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.silver.append import Append
from cdc_lake.silver.copies import Copies
from cdc_lake.silver.current import Current
from cdc_lake.silver.history import History
from cdc_lake.silver.kind import Kind
from cdc_lake.silver.own_columns import LINEAGE, old_column
from cdc_lake.silver.shape import without_key
from cdc_lake.silver.soft import Soft

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PLAIN: Final = Current()
_KNOWN: Final[tuple[Kind, ...]] = (History(), Append(), Soft(), Copies())
"""The kinds that a table's columns tell."""


def kind_of(target: Target, relation: Relation) -> Kind:
    """The kind that the pipeline says, of a table with this layout."""
    match target.kind:
        case "current":
            if target.deletes == "soft":
                return Soft()
            return Copies() if not target.keys and without_key(relation) else _PLAIN
        case "history":
            return History(target.track)
        case "append":
            return Append(old_values=target.old_values)
        case other:
            assert_never(other)


def check_kind(have: Collection[str], wanted: Collection[str], label: str, source: TableName) -> None:
    """Raise KindChanged where the columns of a silver table are those of another kind than those wanted of it.

    The two kinds of current rows differ by whether there is a key: that is the source's to change.
    """
    made, said = kind_by_columns(have), kind_by_columns(wanted)
    if made.words != said.words:
        hint = None
        if {made.words, said.words} == {_PLAIN.words, Copies.words}:
            hint = (
                f"if a primary key of {source} came or went, `cdc-lake resync {source}` copies the table again while "
                f"the others go on; if `keys` of the pipeline did, put them back, or run `cdc-lake rebuild {source}`"
            )
        raise KindChanged(f"{label} was made as {made.words}, and now is {said.words}", hint=hint)


def kind_by_columns(have: Collection[str]) -> Kind:
    """The kind that a silver table with these columns was made as."""
    there = set(have)
    return next((kind for kind in _KNOWN if {column.name for column in kind.own} <= there), _PLAIN)


def own_names(target: Target, relation: Relation, have: Collection[str]) -> frozenset[str]:
    """The names of all columns that the silver table of a target, which has `have`, has besides its source's."""
    own = [*(LINEAGE if target.lineage else ()), *kind_of(target, relation).own]
    old = [old_column(SilverColumn(name, "")) for name in have] if target.old_values else []
    return frozenset(column.name for column in (*own, *old))


def live_rows(kind: Kind, rows: DataFrame) -> DataFrame:
    """The rows of a silver table that changes may refer to: one a key."""
    flag = kind.flag
    return rows if flag is None else rows.where(f"{'' if flag.value else 'NOT '}{quoted(flag.column.name)}")


def source_rows(rows: pa.Table, target: Target, relation: Relation) -> pa.Table:
    """What a silver table of kind `current` or `history` says the source's table is now: live rows, its columns."""
    if (flag := kind_of(target, relation).flag) is not None:
        rows = rows.filter(pc.field(flag.column.name) == flag.value)
    own = own_names(target, relation, rows.column_names)
    return rows.select([name for name in rows.column_names if name not in own])
