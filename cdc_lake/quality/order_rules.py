"""The rule of order: a value that never goes down from one row to the next (`monotonic`)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from cdc_lake.quality.table_facts import Tally


def in_order(rows: pa.Table, column: str, by: str) -> pa.Array:
    """The values in the order of `by`; of rows with the same place the smallest first. Rows that lack either are out.

    NaN is above every number, as PostgreSQL orders it; Arrow's sort puts it there too.
    """
    return _ordered(rows, column, by).column("value").combine_chunks()


def _ordered(rows: pa.Table, column: str, by: str) -> pa.Table:
    numbers = pa.array(np.arange(rows.num_rows))
    both = pa.table({"by": rows.column(by), "value": rows.column(column), "number": numbers})
    both = both.filter(pc.and_(pc.is_valid(both["by"]), pc.is_valid(both["value"])))
    return both.sort_by([("by", "ascending"), ("value", "ascending")])


def steps_down(rows: pa.Table, column: str, by: str, *, strict: bool, examples: int = 0) -> Tally:
    """Rows whose value is below that of the row before; with `strict` also those that have the same."""
    ordered = _ordered(rows, column, by)
    values = ordered.column("value").combine_chunks()
    before, after = values.slice(0, max(len(values) - 1, 0)), values.slice(1)
    wrong = pc.less(after, before)
    same = pc.equal(after, before)
    if pt.is_floating(values.type):
        was, now = pc.is_nan(before), pc.is_nan(after)
        wrong, same = pc.or_(wrong, pc.and_not(was, now)), pc.or_(same, pc.and_(was, now))
    fails = pc.or_(wrong, same) if strict else wrong
    numbers = ordered.column("number").combine_chunks().slice(1).filter(fails)
    return Tally(rows.num_rows, int(pc.sum(fails).as_py() or 0), examples=tuple(numbers.slice(0, examples).to_pylist()))
