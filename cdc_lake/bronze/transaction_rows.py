"""Transactions as rows: one a transaction, from its BEGIN and COMMIT rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from cdc_lake.bronze.contract import BEGIN
from cdc_lake.errors import BronzeDamaged

TRANSACTIONS = pa.schema(
    [
        ("epoch", pa.int32()),
        ("position", pa.int64()),
        ("csn", pa.int64()),
        ("first_lsn", pa.int64()),
        ("commit_lsn", pa.int64()),
        ("xid", pa.int64()),
        ("commit_ts", pa.timestamp("us", tz="UTC")),
        ("ingest_ts", pa.timestamp("us", tz="UTC")),
        ("user", pa.string()),
        ("origin", pa.string()),
        ("counts", pa.map_(pa.string(), pa.map_(pa.string(), pa.int64()))),
        ("bytes", pa.int64()),
        ("empty_before", pa.int64()),
        ("configuration", pa.int64()),
        ("content", pa.string()),
        ("hash", pa.string()),
        ("undecodable", pa.string()),
    ]
)
"""A row a transaction: the columns of bronze, and what its BEGIN and COMMIT rows say in `info`.

`counts`: table → operation → number. `undecodable`: the code of the error that decoding it gave, NULL where it is
decoded.
"""

SOURCES = ("epoch", "position", "op", "csn", "first_lsn", "commit_lsn", "xid", "commit_ts", "ingest_ts", "info")
"""The columns of bronze that are read, of rows `B` and `C`."""


def transactions_of(parts: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Rows `B` and `C` in order, as they come, to `TRANSACTIONS`. Raises BronzeDamaged."""
    begins: dict[tuple[int, int], str | None] = {}
    for part in parts:
        rows: list[dict[str, Any]] = []
        for row in part.to_pylist():
            place = (row["epoch"], row["position"])
            if row["op"] == BEGIN:
                begins[place] = row["info"]
            else:
                rows.append(_transaction(row, begins.pop(place, None)))
        yield pa.RecordBatch.from_pylist(rows, schema=TRANSACTIONS)


def _transaction(row: dict[str, Any], begin: str | None) -> dict[str, Any]:
    try:
        said = json.loads(row["info"])
        counts = [(table, list(kinds.items())) for table, kinds in said["counts"].items()]
        names = ("bytes", "empty_before", "configuration", "content", "hash")
        given = {"user": None, "origin": None} | json.loads(begin or "{}")
        odd = said["undecodable"]["code"] if "undecodable" in said else None
        return {**row, **given, "counts": counts, "undecodable": odd, **{name: said[name] for name in names}}
    except (AttributeError, KeyError, TypeError, ValueError) as cause:
        raise BronzeDamaged(f"the BEGIN or COMMIT row at position {row['position']} cannot be read") from cause
