"""What a pipeline captures of a PostgreSQL: what its publication carries, or, of a plugin that takes none, what the
patterns of `tables` choose.
"""

from __future__ import annotations

from collections.abc import Collection

from cdc_lake.config.project import Project
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.source import decoded_tables, publication
from cdc_lake.source.captured import Published
from cdc_lake.source.catalog import relation_of
from cdc_lake.source.connection import Session
from cdc_lake.source.plugins import PGOUTPUT
from cdc_lake.source.row_filters import RowFilter, understood
from cdc_lake.source.tables import select_tables


def by_publication(project: Project) -> bool:
    """Whether a publication says what is captured."""
    return project.postgres.slot.plugin == PGOUTPUT


def carried(project: Project, session: Session) -> list[Published]:
    """What the stream carries, sorted by table; raises PublicationMissing, NoTableMatches."""
    if by_publication(project):
        return publication.published(session, project.publication)
    return decoded_tables.carried(session, project.postgres.tables)


def wanted(project: Project, session: Session) -> list[TableName]:
    """The tables that the patterns choose now, of those that the plugin can show; raises NoTableMatches."""
    return select_tables(project.postgres.tables, in_database(project, session))


def stated(project: Project) -> dict[TableName, str]:
    """The conditions of `source.row_filters`, as they were written."""
    return {TableName.parse(name): condition for name, condition in project.postgres.row_filters.items()}


def filters(
    project: Project, session: Session, tables: Collection[TableName], gone: Collection[str] = ()
) -> dict[TableName, RowFilter]:
    """The filters of `source.row_filters`, as the server understands them; `tables`: those that are captured, `gone`:
    names of tables that were, and may be there no more. Raises RowFilterUnfit, SourceError.
    """
    there = {name: one for name, one in stated(project).items() if name in tables or str(name) not in gone}
    return understood(session, there, tables)


def in_database(project: Project, session: Session) -> list[TableName]:
    """The tables that there are, of those that the plugin can show. Raises SourceError."""
    if by_publication(project):
        return publication.tables_in_database(session)
    return sorted(decoded_tables.tables_in_database(session))


def captured(project: Project, session: Session) -> list[TableName]:
    """The tables the stream carries, or will carry where the publication is not made yet. Raises SourceError."""
    if by_publication(project) and publication.publication_exists(session, project.publication):
        return [p.table for p in publication.published(session, project.publication)]
    return wanted(project, session)


def layout_now(project: Project, session: Session, table: TableName) -> Relation | None:
    """The layout that the stream gives a table now, None where it does not carry it. Raises SourceError."""
    if not by_publication(project):
        return decoded_tables.layout_of(session, table)
    if not publication.publication_exists(session, project.publication):
        return relation_of(session, table, None)
    found = publication.published(session, project.publication)
    columns = next((p.columns for p in found if p.table == table), None)
    return None if columns is None else relation_of(session, table, columns)
