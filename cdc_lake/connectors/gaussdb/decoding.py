"""How a pipeline reads a server of the GaussDB family: catalogs, options, assembler, and the list of tables.

`check`, `plan` and `status` read only catalogs of PostgreSQL 9.2, on which the family is based; views whose columns
differ between products are read with the columns they have.

Tables that were added to or removed from `source.tables` since the stream began:

    recorded as excluded at bronze's position → copied (`runtime.receive.stream_setup`) → active

The servers have no publication: selected tables are sent. A removed table stays excluded. An added one is excluded too,
so that apply waits for its copy: its earlier changes in the stream are not applied. A stream ordered by LSN has no
position for such a copy: an added table begins with its changes, and one that is added again stays excluded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.gaussdb_options import Mode, as_number
from cdc_lake.config.project import Project, effective_options
from cdc_lake.connectors import table_sync
from cdc_lake.connectors.base import ReceiverContext, TableFacts
from cdc_lake.connectors.open_stream import codec_by_name, lands
from cdc_lake.connectors.table_sync import TableChanges
from cdc_lake.control.snapshots import courses
from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.decode.gaussdb.batches import RecordTransaction, TableFilter, read_record
from cdc_lake.decode.gaussdb.catalog_facts import GaussDbTableMetadata, named_by
from cdc_lake.decode.gaussdb.records import Row, Style, Truncated
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.decode.transaction import FrameStoreFactory
from cdc_lake.errors import CopyUnplaced, NoReplicaIdentity, NoTableMatches, QueryRefused, SourcePermission
from cdc_lake.model.position import Lsn, OrderDomain, Span
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.source.base import FrameSource, PublishedTable, chooses, domain_of, select_tables
from cdc_lake.source.gaussdb.catalog import GaussDbCatalog, check_identities, tables_in_database, versions_of
from cdc_lake.source.gaussdb.server import GaussDbSettings, query_single_row, read_settings, target_of
from cdc_lake.source.gaussdb.slot import GaussDbSlotFacts
from cdc_lake.source.gaussdb.stream import GaussDbSlotFunctions, GaussDbStream
from cdc_lake.source.gaussdb.wire.session import WireSession, connect
from cdc_lake.source.polling import PollingStream
from cdc_lake.source.sql_text import literal
from cdc_lake.tables.control_tables import ControlTables

STANDBY_ONLY = "standby-connection"
"""The option with which a primary refuses to decode: not sent if the primary is read."""

Dial = Callable[[str, bool], WireSession]
"""Opens a session: its purpose, and whether it is for replication."""


def codec_of(project: Project, encoding: str) -> Codec:
    """The codec of the stream, with the pipeline's policy. Raises UnknownEncoding.

    A stream is in the database's encoding; the server converts results of SQL functions to UTF-8.
    """
    return codec_by_name(project, "UTF8" if reads_by_sql(project) else encoding)


def assembler_of(
    project: Project,
    domain: OrderDomain,
    encoding: str,
    note: Callable[[str], None] = lambda _: None,
    *,
    frames: FrameStoreFactory | None = None,
    captured: TableFilter | None = None,
) -> GaussDbAssembler:
    """The assembler of the stream's frames; `note` is called once for each kind of ignored line.

    `frames` makes stores for large transactions; None: all are in memory. `captured` filters rows; None: no filter.
    """
    style, batch = Style.SERIAL, False
    if project.family.decoding_mode is Mode.PARALLEL:
        options = effective_options(project.family)
        style, batch = Style(options["decode-style"][0]), as_number(options["sending-batch"]) == 1
    return GaussDbAssembler(
        style,
        batch=batch,
        domain=domain,
        codec=codec_of(project, encoding),
        confirms_csn=project.family.slot_order == "csn",
        keeps=lands(project),
        note=note,
        frames=frames,
        captured=captured,
    )


def tables_of(raw: RecordTransaction, layouts: RelationResolver) -> frozenset[TableName]:
    """The tables that a transaction changes. Raises DecodeError."""
    changed_tables: set[TableName] = set()
    for record in raw.records:
        match read_record(raw.style, record, layouts):
            case Row(table=table):
                changed_tables.add(table)
            case Truncated(tables=tables):
                changed_tables.update(tables)
    return frozenset(changed_tables)


def sends_more(project: Project) -> bool:
    """Whether the server sends rows of tables that are not captured: a white list cannot express all patterns."""
    listed = effective_options(project.family).get("white-table-list") or "*.*"
    return set(listed.split(",")) != set(project.family.tables)


def frames_of(
    project: Project, session: WireSession, start: int, *, on_standby: bool = False, looks: bool = False
) -> FrameSource:
    """Start to read the pipeline's slot after `start`, 0 for the slot's own position. Raises SourceError.

    `session` is a replication connection, in `mode: polling` an ordinary one; it is closed with the frames.
    `on_standby`: it is connected to a standby, as configured; otherwise to the primary. `looks`: nothing is
    acknowledged before everything after `start` was peeked at.
    """
    source = project.family
    options = effective_options(source)
    if not on_standby:
        options.pop(STANDBY_ONLY, None)
    if source.mode == "polling":
        interval, most = source.polling.interval / 1000, source.polling.max_changes
        functions = GaussDbSlotFunctions(session, project.slot, options)
        return PollingStream(functions, start, interval=interval, max_changes=most, looks=looks)
    serial = source.decoding_mode is Mode.SERIAL
    return GaussDbStream(
        session,
        project.slot,
        start,
        options,
        keepalives_confirm=serial and source.slot_order == "lsn",
        status_interval=source.reply_interval / 1000,
        silence=source.silence_timeout / 1000,
    )


def reads_by_sql(project: Project) -> bool:
    """Whether the slot is read by SQL functions, which need no replication connection."""
    return project.family.mode == "polling"


_TABLE = (
    "SELECT CAST(c.reltuples AS int8), c.relpages, pg_total_relation_size(c.oid), "
    "has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'), pg_has_role(c.relowner, 'USAGE') "
    "FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE n.nspname = {schema} AND c.relname = {name} AND c.relkind IN ('r', 'p')"
)


@dataclass(frozen=True, slots=True)
class GaussDbLimits:
    """The server's settings, and their usage; `senders_used` None if it is not visible."""

    settings: GaussDbSettings
    slots_used: int
    senders_used: int | None


@dataclass(frozen=True, slots=True)
class GaussDbRole:
    """The role of the session, and its privilege to replicate; None if the catalog does not show it."""

    name: str
    right: str | None


@contextmanager
def session_of(project: Project) -> Iterator[WireSession]:
    """A read-only SQL session on the source. Raises SourceError."""
    with connect(target_of(project.family, project.root)) as session:
        session.query("SET default_transaction_read_only = on", doing="opening the session")
        yield session


def limits(session: WireSession) -> GaussDbLimits:
    """The server's facts and limits. Raises SourceError."""
    slots = query_single_row(session, "SELECT count(*) FROM pg_replication_slots", "counting the slots")[0]
    settings, senders = read_settings(session), None
    with suppress(QueryRefused, SourcePermission):  # restricted to administrators in some products
        sql = "SELECT count(*) FROM pg_stat_replication"
        senders = int(query_single_row(session, sql, "counting the WAL senders")[0] or 0)
    return GaussDbLimits(settings, int(slots or 0), senders)


def role(session: WireSession) -> GaussDbRole:
    """The role of the session. Raises SourceError."""
    doing = "reading the role's privileges"
    name = query_single_row(session, "SELECT current_user", doing)[0] or ""
    try:
        roles = session.query("SELECT * FROM pg_roles WHERE rolname = current_user", doing=doing).records()
        return GaussDbRole(name, _right(session, roles[0], doing) if roles else None)
    except (QueryRefused, SourcePermission):
        return GaussDbRole(name, None)  # a product may hide roles, even the session's own


def captured_tables(project: Project, session: WireSession) -> list[TableName]:
    """The captured tables. Raises SourceError."""
    return select_tables(project.family.tables, sorted(tables_in_database(session)))


def family_tables(project: Project, session: WireSession) -> GaussDbCatalog:
    """The catalog of the tables as the pipeline's stream has them."""
    return GaussDbCatalog(session, skips_generated=project.family.skips_generated)


def catalog(
    project: Project, session: WireSession, names: Sequence[TableName]
) -> dict[TableName, GaussDbTableMetadata]:
    """The catalog's facts of these tables, without dropped ones. Raises SourceError."""
    ask = family_tables(project, session)
    return {name: facts for name in names if (facts := ask(name)) is not None}


def tables(session: WireSession, names: Sequence[TableName]) -> list[TableFacts]:
    """Size and privileges of these tables, in their order, without dropped ones. Raises SourceError."""
    facts = []
    for name in names:
        sql = _TABLE.format(schema=literal(name.schema), name=literal(name.name))
        for rows, pages, size, readable, owned in session.query(sql, doing=f"looking up {name}").rows:
            estimate = int(rows or 0)
            never = estimate < 0 or (estimate == 0 and pages == "0")  # before 14, PostgreSQL used 0 for both
            facts.append(TableFacts(name, None if never else estimate, int(size or 0), readable == "t", owned == "t"))
    return facts


def retained_wal_bytes(slot: GaussDbSlotFacts, end: Lsn) -> int | None:
    """Bytes of WAL the server keeps for a slot while its log ends at `end`."""
    return None if slot.restart is None else max(0, end.value - slot.restart.value)


def _right(session: WireSession, row: dict[str, str | None], doing: str) -> str | None:
    for column, right in (
        ("rolreplication", "by its REPLICATION attribute"),
        ("rolsystemadmin", "as a system administrator"),
        ("rolsuper", "as a system administrator"),
    ):
        if row.get(column) == "t":
            return right
    sql = "SELECT pg_has_role(oid, 'MEMBER') FROM pg_roles WHERE rolname = 'gs_role_replication'"
    member = session.query(sql, doing=doing).rows
    return "as a member of gs_role_replication" if member and member[0][0] == "t" else None


def family_changes(
    project: Project,
    session: WireSession,
    existing_tables: Mapping[TableName, int],
    state: StreamCheckpoint,
    control: ControlTables,
) -> TableChanges:
    """Compare the tables of the stream with those of the database, by OID. Raises SourceError, LakeError."""
    table_courses, members = courses(control.snapshots(), state.stream), table_sync.last_members(control, state)
    try:
        chosen = select_tables(project.family.tables, sorted(existing_tables))
    except NoTableMatches:  # a table was dropped at the source: its rows are in bronze
        changes = table_sync.changes_of((), (), existing_tables, table_courses, (), published=False, read=members)
        return TableChanges(left=changes.left, dropped=changes.dropped)
    landed = bronze_reader(project).layouts(None, Span(state.epoch, -1, state.upto)).values()
    new = {table for table in chosen if str(table) not in table_courses}
    came: set[TableName] = set()
    if project.pipeline.snapshot.copies:
        came = table_sync.newcomers(new, landed)
    carried = {*chosen, *(layout.table for layout in landed)}
    other = table_sync.moved_tables(_published_tables(session, chosen), members)
    return table_sync.changes_of(
        chosen, carried, existing_tables, table_courses, came, published=False, moved=other, read=members
    )


def _published_tables(session: WireSession, tables: Collection[TableName]) -> list[PublishedTable]:
    versions = versions_of(session, tables) if tables else {}
    return [PublishedTable(table, (), None, named_by(version), oid) for table, (oid, version) in versions.items()]


def settle_family(
    context: ReceiverContext, session: WireSession, state: StreamCheckpoint, ends: int
) -> tuple[TableName, ...]:
    """Adapt the records to `source.tables`; returns the tables to be copied. Nobody may read the stream meanwhile.
    `ends`: a position at or after everything committed by now. Raises SourceError, LakeError.
    """
    project, control, report = context.project, context.control, context.report
    existing_tables = tables_in_database(session)
    changes = family_changes(project, session, existing_tables, state, control)
    placed = copies_have_a_place(state)
    table_sync.leave(changes, changes.waiting if placed else changes.moved, control, state, report, ends)
    for table in sorted(changes.moved):
        report(ProgressEvent("connect", f"{table} is another table than before: it was renamed or recreated"))
    chosen = chooses(project.family.tables)
    members = _published_tables(session, [*filter(chosen, existing_tables)])
    if placed and not project.pipeline.snapshot.copies:
        table_sync.report_renamed(table_sync.renamed_tables(members, table_sync.last_members(control, state)), report)
    table_sync.note_members(members, control, state)
    if not placed:
        for table in changes.waiting:
            stays = table in changes.left or table in changes.moved
            words = "it stays as it is" if stays else "it starts with its changes from now on"
            text = (
                f"table {table} was added to a stream that is ordered by LSN: a copy would have no position in it, "
                f"{words}"
            )
            report(ProgressEvent("warning", text, facts={"code": CopyUnplaced.code}))
        return ()
    return tuple(table for table in changes.waiting if _has_identity(project, session, table, report))


def copies_have_a_place(state: StreamCheckpoint) -> bool:
    """Whether a table can be copied in parallel with the stream."""
    return domain_of(state.stream) is OrderDomain.CSN


def _has_identity(project: Project, session: WireSession, table: TableName, report: ProgressReporter) -> bool:
    try:
        check_identities(catalog(project, session, [table]), session.place)
    except NoReplicaIdentity as bare:
        report(ProgressEvent("warning", f"table {table} is not copied: {bare.message}", facts={"code": bare.code}))
        return False
    return True
