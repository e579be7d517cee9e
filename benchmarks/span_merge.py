"""The MERGE that somebody writes by hand for net rows: `op` D deletes, the others update or insert."""

from __future__ import annotations

from collections.abc import Sequence


def merge_by_hand(table: str, columns: Sequence[str]) -> str:
    """The statement; the net rows are the view `net`, the first column is the key."""
    key, *others = columns
    return (
        f"MERGE INTO {table} t USING net s ON t.{key} = s.{key} "
        "WHEN MATCHED AND s.op = 'D' THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {', '.join(f'{c} = s.{c}' for c in others)} "
        f"WHEN NOT MATCHED AND s.op <> 'D' THEN INSERT ({', '.join(columns)}) "
        f"VALUES ({', '.join(f's.{c}' for c in columns)})"
    )
