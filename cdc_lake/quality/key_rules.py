"""Rules of keys: rows that share their values (`unique`), rows whose values another table lacks (`foreign_key`).

Both are judged exactly, in one aggregate. A row with a NULL among the values passes, as in SQL. Floating-point values
are equal as PostgreSQL has it: NaN equals NaN, and -0 equals 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from cdc_lake.quality.constants import Unfit
from cdc_lake.quality.table_facts import Tally

_NUMBER = "\0 number"  # no column is called so


def alike(kind: pa.DataType) -> bool:
    """Whether values of a type without a family of its own can be compared: bytes."""
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))


def repeated(rows: pa.Table, columns: Sequence[str], examples: int = 0) -> Tally:
    """Rows whose values another row has too; each of them counts."""
    taken = _keys(rows, columns)
    groups = taken.group_by(list(columns)).aggregate([([], "count_all")])
    several = groups.filter(pc.greater(groups["count_all"], 1))
    failed = pc.sum(several["count_all"]).as_py() or 0
    some = taken.join(several.drop_columns("count_all"), list(columns), join_type="left semi") if examples else None
    return Tally(rows.num_rows, int(failed), examples=_first(some, examples))


def orphans(
    rows: pa.Table, columns: Sequence[str], others: pa.Table, referenced: Sequence[str], examples: int = 0
) -> Tally:
    """Rows whose values no row of `others` has. Raises Unfit where the types differ."""
    ours, theirs = _keys(rows, columns), _keys(others, referenced).rename_columns([*columns, _NUMBER])
    for field, other in zip(ours.schema, theirs.schema, strict=True):
        if field.type != other.type:
            raise Unfit(f"column `{field.name}` is of type {field.type}, what it refers to of type {other.type}")
    known = theirs.group_by(list(columns)).aggregate([])
    lost = ours.join(known, list(columns), join_type="left anti")
    return Tally(rows.num_rows, lost.num_rows, examples=_first(lost, examples))


def _keys(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The values of rows that have all of them, in types that both formats agree on, and the rows' numbers."""
    taken = pa.table({name: _plain(rows.column(name)) for name in columns})
    taken = taken.append_column(_NUMBER, pa.array(np.arange(rows.num_rows)))
    for name in columns:
        taken = taken.filter(pc.is_valid(taken.column(name)))
    return taken


def _first(rows: pa.Table | None, some: int) -> tuple[int, ...]:
    return () if rows is None else tuple(sorted(rows[_NUMBER].to_pylist())[:some])


def _plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = values.type
    if pt.is_floating(kind):
        doubles = pc.add(values.cast(pa.float64()), 0.0)  # -0 becomes 0
        return pc.if_else(pc.is_nan(doubles), pa.scalar(float("nan")), doubles)
    if pt.is_integer(kind):
        return values.cast(pa.int64())
    if pt.is_string(kind) or pt.is_string_view(kind):
        return values.cast(pa.large_string())
    if pt.is_binary(kind) or pt.is_fixed_size_binary(kind):
        return values.cast(pa.large_binary())
    return values
