"""A server of the GaussDB family as `plan`, `status` and the commands of `slot` see it (`connectors.base`).

The servers report less than PostgreSQL: slots are never temporary, readers are not visible, and there is no limit of
what may still be written before a slot is lost. A slot in CSN order is advanced only by its reader: no function accepts
a CSN.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.gaussdb_options import Mode
from cdc_lake.config.project import Project, effective_options
from cdc_lake.connectors import base
from cdc_lake.connectors.gaussdb import decoding
from cdc_lake.connectors.gaussdb.adapter import check_resume, is_slot_intended, server_facts
from cdc_lake.connectors.gaussdb.csn_order import order_of, refuse_csn
from cdc_lake.connectors.wal_budget import WalSample
from cdc_lake.control.ownership import check_own_bronze, unclaimed_slot
from cdc_lake.control.streams import check_unfinished, is_complete, starts_over
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.errors import NotForThisSource, SlotActive, SourceError
from cdc_lake.model.diagnostic import size
from cdc_lake.model.position import Lsn, OrderDomain, format_position
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.source.base import Kind, StreamIdentity, domain_of, format_stream_position
from cdc_lake.source.gaussdb import server, slot
from cdc_lake.source.gaussdb.catalog import check_identities, tables_in_database
from cdc_lake.source.gaussdb.server import GaussDbServerFacts
from cdc_lake.source.gaussdb.slot import GaussDbSlotFacts, find_slot
from cdc_lake.source.gaussdb.snapshot import csn_now, exports_csn
from cdc_lake.source.gaussdb.wire.session import WireSession, connect
from cdc_lake.tables.control_tables import control_tables


class GaussDbIntrospection:
    """One SQL session; a replication connection only to identify the server."""

    def __init__(self, project: Project, session: WireSession) -> None:
        self._project = project
        self._session = session

    def tables(self) -> list[TableName]:
        """The tables that the stream contains, or would contain."""
        return decoding.captured_tables(self._project, self._session)

    def origin(self) -> str:
        """The server, database and slot of a stream of this pipeline (`StreamIdentity.origin`)."""
        facts = identify_server(self._project, self._session)
        slot = self._project.slot
        return StreamIdentity(facts.system, facts.database, slot, Lsn(0), kind=Kind.GAUSS).origin

    def end(self, domain: OrderDomain) -> int:
        """The newest position: everything committed by now lies at or below it."""
        if domain is OrderDomain.LSN:
            return server.current_lsn(self._session).value
        return csn_now(self._session).value - 1

    def received_position(self) -> int | None:
        """None: the family's servers report nothing reliable."""
        return None

    def slot(self) -> base.SlotSeen | None:
        """The pipeline's slot."""
        facts = find_slot(self._session, self._project.slot)
        if facts is None:
            return None
        return base.SlotSeen(
            confirmed=_confirmed_text(facts),
            retained=decoding.retained_wal_bytes(facts, server.current_lsn(self._session)),
            read_by="a receiver" if facts.active else None,
            lost="it has no confirmed position" if facts.confirmed is None else None,
        )

    def steps(self, state: Callable[[], StreamCheckpoint | None]) -> Iterator[base.Action]:
        """What `run` would do at the source; `state`: what bronze has, read after the slot."""
        existing_slot, held = find_slot(self._session, self._project.slot), state()
        facts = identify_server(self._project, self._session)
        server.check_server(facts, self._session.place)
        server.check_product(facts.version, self._project.family.type, self._session.place)
        if is_complete(held, control_tables(self._project)):
            check_resume(self._project, self._session, facts, held, existing_slot)
            yield self._resume(held)
            if decoding.copies_have_a_place(held):
                existing, control = tables_in_database(self._session), control_tables(self._project)
                changes = decoding.family_changes(self._project, self._session, existing, held, control)
                yield from base.copies(self._project, decoding.tables(self._session, changes.waiting))
        else:
            names = self.tables()
            check_identities(decoding.catalog(self._project, self._session, names), self._session.place)
            yield self._create(facts, held, existing_slot)
            yield from base.copies(self._project, decoding.tables(self._session, names))
        yield _decode(self._project)

    def layout(self, table: TableName) -> Relation | None:
        """The current layout of a captured table; None if it is not captured."""
        relation = RelationResolver(decoding.family_tables(self._project, self._session)).relation_of(table)
        return relation if relation.columns else None

    def _create(
        self, facts: GaussDbServerFacts, state: StreamCheckpoint | None, existing_slot: GaussDbSlotFacts | None
    ) -> base.Action:
        project = self._project
        control = control_tables(project)
        check_own_bronze(project, state, control)
        new_stream = starts_over(state, control)
        if state is not None and not new_stream:
            check_unfinished(state)
        if existing_slot is not None and not is_slot_intended(project, facts, control, state, new_stream=new_stream):
            raise unclaimed_slot(project, bronze_reader(project).place, state)
        source = project.family
        again = "start a new stream: " if new_stream else ""
        again += "drop the remains of an earlier start and " if existing_slot is not None else ""
        order = order_of(source, exports=exports_csn(self._session))
        if order is OrderDomain.LSN:
            refuse_csn(project)
        kind = f"{source.slot.plugin}, in {source.slot_order.upper()} order"
        text = f"{again}create slot `{project.slot}` ({kind}); {order_in_words(order)}"
        return base.Action(base.ActionKind.CREATE_SLOT, project.slot, text)

    def _resume(self, state: StreamCheckpoint) -> base.Action:
        slot = self._project.slot
        domain, after = domain_of(state.stream), format_stream_position(state.stream, state.upto)
        lag = max(0, self.end(domain) - state.upto)
        by_csn = domain is OrderDomain.CSN
        how_far = f"{lag:,} CSNs" if by_csn else size(lag)
        retained = None if (current_slot := self.slot()) is None else current_slot.retained
        retained_text = "" if retained is None else f", {size(retained)} of WAL retained"
        return base.Action(
            base.ActionKind.RESUME,
            slot,
            f"resume slot `{slot}` after {after}: {how_far} behind{retained_text}",
            changes=False,
            bytes=None if by_csn else lag,
            transactions=lag if by_csn else None,
        )


@contextmanager
def family_view(project: Project) -> Iterator[GaussDbIntrospection]:
    """Connect. Raises SourceError."""
    with decoding.session_of(project) as session:
        yield GaussDbIntrospection(project, session)


def identify_server(project: Project, session: WireSession) -> GaussDbServerFacts:
    """Identify the server as the receiver does: by a replication connection, unless it uses SQL functions."""
    if decoding.reads_by_sql(project):
        return server_facts(session, by_sql=True)
    replication = connect(server.target_of(project.family, project.root), replication=True)
    return server_facts(replication, by_sql=False)


def order_in_words(order: OrderDomain | None) -> str:
    """The result of `order_of` in words."""
    if order is None:
        return "the stream is ordered by CSN if a probe of it finds every CSN, otherwise by LSN"
    return f"the stream is ordered by {order.name}"


def _decode(project: Project) -> base.Action:
    source = project.family
    how = [f"{name}={value}" for name, value in effective_options(source).items()]
    words = {Mode.SQL: "by SQL functions", Mode.SERIAL: "serially", Mode.PARALLEL: "in parallel"}
    text = f"decode {words[source.decoding_mode]} with {', '.join(how)}"
    return base.Action(base.ActionKind.DECODE, project.slot, text, changes=False)


def _for_the_pipeline(
    project: Project, session: WireSession, facts: GaussDbSlotFacts, state: StreamCheckpoint | None
) -> Iterator[base.SlotThreat]:
    """Why the pipeline could not continue with its slot."""
    if state is None:
        yield base.nothing_of_it(facts.name)
        return
    try:
        check_resume(project, session, identify_server(project, session), state, facts)
    except SourceError as error:
        yield base.SlotThreat(error.message, error.remedy)


def _threats(facts: GaussDbSlotFacts, bronze: base.BesideBronze | None, *, own: bool) -> Iterator[base.SlotThreat]:
    if facts.kind == "logical" and facts.confirmed is None:
        if not own:
            remedy = f"its reader has to start again: cdc-lake slot drop {facts.name} --yes"
            yield base.SlotThreat("it has no confirmed position and cannot be read", remedy)
        return
    if facts.active:
        return
    yield base.unbounded_threat(own=own, bound="")
    held = 0 if bronze is None or facts.order is OrderDomain.CSN else bronze.unconfirmed or 0
    if held >= base.LEAST_LET_GO:
        yield base.held_already(held)


@dataclass(frozen=True, slots=True)
class GaussDbSlots:
    """The slots of a server of the GaussDB family (implements `SlotAdmin`)."""

    project: Project

    def views(self) -> list[base.SlotView]:
        """Every slot, including those of other databases and readers, by name."""
        with decoding.session_of(self.project) as session:
            end, logged = server.current_lsn(session), server.read_settings(session).slots_logged
            return [
                self._view(facts, decoding.retained_wal_bytes(facts, end), logged=logged)
                for facts in slot.all_slots(session)
            ]

    def find(self, name: str) -> base.SlotFound | None:
        """A slot, and the end of the server's WAL."""
        with decoding.session_of(self.project) as session:
            facts, end = slot.find_slot(session, name), server.current_lsn(session)
            if facts is None:
                return None
            log_end = end.value if facts.order is OrderDomain.LSN else None
            return base.SlotFound(_confirmed_text(facts), decoding.retained_wal_bytes(facts, end), log_end)

    def inspect(self, name: str, state: Callable[[], StreamCheckpoint | None]) -> base.SlotDetails | None:
        """Everything about one slot; `state`: what bronze has, read after it, because receivers land first."""
        with decoding.session_of(self.project) as session:
            facts, end = slot.find_slot(session, name), server.current_lsn(session)
            settings = server.read_settings(session)
            if facts is None:
                return None
            view = self._view(facts, decoding.retained_wal_bytes(facts, end), logged=settings.slots_logged)
            have = state()
            bronze = base.beside_bronze(have, facts.confirmed, facts.order) if view.own else None
            return base.SlotDetails(
                pipeline=self.project.name,
                source=session.place,
                server=str(settings.version),
                slot=view,
                order=facts.order.value,
                read_by="a receiver, whose process the server does not name" if facts.active else None,
                restart=None if facts.restart is None else str(facts.restart),
                log_end=str(end),
                catalog_xmin=facts.catalog_xmin,
                bronze=bronze,
                threats=(
                    *(_for_the_pipeline(self.project, session, facts, have) if view.own else ()),
                    *_threats(facts, bronze, own=view.own),
                ),
            )

    def advance(self, state: Callable[[], StreamCheckpoint], upto: int | None) -> base.SlotAdvanced:
        """Advance the pipeline's slot to what bronze has. Raises NotForThisSource for a slot in CSN order."""
        project, name, place = self.project, self.project.slot, self.project.family.place
        if project.family.slot_order == "csn":
            hint = (
                "run `cdc-lake run --once --only receive`, which acknowledges what bronze contains and thereby "
                "advances the slot"
            )
            raise NotForThisSource(f"slot `{name}` is in CSN order: no function can advance it", where=place, hint=hint)
        with connect(server.target_of(project.family, project.root)) as session:
            existing_slot, held = slot.find_slot(session, name), state()
            checked_slot = check_resume(project, session, identify_server(project, session), held, existing_slot)
            before = reached = checked_slot.confirmed
            assert before is not None  # checked by `check_slot`
            assert reached is not None
            if (target := base.within_bronze(held.confirm, upto)) > before:
                if checked_slot.active:
                    raise SlotActive(f"advancing slot `{name}`: a receiver is reading it", where=place)
                reached = slot.advance_slot(session, name, Lsn(target)).value
        return base.SlotAdvanced(project.name, name, str(Lsn(before)), str(Lsn(reached)), reached - before)

    def drop(self, name: str, wait: float) -> None:
        """Drop a slot, waiting up to `wait` seconds for its reader."""
        with connect(server.target_of(self.project.family, self.project.root)) as session:
            slot.drop_slot_when_free(session, name, wait)

    @contextmanager
    def looking(self) -> Iterator[Callable[[], WalSample | None]]:
        """Connect; each call takes a sample of the pipeline's slot, None if it is not readable."""
        with decoding.session_of(self.project) as session:

            def sample_wal() -> WalSample | None:
                facts = slot.find_slot(session, self.project.slot)
                if facts is None or facts.confirmed is None:
                    return None
                log_end = server.current_lsn(session)
                retained = decoding.retained_wal_bytes(facts, log_end)
                if retained is None:
                    return None
                in_bytes = facts.order is OrderDomain.LSN
                end = log_end.value if in_bytes else csn_now(session).value - 1
                return WalSample(time.time(), end, facts.confirmed, retained, in_bytes=in_bytes)

            yield sample_wal

    def _view(self, facts: slot.GaussDbSlotFacts, wal_bytes: int | None, *, logged: bool) -> base.SlotView:
        """`logged`: standbys have the slots too."""
        state, reason = ("active", "read by a receiver") if facts.active else ("idle", "not being read")
        if facts.kind == "logical" and facts.confirmed is None:
            state, reason = "lost", "it has no confirmed position"
        return base.SlotView(
            name=facts.name,
            own=facts.name == self.project.slot,
            kind=facts.kind,
            plugin=facts.plugin,
            database=facts.database,
            temporary=False,
            failover=logged,
            state=state,
            reason=reason,
            confirmed=_confirmed_text(facts),
            retained_bytes=wal_bytes,
            safe_bytes=None,
        )


def _confirmed_text(facts: slot.GaussDbSlotFacts) -> str | None:
    return None if facts.confirmed is None else format_position(facts.confirmed, facts.order)
