"""The ledger: bronze as people and programs read it, typed and by transaction, without Spark or with it.

Only the files and row groups whose bounds meet the span are read, and large spans come a part at a time. The schema of
a table's changes follows from the layouts that the span's own changes use; where it has none, from the newest one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.chain import ChainVerdict, verify
from cdc_lake.bronze.contract import BEGIN, COMMIT, DELETE, INSERT, RELATION, SNAPSHOT, TRUNCATE, UPDATE
from cdc_lake.bronze.decoded import decoded_later, in_order
from cdc_lake.bronze.files import Files
from cdc_lake.bronze.reader import BronzeReader, relation_of, within
from cdc_lake.bronze.spark_views import changes_frame, register, transactions_frame
from cdc_lake.bronze.typed import SOURCES, Misfits, TableColumns, typed_changes
from cdc_lake.errors import BronzeDamaged, NotInBronze, TransactionUndecoded
from cdc_lake.model.position import parse_position
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.model.span import Span

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
"""A row a transaction: the columns of bronze, and what its BEGIN and COMMIT rows say in `info`.

`counts`: table → operation → number. `undecodable`: the code of the error that decoding it gave, NULL where it is
decoded.
"""

_READ = ("epoch", "position", "op", "csn", "first_lsn", "commit_lsn", "xid", "commit_ts", "info")
_END = (1 << 63) - 1
_CHANGES = (INSERT, UPDATE, DELETE, TRUNCATE)


class Ledger:
    """A bronze table to read. Each call sees the newest version; one instance a thread."""

    def __init__(self, reader: BronzeReader) -> None:
        self._reader = reader
        self._layouts: dict[int, Relation] = {}

    def span(self, after: str | int | None = None, upto: str | int | None = None, *, epoch: int | None = None) -> Span:
        """The transactions behind `after`, up to and with `upto`, of one epoch: by default the newest one, all of it.

        Positions are as `cdc-lake status` prints them or as bronze stores them. Raises MalformedPosition, NotInBronze.
        """
        state = self._reader.state()
        if state is None:
            raise NotInBronze("bronze holds no stream", where=self._reader.place)
        end = state.upto if epoch in (None, state.epoch) else _END
        return Span(epoch or state.epoch, _number(after, -1), _number(upto, end))

    def tables(self) -> tuple[TableName, ...]:
        """The tables that the newest files of bronze have changes or copied rows of, by name."""
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
        misfits: Misfits = "stop",
        snapshot: bool = False,
    ) -> pa.Table:
        """The changes of a table in order, in its own columns (`bronze.typed`); without a span of all epochs.

        `typed=False` leaves the server's text. `misfits`: what becomes of a text that has no value of its column's
        type. With `snapshot` the rows of initial copies too (`_op` is S).

        Raises NotInBronze, ValueNotTyped, TransactionUndecoded.
        """
        given = self.change_batches(table, span, typed=typed, misfits=misfits, snapshot=snapshot)
        return given.read_all()

    def change_batches(
        self,
        table: TableName | str,
        span: Span | None = None,
        *,
        typed: bool = True,
        misfits: Misfits = "stop",
        snapshot: bool = False,
    ) -> pa.RecordBatchReader:
        """The same as a stream of record batches, for spans that memory does not hold. Errors come while it is read."""
        name, wanted, paths = self._asked(table, span, snapshot=snapshot)
        of = self.columns(name, span, snapshot=snapshot)
        schema = of.schema(typed=typed, misfits=misfits)
        self._all_decoded(span)
        parts = in_order(self._reader.applied(), paths, SOURCES, wanted)
        return pa.RecordBatchReader.from_batches(schema, _batches(parts, of, typed=typed, misfits=misfits))

    def columns(self, table: TableName | str, span: Span | None = None, *, snapshot: bool = False) -> TableColumns:
        """The columns that a table's changes in a span have. Raises NotInBronze where there is no such table."""
        name, wanted, paths = self._asked(table, span, snapshot=snapshot)
        files = self._reader.applied()
        numbers: dict[int, None] = {}
        for part in files.batches(paths, ["layout"], wanted):
            used = part["layout"].drop_null().combine_chunks()
            for number in reversed(used[::-1].unique().to_pylist()):  # in the order of their last use
                numbers.pop(number, None)
                numbers[number] = None
        if not numbers:
            relation = self._newest(name)
            return TableColumns(name, {relation.layout: relation})
        self._learn(set(numbers), name, paths, span)
        if unknown := [number for number in numbers if number not in self._layouts]:
            raise BronzeDamaged(f"bronze has no description of layout {unknown[0]} of {name}", where=self._reader.place)
        return TableColumns(name, {number: self._layouts[number] for number in numbers})

    # ── transactions ──

    def transactions(self, span: Span | None = None) -> pa.Table:
        """A row a transaction, in order (`TRANSACTIONS`); without a span of all epochs. Raises BronzeDamaged."""
        return self.transaction_batches(span).read_all()

    def transaction_batches(self, span: Span | None = None) -> pa.RecordBatchReader:
        """The same as a stream of record batches."""
        wanted = pc.field("op").isin([BEGIN, COMMIT])
        parts = self._parts(_READ, wanted if span is None else wanted & within(span), span, COMMIT)
        return pa.RecordBatchReader.from_batches(TRANSACTIONS, _transactions(parts))

    def verify(self, span: Span | None = None) -> ChainVerdict:
        """Whether the chain holds over the span, or all of bronze. See `bronze.chain`."""
        return verify(self._reader, span)

    # ── the same from Spark ──

    def spark_changes(
        self,
        spark: SparkSession,
        table: TableName | str,
        span: Span | None = None,
        *,
        misfits: Misfits = "stop",
        snapshot: bool = False,
    ) -> DataFrame:
        """What `changes` gives, as a DataFrame without order, of the files of bronze as they are now."""
        name, _, paths = self._asked(table, span, snapshot=snapshot)
        of = self.columns(name, span, snapshot=snapshot)
        later = decoded_later(self._reader.applied())
        return changes_frame(spark, paths, of, span, misfits=misfits, snapshot=snapshot, later=later)

    def spark_transactions(self, spark: SparkSession, span: Span | None = None) -> DataFrame:
        """What `transactions` gives, as a DataFrame without order."""
        return transactions_frame(spark, self._paths(span, COMMIT), span)

    def register_views(self, spark: SparkSession, *, database: str | None = None) -> tuple[str, ...]:
        """A SQL view of each table's changes, and `transactions`; their names.

        Without `database` they are temporary views over the files as they are now; with it they stay as long as the
        session's catalog keeps them and read the table as it is then, which needs a Delta bronze. Raises ViewNotMade.
        """
        shapes = [self.columns(table, snapshot=True) for table in self.tables()]
        return register(spark, self._reader, shapes, database)

    # ── files ──

    def _asked(
        self, table: TableName | str, span: Span | None, *, snapshot: bool
    ) -> tuple[TableName, pc.Expression, list[str]]:
        name = _table(table)
        wanted = (pc.field("relation") == str(name)) & pc.field("op").isin(
            [*_CHANGES, SNAPSHOT] if snapshot else list(_CHANGES)
        )
        return name, wanted if span is None else wanted & within(span), self._paths(span, None, name)

    def _paths(self, span: Span | None, op: str | None, table: TableName | None = None) -> list[str]:
        return _select(self._reader.applied(), span, op, None if table is None else [str(table)])

    def _parts(
        self, columns: Sequence[str], wanted: pc.Expression, span: Span | None, op: str | None
    ) -> Iterator[pa.Table]:
        files = self._reader.files()
        return files.batches(_select(files, span, op), columns, wanted)

    def _all_decoded(self, span: Span | None) -> None:
        """Raise TransactionUndecoded where a transaction is there as bytes only."""
        state = self._reader.state()
        epochs = range(1, state.epoch + 1) if state is not None else ()
        for one in [span] if span is not None else [Span(epoch, -1, _END) for epoch in epochs]:
            for commit in self._reader.undecodable(one):
                what = f"the transaction at position {commit.position} of epoch {commit.epoch} is not decoded"
                raise TransactionUndecoded(what, where=self._reader.place)

    def _learn(self, numbers: set[int], table: TableName, paths: Sequence[str], span: Span | None) -> None:
        """Read descriptions of layouts: each commit repeats those it uses, so most often they stand in the span."""
        described = pc.field("ordinal").is_null() & (pc.field("op") == RELATION)
        described &= pc.field("relation") == str(table)
        tries = [described] if span is None else [described & within(span), described & within_reach(span)]
        for place in tries:
            if not (missing := numbers - self._layouts.keys()):
                return
            wanted = place & pc.field("layout").isin(sorted(missing))
            for part in self._reader.applied().batches(paths, ["layout", "info"], wanted):
                for number, info in zip(part["layout"].to_pylist(), part["info"].to_pylist(), strict=True):
                    self._layouts[number] = relation_of(info)

    def _newest(self, table: TableName) -> Relation:
        """The layout of the last file that describes one. Raises NotInBronze."""
        described = pc.field("ordinal").is_null() & (pc.field("op") == RELATION)
        described &= pc.field("relation") == str(table)
        files = self._reader.applied()
        for path in reversed(files.select(op=RELATION, relations=[str(table)])):
            infos = files.read([path], ["info"], described)["info"].to_pylist()
            if infos:
                return relation_of(infos[-1])
        raise NotInBronze(f"bronze has no changes of {table}", where=self._reader.place)


def _select(files: Files, span: Span | None, op: str | None, relations: list[str] | None = None) -> list[str]:
    if span is None:
        return files.select(op=op, relations=relations)
    return files.select(epoch=span.epoch, after=span.after, upto=span.upto, op=op, relations=relations)


def within_reach(span: Span) -> pc.Expression:
    """Rows of the span's epoch up to its end: layout rows stand before the changes that follow them."""
    return (pc.field("epoch") == span.epoch) & (pc.field("position") <= span.upto)


def _batches(parts: Iterator[pa.Table], of: TableColumns, *, typed: bool, misfits: Misfits) -> Iterator[pa.RecordBatch]:
    for part in parts:
        yield from typed_changes(part, of, typed=typed, misfits=misfits).to_batches()


def _transactions(parts: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
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
        said = json.loads(row["info"])
        counts = [(table, list(kinds.items())) for table, kinds in said["counts"].items()]
        names = ("bytes", "empty_before", "configuration", "content", "hash")
        given = {"user": None, "origin": None} | json.loads(begin or "{}")
        odd = said["undecodable"]["code"] if "undecodable" in said else None
        return {**row, **given, "counts": counts, "undecodable": odd, **{name: said[name] for name in names}}
    except (AttributeError, KeyError, TypeError, ValueError) as cause:
        raise BronzeDamaged(f"the BEGIN or COMMIT row at position {row['position']} cannot be read") from cause


def _table(given: TableName | str) -> TableName:
    try:
        return given if isinstance(given, TableName) else TableName.parse(given)
    except ValueError as bad:
        raise NotInBronze(str(bad)) from bad


def _number(position: str | int | None, otherwise: int) -> int:
    if position is None:
        return otherwise
    return parse_position(position) if isinstance(position, str) else position
