"""Decoded tables: what a slot of `test_decoding` carries, and what its rows do not say of their tables.

No publication chooses: the plugin prints every change of the database. So the patterns of `tables` choose at every
change, among ordinary tables. A partition is one, its root is none: rows are printed under the partition's name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache, lru_cache

from cdc_lake.decode.historic_catalog import UniqueIndex
from cdc_lake.decode.mppdb.facts import FamilyColumn, FamilyTableFacts, named_by
from cdc_lake.model.relation import Relation, ReplicaIdentity, TableName
from cdc_lake.source.captured import Published
from cdc_lake.source.catalog import CHANGED, SourceCatalog, relation_of
from cdc_lake.source.connection import Session, named
from cdc_lake.source.tables import VERSION, chooses, select_tables

_TABLES = (
    "SELECT n.nspname, c.relname, c.oid::bigint FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE c.relkind = 'r' AND c.relpersistence = 'p' "
    "AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')"
)
_ANY_KIND = (
    "SELECT c.relkind::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE n.nspname = %s AND c.relname = %s"
)
# virtual generated columns (PostgreSQL 18) have no values anywhere
_COLUMNS = (
    "SELECT a.attname::text, format_type(a.atttypid, NULL) FROM pg_attribute AS a "
    "JOIN pg_class AS c ON c.oid = a.attrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> 'v' "
    "ORDER BY a.attnum"
)
_TYPES_PRINTED = (
    "SELECT t.oid::bigint, CASE WHEN n.nspname = 'pg_catalog' THEN t.typname ELSE n.nspname || '.' || t.typname END "
    "FROM pg_type AS t JOIN pg_namespace AS n ON n.oid = t.typnamespace WHERE format_type(t.oid, NULL) = %s"
)
# What may be, or may have been, the replica identity. The columns of an index are written when it is made.
_IDENTITIES = (
    f"SELECT {CHANGED.format('c')}, ARRAY(SELECT unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]::int[])), "
    f"i.indisprimary, i.indisreplident, (SELECT min({CHANGED.format('a')}) FROM pg_attribute AS a "
    f"WHERE a.attrelid = i.indexrelid), {CHANGED.format('i')} FROM pg_class AS c LEFT JOIN pg_index AS i "
    "ON i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL "
    "AND i.indexprs IS NULL WHERE c.oid = %s"
)
_VERSIONS = (
    f"SELECT n.nspname, c.relname, c.oid::bigint, {VERSION} "
    "FROM unnest(%s::text[], %s::text[]) AS t (schema, name) JOIN pg_namespace AS n ON n.nspname = t.schema "
    "JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.name"
)


def tables_in_database(session: Session) -> dict[TableName, int]:
    """OIDs of tables whose rows the plugin prints under their own names: ordinary ones and partitions.

    Raises SourceError.
    """
    with named("listing the tables"):
        rows = session.execute(_TABLES).fetchall()
    return {TableName(str(schema), str(name)): int(str(oid)) for schema, name, oid in rows}


def carried(session: Session, patterns: Sequence[str]) -> list[Published]:
    """What the patterns take of the database as it is now, all columns of each table; raises NoTableMatches."""
    there = tables_in_database(session)
    tables = select_tables(patterns, sorted(there))
    named = RowTables(session).versions(tables)
    return [
        Published(table, tuple(_printed(session, table)), None, named_by(named[table][1]), there[table])
        for table in tables
        if table in named  # else it was dropped since
    ]


def takes(session: Session, patterns: Sequence[str]) -> Callable[[TableName], bool]:
    """The patterns as a predicate of what is printed: not the rows of materialised views, nor TRUNCATE of a root.

    Asks the catalog once of each table that the patterns take; of one that is gone, the patterns alone decide. The
    predicate raises SourceError.
    """
    chosen = chooses(patterns)

    @lru_cache(maxsize=4096)
    def taken(table: TableName) -> bool:
        if not chosen(table):
            return False
        with named(f"looking up {table} in the catalog"):
            row = session.execute(_ANY_KIND, [table.schema, table.name]).fetchone()
        return row is None or row[0] == "r"

    return taken


def layout_of(session: Session, table: TableName) -> Relation:
    """The layout of a table as its rows have it; raises NoTableMatches."""
    return relation_of(session, table, tuple(_printed(session, table)))


class RowTables:
    """Answers the decoder of rows from a session of its own (`decode.mppdb.facts.FamilyCatalog`)."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._catalog = SourceCatalog(session)

    def __call__(self, table: TableName) -> FamilyTableFacts | None:
        """The facts of a table now, None where there is none; raises SourceError."""
        version = self.versions([table]).get(table)
        printed = _printed(self._session, table)
        if not printed or version is None:
            return None
        relation = relation_of(self._session, table, tuple(printed))
        known = self._catalog(version[0], table)
        whole = relation.identity is ReplicaIdentity.FULL
        filled = {one.name for one in known.attributes if one.required}
        changed, indexes = self._identities(table, version[0])
        return FamilyTableFacts(
            columns=tuple(
                FamilyColumn(
                    *(c.name, c.type_name, c.type_oid, c.modifier, printed[c.name], c.number, c.missing),
                    filled=c.name in filled,
                )
                for c in relation.columns
            ),
            primary_key=relation.primary_key,
            identity=relation.identity,
            identity_columns=() if whole else tuple(c.name for c in relation.columns if c.key),
            oid=relation.oid,
            attributes=tuple(one for one in known.attributes if one.name is None or one.name in printed),
            key_changed=known.key_changed,
            file=relation.storage,
            indexes=indexes,
            identity_changed=changed,
            printed_types=cache(self._printed_type),
            version=version[1],
        )

    def _identities(self, table: TableName, oid: int) -> tuple[int | None, tuple[UniqueIndex, ...]]:
        """The transaction that wrote the table's row of `pg_class`, and its unique indexes."""
        with named(f"reading the indexes of {table}"):
            rows = self._session.execute(_IDENTITIES.encode(), [oid]).fetchall()
        indexes = [
            UniqueIndex(
                frozenset(map(int, numbers)), bool(primary), bool(named_so), int(str(created)), int(str(changed))
            )
            for _, numbers, primary, named_so, created, changed in rows
            if created is not None and isinstance(numbers, list)
        ]
        return (int(str(rows[0][0])), tuple(indexes)) if rows else (None, ())

    def _printed_type(self, printed: str) -> tuple[int, str] | None:
        with named(f"looking up type {printed} in the catalog"):
            rows = self._session.execute(_TYPES_PRINTED, [printed]).fetchall()
        return (int(str(rows[0][0])), str(rows[0][1])) if len(rows) == 1 else None

    def versions(self, tables: Collection[TableName]) -> dict[TableName, tuple[int, str]]:
        """See `decode.mppdb.facts.Versions`."""
        names = [[table.schema for table in tables], [table.name for table in tables]]
        with named("looking which tables were altered"):
            rows = self._session.execute(_VERSIONS, names).fetchall()
        return {TableName(str(schema), str(name)): (int(str(oid)), str(text)) for schema, name, oid, text in rows}


def _printed(session: Session, table: TableName) -> dict[str, str]:
    """The columns of a table in their order, with what rows print for their types."""
    with named(f"reading the columns of {table}"):
        rows = session.execute(_COLUMNS, [table.schema, table.name]).fetchall()
    return {str(name): str(printed) for name, printed in rows}
