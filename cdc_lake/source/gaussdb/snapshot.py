"""The initial copy of the GaussDB family: tables in a snapshot of which the CSN is known.

`pg_export_snapshot_and_csn()` gives a snapshot that holds exactly the transactions with a CSN below its own, and other
sessions take it over while the one that exported it stays in its transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pyarrow as pa

from cdc_lake.errors import QueryRefused
from cdc_lake.model.position import Csn, Lsn
from cdc_lake.model.relation import Relation
from cdc_lake.source.copy_text import chunks_of
from cdc_lake.source.gaussdb.catalog import quoted
from cdc_lake.source.gaussdb.server import CsnSnapshot, snapshot_and_csn
from cdc_lake.source.gaussdb.slot import CreatedSlot, check_name
from cdc_lake.source.quoting import identifier, literal
from cdc_lake.source.wire.session import WireSession

_UNDEFINED_FUNCTION = "(42883)"


@dataclass(frozen=True, slots=True)
class FamilyReader:
    """Reads tables in the snapshot of its session; for one thread."""

    session: WireSession
    chunk_rows: int

    def read(self, relation: Relation) -> Iterator[pa.ListArray]:
        """The table's rows, list<string> by position in the layout; nothing for an empty table. Raises SourceError."""
        columns = ", ".join(identifier(name) for name in relation.names)
        statement = f"COPY (SELECT {columns} FROM {quoted(relation.table)}) TO STDOUT"
        blocks = self.session.copy_out(statement, doing=f"copying {relation.table}")
        return chunks_of(blocks, len(relation.columns), self.chunk_rows)


@dataclass(frozen=True, slots=True)
class FamilySnapshot:
    """A snapshot that other sessions can take over. `csn`: it shows exactly what is below; None where unknown."""

    name: str
    csn: Csn | None


def create_slot_with_snapshot(replication: WireSession, name: str, plugin: str) -> tuple[CreatedSlot, FamilySnapshot]:
    """Make a slot inside a transaction that sees its consistent point, and export that snapshot.

    Lasts as long as the transaction of `replication`, a replication connection. Raises SourceError.
    """
    check_name(name)
    doing = f"creating slot `{name}`"
    replication.query("BEGIN ISOLATION LEVEL REPEATABLE READ", doing=doing)
    command = f"CREATE_REPLICATION_SLOT {identifier(name)} LOGICAL {identifier(plugin)} USE_SNAPSHOT"
    row = replication.query(command, doing=doing).records()[0]
    csn = row.get("snapshot_csn")
    exported_as = replication.query("SELECT pg_export_snapshot()", doing="exporting the slot's snapshot").rows[0][0]
    made = CreatedSlot(name, Lsn.parse(row["consistent_point"] or ""), exported_as)
    return made, FamilySnapshot(exported_as or "", Csn(int(csn)) if csn else None)


@contextmanager
def exported(session: WireSession, locked: Sequence[str] = ()) -> Iterator[CsnSnapshot]:
    """A transaction of `session` that exports a snapshot with its CSN, held until the end. Raises SourceError.

    `locked`: see `snapshot_and_csn`.
    """
    try:
        yield snapshot_and_csn(session, locked)
    finally:
        if not session.closed:
            session.query("ROLLBACK", doing="ending the snapshot")


def csn_now(session: WireSession) -> Csn:
    """The CSN of a snapshot that is taken now and not kept. Raises SourceError."""
    with exported(session) as taken:
        return taken.csn


def exports_csn(session: WireSession) -> bool:
    """Whether the server can export a snapshot with its CSN; every open release from 3.0.0 on can."""
    try:
        csn_now(session)
    except QueryRefused as refused:
        if _UNDEFINED_FUNCTION not in refused.message:
            raise
        return False
    return True


@contextmanager
def readers(
    dial: Callable[[], WireSession], taken: FamilySnapshot, count: int, chunk_rows: int
) -> Iterator[list[FamilyReader]]:
    """Sessions that all see the exported snapshot, opened by `dial` and closed at the end. Raises SourceError."""
    with ExitStack() as opened:
        out = []
        for _ in range(count):
            session = dial()
            opened.callback(session.close)
            doing = "taking over the snapshot"
            session.query("BEGIN ISOLATION LEVEL REPEATABLE READ", doing=doing)
            session.query(f"SET TRANSACTION SNAPSHOT {literal(taken.name)}", doing=doing)
            out.append(FamilyReader(session, chunk_rows))
        yield out
