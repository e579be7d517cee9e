"""Undecodable transactions: finds them in their batch, and stores them as rows `X` of their bytes.

With the policy `stop`, only what precedes the first one is decoded. With the policy `land`, they become rows `X`, and
all others are decoded. A transaction is stored as a whole, because one change may depend on another. The batch is
bisected until the undecodable transactions are found; the others are decoded as if those did not exist.

The stored data is sufficient for a later version to decode it (`redecode` of each format). In pgoutput a row change
belongs to the layout that was current then; an unreadable relation message is a frame among the others, before the
first change that needs it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from cdc_lake.decode.change_batch import ChangeColumns, Numbering, concat_changes
from cdc_lake.decode.hashing import canonical_undecodable, digest_of
from cdc_lake.decode.pgoutput.columnar import POSITIONS, TUPLES
from cdc_lake.decode.pgoutput.messages import OriginMessage, RelationMessage, TruncateMessage, TypeMessage
from cdc_lake.decode.pgoutput.parser import parse
from cdc_lake.decode.pgoutput.relations import Catalog, Landed, RelationCache, no_layout
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.errors import BatchTooLarge, BronzeDamaged, DecodeError, UnknownRelation
from cdc_lake.model.change import Boundaries, Undecoded
from cdc_lake.model.relation import Relation, TableName

READING_FIELD: Final = "reading"
"""Key in the `info` of a transaction's first row `X`: plugin, style or protocol, and encoding, as three words."""

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Frame:
    """One data message as received; `info`: what else decoding needs."""

    data: bytes
    lsn: int
    relation: Relation | None = None
    info: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredTransaction:
    """A transaction to be stored. `reading`: how to read its bytes, empty if an earlier part contains it; `tables`:
    those it changes, if known; `layouts`: further layouts that decoding needs, besides the frames' own.
    """

    reading: str
    frames: Sequence[Frame]
    error: DecodeError
    tables: Sequence[TableName] = ()
    layouts: Sequence[Relation] = ()


class Format(Protocol[R_contra]):
    """One format. `tabulate` may learn from each batch; `mark` and `restore` undo what it learned from a failed one."""

    def tabulate(self, batch: Sequence[R_contra]) -> ChangeColumns:
        """The changes of whole transactions. Raises DecodeError."""

    def mark(self) -> object:
        """The current knowledge."""

    def restore(self, mark: object) -> None:
        """Restore earlier knowledge."""

    def keep(self, raw: R_contra, error: DecodeError) -> StoredTransaction:
        """What to store of a transaction with this error."""


@dataclass(frozen=True, slots=True)
class StoreUndecodable(Generic[R]):
    """Converts transactions of a format to columns, undecodable ones to rows `X` (a `bronze.contract.Tabulate`)."""

    form: Format[R]

    def __call__(self, batch: Sequence[R]) -> ChangeColumns:
        """The changes of the batch. Raises BatchTooLarge, and what the format's catalog raises."""
        return concat_changes(self._parts(batch), pa.concat_arrays)

    def _parts(self, batch: Sequence[R]) -> list[tuple[ChangeColumns, int]]:
        """Columns, and their number of transactions."""
        mark = self.form.mark()
        try:
            return [(self.form.tabulate(batch), len(batch))]
        except BatchTooLarge:
            raise  # stored as bytes it would be no smaller
        except DecodeError as failure:
            error = failure
        self.form.restore(mark)
        if len(batch) == 1:
            return [(columns_of(self.form.keep(batch[0], error)), 1)]
        half = len(batch) // 2
        return self._parts(batch[:half]) + self._parts(batch[half:])


@dataclass(frozen=True, slots=True)
class StopAtUndecodable(Generic[R]):
    """Converts transactions of a format to columns, or returns the number of those before the first undecodable one.

    A `bronze.contract.Tabulate`; knowledge from the failed batch is discarded, so that the decodable transactions can
    be converted alone.
    """

    form: Format[R]

    def __call__(self, batch: Sequence[R]) -> ChangeColumns:
        """The changes of the batch. Raises DecodeError with `good`, and what the format's catalog raises."""
        mark = self.form.mark()
        try:
            return self.form.tabulate(batch)
        except BatchTooLarge:
            raise  # concerns no single transaction
        except DecodeError as failure:
            error = failure
        self.form.restore(mark)
        try:
            error = self._first(batch, error)
        finally:
            self.form.restore(mark)
        raise error

    def _first(self, batch: Sequence[R], error: DecodeError) -> DecodeError:
        """The error of the first undecodable transaction, found by bisection."""
        good, left = 0, len(batch)
        while left > 1:
            half, mark = left // 2, self.form.mark()
            try:
                self.form.tabulate(batch[good : good + half])
            except DecodeError as failure:
                error, left = failure, half
                self.form.restore(mark)
            else:
                good, left = good + half, left - half
        try:
            self.form.tabulate(batch[good : good + 1])
        except DecodeError as failure:
            error = failure
        error.good = good
        return error


def columns_of(transaction: StoredTransaction) -> ChangeColumns:
    """The rows `X` of one transaction."""
    count = len(transaction.frames)
    numbering = Numbering()
    numbers = [-1 if frame.relation is None else numbering.number(frame.relation) for frame in transaction.frames]
    for layout in transaction.layouts:
        numbering.number(layout)
    error, tables = transaction.error, tuple(dict.fromkeys(map(str, transaction.tables)))
    infos: list[dict[str, object]] = [dict(frame.info) for frame in transaction.frames]
    if transaction.reading:
        infos[0] = {READING_FIELD: transaction.reading, **infos[0]}
    digests = []
    for frame, info in zip(transaction.frames, infos, strict=True):
        name = None if frame.relation is None else str(frame.relation.table)
        digests.append(digest_of(canonical_undecodable(str(info.get(READING_FIELD, "")), name, frame.data)))
    return ChangeColumns(
        relations=numbering.relations,
        transaction=np.zeros(count, np.int32),
        op=np.full(count, ord("X"), np.uint8),
        relation=np.array(numbers, np.int32),
        lsn=np.array([frame.lsn for frame in transaction.frames], np.int64),
        new=pa.nulls(count, TUPLES),
        old=pa.nulls(count, TUPLES),
        old_kind=pa.nulls(count, pa.string()),
        unchanged=pa.nulls(count, POSITIONS),
        info=pa.array([json.dumps(info, ensure_ascii=False) if info else None for info in infos], pa.string()),
        digests=digests,
        raw=pa.array([frame.data for frame in transaction.frames], pa.binary()),
        undecoded={0: Undecoded(count, error.code, error.message, error.where, tables, version("cdc_lake"))},
    )


READING: Final = "pgoutput 1 UTF8"
"""Plugin, protocol version, encoding: the server sends UTF-8, or any bytes from a database in SQL_ASCII."""

_TRUNCATED: Final = "truncated"
_CHANGES: Final = frozenset(b"IUD")


@dataclass(frozen=True, slots=True)
class PgoutputFormat:
    """Transactions of pgoutput (implements `Format`): they contain their layouts, so nothing is learned."""

    decode: Callable[[Sequence[BufferedTransaction]], ChangeColumns]

    def tabulate(self, batch: Sequence[BufferedTransaction]) -> ChangeColumns:
        """Their changes. Raises the fault of one of them, and errors from decoding."""
        for raw in batch:
            if raw.fault is not None:
                raise raw.fault
        return self.decode(batch)

    def mark(self) -> None:
        """Does nothing."""

    def restore(self, mark: object) -> None:
        """Does nothing."""

    def keep(self, raw: BufferedTransaction, error: DecodeError) -> StoredTransaction:
        """All frames with layouts. Raises the error of a part without a fault: a transaction is stored as a whole."""
        if raw.part and raw.fault is None:
            raise error
        frames, tables = [], []
        layouts: list[Relation] = []
        for index, (data, lsn, layout) in enumerate(zip(raw.frames, raw.lsns, raw.layouts, strict=True)):
            truncated = raw.truncated.get(index, ())
            info = {_TRUNCATED: [str(table.table) for table in truncated]} if truncated else {}
            frames.append(Frame(data, lsn, layout, info))
            layouts += truncated
            tables += announced_in(data) if layout is None else [layout.table]
            tables += [relation.table for relation in truncated]
        return StoredTransaction(READING, frames, raw.fault or error, tables, layouts)


def announced_in(data: bytes) -> list[TableName]:
    """The table of a relation message, if that much can be read."""
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
) -> BufferedTransaction:
    """Restore the transaction for decoding. `layouts`: one for each table that was described with it; `landed`: those
    that landed last before it.

    Raises DecodeError if a relation message still cannot be processed, and errors of the catalog.
    """
    announced = RelationCache(catalog, landed=landed)
    raw = BufferedTransaction(bounds, [], [], [], {}, sum(len(frame.data) for frame in frames))
    for frame in frames:
        letter = frame.data[:1]
        if letter in (b"R", b"Y", b"O"):
            match parse(frame.data):
                case RelationMessage() as message:
                    announced.relation(message, xid=bounds.xid)
                case TypeMessage() as message:
                    announced.type(message)
                case OriginMessage():
                    pass  # the transaction's B row is unchanged
            continue
        layout = frame.relation
        if layout is None and frame.data[0] in _CHANGES:
            layout = announced.relations.get(frame.data[1:5])
        if letter == b"T":
            tables = _truncated_tables(frame, layouts, announced)
            raw.truncated[len(raw.frames)] = tables
            layout = tables[0]
        raw.frames.append(frame.data)
        raw.lsns.append(frame.lsn)
        raw.layouts.append(layout)
    return raw


def _truncated_tables(
    frame: Frame, layouts: Mapping[TableName, Relation], announced: RelationCache
) -> tuple[Relation, ...]:
    names = frame.info.get(_TRUNCATED)
    if isinstance(names, list):
        described = [layouts.get(TableName.parse(str(name))) for name in names]
        if None in described:
            raise BronzeDamaged("bronze does not describe a table that an undecodable transaction truncates")
        return tuple(relation for relation in described if relation is not None)
    message = parse(frame.data)
    oids = message.oids if isinstance(message, TruncateMessage) else ()
    announced_relations = [announced.relations.get(oid.to_bytes(4, "big")) for oid in oids]
    if None in announced_relations or not announced_relations:
        raise UnknownRelation("a truncate of tables that were not announced", offset=6)
    return tuple(relation for relation in announced_relations if relation is not None)
