"""Tables that came to `source.tables`, or went, since the stream began: record and publication follow, step by step.

    recorded as left at what bronze holds → publication altered → copied (`pipeline.recopy`) → the copy in force

A table that went is left and stays so. One that came is left too, so that silver waits for its copy, whatever the
stream has of it before. What breaks off is found by the next start as it was left: only such tables are copied.

A publication that the pipeline file names is somebody's own. It is not altered, and nor is one that the role may not
alter: what is missing is told with the statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.errors import NoReplicaIdentity, NoTableMatches, SourceError
from cdc_lake.lake.control import ControlTables
from cdc_lake.model.relation import TableName
from cdc_lake.observe.failpoint import PUBLICATION_ALTERED, TABLES_LEFT, failpoint
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.copies import Course, courses, record_left
from cdc_lake.pipeline.postgres_captured import by_publication, carried, in_database, layout_now, wanted
from cdc_lake.source import publication
from cdc_lake.source.catalog import check_identities
from cdc_lake.source.connection import Session


@dataclass(frozen=True, slots=True)
class TableChanges:
    """What `source.tables` says otherwise than the stream has it. `lacking`: chosen and not published; `waiting`: left,
    chosen again and published; `gone`: followed, there and not chosen; `extra`: of those what is published; `known`:
    the course of each table, by name.
    """

    lacking: tuple[TableName, ...]
    waiting: tuple[TableName, ...]
    gone: tuple[TableName, ...]
    extra: tuple[TableName, ...]
    known: Mapping[str, Course]

    def waits(self, table: TableName) -> bool:
        """Whether a table was left and not copied since."""
        return self.known.get(str(table), Course()).waits


def table_changes(project: Project, session: Session, state: BronzeState, control: ControlTables) -> TableChanges:
    """Look. Raises SourceError, LakeError."""
    known = courses(control.snapshots(), state.stream)
    try:
        chosen = set(wanted(project, session))
    except NoTableMatches:
        return TableChanges((), (), (), (), known)  # a table that was dropped at the source: what it had is in bronze
    there = {one.table for one in carried(project, session)}
    followed = {TableName.parse(name) for name, course in known.items() if not course.waits}
    left = {TableName.parse(name) for name, course in known.items() if course.waits}
    gone = (there - left | followed) & set(in_database(project, session)) - chosen
    came = _came(project, session, chosen & there, known)
    return TableChanges(
        lacking=tuple(sorted(chosen - there)),
        waiting=tuple(sorted(chosen & there & left | came)),
        gone=tuple(sorted(gone)),
        extra=tuple(sorted((there - chosen) if by_publication(project) else ())),
        known=known,
    )


def settle_tables(
    project: Project, session: Session, state: BronzeState, control: ControlTables, tell: Tell
) -> tuple[TableName, ...]:
    """Bring record and publication to what `source.tables` says; the tables to be copied then. The stream must not be
    read meanwhile. Raises SourceError, LakeError.
    """
    found = table_changes(project, session, state, control)
    copies, may = project.pipeline.snapshot.mode == "initial", alterable(project)
    came = [table for table in found.lacking if not may or _identified(session, table, tell)]
    leaves = [*found.gone, *((*came, *found.waiting) if copies else ())]
    if leaves := [table for table in leaves if not found.waits(table)]:
        record_left(control, state, leaves)
    failpoint(TABLES_LEFT)
    for table in found.gone:
        tell(_told(f"table {table} is not followed any more: `source.tables` leaves it out"))
    added = [table for table in came if may and _altered(project, session, "ADD", table, tell)]
    for table in found.extra if may else ():
        _altered(project, session, "DROP", table, tell)
    failpoint(PUBLICATION_ALTERED)
    for table in came if not may else ():
        statement = publication.altering(project.publication, "ADD", table)
        text = f"table {table} matches `source.tables` and is not captured: {statement}, then start again"
        tell(_told(text))
    waits = (table for table in added if copies or found.waits(table))
    return (*waits, *found.waiting)


def alterable(project: Project) -> bool:
    """Whether the publication is the pipeline's own."""
    return by_publication(project) and project.postgres.publication is None


def _came(
    project: Project, session: Session, there: Iterable[TableName], known: Mapping[str, Course]
) -> set[TableName]:
    """Tables that came into the publication by somebody else's hand, and of which bronze has nothing yet. One that has
    another name now is none of them.
    """
    new = {table for table in there if str(table) not in known}
    if not new or project.pipeline.snapshot.mode != "initial":
        return set()
    layouts = bronze_reader(project).layouts().values()
    names, numbers = {layout.table for layout in layouts}, {layout.oid for layout in layouts if layout.oid is not None}
    out = set()
    for table in new - names:
        now = layout_now(project, session, table)
        if now is not None and now.oid not in numbers:
            out.add(table)
    return out


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
        publication.alter_publication(session, project.publication, verb, table)
    except SourceError as refused:
        statement = publication.altering(project.publication, verb, table)
        facts = {"code": refused.code}
        tell(Progress("warning", f"{refused.message}; let its owner run: {statement}", facts=facts))
        return False
    words = "now has" if verb == "ADD" else "no more has"
    tell(_told(f"publication `{project.publication}` {words} {table}"))
    return True


def _told(text: str) -> Progress:
    return Progress("connect", text)
