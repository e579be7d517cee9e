"""The changes in bronze that touched some keys of a table, found file by file: memory holds no whole history."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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

_OPS = (INSERT, UPDATE, DELETE, TRUNCATE, SNAPSHOT)
_OF_OPS = pa.array(_OPS)
_AT_ONCE = 2
"""Files that are looked through side by side: one alone is unpacked by one core."""

_COLUMNS = (
    "relation",
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

    def look(path: str) -> list[tuple[Key | None, Touching]]:
        parts = files.rough(path, _COLUMNS, (pc.field("relation") == str(table)) & pc.field("op").isin(_OPS))
        return [hit for part in parts for hit in _hits(_of(part, table), keys, names, places, texts_of)]

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="touching") as threads:
        for hits in threads.map(look, files.select(relations=[str(table)])):
            for key, change in hits:
                for one in keys if key is None else (key,):
                    found[one].add(change)
    return {key: sorted(changes, key=_place) for key, changes in found.items()}


def _of(rows: pa.Table, table: TableName) -> pa.Table:
    """Those that change the table."""
    return _filtered(rows, pc.and_(pc.equal(rows["relation"], str(table)), pc.is_in(rows["op"], value_set=_OF_OPS)))


def _hits(
    rows: pa.Table,
    keys: frozenset[Key],
    names: Sequence[str],
    places: Mapping[int, Sequence[int] | None],
    texts_of: TextsOf,
) -> Iterator[tuple[Key | None, Touching]]:
    """The changes that touch one of the keys, and which; None: every one."""
    truncates = pc.equal(rows["op"], TRUNCATE)
    for row in rows.filter(truncates).to_pylist():
        yield None, _touching(row)
    for number in rows["layout"].drop_null().unique().to_pylist():
        at = places.get(number)
        if at is not None:
            mine = pc.and_(pc.equal(rows["layout"], number), pc.invert(truncates))
            yield from _of_layout(_filtered(rows, mine), keys, names, at, texts_of)


def _of_layout(
    rows: pa.Table, wanted: frozenset[Key], names: Sequence[str], at: Sequence[int], texts_of: TextsOf
) -> Iterator[tuple[Key, Touching]]:
    """The same of rows of one layout, by the keys before and after each change."""
    first = pa.array({key[0] for key in wanted}, pa.large_string())
    both = _filtered(rows, pc.and_(pc.is_valid(rows["new"]), pc.is_valid(rows["old"])))
    for some, tuple_, other in ((rows, "new", "old"), (both, "old", "new")):
        told = [pc.coalesce(pc.list_element(some[tuple_], n), pc.list_element(some[other], n)) for n in at]
        texts = texts_of(pa.table(told, names=list(names)))
        near = pc.indices_nonzero(pc.is_in(pc.cast(texts[0], first.type), value_set=first))
        keys = zip(*(column.to_pylist() for column in texts.take(near).columns), strict=True)
        hits = [(n, key) for n, key in zip(near.to_pylist(), keys, strict=True) if key in wanted]
        for (_, key), row in zip(hits, some.take(pa.array([n for n, _ in hits], pa.int64())).to_pylist(), strict=True):
            yield key, _touching(row)


def _filtered(rows: pa.Table, wanted: Any) -> pa.Table:
    """The rows that are wanted, not copied where all are: those of a copy are many."""
    return rows if pc.all(wanted, skip_nulls=False).as_py() else rows.filter(wanted)


def _touching(row: Mapping[str, Any]) -> Touching:
    return Touching(**{field.name: row[field.name] for field in fields(Touching)})


def _place(one: Touching) -> tuple[int, int, int]:
    return one.epoch, one.position, one.ordinal


def _places(columns: Sequence[str], names: Sequence[str]) -> list[int] | None:
    return [columns.index(name) for name in names] if set(names) <= set(columns) else None
