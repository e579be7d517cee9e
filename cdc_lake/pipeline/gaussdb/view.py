"""A server of the GaussDB family as `plan` and `status` see it (`pipeline.ports.view.SourceView`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.gaussdb_options import Mode
from cdc_lake.config.gaussdb_sent import effective_options
from cdc_lake.config.project import Project
from cdc_lake.decode.mppdb.layouts import Layouts
from cdc_lake.lake.control import control_tables
from cdc_lake.model.position import Lsn, OrderDomain, format_position
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.pipeline.gaussdb.density import order_of, refuse_csn
from cdc_lake.pipeline.gaussdb.facts import captured, catalog, family_tables, retained, session_of, tables
from cdc_lake.pipeline.gaussdb.frames import reads_by_sql
from cdc_lake.pipeline.gaussdb.start import intended
from cdc_lake.pipeline.gaussdb.stream import check_resume, server_facts
from cdc_lake.pipeline.gaussdb.tables import copies_have_a_place, family_changes
from cdc_lake.pipeline.ports.action import Action, ActionKind, copies, size
from cdc_lake.pipeline.ports.view import SlotSeen
from cdc_lake.pipeline.state.ownership import check_own_bronze, unclaimed_slot
from cdc_lake.pipeline.state.streams import check_unfinished, is_complete, starts_over
from cdc_lake.source.gaussdb.catalog import check_identities
from cdc_lake.source.gaussdb.connection import target_of
from cdc_lake.source.gaussdb.server import (
    FamilyServerFacts,
    check_server,
    current_lsn,
)
from cdc_lake.source.gaussdb.slot import FamilySlotFacts, find_slot
from cdc_lake.source.gaussdb.snapshot import csn_now, exports_csn
from cdc_lake.source.gaussdb.version import check_product
from cdc_lake.source.stream import Kind, StreamIdentity, domain_of, shown
from cdc_lake.source.wire.connect import connect
from cdc_lake.source.wire.session import WireSession


class FamilyView:
    """One SQL session; a replication connection only to learn who the server is."""

    def __init__(self, project: Project, session: WireSession) -> None:
        self._project = project
        self._session = session

    def tables(self) -> list[TableName]:
        """See SourceView."""
        return captured(self._project, self._session)

    def origin(self) -> str:
        """See SourceView."""
        facts = who(self._project, self._session)
        slot = self._project.slot
        return StreamIdentity(facts.system, facts.database, slot, Lsn(0), kind=Kind.GAUSS).origin

    def end(self, domain: OrderDomain) -> int:
        """See SourceView."""
        if domain is OrderDomain.LSN:
            return current_lsn(self._session).value
        return csn_now(self._session).value - 1

    def received(self) -> int | None:
        """See SourceView; the family's servers tell nothing of it that could be relied on."""
        return None

    def slot(self) -> SlotSeen | None:
        """See SourceView."""
        found = find_slot(self._session, self._project.slot)
        if found is None:
            return None
        return SlotSeen(
            confirmed=format_position(found.confirmed, found.order) if found.confirmed is not None else None,
            retained=retained(found, current_lsn(self._session)),
            read_by="a receiver" if found.active else None,
            lost="it has no confirmed position" if found.confirmed is None else None,
        )

    def steps(self, state: Callable[[], BronzeState | None]) -> Iterator[Action]:
        """See SourceView."""
        there, held = find_slot(self._session, self._project.slot), state()
        facts = who(self._project, self._session)
        check_server(facts, self._session.place)
        check_product(facts.version, self._project.family.type, self._session.place)
        if is_complete(held, control_tables(self._project)):
            check_resume(self._project, self._session, facts, held, there)
            yield self._resume(held)
            yield from self._came(held)
        else:
            names = self.tables()
            check_identities(catalog(self._project, self._session, names), self._session.place)
            yield self._create(facts, held, there)
            yield from copies(self._project, tables(self._session, names))
        yield _decode(self._project)

    def layout(self, table: TableName) -> Relation | None:
        """See SourceView."""
        relation = Layouts(family_tables(self._project, self._session)).relation_of(table)
        return relation if relation.columns else None

    def _create(self, facts: FamilyServerFacts, state: BronzeState | None, there: FamilySlotFacts | None) -> Action:
        project = self._project
        control = control_tables(project)
        check_own_bronze(project, state, control)
        anew = starts_over(state, control)
        if state is not None and not anew:
            check_unfinished(state)
        if there is not None and not intended(project, facts, control, state, anew=anew):
            raise unclaimed_slot(project, bronze_reader(project).place, state)
        source = project.family
        again = "begin a new stream: " if anew else ""
        again += "drop what an earlier start left and " if there is not None else ""
        order = order_of(source, exports=exports_csn(self._session))
        if order is OrderDomain.LSN:
            refuse_csn(project)
        kind = f"{source.slot.plugin}, in {source.slot_order.upper()} order"
        text = f"{again}create slot `{project.slot}` ({kind}); {order_in_words(order)}"
        return Action(ActionKind.CREATE_SLOT, project.slot, text)

    def _came(self, state: BronzeState) -> Iterator[Action]:
        """The copies of tables that came to `source.tables`."""
        if copies_have_a_place(state):
            found = family_changes(self._project, self._session, state, control_tables(self._project))
            yield from copies(self._project, tables(self._session, found.waiting))

    def _resume(self, state: BronzeState) -> Action:
        slot = self._project.slot
        domain, after = domain_of(state.stream), shown(state.stream, state.upto)
        behind = max(0, self.end(domain) - state.upto)
        by_csn = domain is OrderDomain.CSN
        how_far = f"{behind:,} CSNs" if by_csn else size(behind)
        seen = self.slot()
        kept = f", {size(seen.retained)} of WAL retained" if seen is not None and seen.retained is not None else ""
        return Action(
            ActionKind.RESUME,
            slot,
            f"resume slot `{slot}` after {after}: {how_far} behind{kept}",
            changes=False,
            bytes=None if by_csn else behind,
            transactions=behind if by_csn else None,
        )


@contextmanager
def family_view(project: Project) -> Iterator[FamilyView]:
    """Connect. Raises SourceError."""
    with session_of(project) as session:
        yield FamilyView(project, session)


def who(project: Project, session: WireSession) -> FamilyServerFacts:
    """Who the server is, asked as the receiver asks: by a replication connection, unless it reads by SQL functions."""
    if reads_by_sql(project):
        return server_facts(session, by_sql=True)
    replication = connect(target_of(project.family, project.root), replication=True)
    return server_facts(replication, by_sql=False)


def order_in_words(order: OrderDomain | None) -> str:
    """What `order_of` says, for people."""
    if order is None:
        return "the stream is ordered by CSN if a look at it shows every CSN, otherwise by LSN"
    return f"the stream is ordered by {order.name}"


def _decode(project: Project) -> Action:
    source = project.family
    how: Sequence[str] = [f"{name}={value}" for name, value in effective_options(source).items()]
    words = {Mode.SQL: "by SQL functions", Mode.SERIAL: "serially", Mode.PARALLEL: "in parallel"}
    text = f"decode {words[source.decoding_mode]} with {', '.join(how)}"
    return Action(ActionKind.DECODE, project.slot, text, changes=False)
