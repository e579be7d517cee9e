"""A PostgreSQL as `plan`, `status` and the commands of `slot` see it (`connectors.base`), with risks of its slots."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.connectors import base
from cdc_lake.connectors.failover import check_fed_from
from cdc_lake.connectors.postgres import decoding, server_checks
from cdc_lake.connectors.postgres.snapshot import alterable, check_filters, check_maker, table_changes
from cdc_lake.connectors.wal_budget import WalSample
from cdc_lake.control.ownership import check_own_bronze, unclaimed_slot
from cdc_lake.control.snapshots import finished_tables
from cdc_lake.control.streams import is_complete, starts_over
from cdc_lake.errors import SourceError
from cdc_lake.model.diagnostic import pluralize, size
from cdc_lake.model.position import Lsn, OrderDomain
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.source.base import SlotCounters, StreamIdentity, format_stream_position
from cdc_lake.source.postgres import publication, slot
from cdc_lake.source.postgres.catalog import add_missing_values, check_identities
from cdc_lake.source.postgres.connection import Session, fetch
from cdc_lake.source.postgres.server import check_server, identify, wal_position
from cdc_lake.source.postgres.slot import SlotFacts, SlotStatistics, slot_extras
from cdc_lake.tables.control_tables import control_tables


class PostgresIntrospection:
    """One SQL session."""

    def __init__(self, project: Project, session: Session) -> None:
        self._project = project
        self._session = session

    def tables(self) -> list[TableName]:
        """The tables that the stream contains, or would contain."""
        return decoding.captured_tables(self._project, self._session)

    def origin(self) -> str:
        """The server, database and slot of a stream of this pipeline (`StreamIdentity.origin`)."""
        facts = identify(self._session, self._project.postgres)
        return StreamIdentity(facts.system, facts.database, self._project.slot, Lsn(0)).origin

    def end(self, domain: OrderDomain) -> int:
        """The newest position, always an LSN."""
        del domain
        return wal_position(self._session).value

    def received_position(self) -> int | None:
        """The position up to which the slot's receiver has read, if the server reports it."""
        sent = server_checks.sent_position(self._session, self._project.slot)
        return sent.value if sent is not None else None

    def slot(self) -> base.SlotSeen | None:
        """The pipeline's slot."""
        facts = slot.find_slot(self._session, self._project.slot)
        if facts is None:
            return None
        why = facts.invalidation or facts.wal_status
        return base.SlotSeen(
            confirmed=str(facts.confirmed) if facts.confirmed is not None else None,
            retained=facts.retained,
            read_by=f"server process {facts.active_pid}" if facts.active_pid is not None else None,
            lost=f"the server invalidated it ({why})" if facts.is_lost else None,
            safe=facts.safe,
            counters=slot.slot_counters(self._session, self._project.slot),
        )

    def steps(self, state: Callable[[], StreamCheckpoint | None]) -> Iterator[base.Action]:
        """What `run` would do at the source; `state`: what bronze has, read after the slot."""
        check_server(server_checks.limits(self._session, self._project.postgres), self._project.postgres.place)
        names = self.tables()
        yield from self._publication(names, state())
        existing_slot = slot.find_slot(self._session, self._project.slot)
        yield from self._stream(existing_slot, state(), names)  # read after the slot: a running receiver moves both

    def layout(self, table: TableName) -> Relation | None:
        """The current layout of a captured table; None if it is not captured."""
        relation = decoding.layout_now(self._project, self._session, table)
        reader = bronze_reader(self._project)
        state = reader.state() if relation is not None else None
        if relation is None or state is None:
            return relation
        return add_missing_values(self._session, relation, reader.last_layout(state.epoch, table))

    def _publication(self, names: Sequence[TableName], state: StreamCheckpoint | None) -> Iterator[base.Action]:
        if not decoding.by_publication(self._project):
            return
        name = self._project.publication
        if not is_complete(state, control_tables(self._project)):
            check_maker(self._project, self._session)
        if not publication.publication_exists(self._session, name):
            check_identities(self._session, names)
            filtered = len(decoding.filters(self._project, self._session, names))
            listed = str(names[0]) if len(names) == 1 else f"{len(names)} tables"
            text = f"create publication `{name}` for {listed}"
            text += f", with row filters for {pluralize(filtered, 'table')}" if filtered else ""
            yield base.Action(base.ActionKind.CREATE_PUBLICATION, name, text)
        else:
            check_filters(self._project, self._session, state, control_tables(self._project))

    def _stream(
        self, existing_slot: SlotFacts | None, state: StreamCheckpoint | None, names: Sequence[TableName]
    ) -> Iterator[base.Action]:
        project, session = self._project, self._session
        left = existing_slot is not None and server_checks.left_by_a_start(project, session, existing_slot, state)
        existing_slot = None if left else existing_slot
        control = control_tables(project)
        check_own_bronze(project, state, control)
        again = starts_over(state, control)
        if existing_slot is not None and (state is None or again):
            raise unclaimed_slot(project, bronze_reader(project).place, state)
        started = (
            not again
            and state is not None
            and (existing_slot is not None or state.upto != StreamIdentity.parse(state.stream).start)
        )
        if state is not None and started:
            facts = identify(session, project.postgres)
            identity = StreamIdentity.parse(state.stream)
            check_fed_from(identity, system=facts.system, database=facts.database, slot=project.slot)
            checked = server_checks.check_own_slot(project, existing_slot, project.postgres.database, state.confirm)
            lag = max(0, wal_position(session).value - state.upto)
            retained = f", {size(checked.retained)} of WAL retained" if checked.retained is not None else ""
            after = format_stream_position(state.stream, state.upto)
            text = f"resume slot `{project.slot}` after {after}: {size(lag)} behind{retained}"
            yield base.Action(base.ActionKind.RESUME, project.slot, text, changes=False, bytes=lag)
            if not is_complete(state, control):
                finished = finished_tables(control.snapshots(), state.stream, state.epoch)
                left_tables = [name for name in names if name not in {table.relation for table in finished}]
                yield from base.copies(project, server_checks.tables(session, left_tables))
            else:
                yield from self._come_and_gone(state)
            return
        kind = f"{project.postgres.slot.plugin}{', two-phase' if decoding.needs_two_phase(project) else ''}"
        first = "start a new stream: " if again else ""
        first += "drop the remains of an earlier start and " if left else ""
        yield base.Action(base.ActionKind.CREATE_SLOT, project.slot, f"{first}create slot `{project.slot}` ({kind})")
        yield from base.copies(project, server_checks.tables(session, names))

    def _come_and_gone(self, state: StreamCheckpoint) -> Iterator[base.Action]:
        """What a start does with tables that were added to or removed from `source.tables`."""
        project, session = self._project, self._session
        if decoding.by_publication(project) and not publication.publication_exists(session, project.publication):
            return
        changes, name = table_changes(project, session, state, control_tables(project)), project.publication
        refused = publication.not_addable(session, name, changes.lacking) if alterable(project) else ()
        for verb, words, altered_tables in (("ADD", "to", changes.lacking), ("DROP", "from", changes.extra)):
            for table in altered_tables:
                statement, why = publication.altering(name, verb, table, filters=decoding.declared_filters(project)), ""
                if not alterable(project):
                    why = f"; the publication does not belong to the pipeline: {statement}"
                elif table in refused:
                    why = f"; the role has to own both, or a superuser can run: {statement}"
                text = f"{verb.lower()} {table} {words} publication `{name}`{why}"
                yield base.Action(base.ActionKind.ALTER_PUBLICATION, str(table), text, changes=not why)
        may = (table for table in changes.lacking if alterable(project) and table not in refused)
        came = (*may, *changes.waiting)
        yield from base.copies(project, server_checks.tables(session, came))


@contextmanager
def postgres_view(project: Project) -> Iterator[PostgresIntrospection]:
    """Connect. Raises SourceError."""
    with server_checks.reading(project) as session:
        yield PostgresIntrospection(project, session)


def read_for_moments(project: Project, facts: slot.SlotFacts) -> bool:
    """Whether the slot is the pipeline's own and is read by polling, for moments only."""
    return facts.name == project.slot and project.postgres.mode == "polling"


def _threats(
    project: Project,
    facts: slot.SlotFacts,
    more: SlotStatistics,
    counters: SlotCounters | None,
    bronze: base.BesideBronze | None,
    state: StreamCheckpoint | None,
) -> Iterator[base.SlotThreat]:
    own = facts.name == project.slot
    if own:
        yield from _for_the_pipeline(project, facts, state)
    yield from _at_the_server(facts, more, own=own, polled=read_for_moments(project, facts))
    held = 0 if bronze is None else bronze.unconfirmed or 0
    if facts.active_pid is None and held >= base.LEAST_LET_GO:
        yield base.held_already(held)
    if counters is not None and counters.spilled_transactions:
        many, much = pluralize(counters.spilled_transactions, "transaction"), size(counters.spilled_bytes)
        text = f"{many} were spilled to the server's disk while being decoded, {much} in all, {counters.counted_since}"
        remedy = "raise logical_decoding_work_mem on the server"
        yield base.SlotThreat(text, f"{remedy}; `source.decoding.streaming` sends them before they commit")


def _reader(facts: slot.SlotFacts, more: SlotStatistics) -> str | None:
    if facts.active_pid is None:
        return None
    words = [word for word in (more.application, f"from {more.address}" if more.address else None) if word]
    return f"server process {facts.active_pid}" + (f" ({', '.join(words)})" if words else "")


def _end(session: Session) -> Lsn:
    """The end of the WAL; on a standby, of what is replayed."""
    sql = "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END::text"
    [(end,)] = fetch(session, "reading the WAL position", sql)
    return Lsn.parse(end)


def _for_the_pipeline(
    project: Project, facts: slot.SlotFacts, state: StreamCheckpoint | None
) -> Iterator[base.SlotThreat]:
    """Why the pipeline could not continue with its slot, or would miss something."""
    if state is None:
        yield base.nothing_of_it(facts.name)
        return
    try:
        server_checks.check_own_slot(project, facts, project.postgres.database, state.confirm)
    except SourceError as error:
        yield base.SlotThreat(error.message, error.remedy)
        return
    if project.postgres.slot.failover and not facts.failover:
        text = "the pipeline asks for `failover`, but the slot does not have it: a promoted standby would lack the slot"
        yield base.SlotThreat(text, "start the receiver, which sets it: cdc-lake run")


def _at_the_server(
    facts: slot.SlotFacts, more: SlotStatistics, *, own: bool, polled: bool
) -> Iterator[base.SlotThreat]:
    """Risks of the server for the slot, and of the slot for the server."""
    if facts.is_lost:
        if not own:
            text = (
                f"the server invalidated it ({facts.invalidation or facts.wal_status}): the changes that it had not "
                "sent are lost"
            )
            yield base.SlotThreat(text, f"its reader has to start again: cdc-lake slot drop {facts.name} --yes")
        return
    if facts.temporary:
        text = "it is temporary and disappears with the connection that created it"
        yield base.SlotThreat(text, "nothing needs to be dropped")
        return
    if more.synced and more.in_recovery:
        text = "it is a standby's copy of the primary's slot and cannot be read here"
        yield base.SlotThreat(text, "read it on the primary, or promote this server")
        return
    yield from _retention_threats(facts, more)
    if facts.active_pid is None and not polled:
        if more.keep_size is None:
            bound = "; a bound: ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'"
            yield base.unbounded_threat(own=own, bound=bound)
        if more.idle_timeout is not None:
            since = ""
            if more.inactive_since is not None:
                since = f"; this one has been unused since {more.inactive_since:%Y-%m-%dT%H:%MZ}"
            text = f"the server invalidates a slot that has no reader for {more.idle_timeout}{since}"
            yield base.SlotThreat(text, "start its reader, or raise idle_replication_slot_timeout on the server")
    if more.catalog_age is not None and 2 * more.catalog_age >= more.freeze_age:
        many = pluralize(more.catalog_age, "transaction")
        text = f"vacuum keeps everything that was deleted from catalogs in the last {many}"
        remedy = "let its reader catch up, or drop it; the server stops accepting writes before transaction ids run out"
        yield base.SlotThreat(text, remedy)


def _retention_threats(facts: slot.SlotFacts, more: SlotStatistics) -> Iterator[base.SlotThreat]:
    """The WAL retained for it, compared with the server's limits."""
    retained_text = size(facts.retained or 0)
    if facts.wal_status == "unreserved":
        text = (
            f"it needs WAL beyond max_slot_wal_keep_size = {more.keep_size}: a checkpoint may remove that WAL at any "
            "time"
        )
        yield base.SlotThreat(text, "let its reader catch up at once, or raise max_slot_wal_keep_size on the server")
    elif facts.safe is not None and facts.safe <= (facts.retained or 0):
        after = f"after {size(facts.safe)} more the server invalidates it"
        text = f"{retained_text} of WAL are retained for it, and {after}"
        yield base.SlotThreat(text, "let its reader catch up, or raise max_slot_wal_keep_size on the server")
    elif facts.wal_status == "extended":
        text = f"{retained_text} of WAL are retained for it, more than max_wal_size"
        yield base.SlotThreat(text, "let its reader catch up")
    before = facts.confirmed.value - facts.restart.value if facts.confirmed and facts.restart else 0
    if before >= base.LEAST_LET_GO and 2 * before >= (facts.retained or 0):
        text = f"{size(before)} of it are from before its position: a transaction has been open for a long time"
        remedy = "end the oldest open transactions: pg_stat_activity (xact_start), pg_prepared_xacts"
        yield base.SlotThreat(text, remedy)


@dataclass(frozen=True, slots=True)
class PostgresSlots:
    """The slots of a PostgreSQL (implements `SlotAdmin`)."""

    project: Project

    def views(self) -> list[base.SlotView]:
        """Every slot, including those of other databases and readers, by name."""
        with server_checks.reading(self.project) as session:
            return [_view(self.project, facts) for facts in slot.all_slots(session)]

    def find(self, name: str) -> base.SlotFound | None:
        """A slot, and the end of the server's WAL."""
        with server_checks.session_of(self.project) as session:
            facts = slot.find_slot(session, name)
            if facts is None:
                return None
            confirmed = None if facts.confirmed is None else str(facts.confirmed)
            return base.SlotFound(confirmed, facts.retained, wal_position(session).value)

    def inspect(self, name: str, state: Callable[[], StreamCheckpoint | None]) -> base.SlotDetails | None:
        """Everything about one slot; `state`: what bronze has, read after it, because receivers land first."""
        project = self.project
        with server_checks.reading(project) as session:
            facts = slot.find_slot(session, name)
            if facts is None:
                return None
            view, have = _view(project, facts), state()
            more, counters = slot_extras(session, name), slot.slot_counters(session, name)
            if more is None:  # it was dropped meanwhile
                return None
            confirmed = None if facts.confirmed is None else facts.confirmed.value
            bronze = base.beside_bronze(have, confirmed, OrderDomain.LSN) if view.own else None
            return base.SlotDetails(
                pipeline=project.name,
                source=project.postgres.place,
                server=str(server_checks.limits(session, project.postgres).product),
                slot=view,
                order=OrderDomain.LSN.value,
                read_by=_reader(facts, more),
                inactive_since=more.inactive_since,
                restart=None if facts.restart is None else str(facts.restart),
                log_end=str(_end(session)),
                wal_status=facts.wal_status,
                invalidation=facts.invalidation,
                conflicting=more.conflicting,
                catalog_xmin=more.catalog_xmin,
                catalog_age=more.catalog_age,
                synced=more.synced,
                two_phase=facts.two_phase,
                two_phase_at=more.two_phase_at,
                counters=counters,
                bronze=bronze,
                threats=tuple(_threats(project, facts, more, counters, bronze, have)),
            )

    def advance(self, state: Callable[[], StreamCheckpoint], upto: int | None) -> base.SlotAdvanced:
        """Advance the pipeline's slot to what bronze has; `state` is read after the slot."""
        project, source = self.project, self.project.postgres
        with (
            server_checks.session_of(project, replication=source.streams) as replication,
            server_checks.session_of(project) as session,
        ):
            existing_slot, have = slot.find_slot(session, project.slot), state()
            facts = identify(replication, source)
            check_server(facts, source.place)
            _, held = server_checks.check_same(project, replication, facts, have, control_tables(project))
            checked_slot = server_checks.check_own_slot(project, existing_slot, facts.database, held.confirm)
            before = reached = checked_slot.confirmed
            assert before is not None  # checked by `check_own_slot`
            assert reached is not None
            if (target := base.within_bronze(held.confirm, upto)) > before.value:
                reached = slot.advance_slot(session, project.slot, Lsn(target))
        return base.SlotAdvanced(project.name, project.slot, str(before), str(reached), reached.value - before.value)

    def drop(self, name: str, wait: float) -> None:
        """Drop a slot, waiting up to `wait` seconds for its reader."""
        with server_checks.session_of(self.project, replication=self.project.postgres.streams) as session:
            slot.drop_slot_when_free(session, name, wait)

    @contextmanager
    def looking(self) -> Iterator[Callable[[], WalSample | None]]:
        """Connect; each call takes a sample of the pipeline's slot, None if it is not readable."""
        with server_checks.reading(self.project) as session:

            def sample_wal() -> WalSample | None:
                facts = slot.find_slot(session, self.project.slot)
                if facts is None or facts.retained is None or facts.confirmed is None:
                    return None
                end = wal_position(session).value
                return WalSample(time.time(), end, facts.confirmed.value, facts.retained, facts.safe)

            yield sample_wal


def _view(project: Project, facts: slot.SlotFacts) -> base.SlotView:
    own = facts.name == project.slot
    rests = "read only briefly at intervals (`mode: polling`)" if read_for_moments(project, facts) else "not being read"
    state, reason = "idle", rests
    if facts.is_lost:
        state, reason = "lost", f"the server invalidated it ({facts.invalidation or facts.wal_status})"
    elif facts.active_pid is not None:
        state, reason = "active", f"read by server process {facts.active_pid}"
    return base.SlotView(
        name=facts.name,
        own=own,
        kind=facts.kind,
        plugin=facts.plugin,
        database=facts.database,
        temporary=facts.temporary,
        failover=facts.failover,
        state=state,
        reason=reason,
        confirmed=None if facts.confirmed is None else str(facts.confirmed),
        retained_bytes=facts.retained,
        safe_bytes=facts.safe,
    )
