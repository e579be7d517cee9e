"""Reads bronze as rows: the changes of a table with typed columns, or one row per transaction.

Works with and without Spark. Only the files and row groups whose bounds overlap the span are read, and large spans
arrive in parts. The columns of a table's changes are those of the layouts in the span; if it has none, of the newest
layout.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze import typed_changes
from cdc_lake.bronze.contract import BEGIN, COMMIT, DELETE, INSERT, RELATION, SNAPSHOT, TRUNCATE, UNDECODABLE, UPDATE
from cdc_lake.bronze.data_files import Files
from cdc_lake.bronze.hash_chain import ChainVerdict
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.reader import BronzeReader, decoded_later, in_order, relation_of, span_filter
from cdc_lake.errors import BronzeDamaged, NotInBronze, TransactionUndecoded
from cdc_lake.model.position import END, Span, parse_position
from cdc_lake.model.relation import Relation, TableName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


TRANSACTIONS = pa.schema(
    [
        ("epoch", pa.int32()),
        ("position", pa.int64()),
        ("csn", pa.int64()),
        ("first_lsn", pa.int64()),
        ("commit_lsn", pa.int64()),
        ("xid", pa.int64()),
        ("commit_ts", pa.timestamp("us", tz="UTC")),
        ("ingest_ts", pa.timestamp("us", tz="UTC")),
        ("user", pa.string()),
        ("origin", pa.string()),
        ("counts", pa.map_(pa.string(), pa.map_(pa.string(), pa.int64()))),
        ("bytes", pa.int64()),
        ("empty_before", pa.int64()),
        ("configuration", pa.int64()),
        ("content", pa.string()),
        ("hash", pa.string()),
        ("undecodable", pa.string()),
    ]
)
"""One row per transaction: the columns of bronze, and the `info` of its BEGIN and COMMIT rows.

`counts`: table → operation → number. `undecodable`: the code of the error from decoding it, NULL if it is decoded.
"""

SOURCES = ("epoch", "position", "op", "csn", "first_lsn", "commit_lsn", "xid", "commit_ts", "ingest_ts", "info")
"""The columns of bronze that are read, for rows `B` and `C`."""


def transactions_of(parts: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Convert ordered rows `B` and `C` to `TRANSACTIONS`. Raises BronzeDamaged."""
    begins: dict[tuple[int, int], str | None] = {}
    for part in parts:
        rows: list[dict[str, Any]] = []
        for row in part.to_pylist():
            place = (row["epoch"], row["position"])
            if row["op"] == BEGIN:
                begins[place] = row["info"]
            else:
                rows.append(_transaction(row, begins.pop(place, None)))
        yield pa.RecordBatch.from_pylist(rows, schema=TRANSACTIONS)


def _transaction(row: dict[str, Any], begin: str | None) -> dict[str, Any]:
    try:
        commit_info = json.loads(row["info"])
        counts = [(table, list(kinds.items())) for table, kinds in commit_info["counts"].items()]
        names = ("bytes", "empty_before", "configuration", "content", "hash")
        begin_info = {"user": None, "origin": None} | json.loads(begin or "{}")
        odd = commit_info["undecodable"]["code"] if "undecodable" in commit_info else None
        return {
            **row,
            **begin_info,
            "counts": counts,
            "undecodable": odd,
            **{name: commit_info[name] for name in names},
        }
    except (AttributeError, KeyError, TypeError, ValueError) as cause:
        raise BronzeDamaged(f"the BEGIN or COMMIT row at position {row['position']} cannot be read") from cause


_CHANGES = (INSERT, UPDATE, DELETE, TRUNCATE)


class ChangeReader:
    """A bronze table to read. Each call uses the newest version; one instance per thread."""

    def __init__(self, reader: BronzeReader) -> None:
        self._reader = reader
        self._layouts: dict[int, Relation] = {}

    def span(self, after: str | int | None = None, upto: str | int | None = None, *, epoch: int | None = None) -> Span:
        """The transactions after `after`, up to and including `upto`, of one epoch: by default all of the newest one.

        Positions are as `cdc-lake status` prints them or as bronze stores them. Raises MalformedPosition, NotInBronze.
        """
        state = self._reader.state()
        if state is None:
            raise NotInBronze("bronze contains no stream", where=self._reader.place)
        end = state.upto if epoch in (None, state.epoch) else END
        return Span(epoch or state.epoch, _number(after, -1), _number(upto, end))

    def tables(self) -> tuple[TableName, ...]:
        """The tables with changes or copied rows in the newest files of bronze, by name."""
        state = self._reader.state()
        epochs = range(1, state.epoch + 1) if state is not None else ()
        return tuple(sorted({r.table for epoch in epochs for r in self._reader.latest_layouts(epoch)}))

    # ── changes ──

    def changes(
        self,
        table: TableName | str,
        span: Span | None = None,
        *,
        typed: bool = True,
        misfits: typed_changes.Misfits = "stop",
        snapshot: bool = False,
    ) -> pa.Table:
        """The changes of a table in order, in its own columns (`bronze.typed_changes`); without a span of all epochs.

        `typed=False` keeps the server's text. `misfits`: what happens to a text without a value of its column's type.
        With `snapshot` includes the rows of initial copies (`_op` is S).

        Raises NotInBronze, ValueNotTyped, TransactionUndecoded.
        """
        batches = self.change_batches(table, span, typed=typed, misfits=misfits, snapshot=snapshot)
        return batches.read_all()

    def change_batches(
        self,
        table: TableName | str,
        span: Span | None = None,
        *,
        typed: bool = True,
        misfits: typed_changes.Misfits = "stop",
        snapshot: bool = False,
    ) -> pa.RecordBatchReader:
        """The same as a stream of record batches, for spans larger than memory. Errors are raised during reading."""
        self._all_decoded(span)
        asked = self._plan_read(table, span, snapshot=snapshot)
        of = self._columns(asked)
        schema = of.schema(typed=typed, misfits=misfits)
        parts = in_order(asked.files, asked.paths, typed_changes.SOURCES, asked.wanted)
        tables = (typed_changes.typed_changes(part, of, typed=typed, misfits=misfits) for part in parts)
        return pa.RecordBatchReader.from_batches(schema, chain.from_iterable(table.to_batches() for table in tables))

    def columns(
        self, table: TableName | str, span: Span | None = None, *, snapshot: bool = False
    ) -> typed_changes.TableColumns:
        """The columns of a table's changes in a span. Raises NotInBronze if there is no such table."""
        return self._columns(self._plan_read(table, span, snapshot=snapshot))

    def _columns(self, asked: _Asked) -> typed_changes.TableColumns:
        numbers: dict[int, None] = {}
        for part in asked.files.batches(asked.paths, ["layout"], asked.wanted):
            used = part["layout"].drop_null().combine_chunks()
            for number in reversed(used[::-1].unique().to_pylist()):  # by their last use
                numbers.pop(number, None)
                numbers[number] = None
        if not numbers:
            relation = self._newest(asked)
            return typed_changes.TableColumns(asked.table, {relation.layout: relation})
        self._learn(set(numbers), asked)
        if unknown := [number for number in numbers if number not in self._layouts]:
            what = f"bronze has no description of layout {unknown[0]} of {asked.table}"
            raise BronzeDamaged(what, where=self._reader.place)
        return typed_changes.TableColumns(asked.table, {number: self._layouts[number] for number in numbers})

    # ── transactions ──

    def transactions(self, span: Span | None = None) -> pa.Table:
        """One row per transaction, in order (`TRANSACTIONS`); without a span of all epochs. Raises BronzeDamaged."""
        return self.transaction_batches(span).read_all()

    def transaction_batches(self, span: Span | None = None) -> pa.RecordBatchReader:
        """The same as a stream of record batches."""
        wanted = pc.field("op").isin([BEGIN, COMMIT])
        files = self._reader.files()
        paths = files.select_span(span, COMMIT)
        parts = files.batches(paths, SOURCES, wanted if span is None else wanted & span_filter(span))
        return pa.RecordBatchReader.from_batches(TRANSACTIONS, transactions_of(parts))

    def verify(self, span: Span | None = None) -> ChainVerdict:
        """Verify the chain over the span, or all of bronze. See `bronze.hash_chain_verify`."""
        return verify(self._reader, span)

    # ── the same from Spark ──

    def spark_changes(
        self,
        spark: SparkSession,
        table: TableName | str,
        span: Span | None = None,
        *,
        misfits: typed_changes.Misfits = "stop",
        snapshot: bool = False,
    ) -> DataFrame:
        """The result of `changes` as a DataFrame without order, from the current files of bronze."""
        asked = self._plan_read(table, span, snapshot=snapshot)
        of, later = self._columns(asked), decoded_later(asked.files)
        # an undecodable transaction need not name the table
        paths = [*dict.fromkeys([*asked.paths, *asked.files.select_span(span, UNDECODABLE)])]
        query = partial(typed_changes.changes_sql, of=of, span=span, misfits=misfits, snapshot=snapshot, later=later)
        return typed_changes.query_files(spark, asked.files.for_spark(paths), query)

    def spark_transactions(self, spark: SparkSession, span: Span | None = None) -> DataFrame:
        """The result of `transactions` as a DataFrame without order."""
        files = self._reader.files()
        paths = files.for_spark(files.select_span(span, COMMIT))
        return typed_changes.query_files(spark, paths, partial(typed_changes.transactions_sql, span=span))

    def register_views(self, spark: SparkSession, *, database: str | None = None) -> tuple[str, ...]:
        """Create a SQL view of each table's changes, and `transactions`; returns their names.

        Without `database` they are temporary views over the current files; with it they persist in the session's
        catalog and read the table as it is at the time of a query, which requires a local Delta bronze. Raises
        ViewNotMade.
        """
        shapes = [self.columns(table, snapshot=True) for table in self.tables()]
        if database is not None:
            return typed_changes.register_lasting(spark, self._reader, shapes, database)
        files = self._reader.applied_files()
        return typed_changes.register(spark, files.for_spark(files.select()), shapes, later=decoded_later(files))

    # ── files ──

    def _plan_read(self, table: TableName | str, span: Span | None, *, snapshot: bool) -> _Asked:
        name, files = _table(table), self._reader.applied_files()
        ops = [*_CHANGES, SNAPSHOT] if snapshot else list(_CHANGES)
        wanted = (pc.field("relation") == str(name)) & pc.field("op").isin(ops)
        paths = files.select_span(span, relations=[str(name)])
        return _Asked(name, span, files, paths, wanted if span is None else wanted & span_filter(span))

    def _all_decoded(self, span: Span | None) -> None:
        """Raise TransactionUndecoded if a transaction exists as bytes only."""
        state = self._reader.state()
        epochs = range(1, state.epoch + 1) if state is not None else ()
        for searched_span in [span] if span is not None else [Span(epoch, -1, END) for epoch in epochs]:
            for commit in self._reader.undecodable(searched_span):
                what = f"the transaction at position {commit.position} of epoch {commit.epoch} is not decoded"
                raise TransactionUndecoded(what, where=self._reader.place)

    def _learn(self, numbers: set[int], asked: _Asked) -> None:
        """Read descriptions of layouts; usually they are in the span, because each commit repeats those it uses."""
        described, span = asked.layout_filter, asked.span
        tries = [described]
        if span is not None:  # layout rows precede the changes that use them
            to_the_end = (pc.field("epoch") == span.epoch) & (pc.field("position") <= span.upto)
            tries = [described & span_filter(span), described & to_the_end]
        for place in tries:
            if not (missing := numbers - self._layouts.keys()):
                return
            wanted = place & pc.field("layout").isin(sorted(missing))
            for part in asked.files.batches(asked.paths, ["layout", "info"], wanted):
                for number, info in zip(part["layout"].to_pylist(), part["info"].to_pylist(), strict=True):
                    self._layouts[number] = relation_of(info)

    def _newest(self, asked: _Asked) -> Relation:
        """The layout in the last file that describes one. Raises NotInBronze."""
        for path in reversed(asked.files.select(op=RELATION, relations=[str(asked.table)])):
            infos = asked.files.read([path], ["info"], asked.layout_filter)["info"].to_pylist()
            if infos:
                return relation_of(infos[-1])
        raise NotInBronze(f"bronze has no changes of {asked.table}", where=self._reader.place)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Rows of a table in a span, in one version of bronze: the files that may contain them, and their filter."""

    table: TableName
    span: Span | None
    files: Files
    paths: list[str]
    wanted: pc.Expression

    @property
    def layout_filter(self) -> pc.Expression:
        """The table's layout rows, which have no ordinal: row groups without such a row are not read."""
        layout_row = pc.field("ordinal").is_null() & (pc.field("op") == RELATION)
        return layout_row & (pc.field("relation") == str(self.table))


def _table(name: TableName | str) -> TableName:
    try:
        return name if isinstance(name, TableName) else TableName.parse(name)
    except ValueError as bad:
        raise NotInBronze(str(bad)) from bad


def _number(position: str | int | None, otherwise: int) -> int:
    if position is None:
        return otherwise
    return parse_position(position) if isinstance(position, str) else position
