"""Rows of some keys, read in a snapshot of the source, and whether they are the rows at silver's watermark.

That is so where the snapshot and silver know the same transactions of these keys, whatever happened to others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from cdc_lake.bronze.contract import TRUNCATE
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.touching import KeysOf, TextsOf
from cdc_lake.lake.canonical import from_source
from cdc_lake.model.relation import Relation
from cdc_lake.model.span import Span
from cdc_lake.pipeline.applying.point import Touch
from cdc_lake.pipeline.ports.side import CompareSource
from cdc_lake.silver.row_events import Key
from cdc_lake.source.captured import Published
from cdc_lake.source.quoting import identifier, literal

KEYS_AT_MOST = 5_000
"""Keys of a table that are read at a time: a statement names them."""


def as_printed(columns: pa.Table) -> list[Key]:
    """Keys in the server's own text."""
    return list(zip(*(column.to_pylist() for column in columns.columns), strict=True))


def canonical(names: Sequence[str], types: Mapping[str, pa.DataType]) -> KeysOf:
    """Keys in canonical form (`lake.canonical`) beside silver's columns of these types."""
    texts_of = canonical_texts(names, types)
    return lambda columns: as_printed(texts_of(columns))


def canonical_texts(names: Sequence[str], types: Mapping[str, pa.DataType]) -> TextsOf:
    """The same, as columns."""
    return lambda columns: pa.table({name: from_source(columns[name], types[name]) for name in names})


def same_columns(one: Relation, other: Relation) -> bool:
    """Whether rows of one layout may be landed under another."""
    return [(c.name, c.type_oid) for c in one.columns] == [(c.name, c.type_oid) for c in other.columns]


def rows_of_keys(
    source: CompareSource,
    one: Published,
    layout: Relation,
    names: Sequence[str],
    keys: frozenset[Key],
    keys_of: KeysOf = as_printed,
) -> dict[Key, list[str | None]]:
    """The rows that keys have in the source's snapshot, by position in the layout; keys without a row are left out."""
    rows = source.rows(source.relation_of(one), replace(one, row_filter=key_filter(one, names, keys)))
    values = rows.select(list(layout.names)).to_pylist()
    found = zip(keys_of(rows.select(list(names))), values, strict=True)
    return {key: list(row.values()) for key, row in found if key in keys}


def changed_keys(
    bronze: BronzeReader,
    epoch: int,
    touches: Iterable[Touch],
    layout: Relation,
    names: Sequence[str],
    keys: frozenset[Key],
    keys_of: KeysOf = as_printed,
) -> frozenset[Key]:
    """The keys that some of the landed transactions change; all of them where nobody can tell."""
    changed: set[Key] = set()
    for touch in touches:
        if touch.undecoded:
            return keys
        if layout.table in touch.tables:
            touched = _touched(bronze, Span(epoch, touch.position - 1, touch.position), layout, names, keys_of)
            if touched is None:
                return keys
            changed |= touched
    return keys & changed


def _touched(
    bronze: BronzeReader, at: Span, layout: Relation, names: Sequence[str], keys_of: KeysOf
) -> set[Key] | None:
    """The keys before and after each change of a transaction, as far as they are told; None: all of the table."""
    layouts, given = bronze.layouts([layout.table]), []
    for row in bronze.changes(layout.table, at).to_pylist():
        if row["op"] == TRUNCATE:
            return None
        for values in (row["new"], row["old"]):
            if values is not None:
                told = dict(zip(layouts[row["layout"]].names, values, strict=True))
                given.append([told.get(name) for name in names])
    parts = list(zip(*given, strict=True)) or [()] * len(names)
    columns = {name: pa.array(part, pa.large_string()) for name, part in zip(names, parts, strict=True)}
    return set(keys_of(pa.table(columns)))


def key_filter(one: Published, names: Sequence[str], keys: frozenset[Key]) -> str:
    """The condition that only rows of these keys meet, beside the one that the stream has."""
    told = sorted((key for key in keys if None not in key), key=repr)
    columns = ", ".join(identifier(name) for name in names)
    mine = [f"({columns}) IN ({', '.join(_row(key) for key in told)})"] if told else []
    for key in sorted(keys - {*told}, key=repr):
        pairs = zip((identifier(name) for name in names), key, strict=True)
        mine.append("(" + " AND ".join(f"{c} IS NULL" if v is None else f"{c} = {literal(v)}" for c, v in pairs) + ")")
    others = "" if one.row_filter is None else f"({one.row_filter}) AND "
    return f"{others}({' OR '.join(mine)})"


def _row(key: Key) -> str:
    return f"({', '.join(literal(text) for text in key if text is not None)})"
