"""Undecodable transactions: told apart from the rest of their batch, and stored as rows `X` of their bytes.

By the policy `stop` what stands before the first one is decoded. By the policy `land` they become rows `X`, and the
others are decoded. A transaction is kept as a whole: one change may depend on another, so what of it could be decoded
is not. A batch is halved until the transactions are found that cannot be decoded; the others are as if those were not
there.

What is stored is enough for a later version to decode them (`redecode` of each format). In pgoutput a row change
stands under the layout that was in force for it; a relation message that could not be read is a frame among the
others, before the first change that needs it.
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
"""Key in the `info` of a transaction's first row `X`: plugin, style or protocol, and encoding, in three words."""

_X: Final = ord("X")
R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Frame:
    """One data message as the server sent it; `info`: what else decoding it takes."""

    data: bytes
    lsn: int
    relation: Relation | None = None
    info: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredTransaction:
    """A transaction as it is kept. `reading`: how its bytes are read, empty where a part before says so; `tables`:
    those it changes, where they are known; `layouts`: layouts that decoding it takes, besides the frames' own.
    """

    reading: str
    frames: Sequence[Frame]
    error: DecodeError
    tables: Sequence[TableName] = ()
    layouts: Sequence[Relation] = ()


class Format(Protocol[R_contra]):
    """One format. `tabulate` may learn from each batch; `mark` and `restore` undo what a failed one taught."""

    def tabulate(self, batch: Sequence[R_contra]) -> ChangeColumns:
        """The changes of whole transactions. Raises DecodeError."""

    def mark(self) -> object:
        """What was learned so far."""

    def restore(self, mark: object) -> None:
        """Forget what was learned since."""

    def keep(self, raw: R_contra, error: DecodeError) -> StoredTransaction:
        """What to keep of a transaction that gave this error."""


@dataclass(frozen=True, slots=True)
class StoreUndecodable(Generic[R]):
    """Makes columns of transactions of a format, of those it cannot decode rows `X` (a `bronze.contract.Tabulate`)."""

    form: Format[R]

    def __call__(self, batch: Sequence[R]) -> ChangeColumns:
        """The changes of the batch. Raises BatchTooLarge, and what the format's catalog raises."""
        return concat_changes(self._parts(batch), pa.concat_arrays)

    def _parts(self, batch: Sequence[R]) -> list[tuple[ChangeColumns, int]]:
        """Columns, and how many transactions they are of."""
        mark = self.form.mark()
        try:
            return [(self.form.tabulate(batch), len(batch))]
        except BatchTooLarge:
            raise  # kept as bytes it would be no smaller
        except DecodeError as failure:
            error = failure
        self.form.restore(mark)
        if len(batch) == 1:
            return [(columns_of(self.form.keep(batch[0], error)), 1)]
        half = len(batch) // 2
        return self._parts(batch[:half]) + self._parts(batch[half:])


@dataclass(frozen=True, slots=True)
class StopAtUndecodable(Generic[R]):
    """Makes columns of transactions of a format, or says how many stand before the first that cannot be decoded.

    A `bronze.contract.Tabulate`; what the failed batch taught is forgotten, so that the good ones can be asked for
    alone.
    """

    form: Format[R]

    def __call__(self, batch: Sequence[R]) -> ChangeColumns:
        """The changes of the batch. Raises DecodeError with `good`, and what the format's catalog raises."""
        mark = self.form.mark()
        try:
            return self.form.tabulate(batch)
        except BatchTooLarge:
            raise  # of no single transaction
        except DecodeError as failure:
            error = failure
        self.form.restore(mark)
        try:
            error = self._first(batch, error)
        finally:
            self.form.restore(mark)
        raise error

    def _first(self, batch: Sequence[R], error: DecodeError) -> DecodeError:
        """The error of the first transaction that cannot be decoded: the half that fails is halved again."""
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
        op=np.full(count, _X, np.uint8),
        relation=np.array(numbers, np.int32),
        lsn=np.array([frame.lsn for frame in transaction.frames], np.int64),
        new=pa.nulls(count, TUPLES),
        old=pa.nulls(count, TUPLES),
        old_kind=pa.nulls(count, pa.string()),
        unchanged=pa.nulls(count, POSITIONS),
        info=pa.array([json.dumps(info, ensure_ascii=False) if info else None for info in infos], pa.string()),
        digests=digests,
        raw=pa.array([frame.data for frame in transaction.frames], pa.binary()),
        undecoded={0: _undecoded_reason(transaction)},
    )


def _undecoded_reason(transaction: StoredTransaction) -> Undecoded:
    error = transaction.error
    tables = tuple(dict.fromkeys(map(str, transaction.tables)))
    return Undecoded(len(transaction.frames), error.code, error.message, error.where, tables, version("cdc_lake"))


READING: Final = "pgoutput 1 UTF8"
"""Plugin, protocol version, encoding: the server sends UTF-8, or whatever a database in SQL_ASCII holds."""

_TRUNCATED: Final = "truncated"
_CHANGES: Final = frozenset(b"IUD")


@dataclass(frozen=True, slots=True)
class PgoutputFormat:
    """Transactions of pgoutput (implements `Format`): layouts come with them, so a batch teaches nothing."""

    decode: Callable[[Sequence[BufferedTransaction]], ChangeColumns]

    def tabulate(self, batch: Sequence[BufferedTransaction]) -> ChangeColumns:
        """Their changes. Raises the fault that one of them has, and what decoding them raises."""
        for raw in batch:
            if raw.fault is not None:
                raise raw.fault
        return self.decode(batch)

    def mark(self) -> None:
        """Nothing."""

    def restore(self, mark: object) -> None:
        """Nothing to undo."""

    def keep(self, raw: BufferedTransaction, error: DecodeError) -> StoredTransaction:
        """All frames with layouts. Raises a faultless part's error: its transaction is kept whole or not at all."""
        if raw.part and raw.fault is None:
            raise error
        frames, tables = [], []
        layouts: list[Relation] = []
        for index, (data, lsn, layout) in enumerate(zip(raw.frames, raw.lsns, raw.layouts, strict=True)):
            truncated = raw.truncated.get(index, ())
            info = {_TRUNCATED: [str(table.table) for table in truncated]} if truncated else {}
            frames.append(Frame(data, lsn, layout, info))
            layouts += truncated
            tables += [table.table for table in ((layout,) if layout is not None else ())] + [
                t.table for t in truncated
            ]
            tables += announced_in(data) if layout is None else ()
        return StoredTransaction(READING, frames, raw.fault or error, tables, layouts)


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
) -> BufferedTransaction:
    """The transaction again, to be decoded. `layouts`: one of each table that was described with it; `landed`: those
    that landed last before it.

    Raises DecodeError where a relation message still cannot be taken in, and what the catalog raises.
    """
    announced = RelationCache(catalog, landed=landed)
    raw = BufferedTransaction(bounds, [], [], [], {}, sum(len(frame.data) for frame in frames))
    for frame in frames:
        letter = frame.data[:1]
        if letter in (b"R", b"Y", b"O"):
            _take_in(frame.data, announced, bounds.xid)
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


def _take_in(data: bytes, announced: RelationCache, xid: int | None) -> None:
    match parse(data):
        case RelationMessage() as message:
            announced.relation(message, xid=xid)
        case TypeMessage() as message:
            announced.type(message)
        case OriginMessage():
            pass  # the transaction's B row stands as it is


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
