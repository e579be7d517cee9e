"""Unlanded: transactions that the slot still has and bronze does not, found by peeking.

Peeking decodes what the slot would send and confirms nothing. No row values leave the server: of a change only its
kind and relation are asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from cdc_lake.decode.test_decoding.heads import TABLE
from cdc_lake.errors import SlotActive, StreamProtocol
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import TableName
from cdc_lake.source.captured import Unlanded
from cdc_lake.source.connection import Session, as_stored, named
from cdc_lake.source.line_heads import HEAD, PEEKED, as_bytes, changed_by
from cdc_lake.source.quoting import identifier
from cdc_lake.source.slot import find_slot, whole_copy

_OID = struct.Struct(">I")
_COMMIT = struct.Struct(">BQQq")  # flags, commit LSN, end LSN, time
_CHANGES = b"IUD"

_PEEK = (
    "SELECT xid::text::bigint, CASE WHEN get_byte(data, 0) IN (73, 85, 68) THEN substr(data, 1, 5) ELSE data END "
    "FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, NULL, 'proto_version', '1', 'publication_names', %s) "
    "WHERE get_byte(data, 0) IN (67, 68, 73, 82, 84, 85)"  # C D I R T U
)

_PEEK_LINES = (
    f"SELECT lsn::text, xid::text::bigint, CASE WHEN data ~ '^COMMIT' THEN 'COMMIT' ELSE {HEAD} END FROM {PEEKED} "
    "WHERE data ~ '^(COMMIT|table )'"
)


def unlanded(
    session: Session, slot: str, publication: str, after: int, upto: int, *, two_phase: bool = False
) -> list[Unlanded]:
    """Transactions above `after` that change published tables, up to at least `upto`.

    A slot with `two_phase` decoding is read by a copy. `session` must not be in a transaction. Raises SlotActive while
    a receiver reads the slot.
    """
    with (
        _whole(session, slot, two_phase=two_phase) as name,
        named(f"looking ahead in slot `{slot}`"),
        as_stored(session),
    ):
        rows = session.execute(_PEEK, [name, str(Lsn(upto)), identifier(publication)]).fetchall()
    messages = ((int(str(xid)), bytes(data)) for xid, data in rows)  # type: ignore[call-overload]  # a bytea
    return transactions(messages, after)


def unlanded_lines(
    session: Session,
    slot: str,
    takes: Callable[[TableName], bool],
    after: int,
    upto: int,
    *,
    two_phase: bool = False,
) -> list[Unlanded]:
    """The same of a slot of test_decoding, whose lines are of all tables: those that change one that `takes` takes."""
    with (
        _whole(session, slot, two_phase=two_phase) as name,
        named(f"looking ahead in slot `{slot}`"),
        as_stored(session),
    ):
        rows = session.execute(_PEEK_LINES.encode(), [name, str(Lsn(upto))]).fetchall()
    found: list[Unlanded] = []
    touched: set[TableName] = set()
    for lsn, xid, text in rows:
        line = as_bytes(text)
        if line.startswith(TABLE):
            touched.update(filter(takes, changed_by(line)))
            continue
        end = Lsn.parse(as_bytes(lsn).decode()).value
        if end > after and touched:
            found.append(Unlanded(end, int(str(xid)), frozenset(touched)))
        touched.clear()
    return found


@contextmanager
def _whole(session: Session, slot: str, *, two_phase: bool) -> Iterator[str]:
    """A slot that sends prepared transactions whole: `slot`, or a copy of it. Raises SlotActive."""
    if not two_phase:
        yield slot
        return
    if (found := find_slot(session, slot)) is not None and found.active_pid is not None:
        raise SlotActive(f"looking ahead in slot `{slot}`: a receiver reads it")
    with whole_copy(session, slot) as name:
        yield name


def transactions(messages: Iterable[tuple[int, bytes]], after: int) -> list[Unlanded]:
    """The transactions in pgoutput messages `(xid, bytes)` of kinds C D I R T U that end above `after`."""
    names: dict[int, TableName] = {}
    touched: set[TableName] = set()
    found: list[Unlanded] = []
    for xid, data in messages:
        kind = data[:1]
        if kind == b"C":
            end = _COMMIT.unpack_from(data, 1)[2]
            if end > after and touched:
                found.append(Unlanded(end, xid, frozenset(touched)))
            touched.clear()
        elif kind == b"R":
            schema, name = data[5:].split(b"\0", 2)[:2]
            names[_OID.unpack_from(data, 1)[0]] = TableName(schema.decode() or "pg_catalog", name.decode())
        elif kind == b"T":
            count = _OID.unpack_from(data, 1)[0]
            touched.update(_known(names, oid) for (oid,) in _OID.iter_unpack(data[6 : 6 + 4 * count]))
        elif kind in _CHANGES:
            touched.add(_known(names, _OID.unpack_from(data, 1)[0]))
    return found


def _known(names: dict[int, TableName], oid: int) -> TableName:
    if oid not in names:
        raise StreamProtocol(f"a change of relation {oid}, which was not announced")
    return names[oid]
