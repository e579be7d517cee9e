"""The publication: which tables the slot's stream carries, and which rows of them.

`tables` of the pipeline are patterns over the catalog. They choose the tables when the publication is made, and again
at every start of the receiver: what was added or removed is told, and done if the publication is the pipeline's own
(`connectors.postgres.snapshot`).

What a row filter means (PostgreSQL 15 and newer) the server says itself: as a CHECK of a temporary table of the same
columns, in a transaction that is rolled back, it is printed as a publication would print it, with the columns it
needs. So nothing is published, and reading the table is the only right that is needed.

If the publication is gone, PostgreSQL 18 leaves changes out and only warns; earlier versions end the stream.
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
from cdc_lake.source.postgres.connection import Session, translate_errors
from cdc_lake.source.sql_text import identifier, literal, quote_table

# of a table that is published with its schema, or with all others, there is none but the publication itself
_MEMBER = (
    "coalesce("
    "(SELECT r.oid FROM pg_publication_rel AS r WHERE r.prpubid = o.oid AND r.prrelid = {table}), o.oid)::bigint"
)


@dataclass(frozen=True, slots=True)
class PublicationOwner:
    """The pipeline that made a publication, and the slot by which it reads; kept as the publication's comment."""

    pipeline: str
    slot: str

    def __str__(self) -> str:
        return f"cdc_lake: made by pipeline {self.pipeline} for slot {self.slot}"


_MADE_BY = re.compile(r"cdc_lake: made by pipeline (\S+) for slot (\S+)")


def tables_in_database(session: Session) -> list[TableName]:
    """Tables that can be published: ordinary ones and partitioned roots, none of the system's, none temporary."""
    with translate_errors("listing the tables"):
        rows = session.execute(
            "SELECT n.nspname, c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
            "WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p' "
            "AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')"
        ).fetchall()
    return sorted(TableName(str(schema), str(name)) for schema, name in rows)


def publication_exists(session: Session, name: str) -> bool:
    """True where there is one; raises PublicationUnfit where it leaves out a kind of change."""
    with translate_errors(f"looking up publication `{name}`"):
        row = session.execute(
            "SELECT pubinsert, pubupdate, pubdelete, pubtruncate FROM pg_publication WHERE pubname = %s", [name]
        ).fetchone()
    if row is None:
        return False
    missing = [
        kind for kind, publishes in zip(("insert", "update", "delete", "truncate"), row, strict=True) if not publishes
    ]
    if missing:
        raise PublicationUnfit(
            f"publication `{name}` does not publish {', '.join(missing)}",
            hint=f"ALTER PUBLICATION {identifier(name)} SET (publish = 'insert, update, delete, truncate')",
        )
    return True


Conditions: TypeAlias = Mapping[TableName, str]
"""Conditions in SQL on the rows of tables."""
_NONE: Final[Conditions] = MappingProxyType({})


def creating(name: str, tables: Iterable[TableName], filters: Conditions = _NONE) -> str:
    """The statement that makes a publication of exactly these tables; changes of partitions appear as their root's."""
    options = "WITH (publish_via_partition_root = true)"
    return f"CREATE PUBLICATION {identifier(name)} FOR TABLE {_table_list(tables, filters)} {options}"


def create_publication(
    session: Session,
    name: str,
    tables: Sequence[TableName],
    filters: Conditions = _NONE,
    maker: PublicationOwner | None = None,
) -> None:
    """Make that publication, which says who made it. Raises SourceError."""
    statement = creating(name, tables, filters)
    if maker is not None:  # both or neither: several statements sent as one are one transaction
        statement += f"; COMMENT ON PUBLICATION {identifier(name)} IS {literal(str(maker))}"
    with translate_errors(f"creating publication `{name}`"):
        session.execute(statement.encode())


def maker_of(session: Session, name: str) -> PublicationOwner | None:
    """Who made a publication; None if it does not say so, as one of a DBA or of version 0.3.0, or there is none.

    Raises SourceError.
    """
    with translate_errors(f"looking up the creator of publication `{name}`"):
        row = session.execute(
            "SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = %s", [name]
        ).fetchone()
    match = None if row is None else _MADE_BY.fullmatch(str(row[0]))
    return None if match is None else PublicationOwner(match[1], match[2])


def altering(name: str, verb: str, *tables: TableName, filters: Conditions = _NONE) -> str:
    """The statement by which tables come into a publication (`ADD`) or leave it (`DROP`)."""
    return (
        f"ALTER PUBLICATION {identifier(name)} {verb} TABLE {_table_list(tables, filters if verb == 'ADD' else _NONE)}"
    )


def _table_list(tables: Iterable[TableName], filters: Conditions) -> str:
    """These tables alone: without ONLY those that inherit from them come along, and leave; partitions do anyway."""
    return ", ".join(f"ONLY {quote_table(t)}" + (f" WHERE ({filters[t]})" if t in filters else "") for t in tables)


def alter_publication(session: Session, name: str, verb: str, *tables: TableName, filters: Conditions = _NONE) -> None:
    """Add tables to a publication, or drop them from it. Raises SourceError."""
    with translate_errors(f"altering publication `{name}`"):
        session.execute(altering(name, verb, *tables, filters=filters).encode())


def not_addable(session: Session, name: str, tables: Iterable[TableName]) -> list[TableName]:
    """Those of the tables that the role may not add to a publication, where that is there: it has to own both."""
    refused = []
    for table in tables:
        with translate_errors(f"looking up the owner of {table}"):
            row = session.execute(
                "SELECT pg_has_role(p.pubowner, 'USAGE') AND pg_has_role(c.relowner, 'USAGE') "
                "FROM pg_publication AS p CROSS JOIN pg_class AS c WHERE p.pubname = %s AND c.oid = to_regclass(%s)",
                [name, quote_table(table)],
            ).fetchone()
        if row is not None and not row[0]:
            refused.append(table)
    return refused


def load_published_tables(session: Session, name: str) -> list[PublishedTable]:
    """What a publication carries, sorted by table. Raises PublicationMissing, PublicationUnfit."""
    if not publication_exists(session, name):
        raise PublicationMissing(f"publication `{name}` does not exist")
    with translate_errors(f"reading publication `{name}`"):
        rows = session.execute(
            # attnames and rowfilter came with PostgreSQL 15; before, every column that is not generated
            "SELECT p.schemaname, p.tablename, to_jsonb(p) ->> 'rowfilter', "
            "ARRAY(SELECT a.attname::text FROM pg_attribute AS a "
            "  WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
            "  AND CASE WHEN to_jsonb(p) ? 'attnames' "
            "      THEN to_jsonb(p) -> 'attnames' ? a.attname::text ELSE a.attgenerated = '' END "
            f"  ORDER BY a.attnum), {_MEMBER.format(table='c.oid')}, c.oid::bigint, "
            "c.relispartition AND NOT o.pubviaroot "
            "FROM pg_publication_tables AS p JOIN pg_publication AS o ON o.pubname = p.pubname "
            "JOIN pg_class AS c ON c.oid = format('%%I.%%I', p.schemaname, p.tablename)::regclass WHERE p.pubname = %s",
            [name],
        ).fetchall()
    if parts := [str(TableName(str(s), str(t))) for s, t, *_, apart in rows if apart]:
        raise PublicationUnfit(
            f"publication `{name}` publishes partitions under their own names: {', '.join(sorted(parts))}",
            hint=f"ALTER PUBLICATION {identifier(name)} SET (publish_via_partition_root = true)",
        )
    return sorted(
        (
            PublishedTable(
                TableName(str(s), str(t)),
                tuple(_names(columns)),
                None if f is None else str(f),
                int(str(member)),
                int(str(oid)),
            )
            for s, t, f, columns, member, oid, _ in rows
        ),
        key=lambda p: p.table,
    )


def member_of(session: Session, name: str, oid: int) -> tuple[TableName, int] | None:
    """The name that table `oid` has now, and its `PublishedTable.member`; None if table or publication is not there.

    Raises SourceError.
    """
    with translate_errors(f"looking up a table in publication `{name}`"):
        row = session.execute(
            f"SELECT n.nspname, c.relname, {_MEMBER.format(table='c.oid')} "
            "FROM pg_publication AS o, pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
            "WHERE o.pubname = %s AND c.oid = %s".encode(),
            [name, oid],
        ).fetchone()
    return None if row is None else (TableName(str(row[0]), str(row[1])), int(str(row[2])))


def check_published(
    name: str, carried: Iterable[TableName], wanted: Iterable[TableName], filters: Conditions = _NONE
) -> None:
    """Raise PublicationUnfit where a publication that was there before carries other tables than the pipeline wants."""
    have, want = set(carried), set(wanted)
    if missing := sorted(want - have):
        raise PublicationUnfit(
            f"publication `{name}` does not publish {', '.join(map(str, missing))}",
            hint=altering(name, "ADD", *missing, filters=filters),
        )
    if extra := sorted(have - want):
        listed = ", ".join(map(str, extra))
        raise PublicationUnfit(
            f"publication `{name}` publishes {listed}, which `source.tables` excludes",
            hint="add them to `source.tables`, or name another publication in `source.publication`",
        )


def _names(value: object) -> list[str]:
    assert isinstance(value, list)
    return [str(v) for v in value]


_TRIAL = "cdc_lake_filter"


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A condition as it was written, as the server prints it, and the columns it asks for."""

    condition: str
    printed: str
    columns: tuple[str, ...]


def interpret_filters(
    session: Session, conditions: Mapping[TableName, str], tables: Collection[TableName]
) -> dict[TableName, RowFilter]:
    """What filters mean, by table; `tables`: those that are captured. Raises RowFilterUnfit, SourceError."""
    if conditions and not _takes_filters(session):
        version = session.info.parameter_status("server_version")
        raise RowFilterUnfit(
            f"publications have no row filters before PostgreSQL 15, and this server is {version}",
            hint="remove `source.row_filters`, and filter the rows in silver with `where` of the table",
        )
    if unknown := sorted(set(conditions) - set(tables)):
        raise RowFilterUnfit(
            f"{', '.join(map(str, unknown))} of `source.row_filters` is not a captured table",
            hint="use tables that `source.tables` matches, and for a partitioned table its root",
        )
    return {table: _interpret_filter(session, table, condition) for table, condition in sorted(conditions.items())}


def _takes_filters(session: Session) -> bool:
    with translate_errors("checking whether publications have row filters"):
        row = session.execute(
            "SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'pg_publication_rel'::regclass "
            "AND attname = 'prqual' AND NOT attisdropped)"
        ).fetchone()
    return row is not None and bool(row[0])


def _interpret_filter(session: Session, table: TableName, condition: str) -> RowFilter:
    try:
        row_filter = _try_filter(session, table, condition)
    except QueryRefused as refused:
        raise RowFilterUnfit(f"`{condition}` is not a condition on rows of {table}: {refused.message}") from refused
    except SourcePermission as refused:
        user, database = identifier(session.info.user), identifier(session.info.dbname)
        hint = f"it takes SELECT on the table, and: GRANT TEMPORARY ON DATABASE {database} TO {user}"
        raise RowFilterUnfit(f"the server cannot evaluate `{condition}`: {refused.message}", hint=hint) from refused
    if outside := outside_identity(session, table, row_filter.columns):
        raise RowFilterUnfit(
            f"the filter of {table} uses {', '.join(outside)}, which is not part of its replica identity: the server "
            "would reject its updates and deletes as soon as the filter is published",
            hint=f"filter by columns of its key, or run: {whole_identity(table)}",
        )
    return row_filter


def _try_filter(session: Session, table: TableName, condition: str) -> RowFilter:
    with translate_errors(f"resolving the filter of {table}"), session.transaction(force_rollback=True):
        session.execute("SET TRANSACTION READ WRITE")
        session.execute(f"CREATE TEMPORARY TABLE {_TRIAL} (LIKE {quote_table(table)})".encode())
        session.execute(f"ALTER TABLE pg_temp.{_TRIAL} ADD CHECK ({condition})".encode())
        row = session.execute(
            "SELECT pg_get_expr(c.conbin, c.conrelid), ARRAY(SELECT a.attname::text FROM pg_attribute AS a "
            "WHERE a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey) ORDER BY a.attnum) "
            f"FROM pg_constraint AS c WHERE c.conrelid = 'pg_temp.{_TRIAL}'::regclass AND c.contype = 'c'".encode()
        ).fetchone()
    assert row is not None
    assert isinstance(row[1], list)
    return RowFilter(condition, str(row[0]), tuple(map(str, row[1])))


def check_filtered(name: str, carried: Iterable[PublishedTable], filters: Mapping[TableName, RowFilter]) -> None:
    """Raise PublicationUnfit where a publication has not the filters that the pipeline states."""
    for table in carried:
        wanted = filters.get(table.table)
        if wanted is None or wanted.printed == table.row_filter:
            continue
        has = "every row" if table.row_filter is None else f"the rows with {table.row_filter}"
        first, then = (
            altering(name, "DROP", table.table),
            altering(name, "ADD", table.table, filters={table.table: wanted.condition}),
        )
        raise PublicationUnfit(
            f"publication `{name}` publishes {has} of {table.table}, but `source.row_filters` says {wanted.printed}",
            hint=f"{first}; {then}; and if rows were already captured: cdc-lake resync {table.table}",
        )


class PublicationWarnings:
    """Listens to what a server warns a session of. `error`: what it means, None as long as nothing was left out."""

    def __init__(self, session: Session) -> None:
        self.error: PublicationMissing | None = None
        session.add_notice_handler(self._on_notice)

    def check(self) -> None:
        """Raise PublicationMissing where something was left out."""
        if self.error is not None:
            raise self.error

    def _on_notice(self, diagnostic: Diagnostic) -> None:
        """The driver tells of it while it looks for the message behind it."""
        # object_not_in_prerequisite_state: of pgoutput's warnings only this one
        if self.error is None and (diagnostic.severity_nonlocalized, diagnostic.sqlstate) == ("WARNING", "55000"):
            self.error = PublicationMissing(f"the server does not publish these changes: {diagnostic.message_primary}")
