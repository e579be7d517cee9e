"""Bronze folded: the rows of source tables as the newest stream's copy and its transactions leave them.

Change by change and in memory, by the texts the server sent: slow, and nothing in it is shared with what merges silver.
Where two rows have one key for a moment (a deferred constraint), the one that the old tuple names leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.contract import DELETE, INSERT, SNAPSHOT, TRUNCATE, UPDATE
from cdc_lake.bronze.decoded import in_order
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.errors import BronzeDamaged
from cdc_lake.model.rows_by_key import Key, RowsByKey

Row: TypeAlias = dict[str, str | None]

_COLUMNS = ["relation", "epoch", "position", "ordinal", "op", "layout", "new", "old", "unchanged"]


def folded(
    reader: BronzeReader, epoch: int, keys: Mapping[str, Sequence[str]], copied: Mapping[str, int]
) -> dict[str, list[Row]]:
    """The rows of each table named in `keys`, with its key columns, after everything that the epoch holds decoded.

    `copied`: the position that each table's copy stands at.
    Raises BronzeDamaged where a change is of a row that is not there.
    """
    files = reader.applied()
    names = {number: layout.names for number, layout in reader.layouts().items()}
    tables: dict[str, RowsByKey[Row]] = {name: RowsByKey() for name in keys}
    wanted = (pc.field("epoch") == epoch) & pc.field("relation").isin(pa.array(list(keys), pa.string()))
    wanted &= pc.field("op").isin([SNAPSHOT, INSERT, UPDATE, DELETE, TRUNCATE])
    wanted &= pc.field("ordinal") >= 0  # rows that were read again are not of the stream
    paths, of_copy = files.select(epoch=epoch, relations=list(keys)), pc.field("op") == SNAPSHOT
    for some in (of_copy, ~of_copy):  # a copy that was made beside the stream lies among its files
        for part in in_order(files, paths, _COLUMNS, wanted & some):
            for row in part.to_pylist():
                table = row["relation"]
                begins, position = copied.get(table), row["position"]
                if begins is not None and (position != begins if row["op"] == SNAPSHOT else position <= begins):
                    continue  # of a copy that broke off, or in its copy already
                _change(tables[table], row, names[row["layout"]], keys[table])
    return {name: list(rows) for name, rows in tables.items()}


def _change(rows: RowsByKey[Row], row: Mapping[str, Any], names: Sequence[str], keys: Sequence[str]) -> None:
    new = None if row["new"] is None else dict(zip(names, row["new"], strict=True))
    old = None if row["old"] is None else dict(zip(names, row["old"], strict=True))
    match row["op"]:
        case "T":
            rows.clear()
        case "S" | "I" if new is not None:
            rows.move(None, _key(new, keys), new)
        case "U" if new is not None:
            left = _key(old or new, keys)
            before = _there(rows, left, row, old)
            for at in row["unchanged"] or ():
                new[names[at]] = before.get(names[at])
            rows.move(left, _key(new, keys), new, old)
        case "D" if old is not None:
            left = _key(old, keys)
            _there(rows, left, row, old)
            rows.move(left, None, None, old)
        case _:
            raise BronzeDamaged(f"a change of {row['relation']} at position {row['position']} names no row")


def _there(rows: RowsByKey[Row], key: Key, row: Mapping[str, Any], old: Row | None) -> Row:
    found = rows.row_of(key, old)
    if found is None:
        at = f"at position {row['position']}"
        raise BronzeDamaged(f"a change of {row['relation']} {at} is of a row that no earlier one brought")
    return found


def _key(row: Row, keys: Sequence[str]) -> Key:
    return tuple(row.get(name) for name in keys)
