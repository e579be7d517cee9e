"""Filters of rows: conditions that a publication puts on the rows of a table (PostgreSQL 15 and newer).

What a condition means the server says itself: as a CHECK of a temporary table of the same columns, in a transaction
that is rolled back, it is printed as a publication would print it, with the columns it asks for. So nothing is
published, and no rights on the table are needed but to read it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from cdc_lake.errors import PublicationUnfit, QueryRefused, RowFilterUnfit, SourcePermission
from cdc_lake.model.relation import TableName
from cdc_lake.source.captured import Published
from cdc_lake.source.catalog import outside_identity, whole_identity
from cdc_lake.source.connection import Session, named
from cdc_lake.source.publication import altering
from cdc_lake.source.quoting import identifier, quoted

_TRIAL = "cdc_lake_filter"


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A condition as it was written, as the server prints it, and the columns it asks for."""

    condition: str
    printed: str
    columns: tuple[str, ...]


def understood(
    session: Session, conditions: Mapping[TableName, str], tables: Collection[TableName]
) -> dict[TableName, RowFilter]:
    """What filters mean, by table; `tables`: those that are captured. Raises RowFilterUnfit, SourceError."""
    if conditions and not _takes_filters(session):
        version = session.info.parameter_status("server_version")
        raise RowFilterUnfit(
            f"publications filter no rows before PostgreSQL 15, and this server is {version}",
            hint="remove `source.row_filters`, and leave rows out of silver by `where` of its table",
        )
    if unknown := sorted(set(conditions) - set(tables)):
        raise RowFilterUnfit(
            f"{', '.join(map(str, unknown))} of `source.row_filters` is no table that is captured",
            hint="name tables that `source.tables` chooses, and of a partitioned one its root",
        )
    return {table: _understood(session, table, condition) for table, condition in sorted(conditions.items())}


def _takes_filters(session: Session) -> bool:
    with named("looking whether publications filter rows"):
        row = session.execute(
            "SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'pg_publication_rel'::regclass "
            "AND attname = 'prqual' AND NOT attisdropped)"
        ).fetchone()
    return row is not None and bool(row[0])


def _understood(session: Session, table: TableName, condition: str) -> RowFilter:
    try:
        found = _tried(session, table, condition)
    except QueryRefused as refused:
        raise RowFilterUnfit(f"`{condition}` is no condition on rows of {table}: {refused.message}") from refused
    except SourcePermission as refused:
        user, database = identifier(session.info.user), identifier(session.info.dbname)
        hint = f"it takes SELECT on the table, and: GRANT TEMPORARY ON DATABASE {database} TO {user}"
        raise RowFilterUnfit(f"what `{condition}` means cannot be asked: {refused.message}", hint=hint) from refused
    if outside := outside_identity(session, table, found.columns):
        raise RowFilterUnfit(
            f"the filter of {table} asks for {', '.join(outside)}, which is not part of its replica identity: "
            "the server would refuse its updates and deletes once it is published",
            hint=f"filter by columns of its key, or run: {whole_identity(table)}",
        )
    return found


def _tried(session: Session, table: TableName, condition: str) -> RowFilter:
    with named(f"asking what the filter of {table} means"), session.transaction(force_rollback=True):
        session.execute("SET TRANSACTION READ WRITE")
        session.execute(f"CREATE TEMPORARY TABLE {_TRIAL} (LIKE {quoted(table)})".encode())
        session.execute(f"ALTER TABLE pg_temp.{_TRIAL} ADD CHECK ({condition})".encode())
        row = session.execute(
            "SELECT pg_get_expr(c.conbin, c.conrelid), ARRAY(SELECT a.attname::text FROM pg_attribute AS a "
            "WHERE a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey) ORDER BY a.attnum) "
            f"FROM pg_constraint AS c WHERE c.conrelid = 'pg_temp.{_TRIAL}'::regclass AND c.contype = 'c'".encode()
        ).fetchone()
    assert row is not None
    assert isinstance(row[1], list)
    return RowFilter(condition, str(row[0]), tuple(map(str, row[1])))


def check_filtered(name: str, carried: Iterable[Published], filters: Mapping[TableName, RowFilter]) -> None:
    """Raise PublicationUnfit where a publication has not the filters that the pipeline states."""
    for one in carried:
        wanted = filters.get(one.table)
        if wanted is None or wanted.printed == one.row_filter:
            continue
        has = "every row" if one.row_filter is None else f"the rows with {one.row_filter}"
        first, then = (
            altering(name, "DROP", one.table),
            altering(name, "ADD", one.table, filters={one.table: wanted.condition}),
        )
        raise PublicationUnfit(
            f"publication `{name}` carries {has} of {one.table}, and `source.row_filters` says {wanted.printed}",
            hint=f"{first}; {then}; and where rows were captured already: cdc-lake resync {one.table}",
        )
