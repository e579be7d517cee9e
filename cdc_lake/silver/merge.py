"""Merge: the one statement that makes a net change part of a silver table.

The same SQL for Delta and Iceberg. A column the net change does not know keeps the target's value; a row that would
have to be inserted with such a column fails the statement, because silver is then not what the stream changes.
"""

from __future__ import annotations

from cdc_lake.lake.store import literal, quoted
from cdc_lake.silver.changes import OP
from cdc_lake.silver.net_change import unknown
from cdc_lake.silver.shape import Shape

MISSING_ROW = "cdc_lake: an update refers to a row that silver does not have"


def merge_sql(
    target: str, source: str, shape: Shape, unsent: frozenset[int], *, truncate: bool, bounds: tuple[int, int] | None
) -> str:
    """The MERGE of view `source` into `target`.

    `truncate`: rows without a net change go. `bounds`: smallest and largest value of an integer first key column in the
    source, a literal condition that lets files be skipped.
    """
    keys = [quoted(c.name) for c in shape.key_columns]
    on = " AND ".join(f"t.{k} = s.{k}" for k in keys)
    if bounds is not None and not truncate:
        on += f" AND t.{keys[0]} BETWEEN {bounds[0]} AND {bounds[1]}"
    names = [quoted(c.name) for c in shape.columns]
    kept = {at: f"s.{unknown(at)}" for at in unsent}
    sets = ", ".join(
        f"{name} = CASE WHEN {kept[at]} THEN t.{name} ELSE s.{name} END" if at in kept else f"{name} = s.{name}"
        for at, name in enumerate(names)
        if at not in shape.keys
    )
    values = ", ".join(
        f"CASE WHEN {kept[at]} THEN raise_error({literal(MISSING_ROW)}) ELSE s.{name} END"
        if at in kept
        else f"s.{name}"
        for at, name in enumerate(names)
    )
    update = f"WHEN MATCHED THEN UPDATE SET {sets} " if sets else ""
    gone = "WHEN NOT MATCHED BY SOURCE THEN DELETE" if truncate else ""
    return (
        f"MERGE INTO {target} t USING {source} s ON {on} "
        f"WHEN MATCHED AND s.{OP} = 'D' THEN DELETE {update}"
        f"WHEN NOT MATCHED AND s.{OP} = 'U' THEN INSERT ({', '.join(names)}) VALUES ({values}) {gone}"
    )


def overwrite_sql(target: str, source: str, shape: Shape) -> str:
    """The statement that replaces all rows of `target` by view `source`: a new content begins."""
    names = ", ".join(quoted(c.name) for c in shape.columns)
    return f"INSERT OVERWRITE {target} BY NAME SELECT {names} FROM {source} WHERE {OP} = 'U'"
