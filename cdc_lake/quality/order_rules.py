"""The rule of order: a value that never goes down from one row to the next (`monotonic`)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from cdc_lake.quality.table_facts import Tally


def in_order(rows: pa.Table, column: str, by: str) -> pa.Array:
    """The values in the order of `by`; of rows with the same place the smallest first. Rows that lack either are out.

    NaN is above every number, as PostgreSQL orders it; Arrow's sort puts it there too.
    """
    both = pa.table({"by": rows.column(by), "value": rows.column(column)})
    both = both.filter(pc.and_(pc.is_valid(both["by"]), pc.is_valid(both["value"])))
    return both.sort_by([("by", "ascending"), ("value", "ascending")]).column("value").combine_chunks()


def steps_down(rows: pa.Table, column: str, by: str, *, strict: bool) -> Tally:
    """Rows whose value is below that of the row before; with `strict` also those that have the same."""
    values = in_order(rows, column, by)
    before, after = values.slice(0, max(len(values) - 1, 0)), values.slice(1)
    wrong = pc.less(after, before)
    same = pc.equal(after, before)
    if pt.is_floating(values.type):
        was, now = pc.is_nan(before), pc.is_nan(after)
        wrong, same = pc.or_(wrong, pc.and_not(was, now)), pc.or_(same, pc.and_(was, now))
    return Tally(rows.num_rows, int(pc.sum(pc.or_(wrong, same) if strict else wrong).as_py() or 0))
