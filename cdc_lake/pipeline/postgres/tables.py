"""Tables that came to `source.tables`, or went, since the stream began: record and publication follow, step by step.

    recorded as left at what bronze holds → publication altered → copied (`pipeline.receiving.recopy`) → the copy in
    force

A table that went is left and stays so. One that came is left too, so that silver waits for its copy, whatever the
stream has of it before. What breaks off is found by the next start as it was left: only such tables are copied.

A table that somebody took out of the publication and put back is left and copied like one that came
(`pipeline.state.memberships`).

A publication that the pipeline file names is somebody's own. It is not altered, and nor is one that the role may not
alter: what is missing is told with the statement. One that the file does not name, and that says that another pipeline
made it, begins no stream.
"""

from __future__ import annotations

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.errors import NoReplicaIdentity, NoTableMatches, PublicationUnfit, SourceError, TableLocked
from cdc_lake.lake.control import ControlTables
from cdc_lake.model.relation import TableName
from cdc_lake.observe.failpoint import PUBLICATION_ALTERED, failpoint
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.postgres.captured import (
    by_publication,
    carried,
    filters,
    in_database,
    stated,
    wanted,
)
from cdc_lake.pipeline.state.copies import courses
from cdc_lake.pipeline.state.memberships import last_members, moved, note_members, renamed
from cdc_lake.pipeline.stream.table_changes import TableChanges, changes_of, leave, newcomers, tell_renamed
from cdc_lake.source import publication, slot
from cdc_lake.source.catalog import check_identities
from cdc_lake.source.connection import Session
from cdc_lake.source.row_filters import check_filtered
from cdc_lake.source.tables import chooses


def table_changes(project: Project, session: Session, state: BronzeState, control: ControlTables) -> TableChanges:
    """Look. Raises SourceError, LakeError."""
    known = courses(control.snapshots(), state.stream)
    carries = carried(project, session)
    there, copies = {one.table for one in carries}, project.pipeline.snapshot.copies
    members = last_members(control, state)
    other = moved(carries, members) if copies else frozenset()
    existing = in_database(project, session)
    try:
        chosen = wanted(project, session)
    except NoTableMatches:  # a table that was dropped at the source: what it had is in bronze
        other = frozenset(table for table in other if str(table) in known and not known[str(table)].waits)
        gone = changes_of((), (), existing, known, (), published=False, read=members)
        return TableChanges(waiting=tuple(sorted(other)), left=gone.left, moved=other, dropped=gone.dropped)
    new = {table for table in there.intersection(chosen) if str(table) not in known}
    came: set[TableName] = set()
    if new and copies:
        came = newcomers(new, bronze_reader(project).layouts().values())
    published = by_publication(project)
    return changes_of(chosen, there, existing, known, came, published=published, moved=other, read=members)


def check_filters(project: Project, session: Session, state: BronzeState | None, control: ControlTables) -> None:
    """Raise RowFilterUnfit, and PublicationUnfit where a publication is there without the filters; SourceError. A table
    that was followed and is dropped at the source needs its filter no more.
    """
    if not project.postgres.row_filters:
        return
    takes, known = chooses(project.postgres.tables), {} if state is None else courses(control.snapshots(), state.stream)
    found = filters(project, session, [one for one in in_database(project, session) if takes(one)], known)
    if publication.publication_exists(session, project.publication):
        check_filtered(project.publication, carried(project, session), found)


def settle_tables(
    project: Project, session: Session, state: BronzeState, control: ControlTables, tell: Tell, ends: int
) -> tuple[TableName, ...]:
    """Bring record and publication to what `source.tables` says; the tables to be copied then. The stream must not be
    read meanwhile. `ends`: a position that everything committed by now lies at or below. Raises SourceError, LakeError.
    """
    found = table_changes(project, session, state, control)
    check_filters(project, session, state, control)
    copies, may = project.pipeline.snapshot.copies, alterable(project)
    came = [table for table in found.lacking if not may or _identified(session, table, tell)]
    leave(found, (*came, *found.waiting) if copies else (), control, state, tell, ends)
    added = [table for table in came if may and _altered(project, session, "ADD", table, tell)]
    for table in found.extra if may else ():
        _altered(project, session, "DROP", table, tell)
    failpoint(PUBLICATION_ALTERED)
    for table in sorted(found.moved):
        what = (
            f"publication `{project.publication}` was altered"
            if by_publication(project)
            else "it was renamed or made anew"
        )
        tell(_told(f"{what}: table {table} is copied again"))
    for table in came if not may else ():
        statement = publication.altering(project.publication, "ADD", table, filters=stated(project))
        text = f"table {table} matches `source.tables` and is not captured: {statement}, then start again"
        tell(_told(text))
    _note_members(project, session, state, control, tell)
    waits = (table for table in added if copies or table in found.left)
    return (*waits, *found.waiting)


def _note_members(project: Project, session: Session, state: BronzeState, control: ControlTables, tell: Tell) -> None:
    """Keep by what the publication has its tables from here."""
    carries = carried(project, session)
    if not project.pipeline.snapshot.copies:
        members = last_members(control, state)
        other = moved(carries, members)
        for table in sorted(other):
            text = f"table {table} was renamed or made anew: what was changed meanwhile may be missing"
            if by_publication(project):
                text = f"publication `{project.publication}` was altered: what it left out of table {table} is missing"
            tell(Progress("warning", f"{text}, and `snapshot.mode` asks for no copy: cdc-lake resync {table}"))
        tell_renamed({table: name for table, name in renamed(carries, members).items() if table not in other}, tell)
    note_members(carries, control, state)


def alterable(project: Project) -> bool:
    """Whether the publication is the pipeline's own."""
    return by_publication(project) and project.postgres.publication is None


def check_maker(project: Project, session: Session) -> None:
    """Raise PublicationUnfit where the pipeline is about to take another one's publication for its own. Who made it for
    a slot that is not there any more does not read it any more.
    """
    name = project.publication
    maker = publication.maker_of(session, name) if alterable(project) else None
    if maker is None or maker.slot == project.slot:
        return
    there = slot.find_slot(session, maker.slot)
    if there is None or there.database != project.postgres.database:
        return
    raise PublicationUnfit(
        f"publication `{name}` belongs to pipeline `{maker.pipeline}`, which reads it by slot `{maker.slot}`, and this "
        f"pipeline is `{project.name}` with slot `{project.slot}`",
        hint="name one of its own in `source.publication`, and it will be made; named there, this one would be read as "
        "it is, and left to its owner",
    )


def _identified(session: Session, table: TableName, tell: Tell) -> bool:
    try:
        check_identities(session, [table])
    except NoReplicaIdentity as bare:
        tell(_told(f"table {table} is not captured: {bare.message}"))
        return False
    return True


def _altered(project: Project, session: Session, verb: str, table: TableName, tell: Tell) -> bool:
    """Alter the publication; False where the server refuses, which is told with what to run."""
    try:
        publication.alter_publication(session, project.publication, verb, table, filters=stated(project))
    except TableLocked:
        raise  # nobody refused
    except SourceError as refused:
        statement = publication.altering(project.publication, verb, table, filters=stated(project))
        facts = {"code": refused.code}
        tell(Progress("warning", f"{refused.message}; let its owner run: {statement}", facts=facts))
        return False
    words = "now has" if verb == "ADD" else "no more has"
    tell(_told(f"publication `{project.publication}` {words} {table}"))
    return True


def _told(text: str) -> Progress:
    return Progress("connect", text)
