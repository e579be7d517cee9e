"""Checks a PostgreSQL before it is streamed, and opens the sessions for that.

Sessions of one task carry its name, are on one host and are closed together. For `check`, `plan` and `status`
everything is read in one short session; nothing is created, locked or advanced. A stream in bronze can continue only at
the same server, database and WAL, from its slot. Only a slot with two-phase decoding may be left by an interrupted
start: any other is created when its stream begins in bronze.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.config.source import PostgresSource
from cdc_lake.connectors.base import TableFacts
from cdc_lake.connectors.failover import check_fed_from, check_log_reaches, check_timeline, last_timeline
from cdc_lake.connectors.open_stream import bronze_may_go_on
from cdc_lake.control.ownership import check_named_slot
from cdc_lake.control.streams import PendingSlot
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import TableName
from cdc_lake.source.base import Kind, StreamIdentity
from cdc_lake.source.postgres import server, slot
from cdc_lake.source.postgres.connection import Session, connect, fetch, pin_host
from cdc_lake.source.postgres.server import ServerFacts, ServerState
from cdc_lake.source.postgres.slot import SlotFacts
from cdc_lake.source.primary import Timeline
from cdc_lake.source.socket_io import Opened, ignore_open
from cdc_lake.source.sql_text import quote_table
from cdc_lake.tables.control_tables import ControlTables, control_tables


class SessionFactory:
    """Opens sessions that `opened` closes, all to the host of the first one, even during a failover."""

    def __init__(self, project: Project, opened: ExitStack, on_open: Opened = ignore_open) -> None:
        """`on_open`: called with every connection."""
        self.source = project.postgres
        """The source; with one host once a session is open."""
        self._project = project
        self._opened = opened
        self._on_open = on_open

    def __call__(self, what: str, *, replication: bool = False) -> Session:
        """A session with the application name `cdc_lake PIPELINE WHAT`. Raises SourceError."""
        name = f"cdc_lake {self._project.name} {what}"
        session = connect(
            self.source, self._project.root, application=name, replication=replication, on_open=self._on_open
        )
        self._opened.callback(session.close)
        self.source = pin_host(self.source, session)
        return session


def check_resume(
    project: Project,
    session: Session,
    replication: Session,
    facts: ServerFacts,
    state: StreamCheckpoint,
    control: ControlTables,
) -> tuple[Timeline, StreamCheckpoint]:
    """Raise unless the stream in bronze can continue at this server, database and slot; see `check_same`."""
    timeline, held = check_same(project, replication, facts, state, control)
    existing_slot = slot.find_slot(session, project.slot)
    confirmed = None if existing_slot is None or existing_slot.confirmed is None else existing_slot.confirmed.value
    with bronze_may_go_on(project, state, confirmed):
        check_own_slot(project, existing_slot, facts.database, held.confirm)
    return timeline, held


def check_same(
    project: Project, replication: Session, facts: ServerFacts, state: StreamCheckpoint, control: ControlTables
) -> tuple[Timeline, StreamCheckpoint]:
    """Raise unless bronze's stream comes from this server and database, and the server's WAL contains all of it.

    Returns the timeline, and the state from which to continue (`failover.check_timeline`).
    """
    identity = StreamIdentity.parse(state.stream)
    check_named_slot(project, state)
    check_fed_from(identity, system=facts.system, database=facts.database, slot=project.slot)
    timeline = server.timeline_of(replication, facts.timeline)
    reader = bronze_reader(project)
    held = check_timeline(timeline, last_timeline(control, state), reader, state)
    check_log_reaches(facts.flushed, reader, held)
    return timeline, held


def check_own_slot(project: Project, existing_slot: slot.SlotFacts | None, database: str, held: int) -> slot.SlotFacts:
    """The pipeline's slot, checked by `slot.check_slot`; `existing_slot`: as the server has it."""
    source = project.postgres
    plugin, two_phase = source.slot.plugin, source.decoding.two_phase
    return slot.check_slot(existing_slot, project.slot, database, held, plugin, two_phase=two_phase)


def intention_of(project: Project, facts: ServerFacts) -> PendingSlot:
    """The intention to create the pipeline's slot at a server."""
    return PendingSlot(Kind.POSTGRES, facts.system, facts.database, project.slot)


def left_over(
    existing_slot: SlotFacts, intention: PendingSlot, state: StreamCheckpoint | None, control: ControlTables
) -> bool:
    """Whether a slot is left from an interrupted start after what bronze has."""
    after = intention.recorded_epoch(control) if existing_slot.two_phase else None
    return after is not None and (state is None or after >= state.epoch)


def left_by_a_start(
    project: Project, session: Session, existing_slot: SlotFacts, state: StreamCheckpoint | None
) -> bool:
    """The same without side effects. Raises SourceError."""
    if not existing_slot.two_phase:
        return False
    intention = intention_of(project, server.identify(session, project.postgres))
    return left_over(existing_slot, intention, state, control_tables(project))


@dataclass(frozen=True, slots=True)
class ServerLimits(ServerState):
    """Settings that logical replication needs, and their usage."""

    slots_max: int
    slots_used: int
    senders_max: int
    senders_used: int
    keep_size: str
    messages: str


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """The privileges of the role."""

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
    """A read-only SQL session on the source. Raises SourceError; TableLocked if others lock a table for long."""
    with session_of(project) as session:
        session.execute("SET default_transaction_read_only = on")
        server.wait_for_locks(session, looks=True)
        with server.holders_named(session, project.postgres.tables):
            yield session


def sent_position(session: Session, slot: str) -> Lsn | None:
    """The position up to which an active slot's receiver has read; None without a reader, or if it is not visible."""
    sql = (
        "SELECT r.write_lsn::text FROM pg_replication_slots AS s "
        "JOIN pg_stat_replication AS r ON r.pid = s.active_pid WHERE s.slot_name = %s"
    )
    rows = fetch(session, "reading the state of the receiver", sql, slot)
    return Lsn.parse(rows[0][0]) if rows and rows[0][0] is not None else None


def limits(session: Session, source: PostgresSource) -> ServerLimits:
    """The server's settings for replication. Raises ServerSettings if it is another product than `source` says."""
    [(*settings, says)] = fetch(
        session,
        "reading the server's settings",
        "SELECT current_setting('wal_level'), pg_is_in_recovery(), "
        "current_setting('max_replication_slots')::int, (SELECT count(*) FROM pg_replication_slots), "
        "current_setting('max_wal_senders')::int, (SELECT count(*) FROM pg_stat_replication), "
        "current_setting('max_slot_wal_keep_size', true), current_setting('lc_messages'), version()",
    )
    return ServerLimits(server.product_of(source, says, session.info.server_version), *settings)


def role(session: Session) -> RoleFacts:
    """The role of the session."""
    sql = (
        "SELECT rolname::text, rolreplication, rolsuper, has_database_privilege(current_database(), 'CREATE') "
        "FROM pg_roles WHERE rolname = current_user"
    )
    [facts] = fetch(session, "reading the role's privileges", sql)
    return RoleFacts(*facts)


def tables(session: Session, names: Sequence[TableName]) -> list[TableFacts]:
    """Facts of these tables, in their order."""
    facts = []
    sql = (
        "SELECT CASE WHEN c.reltuples >= 0 THEN c.reltuples::bigint END, pg_total_relation_size(c.oid), "
        "has_table_privilege(c.oid, 'SELECT'), pg_has_role(c.relowner, 'USAGE') "
        "FROM pg_class AS c WHERE c.oid = to_regclass(%s)"
    )
    for name in names:
        for estimate, size, readable, owned in fetch(session, f"looking up {name}", sql, quote_table(name)):
            facts.append(TableFacts(name, estimate, size, bool(readable), bool(owned)))
    return facts


def hiding(session: Session, names: Sequence[TableName]) -> list[TableName]:
    """Those of these tables whose row-level security policies apply to the role, in their order."""
    sql = (
        "SELECT n.nspname, c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
        "WHERE c.relrowsecurity AND row_security_active(c.oid)"
    )
    restricted_tables = {TableName(*row) for row in fetch(session, "checking row security", sql)}
    return [name for name in names if name in restricted_tables]
