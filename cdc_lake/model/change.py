"""Changes and transactions: what happened to tables, and what was committed together.

A tuple has one value for each column of its relation, by position: text as the server printed it, `None` for SQL NULL,
or `UNCHANGED` for a value that was not sent because it did not change (TOAST). In an old key, columns outside the
identity are `None`; the relation shows which they are.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeAlias

from cdc_lake.model.relation import Relation

OWN_MESSAGES: Final = "cdc_lake"
"""Prefix of the messages that a run writes itself to detect their arrival: they never land."""

DDL_MESSAGES: Final = "cdc_lake.ddl"
"""Prefix of the messages in which an event trigger reports the columns of an altered table."""


class Unchanged(enum.Enum):
    """The type of `UNCHANGED`: not sent, because it did not change."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED

Value: TypeAlias = str | Unchanged | None
Tuple: TypeAlias = tuple[Value, ...]


class OldKind(enum.Enum):
    """The kind of an old tuple: only the identity columns, or the whole row."""

    KEY = "key"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row."""

    relation: Relation
    new: Tuple


@dataclass(frozen=True, slots=True)
class Update:
    """A row's new image; `old` if the server sent it, otherwise None.

    PostgreSQL sends it if the identity changed or is FULL, the GaussDB family whenever there is an identity.
    """

    relation: Relation
    new: Tuple
    old: Tuple | None = None
    old_kind: OldKind | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """A deleted row, identified by its key or its whole old image.

    `old` and `old_kind` are None together: the GaussDB family sends such a DELETE for a table without replica identity.
    """

    relation: Relation
    old: Tuple | None
    old_kind: OldKind | None


@dataclass(frozen=True, slots=True)
class Truncate:
    """One emptied table; a TRUNCATE of several tables is one such change per table, in the server's order."""

    relation: Relation
    cascade: bool = False
    restart_identity: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """A logical message of `pg_logical_emit_message`; a non-transactional one has a transaction of its own."""

    prefix: str
    content: bytes


Change: TypeAlias = Insert | Update | Delete | Truncate | Message


@dataclass(frozen=True, slots=True)
class Boundaries:
    """The BEGIN and COMMIT of one transaction, with the source's numbers, None if the source has none.

    `position` orders it in the stream's domain (PostgreSQL: the end LSN of the commit record). `confirm` is the slot
    position that may be confirmed once it is durable. `commit_ts` is microseconds since 1970-01-01 UTC. `empty_before`
    counts the transactions without changes (of other databases or tables that are not captured) between it and the last
    one with changes; always 0 if the source does not send them.
    """

    position: int
    confirm: int
    commit_lsn: int | None = None
    first_lsn: int | None = None
    csn: int | None = None
    xid: int | None = None
    commit_ts: int | None = None
    user: str | None = None
    origin: str | None = None
    empty_before: int = 0


@dataclass(frozen=True, slots=True)
class Transaction:
    """A committed transaction: its boundaries and its changes in order, each with its LSN from the source."""

    bounds: Boundaries
    changes: tuple[Change, ...]
    lsns: tuple[int | None, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Truncated:
    """A truncate of a table: its place, and its transaction from bronze's row."""

    position: int
    ordinal: int
    csn: int | None
    lsn: int | None
    xid: int | None
    commit_ts: datetime | None


@dataclass(frozen=True, slots=True)
class Undecoded:
    """The error of decoding a transaction, and what is known of it nevertheless.

    `frames`: its number of rows `X`. `code`, `message`, `where`: of the error; no values. `tables`: the changed ones,
    in bronze's form, as far as readable. `by`: the version of cdc_lake that could not decode it.
    """

    frames: int
    code: str
    message: str
    where: str
    tables: tuple[str, ...]
    by: str

    def describe(self) -> dict[str, object]:
        """The form in the COMMIT row's `info`."""
        return {
            "frames": self.frames,
            "code": self.code,
            "message": self.message,
            "where": self.where,
            "tables": list(self.tables),
            "by": self.by,
        }

    @classmethod
    def from_description(cls, info: Mapping[str, Any]) -> Undecoded:
        """The inverse; raises KeyError, TypeError or ValueError if `info` is malformed."""
        return cls(
            frames=int(info["frames"]),
            code=str(info["code"]),
            message=str(info["message"]),
            where=str(info["where"]),
            tables=tuple(str(table) for table in info["tables"]),
            by=str(info["by"]),
        )
