"""The changes in bronze that touched some keys of a table, found file by file: memory holds no whole history."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.contract import DELETE, INSERT, SNAPSHOT, TRUNCATE, UPDATE
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.model.relation import TableName

Key: TypeAlias = tuple[str | None, ...]
KeysOf: TypeAlias = Callable[[pa.Table], list[Key]]
"""The key of each row of a table, whose columns are those of the key and hold texts as the server prints them."""

TextsOf: TypeAlias = Callable[[pa.Table], pa.Table]
"""The same columns in the form that the wanted keys have."""

_COLUMNS = (
    "stream",
    "epoch",
    "position",
    "ordinal",
    "op",
    "csn",
    "commit_lsn",
    "commit_ts",
    "xid",
    "layout",
    "new",
    "old",
)


@dataclass(frozen=True, slots=True)
class Touching:
    """One change that touched a key; of a truncate all keys. Times and numbers as its row has them."""

    epoch: int
    position: int
    ordinal: int
    op: str
    stream: str
    commit_ts: datetime | None
    csn: int | None
    commit_lsn: int | None
    xid: int | None


def touching(
    reader: BronzeReader, table: TableName, names: Sequence[str], keys: frozenset[Key], texts_of: TextsOf
) -> dict[Key, list[Touching]]:
    """The changes of each key, whose columns are `names`, in order; copied rows and rows read again are among them.

    Layouts without a column of the key are passed over.
    """
    found: dict[Key, set[Touching]] = {key: set() for key in keys}
    places = {number: _places(layout.names, names) for number, layout in reader.layouts([table]).items()}
    files = reader.applied()
    wanted = (pc.field("relation") == str(table)) & pc.field("op").isin([INSERT, UPDATE, DELETE, TRUNCATE, SNAPSHOT])
    for part in files.batches(files.select(relations=[str(table)]), _COLUMNS, wanted):
        truncates = pc.equal(part["op"], TRUNCATE)
        for row in part.filter(truncates).to_pylist():
            for changes in found.values():
                changes.add(_touching(row))
        for number in part["layout"].drop_null().unique().to_pylist():
            at = places.get(number)
            if at is not None:
                mine = pc.and_(pc.equal(part["layout"], number), pc.invert(truncates))
                _add(found, _filtered(part, mine), names, at, texts_of)
    return {key: sorted(changes, key=_place) for key, changes in found.items()}


def _add(
    found: dict[Key, set[Touching]], rows: pa.Table, names: Sequence[str], at: Sequence[int], texts_of: TextsOf
) -> None:
    """Sort out the rows of one layout, by the keys before and after each change."""
    first = pa.array({key[0] for key in found}, pa.large_string())
    both = _filtered(rows, pc.and_(pc.is_valid(rows["new"]), pc.is_valid(rows["old"])))
    for some, tuple_, other in ((rows, "new", "old"), (both, "old", "new")):
        told = [pc.coalesce(pc.list_element(some[tuple_], n), pc.list_element(some[other], n)) for n in at]
        texts = texts_of(pa.table(told, names=list(names)))
        near = pc.indices_nonzero(pc.is_in(pc.cast(texts[0], first.type), value_set=first))
        keys = zip(*(column.to_pylist() for column in texts.take(near).columns), strict=True)
        hits = [(n, key) for n, key in zip(near.to_pylist(), keys, strict=True) if key in found]
        for (_, key), row in zip(hits, some.take(pa.array([n for n, _ in hits], pa.int64())).to_pylist(), strict=True):
            found[key].add(_touching(row))


def _filtered(rows: pa.Table, wanted: Any) -> pa.Table:
    """The rows that are wanted, not copied where all are: those of a copy are many."""
    return rows if pc.all(wanted, skip_nulls=False).as_py() else rows.filter(wanted)


def _touching(row: Mapping[str, Any]) -> Touching:
    return Touching(**{field.name: row[field.name] for field in fields(Touching)})


def _place(one: Touching) -> tuple[int, int, int]:
    return one.epoch, one.position, one.ordinal


def _places(columns: Sequence[str], names: Sequence[str]) -> list[int] | None:
    return [columns.index(name) for name in names] if set(names) <= set(columns) else None
