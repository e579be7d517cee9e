"""The checks of `check` on a GaussDB family server.

Server, ports, role, slot, options, known limitations, tables, and the next failover: repeated changes of the slot show
what a new primary has (`connectors.gaussdb.failover`), and the check reports the cases in which they do not suffice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cdc_lake import errors
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.fields import pad_release, parse_release, show_release
from cdc_lake.config.gaussdb_options import Mode, as_number
from cdc_lake.config.project import Project
from cdc_lake.config.source import FamilySource
from cdc_lake.config.validation.gaussdb import judge
from cdc_lake.connectors.gaussdb import decoding
from cdc_lake.connectors.gaussdb.adapter import check_resume, is_slot_intended
from cdc_lake.connectors.gaussdb.csn_order import order_of, refuse_csn
from cdc_lake.connectors.gaussdb.introspection import identify_server, order_in_words
from cdc_lake.control.ownership import check_own_bronze, unclaimed_slot
from cdc_lake.control.streams import check_unfinished, is_complete, starts_over
from cdc_lake.model.diagnostic import size
from cdc_lake.model.position import format_position
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
from cdc_lake.source.base import domain_of
from cdc_lake.source.gaussdb import server
from cdc_lake.source.gaussdb.catalog import check_identities, check_printing, interval_hint, tables_in_database
from cdc_lake.source.gaussdb.slot import GaussDbSlotFacts, find_slot
from cdc_lake.source.gaussdb.snapshot import exports_csn
from cdc_lake.source.gaussdb.wire.session import WireSession, connect
from cdc_lake.source.sql_text import identifier, quote_table
from cdc_lake.tables.control_tables import control_tables

_COMPARE = "run `cdc-lake compare` after a failover"


def failover_lines(
    project: Project, facts: server.GaussDbSettings, slot: GaussDbSlotFacts | None
) -> Iterator[CheckLine]:
    """What a failover to another of the hosts would leave uncertain; nothing if there is only one server."""
    source = project.family
    if len(source.addresses) < 2 and source.node != "coordinator":
        return
    if not facts.slots_logged and source.node != "coordinator":
        text = "slots are not written to the WAL: a standby that is promoted, or decodes, does not have this one"
        fix = 'gs_guc set -D <data folder> -c "enable_slot_log = on";  on every server of the cluster'
        yield CheckLine(ok=None, subject="failover", text=text, fix=fix)
    if source.slot_order == "csn":
        text = "the slot is in CSN order: cdc_lake relies on a standby never having it ahead of its WAL"
        yield CheckLine(ok=None, subject="failover", text=text, fix=_COMPARE)
    if slot is not None and not slot.exact:
        shown = (
            "lost changes are not detected" if decoding.reads_by_sql(project) else "only differing changes are detected"
        )
        text = f"this release does not show what the slot has confirmed: {shown}"
        yield CheckLine(ok=None, subject="failover", text=text, fix=_COMPARE)


def slot_line(project: Project, session: WireSession) -> CheckLine:
    """Whether the next run can resume from the slot, or create it: free, active, foreign, ahead, of another order."""
    try:
        slot = find_slot(session, project.slot)
    except errors.CdcLakeError as error:
        return failure_line("slot", error)
    state, control = bronze_reader(project).state(), control_tables(project)  # after the slot: receivers land first
    try:
        facts = identify_server(project, session)
        if is_complete(state, control):
            check_resume(project, session, facts, state, slot)
            assert slot is not None
            return _resume_line(project, facts, slot)
        check_own_bronze(project, state, control)
        again = starts_over(state, control)
        if state is not None and not again:
            check_unfinished(state)
    except errors.CdcLakeError as error:
        return failure_line("slot", error)
    if slot is None:
        when = "next run, with a new stream" if again else "first run"
        return CheckLine(ok=True, subject="slot", text=f"{project.slot}: created by the {when}")
    if is_slot_intended(project, facts, control, state, new_stream=again):
        text = f"{project.slot} remains from an interrupted start: the next run recreates it"
        return CheckLine(ok=True, subject="slot", text=text)
    return failure_line("slot", unclaimed_slot(project, bronze_reader(project).place, state))


def _resume_line(project: Project, facts: server.GaussDbServerFacts, slot: GaussDbSlotFacts) -> CheckLine:
    retained_bytes = decoding.retained_wal_bytes(slot, facts.flushed)
    wal = "" if retained_bytes is None else f"; {size(retained_bytes)} of WAL retained for it"
    if slot.active:
        fix = "a second run would wait for it: stop the other receiver first"
        text = f"{project.slot} is read by a receiver{wal}"
        return CheckLine(ok=None, subject="slot", text=text, fix=fix, code=errors.SlotActive.code)
    position_text = "" if slot.confirmed is None else f", confirmed up to {format_position(slot.confirmed, slot.order)}"
    text = f"{project.slot} is free, in {slot.order.name} order{position_text}{wal}"
    return CheckLine(ok=True, subject="slot", text=text)


def tables(project: Project, session: WireSession, rights: decoding.GaussDbRole) -> Iterator[CheckLine]:
    """The selected tables, the role's read privileges, and replica identities."""
    try:
        names = decoding.captured_tables(project, session)
    except errors.CdcLakeError as error:
        yield failure_line("tables", error)
        return
    facts = decoding.tables(session, names)
    unreadable = [f.table for f in facts if not f.readable]
    if unreadable:
        fix = "\n".join(grants(unreadable, rights.name))
        text = f"no privilege to read {list_names(unreadable)}"
        yield CheckLine(ok=False, subject="tables", text=text, fix=fix, code="SRC224")
    owned = {f.table for f in facts if f.owned}
    for name in _bare(project, session, names):
        who = "" if name in owned else "its owner runs: "
        fix = f"add a primary key, or {who}{_full(name)}"
        text = f"{name} has no primary key and no replica identity"
        yield CheckLine(ok=False, subject="identity", text=text, fix=fix, code=errors.NoReplicaIdentity.code)
    yield CheckLine(ok=True, subject="tables", text=f"{len(names)}: {list_names(names)}; {count_rows(facts)}")


def came_and_gone(project: Project, session: WireSession) -> Iterator[CheckLine]:
    """What the next start does about tables added to `source.tables` or removed. Raises SourceError, LakeError."""
    state, control = bronze_reader(project).state(), control_tables(project)
    if not is_complete(state, control):
        return
    changes = decoding.family_changes(project, session, tables_in_database(session), state, control)
    yield from table_change_lines(project, changes, publishes=False, placed=decoding.copies_have_a_place(state))


def grants(names: Sequence[TableName], role: str) -> list[str]:
    """SQL that lets a role read tables."""
    user, schemas = identifier(role), sorted({t.schema for t in names})
    return [
        *(f"GRANT USAGE ON SCHEMA {identifier(schema)} TO {user};" for schema in schemas),
        *(f"GRANT SELECT ON {quote_table(name)} TO {user};" for name in names),
    ]


def identities(project: Project, session: WireSession, names: Sequence[TableName]) -> list[str]:
    """SQL alternatives for the tables whose changes would not identify their row. Raises SourceError."""
    return [f"{_full(name)}  -- or add a primary key" for name in _bare(project, session, names)]


def _bare(project: Project, session: WireSession, names: Sequence[TableName]) -> Iterator[TableName]:
    for name, facts in decoding.catalog(project, session, names).items():
        try:
            check_identities({name: facts}, session.place)
        except errors.NoReplicaIdentity:
            yield name


def _full(name: TableName) -> str:
    return f"ALTER TABLE {quote_table(name)} REPLICA IDENTITY FULL;"


_WAL_LEVEL = 'gs_guc set -D <data folder> -c "wal_level = logical";  then restart the server'


def findings(project: Project) -> Iterator[CheckLine]:
    """One line per finding. Raises SourceError if the server is unreachable."""
    source = project.family
    with decoding.session_of(project) as session:
        server_limits = decoding.limits(session)
        facts = server_limits.settings
        about = f"{facts.version} at {session.place}, as {source.user}"
        text = f"{about}: compatibility {facts.compatibility}, encoding {facts.encoding}"
        yield CheckLine(ok=True, subject="server", text=text)
        yield from _product(project, facts.version)
        yield from _server(project, session, server_limits)
        rights = decoding.role(session)
        refused = _connection_error(project)
        yield _role(rights, accepted=refused is None and not decoding.reads_by_sql(project))
        yield from _ports(project, facts, refused)
        yield from _options(project, facts)
        yield from memory_lines(source, facts.process_memory)
        if source.on_standby and source.decoding_mode is Mode.PARALLEL:
            text = (
                "the vendors recommend one parallel decoding connection for each standby, which has 20 decoders in all"
            )
            yield CheckLine(ok=None, subject="standby", text=text)
        yield from _printing(project)
        if refused is None:
            yield slot_line(project, session)
        if (slot := find_slot(session, project.slot)) is not None:
            yield from budget_lines(project, decoding.retained_wal_bytes(slot, server.current_lsn(session)))
        yield _order(project, session)
        yield from _traps(project, facts)
        yield from tables(project, session, rights)
        yield from came_and_gone(project, session)


def _product(project: Project, version: server.GaussDbVersion) -> Iterator[CheckLine]:
    """Whether product and release are those of the pipeline file."""
    source = project.family
    product = version.product.lower()
    fix = "" if product == source.type else f"source.type: {product}"
    statement = f"{version.product}, as `source.type` says" if not fix else f"{version.product}, not {source.type}"
    yield CheckLine(ok=not fix, subject="product", text=statement, fix=fix, code="SRC208")
    real = server.release_of(version)
    if source.version is not None and pad_release(parse_release(source.version)) != real:
        text = f"`source.version` says {source.version}, but the server is {show_release(real)}"
        yield CheckLine(ok=None, subject="version", text=text, fix=f'source.version: "{show_release(real)}"')


def _server(project: Project, session: WireSession, server_limits: decoding.GaussDbLimits) -> Iterator[CheckLine]:
    facts = server_limits.settings
    try:
        decoding.codec_of(project, facts.encoding)
    except errors.CdcLakeError as error:
        yield failure_line("encoding", error)
    yield from unchecked_text(project, facts.encoding)
    if facts.in_recovery:
        fix = "set `source.host` to the primary, or name several `source.hosts`"
        yield CheckLine(ok=False, subject="server", text="this is a standby", fix=fix, code=errors.NoPrimary.code)
    logical = facts.wal_level == "logical"
    fix = "" if logical else _WAL_LEVEL
    yield CheckLine(ok=logical, subject="wal_level", text=facts.wal_level or "not shown", fix=fix, code="SRC208")
    slot = find_slot(session, project.slot)
    yield from failover_lines(project, facts, slot)
    needed, used = 1 if slot is None else 0, server_limits.slots_used
    yield room("replication slots", used, facts.slots_max, needed, "max_replication_slots", "SRC211")
    if decoding.reads_by_sql(project):
        return
    if server_limits.senders_used is None:
        text = f"{facts.senders_max} at most; {project.family.user} may not see how many are in use"
        yield CheckLine(ok=None, subject="WAL senders", text=text, fix="an administrator can query pg_stat_replication")
    else:
        yield room("WAL senders", server_limits.senders_used, facts.senders_max, 1, "max_wal_senders", "SRC207")


def _connection_error(project: Project, port: int | None = None) -> errors.CdcLakeError | None:
    """Why no replication connection can be opened, at `port` instead of the configured one; None if one is accepted or
    none is needed.
    """
    if decoding.reads_by_sql(project):
        return None
    target = server.target_of(project.family, project.root)
    try:
        connect(target if port is None else replace(target, replication_port=port), replication=True).close()
    except errors.CdcLakeError as error:
        return error
    return None


_OF_MEMORY = {"max-txn-in-memory": (1 << 20, 4), "max-reorderbuffer-in-memory": (1 << 30, 2)}
"""Options limited by newer GaussDB in parallel decoding: their unit, and the maximum share of `max_process_memory`."""


def memory_lines(source: FamilySource, memory: int | None) -> Iterator[CheckLine]:
    """The source's options that exceed the server's memory. `memory`: in bytes, None if unknown."""
    for name, (unit, part) in _OF_MEMORY.items():
        value = as_number(source.decoding[name]) if name in source.decoding else None
        if value is None or source.decoding_mode is not Mode.PARALLEL or source.type != "gaussdb":
            continue
        if memory is None:
            text = f"{name} = {value}: the server does not show `max_process_memory`, which limits it"
            yield CheckLine(ok=None, subject="decoding", text=text)
        elif value * unit > memory // part:
            most = memory // part // unit
            text = f"{name} = {value} is more than 1/{part} of the server's max_process_memory, which is {most}"
            fix = f"source.decoding: {{{name}: {most}}}"
            yield CheckLine(ok=False, subject="decoding", text=text, fix=fix, code=errors.OptionRefused.code)


def _role(rights: decoding.GaussDbRole, *, accepted: bool) -> CheckLine:
    """The privilege to replicate. `accepted`: the server has just accepted it, whatever the catalog shows."""
    if rights.right is None and not accepted:
        fix = f"ALTER ROLE {identifier(rights.name)} REPLICATION;"
        text = f"{rights.name} has no privilege to replicate that pg_roles shows"
        return CheckLine(ok=False, subject="role", text=text, fix=fix, code=errors.RoleLacksReplication.code)
    by = rights.right or "by a privilege that pg_roles does not show"
    return CheckLine(ok=True, subject="role", text=f"{rights.name} may replicate, {by}")


def _ports(project: Project, facts: server.GaussDbSettings, refused: errors.CdcLakeError | None) -> Iterator[CheckLine]:
    """The replication port and, if it refuses, other possible ones."""
    if decoding.reads_by_sql(project):
        return
    source = project.family
    pool = "the thread pool is on: the HA port only" if facts.thread_pool else "the thread pool is off: any port"
    if refused is None:
        ports = ", ".join(str(port) for port in sorted({a.replication_port for a in source.addresses}))
        text = f"a replication connection is accepted at port {ports} ({pool})"
        yield CheckLine(ok=True, subject="replication", text=text)
        return
    yield failure_line("replication", refused)
    if not isinstance(refused, errors.ServerUnreachable | errors.ReplicationPortNeeded):
        return
    first = source.addresses[0]
    others = (port for port in (first.port + 1, first.port) if port != first.replication_port)
    other = next((port for port in others if _connection_error(project, port) is None), None)
    if other is not None:
        text = f"port {other} accepts replication connections ({pool})"
        yield CheckLine(ok=None, subject="port", text=text, fix=f"source.replication_port: {other}")
    elif facts.thread_pool:
        fix = "ask an administrator for the HA port: the service port + 1, unless the server is configured otherwise"
        yield CheckLine(ok=None, subject="port", text=f"neither the service port nor the next one ({pool})", fix=fix)


def _options(project: Project, facts: server.GaussDbSettings) -> Iterator[CheckLine]:
    """The rules for options of the server's release, and its time limit."""
    source, release = project.family, server.release_of(facts.version)
    refused = judge(source, release)
    for refusal in refused:
        yield CheckLine(
            ok=False,
            subject="options",
            text=f"{refusal.summary} ({refusal.path})",
            fix=refusal.remedy,
            code=refusal.rule.problem,
        )
    if not refused:
        text = f"{source.decoding_mode} decoding; no rule of {facts.version} is violated"
        yield CheckLine(ok=True, subject="options", text=text)
    every, timeout = source.reply_interval / 1000, facts.sender_timeout
    if not decoding.reads_by_sql(project) and "sender-timeout" not in source.decoding and 0 < timeout < 2 * every:
        text = f"the server ends a stream after {timeout:g} s without a reply, but one is sent every {every:g} s"
        fix = f"source.status_interval: {max(1, round(timeout * 1000 / 3))}ms"
        yield CheckLine(ok=None, subject="options", text=text, fix=fix)


def _printing(project: Project) -> Iterator[CheckLine]:
    """How parallel decoders print values, which a session cannot set."""
    if project.family.decoding_mode is not Mode.PARALLEL:
        return
    with connect(replace(server.target_of(project.family, project.root), settings={})) as bare:
        try:
            check_printing(bare)
        except errors.CdcLakeError as error:
            yield failure_line("printing", error)
        if (hint := interval_hint(bare)) is not None:
            yield CheckLine(ok=None, subject="printing", text=hint[0], fix=f"{hint[1]};")


def _order(project: Project, session: WireSession) -> CheckLine:
    """The order of the stream, which is fixed once the stream has begun."""
    state = bronze_reader(project).state()
    if is_complete(state, control_tables(project)):
        text = f"{order_in_words(domain_of(state.stream))}, as it was started"
        return CheckLine(ok=True, subject="order", text=text)
    exports = exports_csn(session)
    order = order_of(project.family, exports=exports)
    if exports or project.family.slot_order == "csn":
        return CheckLine(ok=True, subject="order", text=order_in_words(order))
    try:
        refuse_csn(project)
    except errors.CdcLakeError as error:
        return failure_line("order", error)
    text = f"the server reports no CSN with a snapshot: {order_in_words(order)}"
    fix = "a transaction near the initial copy may be missing or received twice: `cdc-lake compare` after the first run"
    return CheckLine(ok=None, subject="order", text=text, fix=fix)


def _traps(project: Project, facts: server.GaussDbSettings) -> Iterator[CheckLine]:
    """Known limitations of this server in this mode: changes it omits, repeats or breaks; the worst first."""
    source = project.family
    known_traps = server.traps(
        facts.version, source.decoding_mode, compatibility=facts.compatibility, plugin=source.slot.plugin
    )
    for trap in known_traps:
        if trap.effect is not server.Effect.HANDLED:
            text = f"{trap.name}, {trap.effect}: {trap.about}"
            yield CheckLine(ok=None, subject="trap", text=text, fix=trap.remedy)
    handled = [trap.name for trap in known_traps if trap.effect is server.Effect.HANDLED]
    if handled:
        yield CheckLine(ok=True, subject="traps", text=f"handled here: {', '.join(handled)}")


def dba_sql(project: Project) -> str:
    """The SQL for an administrator that gives the pipeline's role all privileges. Raises SourceError."""
    with decoding.session_of(project) as session:
        names = decoding.captured_tables(project, session)
        facts, rights = server.read_settings(session), decoding.role(session)
        bare = identities(project, session, names)
    lines = [f"-- for pipeline {project.name}, as a system administrator in {facts.database}"]
    if facts.wal_level != "logical":
        lines.append(f"-- {_WAL_LEVEL}")
    if rights.right is None:
        lines.append(f"ALTER ROLE {identifier(rights.name)} REPLICATION;")
    return "\n".join([*lines, *grants(names, rights.name), *bare])
