"""The publication: which tables, and which of their rows, the slot's stream contains.

`tables` of the pipeline are patterns over the catalog. They select the tables when the publication is created, and
again at every start of the receiver: added and removed tables are reported, and changed if the pipeline owns the
publication (`connectors.postgres.snapshot`).

The server itself interprets a row filter (PostgreSQL 15 and newer): as a CHECK of a temporary table with the same
columns, in a transaction that is rolled back, it is printed as a publication would print it, with the columns it uses.
So nothing is published, and reading the table is the only required privilege.

If the publication is missing, PostgreSQL 18 omits changes and only warns; earlier versions end the stream.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from psycopg.errors import Diagnostic

from cdc_lake.errors import PublicationMissing, PublicationUnfit, QueryRefused, RowFilterUnfit, SourcePermission
from cdc_lake.model.relation import TableName
from cdc_lake.source.base import PublishedTable
from cdc_lake.source.postgres.catalog import outside_identity, whole_identity
from cdc_lake.source.postgres.connection import Session, fetch, translate_errors
from cdc_lake.source.sql_text import identifier, literal, quote_table

# a table published with its schema, or with all tables, has only the publication itself
_MEMBER = (
    "coalesce((SELECT r.oid FROM pg_publication_rel AS r WHERE r.prpubid = o.oid AND r.prrelid = c.oid), o.oid)::bigint"
)


@dataclass(frozen=True, slots=True)
class PublicationOwner:
    """The pipeline that created a publication, and its slot; stored as the publication's comment."""

    pipeline: str
    slot: str

    def __str__(self) -> str:
        return f"cdc_lake: made by pipeline {self.pipeline} for slot {self.slot}"


_MADE_BY = re.compile(r"cdc_lake: made by pipeline (\S+) for slot (\S+)")


def tables_in_database(session: Session) -> list[TableName]:
    """Tables that can be published: ordinary ones and partitioned roots, without system and temporary tables."""
    rows = fetch(
        session,
        "listing the tables",
        "SELECT n.nspname, c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
        "WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p' "
        "AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')",
    )
    return sorted(TableName(schema, name) for schema, name in rows)


def publication_exists(session: Session, name: str) -> bool:
    """Whether the publication exists; raises PublicationUnfit if it omits a kind of change."""
    sql = "SELECT pubinsert, pubupdate, pubdelete, pubtruncate FROM pg_publication WHERE pubname = %s"
    rows = fetch(session, f"looking up publication `{name}`", sql, name)
    if not rows:
        return False
    kinds = zip(("insert", "update", "delete", "truncate"), rows[0], strict=True)
    if missing := [kind for kind, publishes in kinds if not publishes]:
        hint = f"ALTER PUBLICATION {identifier(name)} SET (publish = 'insert, update, delete, truncate')"
        raise PublicationUnfit(f"publication `{name}` does not publish {', '.join(missing)}", hint=hint)
    return True


Conditions: TypeAlias = Mapping[TableName, str]
"""Conditions in SQL on the rows of tables."""
_NONE: Final[Conditions] = MappingProxyType({})


def creating(name: str, tables: Iterable[TableName], filters: Conditions = _NONE) -> str:
    """The statement to create a publication of exactly these tables; changes of partitions appear as their root's."""
    options = "WITH (publish_via_partition_root = true)"
    return f"CREATE PUBLICATION {identifier(name)} FOR TABLE {_table_list(tables, filters)} {options}"


def create_publication(
    session: Session,
    name: str,
    tables: Sequence[TableName],
    filters: Conditions = _NONE,
    maker: PublicationOwner | None = None,
) -> None:
    """Create that publication, with its owner recorded. Raises SourceError."""
    statement = creating(name, tables, filters)
    if maker is not None:  # both or neither: statements sent together are one transaction
        statement += f"; COMMENT ON PUBLICATION {identifier(name)} IS {literal(str(maker))}"
    with translate_errors(f"creating publication `{name}`"):
        session.execute(statement.encode())


def maker_of(session: Session, name: str) -> PublicationOwner | None:
    """The owner of a publication; None if not recorded, as by a DBA or version 0.3.0, or if there is no publication.

    Raises SourceError.
    """
    sql = "SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = %s"
    rows = fetch(session, f"looking up the creator of publication `{name}`", sql, name)
    match = _MADE_BY.fullmatch(rows[0][0] or "") if rows else None
    return None if match is None else PublicationOwner(match[1], match[2])


def altering(name: str, verb: str, *tables: TableName, filters: Conditions = _NONE) -> str:
    """The statement that adds tables to a publication (`ADD`) or removes them (`DROP`)."""
    listed = _table_list(tables, filters if verb == "ADD" else _NONE)
    return f"ALTER PUBLICATION {identifier(name)} {verb} TABLE {listed}"


def _table_list(tables: Iterable[TableName], filters: Conditions) -> str:
    """Only these tables: without ONLY, child tables by inheritance are included; partitions are included anyway."""
    return ", ".join(f"ONLY {quote_table(t)}" + (f" WHERE ({filters[t]})" if t in filters else "") for t in tables)


def alter_publication(session: Session, name: str, verb: str, *tables: TableName, filters: Conditions = _NONE) -> None:
    """Add tables to a publication, or drop them from it. Raises SourceError."""
    with translate_errors(f"altering publication `{name}`"):
        session.execute(altering(name, verb, *tables, filters=filters).encode())


def not_addable(session: Session, name: str, tables: Iterable[TableName]) -> list[TableName]:
    """Of the tables, those that the role may not add to an existing publication: it must own both."""
    refused = []
    for table in tables:
        rows = fetch(
            session,
            f"looking up the owner of {table}",
            "SELECT pg_has_role(p.pubowner, 'USAGE') AND pg_has_role(c.relowner, 'USAGE') "
            "FROM pg_publication AS p CROSS JOIN pg_class AS c WHERE p.pubname = %s AND c.oid = to_regclass(%s)",
            name,
            quote_table(table),
        )
        if rows and not rows[0][0]:
            refused.append(table)
    return refused


def load_published_tables(session: Session, name: str) -> list[PublishedTable]:
    """The tables of a publication, sorted. Raises PublicationMissing, PublicationUnfit."""
    if not publication_exists(session, name):
        raise PublicationMissing(f"publication `{name}` does not exist")
    rows = fetch(
        session,
        f"reading publication `{name}`",
        # attnames and rowfilter exist since PostgreSQL 15; before, every column that is not generated
        "SELECT p.schemaname, p.tablename, to_jsonb(p) ->> 'rowfilter', "
        "ARRAY(SELECT a.attname::text FROM pg_attribute AS a "
        "  WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
        "  AND CASE WHEN to_jsonb(p) ? 'attnames' "
        "      THEN to_jsonb(p) -> 'attnames' ? a.attname::text ELSE a.attgenerated = '' END "
        f"  ORDER BY a.attnum), {_MEMBER}, c.oid::bigint, c.relispartition AND NOT o.pubviaroot "
        "FROM pg_publication_tables AS p JOIN pg_publication AS o ON o.pubname = p.pubname "
        "JOIN pg_class AS c ON c.oid = format('%%I.%%I', p.schemaname, p.tablename)::regclass WHERE p.pubname = %s",
        name,
    )
    if parts := [str(TableName(schema, table)) for schema, table, *_, apart in rows if apart]:
        text = f"publication `{name}` publishes partitions under their own names: {', '.join(sorted(parts))}"
        hint = f"ALTER PUBLICATION {identifier(name)} SET (publish_via_partition_root = true)"
        raise PublicationUnfit(text, hint=hint)
    published = (
        PublishedTable(TableName(schema, table), tuple(columns), row_filter, member, oid)
        for schema, table, row_filter, columns, member, oid, _ in rows
    )
    return sorted(published, key=lambda table: table.table)


def member_of(session: Session, name: str, oid: int) -> tuple[TableName, int] | None:
    """The current name of table `oid` and its `PublishedTable.member`; None if table or publication does not exist.

    Raises SourceError.
    """
    sql = (
        f"SELECT n.nspname, c.relname, {_MEMBER} FROM pg_publication AS o, pg_class AS c "
        "JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE o.pubname = %s AND c.oid = %s"
    )
    rows = fetch(session, f"looking up a table in publication `{name}`", sql, name, oid)
    return (TableName(*rows[0][:2]), rows[0][2]) if rows else None


def check_published(
    name: str, carried: Iterable[TableName], wanted: Iterable[TableName], filters: Conditions = _NONE
) -> None:
    """Raise PublicationUnfit if an existing publication contains other tables than the pipeline wants."""
    have, want = set(carried), set(wanted)
    if missing := sorted(want - have):
        text = f"publication `{name}` does not publish {', '.join(map(str, missing))}"
        raise PublicationUnfit(text, hint=altering(name, "ADD", *missing, filters=filters))
    if extra := sorted(have - want):
        listed = ", ".join(map(str, extra))
        hint = "add them to `source.tables`, or name another publication in `source.publication`"
        raise PublicationUnfit(f"publication `{name}` publishes {listed}, which `source.tables` excludes", hint=hint)


_TRIAL = "cdc_lake_filter"


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A condition as written, as the server prints it, and the columns it uses."""

    condition: str
    printed: str
    columns: tuple[str, ...]


def interpret_filters(
    session: Session, conditions: Mapping[TableName, str], tables: Collection[TableName]
) -> dict[TableName, RowFilter]:
    """The server's interpretation of filters, by table; `tables`: captured ones. Raises RowFilterUnfit, SourceError."""
    has_filters = (
        "SELECT 1 FROM pg_attribute WHERE attrelid = 'pg_publication_rel'::regclass AND attname = 'prqual' "
        "AND NOT attisdropped"
    )
    if conditions and not fetch(session, "checking whether publications have row filters", has_filters):
        version = session.info.parameter_status("server_version")
        text = f"publications have no row filters before PostgreSQL 15, and this server is {version}"
        hint = "remove `source.row_filters`, and filter the rows in silver with `where` of the table"
        raise RowFilterUnfit(text, hint=hint)
    if unknown := sorted(set(conditions) - set(tables)):
        text = f"{', '.join(map(str, unknown))} of `source.row_filters` is not a captured table"
        raise RowFilterUnfit(text, hint="use tables that `source.tables` matches, and for a partitioned table its root")
    return {table: _interpret_filter(session, table, condition) for table, condition in sorted(conditions.items())}


def _interpret_filter(session: Session, table: TableName, condition: str) -> RowFilter:
    try:
        with translate_errors(f"resolving the filter of {table}"), session.transaction(force_rollback=True):
            session.execute("SET TRANSACTION READ WRITE")
            session.execute(f"CREATE TEMPORARY TABLE {_TRIAL} (LIKE {quote_table(table)})".encode())
            session.execute(f"ALTER TABLE pg_temp.{_TRIAL} ADD CHECK ({condition})".encode())
            row = session.execute(
                "SELECT pg_get_expr(c.conbin, c.conrelid), ARRAY(SELECT a.attname::text FROM pg_attribute AS a "
                "WHERE a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey) ORDER BY a.attnum) "
                f"FROM pg_constraint AS c WHERE c.conrelid = 'pg_temp.{_TRIAL}'::regclass AND c.contype = 'c'".encode()
            ).fetchone()
    except QueryRefused as refused:
        raise RowFilterUnfit(f"`{condition}` is not a condition on rows of {table}: {refused.message}") from refused
    except SourcePermission as refused:
        user, database = identifier(session.info.user), identifier(session.info.dbname)
        hint = f"it takes SELECT on the table, and: GRANT TEMPORARY ON DATABASE {database} TO {user}"
        raise RowFilterUnfit(f"the server cannot evaluate `{condition}`: {refused.message}", hint=hint) from refused
    assert row is not None
    assert isinstance(row[1], list)
    row_filter = RowFilter(condition, str(row[0]), tuple(row[1]))
    if outside := outside_identity(session, table, row_filter.columns):
        raise RowFilterUnfit(
            f"the filter of {table} uses {', '.join(outside)}, which is not part of its replica identity: the server "
            "would reject its updates and deletes as soon as the filter is published",
            hint=f"filter by columns of its key, or run: {whole_identity(table)}",
        )
    return row_filter


def check_filtered(name: str, carried: Iterable[PublishedTable], filters: Mapping[TableName, RowFilter]) -> None:
    """Raise PublicationUnfit if a publication lacks the filters of the pipeline."""
    for table in carried:
        wanted = filters.get(table.table)
        if wanted is None or wanted.printed == table.row_filter:
            continue
        has = "every row" if table.row_filter is None else f"the rows with {table.row_filter}"
        first = altering(name, "DROP", table.table)
        then = altering(name, "ADD", table.table, filters={table.table: wanted.condition})
        text = f"publication `{name}` publishes {has} of {table.table}, but `source.row_filters` says {wanted.printed}"
        hint = f"{first}; {then}; and if rows were already captured: cdc-lake resync {table.table}"
        raise PublicationUnfit(text, hint=hint)


class PublicationWarnings:
    """Listens to a server's warnings to a session. `error`: the resulting error, None while nothing was omitted."""

    def __init__(self, session: Session) -> None:
        self.error: PublicationMissing | None = None
        session.add_notice_handler(self._on_notice)

    def check(self) -> None:
        """Raise PublicationMissing if changes were omitted."""
        if self.error is not None:
            raise self.error

    def _on_notice(self, diagnostic: Diagnostic) -> None:
        """Called by the driver while it looks for the message after the notice."""
        # object_not_in_prerequisite_state: only this one of pgoutput's warnings
        if self.error is None and (diagnostic.severity_nonlocalized, diagnostic.sqlstate) == ("WARNING", "55000"):
            self.error = PublicationMissing(f"the server does not publish these changes: {diagnostic.message_primary}")
