"""Typed changes: bronze rows of one table as a table of its own columns, in the types that silver gives them.

Rows of several layouts share one set of columns: those of the newest layout, in its order, then those that only older
layouts have, each in the type of the newest layout that has it. What is not there has a name: `_unchanged` lists the
columns that the server did not send, `_absent` those that the row's layout does not have; both are NULL in the typed
column, and so is SQL NULL, which is in neither list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.contract import SCHEMA
from cdc_lake.errors import BronzeDamaged, ValueNotTyped
from cdc_lake.lake.arrow_values import arrow_type, read_texts
from cdc_lake.lake.names import names_for
from cdc_lake.model.relation import Column, Relation, TableName

Misfits: TypeAlias = Literal["stop", "keep"]
"""What becomes of a text that has no value of its column's type: ValueNotTyped, or NULL and its text in `_misfit`."""

PLACES = {
    "_epoch": "epoch",
    "_position": "position",
    "_ordinal": "ordinal",
    "_csn": "csn",
    "_lsn": "lsn",
    "_xid": "xid",
    "_commit_ts": "commit_ts",
    "_op": "op",
}
"""The columns before the table's own, and the columns of bronze that they are."""

BEHIND = ("_old", "_old_kind", "_unchanged", "_absent", "_misfit")
"""The columns behind them; `_misfit` only where misfits are kept."""

SOURCES = (*PLACES.values(), "layout", "new", "old", "old_kind", "unchanged")
"""The columns of bronze that are read."""

_NAMES = pa.list_(pa.string())
_TEXTS = pa.map_(pa.string(), pa.string())


@dataclass(frozen=True)
class TableColumns:
    """The columns of one table over its layouts, given oldest first."""

    table: TableName
    layouts: Mapping[int, Relation]

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The newest layout's, then those that only older ones have."""
        found: dict[str, Column] = {}
        for relation in reversed(list(self.layouts.values())):
            for column in relation.columns:
                found.setdefault(column.name, column)
        return tuple(found.values())

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Their names: silver's, but where one is a name of `PLACES` or `BEHIND`, which gets a mark."""
        own = (*PLACES, *BEHIND)
        return names_for((*own, *(column.name for column in self.columns)))[len(own) :]

    def places(self, layout: int) -> tuple[int | None, ...]:
        """Where each column stands in a layout, None where it is not part of it."""
        names = self.layouts[layout].names
        return tuple(names.index(c.name) if c.name in names else None for c in self.columns)

    def schema(self, *, typed: bool, misfits: Misfits) -> pa.Schema:
        """What `typed_changes` gives."""
        kinds = [arrow_type(c) if typed else pa.string() for c in self.columns]
        own = [pa.field(name, kind) for name, kind in zip(self.names, kinds, strict=True)]
        fields = [pa.field(name, SCHEMA.field(source).type) for name, source in PLACES.items()]
        fields += [*own, pa.field("_old", pa.struct(own)), pa.field("_old_kind", pa.string())]
        fields += [pa.field("_unchanged", _NAMES), pa.field("_absent", _NAMES)]
        return pa.schema([*fields, pa.field("_misfit", _TEXTS)] if misfits == "keep" else fields)


def typed_changes(rows: pa.Table, of: TableColumns, *, typed: bool = True, misfits: Misfits = "stop") -> pa.Table:
    """Bronze rows of one table (`SOURCES`) with its columns, in their order.

    Raises ValueNotTyped, BronzeDamaged.
    """
    numbers = rows["layout"].unique().to_pylist()
    if unknown := [number for number in numbers if number not in of.layouts]:
        raise BronzeDamaged(f"bronze has no description of layout {unknown[0]} of {of.table}")
    schema = of.schema(typed=typed, misfits=misfits)
    if len(numbers) == 1:
        return _of_layout(rows, numbers[0], of, schema, typed=typed)
    parts, found = [schema.empty_table()], []
    for number in numbers:
        mine = pc.equal(rows["layout"], number)
        parts.append(_of_layout(rows.filter(mine), number, of, schema, typed=typed))
        found.append(np.flatnonzero(np.asarray(mine)))
    order = np.argsort(np.concatenate(found)) if found else np.zeros(0, np.int64)
    return pa.concat_tables(parts).take(pa.array(order))


def _of_layout(rows: pa.Table, number: int, of: TableColumns, schema: pa.Schema, *, typed: bool) -> pa.Table:
    places = of.places(number)
    new, old = _one(rows["new"]), _one(rows["old"])
    reading = _Reading(rows, of, places, typed=typed, keep="_misfit" in schema.names)
    values = reading.tuple_of(new, "")
    before = reading.tuple_of(old, "_old.")
    columns: dict[str, Any] = {name: rows[source] for name, source in PLACES.items()}
    columns |= dict(zip(of.names, values, strict=True))
    columns["_old"] = pa.StructArray.from_arrays(before, fields=list(schema.field("_old").type), mask=pc.is_null(old))
    columns["_old_kind"] = rows["old_kind"]
    columns["_unchanged"] = _named(_one(rows["unchanged"]), of.layouts[number].names)
    lacking = [name for name, at in zip(of.names, places, strict=True) if at is None]
    columns["_absent"] = pa.repeat(pa.scalar(lacking or None, _NAMES), rows.num_rows)
    if reading.keep:
        columns["_misfit"] = reading.misfits()
    return pa.table([columns[name] for name in schema.names], schema=schema)


class _Reading:
    """The tuples of some rows of one layout, and which of their texts had no value."""

    def __init__(
        self, rows: pa.Table, of: TableColumns, places: Sequence[int | None], *, typed: bool, keep: bool
    ) -> None:
        self._rows = rows
        self._of = of
        self._places = places
        self._typed = typed
        self.keep = keep
        self._misfits: dict[int, list[tuple[str, str]]] = {}

    def tuple_of(self, lists: Any, prefix: str) -> list[Any]:
        """One array a column, from an array of tuples."""
        columns = zip(self._of.columns, self._of.names, self._places, strict=True)
        return [self._column(lists, column, prefix + name, at) for column, name, at in columns]

    def misfits(self) -> Any:
        """The texts without a value, by column name, NULL where there are none."""
        return pa.array([self._misfits.get(row) for row in range(self._rows.num_rows)], _TEXTS)

    def _column(self, lists: Any, column: Column, name: str, at: int | None) -> Any:
        kind = arrow_type(column) if self._typed else pa.string()
        if at is None:
            return pa.nulls(len(lists), kind)
        try:
            texts = pc.list_element(lists, at)
        except (pa.ArrowInvalid, pa.ArrowIndexError) as cause:
            raise BronzeDamaged(f"a tuple of {self._of.table} is shorter than its layout") from cause
        if not self._typed:
            return texts
        values, wrong = read_texts(texts, column)
        if wrong is not None:
            self._note(texts, np.flatnonzero(np.asarray(wrong)).tolist(), name, kind)
        return values

    def _note(self, texts: Any, wrong: list[int], name: str, kind: pa.DataType) -> None:
        if not self.keep:
            epoch, position = (self._rows[c][wrong[0]].as_py() for c in ("epoch", "position"))
            raise ValueNotTyped(
                f"a value of `{name}` at position {position} of epoch {epoch} is no {kind}",
                where=str(self._of.table),
            )
        for row in wrong:
            self._misfits.setdefault(row, []).append((name, texts[row].as_py()))


def _one(column: pa.ChunkedArray) -> Any:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _named(lists: Any, names: Sequence[str]) -> Any:
    """Positions in a layout as names; no position at all is NULL."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    offsets = pa.array(np.concatenate(([0], np.cumsum(np.asarray(lengths)))).astype(np.int32))
    values = pa.array(names, pa.string()).take(pc.list_flatten(lists))
    return pa.ListArray.from_arrays(offsets, values, mask=pc.equal(lengths, 0))
