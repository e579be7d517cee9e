"""Redaction in a pipeline: its rules, and the places that values pass on their way to a file.

Everything that is landed goes through `redacted` (transactions, also those that come too late) or `RedactedBronze`
(the initial copy); what a comparison reads goes through `RedactedSource`. Nothing behind these knows of redaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from cdc_lake.bronze.port import BronzeState, BronzeWriter, ClosedBatch, Landed, Tabulate
from cdc_lake.config.capture import compile_columns, exact_column
from cdc_lake.config.project import Project
from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.columnar import tabulate
from cdc_lake.decode.raw import Raw
from cdc_lake.decode.redaction import Redaction, Rules, Strategy
from cdc_lake.errors import RedactionUnfit
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.pipeline.ports.side import CompareSource, joined
from cdc_lake.source.captured import Published, Shown, Unlanded
from cdc_lake.source.hash_sql import HashSql


def redaction_of(project: Project, configuration: int = 1) -> Redaction:
    """The pipeline's redaction; `configuration` is the number that COMMIT rows get.

    Raises RedactionUnfit where something would get past it: files are refused for that when they are read, but a
    pipeline can be made without one.
    """
    bronze = project.pipeline.bronze
    if bronze.redact and bronze.undecodable == "land":
        raise RedactionUnfit("what cannot be decoded cannot be redacted", hint="set `bronze.undecodable` to stop")
    if bronze.redact_key is None and any(rule.strategy == Strategy.SHA256.value for rule in bronze.redact):
        raise RedactionUnfit("`strategy: sha256` needs a key", hint="add `bronze.redact_key`, by reference")
    key = bronze.redact_key.get_secret_value().encode() if bronze.redact_key is not None else None
    rules = rules_of(project) if bronze.redact else None
    return Redaction(rules, key=key, keys=lambda t: project.target(t).keys, configuration=configuration)


def rules_of(project: Project) -> Rules:
    """What becomes of each column of each table."""
    rules = [
        (compile_columns(pattern), Strategy(rule.strategy))
        for rule in project.pipeline.bronze.redact
        for pattern in rule.columns
    ]

    def strategy(table: TableName, column: str) -> Strategy | None:
        name = table.column(column)
        return next((found for pattern, found in rules if pattern.fullmatch(name)), None)

    return strategy


def check_columns(project: Project, relations: Iterable[Relation]) -> int:
    """How many columns of these tables are redacted.

    Raises RedactionUnfit where one of them has to stay, or where a rule names a column that is not there.
    """
    rules, redaction, there, count = rules_of(project), redaction_of(project), set(), 0
    for relation in relations:
        redaction.relation(relation)
        there |= {(relation.table, name) for name in relation.names}
        count += sum(rules(relation.table, name) is not None for name in relation.names)
    for rule in project.pipeline.bronze.redact:
        for pattern in rule.columns:
            if (exact := exact_column(pattern)) is not None and exact not in there:
                table, column = exact
                raise RedactionUnfit(f"`bronze.redact` names `{pattern}`, but {table} has no column `{column}`")
    return count


def redacted(tabulate: Tabulate, redaction: Redaction) -> Tabulate:
    """Columns of the changes of raw transactions, redacted."""

    def columns(batch: Sequence[Any]) -> ChangeColumns:
        return redaction.changes(tabulate(batch))

    return columns


class RedactedBronze:
    """A bronze writer that whatever it is given lands in redacted (implements `bronze.port.BronzeWriter`)."""

    def __init__(self, bronze: BronzeWriter, redaction: Redaction) -> None:
        self._bronze = bronze
        self._redaction = redaction

    def state(self) -> BronzeState | None:
        """See BronzeWriter."""
        return self._bronze.state()

    def begin_stream(self, stream: str, start: int, confirm: int | None = None, *, after: int = 0) -> BronzeState:
        """See BronzeWriter."""
        return self._bronze.begin_stream(stream, start, confirm, after=after)

    def append(self, batch: ClosedBatch | Sequence[Raw], tabulate: Tabulate = tabulate) -> Landed:
        """See BronzeWriter. Raises RedactionUnfit."""
        return self._bronze.append(batch, redacted(tabulate, self._redaction))

    def advance(self, position: int, confirm: int, empty: int = 0) -> Landed:
        """See BronzeWriter."""
        return self._bronze.advance(position, confirm, empty)

    def turn_back(self, position: int) -> BronzeState:
        """See BronzeWriter."""
        return self._bronze.turn_back(position)

    def append_snapshot(
        self, snapshot: str, chunk: int, relation: Relation, rows: object, first_ordinal: int, position: int
    ) -> Landed:
        """See BronzeWriter. Raises RedactionUnfit."""
        layout, values = self._redaction.rows(relation, rows)
        return self._bronze.append_snapshot(snapshot, chunk, layout, values, first_ordinal, position)

    def as_landed(self, relation: Relation) -> Relation:
        """See BronzeWriter. Raises RedactionUnfit."""
        return self._bronze.as_landed(self._redaction.relation(relation))


class RedactedSource:
    """The source's side of a comparison as bronze would have it (implements `CompareSource`)."""

    def __init__(self, source: CompareSource, redaction: Redaction) -> None:
        self._source = source
        self._redaction = redaction

    def captured(self) -> list[Published]:
        """See CompareSource."""
        return self._source.captured()

    def snapshot(self, tables: Sequence[TableName]) -> AbstractContextManager[Shown]:
        """See CompareSource."""
        return self._source.snapshot(tables)

    def relation_of(self, one: Published) -> Relation:
        """See CompareSource. Raises RedactionUnfit."""
        return self._redaction.relation(self._source.relation_of(one))

    def parts(self, relation: Relation, one: Published) -> Iterator[pa.Table]:
        """See CompareSource."""
        del relation  # it is asked for with the columns that are left out
        whole = self._source.relation_of(one)
        return (self._redaction.table(whole, block) for block in self._source.parts(whole, one))

    def rows(self, relation: Relation, one: Published) -> pa.Table:
        """See CompareSource."""
        return joined(self.parts(relation, one), relation)

    def unsummed(self, relation: Relation) -> str:
        """See CompareSource."""
        if any(column.redacted is not None for column in relation.columns):
            return "its rows are redacted here"
        return self._source.unsummed(relation)

    def sums(self, one: Published, hashed: HashSql) -> Iterator[tuple[int, int, int]]:
        """See CompareSource."""
        return self._source.sums(one, hashed)

    def ahead(self, shown: Shown, after: int) -> Sequence[Unlanded] | None:
        """See CompareSource."""
        return self._source.ahead(shown, after)
