"""Recordings as sources: a recorded stream served byte for byte, or the ledger of its server.

`messages` reads the files of `devtools.recording` (and those without its first line); `ledger_of` combines a binary and
a text recording of the same slot: the first has LSNs and type OIDs, the second type names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace

from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb.binary import records_binary
from cdc_lake.decode.gaussdb.records import Begin, Commit, Field, Record, Row
from cdc_lake.decode.gaussdb.serial import micros
from cdc_lake_testing.gaussdb.ledger import LedgerTransaction
from cdc_lake_testing.gaussdb.wire import packet

_HEADER = struct.Struct(">cQQq")


def messages(recording: bytes) -> list[bytes]:
    """The CopyData bodies of a recording: `w` and `k`. Raises ValueError where it ends inside one."""
    at = recording.index(b"\n") + 1 if recording.startswith(b"{") else 0
    bodies = []
    while at < len(recording):
        size = int.from_bytes(recording[at : at + 4], "big")
        if at + 4 + size > len(recording):
            msg = f"the recording ends inside the message at byte {at}"
            raise ValueError(msg)
        bodies.append(recording[at + 4 : at + 4 + size])
        at += 4 + size
    return bodies


def on_the_wire(bodies: Iterable[bytes]) -> list[bytes]:
    """CopyData messages of these bodies."""
    return [packet(b"d", body) for body in bodies]


def payloads(bodies: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Header LSN and payload of every `w`."""
    for body in bodies:
        if body[:1] == b"w":
            yield _HEADER.unpack_from(body)[1], body[_HEADER.size :]


def ledger_of(
    binary: Iterable[bytes], named: Iterable[Record] | None, *, database: str = "postgres"
) -> list[LedgerTransaction]:
    """The transactions behind recordings of one slot with the same filters.

    `binary`: CopyData bodies of style b without batches. The header of a COMMIT is taken for the start of the commit
    record, which holds in 5.0 and later as long as no row overtakes its commit, and always in 3.0. `named`: the
    records of a text or JSON stream with timestamps, for type names and times; without it there are none, and the
    times are those of `binary`. Raises ValueError where the two differ.
    """
    codec = Codec("UTF8")
    found: list[LedgerTransaction] = []
    begin: Begin | None = None
    rows: list[Row] = []
    names = None if named is None else iter(named)
    for lsn, payload in payloads(binary):
        (record,) = records_binary(payload, codec)
        beside = record if names is None else next(names)
        match record, beside:
            case Begin(), _:
                begin, rows = record, []
            case Row(), Row():
                rows.append(_typed(record, beside))
            case Commit(), Commit() if begin is not None:
                found.append(_transaction(begin, tuple(rows), record, lsn, beside.time, database))
            case _:
                msg = f"{type(record).__name__} and {type(beside).__name__} do not stand at one place of a transaction"
                raise ValueError(msg)
    return found


def _transaction(
    begin: Begin, rows: tuple[Row, ...], commit: Commit, commit_start: int, time: str | None, database: str
) -> LedgerTransaction:
    xid = commit.xid
    if begin.csn is None or begin.first_lsn is None or commit.lsn is None or xid is None:
        msg = "the binary recording lacks an LSN or an xid"
        raise ValueError(msg)
    return LedgerTransaction(
        csn=begin.csn,
        xid=xid,
        first_lsn=begin.first_lsn,
        commit_start=commit_start,
        commit_end=commit.lsn,
        time_us=0 if time is None else micros(time),
        changes=rows,
        database=database,
        origin_id=begin.origin_id or None,
    )


def _typed(row: Row, named: Row) -> Row:
    if (named.table, named.operation) != (row.table, row.operation):
        msg = f"the recordings differ at a {row.operation.name} of {row.table}"
        raise ValueError(msg)
    return replace(row, new=_named_fields(row.new, named.new), old=_named_fields(row.old, named.old))


def _named_fields(fields: tuple[Field, ...] | None, named: tuple[Field, ...] | None) -> tuple[Field, ...] | None:
    if fields is None or named is None:
        return fields
    return tuple(replace(f, type_name=n.type_name) for f, n in zip(fields, named, strict=True))
