"""Records: what one pgoutput message says, one class a letter of protocol version 1.

LSNs are numbers, times microseconds since 1970-01-01 UTC, names as the server stores them. Specification:
PostgreSQL's documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from cdc_lake.model.change import OldKind, Tuple
from cdc_lake.model.relation import ReplicaIdentity, TableName


@dataclass(frozen=True, slots=True)
class Begin:
    """`B`: the LSN of the commit record, commit time in µs since 1970 UTC, transaction id."""

    final_lsn: int
    commit_ts: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """`C`: the commit record's LSN, the end LSN of the transaction, commit time in µs since 1970 UTC."""

    flags: int
    commit_lsn: int
    end_lsn: int
    commit_ts: int


@dataclass(frozen=True, slots=True)
class OriginMessage:
    """`O`: where the transaction came from, with its commit LSN there."""

    lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class AnnouncedColumn:
    """A column of a relation message."""

    name: str
    type_oid: int
    modifier: int
    key: bool


@dataclass(frozen=True, slots=True)
class RelationMessage:
    """`R`: a table's layout. No primary key and no type names: those come from the catalog."""

    oid: int
    table: TableName
    identity: ReplicaIdentity
    columns: tuple[AnnouncedColumn, ...]


@dataclass(frozen=True, slots=True)
class TypeMessage:
    """`Y`: the name of a type that is not built in."""

    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class InsertMessage:
    """`I`."""

    oid: int
    new: Tuple


@dataclass(frozen=True, slots=True)
class UpdateMessage:
    """`U`; `old` and `old_kind` are None together."""

    oid: int
    new: Tuple
    old: Tuple | None
    old_kind: OldKind | None


@dataclass(frozen=True, slots=True)
class DeleteMessage:
    """`D`."""

    oid: int
    old: Tuple
    old_kind: OldKind


@dataclass(frozen=True, slots=True)
class TruncateMessage:
    """`T`: at least one table."""

    oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """`M`: what `pg_logical_emit_message` wrote."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


WireMessage: TypeAlias = (
    Begin
    | Commit
    | OriginMessage
    | RelationMessage
    | TypeMessage
    | InsertMessage
    | UpdateMessage
    | DeleteMessage
    | TruncateMessage
    | LogicalMessage
)
"""Every message of protocol version 1."""
