"""Declared tables: a catalog and table contents without a database, exact at every CSN.

The ledger determines what a table contains in a snapshot: its declared rows, with every transaction whose CSN is below
the snapshot's applied by key. An initial copy and the stream after it can therefore be verified against each other. It
answers the queries of a capture on `pg_class`, `pg_attribute`, `pg_index`, and COPY (SELECT columns FROM table) TO
STDOUT.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cdc_lake.decode.gaussdb.records import Field, Operation, Row, Truncated
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.source.sql_text import literal
from cdc_lake_testing.gaussdb.ledger import Ledger
from cdc_lake_testing.gaussdb.slot_functions import columns
from cdc_lake_testing.gaussdb.sql import Answer, CopyOut, Failed, ResultSet, SqlSession

_FIRST_OID: Final = 20000
_NAME: Final = r'"(?:[^"]|"")+"|[a-z_0-9]+'
_COPY: Final = re.compile(
    rf"copy \(select (?P<list>.+) from (?P<schema>{_NAME})\.(?P<name>{_NAME})\) to stdout", re.IGNORECASE
)
_LOOKED_UP: Final = re.compile(r"nspname = '((?:[^']|'')*)' and c\.relname = '((?:[^']|'')*)'", re.IGNORECASE)
_ESCAPES: Final = {"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\b": r"\b", "\f": r"\f", "\v": r"\v"}


@dataclass(frozen=True, slots=True)
class DeclaredTable:
    """A table: its layout, and the rows (output text, by position) it had before the ledger began.

    `printed`: type names as `format_type` prints them, by position; the relation's own where it is empty.
    """

    relation: Relation
    rows: tuple[tuple[str | None, ...], ...] = ()
    printed: tuple[str, ...] = ()
    options: str | None = "{orientation=row,compression=no}"

    def contents(self, ledger: Ledger, csn: int) -> list[tuple[str | None, ...]]:
        """The rows in a snapshot that holds every transaction with a CSN below `csn`, in no particular order."""
        state = {self._key_of(row): row for row in self.rows}
        for transaction in sorted(ledger.since(0), key=lambda t: t.csn):
            if transaction.csn >= csn:
                break
            for change in transaction.changes:
                if isinstance(change, Truncated) and self.relation.table in change.tables:
                    state.clear()
                elif isinstance(change, Row) and change.table == self.relation.table:
                    self._apply(state, change)
        return list(state.values())

    def _apply(self, state: dict[tuple[str | None, ...], tuple[str | None, ...]], change: Row) -> None:
        if change.operation is not Operation.INSERT and (old := change.old or change.new) is not None:
            state.pop(self._key_of(self._by_position(old)), None)
        if change.new is not None:
            row = self._by_position(change.new)
            state[self._key_of(row)] = row

    def _by_position(self, fields: Sequence[Field]) -> tuple[str | None, ...]:
        held = {field.name: field.value for field in fields}
        values = (held.get(name) for name in self.relation.names)
        return tuple(value if isinstance(value, str) else None for value in values)

    def _key_of(self, row: Sequence[str | None]) -> tuple[str | None, ...]:
        keys = [column.key for column in self.relation.columns]
        return tuple(value for value, key in zip(row, keys, strict=True) if key or not any(keys))


def _version(oid: int) -> str:
    return f"{oid} 3 10"


class DeclaredTables:
    """Answers about declared tables; None for every other question."""

    def __init__(self, tables: Iterable[DeclaredTable]) -> None:
        self._tables = {table.relation.table: table for table in tables}
        self._oids = {_FIRST_OID + at: table for at, table in enumerate(self._tables.values())}

    def answer(self, sql: str, session: SqlSession, csn: int) -> Answer | None:
        """The answer to a folded statement; `csn` is the session's snapshot."""
        lower = sql.lower()
        found = _COPY.fullmatch(sql.rstrip("; "))
        if found is not None:
            return self._copy(found, session, csn)
        if " from pg_class " in lower:
            looked_up = _LOOKED_UP.search(sql)
            if "(n.nspname, c.relname) in" in lower:
                return self._versions(sql)
            if looked_up is None:
                return self._listed()
            name = TableName(*(part.replace("''", "'") for part in looked_up.groups()))
            return self._facts(name) if "c.relpages" in lower else self._table(name)
        number = re.search(r"(?:attrelid|indrelid) = (\d+)", lower)
        if number is None:
            return None
        table = self._oids.get(int(number[1]))
        return self._columns(table) if " from pg_attribute " in lower else self._indexes(table)

    def _listed(self) -> ResultSet:
        numbered = zip(self._oids, self._tables.items(), strict=True)
        rows = [(name.schema, name.name, table.options, str(oid)) for oid, (name, table) in numbered]
        return ResultSet(columns(("nspname", 19), ("relname", 19), ("reloptions", 1009), ("oid", 26)), rows)

    def _versions(self, sql: str) -> ResultSet:
        """Nobody alters a table."""
        rows = [
            (name.schema, name.name, str(oid), _version(oid))
            for oid, name in zip(self._oids, self._tables, strict=True)
            if f"({literal(name.schema)}, {literal(name.name)})" in sql
        ]
        return ResultSet(columns(("nspname", 19), ("relname", 19), ("oid", 26), ("version", 25)), rows)

    def _table(self, name: TableName) -> ResultSet:
        rows = [
            (str(oid), table.relation.identity.value, table.options, str(oid), "n", _version(oid))
            for oid, table in self._oids.items()
            if table.relation.table == name
        ]
        shown = (("oid", 26), ("relreplident", 18), ("reloptions", 1009), ("relfilenode", 26), ("parttype", 18))
        return ResultSet(columns(*shown, ("version", 25)), rows)

    def _facts(self, name: TableName) -> ResultSet:
        """A table that was never analysed, of one page, that the role may do everything with."""
        rows = [("-1", "0", "8192", "t", "t")] if name in self._tables else []
        shown = (("reltuples", 20), ("relpages", 23), ("pg_total_relation_size", 20), ("has", 16), ("pg_has_role", 16))
        return ResultSet(columns(*shown), rows)

    def _columns(self, table: DeclaredTable | None) -> ResultSet:
        rows = []
        for number, column in enumerate(table.relation.columns if table is not None else (), 1):
            schema, _, kind = column.type_name.rpartition(".")
            printed = table.printed[number - 1] if table is not None and table.printed else column.type_name
            place = (str(number), column.name, schema or "pg_catalog", kind)
            rows.append((*place, str(column.type_oid), str(column.modifier), printed, None, "f", "f", "f", "3"))
        shown = (("attnum", 21), ("attname", 19), ("nspname", 19), ("typname", 19), ("atttypid", 26))
        return ResultSet(
            columns(
                *(*shown, ("atttypmod", 23), ("format_type", 25), ("encode", 25), ("atthasdef", 16)),
                *(("attnotnull", 16), ("attisdropped", 16), ("xmin", 28)),
            ),
            rows,
        )

    def _indexes(self, table: DeclaredTable | None) -> ResultSet:
        rows = []
        if table is not None and table.relation.primary_key:
            names = table.relation.names
            numbers = " ".join(str(names.index(name) + 1) for name in table.relation.primary_key)
            rows.append((numbers, "t", "f", "t", "t", "3"))
        flags = ("indisprimary", "indisreplident", "indisvalid", "indimmediate")
        return ResultSet(columns(("indkey", 22), *((flag, 16) for flag in flags), ("xmin", 28)), rows)

    def _copy(self, found: re.Match[str], session: SqlSession, csn: int) -> Answer:
        name = TableName(_unquoted(found["schema"]), _unquoted(found["name"]))
        table = self._tables.get(name)
        if table is None:
            return Failed("42P01", f'relation "{name}" does not exist on node1')
        wanted = [_unquoted(item) for item in re.findall(_NAME, found["list"])]
        missing = [item for item in wanted if item not in table.relation.names]
        if missing:
            return Failed("42703", f'column "{missing[0]}" does not exist')
        picks = [table.relation.names.index(item) for item in wanted]
        rows = ([row[at] for at in picks] for row in table.contents(session.server.ledger, csn))
        return CopyOut(_lines(rows), len(picks))


def _lines(rows: Iterable[Sequence[str | None]]) -> Iterator[bytes]:
    for row in rows:
        yield ("\t".join(map(_copied, row)) + "\n").encode()


def _copied(value: str | None) -> str:
    return r"\N" if value is None else "".join(_ESCAPES.get(char, char) for char in value)


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()
