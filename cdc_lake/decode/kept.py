"""Transactions of pgoutput that are kept as bytes, and what they are once a version can decode them.

A row change stands under the layout that was in force for it; a relation message that could not be taken in is a frame
among the others, before the first change that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdc_lake.decode.announced import Announced, Catalog, Landed, no_layout
from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.pgoutput import parse
from cdc_lake.decode.raw import RawTransaction
from cdc_lake.decode.records import OriginMessage, RelationMessage, TruncateMessage, TypeMessage
from cdc_lake.decode.undecodable import Frame, Kept
from cdc_lake.errors import BronzeDamaged, DecodeError, UnknownRelation
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.model.transaction import Boundaries

READING: Final = "pgoutput 1 UTF8"
"""Plugin, protocol version, encoding: the server sends UTF-8, or whatever a database in SQL_ASCII holds."""

_TRUNCATED: Final = "truncated"
_CHANGES: Final = frozenset(b"IUD")


@dataclass(frozen=True, slots=True)
class PgoutputFormat:
    """See `decode.undecodable.Format`: layouts come with the transactions, so nothing is learned from a batch."""

    decode: Callable[[Sequence[RawTransaction]], ChangeColumns]

    def tabulate(self, batch: Sequence[RawTransaction]) -> ChangeColumns:
        """Their changes. Raises the fault that one of them has, and what decoding them raises."""
        for raw in batch:
            if raw.fault is not None:
                raise raw.fault
        return self.decode(batch)

    def mark(self) -> None:
        """Nothing."""

    def back(self, mark: object) -> None:
        """Nothing to undo."""

    def keep(self, raw: RawTransaction, error: DecodeError) -> Kept:
        """All frames, each with its layout. Raises the error for a part that came without a fault: its transaction is
        kept as a whole, or not at all.
        """
        if raw.part and raw.fault is None:
            raise error
        frames, tables = [], []
        layouts: list[Relation] = []
        for at, (data, lsn, layout) in enumerate(zip(raw.frames, raw.lsns, raw.layouts, strict=True)):
            truncated = raw.truncated.get(at, ())
            info = {_TRUNCATED: [str(one.table) for one in truncated]} if truncated else {}
            frames.append(Frame(data, lsn, layout, info))
            layouts += truncated
            tables += [one.table for one in ((layout,) if layout is not None else ())] + [t.table for t in truncated]
            tables += announced_in(data) if layout is None else ()
        return Kept(READING, frames, raw.fault or error, tables, layouts)


def announced_in(data: bytes) -> list[TableName]:
    """The table of a relation message, where that much of it can be read."""
    if data[:1] != b"R":
        return []
    parts = data[5:].split(b"\0", 2)
    try:
        return [TableName(parts[0].decode() or "pg_catalog", parts[1].decode())] if len(parts) > 2 else []
    except UnicodeDecodeError:
        return []


def raw_of(
    bounds: Boundaries,
    frames: Sequence[Frame],
    layouts: Mapping[TableName, Relation],
    catalog: Catalog,
    landed: Landed = no_layout,
) -> RawTransaction:
    """The transaction again, to be decoded. `layouts`: one of each table that was described with it; `landed`: those
    that landed last before it.

    Raises DecodeError where a relation message still cannot be taken in, and what the catalog raises.
    """
    announced = Announced(catalog, landed=landed)
    raw = RawTransaction(bounds, [], [], [], {}, sum(len(frame.data) for frame in frames))
    for frame in frames:
        letter = frame.data[:1]
        if letter in (b"R", b"Y", b"O"):
            _take_in(frame.data, announced, bounds.xid)
            continue
        layout = frame.relation
        if layout is None and frame.data[0] in _CHANGES:
            layout = announced.relations.get(frame.data[1:5])
        if letter == b"T":
            tables = _truncated(frame, layouts, announced)
            raw.truncated[len(raw.frames)] = tables
            layout = tables[0]
        raw.frames.append(frame.data)
        raw.lsns.append(frame.lsn)
        raw.layouts.append(layout)
    return raw


def _take_in(data: bytes, announced: Announced, xid: int | None) -> None:
    match parse(data):
        case RelationMessage() as message:
            announced.relation(message, xid=xid)
        case TypeMessage() as message:
            announced.type(message)
        case OriginMessage():
            pass  # the transaction's B row stands as it is


def _truncated(frame: Frame, layouts: Mapping[TableName, Relation], announced: Announced) -> tuple[Relation, ...]:
    names = frame.info.get(_TRUNCATED)
    if isinstance(names, list):
        found = [layouts.get(TableName.parse(str(name))) for name in names]
        if None in found:
            raise BronzeDamaged("bronze does not describe a table that an undecodable transaction truncates")
        return tuple(relation for relation in found if relation is not None)
    message = parse(frame.data)
    oids = message.oids if isinstance(message, TruncateMessage) else ()
    known = [announced.relations.get(oid.to_bytes(4, "big")) for oid in oids]
    if None in known or not known:
        raise UnknownRelation("a truncate of tables that were not announced", offset=6)
    return tuple(relation for relation in known if relation is not None)
