"""Tables that came to `source.tables` of the GaussDB family, or went, since the stream began.

    recorded as left at what bronze holds → copied (`pipeline.receiving.recopy`) → the copy in force

The servers know no publication: what is chosen is sent. A table that went is left and stays so. One that came is left
too, so that silver waits for its copy, whatever the stream has of it before. A stream that is ordered by LSN has no
place for such a copy: what came then begins with its changes, and one that comes back stays left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.decode.mppdb.facts import named_by
from cdc_lake.errors import CopyUnplaced, NoReplicaIdentity, NoTableMatches
from cdc_lake.lake.control import ControlTables
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import TableName
from cdc_lake.model.span import Span
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.gaussdb.facts import catalog
from cdc_lake.pipeline.state.copies import courses
from cdc_lake.pipeline.state.memberships import last_members, moved, note_members, renamed
from cdc_lake.pipeline.stream.table_changes import TableChanges, changes_of, leave, newcomers, tell_renamed
from cdc_lake.source.captured import Published
from cdc_lake.source.gaussdb.catalog import check_identities, tables_in_database, versions_of
from cdc_lake.source.stream import domain_of
from cdc_lake.source.tables import chooses, select_tables
from cdc_lake.source.wire.session import WireSession


def family_changes(project: Project, session: WireSession, state: BronzeState, control: ControlTables) -> TableChanges:
    """Look. Raises SourceError, LakeError."""
    return _changes(project, session, tables_in_database(session), state, control)


def _changes(
    project: Project, session: WireSession, there: Mapping[TableName, int], state: BronzeState, control: ControlTables
) -> TableChanges:
    """`there`: OIDs of the tables of the database."""
    known, members = courses(control.snapshots(), state.stream), last_members(control, state)
    try:
        chosen = select_tables(project.family.tables, sorted(there))
    except NoTableMatches:  # a table that was dropped at the source: what it had is in bronze
        found = changes_of((), (), there, known, (), published=False, read=members)
        return TableChanges(left=found.left, dropped=found.dropped)
    landed = bronze_reader(project).layouts(None, Span(state.epoch, -1, state.upto)).values()
    new = {table for table in chosen if str(table) not in known}
    came: set[TableName] = set()
    if project.pipeline.snapshot.copies:
        came = newcomers(new, landed)
    carried = {*chosen, *(layout.table for layout in landed)}
    other = moved(_published(session, chosen), members)
    return changes_of(chosen, carried, there, known, came, published=False, moved=other, read=members)


def _published(session: WireSession, tables: Collection[TableName]) -> list[Published]:
    found = versions_of(session, tables) if tables else {}
    return [Published(table, (), None, named_by(version), oid) for table, (oid, version) in found.items()]


def settle_family(
    project: Project, session: WireSession, state: BronzeState, control: ControlTables, tell: Tell, ends: int
) -> tuple[TableName, ...]:
    """Bring the record to what `source.tables` says; the tables to be copied then. Nothing may be read of the stream
    meanwhile. `ends`: a position that everything committed by now lies at or below. Raises SourceError, LakeError.
    """
    there = tables_in_database(session)
    found = _changes(project, session, there, state, control)
    placed = copies_have_a_place(state)
    leave(found, found.waiting if placed else found.moved, control, state, tell, ends)
    for table in sorted(found.moved):
        tell(Progress("connect", f"{table} is another table than before: it was renamed or made anew"))
    chosen = chooses(project.family.tables)
    members = _published(session, [*filter(chosen, there)])
    if placed and not project.pipeline.snapshot.copies:
        tell_renamed(renamed(members, last_members(control, state)), tell)
    note_members(members, control, state)
    if not placed:
        for table in found.waiting:
            stays = table in found.left or table in found.moved
            words = "it stays as it was left" if stays else "it begins with its changes from now on"
            text = f"table {table} came to a stream that is ordered by LSN: no copy has a place there, {words}"
            tell(Progress("warning", text, facts={"code": CopyUnplaced.code}))
        return ()
    return tuple(table for table in found.waiting if _identified(project, session, table, tell))


def copies_have_a_place(state: BronzeState) -> bool:
    """Whether a table can be copied beside the stream."""
    return domain_of(state.stream) is OrderDomain.CSN


def _identified(project: Project, session: WireSession, table: TableName, tell: Tell) -> bool:
    try:
        check_identities(catalog(project, session, [table]), session.place)
    except NoReplicaIdentity as bare:
        tell(Progress("warning", f"table {table} is not copied: {bare.message}", facts={"code": bare.code}))
        return False
    return True
