"""Changes and transactions: what happened to tables, and what committed together.

A tuple holds one value for each column of its relation, by position: text as the server printed it, `None` for SQL
NULL, or `UNCHANGED` for a value that was not sent because it did not change (TOAST). In an old key, columns outside
the identity are `None`: which they are is known from the relation.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeAlias

from cdc_lake.model.relation import Relation

OWN_MESSAGES: Final = "cdc_lake"
"""Prefix of the messages that a run writes itself, to see them arrive: they are never landed."""

DDL_MESSAGES: Final = "cdc_lake.ddl"
"""Prefix of the messages in which an event trigger tells the columns of a table that was altered."""


class Unchanged(enum.Enum):
    """The type of `UNCHANGED`: not sent, because it did not change."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED

Value: TypeAlias = str | Unchanged | None
Tuple: TypeAlias = tuple[Value, ...]


class OldKind(enum.Enum):
    """What an old tuple is: the identity columns only, or the whole row."""

    KEY = "key"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row."""

    relation: Relation
    new: Tuple


@dataclass(frozen=True, slots=True)
class Update:
    """A row's new image; `old` where the server sent it, otherwise None.

    PostgreSQL sends it where the identity changed or is FULL, the GaussDB family always where there is an identity.
    """

    relation: Relation
    new: Tuple
    old: Tuple | None = None
    old_kind: OldKind | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """A row that went, known by its key or by its whole old image.

    `old` and `old_kind` are None together: the GaussDB family sends such a DELETE of a table without replica identity.
    """

    relation: Relation
    old: Tuple | None
    old_kind: OldKind | None


@dataclass(frozen=True, slots=True)
class Truncate:
    """One table emptied; a TRUNCATE of several tables is one such change a table, in the server's order."""

    relation: Relation
    cascade: bool = False
    restart_identity: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """A logical message of `pg_logical_emit_message`; one outside of transactions is in one of its own."""

    prefix: str
    content: bytes


Change: TypeAlias = Insert | Update | Delete | Truncate | Message


@dataclass(frozen=True, slots=True)
class Boundaries:
    """The BEGIN and COMMIT of one transaction, each number as the source gave it, None where the source has none.

    `position` orders it in the stream's domain (PostgreSQL: the end LSN of the commit record). `confirm` is the slot
    position that may be confirmed once it is durable. `commit_ts` is microseconds since 1970-01-01 UTC. `empty_before`
    counts the transactions without changes (of other databases, of tables that are not captured) that stand between it
    and the last one with changes; always 0 where the source does not send such.
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
    """A committed transaction: its boundaries and its changes in order, each with the LSN the source gave it."""

    bounds: Boundaries
    changes: tuple[Change, ...]
    lsns: tuple[int | None, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Truncated:
    """A truncate of a table: its place, and what bronze's row says of its transaction."""

    position: int
    ordinal: int
    csn: int | None
    lsn: int | None
    xid: int | None
    commit_ts: datetime | None


@dataclass(frozen=True, slots=True)
class Undecoded:
    """The error that decoding a transaction gave, and what is known of it all the same.

    `frames`: how many rows `X` it has. `code`, `message`, `where`: of the error; no values. `tables`: those it changes,
    as bronze writes them, as far as they could be read. `by`: the version of cdc_lake that could not decode it.
    """

    frames: int
    code: str
    message: str
    where: str
    tables: tuple[str, ...]
    by: str

    def describe(self) -> dict[str, object]:
        """As the COMMIT row's `info` has it."""
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
        """The inverse; raises KeyError, TypeError or ValueError where `info` is not one."""
        return cls(
            frames=int(info["frames"]),
            code=str(info["code"]),
            message=str(info["message"]),
            where=str(info["where"]),
            tables=tuple(str(table) for table in info["tables"]),
            by=str(info["by"]),
        )
