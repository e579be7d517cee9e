"""Which kind a silver table is of: the one its pipeline says, and the one its columns say."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final, assert_never

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.config.project import Target
from cdc_lake.errors import KindChanged
from cdc_lake.lake.store import quoted
from cdc_lake.silver.append import Append
from cdc_lake.silver.current import Current
from cdc_lake.silver.history import History
from cdc_lake.silver.kind import Kind
from cdc_lake.silver.own_columns import LINEAGE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PLAIN: Final = Current()
_KNOWN: Final[tuple[Kind, ...]] = (History(), Append(), Current(soft=True))
"""The kinds that a table's columns tell."""


def kind_of(target: Target) -> Kind:
    """The kind that the pipeline says."""
    match target.kind:
        case "current":
            return Current(soft=target.deletes == "soft")
        case "history":
            return History()
        case "append":
            return Append()
        case other:
            assert_never(other)


def kind_by_columns(have: Collection[str]) -> Kind:
    """The kind that a silver table with these columns was made as."""
    found = [kind for kind in _KNOWN if {column.name for column in kind.own} <= set(have)]
    return found[0] if found else _PLAIN


def check_kind(have: Collection[str], target: Target) -> None:
    """Raise KindChanged where the columns of a silver table are those of another kind than the pipeline says."""
    made, said = kind_by_columns(have).words, kind_of(target).words
    if made != said:
        raise KindChanged(f"{target.label} was made as {made}, and the pipeline says {said}")


def own_names(target: Target) -> frozenset[str]:
    """The names of all columns that the silver table of a target has besides its source's."""
    own = [*(LINEAGE if target.lineage else ()), *kind_of(target).own]
    return frozenset(column.name for column in own)


def live_rows(kind: Kind, rows: DataFrame) -> DataFrame:
    """The rows of a silver table that changes may refer to: one a key."""
    flag = kind.flag
    return rows if flag is None else rows.where(f"{'' if flag.value else 'NOT '}{quoted(flag.column.name)}")


def source_rows(rows: pa.Table, target: Target) -> pa.Table:
    """What a silver table of kind `current` or `history` says the source's table is now: live rows, its columns."""
    if (flag := kind_of(target).flag) is not None:
        rows = rows.filter(pc.field(flag.column.name) == flag.value)
    own = own_names(target)
    return rows.select([name for name in rows.column_names if name not in own])
