"""The doctor's look at a server of the GaussDB family: server, ports, role, slot, options, traps, tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.gaussdb_options import Mode, as_number
from cdc_lake.config.gaussdb_rules import judge
from cdc_lake.config.project import Project
from cdc_lake.config.release import pad_release, parse_release, show_release
from cdc_lake.config.source import FamilySource
from cdc_lake.errors import (
    CdcLakeError,
    NoPrimary,
    OptionRefused,
    ReplicationPortNeeded,
    RoleLacksReplication,
    ServerUnreachable,
)
from cdc_lake.lake.control import control_tables
from cdc_lake.pipeline.check.budget import budget_lines
from cdc_lake.pipeline.check.family_failover import failover_lines
from cdc_lake.pipeline.check.family_slot import slot_line
from cdc_lake.pipeline.check.family_tables import came_and_gone, grants, identities
from cdc_lake.pipeline.check.family_tables import tables as tables_found
from cdc_lake.pipeline.check.line import CheckLine, failed, room, unchecked_text
from cdc_lake.pipeline.gaussdb.density import order_of, refuse_csn
from cdc_lake.pipeline.gaussdb.facts import FamilyLimits, FamilyRole, captured, limits, retained, role, session_of
from cdc_lake.pipeline.gaussdb.frames import codec_of, reads_by_sql
from cdc_lake.pipeline.gaussdb.view import order_in_words
from cdc_lake.pipeline.state.streams import is_complete
from cdc_lake.source.gaussdb.connection import target_of
from cdc_lake.source.gaussdb.printing import check_printing, interval_hint
from cdc_lake.source.gaussdb.server import FamilySettings, current_lsn, read_settings
from cdc_lake.source.gaussdb.slot import find_slot
from cdc_lake.source.gaussdb.snapshot import exports_csn
from cdc_lake.source.gaussdb.traps import Effect, traps
from cdc_lake.source.gaussdb.version import FamilyVersion, release_of
from cdc_lake.source.quoting import identifier
from cdc_lake.source.stream import domain_of
from cdc_lake.source.wire.connect import connect
from cdc_lake.source.wire.session import WireSession

_WAL_LEVEL = 'gs_guc set -D <data folder> -c "wal_level = logical";  then restart the server'


def findings(project: Project) -> Iterator[CheckLine]:
    """One line a finding. Raises SourceError where the server cannot be asked."""
    source = project.family
    with session_of(project) as session:
        found = limits(session)
        facts = found.settings
        about = f"{facts.version} at {session.place}, as {source.user}"
        text = f"{about}: compatibility {facts.compatibility}, encoding {facts.encoding}"
        yield CheckLine(ok=True, subject="server", text=text)
        yield from _product(project, facts.version)
        yield from _server(project, session, found)
        rights = role(session)
        refused = _refused(project)
        yield _role(rights, seen=refused is None and not reads_by_sql(project))
        yield from _ports(project, facts, refused)
        yield from _options(project, facts)
        yield from memory_lines(source, facts.process_memory)
        if source.on_standby and source.decoding_mode is Mode.PARALLEL:
            text = "the vendors advise one parallel decoding connection for each standby, which has 20 decoders in all"
            yield CheckLine(ok=None, subject="standby", text=text)
        yield from _printing(project)
        if refused is None:
            yield slot_line(project, session)
        if (there := find_slot(session, project.slot)) is not None:
            yield from budget_lines(project, retained(there, current_lsn(session)))
        yield _order(project, session)
        yield from _traps(project, facts)
        yield from tables_found(project, session, rights)
        yield from came_and_gone(project, session)


def _product(project: Project, version: FamilyVersion) -> Iterator[CheckLine]:
    """Whether it is the product, and the release, that the file says."""
    source = project.family
    known = version.product.lower()
    fix = "" if known == source.type else f"source.type: {known}"
    said = f"{version.product}, as `source.type` says" if not fix else f"{version.product}, not {source.type}"
    yield CheckLine(ok=not fix, subject="product", text=said, fix=fix, code="SRC208")
    real = release_of(version)
    if source.version is not None and pad_release(parse_release(source.version)) != real:
        text = f"`source.version` says {source.version}, the server is {show_release(real)}"
        yield CheckLine(ok=None, subject="version", text=text, fix=f'source.version: "{show_release(real)}"')


def _server(project: Project, session: WireSession, found: FamilyLimits) -> Iterator[CheckLine]:
    facts = found.settings
    try:
        codec_of(project, facts.encoding)
    except CdcLakeError as error:
        yield failed("encoding", error)
    yield from unchecked_text(project, facts.encoding)
    if facts.in_recovery:
        fix = "point `source.host` at the primary, or name several `source.hosts`"
        yield CheckLine(ok=False, subject="server", text="this is a standby", fix=fix, code=NoPrimary.code)
    logical = facts.wal_level == "logical"
    fix = "" if logical else _WAL_LEVEL
    yield CheckLine(ok=logical, subject="wal_level", text=facts.wal_level or "not shown", fix=fix, code="SRC208")
    slot = find_slot(session, project.slot)
    yield from failover_lines(project, facts, slot)
    needed = 1 if slot is None else 0
    yield room("replication slots", found.slots_used, facts.slots_max, needed, "max_replication_slots", "SRC211")
    if reads_by_sql(project):
        return
    if found.senders_used is None:
        text = f"{facts.senders_max} at most; how many are in use, {project.family.user} may not see"
        yield CheckLine(ok=None, subject="WAL senders", text=text, fix="an administrator sees pg_stat_replication")
    else:
        yield room("WAL senders", found.senders_used, facts.senders_max, 1, "max_wal_senders", "SRC207")


def _refused(project: Project) -> CdcLakeError | None:
    """Why no replication connection comes about; None where one is accepted, or none is needed."""
    if reads_by_sql(project):
        return None
    try:
        connect(target_of(project.family, project.root), replication=True).close()
    except CdcLakeError as error:
        return error
    return None


_OF_MEMORY = {"max-txn-in-memory": (1 << 20, 4), "max-reorderbuffer-in-memory": (1 << 30, 2)}
"""Options that newer GaussDB bounds in parallel decoding: their unit, and the part of `max_process_memory` at most."""


def memory_lines(source: FamilySource, memory: int | None) -> Iterator[CheckLine]:
    """What of the source's options is more than the server's memory allows. `memory`: in bytes, None: not known."""
    for name, (unit, part) in _OF_MEMORY.items():
        given = as_number(source.decoding[name]) if name in source.decoding else None
        if given is None or source.decoding_mode is not Mode.PARALLEL or source.type != "gaussdb":
            continue
        if memory is None:
            text = f"{name} = {given}: the server does not show `max_process_memory`, which bounds it"
            yield CheckLine(ok=None, subject="decoding", text=text)
        elif given * unit > memory // part:
            most = memory // part // unit
            text = f"{name} = {given} is more than 1/{part} of the server's max_process_memory, which is {most}"
            fix = f"source.decoding: {{{name}: {most}}}"
            yield CheckLine(ok=False, subject="decoding", text=text, fix=fix, code=OptionRefused.code)


def _role(rights: FamilyRole, *, seen: bool) -> CheckLine:
    """The right to replicate. `seen`: the server has just accepted it, whatever the catalog shows."""
    if rights.right is None and not seen:
        fix = f"ALTER ROLE {identifier(rights.name)} REPLICATION;"
        text = f"{rights.name} has no right to replicate that pg_roles shows"
        return CheckLine(ok=False, subject="role", text=text, fix=fix, code=RoleLacksReplication.code)
    by = rights.right or "by a right that pg_roles does not show"
    return CheckLine(ok=True, subject="role", text=f"{rights.name} may replicate, {by}")


def _ports(project: Project, facts: FamilySettings, refused: CdcLakeError | None) -> Iterator[CheckLine]:
    """What the ports say: the one for replication, and where it refuses, the others it may be."""
    if reads_by_sql(project):
        return
    source = project.family
    pool = "the thread pool is on: the HA port only" if facts.thread_pool else "the thread pool is off: any port"
    if refused is None:
        ports = ", ".join(str(port) for port in sorted({a.replication_port for a in source.addresses}))
        text = f"a replication connection is accepted at port {ports} ({pool})"
        yield CheckLine(ok=True, subject="replication", text=text)
        return
    yield failed("replication", refused)
    if not isinstance(refused, ServerUnreachable | ReplicationPortNeeded):
        return
    first = source.addresses[0]
    other = next((p for p in (first.port + 1, first.port) if p != first.replication_port and _takes(project, p)), None)
    if other is not None:
        text = f"port {other} accepts replication connections ({pool})"
        yield CheckLine(ok=None, subject="port", text=text, fix=f"source.replication_port: {other}")
    elif facts.thread_pool:
        fix = "ask an administrator for the HA port: the service port + 1, unless the server says otherwise"
        yield CheckLine(ok=None, subject="port", text=f"neither the service port nor the next one ({pool})", fix=fix)


def _takes(project: Project, port: int) -> bool:
    """Whether replication connections are accepted at a port."""
    try:
        connect(replace(target_of(project.family, project.root), replication_port=port), replication=True).close()
    except CdcLakeError:
        return False
    return True


def _options(project: Project, facts: FamilySettings) -> Iterator[CheckLine]:
    """The rules of options, judged with the release that the server names; its time limit."""
    source, release = project.family, release_of(facts.version)
    refused = judge(source, release)
    for one in refused:
        where = ".".join(("source", *one.at))
        yield CheckLine(
            ok=False, subject="options", text=f"{one.summary} ({where})", fix=one.remedy, code=one.rule.problem
        )
    if not refused:
        text = f"{source.decoding_mode} decoding; no rule of {facts.version} is broken"
        yield CheckLine(ok=True, subject="options", text=text)
    every, timeout = source.reply_interval / 1000, facts.sender_timeout
    if not reads_by_sql(project) and "sender-timeout" not in source.decoding and 0 < timeout < 2 * every:
        text = f"the server ends a stream after {timeout:g} s without a reply, and one is sent every {every:g} s"
        fix = f"source.status_interval: {max(1, round(timeout * 1000 / 3))}ms"
        yield CheckLine(ok=None, subject="options", text=text, fix=fix)


def _printing(project: Project) -> Iterator[CheckLine]:
    """What a session cannot ask of parallel decoders: how values are printed."""
    if project.family.decoding_mode is not Mode.PARALLEL:
        return
    with connect(replace(target_of(project.family, project.root), settings={})) as bare:
        try:
            check_printing(bare)
        except CdcLakeError as error:
            yield failed("printing", error)
        if (hint := interval_hint(bare)) is not None:
            yield CheckLine(ok=None, subject="printing", text=hint[0], fix=f"{hint[1]};")


def _order(project: Project, session: WireSession) -> CheckLine:
    """What orders the stream: of one that was begun this is settled."""
    state = bronze_reader(project).state()
    if is_complete(state, control_tables(project)):
        text = f"{order_in_words(domain_of(state.stream))}, as it was begun"
        return CheckLine(ok=True, subject="order", text=text)
    exports = exports_csn(session)
    order = order_of(project.family, exports=exports)
    if exports or project.family.slot_order == "csn":
        return CheckLine(ok=True, subject="order", text=order_in_words(order))
    try:
        refuse_csn(project)
    except CdcLakeError as error:
        return failed("order", error)
    text = f"the server gives no CSN with a snapshot: {order_in_words(order)}"
    fix = "a transaction near the initial copy may be missing or come twice: `cdc-lake compare` after the first run"
    return CheckLine(ok=None, subject="order", text=text, fix=fix)


def _traps(project: Project, facts: FamilySettings) -> Iterator[CheckLine]:
    """What this server, read like this, is known to withhold, repeat or break; the worst first."""
    source = project.family
    known = traps(facts.version, source.decoding_mode, compatibility=facts.compatibility, plugin=source.slot.plugin)
    for trap in known:
        if trap.effect is not Effect.HANDLED:
            text = f"{trap.name}, {trap.effect}: {trap.about}"
            yield CheckLine(ok=None, subject="trap", text=text, fix=trap.remedy)
    handled = [trap.name for trap in known if trap.effect is Effect.HANDLED]
    if handled:
        yield CheckLine(ok=True, subject="traps", text=f"handled here: {', '.join(handled)}")


def dba_sql(project: Project) -> str:
    """What an administrator runs so that the pipeline's role can do everything. Raises SourceError."""
    with session_of(project) as session:
        names = captured(project, session)
        facts, rights = read_settings(session), role(session)
        bare = identities(project, session, names)
    lines = [f"-- for pipeline {project.name}, as a system administrator in {facts.database}"]
    if facts.wal_level != "logical":
        lines.append(f"-- {_WAL_LEVEL}")
    if rights.right is None:
        lines.append(f"ALTER ROLE {identifier(rights.name)} REPLICATION;")
    return "\n".join([*lines, *grants(names, rights.name), *bare])
