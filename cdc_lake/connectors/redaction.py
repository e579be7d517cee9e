"""Redaction in a pipeline: its rules, the wrappers that apply it before data reaches a file, and changed rules.

Transactions, including late ones, pass `redacted`; the initial copy passes `RedactedBronze`; what a comparison reads
passes `RedactedComparison`. Nothing after these knows of redaction.

If the rules change in the middle of a stream, bronze continues under the new ones. Silver would silently mix old and
new: a hash next to the value, or one row twice, under hashes of its key by both keys. Therefore, when a configuration
begins, the columns in bronze that are redacted differently from there on are recorded, and their tables wait, as after
a destructive schema change. Later columns and tables are not affected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from cdc_lake.bronze.contract import BronzeCommit, BronzeWriter, Tabulate, TransactionBatch
from cdc_lake.config.fields import compile_columns, exact_column
from cdc_lake.config.project import Project, Target
from cdc_lake.connectors.base import ComparisonSource
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.redaction import Redaction, Rules, Strategy
from cdc_lake.decode.transaction import ReceivedTransaction
from cdc_lake.errors import DestructiveChange, RedactionUnfit
from cdc_lake.model.position import Span
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.source.base import PublishedTable
from cdc_lake.tables.control_schema import ConfigurationRow


def redaction_of(project: Project, configuration: int = 1) -> Redaction:
    """The pipeline's redaction; `configuration` is the number for COMMIT rows.

    Raises RedactionUnfit if a rule could be bypassed: this is checked when files are loaded, but a pipeline can be
    created without a file.
    """
    bronze = project.pipeline.bronze
    if bronze.redact and bronze.undecodable == "land":
        text = "a transaction that cannot be decoded cannot be redacted"
        raise RedactionUnfit(text, hint="set `bronze.undecodable` to stop")
    if bronze.redact_key is None and any(rule.strategy == Strategy.SHA256.value for rule in bronze.redact):
        raise RedactionUnfit("`strategy: sha256` needs a key", hint="add `bronze.redact_key`, by reference")
    key = bronze.redact_key.get_secret_value().encode() if bronze.redact_key is not None else None
    rules = rules_of(project) if bronze.redact else None
    return Redaction(rules, key=key, keys=lambda t: project.target(t).keys, configuration=configuration)


def rules_of(project: Project) -> Rules:
    """The redaction of each column of each table."""
    rules = [
        (compile_columns(pattern), Strategy(rule.strategy))
        for rule in project.pipeline.bronze.redact
        for pattern in rule.columns
    ]

    def strategy(table: TableName, column: str) -> Strategy | None:
        name = table.column(column)
        return next((column_strategy for pattern, column_strategy in rules if pattern.fullmatch(name)), None)

    return strategy


def check_columns(project: Project, relations: Iterable[Relation]) -> int:
    """How many columns of these tables are redacted.

    Raises RedactionUnfit if one of them cannot be redacted, or if a rule names a column that does not exist.
    """
    rules, redaction, existing_columns, count = rules_of(project), redaction_of(project), set(), 0
    for relation in relations:
        redaction.relation(relation)
        existing_columns |= {(relation.table, name) for name in relation.names}
        count += sum(rules(relation.table, name) is not None for name in relation.names)
    for rule in project.pipeline.bronze.redact:
        for pattern in rule.columns:
            if (exact := exact_column(pattern)) is not None and exact not in existing_columns:
                table, column = exact
                raise RedactionUnfit(f"`bronze.redact` names `{pattern}`, but {table} has no column `{column}`")
    return count


def with_redaction(tabulate: Tabulate, redaction: Redaction) -> Tabulate:
    """Convert raw transactions to redacted columns."""
    return lambda batch: redaction.changes(tabulate(batch))


class RedactedBronze:
    """A bronze writer that redacts everything (implements `bronze.contract.BronzeWriter`)."""

    def __init__(self, bronze: BronzeWriter, redaction: Redaction) -> None:
        self._bronze = bronze
        self._redaction = redaction
        # commits without rows need no redaction
        self.state, self.begin_stream = bronze.state, bronze.begin_stream
        self.advance, self.turn_back = bronze.advance, bronze.turn_back

    def append(
        self, batch: TransactionBatch | Sequence[ReceivedTransaction], tabulate: Tabulate = tabulate
    ) -> BronzeCommit:
        """Commit whole transactions, redacted. Raises RedactionUnfit as well."""
        return self._bronze.append(batch, with_redaction(tabulate, self._redaction))

    def append_snapshot(
        self, snapshot: str, chunk: int, relation: Relation, rows: object, first_ordinal: int, position: int
    ) -> BronzeCommit:
        """Commit a chunk of snapshot rows, redacted. Raises RedactionUnfit as well."""
        layout, values = self._redaction.rows(relation, rows)
        return self._bronze.append_snapshot(snapshot, chunk, layout, values, first_ordinal, position)

    def as_landed(self, relation: Relation) -> Relation:
        """The layout that snapshot rows have in bronze, redacted. Raises RedactionUnfit."""
        return self._bronze.as_landed(self._redaction.relation(relation))


class RedactedComparison:
    """The source's side of a comparison with redaction (implements `ComparisonSource`)."""

    def __init__(self, source: ComparisonSource, redaction: Redaction) -> None:
        self._source = source
        self._redaction = redaction
        # these return no values of rows; the server sums up only rows that are not redacted (`unsummable_reason`)
        self.captured_tables, self.snapshot = source.captured_tables, source.snapshot
        self.sums, self.ahead = source.sums, source.ahead

    def relation_of(self, source_table: PublishedTable) -> Relation:
        """The layout of a captured table, redacted. Raises RedactionUnfit."""
        return self._redaction.relation(self._source.relation_of(source_table))

    def parts(self, relation: Relation, source_table: PublishedTable) -> Iterator[pa.Table]:
        """The rows of a captured table that match its filter, in blocks: large_string columns, text as printed."""
        del relation  # the source is queried with the dropped columns
        full_relation = self._source.relation_of(source_table)
        blocks = self._source.parts(full_relation, source_table)
        return (self._redaction.table(full_relation, block) for block in blocks)

    def unsummable_reason(self, relation: Relation) -> str:
        """Why the server cannot sum up hashes of the rows that silver should have; empty if it can."""
        if any(column.redacted is not None for column in relation.columns):
            return "its rows are redacted here"
        return self._source.unsummable_reason(relation)


NOTHING: Final[Mapping[str, Any]] = {"redact": [], "key": None}
"""Settings under which nothing is redacted."""


def changed_columns(
    before: Mapping[str, Any], after: Mapping[str, Any], held: Callable[[], Iterable[Relation]]
) -> list[str]:
    """Columns of bronze's layouts whose redaction differs under other settings: `schema.table.column`."""
    if (before["redact"], before["key"]) == (after["redact"], after["key"]):
        return []
    names = {(r.table, column) for r in held() for column in r.names}
    full = (table.column(column) for table, column in names)
    return sorted(name for name in full if _fate(before, name) != _fate(after, name))


def check_unchanged(rows: Sequence[ConfigurationRow], target: Target, span: Span, since: Callable[[], int]) -> None:
    """Raise DestructiveChange if a column of the table is redacted differently from a position before the span's end.

    `since`: the position of the copy with which the table's rows begin; earlier changes do not matter.
    """
    for row in rows:
        if row.epoch == span.epoch and row.position is not None and row.position < span.upto:
            column = next((name for name in json.loads(row.changed) if name.startswith(f"{target.source}.")), None)
            if column is not None and row.position >= since():
                hint = f"copy the table again with the current redaction: `cdc-lake resync {target.source}`"
                if target.keeps_past:
                    hint = f"`cdc-lake restart` copies all tables again; the past of {target.label} is kept as it is"
                raise DestructiveChange(f"column `{column}` is redacted differently than before", hint=hint)


def _fate(settings: Mapping[str, Any], name: str) -> tuple[str, str | None] | None:
    """The redaction of a column: the strategy, and for hashes the key."""
    for pattern, strategy in settings["redact"]:
        if compile_columns(pattern).fullmatch(name):
            return strategy, settings["key"] if strategy == "sha256" else None
    return None
