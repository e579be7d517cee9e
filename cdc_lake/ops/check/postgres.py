"""The checks of `check` on PostgreSQL or QHB.

Server and release, role, slot compared with bronze, publication, row filters, tables, and failovers: past ones, and
whether the next one would succeed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cdc_lake import errors
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.fields import parse_release
from cdc_lake.config.project import Project
from cdc_lake.config.source import PostgresSource, protocol_of
from cdc_lake.connectors.base import TableFacts
from cdc_lake.connectors.postgres import server_checks
from cdc_lake.connectors.postgres.decoding import (
    by_publication,
    captured_tables,
    check_binary,
    chosen_tables,
    declared_filters,
    stream_options,
)
from cdc_lake.connectors.postgres.snapshot import alterable, check_filters, check_maker, table_changes
from cdc_lake.connectors.table_sync import TableChanges
from cdc_lake.control.ownership import check_own_bronze, unclaimed_slot
from cdc_lake.control.streams import is_complete, starts_over
from cdc_lake.model.diagnostic import pluralize
from cdc_lake.model.relation import TableName
from cdc_lake.ops.findings import (
    CheckLine,
    budget_lines,
    count_rows,
    failure_line,
    list_names,
    room,
    table_change_lines,
    unchecked_text,
)
from cdc_lake.source.postgres import publication, server, slot
from cdc_lake.source.postgres.catalog import tells, whole_identity, without_identity
from cdc_lake.source.postgres.connection import Session, connect, translate_errors
from cdc_lake.source.postgres.plugins import PGOUTPUT
from cdc_lake.source.postgres.slot import SlotFacts
from cdc_lake.source.sql_text import identifier, quote_table
from cdc_lake.tables.control_tables import control_tables


def failover_lines(project: Project, session: Session, limits: server_checks.ServerLimits) -> Iterator[CheckLine]:
    """Whether bronze is in the server's history, and whether a promoted standby would have the slot."""
    yield from _history(project)
    if limits.in_recovery:
        return
    wanted, place = project.postgres.slot.failover, project.postgres.place
    if wanted:
        try:
            server.check_failover(limits, place, two_phase=project.postgres.decoding.two_phase)
        except errors.ServerSettings as error:
            yield failure_line("failover", error)
            return
    if limits.product.major >= server.FAILOVER_SLOTS and (standbys := _standbys(session)):
        yield _failover_line(standbys, _waited_for(session), wanted=wanted)


def _history(project: Project) -> Iterator[CheckLine]:
    state, control = bronze_reader(project).state(), control_tables(project)
    if not is_complete(state, control):
        return
    try:
        with server_checks.session_of(project, replication=project.postgres.streams) as replication:
            timeline, _ = server_checks.check_same(
                project, replication, server.identify(replication, project.postgres), state, control
            )
    except errors.CdcLakeError as error:
        yield failure_line("history", error)
    else:
        text = f"everything that bronze contains is in the server's WAL (timeline {timeline.number})"
        yield CheckLine(ok=True, subject="history", text=text)


def _failover_line(standbys: list[str], waited: str, *, wanted: bool) -> CheckLine:
    """The effect of a failover on the stream."""
    many = "a standby" if len(standbys) == 1 else f"{len(standbys)} standbys"
    if not wanted:
        text = f"the server has {many}, which will not have the slot: after a failover every table is copied again"
        return CheckLine(ok=None, subject="failover", text=text, fix="source.slot.failover: true")
    if not waited:
        text = f"the stream does not wait for {many}: bronze may contain changes that a promoted standby never received"
        fix = f"ALTER SYSTEM SET synchronized_standby_slots = '{', '.join(standbys)}';  those that may be promoted"
        return CheckLine(ok=None, subject="failover", text=text, fix=fix)
    text = f"the slot is synchronized to standbys; the stream waits for {waited}"
    return CheckLine(ok=True, subject="failover", text=text)


def _standbys(session: Session) -> list[str]:
    """The physical slots: each belongs to a standby."""
    with translate_errors("looking up standbys"):
        rows = session.execute(
            "SELECT slot_name::text FROM pg_replication_slots WHERE slot_type = 'physical' ORDER BY slot_name"
        ).fetchall()
    return [str(row[0]) for row in rows]


def _waited_for(session: Session) -> str:
    with translate_errors("reading the server's settings"):
        row = session.execute("SELECT current_setting('synchronized_standby_slots', true)").fetchone()
    return "" if row is None or row[0] is None else str(row[0])


def slot_line(  # noqa: PLR0911  # one return a state
    project: Project, session: Session, slot_facts: SlotFacts | None
) -> CheckLine:
    """Whether the slot can be created, or resumed. Raises SourceError."""
    state, control = bronze_reader(project).state(), control_tables(project)
    try:
        check_own_bronze(project, state, control)
    except errors.CdcLakeError as error:
        return failure_line("slot", error)
    again = starts_over(state, control)
    if slot_facts is None and again:
        return CheckLine(ok=True, subject="slot", text=f"{project.slot}: created by the next run, with a new stream")
    if slot_facts is None and state is None:
        return CheckLine(ok=True, subject="slot", text=f"{project.slot}: created by the first run")
    if slot_facts is not None and server_checks.left_by_a_start(project, session, slot_facts, state):
        text = f"{project.slot} remains from an interrupted start: the next run recreates it"
        return CheckLine(ok=True, subject="slot", text=text)
    if slot_facts is not None and (state is None or again):
        return failure_line("slot", unclaimed_slot(project, bronze_reader(project).place, state))
    assert state is not None
    try:
        facts = server_checks.check_own_slot(project, slot_facts, project.postgres.database, state.confirm)
    except errors.CdcLakeError as error:
        return failure_line("slot", error)
    if facts.active_pid is not None:
        text = f"{project.slot} is read by server process {facts.active_pid}"
        fix = "a second run would wait for it: stop the other receiver first"
        return CheckLine(ok=None, subject="slot", text=text, fix=fix, code="SRC213")
    return CheckLine(ok=True, subject="slot", text=f"{project.slot} is free, confirmed up to {facts.confirmed}")


def qhb_lines(source: PostgresSource, product: server.Product) -> Iterator[CheckLine]:
    """Differences from PostgreSQL, if the pipeline states QHB."""
    if source.type != "qhb":
        return
    if product.name == "QHB":
        newest = protocol_of(parse_release(product.release))
        text = f"read as PostgreSQL {product.major}: pgoutput's protocol up to version {newest}, no slots on standbys"
        yield CheckLine(ok=True, subject="release", text=text)
    if not product.names_qhb:
        text = f"version() does not name QHB: {product.says}"
        fix = "check that this is the intended server; for PostgreSQL: `source.type: postgres`"
        yield CheckLine(ok=None, subject="release", text=text, fix=fix)
    text = "cdc_lake has never been run against a QHB: only its manual indicates that this works"
    fix = "cdc-lake compare  after the first run: it verifies the rows"
    yield CheckLine(ok=None, subject="proof", text=text, fix=fix)


def row_filter_lines(project: Project, session: Session) -> Iterator[CheckLine]:
    """One line, if the pipeline has filters."""
    if not project.postgres.row_filters:
        return
    try:
        check_filters(project, session, bronze_reader(project).state(), control_tables(project))
    except errors.SourceError as error:
        yield failure_line("row filters", error)
        return
    text = f"only rows that satisfy a condition are captured of {list_names(sorted(declared_filters(project)))}"
    yield CheckLine(ok=True, subject="row filters", text=text)


def findings(project: Project) -> Iterator[CheckLine]:
    """One line per finding. Raises SourceError if the server is unreachable."""
    where = project.postgres
    with server_checks.reading(project) as session:
        facts = server_checks.limits(session, where)
        yield CheckLine(ok=True, subject="server", text=f"{facts.product} at {where.place}, as {where.user}")
        yield from qhb_lines(where, facts.product)
        yield from _server(project, session, facts)
        yield from language_lines(facts.messages)
        yield from unchecked_text(project, session.info.parameter_status("server_encoding") or "")
        rights = server_checks.role(session)
        yield from _role(project, rights)
        slot_facts = slot.find_slot(session, project.slot)
        yield slot_line(project, session, slot_facts)
        if slot_facts is not None:
            yield from budget_lines(project, slot_facts.retained, slot_facts.safe)
        yield from failover_lines(project, session, facts)
        yield from _tables(project, session, rights)
        yield from _options(project, session, facts.product)
        yield from _prepares(project, session)


def _options(project: Project, session: Session, product: server.Product) -> Iterator[CheckLine]:
    """The options of pgoutput besides the publication."""
    try:
        stream_options(project, product)
        check_binary(project, session)
    except errors.NoTableMatches:
        return  # reported before
    except errors.CdcLakeError as error:
        yield failure_line("decoding", error)
        return
    if project.postgres.slot.plugin == PGOUTPUT and project.postgres.decoding.messages:
        if tells(session):
            yield CheckLine(ok=True, subject="DDL", text="altered tables are reported in the stream")
            return
        fix = "cdc-lake check --ddl  prints the SQL of one; without it the current catalog is read"
        yield CheckLine(ok=None, subject="DDL", text="no event trigger reports altered tables", fix=fix)


def _prepares(project: Project, session: Session) -> Iterator[CheckLine]:
    """Whether the server supports `two_phase`."""
    if not project.postgres.decoding.two_phase:
        return
    if server.setting(session, "max_prepared_transactions") == "0":
        text = "`two_phase` is configured, but the server does not allow prepared transactions"
        fix = "remove `two_phase` from `source.decoding`, or set max_prepared_transactions on the server"
        yield CheckLine(ok=None, subject="two_phase", text=text, fix=fix)


def _server(project: Project, session: Session, facts: server_checks.ServerLimits) -> Iterator[CheckLine]:
    if (product := facts.product).major < server.OLDEST:
        oldest = f"{product.name} {product.oldest}"
        fix = f"upgrade the server to {oldest} or later"
        yield CheckLine(ok=False, subject="version", text=f"older than {oldest}", fix=fix, code="SRC208")
    if facts.in_recovery:
        fix = "set `source.host` to the primary, or name several `source.hosts`"
        yield CheckLine(ok=False, subject="server", text="this is a standby", fix=fix, code=errors.NoPrimary.code)
    logical = server.decodes(facts)
    fix = "ALTER SYSTEM SET wal_level = logical;  then restart the server"
    yield CheckLine(ok=logical, subject="wal_level", text=facts.wal_level, fix="" if logical else fix, code="SRC208")
    have = slot.find_slot(session, project.slot) is not None
    # the first copy needs a temporary slot besides the permanent one; with two-phase decoding, copies are read
    needed = int(project.postgres.decoding.two_phase) if have else 2
    yield room("replication slots", facts.slots_used, facts.slots_max, needed, "max_replication_slots", "SRC211")
    if project.postgres.streams:
        yield room("WAL senders", facts.senders_used, facts.senders_max, 1, "max_wal_senders", "SRC207")
    if facts.keep_size == "-1":
        fix = "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB';  bounds it: a slot that falls further behind is lost"
        text = "unlimited: a pipeline that is stopped fills the server's disk"
        yield CheckLine(ok=None, subject="WAL retained for slots", text=text, fix=fix)
    else:
        yield CheckLine(ok=True, subject="WAL retained for slots", text=f"at most {facts.keep_size}")
    yield from _synchronous(project, session)
    for holder in server.catalog_holders(session):
        text = f"{holder}, exclusively: decoding may wait for it, and a COMMIT that waits for the receiver never ends"
        yield CheckLine(ok=None, subject="catalog locks", text=text, fix=holder.remedy)


def _synchronous(project: Project, session: Session) -> Iterator[CheckLine]:
    """Whether commits at the source wait for this receiver."""
    name = f"cdc_lake {project.name} stream"
    if not server.names_standby(server.setting(session, "synchronous_standby_names"), name):
        return
    subject, fix = "synchronous_standby_names", ""
    if not project.postgres.streams:
        text = "commits may wait forever: SQL functions (`mode: polling`) are not a standby and never acknowledge"
        fix = "remove the receiver from synchronous_standby_names, or read with `mode: stream`"
    elif not (state := bronze_reader(project).state()) or not is_complete(state, control_tables(project)):
        text = "commits wait until the initial copy is made and the receiver streams"
        fix = "run `cdc-lake run --once` first, then name the receiver in synchronous_standby_names"
    else:
        text = "commits of this server, in every database, may wait until bronze contains them"
    yield CheckLine(ok=None, subject=subject, text=text, fix=fix)


def language_lines(messages: str) -> Iterator[CheckLine]:
    """A warning if `lc_messages` is not English: refused connections are classified by words."""
    language = messages.partition(".")[0].lower()
    if language in {"", "c", "posix"} or language.startswith("en"):
        return
    text = f"{messages}: a changed password would be reported as an unreachable server (SRC201), and retried"
    fix = "ALTER SYSTEM SET lc_messages = 'C';  SELECT pg_reload_conf();"
    yield CheckLine(ok=None, subject="lc_messages", text=text, fix=fix)


def _role(project: Project, rights: server_checks.RoleFacts) -> Iterator[CheckLine]:
    may = rights.replication or rights.superuser
    fix = f"ALTER ROLE {identifier(rights.name)} REPLICATION;"
    text = "may replicate" if may else "lacks the REPLICATION attribute"
    yield CheckLine(ok=may, subject="role", text=f"{rights.name} {text}", fix="" if may else fix, code="SRC205")
    if may and project.postgres.streams:
        try:
            connect(project.postgres, project.root, replication=True).close()
        except errors.CdcLakeError as error:
            yield failure_line("replication", error)
        else:
            yield CheckLine(ok=True, subject="replication", text="a replication connection is accepted")


def _tables(project: Project, session: Session, rights: server_checks.RoleFacts) -> Iterator[CheckLine]:
    try:
        with server.holders_named(session, project.postgres.tables):
            names = captured_tables(project, session)
        if not is_complete(bronze_reader(project).state(), control_tables(project)):
            check_maker(project, session)
        exists = _has_publication(project, session)
        chosen = chosen_tables(project, session)
    except errors.CdcLakeError as error:
        yield failure_line("tables" if isinstance(error, errors.NoTableMatches) else "publication", error)
        return
    yield from row_filter_lines(project, session)
    facts = server_checks.tables(session, chosen)
    bare = without_identity(session, chosen)
    for name in bare:
        fix = f"add a primary key, or: {whole_identity(name)};"
        text = f"{name} has no primary key and no replica identity"
        yield CheckLine(ok=False, subject="identity", text=text, fix=fix, code=errors.NoReplicaIdentity.code)
    changes = None if exists is False else _changes(project, session)
    if exists is not None:
        later = changes.lacking if changes is not None and alterable(project) else ()  # the next start publishes them
        published = [name for name in chosen if name not in later]
        yield _publication(project, names, published, facts, bare, exists=exists, may_create=rights.create_in_database)
    unreadable = [f.table for f in facts if not f.readable]
    if unreadable:
        fix = "\n".join(f"GRANT SELECT ON {quote_table(t)} TO {identifier(rights.name)};" for t in unreadable)
        text = f"no privilege to read {list_names(unreadable)}"
        yield CheckLine(ok=False, subject="tables", text=text, fix=fix, code="SRC224")
    hidden = server_checks.hiding(session, chosen)
    if hidden:
        text = f"row security hides rows of {list_names(hidden)} from the role"
        fix = f"run as a superuser: {_all_rows(rights.name)}"
        yield CheckLine(ok=False, subject="tables", text=text, fix=fix, code=errors.RowsHidden.code)
    yield CheckLine(ok=True, subject="tables", text=f"{len(chosen)}: {list_names(chosen)}; {count_rows(facts)}")
    if changes is not None:
        refused = publication.not_addable(session, project.publication, changes.lacking) if alterable(project) else []
        if refused:
            text = f"{list_names(refused)} added, but this role may not publish it: it has to own table and publication"
            statement = publication.altering(project.publication, "ADD", *refused, filters=declared_filters(project))
            fix = f"run as a superuser: {statement};"
            yield CheckLine(ok=False, subject="tables", text=text, fix=fix, code=errors.SourcePermission.code)
        may = tuple(table for table in changes.lacking if table not in refused)
        yield from table_change_lines(project, replace(changes, lacking=may), publishes=alterable(project))


def _changes(project: Project, session: Session) -> TableChanges | None:
    """Tables added to `source.tables` or removed; None before a stream is completely set up."""
    state, control = bronze_reader(project).state(), control_tables(project)
    return table_changes(project, session, state, control) if is_complete(state, control) else None


def _has_publication(project: Project, session: Session) -> bool | None:
    """Whether the publication exists; None if the plugin uses none. Raises SourceError."""
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
            publication.check_published(name, names, chosen, declared_filters(project))
        except errors.CdcLakeError as error:
            return failure_line("publication", error)
        return CheckLine(ok=True, subject="publication", text=f"{name} publishes {pluralize(len(names), 'table')}")
    foreign = [f.table for f in facts if not f.owned]
    if may_create and not foreign:
        return CheckLine(ok=True, subject="publication", text=f"{name}: created by the first run")
    why = f"{list_names(foreign)} have other owners" if foreign else "no CREATE right in the database"
    return CheckLine(
        ok=False,
        subject="publication",
        text=f"{name} does not exist, and this role cannot create it: {why}",
        fix="\n".join([*_identities(bare), f"{publication.creating(name, chosen, declared_filters(project))};"]),
        code="SRC224",
    )


def _identities(bare: list[TableName]) -> list[str]:
    """The SQL for tables without a replica identity: once published, their updates would be refused."""
    return [f"{whole_identity(table)};" for table in bare]


def _lacking(project: Project, session: Session, chosen: list[TableName]) -> list[TableName]:
    """Tables that an existing publication lacks and a start does not add."""
    carried = {published.table for published in publication.load_published_tables(session, project.publication)}
    lacking = [table for table in chosen if table not in carried]
    return publication.not_addable(session, project.publication, lacking) if alterable(project) else lacking


def _all_rows(role: str) -> str:
    return f"ALTER ROLE {identifier(role)} BYPASSRLS;"


def dba_sql(project: Project) -> str:
    """The SQL for a superuser that gives the pipeline's role all privileges. Raises SourceError for no connection."""
    with server_checks.reading(project) as session:
        chosen = chosen_tables(project, session)
        facts, rights = server_checks.limits(session, project.postgres), server_checks.role(session)
        hidden = server_checks.hiding(session, chosen)
        exists = _has_publication(project, session)
        bare = [] if exists else without_identity(session, chosen)
        lacking = _lacking(project, session, chosen) if exists else []
    user, lines = identifier(rights.name), []
    if not server.decodes(facts):
        lines.append("ALTER SYSTEM SET wal_level = logical;  -- then restart the server")
    if not rights.replication and not rights.superuser:
        lines.append(f"ALTER ROLE {user} REPLICATION;")
    if hidden:
        lines.append(_all_rows(rights.name))
    lines += [f"GRANT USAGE ON SCHEMA {identifier(s)} TO {user};" for s in sorted({t.schema for t in chosen})]
    lines += [f"GRANT SELECT ON {quote_table(t)} TO {user};" for t in chosen]
    if bare:
        lines += ["-- without a primary key; preferably add one, otherwise the server has to log whole old rows:"]
        lines += _identities(bare)
    if exists is False:
        lines.append(f"{publication.creating(project.publication, chosen, declared_filters(project))};")
    if lacking:
        statement = publication.altering(project.publication, "ADD", *lacking, filters=declared_filters(project))
        lines.append(f"{statement};")
    return "\n".join([f"-- for pipeline {project.name}, as a superuser in {project.postgres.database}", *lines])
