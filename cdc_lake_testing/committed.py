"""Made-up committed transactions of a source, by position, and the rows they leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow.compute as pc

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.row_history import replay_rows
from cdc_lake.config.project import Project, Target
from cdc_lake.control.cuts import ACTIVE, last_cut
from cdc_lake.decode.hashing import content_of
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.errors import BronzeDamaged
from cdc_lake.model.change import Message, Transaction
from cdc_lake.model.position import Span
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.source.base import format_stream_position
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake_testing.expected import AppendRows, of_table
from cdc_lake_testing.messages import raw_transaction
from cdc_lake_testing.oracle import Oracle, Row

Fails: TypeAlias = Callable[[TableName, Row], bool]


@dataclass(frozen=True)
class Committed:
    """The transactions of the newest stream, in order. `fails`: which rows a rule holds; `confirmed`: what the server
    was told it may forget, None where there is none to be told.
    """

    transactions: Sequence[Transaction]
    fails: Fails | None = None
    confirmed: int | None = None

    @property
    def last(self) -> int:
        """The position of the last one that changed something."""
        return max((t.bounds.position for t in self.transactions if t.changes), default=-1)

    @property
    def relations(self) -> dict[TableName, Relation]:
        """The tables that are changed, with their last layouts."""
        changes = (c for t in self.transactions for c in t.changes if not isinstance(c, Message))
        return {change.relation.table: change.relation for change in changes}

    # ── bronze ──

    def lost_or_other(self, reader: BronzeReader, state: StreamCheckpoint, told: Collection[int]) -> Iterator[str]:
        """Which of them bronze does not have as they were committed; of those at `told` a run said so."""
        landed = {one.position: one.content for one in reader.commits(Span(state.epoch, -1, state.upto))}
        for one in self.transactions:
            position = one.bounds.position
            if not one.changes or position > state.upto or position in told:
                continue
            if position not in landed:
                yield (
                    f"the transaction at {format_stream_position(state.stream, position)} is not in "
                    f"bronze, which is at {state.upto}"
                )
            elif landed[position] != content_of(tabulate([raw_transaction(one)]).digests):
                yield (
                    f"the transaction at {format_stream_position(state.stream, position)} is in "
                    "bronze with other changes"
                )

    def not_committed(self, reader: BronzeReader, state: StreamCheckpoint) -> Iterator[str]:
        """What bronze has that nobody committed."""
        mine = {one.bounds.position for one in self.transactions}
        for one in reader.commits(Span(state.epoch, -1, state.upto)):
            if one.position not in mine:
                yield (
                    "bronze has a transaction at "
                    f"{format_stream_position(state.stream, one.position)} that nobody committed"
                )

    def not_folded(self, reader: BronzeReader, state: StreamCheckpoint) -> Iterator[str]:
        """Of which tables bronze does not amount to what they are."""
        keys = {str(name): one.primary_key for name, one in self.relations.items() if one.primary_key}
        try:
            found = replay_rows(reader, state.epoch, keys, {})
        except BronzeDamaged as damaged:
            yield f"bronze cannot be folded: {damaged.message}"
            return
        tables = self._oracle(state.upto, None).tables
        for name, rows in found.items():
            yield from _differing(f"bronze's {name}", rows, tables.get(TableName.parse(name), {}).values())

    # ── silver ──

    def not_in_silver(self, project: Project, state: StreamCheckpoint) -> Iterator[str]:
        """Which silver tables do not have what they are to have where they stand, nor hold what they are to hold."""
        control = control_tables(project)
        cut = last_cut(control, state.stream)
        for name in self.relations:
            target = project.target(name)
            marker = table_log(project, target).marker(state.stream)
            listed = None if cut is None else cut.tables.get(str(name))
            at = max(marker.position or -1, listed.position if listed is not None and listed.state == ACTIVE else -1)
            found = [] if marker.version is None else table_log(project, target).read().to_pylist()
            yield from _differing(f"{target.label} at {at}", found, self._expected(target, at))
            if listed is not None and listed.state == ACTIVE and listed.version not in {None, marker.version}:
                assert cut is not None, "it lists the table"
                found = table_log(project, target).read(listed.version).to_pylist()
                where = f"{target.label} in the cut {cut.position}"
                yield from _differing(where, found, self._expected(target, cut.position))
            if target.kind == "append":
                continue
            counts = (pc.field("relation") == str(name)) & (pc.field("generation") == marker.generation)
            rows = control.read("quarantine").filter(counts).to_pylist()
            quarantined = [
                (r["position"], r["ordinal"]) for r in rows if r["reason"] != "closed" and r["position"] <= at
            ]
            should = self._oracle(at, name).quarantined
            if sorted(quarantined) != sorted(should):
                yield f"{len(quarantined)} changes of {target.label} are held, and {len(should)} should be"

    def not_applied(self, project: Project, state: StreamCheckpoint) -> Iterator[str]:
        """What the last cut has not come to, where a run applied all there is."""
        cut = last_cut(control_tables(project), state.stream)
        if cut is None or cut.position < self.last:
            at = "there is none" if cut is None else f"it is at {format_stream_position(state.stream, cut.position)}"
            yield (
                "the run ended well, and the last cut is not at "
                f"{format_stream_position(state.stream, self.last)}: {at}"
            )
            return
        for relation, table in cut.tables.items():
            if table.state != ACTIVE:
                yield (
                    f"the run ended well, and {relation} stayed behind at "
                    f"{format_stream_position(state.stream, table.position)}"
                )

    def _expected(self, target: Target, upto: int) -> Iterable[Row]:
        """A silver table at a position."""
        if target.kind == "append":
            return self._every_change(target.source, upto)
        return self._oracle(upto, target.source).tables.get(target.source, {}).values()

    def _oracle(self, upto: int, table: TableName | None) -> Oracle:
        """The state at a position; with `table`, of that one alone, and what its rules leave of it."""
        oracle = Oracle(fails=None if table is None else self.fails)
        for one in self.transactions:
            if one.bounds.position <= upto:
                oracle.apply(one if table is None else of_table(one, table))
        return oracle

    def _every_change(self, name: TableName, upto: int) -> list[Row]:
        rows = AppendRows(name, lambda _: False, lambda _: False)
        for one in self.transactions:
            if one.bounds.position <= upto:
                rows.run(one)
        wanted = ("_op", "_position", "_ordinal")
        return [{column: row[column] for column in wanted} for row in rows.rows]


def _differing(what: str, found: Iterable[Mapping[str, Any]], expected: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Whether rows are others than those expected, in the columns of these."""
    expected = list(expected)
    columns = {column for row in expected for column in row}
    there, wanted = (Counter(_texts(row, columns) for row in rows) for rows in (found, expected))
    more, less = (there - wanted).total(), (wanted - there).total()
    if more or less:
        yield f"{what}: {less} rows are missing, {more} are not the source's"


def _texts(row: Mapping[str, Any], columns: Collection[str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((c, str(v)) for c, v in row.items() if c in columns and v is not None))
