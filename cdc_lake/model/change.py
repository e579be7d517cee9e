"""Changes: what happened to one table in one transaction.

A tuple holds one value a column of its relation, by position: text as the server printed it, `None` for SQL NULL, or
`UNCHANGED` for a value that was not sent because it did not change (TOAST). In an old key, columns outside the
identity are `None`: which they are is known from the relation.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, TypeAlias

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
