"""Tables that came to `source.tables` of the GaussDB family, or went, since the stream began.

    recorded as left at what bronze holds → copied (`pipeline.receiving.recopy`) → the copy in force

The servers know no publication: what is chosen is sent. A table that went is left and stays so. One that came is left
too, so that silver waits for its copy, whatever the stream has of it before. A stream that is ordered by LSN has no
place for such a copy: what came then begins with its changes, and one that comes back stays left.
"""

from __future__ import annotations

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.decode.mppdb.layouts import Layouts
from cdc_lake.errors import CopyUnplaced, NoReplicaIdentity, NoTableMatches
from cdc_lake.lake.control import ControlTables
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import TableName
from cdc_lake.model.span import Span
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.gaussdb.facts import captured, catalog
from cdc_lake.pipeline.state.copies import courses
from cdc_lake.pipeline.stream.table_changes import TableChanges, changes_of, leave, newcomers
from cdc_lake.source.gaussdb.catalog import FamilyTables, check_identities, tables_in_database
from cdc_lake.source.stream import domain_of
from cdc_lake.source.wire.session import WireSession


def family_changes(project: Project, session: WireSession, state: BronzeState, control: ControlTables) -> TableChanges:
    """Look. Raises SourceError, LakeError."""
    try:
        chosen = captured(project, session)
    except NoTableMatches:
        return TableChanges()  # a table that was dropped at the source: what it had is in bronze
    known = courses(control.snapshots(), state.stream)
    landed = bronze_reader(project).layouts(None, Span(state.epoch, -1, state.upto)).values()
    new = {table for table in chosen if str(table) not in known}
    came: set[TableName] = set()
    if project.pipeline.snapshot.copies:
        came = newcomers(new, landed, Layouts(FamilyTables(session)).relation_of)
    carried = {*chosen, *(layout.table for layout in landed)}
    return changes_of(chosen, carried, tables_in_database(session), known, came, published=False)


def settle_family(
    project: Project, session: WireSession, state: BronzeState, control: ControlTables, tell: Tell
) -> tuple[TableName, ...]:
    """Bring the record to what `source.tables` says; the tables to be copied then. Nothing may be read of the stream
    meanwhile. Raises SourceError, LakeError.
    """
    found = family_changes(project, session, state, control)
    placed = copies_have_a_place(state)
    leave(found, found.waiting if placed else (), control, state, tell)
    if not placed:
        for table in found.waiting:
            words = "it stays as it was left" if table in found.left else "it begins with its changes from now on"
            text = f"table {table} came to a stream that is ordered by LSN: no copy has a place there, {words}"
            tell(Progress("warning", text, facts={"code": CopyUnplaced.code}))
        return ()
    return tuple(table for table in found.waiting if _identified(session, table, tell))


def copies_have_a_place(state: BronzeState) -> bool:
    """Whether a table can be copied beside the stream."""
    return domain_of(state.stream) is OrderDomain.CSN


def _identified(session: WireSession, table: TableName, tell: Tell) -> bool:
    try:
        check_identities(catalog(session, [table]), session.place)
    except NoReplicaIdentity as bare:
        tell(Progress("warning", f"table {table} is not copied: {bare.message}", facts={"code": bare.code}))
        return False
    return True
