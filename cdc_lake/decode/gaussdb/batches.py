"""Whole transactions of the GaussDB family whose rows are bytes: filtered, cut into chunks, decoded one by one.

Layouts are not needed here: in this format each row contains the names and types of its columns. Decoding one change
after the other is the reference for `columnar`, and its fallback, for every style.

The server filters by a white list, which cannot express every pattern and does not apply to TRUNCATE. What it sends is
filtered again: rows here, before anything is counted, the tables of a TRUNCATE when it is decoded.

A large transaction is decoded in parts, each a transaction with some of its records. What a row reveals about its table
applies to later rows, so the parts are decoded in order, and nothing else of the stream in between.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Final, TypeAlias, assert_never

import numpy as np

from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.columnar_reader import PADDING, FrameBuffer, in_room
from cdc_lake.decode.gaussdb.binary import binary_table, record_of
from cdc_lake.decode.gaussdb.framing import Lsns, RecordRun, Rows
from cdc_lake.decode.gaussdb.records import (
    Begin,
    Commit,
    Ddl,
    Heartbeat,
    Other,
    Record,
    Row,
    Style,
    TransactionEnd,
    Truncated,
)
from cdc_lake.decode.gaussdb.relations import RelationResolver, ResolverCheckpoint
from cdc_lake.decode.gaussdb.serial import parallel_record, serial_record
from cdc_lake.decode.gaussdb.text import heads
from cdc_lake.decode.pgoutput.columnar import columns_of, refuse_oversize
from cdc_lake.decode.transaction import FrameStore
from cdc_lake.errors import DecodeError, OutOfSequence, UnmatchedDelete
from cdc_lake.model.change import Boundaries, Change, Delete, Insert, Truncate
from cdc_lake.model.relation import Relation, TableName


class Passes:
    """What passes over the parts of a large transaction share. `mark`: the knowledge about tables before it, with which
    each pass begins; None until its first part is read. `joined`: numbers of the store's frame parts that are joined
    with the previous ones; `newest`: the first and the last one in the newest part.
    """

    __slots__ = ("joined", "mark", "newest")

    def __init__(self) -> None:
        self.mark: ResolverCheckpoint | None = None
        self.joined: set[int] = set()
        self.newest = (0, 0)


@dataclass(frozen=True, slots=True)
class PartOf:
    """The position of a part in its large transaction: after so many of its records.

    `fault`: why the whole transaction is to be stored as bytes. `movable`: it may begin one frame earlier as well.
    """

    before: int
    passes: Passes
    fault: DecodeError | None = None
    movable: bool = False


@dataclass(frozen=True, slots=True)
class RecordTransaction:
    """A committed transaction: boundaries, and for each row or truncate its bytes and LSN; implements
    `decode.transaction.ReceivedTransaction`.

    `records[i]` in style b is the body of a record from its letter on; in the text styles one statement without its
    length and LSN. `lsns[i]` is the LSN that came with it: that of the record if it has one, else of the message's
    header. Transactions without rows are included, because CSNs are counted. Both are lists, or
    `decode.gaussdb.framing.Rows` and `Lsns` if many rows came in one payload. `part`: its records are a part of a large
    transaction.
    """

    bounds: Boundaries
    style: Style
    records: Sequence[bytes]
    lsns: Sequence[int]
    size: int  # bytes of all records
    part: PartOf | None = None

    @property
    def count(self) -> int:
        """The number of records."""
        return len(self.records)


def tabulate_plain(batch: Sequence[RecordTransaction], layouts: RelationResolver) -> ChangeColumns:
    """The changes of the transactions, in order. Raises the DecodeError of the first invalid record."""
    refuse_oversize(sum(raw.size for raw in batch))
    return columns_of(
        [(nth, raw.lsns[index], change) for nth, raw in enumerate(batch) for index, change in changes(raw, layouts)]
    )


def changes(raw: RecordTransaction, layouts: RelationResolver) -> list[tuple[int, Change]]:
    """The changes of a raw transaction in order, each with the index of its record.

    A truncate has one per table; an INSERT and the DELETE directly after it that cancels it have none. Any other DELETE
    without a key was made while the table had none: it identifies no row. Raises DecodeError, whose `where` names the
    transaction and the change; its offset counts from the record's start. UnmatchedDelete if the INSERT may be in the
    previous part.
    """
    decoded: list[tuple[int, Change]] = []
    for index, data in enumerate(raw.records):
        try:
            for change in _changes_of(read_record(raw.style, data, layouts), layouts, raw.bounds.xid):
                if isinstance(change, Relation):
                    if not index and raw.part is not None and raw.part.movable:
                        raise UnmatchedDelete(f"a DELETE without a key on {change.table}, without an INSERT before it")
                    if decoded and _takes_back(change, index, *decoded[-1]):
                        decoded.pop()
                        continue
                decoded.append((index, Delete(change, None, None) if isinstance(change, Relation) else change))
        except DecodeError as error:
            before = 0 if raw.part is None else raw.part.before
            where = f"change {before + index + 1} of the transaction at {raw.bounds.position}"
            error.where = error.where or where
            raise
    return decoded


def _takes_back(relation: Relation, index: int, before: int, change: Change) -> bool:
    """Whether a DELETE without a key cancels the change before it."""
    return before == index - 1 and isinstance(change, Insert) and change.relation.table == relation.table


def read_record(style: Style, data: bytes, layouts: RelationResolver) -> Record:
    """One record of a raw transaction. Raises DecodeError."""
    match style:
        case Style.BINARY:
            return record_of(data, layouts.codec)
        case Style.SERIAL:
            return serial_record(data, layouts.codec)
        case Style.TEXT | Style.JSON:
            table_heads = heads(layouts.tables, layouts.codec) if layouts.tables else None
            return parallel_record(data, style, layouts.codec, table_heads=table_heads, end_lsn=None)


def _changes_of(record: Record, layouts: RelationResolver, xid: int | None) -> Sequence[Change | Relation]:
    """The changes of a record; a layout stands for cancelling the last INSERT of its table."""
    match record:
        case Row():
            change = layouts.change(record, xid)
            return (layouts.plan(record, xid).relation if change is None else change,)
        case Truncated(tables=tables, cascade=cascade, restart_identity=restart):
            # TRUNCATE is not filtered by the server
            captured = [table for table in tables if layouts.takes(table)]
            return [Truncate(layouts.relation_of(table), cascade, restart) for table in captured]
        case Begin() | Commit() | TransactionEnd() | Ddl() | Heartbeat() | Other():
            raise OutOfSequence(f"a record of kind {type(record).__name__} is not a change")
        case _ as never:
            assert_never(never)


Piece: TypeAlias = RecordRun | list[bytes]
"""Consecutive records."""


def lsns_of(batch: Sequence[RecordTransaction]) -> Any:
    """The LSN of each record: int64 ndarray."""
    parts: list[Any] = [np.zeros(0, np.int64)]
    loose: list[int] = []
    for raw in batch:
        if isinstance(raw.lsns, Lsns):
            parts += [np.array(loose, np.int64), *raw.lsns.parts]
            loose = []
        else:
            loose += raw.lsns
    return np.concatenate([*parts, np.array(loose, np.int64)])


def cuts(batch: Sequence[RecordTransaction], chunk_bytes: int) -> Iterator[tuple[list[Piece], Any]]:
    """The records in cuts of about `chunk_bytes`, at least one each, with the size of each record."""
    pieces = _pieces(batch)
    sizes = np.concatenate([_sizes(piece) for piece in pieces])
    ends = np.cumsum(sizes)
    count = max(1, round(int(ends[-1]) / chunk_bytes))
    nth = (ends - 1) * count // max(int(ends[-1]), 1)
    starts = list(accumulate(map(len, pieces), initial=0))
    for first, last in pairwise([0, *(np.flatnonzero(np.diff(nth)) + 1).tolist(), len(sizes)]):
        cut = [
            _part(piece, max(first - start, 0), last - start)
            for piece, start in zip(pieces, starts, strict=False)
            if start < last and start + len(piece) > first
        ]
        yield cut, sizes[first:last]


def chunk_of(cut: Sequence[Piece], sizes: Any) -> FrameBuffer:
    """A chunk of the records of a cut."""
    start = np.empty(len(sizes), np.int64)
    data: list[bytes | memoryview] = []
    index = base = 0
    for piece in cut:
        part = slice(index, index + len(piece))
        if isinstance(piece, RecordRun):
            first, last = int(piece.start[0]), int(piece.end[-1])
            data.append(memoryview(piece.payload)[first:last])
            start[part] = piece.start + (base - first)
            base += last - first
        else:
            data += piece
            ends = np.cumsum(sizes[part])
            start[part] = ends - sizes[part] + base
            base += int(ends[-1])
        index += len(piece)
    return FrameBuffer(in_room([*data, PADDING], base + len(PADDING)), start, start + sizes)


def _pieces(batch: Sequence[RecordTransaction]) -> list[Piece]:
    """The records in order, as runs and as few lists as possible; none is empty."""
    pieces: list[Piece] = []
    for raw in batch:
        for part in raw.records.parts if isinstance(raw.records, Rows) else (raw.records,):
            if isinstance(part, RecordRun):
                pieces.append(part)
            elif pieces and isinstance(pieces[-1], list):
                pieces[-1] += part
            elif part:
                pieces.append(list(part))
    return pieces


def _sizes(piece: Piece) -> Any:
    if isinstance(piece, RecordRun):
        return piece.end - piece.start
    return np.fromiter(map(len, piece), np.int64, len(piece))


def _part(piece: Piece, first: int, last: int) -> Piece:
    if first == 0 and last >= len(piece):
        return piece
    return piece.part(first, last) if isinstance(piece, RecordRun) else piece[first:last]


@dataclass(frozen=True, slots=True)
class SpooledRecords:
    """A committed transaction in parts (implements `decode.transaction.ReceivedTransaction`). `frames`: its records,
    which are sealed.

    `size` and `count`: of all records, also once they are released.
    """

    in_order: ClassVar = True
    """Everything before it is decoded before its first part, and everything after it after its last one."""

    bounds: Boundaries
    style: Style
    frames: FrameStore
    size: int
    count: int
    _passes: Passes = field(default_factory=Passes, repr=False, compare=False)

    def parts(self, fault: DecodeError | None = None) -> Iterator[RecordTransaction]:
        """Its parts in order; with `fault`, to be stored as bytes. Repeatable. Raises LakeError."""
        before = first = next_part = 0
        records: list[bytes] = []
        lsns: list[int] = []
        for frames, numbers in self.frames.parts():
            records, lsns, next_part = records + frames, lsns + numbers, next_part + 1
            del frames
            if next_part not in self._passes.joined:
                part = PartOf(before, self._passes, fault, movable=0 < first == next_part - 1)
                self._passes.newest = first, next_part - 1
                size = sum(map(len, records))
                current = [RecordTransaction(self.bounds, self.style, records, lsns, size, part)]
                before, first, records, lsns = before + len(records), next_part, [], []
                yield current.pop()  # no reference keeps it in memory

    def cut_otherwise(self, error: DecodeError) -> bool:
        """Whether the newest part was undecodable because of where it begins: it then begins one frame earlier now.

        A DELETE that cancels an INSERT directly follows it, and both have to be in one part.
        """
        if not isinstance(error, UnmatchedDelete):
            return False
        self._passes.joined.add(self._passes.newest[0])
        return True

    def release(self) -> None:
        """Free its records."""
        self.frames.close()


_U16: Final = struct.Struct(">H")


class TableFilter:
    """Drops rows of tables that are not captured. `takes` is called once per table; unreadable rows are kept."""

    def __init__(self, layouts: RelationResolver, takes: Callable[[TableName], bool]) -> None:
        self._layouts = layouts
        self._takes = takes
        self._captured_heads: dict[bytes, bool] = {}

    def rows(
        self, style: Style, records: Sequence[bytes], lsns: Sequence[int], size: int
    ) -> tuple[Sequence[bytes], Sequence[int], int]:
        """The captured rows, their LSNs and bytes."""
        wanted = self._binary if style is Style.BINARY else self._captures_text
        places = [index for index, record in enumerate(records) if wanted(record, style)]
        if len(places) == len(records):
            return records, lsns, size
        captured = [records[index] for index in places]
        return captured, [lsns[index] for index in places], sum(map(len, captured))

    def _binary(self, record: bytes, _style: Style) -> bool:
        """Schema and table are in the head, each after its length."""
        if len(record) < 5:
            return True
        middle = 3 + _U16.unpack_from(record, 1)[0]
        if middle + 2 > len(record):
            return True
        head = record[1 : middle + 2 + _U16.unpack_from(record, middle)[0]]
        captured = self._captured_heads.get(head)
        if captured is None:
            try:
                table = binary_table(record, self._layouts.codec)
            except DecodeError:
                return True
            if table is None:  # not a row: its head does not contain its table
                return True
            captured = self._captured_heads[head] = self._takes(table)
        return captured

    def _captures_text(self, record: bytes, style: Style) -> bool:
        try:
            read = read_record(style, record, self._layouts)
        except DecodeError:
            return True  # decoding reports the error with its location
        match read:
            case Row(table=table):
                return self._takes(table)
            case Truncated(tables=tables):
                return any(self._takes(table) for table in tables)
            case _:
                return True
