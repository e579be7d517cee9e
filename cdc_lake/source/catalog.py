"""The catalog: what the stream does not say of a table, and a table's layout as the stream would announce it.

Type names are `pg_type.typname`, with the schema before it outside `pg_catalog`: the form of pgoutput's own type
messages, so that a layout has the same number wherever it was learned.
"""

from __future__ import annotations

from collections.abc import Sequence

from cdc_lake.decode.announced import ColumnFacts, TableFacts
from cdc_lake.errors import NoReplicaIdentity, NoTableMatches
from cdc_lake.model.relation import Column, Missing, Relation, ReplicaIdentity, TableName
from cdc_lake.source.connection import Session, named
from cdc_lake.source.quoting import quoted

_TYPE_NAME = "CASE WHEN tn.nspname = 'pg_catalog' THEN t.typname::text ELSE tn.nspname || '.' || t.typname END"

# A default that was there when its column was added is the value of the rows before it, which are not rewritten for it
# (pg_attribute.attmissingval, an array of one). Where a column has a default and no such value, its rows may have been
# written anew with it (a volatile one, an identity, a generated column), or it came later: nobody can say.
_BEFORE = (
    "a.attnum::int, (a.attmissingval::text::text[])[1], NOT a.atthasmissing AND (a.atthasdef OR a.attidentity <> '')"
)

# The index whose columns the server logs: RelationGetReplicaIndex of relcache.c. A deferrable key is none,
# and columns an index only INCLUDEs are not of it.
_IDENTITY_INDEX = (
    "SELECT (i.indkey::int2[])[0:i.indnkeyatts - 1] FROM pg_index AS i "
    "WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate "
    "AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END"
)

_COLUMNS = (
    f"SELECT c.relreplident::text, a.attname::text, {_TYPE_NAME}, a.atttypid::bigint, a.atttypmod, "
    f"c.relreplident = 'f' OR a.attnum = ANY (({_IDENTITY_INDEX})::int2[]), a.attgenerated <> '', c.oid::bigint, "
    f"{_BEFORE} "
    "FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
    "JOIN pg_type AS t ON t.oid = a.atttypid JOIN pg_namespace AS tn ON tn.oid = t.typnamespace "
    "WHERE n.nspname = %s AND c.relname = %s ORDER BY a.attnum"
)

_PRIMARY_KEY = (
    "SELECT a.attname::text FROM pg_index AS i "
    "CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, at) "
    "JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum "
    "WHERE i.indrelid = %s AND i.indisprimary AND k.at <= i.indnkeyatts ORDER BY k.at"
)


class SourceCatalog:
    """Answers the assembler from a session of its own; implements `decode.assembler.Catalog`.

    Asked at every relation message, which is rare; the type names are kept, the primary key is read anew because an
    ALTER TABLE may be why the message came. A table that is gone meanwhile has no primary key any more.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._types: dict[int, str] = {}

    def __call__(self, oid: int, table: TableName) -> TableFacts:
        """The facts of table `oid`; raises SourceError."""
        with named(f"looking up {table} in the catalog"):
            key = self._session.execute(_PRIMARY_KEY.encode(), [oid]).fetchall()
            rows = self._session.execute(
                (
                    f"SELECT t.oid::bigint, {_TYPE_NAME}, a.attname::text, {_BEFORE} FROM pg_attribute AS a "
                    "JOIN pg_type AS t ON t.oid = a.atttypid JOIN pg_namespace AS tn ON tn.oid = t.typnamespace "
                    "WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped"
                ).encode(),
                [oid],
            ).fetchall()
        self._types.update((int(str(at)), str(name)) for at, name, *_ in rows)
        columns = {
            str(name): ColumnFacts(int(str(n)), _missing(text, unknown)) for _, _, name, n, text, unknown in rows
        }
        return TableFacts(tuple(str(name) for (name,) in key), _Types(self._session, self._types), columns)

    def close(self) -> None:
        """Close the session."""
        self._session.close()


class _Types(dict[int, str]):
    """Type names by OID, looked up one by one where a column's type was changed after the message was logged."""

    def __init__(self, session: Session, known: dict[int, str]) -> None:
        super().__init__(known)
        self._session = session

    def get(self, oid: int, default: str | None = None) -> str | None:  # type: ignore[override]  # as it is called
        if oid not in self:
            with named(f"looking up type {oid} in the catalog"):
                row = self._session.execute(
                    (
                        f"SELECT {_TYPE_NAME} FROM pg_type AS t JOIN pg_namespace AS tn ON tn.oid = t.typnamespace "
                        "WHERE t.oid = %s"
                    ).encode(),
                    [oid],
                ).fetchone()
            if row is None:
                return default
            self[oid] = str(row[0])
        return self[oid]


def relation_of(session: Session, table: TableName, columns: Sequence[str] | None) -> Relation:
    """The layout of a table with these published columns, equal to what the assembler makes of its relation message.

    `columns` None: all that a publication made now would carry.
    """
    with named(f"reading the columns of {table}"):
        rows = session.execute(_COLUMNS.encode(), [table.schema, table.name]).fetchall()
        key = session.execute(
            _PRIMARY_KEY.replace("i.indrelid = %s", "i.indrelid = %s::regclass").encode(), [quoted(table)]
        ).fetchall()
    if not rows:
        raise NoTableMatches(f"table {table} is not there")
    wanted = {str(row[1]) for row in rows if not row[6]} if columns is None else set(columns)
    return Relation(
        table=table,
        columns=tuple(
            Column(
                str(name),
                str(kind),
                int(str(oid)),
                int(str(modifier)),
                bool(flagged),
                number=int(str(number)),
                missing=_missing(text, unknown),
            )
            for _, name, kind, oid, modifier, flagged, _, _, number, text, unknown in rows
            if name in wanted
        ),
        identity=ReplicaIdentity(str(rows[0][0])),
        primary_key=tuple(str(name) for (name,) in key),
        oid=int(str(rows[0][7])),
    )


def _missing(text: object, unknown: object) -> Missing | None:
    """What rows from before a column hold in it."""
    return Missing(None) if unknown else None if text is None else Missing(str(text))


def without_identity(session: Session, tables: Sequence[TableName]) -> list[TableName]:
    """The tables whose updates the server would refuse once they are published."""
    bare = []
    for table in tables:
        with named(f"reading the replica identity of {table}"):
            row = session.execute(
                f"SELECT c.relreplident = 'f' OR EXISTS ({_IDENTITY_INDEX}) FROM pg_class AS c "
                "JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s".encode(),
                [table.schema, table.name],
            ).fetchone()
        if row is None or not row[0]:
            bare.append(table)
    return bare


def outside_identity(session: Session, table: TableName, columns: Sequence[str]) -> list[str]:
    """Those of some columns that the server does not log of a table's old rows, of a partitioned one in any part."""
    with named(f"reading the replica identity of {table}"):
        rows = session.execute(
            "WITH t AS (SELECT %s::regclass AS oid), "
            "parts AS (SELECT relid FROM t, pg_partition_tree(t.oid) WHERE isleaf) "
            "SELECT DISTINCT a.attname::text FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid, t "
            "WHERE (c.oid IN (SELECT relid FROM parts) OR c.oid = t.oid AND NOT EXISTS (SELECT FROM parts)) "
            f"AND a.attname = ANY (%s) AND c.relreplident <> 'f' AND (a.attnum = ANY (({_IDENTITY_INDEX})::int2[])) "
            "IS NOT TRUE ORDER BY 1".encode(),
            [quoted(table), list(columns)],
        ).fetchall()
    return [str(name) for (name,) in rows]


def whole_identity(table: TableName) -> str:
    """The statement by which the server logs whole old rows of a table."""
    return f"ALTER TABLE {quoted(table)} REPLICA IDENTITY FULL"


def check_identities(session: Session, tables: Sequence[TableName]) -> None:
    """Raise NoReplicaIdentity, naming every table whose updates the server would refuse once it is published."""
    if bare := without_identity(session, tables):
        statements = "; ".join(map(whole_identity, bare))
        listed = ", ".join(map(str, bare))
        info = session.info
        raise NoReplicaIdentity(
            f"no primary key and no replica identity: {listed}",
            where=f"{info.host}:{info.port}/{info.dbname}",
            hint=f"add primary keys, or run: {statements}; or leave them out: `!{bare[0]}` in `source.tables`",
        )
