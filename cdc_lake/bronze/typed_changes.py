"""Bronze rows of one table as typed columns, as Arrow tables or as SQL views for Spark.

Rows of several layouts have one set of columns: those of the newest layout, in its order, then those that only older
layouts have, each with the type in the newest layout that has it. `_unchanged` lists the columns that the server did
not send, `_absent` those that the row's layout does not have; both are NULL in the typed column, and so is SQL NULL,
which is in neither list.

Views read bronze's files as plain Parquet, selected by their bounds (`docs/decisions/0002`), and filter the rows again.
A permanent view cannot list files, which change; it refers to the Delta table by its path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.contract import COLUMNS, SCHEMA
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.errors import BronzeDamaged, ValueNotTyped, ViewNotMade
from cdc_lake.model.position import Span
from cdc_lake.model.relation import Column, Relation, TableName
from cdc_lake.tables.canonical_values import arrow_type, read_texts
from cdc_lake.tables.casts import cast_sql, fits_sql
from cdc_lake.tables.spark_session import temp_view
from cdc_lake.tables.types import column_type, literal, names_for, quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Misfits: TypeAlias = Literal["stop", "keep"]
"""What happens to a text without a value of its column's type: ValueNotTyped, or NULL and its text in `_misfit`."""

PLACES = {f"_{name}": name for name in ("epoch", "position", "ordinal", "csn", "lsn", "xid", "commit_ts", "op")}
"""The columns before the table's own, and bronze's columns for them."""

BEHIND = ("_old", "_old_kind", "_unchanged", "_absent", "_misfit")
"""The columns after them; `_misfit` only with `misfits="keep"`."""

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
        columns_by_name: dict[str, Column] = {}
        for relation in reversed(list(self.layouts.values())):
            for column in relation.columns:
                columns_by_name.setdefault(column.name, column)
        return tuple(columns_by_name.values())

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Their names: silver's, with a mark if it is a name of `PLACES` or `BEHIND`."""
        own = (*PLACES, *BEHIND)
        return names_for((*own, *(column.name for column in self.columns)))[len(own) :]

    def places(self, layout: int) -> tuple[int | None, ...]:
        """The index of each column in a layout, None if it has none."""
        names = self.layouts[layout].names
        return tuple(names.index(c.name) if c.name in names else None for c in self.columns)

    def schema(self, *, typed: bool, misfits: Misfits) -> pa.Schema:
        """The schema of the result of `typed_changes`."""
        kinds = [arrow_type(c) if typed else pa.string() for c in self.columns]
        own = [pa.field(name, kind) for name, kind in zip(self.names, kinds, strict=True)]
        fields = [pa.field(name, SCHEMA.field(source).type) for name, source in PLACES.items()]
        fields += [*own, pa.field("_old", pa.struct(own)), pa.field("_old_kind", pa.string())]
        fields += [pa.field("_unchanged", _NAMES), pa.field("_absent", _NAMES)]
        return pa.schema([*fields, pa.field("_misfit", _TEXTS)] if misfits == "keep" else fields)


def typed_changes(rows: pa.Table, of: TableColumns, *, typed: bool = True, misfits: Misfits = "stop") -> pa.Table:
    """Convert bronze rows of one table (`SOURCES`) to its columns, in their order.

    Raises ValueNotTyped, BronzeDamaged.
    """
    numbers = rows["layout"].unique().to_pylist()
    if unknown := [number for number in numbers if number not in of.layouts]:
        raise BronzeDamaged(f"bronze has no description of layout {unknown[0]} of {of.table}")
    schema = of.schema(typed=typed, misfits=misfits)
    if len(numbers) == 1:
        return _of_layout(rows, numbers[0], of, schema, typed=typed)
    parts, row_indices = [schema.empty_table()], []
    for number in numbers:
        in_layout = pc.equal(rows["layout"], number)
        parts.append(_of_layout(rows.filter(in_layout), number, of, schema, typed=typed))
        row_indices.append(np.flatnonzero(np.asarray(in_layout)))
    order = np.argsort(np.concatenate(row_indices)) if row_indices else np.zeros(0, np.int64)
    return pa.concat_tables(parts).take(pa.array(order))


def _of_layout(rows: pa.Table, number: int, of: TableColumns, schema: pa.Schema, *, typed: bool) -> pa.Table:
    places = of.places(number)
    new, old = _combine_chunks(rows["new"]), _combine_chunks(rows["old"])
    reading = _Reading(rows, of, places, typed=typed, keep="_misfit" in schema.names)
    values = reading.tuple_of(new, "")
    before = reading.tuple_of(old, "_old.")
    columns: dict[str, Any] = {name: rows[source] for name, source in PLACES.items()}
    columns |= dict(zip(of.names, values, strict=True))
    columns["_old"] = pa.StructArray.from_arrays(before, fields=list(schema.field("_old").type), mask=pc.is_null(old))
    columns["_old_kind"] = rows["old_kind"]
    columns["_unchanged"] = _names_at(_combine_chunks(rows["unchanged"]), of.layouts[number].names)
    lacking = [name for name, index in zip(of.names, places, strict=True) if index is None]
    columns["_absent"] = pa.repeat(pa.scalar(lacking or None, _NAMES), rows.num_rows)
    if reading.keep:
        columns["_misfit"] = reading.misfits()
    return pa.table([columns[name] for name in schema.names], schema=schema)


@dataclass
class _Reading:
    """The tuples of some rows of one layout, and their texts without a value."""

    rows: pa.Table
    of: TableColumns
    places: Sequence[int | None]
    typed: bool = field(kw_only=True)
    keep: bool = field(kw_only=True)
    _misfits: dict[int, list[tuple[str, str]]] = field(default_factory=dict)

    def tuple_of(self, lists: Any, prefix: str) -> list[Any]:
        """One array per column, from an array of tuples."""
        columns = zip(self.of.columns, self.of.names, self.places, strict=True)
        return [self._column(lists, column, prefix + name, index) for column, name, index in columns]

    def misfits(self) -> Any:
        """The texts without a value, by column name, NULL if there are none."""
        return pa.array([self._misfits.get(row) for row in range(self.rows.num_rows)], _TEXTS)

    def _column(self, lists: Any, column: Column, name: str, index: int | None) -> Any:
        kind = arrow_type(column) if self.typed else pa.string()
        if index is None:
            return pa.nulls(len(lists), kind)
        try:
            texts = pc.list_element(lists, index)
        except (pa.ArrowInvalid, pa.ArrowIndexError) as cause:
            raise BronzeDamaged(f"a tuple of {self.of.table} is shorter than its layout") from cause
        if not self.typed:
            return texts
        values, wrong = read_texts(texts, column)
        if wrong is not None:
            self._note(texts, np.flatnonzero(np.asarray(wrong)).tolist(), name, kind)
        return values

    def _note(self, texts: Any, wrong: list[int], name: str, kind: pa.DataType) -> None:
        if not self.keep:
            epoch, position = (self.rows[c][wrong[0]].as_py() for c in ("epoch", "position"))
            raise ValueNotTyped(
                f"a value of `{name}` at position {position} of epoch {epoch} is not a valid {kind}",
                where=str(self.of.table),
            )
        for row in wrong:
            self._misfits.setdefault(row, []).append((name, texts[row].as_py()))


def _combine_chunks(column: pa.ChunkedArray) -> Any:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _names_at(lists: Any, names: Sequence[str]) -> Any:
    """Names for positions in a layout; an empty list becomes NULL."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    offsets = pa.array(np.concatenate(([0], np.cumsum(np.asarray(lengths)))).astype(np.int32))
    values = pa.array(names, pa.string()).take(pc.list_flatten(lists))
    return pa.ListArray.from_arrays(offsets, values, mask=pc.equal(lengths, 0))


Query: TypeAlias = Callable[[str], str]
"""A function from a relation to SQL."""

_KINDS = {
    "string": "STRING",
    "int32": "INT",
    "int64": "BIGINT",
    "binary": "BINARY",
    "timestamp[us, tz=UTC]": "TIMESTAMP",
    "list<item: string>": "ARRAY<STRING>",
    "list<item: int32>": "ARRAY<INT>",
}
_SCHEMA = ", ".join(f"`{name}` {_KINDS[str(kind)]}" for name, kind, _ in COLUMNS)
_BEGAN = "user STRING, origin STRING"
_SAID = (
    "counts MAP<STRING, MAP<STRING, BIGINT>>, bytes BIGINT, empty_before BIGINT, configuration BIGINT, "
    "content STRING, hash STRING, undecodable STRUCT<code: STRING>"
)


def register(
    spark: SparkSession, paths: Sequence[str], shapes: Sequence[TableColumns], *, later: Sequence[tuple[int, int]]
) -> tuple[str, ...]:
    """Create temporary views of each table in the files and of transactions; returns the names. Raises ViewNotMade."""
    queries = _queries(shapes, later)
    for name, query in queries.items():
        query_files(spark, paths, query).createOrReplaceTempView(quote_identifier(name))
    return tuple(queries)


def register_lasting(
    spark: SparkSession, reader: BronzeReader, shapes: Sequence[TableColumns], database: str
) -> tuple[str, ...]:
    """Create the same as permanent views of a database, over the table itself. Raises ViewNotMade."""
    queries = _queries(shapes, ())
    if reader.sql_name is None:
        raise ViewNotMade("permanent views require a bronze table in Delta on this machine", where=reader.place)
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {quote_identifier(database)}")
    for name, query in queries.items():
        spark.sql(
            f"CREATE OR REPLACE VIEW {quote_identifier(database)}.{quote_identifier(name)} AS {query(reader.sql_name)}"
        )
    return tuple(f"{database}.{name}" for name in queries)


def _queries(shapes: Sequence[TableColumns], later: Sequence[tuple[int, int]]) -> dict[str, Query]:
    """View → its query over a relation with bronze's rows."""
    queries: dict[str, Query] = {}
    for of in shapes:
        if (name := f"{of.table.schema}_{of.table.name}") in queries:
            raise ViewNotMade(f"two tables would have the same view {name}", where=str(of.table))
        queries[name] = partial(changes_sql, of=of, span=None, misfits="keep", snapshot=True, later=later)
    return {**queries, "transactions": partial(transactions_sql, span=None)}


def transactions_sql(source: str, span: Span | None) -> str:
    """One row per transaction, from its BEGIN and COMMIT rows."""
    plain = ("csn", "first_lsn", "commit_lsn", "xid", "commit_ts")
    aggregates = ", ".join(f"max({name}) AS {name}" for name in plain)
    infos = (
        "max(CASE op WHEN 'C' THEN ingest_ts END) AS ingest_ts, "
        f"from_json(max(CASE op WHEN 'B' THEN info END), '{_BEGAN}') AS began, "
        f"from_json(max(CASE op WHEN 'C' THEN info END), '{_SAID}') AS said"
    )
    where = _and("op IN ('B', 'C')", span)
    grouped = f"SELECT epoch, position, {aggregates}, {infos} FROM {source} WHERE {where} GROUP BY epoch, position"
    flat = f"SELECT * EXCEPT (began, said), began.*, said.* FROM ({grouped})"
    return f"SELECT * EXCEPT (undecodable), undecodable.code AS undecodable FROM ({flat})"


def changes_sql(
    source: str,
    of: TableColumns,
    span: Span | None,
    *,
    misfits: Misfits,
    snapshot: bool,
    later: Sequence[tuple[int, int]] = (),
) -> str:
    """The changes of one table, as in `bronze.typed_changes`; an undecodable transaction stops the query.

    `later`: places of transactions that were decoded later.
    """
    ops = "'I', 'U', 'D', 'T', 'S'" if snapshot else "'I', 'U', 'D', 'T'"
    own = f"relation = {literal(str(of.table))} AND op IN ({ops})"
    exclusions = "".join(f" AND NOT (epoch = {epoch} AND position = {position})" for epoch, position in later)
    what = "raise_error(concat('the transaction at position ', position, ' of epoch ', epoch, ' is not decoded'))"
    where = _and(f"({own} OR (op = 'X'{exclusions} AND {what} IS NOT NULL))", span)
    changes = _Changes(of, misfits)
    return f"SELECT {', '.join(changes.values)} FROM (SELECT {', '.join(changes.texts)} FROM {source} WHERE {where})"


@dataclass
class _Changes:
    """The expressions of one table: first the texts by column, independent of the layout, then their values."""

    of: TableColumns
    misfits: Misfits

    def __post_init__(self) -> None:
        self._places = {number: self.of.places(number) for number in self.of.layouts}

    @property
    def texts(self) -> list[str]:
        """The inner query: bronze's columns that are kept, and `new_<n>` and `old_<n>` for each column."""
        of = self.of
        expressions = [*dict.fromkeys((*PLACES.values(), "old_kind")), "old IS NOT NULL AS had_old"]
        for array in ("new", "old"):
            expressions += [f"{self._text(array, index)} AS {array}_{index}" for index in range(len(of.columns))]
        names = {number: _array(relation.names) for number, relation in of.layouts.items()}
        sent = self._by_layout(lambda number: f"transform(unchanged, at -> {names[number]}[at])")
        expressions.append(f"CASE WHEN size(unchanged) > 0 THEN {sent} END AS unsent")
        expressions.append(f"{self._by_layout(self._absent)} AS absent")
        return expressions

    @property
    def values(self) -> list[str]:
        """The outer query."""
        of = self.of
        expressions = [f"{source} AS {name}" for name, source in PLACES.items()]
        expressions += [
            f"{self._value('new', index)} AS {quote_identifier(name)}" for index, name in enumerate(of.names)
        ]
        fields = ", ".join(f"{literal(name)}, {self._value('old', index)}" for index, name in enumerate(of.names))
        expressions += [f"CASE WHEN had_old THEN named_struct({fields}) END AS _old", "old_kind AS _old_kind"]
        expressions += ["unsent AS _unchanged", "absent AS _absent"]
        return [*expressions, f"{self._misfits_sql} AS _misfit"] if self.misfits == "keep" else expressions

    def _value(self, array: str, index: int) -> str:
        text, column = f"{array}_{index}", self.of.columns[index]
        kind = column_type(column)
        value, fits = cast_sql(text, kind), fits_sql(text, kind)
        if fits == "true":
            return value
        what = f"`{self.of.names[index]}` is not a valid {kind.sql}"
        stop = f"raise_error(concat({literal(f'a value of {what} at position ')}, position, ' of epoch ', epoch))"
        return f"CASE WHEN {fits} THEN {value}{f' ELSE {stop}' if self.misfits == 'stop' else ''} END"

    @property
    def _misfits_sql(self) -> str:
        entries = []
        for array, prefix in (("new", ""), ("old", "_old.")):
            for index, (name, column) in enumerate(zip(self.of.names, self.of.columns, strict=True)):
                fits = fits_sql(f"{array}_{index}", column_type(column))
                if fits != "true":
                    entry = f"struct({literal(prefix + name)} AS key, {array}_{index} AS value)"
                    entries.append(f"CASE WHEN NOT {fits} THEN {entry} END")
        if not entries:
            return "CAST(NULL AS MAP<STRING, STRING>)"
        misfits = f"filter(array({', '.join(entries)}), entry -> entry IS NOT NULL)"
        return f"CASE WHEN size({misfits}) > 0 THEN map_from_entries({misfits}) END"

    def _text(self, array: str, index: int) -> str:
        def layout_text(number: int) -> str:
            place = self._places[number][index]
            return "CAST(NULL AS STRING)" if place is None else f"{array}[{place}]"

        return self._by_layout(layout_text)

    def _absent(self, number: int) -> str:
        names = [name for name, index in zip(self.of.names, self._places[number], strict=True) if index is None]
        return _array(names) if names else "CAST(NULL AS ARRAY<STRING>)"

    def _by_layout(self, expression: Callable[[int], str]) -> str:
        """An expression by layout; one that is newer than the view must not look like NULL."""
        cases = " ".join(f"WHEN {number} THEN {expression(number)}" for number in self._places)
        return f"CASE layout {cases} ELSE {self._unknown} END"

    @cached_property
    def _unknown(self) -> str:
        return f"raise_error({literal(f'{self.of.table} was altered since the view was created: create it again')})"


def query_files(spark: SparkSession, paths: Sequence[str], query: Query) -> DataFrame:
    """A query over the given files, with a temporary name that SQL needs."""
    reading = spark.read.schema(_SCHEMA)
    rows = reading.parquet(*paths) if paths else spark.createDataFrame([], _SCHEMA)
    with temp_view(rows, f"bronze_{uuid4().hex}") as name:
        return spark.sql(query(name))


def _and(where: str, span: Span | None) -> str:
    if span is None:
        return where
    return f"{where} AND epoch = {span.epoch} AND position > {span.after} AND position <= {span.upto}"


def _array(names: Sequence[str]) -> str:
    return f"array({', '.join(map(literal, names))})"
