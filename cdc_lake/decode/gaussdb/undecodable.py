"""Transactions of the GaussDB family that are stored as bytes, and decoded by a later version.

Rows contain the names and types of their columns; the other information needed for decoding is stored with the first
row: the catalog's facts about their tables, and for ambiguous heads (style t) the tables that existed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb import text
from cdc_lake.decode.gaussdb.batches import PartOf, RecordTransaction, read_record
from cdc_lake.decode.gaussdb.binary import binary_table
from cdc_lake.decode.gaussdb.catalog_facts import FamilyCatalog, GaussDbTableMetadata
from cdc_lake.decode.gaussdb.columnar import tabulate
from cdc_lake.decode.gaussdb.json import START
from cdc_lake.decode.gaussdb.records import Row, Style, Truncated
from cdc_lake.decode.gaussdb.relations import RelationResolver, ResolverCheckpoint
from cdc_lake.decode.gaussdb.text import heads
from cdc_lake.decode.undecodable import READING_FIELD, Frame, StoredTransaction
from cdc_lake.errors import BronzeDamaged, DecodeError
from cdc_lake.model.change import Boundaries
from cdc_lake.model.relation import Relation, TableName

_FACTS: Final = "facts"
_TABLES: Final = "tables"
_JSON_TABLE: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')
_DOTTED: Final = re.compile(rf"table ({text.NAME}\.{text.NAME}): ")
_OPERATION: Final = re.compile(rb" (?:INSERT|UPDATE|DELETE):")


@dataclass(frozen=True, slots=True)
class GaussDbFormat:
    """Record transactions that may not decode (`decode.undecodable.Format`): a batch reveals layouts of tables."""

    layouts: RelationResolver
    plugin: str
    columns: Callable[[Sequence[RecordTransaction], RelationResolver], ChangeColumns] = tabulate

    def tabulate(self, batch: Sequence[RecordTransaction]) -> ChangeColumns:
        """The changes of whole transactions. Raises DecodeError; queries the catalog, so also SourceError."""
        self.layouts.refresh()
        for raw in batch:
            if raw.part is not None:
                self._begin(raw.part)
        return self.columns(batch, self.layouts)

    def _begin(self, part: PartOf) -> None:
        """For the first part of a large transaction, restore the knowledge before it, also in a repeated pass."""
        if part.fault is not None:
            raise part.fault
        if not part.before:
            if part.passes.mark is None:
                part.passes.mark = self.layouts.mark()
            else:
                self.layouts.restore(part.passes.mark)

    def mark(self) -> ResolverCheckpoint:
        """The current knowledge."""
        return self.layouts.mark()

    def restore(self, mark: Any) -> None:
        """Restore the layouts of the mark; the catalog's facts are kept."""
        self.layouts.restore(mark)

    def keep(self, raw: RecordTransaction, error: DecodeError) -> StoredTransaction:
        """All records; the last layouts of their tables and the catalog's facts. Raises the error of a part without a
        fault: a transaction is stored as a whole.
        """
        part = raw.part
        if part is not None:
            if part.fault is None:
                raise error
            if part.passes.mark is not None and not part.before:
                self.layouts.restore(part.passes.mark)
        latest, facts = self.layouts.latest(), {}
        frames, tables = [], []
        for data, lsn in zip(raw.records, raw.lsns, strict=True):
            changed = tables_of(raw.style, data, self.layouts)
            tables += changed
            frames.append(Frame(data, lsn, latest.get(changed[0]) if len(changed) == 1 else None))
        for table in dict.fromkeys(tables):
            if (table_facts := self.layouts.facts_of(table)) is not None:
                facts[str(table)] = table_facts.describe()
        info: dict[str, object] = {_FACTS: facts}
        if raw.style is Style.TEXT:
            info[_TABLES] = sorted(map(str, self.layouts.tables))
        frames[0] = Frame(frames[0].data, frames[0].lsn, frames[0].relation, info)
        more = part is not None and part.before  # the first part says how to read them all
        reading = "" if more else f"{self.plugin} {raw.style.value} {self.layouts.codec.encoding}"
        return StoredTransaction(reading, frames, error, tables, [latest[table] for table in tables if table in latest])


def raw_of(bounds: Boundaries, frames: Sequence[Frame]) -> RecordTransaction:
    """Restore the transaction for decoding. Raises BronzeDamaged."""
    records, lsns = [frame.data for frame in frames], [frame.lsn for frame in frames]
    return RecordTransaction(bounds, _reading(frames)[1], records, lsns, sum(map(len, records)))


def layouts_of(
    frames: Sequence[Frame],
    described: Sequence[Relation],
    codec: Callable[[str], Codec],
    catalog: FamilyCatalog,
    takes: Callable[[TableName], bool],
    *,
    takes_back: bool = True,
) -> RelationResolver:
    """Layouts as they were known when the transaction arrived. Raises BronzeDamaged, UnknownEncoding.

    `described`: the layouts that were described with it; `codec` returns the one of an encoding; `catalog` is queried
    for tables without stored facts; `takes`, `takes_back`: see RelationResolver.
    """
    info = frames[0].info
    try:
        descriptions = [_facts(info), *(_facts(frame.info) for frame in frames[1:] if _FACTS in frame.info)]
        facts = {name: fact for description in descriptions for name, fact in description.items()}
        stored_facts = {
            TableName.parse(name): GaussDbTableMetadata.from_description(description)
            for name, description in facts.items()
        }
        tables = frozenset(TableName.parse(str(name)) for name in _list(info.get(_TABLES, [])))
    except (KeyError, TypeError, ValueError) as cause:
        raise BronzeDamaged("the data stored with an undecodable transaction cannot be read") from cause

    def facts_of(table: TableName) -> GaussDbTableMetadata | None:
        return stored_facts[table] if table in stored_facts else catalog(table)

    return RelationResolver(
        facts_of,
        codec(_reading(frames)[2]),
        known_relations=described,
        tables=tables,
        takes=takes,
        takes_back=takes_back,
    )


def _facts(info: Mapping[str, object]) -> Mapping[str, Any]:
    described_facts = info[_FACTS]
    if not isinstance(described_facts, dict):
        raise TypeError(_FACTS)
    return described_facts


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(_TABLES)
    return value


def _reading(frames: Sequence[Frame]) -> tuple[str, Style, str]:
    parts = str(frames[0].info.get(READING_FIELD, "")).split(" ")
    try:
        plugin, style, encoding = parts
        return plugin, Style(style), encoding
    except ValueError as cause:
        raise BronzeDamaged("bronze does not record how an undecodable transaction is read") from cause


def tables_of(style: Style, record: bytes, layouts: RelationResolver) -> list[TableName]:
    """The tables that a record changes, even if only its head can be read."""
    try:
        match read_record(style, record, layouts):
            case Row(table=changed):
                return [changed]
            case Truncated(tables=tables):
                return list(tables)
            case _:
                return []
    except DecodeError:
        pass
    try:
        table = _head(style, record, layouts)
    except (DecodeError, ValueError):
        return []
    return [] if table is None else [table]


def _head(style: Style, record: bytes, layouts: RelationResolver) -> TableName | None:
    codec = layouts.codec
    if style is Style.BINARY:
        return binary_table(record, codec)
    if record.startswith(START):
        quoted = _JSON_TABLE.match(record, len(START) - 1)
        name = json.loads(quoted[0].decode("latin-1")) if quoted is not None else ""
        return text.table_name(codec.name(name.encode("latin-1")))
    if style is Style.SERIAL:
        dotted = _DOTTED.match(record.decode(codec.python, "replace"))
        return None if dotted is None else text.table_name(dotted[1])
    operation = _OPERATION.search(record)
    if operation is None or not layouts.tables:
        return None
    head = record[len(b"table ") : operation.start()].decode("latin-1")
    return heads(layouts.tables, codec).find(head, bytewise=True)
