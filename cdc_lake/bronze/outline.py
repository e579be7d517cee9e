"""The outline of a span: what a table's changes are like, without their values and without Spark.

It decides how the span is applied: which layouts occur and which is the newest, whether there is a truncate, which
columns have values that were not sent, whether a key can have moved. Reading it costs milliseconds: six narrow columns
of the files whose statistics overlap the span.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from cdc_lake.bronze.contract import DELETE, INSERT, SNAPSHOT, TRUNCATE, UPDATE
from cdc_lake.model.relation import TableName
from cdc_lake.model.span import Span


@dataclass(frozen=True, slots=True)
class Outline:
    """One table's changes in a span.

    `layouts`: layout numbers in order of first use. `truncates`: `(position, ordinal)` ascending. `unchanged`: layout →
    positions in the new tuple that some change did not send. `olds`: updates that carry an old tuple.
    """

    rows: int
    layouts: tuple[int, ...]
    truncates: tuple[tuple[int, int], ...]
    unchanged: dict[int, frozenset[int]]
    olds: int


_COLUMNS = ["position", "ordinal", "op", "layout", "unchanged", "old_kind"]


def outline(bronze: Path, table: TableName, span: Span, *, snapshot: bool) -> Outline:
    """Read the outline of `table` in `span`; with `snapshot` the snapshot rows at `span.upto` instead."""
    ops = [SNAPSHOT] if snapshot else [INSERT, UPDATE, DELETE, TRUNCATE]
    dataset = DeltaTable(str(bronze)).to_pyarrow_dataset()
    wanted = (
        (pc.field("epoch") == span.epoch)
        & (pc.field("relation") == str(table))
        & (pc.field("position") <= span.upto)
        & (pc.field("position") >= (span.upto if snapshot else span.after + 1))
        & pc.field("op").isin(ops)
    )
    rows = dataset.to_table(columns=_COLUMNS, filter=wanted)
    rows = rows.take(pc.sort_indices(rows, [("position", "ascending"), ("ordinal", "ascending")]))
    truncates = rows.filter(pc.equal(rows["op"], TRUNCATE))
    updates = rows.filter(pc.and_(pc.equal(rows["op"], UPDATE), pc.is_valid(rows["old_kind"])))
    return Outline(
        rows=rows.num_rows,
        layouts=tuple(dict.fromkeys(rows["layout"].drop_null().to_pylist())),
        truncates=tuple(zip(truncates["position"].to_pylist(), truncates["ordinal"].to_pylist(), strict=True)),
        unchanged=_unchanged(rows),
        olds=updates.num_rows,
    )


def _unchanged(rows: pa.Table) -> dict[int, frozenset[int]]:
    some = rows.filter(pc.is_valid(rows["unchanged"]))
    out: dict[int, frozenset[int]] = {}
    for layout in some["layout"].unique().to_pylist():
        of_layout = some.filter(pc.equal(some["layout"], layout))
        out[layout] = frozenset(pc.list_flatten(of_layout["unchanged"]).unique().to_pylist())
    return out
