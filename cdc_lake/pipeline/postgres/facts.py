"""What a PostgreSQL says of itself without being touched: for `check`, `plan` and `status`.

Everything is read in one short SQL session; nothing is created, locked or advanced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass

from cdc_lake.config.project import Project
from cdc_lake.config.source import PostgresSource
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import TableName
from cdc_lake.pipeline.ports.action import TableFacts
from cdc_lake.source.connection import Session, connect, named
from cdc_lake.source.locks import holders_named, wait_for_locks
from cdc_lake.source.product import Product, product_of
from cdc_lake.source.quoting import quoted


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Settings that logical replication needs, and how much of them is in use."""

    product: Product
    wal_level: str
    in_recovery: bool
    slots_max: int
    slots_used: int
    senders_max: int
    senders_used: int
    keep_size: str
    messages: str


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """What the role may do."""

    name: str
    replication: bool
    superuser: bool
    create_in_database: bool


def session_of(
    project: Project, *, application: str = "cdc_lake", replication: bool = False
) -> AbstractContextManager[Session]:
    """A session on the source until the block ends. Raises SourceError."""
    return closing(connect(project.postgres, project.root, application=application, replication=replication))


@contextmanager
def reading(project: Project) -> Iterator[Session]:
    """A read-only SQL session on the source. Raises SourceError; TableLocked where others hold a table for long."""
    with session_of(project) as session:
        session.execute("SET default_transaction_read_only = on")
        wait_for_locks(session, looks=True)
        with holders_named(session, project.postgres.tables):
            yield session


def sent_position(session: Session, slot: str) -> Lsn | None:
    """The position up to which an active slot's receiver has read; None where nobody reads it, or it cannot be seen."""
    with named("reading the state of the receiver"):
        row = session.execute(
            "SELECT r.write_lsn::text FROM pg_replication_slots AS s "
            "JOIN pg_stat_replication AS r ON r.pid = s.active_pid WHERE s.slot_name = %s",
            [slot],
        ).fetchone()
    return Lsn.parse(str(row[0])) if row is not None and row[0] is not None else None


def limits(session: Session, source: PostgresSource) -> ServerLimits:
    """The server's settings for replication. Raises ServerSettings where it is another product than `source` says."""
    with named("reading the server's settings"):
        row = session.execute(
            "SELECT current_setting('wal_level'), pg_is_in_recovery(), "
            "current_setting('max_replication_slots')::int, (SELECT count(*) FROM pg_replication_slots), "
            "current_setting('max_wal_senders')::int, (SELECT count(*) FROM pg_stat_replication), "
            "current_setting('max_slot_wal_keep_size', true), current_setting('lc_messages'), version()"
        ).fetchone()
    assert row is not None
    level, recovery, slots, slots_used, senders, senders_used, keep, messages, says = row
    return ServerLimits(
        product_of(source, str(says), session.info.server_version),
        str(level),
        bool(recovery),
        int(str(slots)),
        int(str(slots_used)),
        int(str(senders)),
        int(str(senders_used)),
        str(keep),
        str(messages),
    )


def role(session: Session) -> RoleFacts:
    """The role of the session."""
    with named("reading the role's rights"):
        row = session.execute(
            "SELECT rolname::text, rolreplication, rolsuper, has_database_privilege(current_database(), 'CREATE') "
            "FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
    assert row is not None
    return RoleFacts(str(row[0]), bool(row[1]), bool(row[2]), bool(row[3]))


def tables(session: Session, names: Sequence[TableName]) -> list[TableFacts]:
    """Facts of these tables, in their order."""
    found: dict[TableName, TableFacts] = {}
    for name in names:
        with named(f"looking at {name}"):
            row = session.execute(
                "SELECT c.reltuples::bigint, pg_total_relation_size(c.oid), has_table_privilege(c.oid, 'SELECT'), "
                "pg_has_role(c.relowner, 'USAGE') FROM pg_class AS c WHERE c.oid = to_regclass(%s)",
                [quoted(name)],
            ).fetchone()
        if row is not None:
            rows, size, readable, owned = row
            estimate = int(str(rows))
            found[name] = TableFacts(
                name, estimate if estimate >= 0 else None, int(str(size)), bool(readable), bool(owned)
            )
    return [found[name] for name in names if name in found]


def hiding(session: Session, names: Sequence[TableName]) -> list[TableName]:
    """Those of these tables whose policies of row security count for the role, in their order."""
    with named("asking for row security"):
        rows = session.execute(
            "SELECT n.nspname, c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
            "WHERE c.relrowsecurity AND row_security_active(c.oid)"
        ).fetchall()
    found = {TableName(str(schema), str(name)) for schema, name in rows}
    return [name for name in names if name in found]
