"""Announced: the relations and types that pgoutput's messages announced on one connection, with the catalog's facts.

A relation message that cannot be taken in takes the place of the one before it: the changes behind it have its layout,
which nobody knows, and none of an older one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from cdc_lake.decode.records import RelationMessage, TypeMessage
from cdc_lake.decode.told import Told
from cdc_lake.errors import UnknownRelation, UnknownType
from cdc_lake.model.relation import Column, Missing, Relation, TableName


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """What relation messages leave out of a column (`model.relation.Column`)."""

    number: int | None = None
    missing: Missing | None = None


UNTOLD: Final = ColumnFacts()
"""Of a column that the catalog of now does not have any more."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What relation messages leave out: primary key names in key order, type names by type OID, columns by name."""

    primary_key: tuple[str, ...]
    type_names: Mapping[int, str]
    columns: Mapping[str, ColumnFacts] = field(default_factory=dict)


Catalog: TypeAlias = Callable[[int, TableName], TableFacts] | Mapping[TableName, TableFacts]
"""Where facts come from: a function of (table OID, name), or a mapping by name. Asked at each relation message, by
the thread that feeds."""


class Announced:
    """`relations` by OID as four bytes: what a change begins with behind its letter.

    A streamed transaction announces tables for itself alone, and when it commits for all that comes behind it. Which of
    two announcements of a table came last is told by `arrived`.

    `came`: the message that announced each table last for all, and its LSN. `deferred`: those of `came` that are to be
    looked up once a change of all follows them.
    """

    def __init__(self, catalog: Catalog, told: Told | None = None) -> None:
        self._catalog = catalog
        self._told = told
        self._known: dict[TableName, Relation] = {}
        self.relations: dict[bytes, Relation] = {}
        self._types: dict[int, str] = {}
        self._arrivals = 0
        self._arrived: dict[bytes, int] = {}
        self.came: dict[bytes, tuple[bytes, int]] = {}
        self.deferred: dict[bytes, tuple[bytes, int]] = {}

    def forget(self) -> None:
        """The next connection announces everything anew."""
        self.relations = {}
        self._types = {}
        self._arrived = {}
        self.came, self.deferred = {}, {}

    def arrived(self) -> int:
        """The number of an announcement that came now."""
        self._arrivals += 1
        return self._arrivals

    def take_told(self, content: bytes) -> None:
        """What a message tells of tables that were altered, where such messages count."""
        if self._told is not None:
            self._told.take(content)

    def type(self, message: TypeMessage) -> None:
        """Note the name of a type."""
        self._types[message.oid] = (
            message.name if message.schema == "pg_catalog" else f"{message.schema}.{message.name}"
        )

    def relation(self, message: RelationMessage, payload: bytes = b"", lsn: int = 0) -> Relation:
        """Note a table's layout, as it came. Raises DecodeError, and what the catalog raises."""
        relation = self.resolved(message)
        self.put(message.oid.to_bytes(4, "big"), relation, self.arrived(), payload, lsn)
        return relation

    def defer(self, payload: bytes, lsn: int) -> None:
        """Note a relation message that nothing has followed yet."""
        oid = payload[1:5]
        self.put(oid, None, self.arrived(), payload, lsn)
        self.deferred[oid] = payload, lsn

    def put(self, oid: bytes, relation: Relation | None, arrival: int, payload: bytes, lsn: int) -> None:
        """The layout of a table, None: nobody knows it; passed over where a later announcement is known."""
        if arrival < self._arrived.get(oid, 0):
            return
        self._arrived[oid] = arrival
        self.came[oid] = payload, lsn
        self.deferred.pop(oid, None)
        if relation is None:
            self.relations.pop(oid, None)
        else:
            self.relations[oid] = relation

    def resolved(self, message: RelationMessage) -> Relation:
        """A table's layout, which is not noted. Raises DecodeError, and what the catalog raises."""
        facts = self._at_its_place(message, self._facts(message))
        relation = Relation(
            table=message.table,
            columns=tuple(
                Column(
                    c.name,
                    self._type_name(facts, c.type_oid, c.name),
                    c.type_oid,
                    c.modifier,
                    c.key,
                    number=facts.columns.get(c.name, UNTOLD).number,
                    missing=facts.columns.get(c.name, UNTOLD).missing,
                )
                for c in message.columns
            ),
            identity=message.identity,
            primary_key=facts.primary_key,
            oid=message.oid if facts.columns else None,
        )
        # the same layout announced again keeps its object, and with it the cached hash
        if self._known.get(message.table) == relation:
            relation = self._known[message.table]
        self._known[message.table] = relation
        return relation

    def _facts(self, message: RelationMessage) -> TableFacts:
        if callable(self._catalog):
            return self._catalog(message.oid, message.table)
        if (facts := self._catalog.get(message.table)) is None:
            raise UnknownRelation(f"the catalog has no facts of {message.table}", offset=1)
        return facts

    def _at_its_place(self, message: RelationMessage, now: TableFacts) -> TableFacts:
        """The catalog's facts, which are of now, by the names that the columns had where the message stands."""
        by_number = {one.number: one for one in now.columns.values() if one.number is not None}
        names_now = {one.number: name for name, one in now.columns.items() if one.number is not None}
        told = None if self._told is None else self._told.columns_of(message, names_now)
        if told is None:
            return now
        columns = {
            name: by_number.get(column.number, ColumnFacts(column.number, Missing(None) if column.filled else None))
            for name, column in told.items()
        }
        names = {one.number: name for name, one in columns.items()}
        key = tuple(names.get(now.columns[name].number, name) for name in now.primary_key if name in now.columns)
        return TableFacts(key, now.type_names, columns)

    def _type_name(self, facts: TableFacts, oid: int, column: str) -> str:
        # the catalog's spelling first: it is the one that casts are chosen by
        name = facts.type_names.get(oid) or self._types.get(oid)
        if name is None:
            raise UnknownType(f"column `{column}` is of type OID {oid}, whose name is not known")
        return name
