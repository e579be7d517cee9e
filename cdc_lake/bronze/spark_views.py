"""Views of bronze for Spark: what `bronze.typed` and `bronze.ledger` give, as SQL over bronze's rows.

Bronze's files are read as plain Parquet, chosen by their bounds (`docs/decisions/0002`), and each query filters the
rows again. A view that stays in a database cannot name files, which come and go; it names the Delta table by its path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeAlias
from uuid import uuid4

from cdc_lake.bronze.contract import COLUMNS
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.typed import PLACES, Misfits, TableColumns
from cdc_lake.errors import ViewNotMade
from cdc_lake.lake.casts import cast_sql, fits_sql
from cdc_lake.lake.frames import viewed
from cdc_lake.lake.store import literal, quoted
from cdc_lake.lake.types import column_type
from cdc_lake.model.relation import TableName
from cdc_lake.model.span import Span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Query: TypeAlias = Callable[[str], str]
"""SQL, given what to read from."""

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


def changes_frame(
    spark: SparkSession,
    paths: Sequence[str],
    of: TableColumns,
    span: Span | None,
    *,
    misfits: Misfits,
    snapshot: bool,
    later: Sequence[tuple[int, int]] = (),
) -> DataFrame:
    """The changes of one table in the given files; `later`: places of transactions that were decoded later."""
    return _frame(
        spark, paths, lambda rows: changes_sql(rows, of, span, misfits=misfits, snapshot=snapshot, later=later)
    )


def transactions_frame(spark: SparkSession, paths: Sequence[str], span: Span | None) -> DataFrame:
    """The transactions in the given files."""
    return _frame(spark, paths, lambda rows: transactions_sql(rows, span))


def register(
    spark: SparkSession, paths: Sequence[str], shapes: Sequence[TableColumns], *, later: Sequence[tuple[int, int]]
) -> tuple[str, ...]:
    """A temporary view of each table in the given files and one of transactions; their names. Raises ViewNotMade."""
    queries = _queries(shapes, later)
    for name, query in queries.items():
        _frame(spark, paths, query).createOrReplaceTempView(quoted(name))
    return tuple(queries)


def register_lasting(
    spark: SparkSession, reader: BronzeReader, shapes: Sequence[TableColumns], database: str
) -> tuple[str, ...]:
    """The same as views of a database, over the table itself. Raises ViewNotMade."""
    queries = _queries(shapes, ())
    if reader.sql_name is None:
        raise ViewNotMade("views that stay need a bronze table in Delta on this machine", where=reader.place)
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {quoted(database)}")
    for name, query in queries.items():
        spark.sql(f"CREATE OR REPLACE VIEW {quoted(database)}.{quoted(name)} AS {query(reader.sql_name)}")
    return tuple(f"{database}.{name}" for name in queries)


def _queries(shapes: Sequence[TableColumns], later: Sequence[tuple[int, int]]) -> dict[str, Query]:
    """View → the query over a table that has bronze's rows."""
    queries: dict[str, Query] = {}
    for of in shapes:
        if (name := view_name(of.table)) in queries:
            raise ViewNotMade(f"two tables would have the view {name}", where=str(of.table))
        queries[name] = partial(changes_sql, of=of, span=None, misfits="keep", snapshot=True, later=later)
    return {**queries, "transactions": partial(transactions_sql, span=None)}


def view_name(table: TableName) -> str:
    """`public.orders` → `public_orders`."""
    return f"{table.schema}_{table.name}"


def transactions_sql(source: str, span: Span | None) -> str:
    """A row a transaction, from its BEGIN and COMMIT rows."""
    plain = ("csn", "first_lsn", "commit_lsn", "xid", "commit_ts")
    given = ", ".join(f"max({name}) AS {name}" for name in plain)
    infos = (
        "max(CASE op WHEN 'C' THEN ingest_ts END) AS ingest_ts, "
        f"from_json(max(CASE op WHEN 'B' THEN info END), '{_BEGAN}') AS began, "
        f"from_json(max(CASE op WHEN 'C' THEN info END), '{_SAID}') AS said"
    )
    where = _and("op IN ('B', 'C')", span)
    grouped = f"SELECT epoch, position, {given}, {infos} FROM {source} WHERE {where} GROUP BY epoch, position"
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
    """The changes of one table, as `bronze.typed` gives them; an undecodable transaction stops the query."""
    ops = "'I', 'U', 'D', 'T', 'S'" if snapshot else "'I', 'U', 'D', 'T'"
    own = f"relation = {literal(str(of.table))} AND op IN ({ops})"
    known = "".join(f" AND NOT (epoch = {epoch} AND position = {position})" for epoch, position in later)
    what = "raise_error(concat('the transaction at position ', position, ' of epoch ', epoch, ' is not decoded'))"
    where = _and(f"({own} OR (op = 'X'{known} AND {what} IS NOT NULL))", span)
    changes = _Changes(of, misfits)
    return f"SELECT {', '.join(changes.values)} FROM (SELECT {', '.join(changes.texts)} FROM {source} WHERE {where})"


class _Changes:
    """The expressions of one table: first the texts by column, whatever the layout, then their values."""

    def __init__(self, of: TableColumns, misfits: Misfits) -> None:
        self._of = of
        self._misfits = misfits
        self._places = {number: of.places(number) for number in of.layouts}

    @property
    def texts(self) -> list[str]:
        """The inner query: the columns of bronze that stay, and `new_<n>` and `old_<n>` for each column."""
        of = self._of
        out = [*dict.fromkeys((*PLACES.values(), "old_kind")), "old IS NOT NULL AS had_old"]
        for array in ("new", "old"):
            out += [f"{self._text(array, at)} AS {array}_{at}" for at in range(len(of.columns))]
        names = {number: _array(relation.names) for number, relation in of.layouts.items()}
        sent = self._by_layout(lambda number: f"transform(unchanged, at -> {names[number]}[at])")
        out.append(f"CASE WHEN size(unchanged) > 0 THEN {sent} END AS unsent")
        out.append(f"{self._by_layout(self._absent)} AS absent")
        return out

    @property
    def values(self) -> list[str]:
        """The outer query."""
        of = self._of
        out = [f"{source} AS {name}" for name, source in PLACES.items()]
        out += [f"{self._value('new', at)} AS {quoted(name)}" for at, name in enumerate(of.names)]
        fields = ", ".join(f"{literal(name)}, {self._value('old', at)}" for at, name in enumerate(of.names))
        out += [f"CASE WHEN had_old THEN named_struct({fields}) END AS _old", "old_kind AS _old_kind"]
        out += ["unsent AS _unchanged", "absent AS _absent"]
        return [*out, f"{self._kept} AS _misfit"] if self._misfits == "keep" else out

    def _value(self, array: str, at: int) -> str:
        text, column = f"{array}_{at}", self._of.columns[at]
        kind = column_type(column)
        value, fits = cast_sql(text, kind), fits_sql(text, kind)
        if fits == "true":
            return value
        what = f"`{self._of.names[at]}` is no {kind.sql}"
        stop = f"raise_error(concat({literal(f'a value of {what} at position ')}, position, ' of epoch ', epoch))"
        return f"CASE WHEN {fits} THEN {value}{f' ELSE {stop}' if self._misfits == 'stop' else ''} END"

    @property
    def _kept(self) -> str:
        entries = []
        for array, prefix in (("new", ""), ("old", "_old.")):
            for at, (name, column) in enumerate(zip(self._of.names, self._of.columns, strict=True)):
                fits = fits_sql(f"{array}_{at}", column_type(column))
                if fits != "true":
                    entry = f"struct({literal(prefix + name)} AS key, {array}_{at} AS value)"
                    entries.append(f"CASE WHEN NOT {fits} THEN {entry} END")
        if not entries:
            return "CAST(NULL AS MAP<STRING, STRING>)"
        found = f"filter(array({', '.join(entries)}), entry -> entry IS NOT NULL)"
        return f"CASE WHEN size({found}) > 0 THEN map_from_entries({found}) END"

    def _text(self, array: str, at: int) -> str:
        def one(number: int) -> str:
            place = self._places[number][at]
            return "CAST(NULL AS STRING)" if place is None else f"{array}[{place}]"

        return self._by_layout(one)

    def _absent(self, number: int) -> str:
        names = [name for name, at in zip(self._of.names, self._places[number], strict=True) if at is None]
        return _array(names) if names else "CAST(NULL AS ARRAY<STRING>)"

    def _by_layout(self, one: Callable[[int], str]) -> str:
        """A layout that came after the view was made must not look like NULL."""
        cases = " ".join(f"WHEN {number} THEN {one(number)}" for number in self._places)
        return f"CASE layout {cases} ELSE {self._unknown} END"

    @cached_property
    def _unknown(self) -> str:
        return f"raise_error({literal(f'{self._of.table} has another layout since the view was made: make it again')})"


def _frame(spark: SparkSession, paths: Sequence[str], query: Query) -> DataFrame:
    """A query over the given files; SQL wants a name for them, which it does not keep."""
    reading = spark.read.schema(_SCHEMA)
    rows = reading.parquet(*paths) if paths else spark.createDataFrame([], _SCHEMA)
    with viewed(rows, f"bronze_{uuid4().hex}") as name:
        return spark.sql(query(name))


def _and(where: str, span: Span | None) -> str:
    if span is None:
        return where
    return f"{where} AND epoch = {span.epoch} AND position > {span.after} AND position <= {span.upto}"


def _array(names: Sequence[str]) -> str:
    return f"array({', '.join(map(literal, names))})"
