"""Relations and types announced by pgoutput on one connection, completed by the catalog and by DDL messages.

A relation message that cannot be read replaces the previous one: the changes after it have an unknown layout.

A relation message names columns without their numbers; the catalog has the current numbers. In between, an event
trigger (`source.postgres.catalog`) reports the columns in the transaction that altered the table. Anybody who may write
logical messages can forge such a message, so only column numbers are taken from it, and only if neither the relation
message nor the catalog contradicts them (decision 0046).
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from cdc_lake.decode.historic_catalog import (
    Attribute,
    Identified,
    Named,
    as_logged,
    identify,
    key_then,
    missing_then,
    precedes,
    storage_then,
)
from cdc_lake.decode.pgoutput.messages import RelationMessage, TypeMessage
from cdc_lake.errors import UnknownRelation, UnknownType
from cdc_lake.model.relation import Column, Missing, Relation, ReplicaIdentity, TableName

VERSION: Final = 1
_KEPT: Final = 32  # states of a table: if it is altered more often between two changes, the oldest are dropped

Say: TypeAlias = Callable[[str], None]
"""Reports why a message is not used."""


@dataclass(frozen=True, slots=True)
class DdlColumn:
    """A column of a table at some time. `filled`: earlier rows may have another value than NULL."""

    number: int
    type_oid: int
    modifier: int
    filled: bool


Columns: TypeAlias = Mapping[str, DdlColumn]
"""Columns by name."""


class DdlMessages:
    """The reported states of each table, by its OID, newest last. One instance per run of the stream."""

    def __init__(self, known_relations: Iterable[Relation] = (), say: Say = lambda _: None) -> None:
        """`known_relations`: layouts that landed before."""
        self._states: dict[int, deque[Columns]] = {}
        self._landed: dict[int, Columns] = {}
        self._say = say
        for relation in known_relations:
            columns = {
                c.name: DdlColumn(c.number, c.type_oid, c.modifier, c.missing is not None)
                for c in relation.columns
                if c.number is not None
            }
            if relation.oid is not None and len(columns) == len(relation.columns):
                self._landed[relation.oid] = columns

    def take(self, content: bytes) -> None:
        """Take a message of the trigger. An invalid one is reported and ignored."""
        try:
            altered = _parse_message(content)
        except (ValueError, TypeError, KeyError, RecursionError) as wrong:
            text = f"a message about altered tables does not have the form of version {VERSION}: {type(wrong).__name__}"
            self._say(text)
            return
        for oid, columns in altered.items():
            self._states.setdefault(oid, deque(maxlen=_KEPT)).append(columns)

    def columns_of(self, message: RelationMessage, now: Mapping[int, str], *, by_layout: bool = True) -> Columns | None:
        """The columns of the table that a relation message announces; None if nothing was reported.

        `now`: names of the columns in the current catalog, by number; `by_layout`: use landed layouts too.
        """
        states = [state for state in reversed(self._states.get(message.oid, ())) if _announces(message, state)]
        for columns in states:
            if _may_have_been(columns, {state.name for state in message.columns}, now):
                return columns
        if states:
            text = f"a message about {message.table} contradicts the catalog, which has other columns; it is ignored"
            self._say(text)
        landed = self._landed.get(message.oid) if by_layout else None
        return landed if landed is not None and _announces(message, landed) and _are_unchanged(landed, now) else None


def _announces(message: RelationMessage, columns: Columns) -> bool:
    """Whether these contain all columns of a relation message; unpublished columns may be more."""
    return all(
        (ddl_column := columns.get(announced.name)) is not None
        and (ddl_column.type_oid, ddl_column.modifier) == (announced.type_oid, announced.modifier)
        for announced in message.columns
    )


def _may_have_been(columns: Columns, announced: Collection[str], now: Mapping[int, str]) -> bool:
    """Whether a table with the current columns may have had these, of which some are announced."""
    numbers = {column.number for column in columns.values()}
    # a current column has existed since its number was assigned, and numbers are assigned in order
    if not {number for number in now if number <= max(numbers, default=0)} <= numbers:
        return False
    return all(now.get(past.number) not in announced for name, past in columns.items() if name not in announced)


def _are_unchanged(columns: Columns, now: Mapping[int, str]) -> bool:
    """Whether, according to the catalog, none of these was dropped and added again without a report."""
    return all(column.number in now or name not in now.values() for name, column in columns.items())


def _parse_message(content: bytes) -> dict[int, Columns]:
    document = json.loads(content)
    if document["version"] != VERSION:
        raise ValueError("another version")
    return {_number(table["oid"]): _columns(table["columns"]) for table in document["tables"]}


def _columns(listed: object) -> Columns:
    if not isinstance(listed, list):
        raise TypeError("columns must be a list")
    columns: dict[str, DdlColumn] = {}
    for entry in listed:
        if not isinstance(entry["name"], str) or not isinstance(entry["filled"], bool):
            raise TypeError("a name must be a text, and `filled` true or false")
        number, type_oid, modifier = (_number(entry[name]) for name in ("number", "type", "modifier"))
        columns[entry["name"]] = DdlColumn(number, type_oid, modifier, entry["filled"])
    if len(columns) != len(listed) or len({c.number for c in columns.values()}) != len(listed):
        raise ValueError("a name or a number occurs twice")
    return columns


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("expected a number")
    return value


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """What relation messages omit about a column (`model.relation.Column`)."""

    number: int | None = None
    missing: Missing | None = None
    ambiguous: bool = False


UNTOLD: Final = ColumnFacts()
"""For a column that the current catalog does not have."""
UNKNOWN: Final = ColumnFacts(missing=Missing(None))
"""For a column that may be any of its table's."""


@dataclass(frozen=True, slots=True)
class PublishedAs:
    """The root of a partition; `numbers`: of its columns, by those of the partition, which has its own order;
    `attached`: the transaction that attached it.
    """

    table: TableName
    oid: int
    numbers: Mapping[int, int]
    attached: int | None = None


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What relation messages omit: primary key names in key order, type names by type OID, columns by name.

    `attributes`: all columns that the table ever had, by number. `key_changed`: the transaction that wrote the row of
    the primary key's index. `storage`: see `model.relation.Relation`. `root`: the table as which a partition's changes
    are published; `published_as`: the same, if the partition's own changes are to be attributed to it. `partitions`: of
    a partitioned table, the columns that each partition logs of old rows, by OID; None: all. `member`: the name under
    which the stream is read from the table after a position, if it is announced under another one.
    """

    primary_key: tuple[str, ...]
    type_names: Mapping[int, str]
    columns: Mapping[str, ColumnFacts] = field(default_factory=dict)
    attributes: tuple[Attribute, ...] = ()
    key_changed: int | None = None
    storage: int | None = None
    root: int | None = None
    published_as: PublishedAs | None = None
    partitioned: bool = False
    partitions: Mapping[int, frozenset[str] | None] = field(default_factory=dict)
    member: tuple[TableName, int] | None = None


Catalog: TypeAlias = Callable[[int, TableName], TableFacts] | Mapping[TableName, TableFacts]
"""The source of facts: a function of (table OID, name), or a mapping by name. Called for each relation message, by the
thread that feeds."""


Landed: TypeAlias = Callable[[int, TableName], Relation | None]
"""The last landed layout of a table, by OID and name."""


def no_layout(_oid: int, _table: TableName) -> None:
    """For a stream without landed layouts."""


class RelationCache:
    """`relations` by OID as four bytes, which follow the letter of a change.

    A streamed transaction announces tables for itself only, and when it commits for everything after it. `next_arrival`
    determines which of two announcements of a table is newer.

    `came`: the last message that announced each table for all, and its LSN. `deferred`: those of `came` that are looked
    up when a change outside of their transaction follows.
    """

    def __init__(self, catalog: Catalog, ddl_messages: DdlMessages | None = None, landed: Landed | None = None) -> None:
        self._catalog = catalog
        self._ddl_messages = ddl_messages
        self._landed = landed or no_layout
        self._before: dict[int, Relation | None] = {}
        self._highest: dict[int, int] = {}
        self._partitions: dict[int, dict[int, frozenset[str] | None]] = {}
        self._roots: dict[bytes, tuple[Relation, TableFacts]] = {}
        self._root_before: tuple[int, tuple[int, int] | None] | None = None
        self._latest_relations: dict[TableName, Relation] = {}
        self.relations: dict[bytes, Relation] = {}
        self._types: dict[int, str] = {}
        self._arrivals = 0
        self._arrived: dict[bytes, int] = {}
        self.came: dict[bytes, tuple[bytes, int]] = {}
        self.deferred: dict[bytes, tuple[bytes, int]] = {}
        self._deferred_at: tuple[bytes, tuple[int, int]] | None = None
        self._deferred_partitions: dict[bytes, set[bytes]] = {}

    def forget(self) -> None:
        """Forget everything: the next connection announces it again."""
        self.relations = {}
        self._types = {}
        self._arrived = {}
        self._before, self._highest, self._partitions, self._roots = {}, {}, {}, {}
        self.came, self.deferred = {}, {}
        self._deferred_at, self._deferred_partitions = None, {}

    def next_arrival(self) -> int:
        """The number of an announcement that arrives now."""
        self._arrivals += 1
        return self._arrivals

    def take_told(self, content: bytes) -> None:
        """Process a message about altered tables, if such messages are used."""
        if self._ddl_messages is not None:
            self._ddl_messages.take(content)

    def type(self, message: TypeMessage) -> None:
        """Record the name of a type."""
        schema, name = message.schema, message.name
        self._types[message.oid] = name if schema == "pg_catalog" else f"{schema}.{name}"

    def relation(
        self,
        message: RelationMessage,
        payload: bytes = b"",
        lsn: int = 0,
        xid: int | None = None,
        place: tuple[int, int] | None = None,
    ) -> Relation:
        """Record a table's layout as received, in transaction `xid`; `place`: see `resolve_relation`; its first number
        is the position of the transaction. Raises DecodeError, and errors of the catalog.
        """
        relation = self.resolve_relation(message, xid, place, 0 if place is None else place[0])
        self.put(message.oid.to_bytes(4, "big"), relation, self.next_arrival(), payload, lsn)
        return relation

    def defer(self, payload: bytes, lsn: int, place: tuple[int, int]) -> None:
        """Record a relation message without a following change; `place`: see `resolve_relation`."""
        oid = payload[1:5]
        self.put(oid, None, self.next_arrival(), payload, lsn)
        self.deferred[oid] = payload, lsn
        if self._deferred_at is not None and self._deferred_at[1] == place:
            self._deferred_partitions.setdefault(self._deferred_at[0], set()).add(oid)
        else:
            self._deferred_at = oid, place

    def late(self, oid: bytes) -> list[tuple[bytes, int]]:
        """Take the deferred messages of a table that is changed or announced now, and of its partitions, which changes
        do not name: these followed it directly.
        """
        partitions = sorted(self._deferred_partitions.pop(oid, ()))
        return [
            message for table_oid in (oid, *partitions) if (message := self.deferred.pop(table_oid, None)) is not None
        ]

    def put(self, oid: bytes, relation: Relation | None, arrival: int, payload: bytes, lsn: int) -> None:
        """Record the layout of a table, None: unknown; ignored if a later announcement is known."""
        if arrival < self._arrived.get(oid, 0):
            return
        self._arrived[oid] = arrival
        self.came[oid] = payload, lsn
        self.deferred.pop(oid, None)
        if relation is None:
            self.relations.pop(oid, None)
            self._roots.pop(oid, None)
        else:
            self.relations[oid] = relation
            number = int.from_bytes(oid, "big")
            self._before[number] = relation
            self._highest[number] = max((self._highest.get(number, 0), *(c.number or 0 for c in relation.columns)))

    def resolve_relation(
        self, message: RelationMessage, xid: int | None = None, place: tuple[int, int] | None = None, position: int = 0
    ) -> Relation:
        """A table's layout, without recording it; `place`: equal for consecutive messages; `position`: of the
        transaction. Raises DecodeError, and errors of the catalog.
        """
        now = self._facts(message)
        if message.oid not in self._before:
            landed = self._landed(message.oid, message.table)
            self._before[message.oid] = landed if landed is not None and landed.oid == message.oid else None
        before = self._before[message.oid]  # in this stream, or landed before it
        if not now.columns and before is not None and before.oid == message.oid:
            now = _facts_of_dropped(now, before)
        if now.member is not None and position > now.member[1]:
            message = replace(message, table=now.member[0])  # it temporarily had the other name
        message = _named_apart(message, now, before, xid, self._highest.get(message.oid, 0))
        facts = self._at_its_place(message, now, before, xid)
        columns = []
        for c in message.columns:
            # the catalog's spelling first, because casts depend on it
            type_name = facts.type_names.get(c.type_oid) or self._types.get(c.type_oid)
            if type_name is None:
                raise UnknownType(f"column `{c.name}` is of type OID {c.type_oid}, whose name is not known")
            own, announced = facts.columns.get(c.name, UNTOLD), (c.name, type_name, c.type_oid, c.modifier, c.key)
            columns.append(Column(*announced, number=own.number, missing=own.missing, ambiguous=own.ambiguous))
        relation = Relation(
            table=message.table,
            columns=tuple(columns),
            identity=message.identity,
            primary_key=facts.primary_key,
            oid=message.oid if facts.columns else None,
            storage=facts.storage,
        )
        relation = self._as_partitions_log(message, relation, now, place)
        if now.published_as is not None and precedes(now.published_as.attached, xid):
            relation = _of_root(relation, now.published_as)
        # a repeated layout keeps its object, and with it the cached hash
        if self._latest_relations.get(message.table) == relation:
            relation = self._latest_relations[message.table]
        self._latest_relations[message.table] = relation
        return relation

    def note_repeat(self, oid: bytes, place: tuple[int, int]) -> None:
        """Record that a known layout was announced again; `place`: see `resolve_relation`."""
        if oid in self._roots:
            self._root_before = int.from_bytes(oid, "big"), place

    def root_of(self, oid: bytes) -> tuple[bytes, Relation] | None:
        """The root of an announced partition, by OID, and its layout by the current partitions; None for others."""
        number = int.from_bytes(oid, "big")
        root = next((root for root, leaves in self._partitions.items() if number in leaves), None)
        if root is None or (root_oid := root.to_bytes(4, "big")) not in self._roots:
            return None
        layout, facts = self._roots[root_oid]
        return root_oid, as_logged(layout, {**facts.partitions, **self._partitions[root]}.values())

    def partitions_of(self, oid: bytes) -> list[bytes]:
        """The announced partitions of a table, by OID."""
        return [partition.to_bytes(4, "big") for partition in self._partitions.get(int.from_bytes(oid, "big"), ())]

    def _as_partitions_log(
        self, message: RelationMessage, relation: Relation, now: TableFacts, place: tuple[int, int] | None
    ) -> Relation:
        """The layout of a partitioned table according to its partitions' logging. Each is announced with its own
        identity, after its root and before its first change; until then the catalog's current one is used.
        """
        root = now.root
        if root is None and self._root_before is not None and place is not None and self._root_before[1] == place:
            root = self._root_before[0]  # partitions announced together with it were its own, even if detached now
        if now.partitioned:
            self._root_before = message.oid, place
        if root is not None:
            is_full = message.identity is ReplicaIdentity.FULL
            logged = None if is_full else frozenset(c.name for c in message.columns if c.key)
            self._partitions.setdefault(root, {})[message.oid] = logged
            if (root_relation := self.root_of(message.oid.to_bytes(4, "big"))) is not None:
                self.relations[root_relation[0]] = root_relation[1]
        if not now.partitioned:
            return relation
        self._roots[message.oid.to_bytes(4, "big")] = relation, now
        return as_logged(relation, {**now.partitions, **self._partitions.get(message.oid, {})}.values())

    def _facts(self, message: RelationMessage) -> TableFacts:
        if callable(self._catalog):
            return self._catalog(message.oid, message.table)
        if (facts := self._catalog.get(message.table)) is None:
            raise UnknownRelation(f"the catalog has no information about {message.table}", offset=1)
        return facts

    def _at_its_place(
        self, message: RelationMessage, now: TableFacts, before: Relation | None, xid: int | None
    ) -> TableFacts:
        """The current facts of the catalog, with the column names at the position of the message."""
        ddl_columns = None
        if self._ddl_messages is not None:
            names_now = {c.number: name for name, c in now.columns.items() if c.number is not None}
            by_layout = not now.attributes  # with attributes, more is known of landed layouts than names
            ddl_columns = self._ddl_messages.columns_of(message, names_now, by_layout=by_layout)
        if now.attributes:
            columns = _columns_then(message, ddl_columns, now, before, xid, self._highest.get(message.oid, 0))
            key = _key_then(message, columns, now, before, xid)
            storage = storage_then([c.number for c in columns.values()], now.attributes, now.storage, before)
            return replace(now, primary_key=key, columns=columns, storage=storage)
        if ddl_columns is None:
            return now
        by_number = {c.number: c for c in now.columns.values() if c.number is not None}
        columns = {
            name: by_number.get(column.number, ColumnFacts(column.number, Missing(None) if column.filled else None))
            for name, column in ddl_columns.items()
        }
        names = {c.number: name for name, c in columns.items()}
        key = tuple(names.get(now.columns[name].number, name) for name in now.primary_key if name in now.columns)
        return replace(now, primary_key=key, columns=columns)


def _of_root(relation: Relation, root: PublishedAs) -> Relation:
    """The layout of a partition as one of its root: it is only temporarily published under its own name."""
    columns = tuple(replace(c, number=root.numbers.get(c.number or 0), missing=None) for c in relation.columns)
    return replace(relation, table=root.table, oid=root.oid, columns=columns, storage=None)


def _facts_of_dropped(now: TableFacts, before: Relation) -> TableFacts:
    """The facts of a dropped table: those when its last layout landed."""
    attributes = tuple(
        Attribute(c.number, c.name, c.type_oid, c.modifier) for c in before.columns if c.number is not None
    )
    columns = {attribute.name: ColumnFacts(attribute.number) for attribute in attributes if attribute.name is not None}
    return replace(now, primary_key=before.primary_key, columns=columns, attributes=attributes, storage=before.storage)


def _named_apart(
    message: RelationMessage, now: TableFacts, before: Relation | None, xid: int | None, highest: int
) -> RelationMessage:
    """The message with unique names. In a transaction that was partly rolled back, a server may read some columns as
    they were and others as a later command made them; columns with equal names get their current ones.
    """
    names = Counter(column.name for column in message.columns)
    if len(names) == len(message.columns):
        return message
    announced = [Named(column.name, column.type_oid, column.modifier) for column in message.columns]
    identified = identify(announced, now.attributes, before, xid, highest)
    numbers = range(1, len(announced) + 1) if identified is None else identified.numbers
    used_names = {name for name, times in names.items() if times == 1}
    of_now = {a.number: a.name for a in now.attributes if a.name is not None and a.name not in used_names}
    pairs = zip(numbers, announced, strict=True)
    used_names |= {of_now[number] for number, c in pairs if names[c.name] > 1 and number in of_now}
    columns = []
    for number, column in zip(numbers, message.columns, strict=True):
        name = column.name
        if names[name] > 1:
            name = of_now.get(number) or (name if name not in used_names else f"{name} ({number})")
            used_names.add(name)
        columns.append(replace(column, name=name))
    return replace(message, columns=tuple(columns))


def _columns_then(
    message: RelationMessage,
    ddl_columns: Columns | None,
    now: TableFacts,
    before: Relation | None,
    xid: int | None,
    highest: int,
) -> dict[str, ColumnFacts]:
    """The columns of the message: as reported, or else derived from possible histories."""
    announced = [Named(c.name, c.type_oid, c.modifier) for c in message.columns]
    identified = identify(announced, now.attributes, before, xid, highest) if ddl_columns is None else None
    if ddl_columns is not None:
        identified = Identified(tuple(ddl_columns[column.name].number for column in announced))
    if identified is None:
        return {column.name: replace(now.columns.get(column.name, UNKNOWN), ambiguous=True) for column in announced}
    rewritten, attributes = before is None or before.storage != now.storage, {a.number: a for a in now.attributes}
    columns = {}
    for position, (column, number) in enumerate(zip(announced, identified.numbers, strict=True)):
        missing = missing_then(column, number, attributes, before, rewritten=rewritten)
        gone = number not in attributes or attributes[number].name is None
        if ddl_columns is not None and gone and not ddl_columns[column.name].filled:
            missing = None
        columns[column.name] = ColumnFacts(number, missing, position in identified.ambiguous)
    return columns


def _key_then(
    message: RelationMessage,
    columns: Mapping[str, ColumnFacts],
    now: TableFacts,
    before: Relation | None,
    xid: int | None,
) -> tuple[str, ...]:
    """The primary key at the position of the message, by the names of its columns there."""
    numbers = {name: column.number for name, column in columns.items() if column.number is not None}
    names = {number: name for name, number in numbers.items()}
    of_now = {column.name: column.number for column in now.attributes if column.name is not None}
    were = {} if before is None else {c.name: c.number for c in before.columns if c.number is not None}
    key = key_then(
        [numbers[c.name] for c in message.columns if c.key and c.name in numbers],
        [of_now[name] for name in now.primary_key],
        [number for name in (before.primary_key if before is not None else ()) if (number := were.get(name))],
        names,
        logged=message.identity is ReplicaIdentity.DEFAULT,
        settled=precedes(now.key_changed, xid),
    )
    return tuple(names[number] for number in key if number in names)
