"""The doctor's look at a PostgreSQL: server, role, slot, publication, tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.errors import CdcLakeError, NoPrimary, NoReplicaIdentity, NoTableMatches, RowsHidden, SourcePermission
from cdc_lake.lake.control import control_tables
from cdc_lake.model.counting import counted
from cdc_lake.model.relation import TableName
from cdc_lake.pipeline.check.budget import budget_lines
from cdc_lake.pipeline.check.line import CheckLine, failed, listed, room, unchecked_text
from cdc_lake.pipeline.check.postgres_failover import failover_lines
from cdc_lake.pipeline.check.postgres_slot import slot_lines
from cdc_lake.pipeline.check.qhb import qhb_lines
from cdc_lake.pipeline.check.row_filters import row_filter_lines
from cdc_lake.pipeline.check.table_changes import table_change_lines
from cdc_lake.pipeline.ports.action import TableFacts
from cdc_lake.pipeline.postgres.captured import by_publication, captured, stated, wanted
from cdc_lake.pipeline.postgres.facts import (
    RoleFacts,
    ServerLimits,
    hiding,
    limits,
    reading,
    role,
    tables,
)
from cdc_lake.pipeline.postgres.reading import check_binary, stream_options
from cdc_lake.pipeline.postgres.tables import alterable, check_maker, table_changes
from cdc_lake.pipeline.state.streams import is_complete
from cdc_lake.pipeline.stream.table_changes import TableChanges
from cdc_lake.source import publication, slot
from cdc_lake.source.catalog import whole_identity, without_identity
from cdc_lake.source.connection import Session, connect
from cdc_lake.source.ddl import tells
from cdc_lake.source.locks import catalog_holders, holders_named
from cdc_lake.source.plugins import PGOUTPUT
from cdc_lake.source.product import OLDEST, Product
from cdc_lake.source.quoting import identifier, quoted
from cdc_lake.source.server import decodes, names_standby, setting


def findings(project: Project) -> Iterator[CheckLine]:
    """One line a finding. Raises SourceError where the server cannot be asked."""
    where = project.postgres
    with reading(project) as session:
        facts = limits(session, where)
        yield CheckLine(ok=True, subject="server", text=f"{facts.product} at {where.place}, as {where.user}")
        yield from qhb_lines(where, facts.product)
        yield from _server(project, session, facts)
        yield from language_lines(facts.messages)
        yield from unchecked_text(project, session.info.parameter_status("server_encoding") or "")
        rights = role(session)
        yield from _role(project, rights)
        found = slot.find_slot(session, project.slot)
        yield from slot_lines(project, session, found)
        if found is not None:
            yield from budget_lines(project, found.retained, found.safe)
        yield from failover_lines(project, session, facts)
        yield from _tables(project, session, rights)
        yield from _options(project, session, facts.product)
        yield from _prepares(project, session)


def _options(project: Project, session: Session, server: Product) -> Iterator[CheckLine]:
    """What pgoutput is asked for beside the publication."""
    try:
        stream_options(project, server)
        check_binary(project, session)
    except NoTableMatches:
        return  # said before
    except CdcLakeError as error:
        yield failed("decoding", error)
        return
    if project.postgres.slot.plugin == PGOUTPUT and project.postgres.decoding.messages:
        text = "altered tables are told in the stream" if (there := tells(session)) else "no event trigger tells of it"
        fix = "" if there else "cdc-lake check --ddl  prints the SQL of one; without it the catalog of now is asked"
        yield CheckLine(ok=True if there else None, subject="DDL", text=text, fix=fix)


def _prepares(project: Project, session: Session) -> Iterator[CheckLine]:
    """Whether what `two_phase` asks for can ever come."""
    if not project.postgres.decoding.two_phase:
        return
    if setting(session, "max_prepared_transactions") == "0":
        text = "`two_phase` is asked for, and the server lets nobody prepare a transaction"
        fix = "take `two_phase` out of `source.decoding`, or set max_prepared_transactions on the server"
        yield CheckLine(ok=None, subject="two_phase", text=text, fix=fix)


def _server(project: Project, session: Session, facts: ServerLimits) -> Iterator[CheckLine]:
    if (product := facts.product).major < OLDEST:
        oldest = f"{product.name} {product.oldest}"
        fix = f"upgrade the server to {oldest} or later"
        yield CheckLine(ok=False, subject="version", text=f"older than {oldest}", fix=fix, code="SRC208")
    if facts.in_recovery:
        fix = "point `source.host` at the primary, or name several `source.hosts`"
        yield CheckLine(ok=False, subject="server", text="this is a standby", fix=fix, code=NoPrimary.code)
    logical = decodes(facts)
    fix = "ALTER SYSTEM SET wal_level = logical;  then restart the server"
    yield CheckLine(ok=logical, subject="wal_level", text=facts.wal_level, fix="" if logical else fix, code="SRC208")
    have = slot.find_slot(session, project.slot) is not None
    # the first copy holds a temporary slot beside the lasting one; of one with two-phase decoding copies are read
    needed = int(project.postgres.decoding.two_phase) if have else 2
    yield room("replication slots", facts.slots_used, facts.slots_max, needed, "max_replication_slots", "SRC211")
    if project.postgres.streams:
        yield room("WAL senders", facts.senders_used, facts.senders_max, 1, "max_wal_senders", "SRC207")
    if facts.keep_size == "-1":
        fix = "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB';  bounds it: a slot that falls further behind is lost"
        text = "unlimited: a pipeline that stands still fills the server's disk"
        yield CheckLine(ok=None, subject="WAL kept for slots", text=text, fix=fix)
    else:
        yield CheckLine(ok=True, subject="WAL kept for slots", text=f"at most {facts.keep_size}")
    yield from _synchronous(project, session)
    for holder in catalog_holders(session):
        text = f"{holder}, exclusively: decoding may wait for it, and a COMMIT that waits for the receiver never ends"
        yield CheckLine(ok=None, subject="catalog locks", text=text, fix=holder.remedy)


def _synchronous(project: Project, session: Session) -> Iterator[CheckLine]:
    """Whether commits at the source wait for this receiver."""
    name = f"cdc_lake {project.name} stream"
    if not names_standby(setting(session, "synchronous_standby_names"), name):
        return
    subject, fix = "synchronous_standby_names", ""
    if not project.postgres.streams:
        text = "commits may wait for ever: SQL functions (`mode: polling`) are no standby and never answer"
        fix = "take the receiver out of synchronous_standby_names, or read with `mode: stream`"
    elif not (state := bronze_reader(project).state()) or not is_complete(state, control_tables(project)):
        text = "commits wait until the initial copy is made and the receiver streams"
        fix = "run `cdc-lake run --once` first, then name the receiver in synchronous_standby_names"
    else:
        text = "commits of this server, in every database, may wait until bronze holds them"
    yield CheckLine(ok=None, subject=subject, text=text, fix=fix)


def language_lines(messages: str) -> Iterator[CheckLine]:
    """A warning where a server's `lc_messages` is none of English: refused connections are told apart by words."""
    language = messages.partition(".")[0].lower()
    if language in {"", "c", "posix"} or language.startswith("en"):
        return
    text = f"{messages}: a changed password would be told as a server that is away (SRC201), and tried again"
    fix = "ALTER SYSTEM SET lc_messages = 'C';  SELECT pg_reload_conf();"
    yield CheckLine(ok=None, subject="lc_messages", text=text, fix=fix)


def _role(project: Project, rights: RoleFacts) -> Iterator[CheckLine]:
    may = rights.replication or rights.superuser
    fix = f"ALTER ROLE {identifier(rights.name)} REPLICATION;"
    text = "may replicate" if may else "lacks the REPLICATION attribute"
    yield CheckLine(ok=may, subject="role", text=f"{rights.name} {text}", fix="" if may else fix, code="SRC205")
    if may and project.postgres.streams:
        try:
            connect(project.postgres, project.root, replication=True).close()
        except CdcLakeError as error:
            yield failed("replication", error)
        else:
            yield CheckLine(ok=True, subject="replication", text="a replication connection is accepted")


def _tables(project: Project, session: Session, rights: RoleFacts) -> Iterator[CheckLine]:
    try:
        with holders_named(session, project.postgres.tables):
            names = captured(project, session)
        if not is_complete(bronze_reader(project).state(), control_tables(project)):
            check_maker(project, session)
        exists = _published(project, session)
        chosen = wanted(project, session)
    except CdcLakeError as error:
        yield failed("tables" if isinstance(error, NoTableMatches) else "publication", error)
        return
    yield from row_filter_lines(project, session)
    facts = tables(session, chosen)
    bare = without_identity(session, chosen)
    for name in bare:
        fix = f"add a primary key, or: {whole_identity(name)};"
        text = f"{name} has no primary key and no replica identity"
        yield CheckLine(ok=False, subject="identity", text=text, fix=fix, code=NoReplicaIdentity.code)
    found = None if exists is False else _changes(project, session)
    if exists is not None:
        later = found.lacking if found is not None and alterable(project) else ()  # the next start publishes them
        there = [name for name in chosen if name not in later]
        yield _publication(project, names, there, facts, bare, exists=exists, may_create=rights.create_in_database)
    unreadable = [f.table for f in facts if not f.readable]
    if unreadable:
        fix = "\n".join(f"GRANT SELECT ON {quoted(t)} TO {identifier(rights.name)};" for t in unreadable)
        text = f"no right to read {listed(unreadable)}"
        yield CheckLine(ok=False, subject="tables", text=text, fix=fix, code="SRC224")
    hidden = hiding(session, chosen)
    if hidden:
        text = f"row security hides rows of {listed(hidden)} from the role"
        fix = f"a superuser runs: {_all_rows(rights.name)}"
        yield CheckLine(ok=False, subject="tables", text=text, fix=fix, code=RowsHidden.code)
    known = [f.rows for f in facts if f.rows is not None]
    rows = f"about {counted(sum(known), 'row')}" if len(known) == len(facts) else "rows not counted yet by the server"
    yield CheckLine(ok=True, subject="tables", text=f"{len(chosen)}: {listed(chosen)}; {rows}")
    if found is not None:
        refused = publication.not_addable(session, project.publication, found.lacking) if alterable(project) else []
        if refused:
            text = f"{listed(refused)} came, and this role may not publish it: it has to own table and publication"
            statement = publication.altering(project.publication, "ADD", *refused, filters=stated(project))
            fix = f"a superuser runs: {statement};"
            yield CheckLine(ok=False, subject="tables", text=text, fix=fix, code=SourcePermission.code)
        may = tuple(table for table in found.lacking if table not in refused)
        yield from table_change_lines(project, replace(found, lacking=may), publishes=alterable(project))


def _changes(project: Project, session: Session) -> TableChanges | None:
    """What came to `source.tables` or went; None before a stream is begun whole."""
    state, control = bronze_reader(project).state(), control_tables(project)
    if not is_complete(state, control):
        return None
    return table_changes(project, session, state, control)


def _published(project: Project, session: Session) -> bool | None:
    """Whether the publication is there; None where the plugin takes none. Raises SourceError."""
    return publication.publication_exists(session, project.publication) if by_publication(project) else None


def _publication(
    project: Project,
    names: list[TableName],
    chosen: list[TableName],
    facts: list[TableFacts],
    bare: list[TableName],
    *,
    exists: bool,
    may_create: bool,
) -> CheckLine:
    name = project.publication
    if exists:
        try:
            publication.check_published(name, names, chosen, stated(project))
        except CdcLakeError as error:
            return failed("publication", error)
        return CheckLine(ok=True, subject="publication", text=f"{name} carries {counted(len(names), 'table')}")
    foreign = [f.table for f in facts if not f.owned]
    if may_create and not foreign:
        return CheckLine(ok=True, subject="publication", text=f"{name}: made by the first run")
    why = f"{listed(foreign)} belong to others" if foreign else "no CREATE right in the database"
    return CheckLine(
        ok=False,
        subject="publication",
        text=f"{name} is not there, and this role cannot make it: {why}",
        fix="\n".join([*_identities(bare), f"{publication.creating(name, chosen, stated(project))};"]),
        code="SRC224",
    )


def _identities(bare: list[TableName]) -> list[str]:
    """What tables without an identity need before they are published: their updates would be refused otherwise."""
    return [f"{whole_identity(table)};" for table in bare]


def _lacking(project: Project, session: Session, chosen: list[TableName]) -> list[TableName]:
    """What a publication that is there does not carry, and a start does not add to it."""
    carried = {one.table for one in publication.published(session, project.publication)}
    lacking = [table for table in chosen if table not in carried]
    return publication.not_addable(session, project.publication, lacking) if alterable(project) else lacking


def _all_rows(role: str) -> str:
    return f"ALTER ROLE {identifier(role)} BYPASSRLS;"


def dba_sql(project: Project) -> str:
    """The SQL a superuser runs so that the pipeline's role can do everything. Raises SourceError for no connection."""
    with reading(project) as session:
        chosen = wanted(project, session)
        facts, rights = limits(session, project.postgres), role(session)
        hidden = hiding(session, chosen)
        exists = _published(project, session)
        bare = [] if exists else without_identity(session, chosen)
        lacking = _lacking(project, session, chosen) if exists else []
    user, lines = identifier(rights.name), []
    if not decodes(facts):
        lines.append("ALTER SYSTEM SET wal_level = logical;  -- then restart the server")
    if not rights.replication and not rights.superuser:
        lines.append(f"ALTER ROLE {user} REPLICATION;")
    if hidden:
        lines.append(_all_rows(rights.name))
    lines += [f"GRANT USAGE ON SCHEMA {identifier(s)} TO {user};" for s in sorted({t.schema for t in chosen})]
    lines += [f"GRANT SELECT ON {quoted(t)} TO {user};" for t in chosen]
    if bare:
        lines += ["-- without a primary key; rather add one, otherwise the server has to log whole old rows:"]
        lines += _identities(bare)
    if exists is False:
        lines.append(f"{publication.creating(project.publication, chosen, stated(project))};")
    if lacking:
        lines.append(f"{publication.altering(project.publication, 'ADD', *lacking, filters=stated(project))};")
    return "\n".join([f"-- for pipeline {project.name}, as a superuser in {project.postgres.database}", *lines])
