"""Reads from the PostgreSQL catalog what the stream omits about a table, and its layout as the stream announces it.

Type names are `pg_type.typname`, with the schema outside `pg_catalog`: the form of pgoutput's type messages, so that a
layout has the same number from either source.

test_decoding sends every change of the database, so the patterns of `tables` are applied to each change, among ordinary
tables. A partition is an ordinary table, its root is not: rows have the partition's name.

The optional event trigger reports in the stream, in order, the columns of an altered table. Its SQL is printed for a
superuser to run. Its message is transactional: not sent if the ALTER was rolled back (`decode.pgoutput.relations` reads
it).
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Final

from cdc_lake.decode.gaussdb.catalog_facts import GaussDbColumn, GaussDbTableMetadata, named_by
from cdc_lake.decode.historic_catalog import Attribute, Named, UniqueIndex, as_logged, missing_then
from cdc_lake.decode.pgoutput.relations import ColumnFacts, PublishedAs, TableFacts
from cdc_lake.errors import NoReplicaIdentity, NoTableMatches
from cdc_lake.model.change import DDL_MESSAGES
from cdc_lake.model.relation import Column, Missing, Relation, ReplicaIdentity, TableName
from cdc_lake.source.base import VERSION, PublishedTable, chooses, left_out, select_tables
from cdc_lake.source.postgres.connection import Session, fetch
from cdc_lake.source.sql_text import literal, quote_table

_TYPE_NAME = "CASE WHEN tn.nspname = 'pg_catalog' THEN t.typname::text ELSE tn.nspname || '.' || t.typname END"

# A default that existed when its column was added is the value of older rows, which are not rewritten
# (pg_attribute.attmissingval, an array of one). If a column has a default and no such value, its rows may have been
# rewritten with it (a volatile one, an identity, a generated column, the default of a domain), or the default is newer:
# the value is unknown.
_DEFAULT = "(a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL)"
_BEFORE = f"a.attnum::int, (a.attmissingval::text::text[])[1], NOT a.atthasmissing AND {_DEFAULT}"

# The index whose columns the server logs: RelationGetReplicaIndex of relcache.c. A deferrable key is excluded, and
# columns that an index only INCLUDEs are not part of it.
_IDENTITY_INDEX = (
    "SELECT (i.indkey::int2[])[0:i.indnkeyatts - 1] FROM pg_index AS i "
    "WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate "
    "AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END"
)

_RELATION_COLUMNS = (
    f"SELECT c.relreplident::text, a.attname::text, {_TYPE_NAME}, a.atttypid::bigint, a.atttypmod, "
    f"c.relreplident = 'f' OR a.attnum = ANY (({_IDENTITY_INDEX})::int2[]), a.attgenerated <> '', c.oid::bigint, "
    f"{_BEFORE} "
    "FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
    "JOIN pg_type AS t ON t.oid = a.atttypid JOIN pg_namespace AS tn ON tn.oid = t.typnamespace "
    "WHERE n.nspname = %s AND c.relname = %s ORDER BY a.attnum"
)

# A row written before a wraparound of transaction ids is older than all of them.
CHANGED = "CASE WHEN age({0}.xmin) < 0 THEN 2 ELSE {0}.xmin::text::bigint END"

# All columns that a table ever had.
_ATTRIBUTES = (
    "SELECT a.attnum::int, CASE WHEN NOT a.attisdropped THEN a.attname::text END, a.atttypid::bigint, a.atttypmod, "
    f"{_TYPE_NAME}, a.atthasmissing, (a.attmissingval::text::text[])[1], "
    f"NOT a.atthasmissing AND {_DEFAULT}, "
    f"{CHANGED.format('a')}, a.attgenerated <> '', a.attnotnull FROM pg_attribute AS a "
    "LEFT JOIN pg_type AS t ON t.oid = a.atttypid LEFT JOIN pg_namespace AS tn ON tn.oid = t.typnamespace "
    "WHERE a.attrelid = %s AND a.attnum > 0 ORDER BY a.attnum"
)

# The file of a table differs from its first one if the table was rewritten. A partitioned table has no file; its
# rewritten partitions count. Generated columns have values that were never sent: one that became an ordinary column
# (DROP EXPRESSION) is unknown in older rows, as after a rewrite.
_STORAGE = (
    "SELECT c.relkind = 'p', CASE WHEN c.relispartition THEN pg_partition_root(c.oid)::oid::bigint END, "
    "CASE WHEN c.relfilenode NOT IN (0, c.oid) THEN c.relfilenode::bigint END, "
    "(SELECT string_agg(a.attnum::text, ',' ORDER BY a.attnum) FROM pg_attribute AS a "
    "  WHERE a.attrelid = c.oid AND a.attgenerated = 's' AND NOT a.attisdropped) FROM pg_class AS c WHERE c.oid = %s"
)
_KEPT_SECONDS = 5.0  # each of many partitions queries all of them, one after the other
# `pg_partition_tree` would lock each until the transaction ends, and wait for concurrent ALTERs.
_LEAVES = (
    "(WITH RECURSIVE below AS (SELECT inhrelid AS oid FROM pg_inherits WHERE inhparent = %s::oid "
    "UNION ALL SELECT i.inhrelid FROM pg_inherits AS i JOIN below ON i.inhparent = below.oid) "
    "SELECT b.oid FROM below AS b JOIN pg_class AS c ON c.oid = b.oid WHERE c.relkind <> 'p')"
)

_PRIMARY_KEY = (
    f"SELECT a.attname::text, {CHANGED.format('i')} FROM pg_index AS i "
    "CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, at) "
    "JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum "
    "WHERE i.indrelid = %s AND i.indisprimary AND k.at <= i.indnkeyatts ORDER BY k.at"
)

# of the newest link in a chain of partitions
_ROOT = (
    "SELECT n.nspname::text, c.relname::text, "
    f"(SELECT {CHANGED.format('i')} FROM pg_partition_ancestors(%s::oid::regclass) AS l "
    "JOIN pg_inherits AS i ON i.inhrelid = l.relid ORDER BY age(i.xmin) LIMIT 1), "
    "a.attnum::int, r.attnum::int FROM pg_class AS c "
    "JOIN pg_namespace AS n ON n.oid = c.relnamespace JOIN pg_attribute AS r ON r.attrelid = c.oid "
    "JOIN pg_attribute AS a ON a.attrelid = %s AND a.attname = r.attname AND a.attnum > 0 "
    "WHERE c.oid = %s AND NOT r.attisdropped"
)


class SourceCatalog:
    """Answers the assembler from its own session; implements `decode.pgoutput.assembler.Catalog`.

    Queried at every relation message, which is rare; type names are cached, the primary key is read again because an
    ALTER TABLE may have caused the message. A table dropped meanwhile has no primary key.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._types: dict[int, str] = {}
        self._stored: dict[int, tuple[float, list[tuple[object, ...]], Storage]] = {}

    def __call__(self, oid: int, table: TableName) -> TableFacts:
        """The facts of table `oid`; raises SourceError."""
        doing = f"looking up {table} in the catalog"
        key = fetch(self._session, doing, _PRIMARY_KEY, oid)
        rows = fetch(self._session, doing, _ATTRIBUTES, oid)
        storage = self._storage(oid, table, rows)
        attributes = []
        for number, name, kind, modifier, printed, has, text, filled, changed, generated, required in rows:
            own = Missing(text) if has and text is not None else None
            missing = storage.missing.get(name, own)  # of a partitioned table: what its partitions log of old rows
            attributes.append(Attribute(number, name, kind, modifier, missing, filled, changed, generated, required))
            if name is not None:
                self._types[kind] = printed
        return TableFacts(
            tuple(name for name, _ in key),
            _Types(self._session, self._types),
            {a.name: ColumnFacts(a.number, a.missing) for a in attributes if a.name is not None},
            tuple(attributes),
            key_changed=max((changed for _, changed in key), default=None),
            storage=storage.storage,
            root=storage.root,
            partitioned=storage.partitioned,
            published_as=None if storage.root is None else self._root(oid, storage.root),
            partitions=storage.identities,
        )

    def _storage(self, oid: int, table: TableName, columns: list[tuple[object, ...]]) -> Storage:
        """Where a table's rows are stored. A root is announced again with each of its partitions: the partitions' data
        is cached for a moment, unless columns were altered since.
        """
        read_at, known_columns, storage = self._stored.get(oid, (-math.inf, [], Storage()))
        if not storage.identities or known_columns != columns or time.monotonic() - read_at > _KEPT_SECONDS:
            storage = storage_of(self._session, oid, table)
            self._stored[oid] = time.monotonic(), columns, storage
        return storage

    def _root(self, oid: int, root: int) -> PublishedAs:
        rows = fetch(self._session, f"looking up the root of partition OID {oid}", _ROOT, oid, oid, root)
        schema, name, attached = rows[0][:3]
        return PublishedAs(TableName(schema, name), root, {own: of_root for *_, own, of_root in rows}, attached)

    def close(self) -> None:
        """Close the session."""
        self._session.close()


class _Types(dict[int, str]):
    """Type names by OID, queried one by one if a column's type was changed after the message was logged."""

    def __init__(self, session: Session, names: dict[int, str]) -> None:
        super().__init__(names)
        self._session = session

    def get(self, oid: int, default: str | None = None) -> str | None:  # type: ignore[override]  # as it is called
        if oid not in self:
            rows = fetch(
                self._session,
                f"looking up type {oid} in the catalog",
                f"SELECT {_TYPE_NAME} FROM pg_type AS t JOIN pg_namespace AS tn ON tn.oid = t.typnamespace "
                "WHERE t.oid = %s",
                oid,
            )
            if not rows:
                return default
            self[oid] = rows[0][0]
        return self[oid]


@dataclass(frozen=True, slots=True)
class Storage:
    """Where a table's rows are stored: in itself or in its partitions. `storage`: see `model.relation.Relation`;
    `root`: of a partition. For partitions: `missing` by column, and `identities` by OID, the columns whose old values
    each logs, None: all.
    """

    storage: int | None = None
    root: int | None = None
    partitioned: bool = False
    missing: Mapping[str, Missing] = field(default_factory=dict)
    identities: Mapping[int, frozenset[str] | None] = field(default_factory=dict)


def _hash_text(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def storage_of(session: Session, oid: int, table: TableName) -> Storage:
    """Where the rows of a table are stored; raises SourceError."""
    doing = f"looking for the rows of {table}"
    rows = fetch(session, doing, _STORAGE, oid)
    partitioned, root, own, generated = rows[0] if rows else (False, None, None, None)
    if not partitioned:
        return Storage(own if generated is None else _hash_text(f"{own}:{generated}"), root)
    values = fetch(
        session,
        doing,
        "SELECT a.attname::text, min((a.attmissingval::text::text[])[1]), max((a.attmissingval::text::text[])[1]) "
        f"FROM {_LEAVES} AS l JOIN pg_attribute AS a ON a.attrelid = l.oid "
        "WHERE a.atthasmissing AND NOT a.attisdropped GROUP BY 1",
        oid,
    )
    leaves = fetch(
        session,
        doing,
        "SELECT c.oid::bigint, CASE WHEN c.relfilenode NOT IN (0, c.oid) THEN c.relfilenode::bigint END, "
        "c.relreplident = 'f', ARRAY(SELECT a.attname::text FROM pg_attribute AS a WHERE a.attrelid = c.oid "
        f"  AND a.attnum = ANY (({_IDENTITY_INDEX})::int2[])) "
        f"FROM {_LEAVES} AS l JOIN pg_class AS c ON c.oid = l.oid ORDER BY c.oid",
        oid,
    )
    rewritten = ",".join(f"{leaf}:{file}" for leaf, file, *_ in leaves if file is not None)
    marker = f"{rewritten}:{generated}" if generated is not None else rewritten
    return Storage(
        storage=_hash_text(marker) if marker else None,
        partitioned=True,
        missing={name: Missing(low if low == high else None) for name, low, high in values},
        identities={leaf: None if is_full else frozenset(names) for leaf, _, is_full, names in leaves},
    )


def relation_of(session: Session, table: TableName, columns: Sequence[str] | None) -> Relation:
    """The layout of a table with these published columns, equal to the assembler's from the relation message.

    `columns` None: all that a publication created now would include.
    """
    doing = f"reading the columns of {table}"
    rows = fetch(session, doing, _RELATION_COLUMNS, table.schema, table.name)
    of_name = _PRIMARY_KEY.replace("i.indrelid = %s", "i.indrelid = %s::regclass")
    key = fetch(session, doing, of_name, quote_table(table))
    if not rows:
        raise NoTableMatches(f"table {table} does not exist")
    wanted = {row[1] for row in rows if not row[6]} if columns is None else set(columns)
    storage = storage_of(session, rows[0][7], table)
    relation = Relation(
        table=table,
        columns=tuple(
            Column(
                *(name, kind, oid, modifier, bool(flagged)),  # NULL without an identity
                number=number,
                missing=storage.missing.get(name)
                or (Missing(None) if unknown else None if text is None else Missing(text)),
            )
            for _, name, kind, oid, modifier, flagged, _, _, number, text, unknown in rows
            if name in wanted
        ),
        identity=ReplicaIdentity(rows[0][0]),
        primary_key=tuple(name for name, _ in key),
        oid=rows[0][7],
        storage=storage.storage,
    )
    return as_logged(relation, storage.identities.values())


def add_missing_values(session: Session, relation: Relation, before: Relation | None) -> Relation:
    """The current layout as the stream would announce it after the layout `before` of the same table."""
    if before is None or relation.oid is None or relation.oid != before.oid:
        return relation
    facts = SourceCatalog(session)(relation.oid, relation.table)
    attributes = {attribute.number: attribute for attribute in facts.attributes}
    rewritten = before.storage != relation.storage
    columns = tuple(
        replace(
            c,
            missing=missing_then(
                Named(c.name, c.type_oid, c.modifier), c.number or 0, attributes, before, rewritten=rewritten
            ),
        )
        for c in relation.columns
    )
    return replace(relation, columns=columns)


_RELATION_IDENTITIES = (
    "WITH t AS (SELECT c.oid FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "  WHERE n.nspname = %s AND c.relname = %s) SELECT n.nspname::text, c.relname::text, c.relkind = 'p', "
    f"c.relreplident = 'f', ARRAY(SELECT unnest(({_IDENTITY_INDEX})::int2[]::int[])) <> '{{}}', "
    "ARRAY(SELECT a.attname::text FROM pg_attribute AS a WHERE a.attrelid = c.oid "
    f"  AND a.attnum = ANY (({_IDENTITY_INDEX})::int2[])), "
    "ARRAY(SELECT a.attname::text FROM pg_attribute AS a JOIN pg_index AS i ON i.indrelid = a.attrelid "
    "  WHERE a.attrelid = c.oid AND i.indisprimary AND i.indimmediate AND a.attnum = ANY (i.indkey::int2[])) "
    "FROM t JOIN pg_class AS c ON c.oid = t.oid OR c.relkind = 'r' AND c.oid IN ("
    "  SELECT relid FROM pg_partition_tree(t.oid::regclass) WHERE isleaf) "
    "JOIN pg_namespace AS n ON n.oid = c.relnamespace ORDER BY c.oid <> t.oid, 1, 2"
)


def without_identity(session: Session, tables: Sequence[TableName]) -> list[TableName]:
    """The tables whose updates the server would refuse once published, or send without identifying the row.

    For a partitioned table each partition decides what is logged: partitions are named, and their root if no key is
    common to all.
    """
    bare = []
    for table in tables:
        doing = f"reading the replica identity of {table}"
        rows = fetch(session, doing, _RELATION_IDENTITIES, table.schema, table.name)
        if not rows:
            bare.append(table)
            continue
        _, _, partitioned, full, logs, logged, primary = rows[0]
        if not partitioned:
            bare += [] if full or logs else [table]
            continue
        key = set(primary) or (set() if full else set(logged))
        if not key and not full:
            bare.append(table)
        for schema, name, _, is_full, _, columns, _ in rows[1:]:
            if not is_full and not (key and key <= set(columns)):
                bare.append(TableName(schema, name))
    return bare


def outside_identity(session: Session, table: TableName, columns: Sequence[str]) -> list[str]:
    """Of these columns, those that the server does not log in a table's old rows, or in some partition's."""
    rows = fetch(
        session,
        f"reading the replica identity of {table}",
        "WITH t AS (SELECT %s::regclass AS oid), "
        "parts AS (SELECT relid FROM t, pg_partition_tree(t.oid) WHERE isleaf) "
        "SELECT DISTINCT a.attname::text FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid, t "
        "WHERE (c.oid IN (SELECT relid FROM parts) OR c.oid = t.oid AND NOT EXISTS (SELECT FROM parts)) "
        f"AND a.attname = ANY (%s) AND c.relreplident <> 'f' AND (a.attnum = ANY (({_IDENTITY_INDEX})::int2[])) "
        "IS NOT TRUE ORDER BY 1",
        quote_table(table),
        list(columns),
    )
    return [name for (name,) in rows]


def whole_identity(table: TableName) -> str:
    """The statement that makes the server log complete old rows of a table."""
    return f"ALTER TABLE {quote_table(table)} REPLICA IDENTITY FULL"


def check_identities(session: Session, tables: Sequence[TableName]) -> None:
    """Raise NoReplicaIdentity for all tables whose updates the server would refuse once published."""
    if bare := without_identity(session, tables):
        statements = "; ".join(map(whole_identity, bare))
        info = session.info
        roots = [table for table in bare if table in tables]  # a partition is excluded with its root
        pattern = left_out(roots) if roots else "`!schema.table` in `source.tables`"
        text = f"no primary key and no replica identity: {', '.join(map(str, bare))}"
        hint = f"add primary keys, or run: {statements}; or leave them out: {pattern}"
        raise NoReplicaIdentity(text, where=f"{info.host}:{info.port}/{info.dbname}", hint=hint)


TRIGGERS: Final = ("cdc_lake_altered", "cdc_lake_dropped")

# DROP TYPE … CASCADE and similar drop columns without altering their table: the dropped objects show it.
_FUNCTION: Final = f"""\
CREATE SCHEMA IF NOT EXISTS cdc_lake;
CREATE OR REPLACE FUNCTION cdc_lake.tell_columns() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $cdc_lake$
DECLARE
  altered oid[];
  told text;
BEGIN
  IF tg_event = 'sql_drop' THEN
    altered := ARRAY(SELECT objid FROM pg_event_trigger_dropped_objects()
                     WHERE classid = 'pg_class'::regclass AND objsubid > 0);
  ELSE
    altered := ARRAY(SELECT objid FROM pg_event_trigger_ddl_commands() WHERE classid = 'pg_class'::regclass);
  END IF;
  WITH RECURSIVE changed AS (
    SELECT unnest(altered) AS oid
    UNION SELECT i.inhrelid FROM pg_inherits AS i JOIN changed ON changed.oid = i.inhparent
  ), tables AS (
    SELECT c.oid, (
      SELECT json_agg(json_build_object(
        'name', a.attname, 'number', a.attnum, 'type', a.atttypid::bigint, 'modifier', a.atttypmod,
        'filled', a.atthasmissing OR a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL
      ) ORDER BY a.attnum) FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
      WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    ) AS columns
    FROM changed JOIN pg_class AS c ON c.oid = changed.oid
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
  )
  SELECT json_build_object('version', 1, 'command', tg_tag, 'tables',
    json_agg(json_build_object('oid', oid::bigint, 'columns', coalesce(columns, '[]'))))::text
  INTO told FROM tables HAVING count(*) > 0;
  IF told IS NOT NULL THEN
    PERFORM pg_logical_emit_message(true, {literal(DDL_MESSAGES)}, told);
  END IF;
END $cdc_lake$;
"""


def trigger_sql() -> str:
    """The SQL that a superuser runs, once per database."""
    events = zip(TRIGGERS, ("ddl_command_end", "sql_drop"), strict=True)
    statements = (
        f"DROP EVENT TRIGGER IF EXISTS {name};\n"
        f"CREATE EVENT TRIGGER {name} ON {event} EXECUTE FUNCTION cdc_lake.tell_columns();"
        for name, event in events
    )
    return _FUNCTION + "\n".join(statements)


def tells(session: Session) -> bool:
    """Whether the triggers exist and fire. Raises SourceError."""
    sql = "SELECT count(*) FROM pg_event_trigger WHERE evtname::text = ANY (%s) AND evtenabled IN ('O', 'A')"
    [(count,)] = fetch(session, "looking up the event trigger", sql, list(TRIGGERS))
    return bool(count == len(TRIGGERS))


_TABLES = (
    "SELECT n.nspname, c.relname, c.oid::bigint FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE c.relkind = 'r' AND c.relpersistence = 'p' "
    "AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')"
)
_ANY_KIND = (
    "SELECT c.relkind::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE n.nspname = %s AND c.relname = %s"
)
# virtual generated columns (PostgreSQL 18) are never stored
_DECODED_COLUMNS = (
    "SELECT a.attname::text, format_type(a.atttypid, NULL) FROM pg_attribute AS a "
    "JOIN pg_class AS c ON c.oid = a.attrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> 'v' "
    "ORDER BY a.attnum"
)
_TYPES_PRINTED = (
    "SELECT t.oid::bigint, CASE WHEN n.nspname = 'pg_catalog' THEN t.typname ELSE n.nspname || '.' || t.typname END "
    "FROM pg_type AS t JOIN pg_namespace AS n ON n.oid = t.typnamespace WHERE format_type(t.oid, NULL) = %s"
)
# Indexes that may be, or may have been, the replica identity. An index's columns are recorded when it is created.
_DECODED_IDENTITIES = (
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
    return {TableName(schema, name): oid for schema, name, oid in fetch(session, "listing the tables", _TABLES)}


def load_matching_tables(session: Session, patterns: Sequence[str]) -> list[PublishedTable]:
    """The tables of the current database that match the patterns, with all columns; raises NoTableMatches."""
    database_tables = tables_in_database(session)
    tables = select_tables(patterns, sorted(database_tables))
    named = RowTables(session).versions(tables)
    return [
        PublishedTable(
            table, tuple(_printed_types(session, table)), None, named_by(named[table][1]), database_tables[table]
        )
        for table in tables
        if table in named  # otherwise it was dropped since
    ]


def takes(session: Session, patterns: Sequence[str]) -> Callable[[TableName], bool]:
    """The patterns as a predicate on printed changes: excludes materialized views, and TRUNCATE of a root.

    Queries the catalog once per matching table; for a dropped one, the patterns alone decide. The predicate raises
    SourceError.
    """
    chosen = chooses(patterns)

    @lru_cache(maxsize=4096)
    def is_captured(table: TableName) -> bool:
        if not chosen(table):
            return False
        rows = fetch(session, f"looking up {table} in the catalog", _ANY_KIND, table.schema, table.name)
        return not rows or rows[0][0] == "r"

    return is_captured


def layout_of(session: Session, table: TableName) -> Relation:
    """The layout of a table as in its rows; raises NoTableMatches."""
    return relation_of(session, table, tuple(_printed_types(session, table)))


class RowTables:
    """Answers the row decoder from its own session (`decode.gaussdb.catalog_facts.FamilyCatalog`)."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._catalog = SourceCatalog(session)

    def __call__(self, table: TableName) -> GaussDbTableMetadata | None:
        """The current facts of a table, None if it does not exist; raises SourceError."""
        version = self.versions([table]).get(table)
        printed = _printed_types(self._session, table)
        if not printed or version is None:
            return None
        relation = relation_of(self._session, table, tuple(printed))
        table_facts = self._catalog(version[0], table)
        is_full = relation.identity is ReplicaIdentity.FULL
        filled = {attribute.name for attribute in table_facts.attributes if attribute.required}
        changed, indexes = self._identities(table, version[0])
        return GaussDbTableMetadata(
            columns=tuple(
                GaussDbColumn(
                    *(c.name, c.type_name, c.type_oid, c.modifier, printed[c.name], c.number, c.missing),
                    filled=c.name in filled,
                )
                for c in relation.columns
            ),
            primary_key=relation.primary_key,
            identity=relation.identity,
            identity_columns=() if is_full else tuple(c.name for c in relation.columns if c.key),
            oid=relation.oid,
            attributes=tuple(
                attribute for attribute in table_facts.attributes if attribute.name is None or attribute.name in printed
            ),
            key_changed=table_facts.key_changed,
            file=relation.storage,
            indexes=indexes,
            identity_changed=changed,
            type_names=_Types(self._session, {}),
            printed_types=cache(self._printed_type),
            version=version[1],
        )

    def _identities(self, table: TableName, oid: int) -> tuple[int | None, tuple[UniqueIndex, ...]]:
        """The transaction that wrote the table's row of `pg_class`, and its unique indexes."""
        rows = fetch(self._session, f"reading the indexes of {table}", _DECODED_IDENTITIES, oid)
        indexes = tuple(
            UniqueIndex(frozenset(numbers), primary, named_so, created, changed)
            for _, numbers, primary, named_so, created, changed in rows
            if created is not None
        )
        return (rows[0][0], indexes) if rows else (None, ())

    def _printed_type(self, printed: str) -> tuple[int, str] | None:
        rows = fetch(self._session, f"looking up type {printed} in the catalog", _TYPES_PRINTED, printed)
        return rows[0] if len(rows) == 1 else None

    def versions(self, tables: Collection[TableName]) -> dict[TableName, tuple[int, str]]:
        """OID and version of each existing table; the version changes if the table is altered."""
        schemas, names = [table.schema for table in tables], [table.name for table in tables]
        rows = fetch(self._session, "checking which tables were altered", _VERSIONS, schemas, names)
        return {TableName(schema, name): (oid, text) for schema, name, oid, text in rows}


def _printed_types(session: Session, table: TableName) -> dict[str, str]:
    """The columns of a table in order, with the type names that rows print."""
    return dict(fetch(session, f"reading the columns of {table}", _DECODED_COLUMNS, table.schema, table.name))
