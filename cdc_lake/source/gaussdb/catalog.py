"""The catalog of a server of the GaussDB family: what rows of the stream do not say of their tables.

Only what PostgreSQL 9.2, which the family comes from, had in its catalogs is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from cdc_lake.decode.mppdb.facts import FamilyColumn, FamilyTableFacts, Storage
from cdc_lake.errors import NoReplicaIdentity
from cdc_lake.model.relation import ReplicaIdentity, TableName
from cdc_lake.source.gaussdb.defaults import missing_of
from cdc_lake.source.quoting import literal, quoted
from cdc_lake.source.wire.session import WireSession

_FIRST_OF_USERS = 16384
"""Lower OIDs are the system's own: the family has many schemas besides pg_catalog."""

_TABLES = (
    "SELECT n.nspname, c.relname, c.reloptions, c.oid "
    "FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    f"WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= {_FIRST_OF_USERS} "
    "AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'cstore')"
)
_TABLE = (
    "SELECT c.oid, c.relreplident, c.reloptions, c.relnatts "
    "FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE n.nspname = {schema} AND c.relname = {name} AND c.relkind IN ('r', 'p')"
)
_COLUMNS = (
    "SELECT a.attnum, a.attname, tn.nspname, t.typname, a.atttypid, a.atttypmod, format_type(a.atttypid, NULL), "
    "encode(a.attinitdefval, 'hex'), a.atthasdef, a.attnotnull "
    "FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid JOIN pg_namespace AS tn ON tn.oid = t.typnamespace "
    "WHERE a.attrelid = {oid} AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
)
_INDEXES = (
    "SELECT i.indkey, i.indisprimary, i.indisreplident, i.indisvalid, i.indimmediate FROM pg_index AS i "
    "WHERE i.indrelid = {oid} AND (i.indisprimary OR i.indisreplident)"
)
_GENERATED = (
    "SELECT a.attname FROM pg_attrdef AS d JOIN pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum "
    "WHERE d.adrelid = {oid} AND d.adgencol = 's'"
)
"""Servers that can leave generated columns out have `adgencol`."""


@dataclass(frozen=True, slots=True)
class _Index:
    """An index that may be the primary key or the replica identity; `columns` in key order."""

    columns: tuple[str, ...]
    primary: bool
    identity: bool
    logged: bool  # valid and not deferrable: the server logs by it


def tables_in_database(session: WireSession) -> dict[TableName, int]:
    """OIDs of the tables that logical decoding can show: persistent row tables of users. Raises SourceError."""
    rows = session.query(_TABLES, doing="listing the tables").rows
    return {
        TableName(schema or "", name or ""): int(oid or 0)
        for schema, name, options, oid in rows
        if "orientation=column" not in _options(options)
    }


def facts_of(session: WireSession, table: TableName, *, skips_generated: bool = False) -> FamilyTableFacts | None:
    """What the catalog says of a table now; None where there is none of that name. Raises SourceError.

    `skips_generated`: generated columns are left out of new rows (`skip-generated-columns`), and so of the table.
    """
    doing = f"looking up {table} in the catalog"
    sql = _TABLE.format(schema=literal(table.schema), name=literal(table.name))
    found = session.query(sql, doing=doing).rows
    if not found:
        return None
    oid, identity, options, highest = found[0]
    columns, names = [], {}
    ways = {"decode": partial(_decoded, session, doing=doing), "printed": partial(_printed, session, doing=doing)}
    for number, name, schema, kind, type_oid, modifier, printed, kept, has_default, filled in session.query(
        _COLUMNS.format(oid=oid), doing=doing
    ).rows:
        type_name = (kind or "") if schema == "pg_catalog" else f"{schema}.{kind}"
        missing = missing_of(type_name, kept, has_default=has_default == "t", **ways)
        place = (int(type_oid or 0), int(modifier or -1), printed, int(number or 0))
        columns.append(FamilyColumn(name or "", type_name, *place, missing, filled=filled == "t"))
        names[number or ""] = name or ""
    indexes = [_index(row, names) for row in session.query(_INDEXES.format(oid=oid), doing=doing).rows]
    skipped: set[str] = set()
    if skips_generated:
        skipped = {name or "" for (name,) in session.query(_GENERATED.format(oid=oid), doing=doing).rows}
    how = ReplicaIdentity(identity or "d")
    return FamilyTableFacts(
        columns=tuple(column for column in columns if column.name not in skipped),
        primary_key=next((i.columns for i in indexes if i.primary), ()),
        identity=how,
        identity_columns=_identity_columns(how, indexes),
        storage=Storage.USTORE if "storage_type=ustore" in _options(options) else Storage.ASTORE,
        type_names=_TypeNames(session),
        oid=int(oid or 0),
        highest=int(highest or 0),
        skipped=frozenset(skipped),
    )


def _decoded(session: WireSession, image: bytes, *, doing: str) -> str | None:
    """Bytes in the encoding of the database as text; None where they are none."""
    if image.isascii():
        return image.decode("ascii")
    text = f"convert_from(decode({literal(image.hex())}, 'hex'), getdatabaseencoding())"
    sql = f"SELECT CASE WHEN getdatabaseencoding() <> 'SQL_ASCII' THEN {text} END"
    return session.query(sql, doing=doing).rows[0][0]


def _printed(session: WireSession, number: str, *, doing: str) -> str | None:
    """A numeric as the server prints it."""
    return session.query(f"SELECT CAST({literal(number)} AS numeric)", doing=doing).rows[0][0]


class _TypeNames(Mapping[int, str]):
    """Names of types by OID, asked one by one: of columns that were dropped or changed their type since."""

    def __init__(self, session: WireSession) -> None:
        self._session = session
        self._known: dict[int, str] = {}

    def __getitem__(self, oid: int) -> str:
        if oid not in self._known:
            sql = (
                "SELECT n.nspname, t.typname FROM pg_type AS t JOIN pg_namespace AS n ON n.oid = t.typnamespace "
                f"WHERE t.oid = {oid}"
            )
            rows = self._session.query(sql, doing=f"looking up type {oid} in the catalog").rows
            if not rows:
                raise KeyError(oid)
            schema, name = rows[0]
            self._known[oid] = (name or "") if schema == "pg_catalog" else f"{schema}.{name}"
        return self._known[oid]

    def __iter__(self) -> Iterator[int]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class FamilyTables:
    """Answers the decoder from a session of its own (`decode.mppdb.facts.FamilyCatalog`)."""

    def __init__(self, session: WireSession, *, skips_generated: bool = False) -> None:
        """`skips_generated`: see `facts_of`."""
        self._session = session
        self._skips_generated = skips_generated

    def __call__(self, table: TableName) -> FamilyTableFacts | None:
        """The facts of a table now; raises SourceError."""
        return facts_of(self._session, table, skips_generated=self._skips_generated)


def check_identities(facts: Mapping[TableName, FamilyTableFacts], place: str) -> None:
    """Raise NoReplicaIdentity, naming every table whose updates and deletes would not say which row they mean."""
    bare = [table for table, one in facts.items() if not one.identity_columns and not one.whole]
    if bare:
        statements = "; ".join(f"ALTER TABLE {quoted(table)} REPLICA IDENTITY FULL" for table in bare)
        raise NoReplicaIdentity(
            f"no primary key and no replica identity: {', '.join(map(str, bare))}",
            where=place,
            hint=f"add primary keys, or run: {statements}; or leave them out: `!{bare[0]}` in `source.tables`",
        )


def _index(row: Sequence[str | None], names: Mapping[str, str]) -> _Index:
    numbers, primary, identity, valid, immediate = row
    columns = tuple(names[number] for number in (numbers or "").split() if number in names)
    return _Index(columns, primary == "t", identity == "t", valid == "t" and immediate == "t")


def _identity_columns(identity: ReplicaIdentity, indexes: Sequence[_Index]) -> tuple[str, ...]:
    match identity:
        case ReplicaIdentity.DEFAULT:
            return next((i.columns for i in indexes if i.primary and i.logged), ())
        case ReplicaIdentity.INDEX:
            return next((i.columns for i in indexes if i.identity and i.logged), ())
        case ReplicaIdentity.FULL | ReplicaIdentity.NOTHING:
            return ()


def _options(text: str | None) -> set[str]:
    """A table's options as an array prints them: `{orientation=row,storage_type=USTORE}`."""
    return {option.strip('"').lower() for option in (text or "").strip("{}").split(",")}
