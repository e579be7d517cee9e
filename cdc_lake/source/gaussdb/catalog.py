"""The catalog of a server of the GaussDB family: what rows of the stream do not say of their tables.

Only what PostgreSQL 9.2, which the family comes from, had in its catalogs is asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from cdc_lake.decode.historic_catalog import Attribute
from cdc_lake.decode.mppdb.facts import FamilyColumn, FamilyTableFacts, Storage
from cdc_lake.errors import NoReplicaIdentity
from cdc_lake.model.relation import ReplicaIdentity, TableName
from cdc_lake.source.gaussdb.defaults import missing_of
from cdc_lake.source.quoting import literal, quoted
from cdc_lake.source.tables import VERSION, left_out
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
    f"SELECT c.oid, c.relreplident, c.reloptions, c.relfilenode, c.parttype, {VERSION} "
    "FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE n.nspname = {schema} AND c.relname = {name} AND c.relkind IN ('r', 'p')"
)
_COLUMNS = (
    "SELECT a.attnum, a.attname, tn.nspname, t.typname, a.atttypid, a.atttypmod, format_type(a.atttypid, NULL), "
    "encode(a.attinitdefval, 'hex'), a.atthasdef OR t.typdefault IS NOT NULL AS atthasdef, a.attnotnull, "
    "a.attisdropped, a.xmin "
    "FROM pg_attribute AS a LEFT JOIN pg_type AS t ON t.oid = a.atttypid "
    "LEFT JOIN pg_namespace AS tn ON tn.oid = t.typnamespace "
    "WHERE a.attrelid = {oid} AND a.attnum > 0 ORDER BY a.attnum"
)
_INDEXES = (
    "SELECT i.indkey, i.indisprimary, i.indisreplident, i.indisvalid, i.indimmediate, i.xmin FROM pg_index AS i "
    "WHERE i.indrelid = {oid} AND (i.indisprimary OR i.indisreplident)"
)
_PARTITIONS = (
    "SELECT p.oid, p.relfilenode FROM pg_partition AS p WHERE p.parttype IN ('p', 's') AND (p.parentid = {oid} "
    "OR p.parentid IN (SELECT q.oid FROM pg_partition AS q WHERE q.parentid = {oid})) ORDER BY p.oid"
)
_VERSIONS = (
    f"SELECT n.nspname, c.relname, c.oid, {VERSION} "
    "FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE (n.nspname, c.relname) IN ({names})"
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
    changed: int  # the transaction that wrote its row


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
    oid, identity, options, file, parted, version = found[0]
    columns, attributes = [], []
    ways = {"decode": partial(_decoded, session, doing=doing), "printed": partial(_printed, session, doing=doing)}
    for row in session.query(_COLUMNS.format(oid=oid), doing=doing).rows:
        number, name, schema, kind, type_oid, modifier, printed, kept, has_default, filled, dropped, changed = row
        if dropped == "t":
            attributes.append(Attribute(int(number or 0), changed=int(changed or 0)))
            continue
        type_name = (kind or "") if schema == "pg_catalog" else f"{schema}.{kind}"
        missing = missing_of(type_name, kept, has_default=has_default == "t", **ways)
        column = FamilyColumn(name or "", type_name, int(type_oid or 0), int(modifier or -1), printed, int(number or 0))
        columns.append(replace(column, missing=missing, filled=filled == "t"))
        attribute = Attribute(int(number or 0), name, int(type_oid or 0), int(modifier or -1), missing)
        attributes.append(replace(attribute, changed=int(changed or 0)))
    names = {str(column.number): column.name for column in columns}
    indexes = [_index(row, names) for row in session.query(_INDEXES.format(oid=oid), doing=doing).rows]
    skipped: set[str] = set()
    if skips_generated:
        skipped = {name or "" for (name,) in session.query(_GENERATED.format(oid=oid), doing=doing).rows}
    how, primary = ReplicaIdentity(identity or "d"), next((i for i in indexes if i.primary), None)
    return FamilyTableFacts(
        columns=tuple(column for column in columns if column.name not in skipped),
        primary_key=() if primary is None else primary.columns,
        identity=how,
        identity_columns=_identity_columns(how, indexes),
        storage=Storage.USTORE if "storage_type=ustore" in _options(options) else Storage.ASTORE,
        type_names=_TypeNames(session),
        oid=int(oid or 0),
        attributes=tuple(one for one in attributes if one.name not in skipped),
        key_changed=None if primary is None else primary.changed,
        file=_files(session, oid or "", doing) if parted != "n" else None if file in ("0", oid) else int(file or 0),
        skipped=frozenset(skipped),
        printed_types=cache(partial(_printed_type, session)),
        version=version or "",
    )


def versions_of(session: WireSession, tables: Collection[TableName]) -> dict[TableName, tuple[int, str]]:
    """See `decode.mppdb.facts.Versions`."""
    names = ", ".join(f"({literal(table.schema)}, {literal(table.name)})" for table in tables)
    rows = session.query(_VERSIONS.format(names=names), doing="looking which tables were altered").rows
    return {TableName(schema or "", name or ""): (int(oid or 0), version or "") for schema, name, oid, version in rows}


def _files(session: WireSession, oid: str, doing: str) -> int | None:
    """What tells whether a partition was rewritten, as `source.catalog` has it of PostgreSQL's."""
    rows = session.query(_PARTITIONS.format(oid=oid), doing=doing).rows
    rewritten = ",".join(f"{part}:{file}" for part, file in rows if file not in ("0", part))
    return int.from_bytes(hashlib.sha256(rewritten.encode()).digest()[:8], "big") >> 1 if rewritten else None


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


def _printed_type(session: WireSession, printed: str) -> tuple[int, str] | None:
    """OID and name of the type that text rows print so; None where it is gone."""
    sql = (
        "SELECT t.oid, n.nspname, t.typname FROM pg_type AS t JOIN pg_namespace AS n ON n.oid = t.typnamespace "
        f"WHERE format_type(t.oid, NULL) = {literal(printed)}"
    )
    rows = session.query(sql, doing=f"looking up type {printed} in the catalog").rows
    if len(rows) != 1:
        return None
    [(oid, schema, name)] = rows
    return int(oid or 0), (name or "") if schema == "pg_catalog" else f"{schema}.{name}"


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

    def versions(self, tables: Collection[TableName]) -> dict[TableName, tuple[int, str]]:
        """See `decode.mppdb.facts.Versions`."""
        return versions_of(self._session, tables)


def check_identities(facts: Mapping[TableName, FamilyTableFacts], place: str) -> None:
    """Raise NoReplicaIdentity, naming every table whose updates and deletes would not say which row they mean."""
    bare = [table for table, one in facts.items() if not one.identity_columns and not one.whole]
    if bare:
        statements = "; ".join(f"ALTER TABLE {quoted(table)} REPLICA IDENTITY FULL" for table in bare)
        raise NoReplicaIdentity(
            f"no primary key and no replica identity: {', '.join(map(str, bare))}",
            where=place,
            hint=f"add primary keys, or run: {statements}; or leave them out: {left_out(bare)}",
        )


def _index(row: Sequence[str | None], names: Mapping[str, str]) -> _Index:
    numbers, primary, identity, valid, immediate, changed = row
    columns = tuple(names[number] for number in (numbers or "").split() if number in names)
    return _Index(columns, primary == "t", identity == "t", valid == "t" and immediate == "t", int(changed or 0))


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
