"""Determines what a pipeline captures of a PostgreSQL, and the options and decoder for the slot's plugin.

The publication selects the tables, or the patterns of `tables` with a plugin that uses no publication.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

from cdc_lake.bronze.contract import StreamCheckpoint, Tabulate
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.connectors.open_stream import by_policy, codec_by_name, in_hex, lands
from cdc_lake.connectors.table_sync import Member, named_tables
from cdc_lake.control.snapshots import TableTimeline, courses
from cdc_lake.decode.gaussdb.columnar import tabulate as tabulate_lines
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.decode.gaussdb.undecodable import GaussDbFormat
from cdc_lake.decode.hashing import Hashing
from cdc_lake.decode.pgoutput.assembler import Assembler
from cdc_lake.decode.pgoutput.binary_values import reader_of
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.pgoutput.relations import DdlMessages, Landed, TableFacts
from cdc_lake.decode.pgoutput.spooled import PreparedStorage
from cdc_lake.decode.test_decoding import LineAssembler
from cdc_lake.decode.transaction import FrameStoreFactory
from cdc_lake.decode.undecodable import PgoutputFormat
from cdc_lake.errors import PublicationAltered
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.source.base import PublishedTable, TransactionAssembler, select_tables
from cdc_lake.source.postgres import catalog, publication
from cdc_lake.source.postgres.catalog import RowTables, SourceCatalog, relation_of, takes
from cdc_lake.source.postgres.connection import Session, command, encoding_of
from cdc_lake.source.postgres.plugins import LINE_OPTIONS, PGOUTPUT, PHASED_LINE_OPTIONS, chosen, message_options
from cdc_lake.source.postgres.publication import RowFilter, interpret_filters, member_of, publication_exists
from cdc_lake.source.postgres.server import Product
from cdc_lake.source.postgres.slot_peek import Changed, by_lines, by_messages
from cdc_lake.tables.control_tables import control_tables


def by_publication(project: Project) -> bool:
    """Whether a publication determines what is captured."""
    return project.postgres.slot.plugin == PGOUTPUT


def carried_tables(project: Project, session: Session) -> list[PublishedTable]:
    """The tables in the stream, sorted. Raises PublicationMissing, NoTableMatches."""
    if by_publication(project):
        return publication.load_published_tables(session, project.publication)
    return catalog.load_matching_tables(session, project.postgres.tables)


def chosen_tables(project: Project, session: Session) -> list[TableName]:
    """The tables that match the patterns now and that the plugin can show. Raises NoTableMatches."""
    return select_tables(project.postgres.tables, in_database(project, session))


def declared_filters(project: Project) -> dict[TableName, str]:
    """The conditions of `source.row_filters`, as written."""
    return {TableName.parse(name): condition for name, condition in project.postgres.row_filters.items()}


def filters(
    project: Project, session: Session, tables: Collection[TableName], gone: Collection[str] = ()
) -> dict[TableName, RowFilter]:
    """The filters of `source.row_filters`, as the server prints them; `tables`: captured tables, `gone`: formerly
    captured ones that may no longer exist. Raises RowFilterUnfit, SourceError.
    """
    conditions = {
        name: condition
        for name, condition in declared_filters(project).items()
        if name in tables or str(name) not in gone
    }
    return interpret_filters(session, conditions, tables)


def in_database(project: Project, session: Session) -> list[TableName]:
    """The tables of the database that the plugin can show. Raises SourceError."""
    if by_publication(project):
        return publication.tables_in_database(session)
    return sorted(catalog.tables_in_database(session))


def captured_tables(project: Project, session: Session) -> list[TableName]:
    """The tables in the stream, or those it will contain if there is no publication yet. Raises SourceError."""
    if by_publication(project) and publication.publication_exists(session, project.publication):
        return [p.table for p in publication.load_published_tables(session, project.publication)]
    return chosen_tables(project, session)


def layout_now(project: Project, session: Session, table: TableName) -> Relation | None:
    """The current layout of a table in the stream, None if the stream does not contain it. Raises SourceError."""
    if not by_publication(project):
        return catalog.layout_of(session, table)
    if not publication.publication_exists(session, project.publication):
        return relation_of(session, table, None)
    published_tables = publication.load_published_tables(session, project.publication)
    columns = next((p.columns for p in published_tables if p.table == table), None)
    return None if columns is None else relation_of(session, table, columns)


def plugin_options(project: Project) -> Mapping[str, str]:
    """The plugin options that are always set: enough to see which transactions exist."""
    return message_options(project.publication) if by_publication(project) else LINE_OPTIONS


def needs_two_phase(project: Project) -> bool:
    """Whether the slot must be created with two-phase decoding: pgoutput enables it by reading."""
    return not by_publication(project) and project.postgres.decoding.two_phase


def stream_options(project: Project, server: Product) -> Mapping[str, str]:
    """All options for the stream of a server, however it is read. Raises OptionRefused."""
    if not by_publication(project):
        return PHASED_LINE_OPTIONS if needs_two_phase(project) else LINE_OPTIONS
    source = project.postgres
    more = chosen(server.major, source.decoding, str(server), streams=source.streams)
    return {**plugin_options(project), **more}


def changed_whole(project: Project, server: Product, session: Session) -> Changed:
    """How to determine, from a slot that sends whole transactions, which of them changed captured tables."""
    if not by_publication(project):
        return by_lines(takes(session, project.postgres.tables))
    asked = project.postgres.decoding.model_copy(update={"proto_version": 1, "two_phase": False})
    return by_messages({**plugin_options(project), **chosen(server.major, asked, str(server), streams=False)})


def check_binary(project: Project, session: Session) -> None:
    """Raise UnreadBinary if values are to be sent in binary, and the type of a captured column is not supported."""
    if not (by_publication(project) and project.postgres.decoding.binary):
        return
    tables: dict[TableName, tuple[str, ...] | None]
    if publication_exists(session, project.publication):
        tables = {source_table.table: source_table.columns for source_table in carried_tables(project, session)}
    else:
        tables = dict.fromkeys(chosen_tables(project, session))
    for table, columns in tables.items():
        for column in relation_of(session, table, columns).columns:
            reader_of(table, column)


def reading_of(
    project: Project,
    session: Session,
    layouts: Callable[[], Session],
    state: StreamCheckpoint,
    report: ProgressReporter,
    frames: FrameStoreFactory,
    hashing: Hashing,
    prepared_storage: PreparedStorage | None,
    members: Mapping[str, Member],
) -> tuple[TransactionAssembler, Tabulate, Tabulate]:
    """What makes transactions, columns, and columns of repeated transactions.

    `session` resolves relations; `layouts` opens another session for lines, which name tables, columns and types
    themselves: the catalog provides the rest.

    `frames` makes stores for large transactions. `prepared_storage` stores prepared ones, with two-phase decoding.
    `hashing` makes digests of large chunks. `members`: see `connectors.table_sync`.
    """
    keeps, landed = lands(project), state.upto
    if by_publication(project):
        asked = project.postgres.decoding.messages

        def course(table: str) -> TableTimeline | None:
            return courses(control_tables(project).snapshots(), state.stream).get(table)

        def warn(text: str) -> None:
            report(ProgressEvent("warning", text))

        assembler = Assembler(
            WatchedCatalog(session, project.publication, members, course),
            keeps=keeps,
            # redaction drops all messages, so nothing would remain of one outside of transactions
            messages=asked and not project.pipeline.bronze.redact,
            ddl_messages=DdlMessages(bronze_reader(project).latest_layouts(state.epoch), warn) if asked else None,
            frames=frames,
            prepared_storage=prepared_storage,
            landed=landed,
            layouts=_landed_layouts(project, state),
        )
        decoded = PgoutputFormat(partial(tabulate, in_hex=in_hex(project), hashing=hashing))
        columns = by_policy(project, decoded, report)
        return assembler, columns, columns
    session = layouts()
    print_whole_names(session)
    stored = encoding_of(session)  # SQL functions convert to UTF-8, if the server can
    as_utf8 = project.postgres.mode == "polling" and stored != "SQL_ASCII"
    codec = codec_by_name(project, "UTF8" if as_utf8 else stored)
    takes_table = takes(session, project.postgres.tables)
    known_relations = bronze_reader(project).latest_layouts(state.epoch)

    def make_layouts() -> RelationResolver:
        catalog = RowTables(session)
        return RelationResolver(
            catalog,
            codec,
            known_relations=known_relations,
            takes=takes_table,
            takes_back=False,
            versions=catalog.versions,
            members=named_tables(members),
        )

    again, tabulate_rows = make_layouts(), partial(tabulate_lines, hashing=hashing)
    return (
        LineAssembler(codec, takes_table, keeps=keeps, frames=frames, prepared_storage=prepared_storage, landed=landed),
        by_policy(project, GaussDbFormat(make_layouts(), project.postgres.slot.plugin, tabulate_rows), report),
        lambda batch: tabulate_lines(batch, again),
    )


def _landed_layouts(project: Project, state: StreamCheckpoint) -> Landed:
    """The last landed layout of a table: from the newest files, or else from any file that has one."""
    reader = bronze_reader(project)
    recent = {layout.oid: layout for layout in reader.latest_layouts(state.epoch) if layout.oid is not None}

    def last_layout(oid: int, table: TableName) -> Relation | None:
        return recent.get(oid) or reader.last_layout(state.epoch, table)

    return last_layout


def print_whole_names(session: Session) -> None:
    """Clear the search path, so that the server prints types with their schema in lines as in the catalog."""
    command(session.pgconn, "SET search_path TO ''", "clearing the search path")


@dataclass
class WatchedCatalog:
    """A catalog that checks, whenever a table is announced, whether the publication is as when it was last read.

    PostgreSQL announces a table again with its first change after its publication was altered.
    """

    session: Session
    publication: str
    members: Mapping[str, Member]
    course: Callable[[str], TableTimeline | None]

    def __post_init__(self) -> None:
        self._catalog = SourceCatalog(self.session)
        self._names = {member.oid: name for name, member in self.members.items() if member.oid is not None}

    def __call__(self, oid: int, table: TableName) -> TableFacts:
        """As `SourceCatalog`; raises PublicationAltered."""
        member, name = self.members.get(str(table)), self._names.get(oid)
        if member is not None or name is not None:
            self._check(oid, table, member)
        facts = self._catalog(oid, table)
        if name not in {None, str(table)} and (course := self.course(str(name))) is not None and not course.waits:
            facts = replace(facts, member=(TableName.parse(str(name)), course.stretches[-1].begins))
        root = facts.published_as
        if root is not None and (str(table) in self.members or str(root.table) not in self.members):
            return replace(facts, published_as=None)
        return facts

    def _check(self, oid: int, table: TableName, member: Member | None) -> None:
        # if the table or publication is gone, the stream itself shows what follows
        current_entry = member_of(self.session, self.publication, oid)
        if current_entry is None:
            return
        now, entry = current_entry
        name = self._names.get(oid)
        if now != table and (name is None or name in {str(table), str(now)}):
            return  # decoded from before the table was renamed, or while it had another name
        if now != table or member is None:
            text = f"table {name} was renamed to {now}"
        elif member.oid not in {None, oid}:
            text = f"{table} is another table than before: it was renamed or recreated"
        elif entry != member.entry:
            text = f"publication `{self.publication}` was altered: it publishes table {table} differently than before"
        else:
            return
        raise PublicationAltered(text)
