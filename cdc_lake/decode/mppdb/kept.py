"""Transactions of the GaussDB family that are kept as bytes, and what they are once a version can decode them.

Rows name their columns and types themselves; what else decoding them takes was known when they came, and is kept with
the first one: what the catalog said of their tables, and where heads are ambiguous (style t) the tables there were.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.mppdb import identifiers
from cdc_lake.decode.mppdb.binary import binary_table
from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.decode.mppdb.columnar import tabulate
from cdc_lake.decode.mppdb.facts import FamilyCatalog, FamilyTableFacts
from cdc_lake.decode.mppdb.json_rows import START
from cdc_lake.decode.mppdb.layouts import Layouts, Mark
from cdc_lake.decode.mppdb.plain import read_record
from cdc_lake.decode.mppdb.raw import PartOf, RecordTransaction
from cdc_lake.decode.mppdb.records import Row, Style, Truncated
from cdc_lake.decode.mppdb.text import heads
from cdc_lake.decode.undecodable import READING, Frame, Kept
from cdc_lake.errors import BronzeDamaged, DecodeError
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.model.transaction import Boundaries

_FACTS: Final = "facts"
_TABLES: Final = "tables"
_JSON_TABLE: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')
_DOTTED: Final = re.compile(rf"table ({identifiers.NAME}\.{identifiers.NAME}): ")
_OPERATION: Final = re.compile(rb" (?:INSERT|UPDATE|DELETE):")


@dataclass(frozen=True, slots=True)
class FamilyFormat:
    """See `decode.undecodable.Format`: what is learned from a batch are the layouts of tables."""

    layouts: Layouts
    plugin: str
    columns: Callable[[Sequence[RecordTransaction], Layouts], ChangeColumns] = tabulate

    def tabulate(self, batch: Sequence[RecordTransaction]) -> ChangeColumns:
        """See Format. Asks the catalog, so also SourceError."""
        self.layouts.refresh()
        for raw in batch:
            if raw.part is not None:
                self._begin(raw.part)
        return self.columns(batch, self.layouts)

    def _begin(self, part: PartOf) -> None:
        """With the first part of a large transaction, what was known before it; also where it is read again."""
        if part.fault is not None:
            raise part.fault
        if not part.before:
            if part.start.mark is None:
                part.start.mark = self.layouts.mark()
            else:
                self.layouts.back(part.start.mark)

    def mark(self) -> Mark:
        """See Format."""
        return self.layouts.mark()

    def back(self, mark: Any) -> None:
        """See Format; what the catalog said stays."""
        self.layouts.back(mark)

    def keep(self, raw: RecordTransaction, error: DecodeError) -> Kept:
        """All records; of their tables the last layouts and the catalog's facts. Raises the error for a part that came
        without a fault: its transaction is kept as a whole, or not at all.
        """
        part = raw.part
        if part is not None:
            if part.fault is None:
                raise error
            if part.start.mark is not None and not part.before:
                self.layouts.back(part.start.mark)
        latest, facts = self.layouts.latest(), {}
        frames, tables = [], []
        for data, lsn in zip(raw.records, raw.lsns, strict=True):
            changed = tables_of(raw.style, data, self.layouts)
            tables += changed
            frames.append(Frame(data, lsn, latest.get(changed[0]) if len(changed) == 1 else None))
        for table in dict.fromkeys(tables):
            if (found := self.layouts.facts_of(table)) is not None:
                facts[str(table)] = found.describe()
        info: dict[str, object] = {_FACTS: facts}
        if raw.style is Style.TEXT:
            info[_TABLES] = sorted(map(str, self.layouts.tables))
        frames[0] = Frame(frames[0].data, frames[0].lsn, frames[0].relation, info)
        more = part is not None and part.before  # the first part says how they are all read
        reading = "" if more else f"{self.plugin} {raw.style.value} {self.layouts.codec.encoding}"
        return Kept(reading, frames, error, tables, [latest[table] for table in tables if table in latest])


def raw_of(bounds: Boundaries, frames: Sequence[Frame]) -> RecordTransaction:
    """The transaction again, to be decoded. Raises BronzeDamaged."""
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
) -> Layouts:
    """Layouts as they were known when the transaction came. Raises BronzeDamaged, UnknownEncoding.

    `described`: the layouts that were described with it; `codec` makes one of an encoding; `catalog` is asked of tables
    that nothing was kept of; `takes`, `takes_back`: see Layouts.
    """
    info = frames[0].info
    try:
        said = [_facts(info), *(_facts(frame.info) for frame in frames[1:] if _FACTS in frame.info)]
        facts = {name: fact for one in said for name, fact in one.items()}
        kept = {TableName.parse(name): FamilyTableFacts.from_description(one) for name, one in facts.items()}
        tables = frozenset(TableName.parse(str(name)) for name in _list(info.get(_TABLES, [])))
    except (KeyError, TypeError, ValueError) as cause:
        raise BronzeDamaged("what was kept with an undecodable transaction cannot be read") from cause

    def facts_of(table: TableName) -> FamilyTableFacts | None:
        return kept[table] if table in kept else catalog(table)

    return Layouts(
        facts_of, codec(_reading(frames)[2]), known=described, tables=tables, takes=takes, takes_back=takes_back
    )


def _facts(info: Mapping[str, object]) -> Mapping[str, Any]:
    found = info[_FACTS]
    if not isinstance(found, dict):
        raise TypeError(_FACTS)
    return found


def _list(found: object) -> list[object]:
    if not isinstance(found, list):
        raise TypeError(_TABLES)
    return found


def _reading(frames: Sequence[Frame]) -> tuple[str, Style, str]:
    parts = str(frames[0].info.get(READING, "")).split(" ")
    try:
        plugin, style, encoding = parts
        return plugin, Style(style), encoding
    except ValueError as cause:
        raise BronzeDamaged("bronze does not say how an undecodable transaction is read") from cause


def tables_of(style: Style, record: bytes, layouts: Layouts) -> list[TableName]:
    """The tables that a record changes, also where no more than its head can be read."""
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


def _head(style: Style, record: bytes, layouts: Layouts) -> TableName | None:
    codec = layouts.codec
    if style is Style.BINARY:
        return binary_table(record, codec)
    if record.startswith(START):
        quoted = _JSON_TABLE.match(record, len(START) - 1)
        name = json.loads(quoted[0].decode("latin-1")) if quoted is not None else ""
        return identifiers.table_name(codec.name(name.encode("latin-1")))
    if style is Style.SERIAL:
        dotted = _DOTTED.match(record.decode(codec.python, "replace"))
        return None if dotted is None else identifiers.table_name(dotted[1])
    operation = _OPERATION.search(record)
    if operation is None or not layouts.tables:
        return None
    head = record[len(b"table ") : operation.start()].decode("latin-1")
    return heads(layouts.tables, codec).find(head, bytewise=True)
