"""The plain decoder of pgoutput, protocol version 1: the reference for the columnar one.

Specification: PostgreSQL's documentation, "Logical Replication Message Formats" and "Logical Streaming Replication
Parameters". `parse` turns one message into a record; `changes` and `transaction` turn a raw transaction into values
of the model. Any bytes give a record or a `DecodeError`. Streamed transactions are taken apart before (`streams`).
A binary value is read where its column is known (`binary`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, assert_never

from cdc_lake.decode.binary import InBinary, in_text
from cdc_lake.decode.not_text import InHex, settled
from cdc_lake.decode.raw import RawTransaction
from cdc_lake.decode.reader import Reader, storable
from cdc_lake.decode.records import (
    AnnouncedColumn,
    Begin,
    Commit,
    DeleteMessage,
    InsertMessage,
    LogicalMessage,
    OriginMessage,
    RelationMessage,
    TruncateMessage,
    TypeMessage,
    UpdateMessage,
    WireMessage,
)
from cdc_lake.errors import (
    DecodeError,
    InvalidText,
    MalformedMessage,
    OutOfSequence,
    UnexpectedMessage,
    UnknownRelation,
)
from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, Message, OldKind, Truncate, Tuple, Update, Value
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import Relation, ReplicaIdentity, TableName
from cdc_lake.model.transaction import Transaction

POSTGRES_EPOCH: Final = 946_684_800_000_000
"""2000-01-01 UTC, PostgreSQL's zero of time, in microseconds since 1970."""

# between two changes of a small transaction stand these two: each is read in one step
_BEGIN: Final = struct.Struct(">qqI")
_COMMIT: Final = struct.Struct(">Bqqq")

KEY_FLAG: Final = 1  # Relation message, flags of a column
CASCADE_FLAG: Final = 1  # Truncate message, options
RESTART_FLAG: Final = 2
ROW_CHANGES: Final = frozenset(b"IUD")
"""Letters of messages that change a row."""
TRUNCATE_HEAD: Final = 6
"""Bytes of a Truncate message before its OIDs, four bytes each."""
TRANSACTIONAL_FLAG: Final = 1  # Message message, flags


def parse(payload: bytes, columns: int | None = None, *, lenient: bool = False) -> WireMessage:
    """One message. `columns` is how many values a tuple must have, where the layout is known. Raises DecodeError.

    `lenient`: values may be bytes that are no text (`decode.not_text`).
    """
    reader = Reader(payload, lenient=lenient)
    letter = reader.take(1)
    if (read := _LETTERS.get(letter)) is None:
        raise UnexpectedMessage(f"a message of kind {_shown(letter)}: expected one of {_KNOWN}", offset=0)
    message = read(reader, columns)
    reader.finish()
    return message


def changes(raw: RawTransaction, in_hex: InHex | None = None) -> Iterator[tuple[int, Change]]:
    """The changes of a raw transaction in order, each with the index of its frame; one a table of a truncate.

    `in_hex`: which columns may hold bytes that are no text, None: no column. Raises DecodeError, whose `where` names
    the transaction and the change.
    """
    for at, frame in enumerate(raw.frames):
        try:
            decoded = change_of(frame, raw.layouts[at], raw.truncated.get(at, ()), in_hex)
        except DecodeError as error:
            error.where = error.where or f"change {at + 1} of the transaction at {Lsn(raw.bounds.position)}"
            raise
        for change in decoded:
            yield at, change


def transaction(raw: RawTransaction) -> Transaction:
    """The model's value of a raw transaction. Raises DecodeError."""
    decoded = list(changes(raw))
    return Transaction(raw.bounds, tuple(c for _, c in decoded), tuple(raw.lsns[at] for at, _ in decoded))


def change_of(
    frame: bytes, layout: Relation | None, truncated: tuple[Relation, ...] = (), in_hex: InHex | None = None
) -> tuple[Change, ...]:
    """What one data message did, under the layout in force: one change, for a truncate one a table."""
    match parse(frame, None if layout is None else len(layout.columns), lenient=in_hex is not None):
        case InsertMessage(new=new):
            relation = _known(layout)
            return (Insert(relation, _settled(relation, new, in_hex)),)
        case UpdateMessage(new=new, old=old, old_kind=old_kind):
            relation = _known(layout)
            before = None if old is None else _settled(relation, old, in_hex)
            return (Update(relation, _settled(relation, new, in_hex), before, old_kind),)
        case DeleteMessage(old=old, old_kind=old_kind):
            relation = _known(layout)
            return (Delete(relation, _settled(relation, old, in_hex), old_kind),)
        case TruncateMessage(oids=oids, cascade=cascade, restart_identity=restart):
            if len(truncated) != len(oids):
                raise UnknownRelation(f"a truncate of {len(oids)} tables, {len(truncated)} of them known", offset=1)
            return tuple(Truncate(table, cascade, restart) for table in truncated)
        case LogicalMessage(prefix=prefix, content=content):
            return (Message(prefix, content),)
        case Begin() | Commit() | OriginMessage() | RelationMessage() | TypeMessage():
            raise OutOfSequence(f"{_shown(frame[:1])} is not a change", offset=0)
        case _ as never:
            assert_never(never)


def _settled(relation: Relation, values: Tuple, in_hex: InHex | None) -> Tuple:
    values = in_text(relation, values, lenient=in_hex is not None)
    if in_hex is None:
        return values
    return settled(relation.table, relation.names, values, in_hex, str.encode, lambda at: InvalidText(at=at))


def _known(layout: Relation | None) -> Relation:
    if layout is None:
        raise UnknownRelation("a change of a table without a layout", offset=1)
    return layout


def _shown(letter: bytes) -> str:
    return f"`{letter.decode()}`" if letter.isalnum() else f"0x{letter.hex()}"


def timestamp(micros: int, at: int) -> int:
    """A time of the protocol, read at byte `at`, as microseconds since 1970 UTC. Raises MalformedMessage."""
    since_1970 = micros + POSTGRES_EPOCH
    if since_1970 >= 1 << 63:
        raise MalformedMessage("a commit time beyond what 64 bits of microseconds hold", offset=at)
    return since_1970


def _flags(reader: Reader, allowed: int, of: str) -> int:
    at = reader.at
    return _allowed(reader.u8(), allowed, of, at)


def _allowed(flags: int, allowed: int, of: str, at: int) -> int:
    if flags & ~allowed:
        raise MalformedMessage(f"unknown flags {flags:#04x} of a {of}", offset=at)
    return flags


def _begin(reader: Reader, _columns: int | None) -> Begin:
    final_lsn, micros, xid = reader.fixed(_BEGIN)
    return Begin(storable(final_lsn, 1), timestamp(micros, 9), xid)


def _commit(reader: Reader, _columns: int | None) -> Commit:
    flags, commit_lsn, end_lsn, micros = reader.fixed(_COMMIT)
    _allowed(flags, 0, "commit", 1)
    return Commit(flags, storable(commit_lsn, 2), storable(end_lsn, 10), timestamp(micros, 18))


def _origin(reader: Reader, _columns: int | None) -> OriginMessage:
    return OriginMessage(reader.lsn(), reader.cstring())


def _relation(reader: Reader, _columns: int | None) -> RelationMessage:
    oid = reader.u32()
    schema = reader.cstring() or "pg_catalog"  # the protocol sends pg_catalog as an empty name
    at = reader.at
    name = reader.cstring()
    if not name:
        raise MalformedMessage("a relation without a name", offset=at)
    at = reader.at
    letter = reader.take(1)
    if (identity := _IDENTITIES.get(letter)) is None:
        raise MalformedMessage(f"replica identity {_shown(letter)}: expected d, n, f or i", offset=at)
    columns = tuple(_column(reader) for _ in range(reader.u16()))
    return RelationMessage(oid, TableName(schema, name), identity, columns)


def _column(reader: Reader) -> AnnouncedColumn:
    key = _flags(reader, KEY_FLAG, "column") == KEY_FLAG
    return AnnouncedColumn(reader.cstring(), reader.u32(), reader.i32(), key)


def _type(reader: Reader, _columns: int | None) -> TypeMessage:
    return TypeMessage(reader.u32(), reader.cstring() or "pg_catalog", reader.cstring())


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
    at = reader.at
    if not (count := reader.u32()):
        raise MalformedMessage("a truncate of no table", offset=at)
    flags = _flags(reader, CASCADE_FLAG | RESTART_FLAG, "truncate")
    # each read checks its bound, so a count beyond the message ends at the first missing OID
    oids = tuple(reader.u32() for _ in range(count))
    return TruncateMessage(oids, bool(flags & CASCADE_FLAG), bool(flags & RESTART_FLAG))


def _message(reader: Reader, _columns: int | None) -> LogicalMessage:
    flags = _flags(reader, TRANSACTIONAL_FLAG, "message")
    return LogicalMessage(bool(flags), reader.lsn(), reader.cstring(), reader.take(reader.u32()))


def _expect(reader: Reader, kinds: bytes) -> bytes:
    at = reader.at
    if (kind := reader.take(1)) not in kinds:
        expected = " or ".join(f"`{chr(k)}`" for k in kinds)
        raise UnexpectedMessage(f"a tuple of kind {_shown(kind)}: expected {expected}", offset=at)
    return kind


def _tuple(reader: Reader, columns: int | None, *, old: bool = False) -> Tuple:
    at = reader.at
    count = reader.u16()
    if columns is not None and count != columns:
        raise MalformedMessage(f"a tuple of {count} values for a layout of {columns} columns", offset=at)
    return tuple(_value(reader, old=old) for _ in range(count))


def _value(reader: Reader, *, old: bool) -> Value:
    at = reader.at
    kind = reader.take(1)
    if kind == b"t":
        return reader.text(reader.u32())
    if kind == b"n":
        return None
    if kind == b"b":
        size = reader.u32()
        return InBinary.of(reader.take(size), at + 5)
    # the server detoasts old tuples before it logs them: "unchanged" has no meaning there
    if kind == b"u" and not old:
        return UNCHANGED
    expected = "`n`, `t` or `b`" if old else "`n`, `u`, `t` or `b`"
    raise UnexpectedMessage(f"a value of kind {_shown(kind)}: expected {expected}", offset=at)


_OLD_KINDS: Final = {b"K": OldKind.KEY, b"O": OldKind.FULL}
_IDENTITIES: Final = {identity.value.encode(): identity for identity in ReplicaIdentity}
_LETTERS: Final[dict[bytes, Callable[[Reader, int | None], WireMessage]]] = {
    b"B": _begin,
    b"C": _commit,
    b"O": _origin,
    b"R": _relation,
    b"Y": _type,
    b"I": _insert,
    b"U": _update,
    b"D": _delete,
    b"T": _truncate,
    b"M": _message,
}
_KNOWN: Final = " ".join(letter.decode() for letter in _LETTERS)
