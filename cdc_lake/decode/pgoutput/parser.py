"""The row decoder of pgoutput, the reference for the columnar one: any bytes give a record or a `DecodeError`.

`parse` converts one message to a record; `changes` converts a whole transaction to values of the model. A binary value
is converted once its column is known (`binary_values`).

In versions 2 to 4 of the protocol, a transaction in progress comes in blocks, with others between them, and messages in
a block have a (sub)transaction id after their letter. A prepared transaction comes between Begin Prepare and Prepare,
or in blocks followed by Stream Prepare; its end comes later, alone. Specification: PostgreSQL's documentation, "Logical
Replication Message Formats", "Logical Streaming Replication Parameters".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from cdc_lake.decode.encoding import InHex, apply_text_policy
from cdc_lake.decode.pgoutput.binary_values import BinaryValue, in_text
from cdc_lake.decode.pgoutput.messages import (
    AnnouncedColumn,
    Begin,
    Commit,
    DeleteMessage,
    InsertMessage,
    LogicalMessage,
    OriginMessage,
    Reader,
    RelationMessage,
    TruncateMessage,
    TypeMessage,
    UpdateMessage,
    WireMessage,
    storable,
)
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.errors import (
    DecodeError,
    InvalidText,
    MalformedMessage,
    OutOfSequence,
    UnexpectedMessage,
    UnknownRelation,
)
from cdc_lake.model.change import (
    UNCHANGED,
    Boundaries,
    Change,
    Delete,
    Insert,
    Message,
    OldKind,
    Truncate,
    Tuple,
    Update,
    Value,
)
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import Relation, ReplicaIdentity, TableName

POSTGRES_EPOCH: Final = 946_684_800_000_000
"""2000-01-01 UTC, PostgreSQL's zero of time, in microseconds since 1970."""

# these two come between changes of small transactions: each is read in one step
_BEGIN: Final = struct.Struct(">qqI")
_COMMIT: Final = struct.Struct(">Bqqq")

KEY_FLAG: Final = 1  # Relation message, flags of a column
CASCADE_FLAG: Final = 1  # Truncate message, options
RESTART_FLAG: Final = 2
ROW_CHANGES: Final = frozenset(b"IUD")
"""Letters of messages that change a row."""
TRUNCATE_HEAD: Final = 6
"""Bytes of a Truncate message before its OIDs, four bytes each."""


def parse(payload: bytes, columns: int | None = None, *, lenient: bool = False) -> WireMessage:
    """Parse one message. `columns`: the number of values of a tuple, if the layout is known. Raises DecodeError.

    `lenient`: values may be invalid text (`decode.encoding`).
    """
    reader = Reader(payload, lenient=lenient)
    letter = reader.take(1)
    if (read := _LETTERS.get(letter)) is None:
        raise UnexpectedMessage(f"a message of kind {_format_letter(letter)}: expected one of {_KNOWN}", offset=0)
    message = read(reader, columns)
    reader.finish()
    return message


def changes(raw: BufferedTransaction, in_hex: InHex | None = None) -> Iterator[tuple[int, Change]]:
    """The changes of a raw transaction in order, each with the index of its frame; a truncate has one per table.

    `in_hex`: which columns may contain invalid text, None: no column. Raises DecodeError, whose `where` names the
    transaction and the change.
    """
    for index, frame in enumerate(raw.frames):
        try:
            layout = raw.layouts[index]
            message = parse(frame, None if layout is None else len(layout.columns), lenient=in_hex is not None)
            decoded = to_changes(message, layout, raw.truncated.get(index, ()), in_hex)
        except DecodeError as error:
            error.where = error.where or f"change {index + 1} of the transaction at {Lsn(raw.bounds.position)}"
            raise
        for change in decoded:
            yield index, change


def change_of(
    frame: bytes, layout: Relation | None, truncated: tuple[Relation, ...] = (), in_hex: InHex | None = None
) -> tuple[Change, ...]:
    """The changes of one data message, from its bytes: see `to_changes`. Raises DecodeError."""
    message = parse(frame, None if layout is None else len(layout.columns), lenient=in_hex is not None)
    return to_changes(message, layout, truncated, in_hex)


def to_changes(
    message: WireMessage, layout: Relation | None, truncated: tuple[Relation, ...] = (), in_hex: InHex | None = None
) -> tuple[Change, ...]:
    """The changes of one data message with its layout: one, or for a truncate one per table."""
    match message:
        case InsertMessage(new=new):
            relation = _require_relation(layout)
            return (Insert(relation, _apply_text_policy(relation, new, in_hex)),)
        case UpdateMessage(new=new, old=old, old_kind=old_kind):
            relation = _require_relation(layout)
            before = None if old is None else _apply_text_policy(relation, old, in_hex)
            return (Update(relation, _apply_text_policy(relation, new, in_hex), before, old_kind),)
        case DeleteMessage(old=old, old_kind=old_kind):
            relation = _require_relation(layout)
            return (Delete(relation, _apply_text_policy(relation, old, in_hex), old_kind),)
        case TruncateMessage(oids=oids, cascade=cascade, restart_identity=restart):
            if len(truncated) != len(oids):
                raise UnknownRelation(f"a truncate of {len(oids)} tables, {len(truncated)} of them known", offset=1)
            return tuple(Truncate(table, cascade, restart) for table in truncated)
        case LogicalMessage(prefix=prefix, content=content):
            return (Message(prefix, content),)
        case Begin() | Commit() | OriginMessage() | RelationMessage() | TypeMessage():
            raise OutOfSequence(f"a {type(message).__name__} message is not a change", offset=0)
        case _ as never:
            assert_never(never)


def _apply_text_policy(relation: Relation, values: Tuple, in_hex: InHex | None) -> Tuple:
    values = in_text(relation, values, lenient=in_hex is not None)
    if in_hex is None:
        return values
    return apply_text_policy(
        relation.table, relation.names, values, in_hex, str.encode, lambda offset: InvalidText(offset=offset)
    )


def _require_relation(layout: Relation | None) -> Relation:
    if layout is None:
        raise UnknownRelation("a change of a table without a layout", offset=1)
    return layout


def _format_letter(letter: bytes) -> str:
    return f"`{letter.decode()}`" if letter.isalnum() else f"0x{letter.hex()}"


def timestamp(micros: int, offset: int) -> int:
    """A time of the protocol, read at byte `offset`, as microseconds since 1970 UTC. Raises MalformedMessage."""
    since_1970 = micros + POSTGRES_EPOCH
    if since_1970 >= 1 << 63:
        raise MalformedMessage("a commit time that does not fit into 64 bits of microseconds", offset=offset)
    return since_1970


def _time(reader: Reader) -> int:
    offset = reader.offset
    return timestamp(reader.i64(), offset)


def _flags(reader: Reader, allowed: int, of: str) -> int:
    offset = reader.offset
    return _check_flags(reader.u8(), allowed, of, offset)


def _check_flags(flags: int, allowed: int, of: str, offset: int) -> int:
    if flags & ~allowed:
        raise MalformedMessage(f"unknown flags {flags:#04x} of a {of}", offset=offset)
    return flags


def _begin(reader: Reader, _columns: int | None) -> Begin:
    final_lsn, micros, xid = reader.unpack(_BEGIN)
    return Begin(storable(final_lsn, 1), timestamp(micros, 9), xid)


def _commit(reader: Reader, _columns: int | None) -> Commit:
    flags, commit_lsn, end_lsn, micros = reader.unpack(_COMMIT)
    _check_flags(flags, 0, "commit", 1)
    return Commit(flags, storable(commit_lsn, 2), storable(end_lsn, 10), timestamp(micros, 18))


def _relation(reader: Reader, _columns: int | None) -> RelationMessage:
    oid = reader.u32()
    schema = reader.cstring() or "pg_catalog"  # the protocol sends pg_catalog as an empty name
    offset = reader.offset
    name = reader.cstring()
    if not name:
        raise MalformedMessage("a relation without a name", offset=offset)
    offset = reader.offset
    letter = reader.take(1)
    if (identity := _IDENTITIES.get(letter)) is None:
        raise MalformedMessage(f"replica identity {_format_letter(letter)}: expected d, n, f or i", offset=offset)
    columns = tuple(_column(reader) for _ in range(reader.u16()))
    return RelationMessage(oid, TableName(schema, name), identity, columns)


def _column(reader: Reader) -> AnnouncedColumn:
    key = _flags(reader, KEY_FLAG, "column") == KEY_FLAG
    return AnnouncedColumn(reader.cstring(), reader.u32(), reader.i32(), key)


def _insert(reader: Reader, columns: int | None) -> InsertMessage:
    oid = reader.u32()
    _expect(reader, b"N")
    return InsertMessage(oid, _tuple(reader, columns))


def _update(reader: Reader, columns: int | None) -> UpdateMessage:
    oid = reader.u32()
    kind = _expect(reader, b"KON")
    if (old_kind := _OLD_KINDS.get(kind)) is None:
        return UpdateMessage(oid, _tuple(reader, columns), None, None)
    old = _tuple(reader, columns, old=True)
    _expect(reader, b"N")
    return UpdateMessage(oid, _tuple(reader, columns), old, old_kind)


def _delete(reader: Reader, columns: int | None) -> DeleteMessage:
    oid = reader.u32()
    kind = _OLD_KINDS[_expect(reader, b"KO")]
    return DeleteMessage(oid, _tuple(reader, columns, old=True), kind)


def _truncate(reader: Reader, _columns: int | None) -> TruncateMessage:
    offset = reader.offset
    if not (count := reader.u32()):
        raise MalformedMessage("a truncate without a table", offset=offset)
    flags = _flags(reader, CASCADE_FLAG | RESTART_FLAG, "truncate")
    # each read checks its bound, so an excessive count ends at the first missing OID
    oids = tuple(reader.u32() for _ in range(count))
    return TruncateMessage(oids, bool(flags & CASCADE_FLAG), bool(flags & RESTART_FLAG))


def _message(reader: Reader, _columns: int | None) -> LogicalMessage:
    transactional = _flags(reader, 1, "message") == 1
    return LogicalMessage(transactional, reader.lsn(), reader.cstring(), reader.take(reader.u32()))


def _expect(reader: Reader, kinds: bytes) -> bytes:
    offset = reader.offset
    if (kind := reader.take(1)) not in kinds:
        expected = " or ".join(f"`{chr(k)}`" for k in kinds)
        raise UnexpectedMessage(f"a tuple of kind {_format_letter(kind)}: expected {expected}", offset=offset)
    return kind


def _tuple(reader: Reader, columns: int | None, *, old: bool = False) -> Tuple:
    offset = reader.offset
    count = reader.u16()
    if columns is not None and count != columns:
        raise MalformedMessage(f"a tuple of {count} values for a layout of {columns} columns", offset=offset)
    values: list[Value] = []
    for _ in range(count):
        offset, kind = reader.offset, reader.take(1)
        if kind == b"t":
            values.append(reader.text(reader.u32()))
        elif kind == b"n":
            values.append(None)
        elif kind == b"b":
            size = reader.u32()
            values.append(BinaryValue.from_bytes(reader.take(size), offset + 5))
        elif kind == b"u" and not old:  # the server detoasts old tuples before it logs them
            values.append(UNCHANGED)
        else:
            expected = "`n`, `t` or `b`" if old else "`n`, `u`, `t` or `b`"
            raise UnexpectedMessage(f"a value of kind {_format_letter(kind)}: expected {expected}", offset=offset)
    return tuple(values)


_OLD_KINDS: Final = {b"K": OldKind.KEY, b"O": OldKind.FULL}
_IDENTITIES: Final = {identity.value.encode(): identity for identity in ReplicaIdentity}
_LETTERS: Final[dict[bytes, Callable[[Reader, int | None], WireMessage]]] = {
    b"B": _begin,
    b"C": _commit,
    b"O": lambda reader, _: OriginMessage(reader.lsn(), reader.cstring()),
    b"R": _relation,
    b"Y": lambda reader, _: TypeMessage(reader.u32(), reader.cstring() or "pg_catalog", reader.cstring()),
    b"I": _insert,
    b"U": _update,
    b"D": _delete,
    b"T": _truncate,
    b"M": _message,
}
_KNOWN: Final = " ".join(letter.decode() for letter in _LETTERS)


WITH_XID: Final = frozenset(b"RYIUDTM")
"""Letters of version 1 inside a transaction, which are followed by its id inside a block."""

LETTERS: Final = frozenset(b"SEcA")
"""Letters of the messages that are parsed here."""


@dataclass(frozen=True, slots=True)
class StreamStart:
    """`S`: a block of the transaction `xid` begins; `first`: its first one on this connection."""

    xid: int
    first: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    """`E`: the block ends."""


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """`c`: a streamed transaction committed; the rest as in `records.Commit`."""

    xid: int
    commit_lsn: int
    end_lsn: int
    commit_ts: int


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """`A`: the subtransaction `subxid` of transaction `xid` was rolled back, or the whole one if they are equal.

    `lsn` and `aborted_at` (µs since 1970 UTC) come only with parallel streaming.
    """

    xid: int
    subxid: int
    lsn: int | None = None
    aborted_at: int | None = None


StreamMessage: TypeAlias = StreamStart | StreamStop | StreamCommit | StreamAbort


def stream_message(payload: bytes) -> StreamMessage | None:
    """The record of a message; None for another letter. Raises DecodeError."""
    reader = Reader(payload)
    match reader.take(1):
        case b"S":
            message: StreamMessage = StreamStart(reader.u32(), reader.u8() == 1)
        case b"E":
            message = StreamStop()
        case b"c":
            xid = reader.u32()
            _flags(reader, 0, "commit")
            message = StreamCommit(xid, reader.lsn(), reader.lsn(), _time(reader))
        case b"A":
            xid, subxid = reader.u32(), reader.u32()
            parallel = len(payload) > 9  # bytes: letter and two transaction ids
            message = StreamAbort(xid, subxid, reader.lsn(), _time(reader)) if parallel else StreamAbort(xid, subxid)
        case _:
            return None
    reader.finish()
    return message


def without_xid(payload: bytes) -> bytes:
    """A message of a block in the form of version 1. Raises DecodeError if it ends before that."""
    Reader(payload).take(5)
    return payload[:1] + payload[5:]


PREPARED_LETTERS: Final = frozenset(b"bPpKr")
"""Letters of the messages that are parsed here."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Identifies a prepared transaction: begin and end of the PREPARE's record, and its time in µs since 1970 UTC."""

    xid: int
    gid: str
    lsn: int
    end_lsn: int
    prepared_at: int


@dataclass(frozen=True, slots=True)
class BeginPrepare:
    """`b`: the following messages up to the Prepare belong to this transaction."""

    prepared: Prepared


@dataclass(frozen=True, slots=True)
class Prepare:
    """`P`: the transaction is prepared; only its end follows. `streamed`: `p`, of one that came in blocks."""

    prepared: Prepared
    streamed: bool


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    """`K`: a prepared transaction committed; the rest as in `records.Commit`."""

    xid: int
    gid: str
    commit_lsn: int
    end_lsn: int
    commit_ts: int


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    """`r`: a prepared transaction was rolled back at `rolled_back_at`, by a record that ends at `end_lsn`.

    `prepare_end_lsn` and `prepared_at`: end and time of its PREPARE's record.
    """

    xid: int
    gid: str
    prepare_end_lsn: int
    end_lsn: int
    prepared_at: int
    rolled_back_at: int


PreparedMessage: TypeAlias = BeginPrepare | Prepare | CommitPrepared | RollbackPrepared


def prepared_message(payload: bytes) -> PreparedMessage | None:
    """The record of a message; None for another letter. Raises DecodeError."""
    reader = Reader(payload)
    match reader.take(1):
        case b"b":
            message: PreparedMessage = BeginPrepare(Prepared(*_prepared_fields(reader)))
        case b"P" | b"p" as letter:
            _flags(reader, 0, "prepared transaction")
            message = Prepare(Prepared(*_prepared_fields(reader)), letter == b"p")
        case b"K":
            _flags(reader, 0, "prepared transaction")
            message = CommitPrepared(*_prepared_fields(reader))
        case b"r":
            _flags(reader, 0, "prepared transaction")
            numbers = reader.lsn(), reader.lsn(), _time(reader), _time(reader)
            message = RollbackPrepared(reader.u32(), reader.cstring(), *numbers)
        case _:
            return None
    reader.finish()
    return message


def _prepared_fields(reader: Reader) -> tuple[int, str, int, int, int]:
    lsn, end_lsn, micros = reader.lsn(), reader.lsn(), _time(reader)
    return reader.u32(), reader.cstring(), lsn, end_lsn, micros


def bounds_of(commit: Commit | StreamCommit | CommitPrepared, xid: int, origin: str | None) -> Boundaries:
    """The boundaries of the transaction `xid` that the message ends.

    Raises MalformedMessage if the record ends before it starts.
    """
    if commit.end_lsn < commit.commit_lsn:
        end_lsn_at = 14 if isinstance(commit, StreamCommit) else 10
        raise MalformedMessage("a commit record that ends before it starts", offset=end_lsn_at)
    return Boundaries(
        position=commit.end_lsn,
        confirm=commit.end_lsn,
        commit_lsn=commit.commit_lsn,
        xid=xid,
        commit_ts=commit.commit_ts,
        origin=origin,
    )
