"""Matching: two tables of canonical text, row by row by key.

Both tables have the same columns in the same order, each a large_string. Nothing is sorted: keys are joined to row
numbers, and every other column is compared at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Key: TypeAlias = tuple[str | None, ...]

# A key part that is NULL equals another that is: joins would keep them apart, and no server text holds this character.
_NULL = "\0"


@dataclass(frozen=True, slots=True)
class Differences:
    """Keys of rows that are not the same. `missing`: only in the source; `extra`: only in silver; `changed`: differing
    in some column; `repeated`: had by several rows on either side; `shared`: had by several rows of the source.
    `columns`: how many rows differ, by column.
    """

    missing: tuple[Key, ...] = ()
    extra: tuple[Key, ...] = ()
    changed: tuple[Key, ...] = ()
    repeated: tuple[Key, ...] = ()
    columns: tuple[tuple[str, int], ...] = ()
    shared: tuple[Key, ...] = ()

    @property
    def keys(self) -> frozenset[Key]:
        """All of them."""
        return frozenset((*self.missing, *self.extra, *self.changed, *self.repeated))


def match(source: pa.Table, silver: pa.Table, keys: Sequence[str]) -> Differences:
    """Compare; `keys` are names of columns that identify a row of the source."""
    if source.column_names != silver.column_names:
        msg = f"columns {source.column_names} cannot be matched with {silver.column_names}"
        raise ValueError(msg)
    source, silver = source.combine_chunks(), silver.combine_chunks()
    pairs = _numbered(source, keys, "at_source").join(
        _numbered(silver, keys, "at_silver"), [_key_name(k) for k in keys], join_type="full outer"
    )
    left, right = pairs["at_source"].combine_chunks(), pairs["at_silver"].combine_chunks()
    both = pc.and_(pc.is_valid(left), pc.is_valid(right))
    at_source, at_silver = left.filter(both), right.filter(both)
    differs, columns = _differing(source, silver, keys, at_source, at_silver)
    missing = Counter(keys_of(source, keys, left.filter(pc.is_null(right))))
    changed = dict.fromkeys(keys_of(source, keys, at_source.filter(pa.array(differs))))
    in_silver, in_source = (keys_of(source, keys, _again(at, at_source)) for at in (at_source, at_silver))
    repeated = dict.fromkeys((*in_silver, *in_source))
    return Differences(
        missing=tuple(missing),
        extra=tuple(dict.fromkeys(keys_of(silver, keys, right.filter(pc.is_null(left))))),
        changed=tuple(key for key in changed if key not in repeated),
        repeated=tuple(repeated),
        shared=tuple({*in_source, *(key for key, times in missing.items() if times > 1)}),
        columns=columns,
    )


COPIES = "number of copies"
"""The column of `counted` that says how often a row is there; no server's column list has such a type of text."""


def counted(table: pa.Table) -> pa.Table:
    """Each row of a table once, and in `COPIES` how often it is there, as text: rows that only values identify."""
    names = table.column_names
    rows = table.group_by(names).aggregate([([], "count_all")])
    return pa.table({**{name: rows[name] for name in names}, COPIES: rows["count_all"].cast(pa.large_string())})


def copies_of(table: pa.Table) -> dict[Key, int]:
    """How often each row of a counted table is there, by its values."""
    values = zip(*(table[name].to_pylist() for name in table.column_names if name != COPIES), strict=True)
    return dict(zip(values, map(int, table[COPIES].to_pylist()), strict=True))


def keys_of(table: pa.Table, keys: Sequence[str], at: Any) -> tuple[Key, ...]:
    """The keys of the rows with the given numbers."""
    if len(at) == 0:
        return ()
    return tuple(zip(*(table[name].take(at).to_pylist() for name in keys), strict=True))


def rows_among(table: pa.Table, keys: Sequence[str], wanted: frozenset[Key]) -> list[dict[str, str | None]]:
    """The rows with one of the wanted keys, each by column name, as often as they are there."""
    if not wanted or table.num_rows == 0:
        return []
    first = pa.array(list({key[0] for key in wanted}), pa.large_string())
    some = table.filter(pc.is_in(table[keys[0]], value_set=first)).to_pylist()
    return [row for row in some if tuple(row[name] for name in keys) in wanted]


def merged(found: Sequence[Differences]) -> Differences:
    """The differences of the parts of a table as those of the whole."""
    columns: Counter[str] = Counter()
    for one in found:
        columns.update(dict(one.columns))
    return Differences(
        missing=tuple(key for one in found for key in one.missing),
        extra=tuple(key for one in found for key in one.extra),
        changed=tuple(key for one in found for key in one.changed),
        repeated=tuple(key for one in found for key in one.repeated),
        shared=tuple(key for one in found for key in one.shared),
        columns=tuple(columns.items()),
    )


def _numbered(table: pa.Table, keys: Sequence[str], number: str) -> pa.Table:
    columns = {_key_name(name): pc.fill_null(table[name], _NULL) for name in keys}
    return pa.table({**columns, number: np.arange(table.num_rows, dtype=np.int64)})


def _again(numbers: Any, at_source: Any) -> Any:
    """Source rows of the pairs whose number occurs in more than one pair."""
    _, where, times = np.unique(np.asarray(numbers), return_inverse=True, return_counts=True)
    return pa.array(np.asarray(at_source)[times[where] > 1], pa.int64())


def _key_name(name: str) -> str:
    return f"key {name}"


def _differing(
    source: pa.Table, silver: pa.Table, keys: Sequence[str], at_source: Any, at_silver: Any
) -> tuple[Any, tuple[tuple[str, int], ...]]:
    """For each pair of rows whether they differ, and how many do by column."""
    differs = np.zeros(len(at_source), bool)
    columns = []
    for name in source.column_names:
        if name in keys:
            continue
        mine, theirs = source[name].take(at_source), silver[name].take(at_silver)
        unequal = pc.fill_null(pc.not_equal(mine, theirs), pc.xor(pc.is_null(mine), pc.is_null(theirs)))
        found = np.asarray(unequal)
        if found.any():
            columns.append((name, int(found.sum())))
            differs |= found
    return differs, tuple(columns)
