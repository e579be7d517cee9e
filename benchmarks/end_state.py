"""What a run left, looked at once it is over: a run that left something else than it was given fails.

Of bronze the chain is verified, and its changes folded: rows and sums by the source's table `orders`. Of silver there
is the product's own `compare`, or the rows themselves, where there is no source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.comparison.compare import compare
from cdc_lake.config.project import Project, Target
from cdc_lake.control.verdicts import Verdict
from cdc_lake.observability.events import silent
from cdc_lake.tables.open_silver_table import table_log

STATE = "SELECT count(*) AS rows, sum(id)::bigint AS ids, sum(quantity)::bigint AS quantity FROM orders"
"""What `folded` says of bronze, of the source's table."""


def of_source(admin: psycopg.Connection[Any], where: str = "true") -> dict[str, int]:
    """Rows and sums of the source's table."""
    state = admin.execute(f"{STATE} WHERE {where}").fetchone() or (0, 0, 0)
    return dict(zip(("rows", "ids", "quantity"), map(int, state), strict=True))


def folded(bronze: ds.Dataset) -> dict[str, int]:
    """The rows that bronze amounts to: the last change of each key counts."""
    changes = pa.Table.from_batches(_few_columns(bronze))
    rows = changes.sort_by([("position", "ascending"), ("ordinal", "ascending")])
    last = rows.group_by("id", use_threads=False).aggregate([("op", "last"), ("quantity", "last")])
    live = last.filter(pc.not_equal(last["op_last"], "D"))
    quantity = pc.sum(pc.cast(live["quantity_last"], pa.int64())).as_py()
    return {"rows": live.num_rows, "ids": pc.sum(live["id"]).as_py(), "quantity": quantity}


def _few_columns(bronze: ds.Dataset) -> Iterator[pa.RecordBatch]:
    """Of each change what `folded` needs: the whole of a large transaction does not fit into memory."""
    columns, changes = ["position", "ordinal", "op", "new", "old"], ds.field("op").isin(["I", "U", "D"])
    for batch in bronze.to_batches(columns=columns, filter=changes):
        key = pc.coalesce(*(pc.list_element(_padded(batch[side]), 0) for side in ("new", "old")))
        yield pa.RecordBatch.from_pydict(
            {
                **{name: batch[name] for name in ("position", "ordinal", "op")},
                "id": pc.cast(key, pa.int64()),
                "quantity": pc.list_element(_padded(batch["new"]), 4),
            }
        )


def _padded(lists: pa.Array) -> pa.Array:
    """Lists that are empty as NULL: they have no first value."""
    return pc.if_else(pc.greater(pc.fill_null(pc.list_value_length(lists), 0), 0), lists, None)


def chained(what: str, reader: BronzeReader, transactions: int, changes: int) -> None:
    """Fail unless the chain holds and has that many transactions and changes."""
    verdict = verify(reader)
    if not verdict.holds:
        raise SystemExit(f"{what}: the chain is broken at {verdict.broken_at}: {verdict.reason}")
    same(what, {"transactions": verdict.transactions, "changes": verdict.changes},
         {"transactions": transactions, "changes": changes})  # fmt: skip


def landed(what: str, reader: BronzeReader, expected: dict[str, int], transactions: int, changes: int) -> None:
    """Fail unless bronze has these transactions in an unbroken chain, and amounts to the rows of the source."""
    chained(what, reader, transactions, changes)
    same(what, folded(ds.dataset(reader.files().paths)), expected)


def compared(project: Project, tables: Sequence[str]) -> dict[str, int]:
    """Rows of the silver tables of these; fail unless `compare` finds all of them equal to the source."""
    found = compare(project, tables, silent)
    if found.verdict is not Verdict.EQUAL or len(found.tables) != len(tables):
        said = "; ".join(f"{one.table}: {one.text} {one.reason}" for one in found.tables)
        raise SystemExit(f"{project.name}: silver is not what the source has: {said}")
    return {one.table: one.silver_rows or 0 for one in found.tables}


def held_rows(project: Project, target: Target, expected: pa.Table) -> int:
    """How many rows a silver table has; fail unless they are those expected, whose first column is the key."""
    key = expected.column_names[0]
    rows = table_log(project, target).read().select(expected.column_names).cast(expected.schema).sort_by(key)
    if not rows.equals(expected.sort_by(key)):
        raise SystemExit(f"{target.label} has other rows than it was given: {rows.num_rows} of {expected.num_rows}")
    return rows.num_rows


def same(what: str, found: object, expected: object) -> None:
    """Fail unless both are the same."""
    if found != expected:
        raise SystemExit(f"{what}: {found} where {expected} was to be left")
