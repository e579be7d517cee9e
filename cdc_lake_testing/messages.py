"""Builds pgoutput messages as a PostgreSQL server would send them, from values of the model.

The inverse of `decode.pgoutput.parser`, for tests and fake sources. `encode_transaction` returns the messages of a
whole transaction, `raw_transaction` the assembler's result for them; there is a builder for every message of protocol
version 1.

    >>> orders = table("public.orders", id="int8", note="text")
    >>> one = Transaction(boundaries(1000), (Insert(orders, ("1", "first")),))
    >>> assembler = Assembler(catalog_of(orders))
    >>> [assembler.feed(payload, lsn) for lsn, payload in encode_transaction(one)]
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Final, assert_never

from cdc_lake.decode.pgoutput.assembler import TableFacts
from cdc_lake.decode.pgoutput.parser import POSTGRES_EPOCH
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.model.change import (
    Boundaries,
    Change,
    Delete,
    Insert,
    Message,
    OldKind,
    Transaction,
    Truncate,
    Tuple,
    Unchanged,
    Update,
)
from cdc_lake.model.relation import Column, Relation, ReplicaIdentity, TableName

TYPE_OIDS: Final = {
    "bool": 16,
    "bytea": 17,
    "int8": 20,
    "int2": 21,
    "int4": 23,
    "text": 25,
    "json": 114,
    "float4": 700,
    "float8": 701,
    "varchar": 1043,
    "date": 1082,
    "time": 1083,
    "timestamp": 1114,
    "timestamptz": 1184,
    "numeric": 1700,
    "uuid": 2950,
    "jsonb": 3802,
}
"""Built-in types as `pg_type.dat` numbers them."""

DEFAULT_COMMIT_TS: Final = 1_767_225_600_000_000  # 2026-01-01 00:00 UTC
_COMMIT_RECORD: Final = 48  # bytes, about what a commit record takes: end LSN - commit LSN


def table(
    name: str,
    *,
    key: Sequence[str] | None = None,
    identity: ReplicaIdentity = ReplicaIdentity.DEFAULT,
    **columns: str,
) -> Relation:
    """A relation from `schema.table` and `column=type`; the primary key is the first column unless `key` names it."""
    names = tuple(columns)
    primary = names[:1] if key is None else tuple(key)
    flagged = names if identity is ReplicaIdentity.FULL else () if identity is ReplicaIdentity.NOTHING else primary
    return Relation(
        table=TableName.parse(name),
        columns=tuple(Column(n, kind, TYPE_OIDS[kind], -1, n in flagged) for n, kind in columns.items()),
        identity=identity,
        primary_key=primary,
    )


def transaction_at(position: int, changes: Sequence[Change], *, origin: str | None = None) -> Transaction:
    """One that ends at LSN `position`, which is that of each of its changes too."""
    return Transaction(boundaries(position, origin=origin), tuple(changes), (position,) * len(changes))


def boundaries(
    position: int, *, xid: int | None = None, commit_ts: int = DEFAULT_COMMIT_TS, origin: str | None = None
) -> Boundaries:
    """The boundaries of a PostgreSQL transaction ending at LSN `position`; `xid` defaults to its low 32 bits."""
    return Boundaries(
        position=position,
        confirm=position,
        commit_lsn=max(0, position - _COMMIT_RECORD),
        xid=position & 0xFFFFFFFF if xid is None else xid,
        commit_ts=commit_ts,
        origin=origin,
    )


def oid_of(name: TableName) -> int:
    """The OID these builders give a table: the same for the same name, above the system's own."""
    return 16_384 + zlib.crc32(str(name).encode()) % (1 << 31)


def catalog_of(*relations: Relation) -> dict[TableName, TableFacts]:
    """The facts of the relations; of several layouts of one table, the last one's primary key and all type names."""
    facts: dict[TableName, TableFacts] = {}
    for relation in relations:
        known = facts[relation.table].type_names if relation.table in facts else {}
        names = {c.type_oid: c.type_name for c in relation.columns}
        facts[relation.table] = TableFacts(relation.primary_key, {**known, **names})
    return facts


# ── one message ──────────────────────────────────────────────────────────────────────────────────────────────


def begin(final_lsn: int, xid: int = 1, commit_ts: int = DEFAULT_COMMIT_TS) -> bytes:
    """`B`; `commit_ts` in microseconds since 1970 UTC."""
    return b"B" + struct.pack(">QqI", final_lsn, commit_ts - POSTGRES_EPOCH, xid)


def commit(commit_lsn: int, end_lsn: int, commit_ts: int = DEFAULT_COMMIT_TS, flags: int = 0) -> bytes:
    """`C`."""
    return b"C" + struct.pack(">BQQq", flags, commit_lsn, end_lsn, commit_ts - POSTGRES_EPOCH)


def origin(name: str, lsn: int = 0) -> bytes:
    """`O`."""
    return b"O" + struct.pack(">Q", lsn) + _cstring(name)


def relation(layout: Relation, oid: int | None = None) -> bytes:
    """`R`."""
    schema = "" if layout.table.schema == "pg_catalog" else layout.table.schema
    out = b"R" + _oid(layout, oid) + _cstring(schema) + _cstring(layout.table.name)
    out += layout.identity.value.encode() + struct.pack(">H", len(layout.columns))
    for c in layout.columns:
        out += bytes([c.key]) + _cstring(c.name) + struct.pack(">Ii", c.type_oid, c.modifier)
    return out


def type_name(oid: int, schema: str, name: str) -> bytes:
    """`Y`."""
    return b"Y" + struct.pack(">I", oid) + _cstring("" if schema == "pg_catalog" else schema) + _cstring(name)


def insert(layout: Relation, new: Tuple, oid: int | None = None) -> bytes:
    """`I`."""
    return b"I" + _oid(layout, oid) + b"N" + tuple_data(new)


def update(
    layout: Relation, new: Tuple, old: Tuple | None = None, old_kind: OldKind | None = None, oid: int | None = None
) -> bytes:
    """`U`; `old` and `old_kind` together or not at all."""
    if (old is None) != (old_kind is None):
        raise ValueError("an old tuple needs its kind, and the kind its tuple")
    before = b"" if old is None or old_kind is None else _OLD_LETTERS[old_kind] + tuple_data(old)
    return b"U" + _oid(layout, oid) + before + b"N" + tuple_data(new)


def delete(layout: Relation, old: Tuple, old_kind: OldKind = OldKind.KEY, oid: int | None = None) -> bytes:
    """`D`."""
    return b"D" + _oid(layout, oid) + _OLD_LETTERS[old_kind] + tuple_data(old)


def truncate(layouts: Sequence[Relation], *, cascade: bool = False, restart_identity: bool = False) -> bytes:
    """`T` of several tables."""
    flags = cascade | restart_identity << 1
    return b"T" + struct.pack(">IB", len(layouts), flags) + b"".join(_oid(layout, None) for layout in layouts)


def message(prefix: str, content: bytes, lsn: int = 0, *, transactional: bool = True) -> bytes:
    """`M`."""
    head = struct.pack(">BQ", transactional, lsn)
    return b"M" + head + _cstring(prefix) + struct.pack(">I", len(content)) + content


def tuple_data(values: Tuple) -> bytes:
    """TupleData: text, None for SQL NULL, UNCHANGED for a value not sent."""
    out = bytearray(struct.pack(">H", len(values)))
    for value in values:
        if value is None:
            out += b"n"
        elif isinstance(value, Unchanged):
            out += b"u"
        else:
            data = value.encode()
            out += b"t" + struct.pack(">I", len(data)) + data
    return bytes(out)


# ── a whole transaction ──────────────────────────────────────────────────────────────────────────────────────


def encode_change(change: Change) -> bytes:
    """The data message of one change."""
    match change:
        case Insert(relation=layout, new=new):
            return insert(layout, new)
        case Update(relation=layout, new=new, old=old, old_kind=old_kind):
            return update(layout, new, old, old_kind)
        case Delete(relation=layout, old=old, old_kind=old_kind):
            if old is None or old_kind is None:
                msg = "pgoutput has no DELETE without an old tuple"
                raise ValueError(msg)
            return delete(layout, old, old_kind)
        case Truncate(relation=layout, cascade=cascade, restart_identity=restart):
            return truncate([layout], cascade=cascade, restart_identity=restart)
        case Message(prefix=prefix, content=content):
            return message(prefix, content)
        case _ as never:
            assert_never(never)


def encode_transaction(
    transaction: Transaction, announced: dict[TableName, Relation] | None = None
) -> list[tuple[int, bytes]]:
    """The messages of a transaction as `(lsn, payload)`, BEGIN to COMMIT.

    A relation is announced before its first change and when its layout differs from the one announced last. Hand the
    same dictionary to every call of one connection to announce only once a connection; it is updated.
    """
    bounds = transaction.bounds
    if bounds.commit_lsn is None or bounds.commit_ts is None or bounds.xid is None:
        raise ValueError("a PostgreSQL transaction has a commit LSN, a commit time and a transaction id")
    known = {} if announced is None else announced
    out = [(bounds.commit_lsn, begin(bounds.commit_lsn, bounds.xid, bounds.commit_ts))]
    if bounds.origin is not None:
        out.append((bounds.commit_lsn, origin(bounds.origin)))
    for change, lsn in zip(transaction.changes, change_lsns(transaction), strict=True):
        if not isinstance(change, Message) and known.get(change.relation.table) != change.relation:
            known[change.relation.table] = change.relation
            out.append((lsn, relation(change.relation)))
        out.append((lsn, encode_change(change)))
    out.append((bounds.position, commit(bounds.commit_lsn, bounds.position, bounds.commit_ts)))
    return out


def change_lsns(transaction: Transaction) -> list[int]:
    """The LSN of each change, the commit LSN where the transaction names none."""
    fallback = transaction.bounds.commit_lsn or transaction.bounds.position
    lsns = transaction.lsns or (None,) * len(transaction.changes)
    return [fallback if lsn is None else lsn for lsn in lsns]


def raw_transaction(transaction: Transaction) -> BufferedTransaction:
    """What the assembler makes of the messages of a transaction."""
    frames = [encode_change(change) for change in transaction.changes]
    return BufferedTransaction(
        bounds=transaction.bounds,
        frames=frames,
        lsns=change_lsns(transaction),
        layouts=[None if isinstance(change, Message) else change.relation for change in transaction.changes],
        truncated={at: (c.relation,) for at, c in enumerate(transaction.changes) if isinstance(c, Truncate)},
        size=sum(map(len, frames)),
    )


def encode_stream(transactions: Iterable[Transaction]) -> list[tuple[int, bytes]]:
    """The messages of several transactions on one connection."""
    announced: dict[TableName, Relation] = {}
    return [message for one in transactions for message in encode_transaction(one, announced)]


_OLD_LETTERS: Final = {OldKind.KEY: b"K", OldKind.FULL: b"O"}


def _cstring(text: str) -> bytes:
    return text.encode() + b"\x00"


def _oid(layout: Relation, oid: int | None) -> bytes:
    return struct.pack(">I", oid_of(layout.table) if oid is None else oid)
