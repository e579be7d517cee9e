"""The port through which SQL is answered: one call per statement, one session per connection.

The server answers replication commands itself and passes everything else to its `SqlAnswers`: scripted ones, or ones
that query a live PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from cdc_lake_testing.gaussdb.state import ServerState

Status: TypeAlias = Literal["I", "T", "E"]
"""What ReadyForQuery says: idle, in a transaction, in a failed one."""


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of a result."""

    name: str
    type_oid: int = 25
    size: int = -1


@dataclass(frozen=True, slots=True)
class ResultSet:
    """Rows of output text; None is NULL. `tag`: what CommandComplete says, `SELECT n` unless given."""

    columns: Sequence[ResultColumn]
    rows: Sequence[Sequence[str | None]]
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """A statement without a result: only its tag."""

    tag: str


@dataclass(frozen=True, slots=True)
class CopyOut:
    """COPY … TO STDOUT: a CopyData message each, which real servers send one a line, line end included."""

    data: Iterable[bytes]
    columns: int = 1
    tag: str = "COPY"


@dataclass(frozen=True, slots=True)
class Failed:
    """An error. `FATAL` also ends the session."""

    sqlstate: str
    message: str
    detail: str | None = None
    hint: str | None = None
    severity: Literal["ERROR", "FATAL"] = "ERROR"


Answer: TypeAlias = ResultSet | Done | CopyOut | Failed


@dataclass(frozen=True, slots=True)
class Exported:
    """A snapshot: its name, the CSN below which every transaction is in it, and the log's end when it was taken."""

    name: str
    csn: int
    consistent_point: int


@dataclass(slots=True)
class SqlSession:
    """One connection, as its answers see it. `status` is theirs to set; `own` is a drawer for what they keep."""

    user: str
    database: str
    replication: bool
    parameters: Mapping[str, str]
    server: ServerState
    pid: int = 0
    status: Status = "I"
    own: dict[str, object] = field(default_factory=dict)


class SqlAnswers(Protocol):
    """Answers SQL. Calls of one session come one after the other, those of several from several threads."""

    def answer(self, sql: str, session: SqlSession) -> Sequence[Answer]:
        """What a simple query brings, an answer a statement; an error comes as `Failed`, never as an exception."""

    def export(self, session: SqlSession, *, use: bool) -> Exported:
        """A snapshot at this moment, exact in the ledger; with `use`, the session's transaction reads by it."""

    def end(self, session: SqlSession) -> None:
        """The connection is gone: forget what `own` holds."""
