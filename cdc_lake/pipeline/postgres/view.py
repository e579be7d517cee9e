"""PostgreSQL as `plan` and `status` see it (`pipeline.ports.view.SourceView`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.lake.control import control_tables
from cdc_lake.model.counting import counted
from cdc_lake.model.position import Lsn, OrderDomain
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.pipeline.ports.action import Action, ActionKind, copies, size
from cdc_lake.pipeline.ports.view import SlotSeen
from cdc_lake.pipeline.postgres.captured import by_publication, captured, filters, layout_now, stated
from cdc_lake.pipeline.postgres.facts import limits, reading, sent_position, tables
from cdc_lake.pipeline.postgres.left import left_by_a_start
from cdc_lake.pipeline.postgres.reading import phased
from cdc_lake.pipeline.postgres.resume import check_own_slot
from cdc_lake.pipeline.postgres.tables import alterable, check_filters, check_maker, table_changes
from cdc_lake.pipeline.state.copies import finished
from cdc_lake.pipeline.state.ownership import check_own_bronze, unclaimed_slot
from cdc_lake.pipeline.state.streams import is_complete, starts_over
from cdc_lake.source import publication, slot
from cdc_lake.source.catalog import behind, check_identities
from cdc_lake.source.connection import Session, place_of
from cdc_lake.source.resume import check_fed_from
from cdc_lake.source.server import check_server, identify, wal_position
from cdc_lake.source.slot import SlotFacts
from cdc_lake.source.stream import StreamIdentity, shown


class PostgresView:
    """One SQL session."""

    def __init__(self, project: Project, session: Session) -> None:
        self._project = project
        self._session = session

    def tables(self) -> list[TableName]:
        """See SourceView."""
        return captured(self._project, self._session)

    def origin(self) -> str:
        """See SourceView."""
        facts = identify(self._session, self._project.postgres)
        return StreamIdentity(facts.system, facts.database, self._project.slot, Lsn(0)).origin

    def end(self, domain: OrderDomain) -> int:
        """See SourceView; always an LSN."""
        del domain
        return wal_position(self._session).value

    def received(self) -> int | None:
        """See SourceView."""
        sent = sent_position(self._session, self._project.slot)
        return sent.value if sent is not None else None

    def slot(self) -> SlotSeen | None:
        """See SourceView."""
        found = slot.find_slot(self._session, self._project.slot)
        if found is None:
            return None
        why = found.invalidation or found.wal_status
        return SlotSeen(
            confirmed=str(found.confirmed) if found.confirmed is not None else None,
            retained=found.retained,
            read_by=f"server process {found.active_pid}" if found.active_pid is not None else None,
            lost=f"the server gave it up ({why})" if found.lost else None,
            safe=found.safe,
            counters=slot.slot_counters(self._session, self._project.slot),
        )

    def steps(self, state: Callable[[], BronzeState | None]) -> Iterator[Action]:
        """See SourceView."""
        check_server(limits(self._session, self._project.postgres), place_of(self._project.postgres))
        names = self.tables()
        yield from self._publication(names, state())
        there = slot.find_slot(self._session, self._project.slot)
        yield from self._stream(there, state(), names)  # read behind the slot: a receiver beside moves both

    def layout(self, table: TableName) -> Relation | None:
        """See SourceView."""
        found = layout_now(self._project, self._session, table)
        reader = bronze_reader(self._project)
        state = reader.state() if found is not None else None
        if found is None or state is None:
            return found
        return behind(self._session, found, reader.last_layout(state.epoch, table))

    def _publication(self, names: Sequence[TableName], state: BronzeState | None) -> Iterator[Action]:
        if not by_publication(self._project):
            return
        name = self._project.publication
        if not is_complete(state, control_tables(self._project)):
            check_maker(self._project, self._session)
        if not publication.publication_exists(self._session, name):
            check_identities(self._session, names)
            filtered = len(filters(self._project, self._session, names))
            listed = str(names[0]) if len(names) == 1 else f"{len(names)} tables"
            text = f"create publication `{name}` for {listed}"
            text += f", with filters of rows for {counted(filtered, 'table')}" if filtered else ""
            yield Action(ActionKind.CREATE_PUBLICATION, name, text)
        else:
            check_filters(self._project, self._session, state, control_tables(self._project))

    def _stream(
        self, there: SlotFacts | None, state: BronzeState | None, names: Sequence[TableName]
    ) -> Iterator[Action]:
        project, session = self._project, self._session
        left = there is not None and left_by_a_start(project, session, there, state)
        there = None if left else there
        control = control_tables(project)
        check_own_bronze(project, state, control)
        again = starts_over(state, control)
        if there is not None and (state is None or again):
            raise unclaimed_slot(project, bronze_reader(project).place, state)
        started = (
            not again
            and state is not None
            and (there is not None or state.upto != StreamIdentity.parse(state.stream).start)
        )
        if state is not None and started:
            facts = identify(session, project.postgres)
            identity = StreamIdentity.parse(state.stream)
            check_fed_from(identity, system=facts.system, database=facts.database, slot=project.slot)
            checked = check_own_slot(project, there, project.postgres.database, state.confirm)
            behind = max(0, wal_position(session).value - state.upto)
            retained = f", {size(checked.retained)} of WAL retained" if checked.retained is not None else ""
            after = shown(state.stream, state.upto)
            text = f"resume slot `{project.slot}` after {after}: {size(behind)} behind{retained}"
            yield Action(ActionKind.RESUME, project.slot, text, changes=False, bytes=behind)
            if not is_complete(state, control):
                whole = {one.relation for one in finished(control.snapshots(), state.stream, state.epoch)}
                yield from copies(project, tables(session, [name for name in names if name not in whole]))
            else:
                yield from self._come_and_gone(state)
            return
        kind = f"{project.postgres.slot.plugin}{', two-phase' if phased(project) else ''}"
        first = "begin a new stream: " if again else ""
        first += "drop what an earlier start left and " if left else ""
        yield Action(ActionKind.CREATE_SLOT, project.slot, f"{first}create slot `{project.slot}` ({kind})")
        yield from copies(project, tables(session, names))

    def _come_and_gone(self, state: BronzeState) -> Iterator[Action]:
        """What a start does with tables that came to `source.tables` or went."""
        project, session = self._project, self._session
        if by_publication(project) and not publication.publication_exists(session, project.publication):
            return
        found, name = table_changes(project, session, state, control_tables(project)), project.publication
        refused = publication.not_addable(session, name, found.lacking) if alterable(project) else ()
        for verb, words, some in (("ADD", "to", found.lacking), ("DROP", "from", found.extra)):
            for table in some:
                statement, why = publication.altering(name, verb, table, filters=stated(project)), ""
                if not alterable(project):
                    why = f"; it is not the pipeline's own: {statement}"
                elif table in refused:
                    why = f"; the role has to own both, a superuser may: {statement}"
                text = f"{verb.lower()} {table} {words} publication `{name}`{why}"
                yield Action(ActionKind.ALTER_PUBLICATION, str(table), text, changes=not why)
        may = (table for table in found.lacking if alterable(project) and table not in refused)
        came = (*may, *found.waiting)
        yield from copies(project, tables(session, came))


@contextmanager
def postgres_view(project: Project) -> Iterator[PostgresView]:
    """Connect. Raises SourceError."""
    with reading(project) as session:
        yield PostgresView(project, session)
