"""A slot and a snapshot that begin at the same place, made by SQL functions alone: these export no snapshot.

A temporary slot is made, then a snapshot is taken, and the slot is asked which transactions ended in between. Those
that the snapshot shows have to come first, in the order of the log: then the slot is moved behind them, and what it
sends is exactly what the snapshot does not show. Where the log has another order than the snapshots, which happens now
and then on a busy server, another snapshot is taken.

A transaction may have its commit record in the log before the slot begins and still be invisible, while it waits for
a standby for example. So every transaction that runs when the slot is there has to end before a snapshot counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import TableName
from cdc_lake.source.connection import Session, named
from cdc_lake.source.server import goal, wal_position
from cdc_lake.source.slot import ExportedSlot, temporary_name
from cdc_lake.source.visible import Visible, visible

# both plugins begin what they send of a COMMIT with a C
_COMMITS = (
    "SELECT lsn::text, xid::text::bigint FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, VARIADIC %s::text[]) "
    "WHERE get_byte(data, 0) = 67"
)


@contextmanager
def settled(
    holder: Session,
    reading: Session,
    slot: str,
    plugin: str,
    options: Mapping[str, str],
    tables: Sequence[TableName],
    *,
    pause: Callable[[], None],
) -> Iterator[ExportedSlot]:
    """A temporary slot of `holder`, and a snapshot of what was committed up to its position, exported by `reading`.

    It can be taken over by other sessions as long as this lasts. `pause` is called between two looks, and may raise.
    Raises SourceError.
    """
    name = temporary_name(slot)
    with named(f"creating slot `{name}`"):
        row = holder.execute(
            "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, %s, true)", [name, plugin]
        ).fetchone()
    assert row is not None
    begins = Lsn.parse(str(row[0]))
    _ended(holder, pause)
    given = [word for pair in options.items() for word in pair]
    while True:
        with visible(reading, tables) as shown:
            upto = _upto(begins, shown, _commits(holder, name, given, shown, pause))
            if upto is not None:
                with named(f"advancing slot `{name}`"):
                    holder.execute("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", [name, str(upto)])
                yield ExportedSlot(name, upto, _exported(reading))
                return
        pause()


def _exported(session: Session) -> str:
    with named("exporting the snapshot"):
        row = session.execute("SELECT pg_export_snapshot()").fetchone()
    assert row is not None
    return str(row[0])


def _ended(session: Session, pause: Callable[[], None]) -> None:
    """Wait until every transaction that has an id by now has ended."""
    with named("waiting for transactions that run"):
        row = session.execute("SELECT pg_current_xact_id()::text").fetchone()
        assert row is not None
        while not _all_ended(session, str(row[0])):
            pause()


def _all_ended(session: Session, xid: str) -> bool:
    row = session.execute("SELECT pg_snapshot_xmin(pg_current_snapshot()) > %s::xid8", [xid]).fetchone()
    return row is not None and bool(row[0])


def _commits(
    session: Session, slot: str, options: list[str], shown: Visible, pause: Callable[[], None]
) -> list[tuple[Lsn, int]]:
    """Position and id of every transaction that the slot has up to a snapshot's position, and maybe beyond."""
    goal(session)  # a commit of our own flushes what the snapshot shows, and decoding goes as far as that
    with named(f"looking ahead in slot `{slot}`"):
        while wal_position(session).value < shown.position:
            pause()
        rows = session.execute(_COMMITS, [slot, options]).fetchall()
    return [(Lsn.parse(str(lsn)), int(str(xid))) for lsn, xid in rows]


def _upto(begins: Lsn, shown: Visible, commits: list[tuple[Lsn, int]]) -> Lsn | None:
    """Where the transactions end that the snapshot shows; None where others stand among them."""
    seen = [shown.shows(xid, at.value) for at, xid in commits]
    count = sum(seen)
    if not all(seen[:count]):
        return None
    return commits[count - 1][0] if count else begins
