"""Derives the relation of a row of the GaussDB family from its names and types, the catalog, and previous layouts.

A row contains its columns and their types, but not their modifiers, the key, or the meaning of an old row. The catalog
has these, but as of now and not of the change. Which of the catalog's columns they are is derived in
`decode.historic_catalog`, by name if the catalog has no numbers. A modifier comes from the catalog if it is of that
type and no newer than the row, else from the previous layout; else it is -1, unknown.

Old rows (openGauss 3.0 to 7.0, relcache.cpp, knl_uheap.cpp, and recordings):

* The columns of the replica identity; missing ones are NULL (3.0.x omits NULLs).
* All columns with identity FULL, and of a ustore table without one; 3.0.x sends all of every ustore table. If there are
  some columns besides the key, it is unknown whether the others were NULL: only the key is used.
* A DELETE without an old row, of a table that has an identity, is no delete: it cancels the INSERT before it.
* A DELETE contains only the key: its layout is the table's last one, if that has the key, else the catalog's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, TypeAlias

from cdc_lake.decode.encoding import Codec, Policy, apply_text_policy
from cdc_lake.decode.gaussdb.catalog_facts import (
    BUILTIN,
    OID_OF,
    FamilyCatalog,
    GaussDbColumn,
    GaussDbTableMetadata,
    Storage,
    Versions,
    named_anew,
    named_by,
)
from cdc_lake.decode.gaussdb.records import Field, Operation, Row
from cdc_lake.decode.historic_catalog import (
    Named,
    identify,
    identity_then,
    key_then,
    missing_then,
    precedes,
    storage_then,
)
from cdc_lake.errors import MalformedMessage, PublicationAltered, TextNotInEncoding, UnknownType, UnreadableRow
from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, OldKind, Tuple, Update
from cdc_lake.model.relation import Column, Missing, Relation, ReplicaIdentity, TableName, numeric_modifier

Kind: TypeAlias = int | str
"""A type as a row names it: its OID in style b, its printed form in the text styles."""
Names: TypeAlias = tuple[tuple[str, Kind], ...]


def all_columns(facts: GaussDbTableMetadata | None) -> Names:
    """The columns of a table in the catalog."""
    return tuple((c.name, c.type_oid) for c in facts.columns) if facts is not None else ()


def layout_now(name: TableName, facts: GaussDbTableMetadata | None) -> Relation:
    """The layout of a table in the catalog."""
    if facts is not None:
        facts = replace(facts, attributes=tuple(a for a in facts.attributes if a.name is not None))
    return relation_of(name, facts, PriorRelation(), all_columns(facts), None)


def _columns_of_delete(latest: Relation | None, facts: GaussDbTableMetadata | None, sent: Names | None) -> Names:
    """The columns of a table for a row that contains only the key."""
    wanted = {name for name, _ in sent or ()}
    if latest is not None and wanted <= set(latest.names):
        return tuple((c.name, c.type_oid or c.type_name) for c in latest.columns)
    if facts is not None and wanted <= {c.name for c in facts.columns}:
        return all_columns(facts)
    return sent or ()


@dataclass(frozen=True, slots=True)
class PriorRelation:
    """What was known of a table before a row: its last layout, and the greatest number of any of its columns."""

    latest: Relation | None = None
    highest: int = 0


def relation_of(
    name: TableName,
    facts: GaussDbTableMetadata | None,
    before: PriorRelation,
    columns: Names,
    sent: Names | None,
    xid: int | None = None,
    *,
    updates: bool = False,
    type_names: Mapping[int, str] = MappingProxyType({}),
) -> Relation:
    """A layout of these columns, for a row of transaction `xid`, which `updates` another one or is new; `sent`: the
    columns of its old row. `type_names`: names of types by OID, for a table without facts.
    """
    latest = before.latest
    same = facts is not None and latest is not None and latest.oid == facts.oid
    of_table = before if same else PriorRelation()
    names = {column for column, _ in columns}
    sent_names = {column for column, _ in sent or ()}
    identified = _identify_columns(columns, facts, of_table, xid)
    numbers = {column_name: number for column_name, (number, _) in identified.items() if number is not None}
    if facts is not None:
        then = {c.name: name for name, number in numbers.items() for c in facts.columns if c.number == number}
        logged = {then.get(column_name, column_name) for column_name in facts.identity_columns}
        was_full = not facts.logs_full_rows and not sent_names <= logged and _may_be_null(sent_names, facts, numbers)
        flagged = names if was_full else sent_names
        primary_key = _key_then(facts, of_table.latest if numbers else latest, columns, flagged, numbers, xid)
        identity = ReplicaIdentity.FULL if facts.logs_full_rows or was_full else facts.identity
    elif latest is not None:
        identity, primary_key, logged = latest.identity, latest.primary_key, {c.name for c in latest.columns if c.key}
    else:
        identity, primary_key, logged = ReplicaIdentity.DEFAULT, (), set()
    if facts is not None and facts.logs_full_rows:
        # Servers omit NULLs from whole old rows: one with only the columns of a key may precede a change of the
        # identity. Treating it as a key is right in both cases; rows without an old one show nothing.
        key = _key_before(of_table.latest, numbers)
        if key and key <= names and (sent is None or sent_names == key):
            assert latest is not None, "it has a key"
            identity, logged = latest.identity, key
        elif sent_names < names and _is_key(facts, of_table.latest, sent_names, names, primary_key):
            by_key = sent_names == set(primary_key)
            identity, logged = ReplicaIdentity.DEFAULT if by_key else ReplicaIdentity.INDEX, sent_names
    by, was_whole = None, of_table.latest is not None and of_table.latest.identity is ReplicaIdentity.FULL
    sure = updates or not (identity is ReplicaIdentity.FULL or was_whole)  # INSERTs never have an old row
    if sent is None and sure and xid is not None and facts is not None and facts.identity_changed is not None:
        changes = facts.identity, facts.identity_changed
        by = identity_then(*changes, facts.indexes, of_table.latest, numbers.values(), xid)
    if by is not None:
        identity, logged = by.kind, {column_name for column_name, number in numbers.items() if number in by.columns}
    more = logged and sent_names > logged and (sent_names == names or facts is None or facts.storage is Storage.USTORE)
    if identity is not ReplicaIdentity.FULL and not sent_names <= logged and not more:
        # an identity that differs from the current catalog: what was sent was logged
        identity, logged = ReplicaIdentity.FULL if sent_names == names else ReplicaIdentity.INDEX, sent_names
    is_full = identity is ReplicaIdentity.FULL
    if facts is not None:
        oid, storage = facts.oid, storage_then(numbers.values(), facts.attributes, facts.file, of_table.latest)
    else:
        oid, storage = (None, None) if latest is None else (latest.oid, latest.storage)
    return Relation(
        table=name,
        columns=tuple(
            _column(
                column_name,
                kind,
                identified.get(column_name),
                facts,
                of_table if column_name in numbers else before,
                xid,
                type_names=type_names if facts is None else facts.type_names,
                key=is_full or column_name in logged,
            )
            for column_name, kind in columns
        ),
        identity=identity,
        primary_key=primary_key if set(primary_key) <= names else (),
        oid=oid,
        storage=storage,
        # ambiguous columns stay ambiguous until that is resolved
        ambiguous=by is not None
        and by.ambiguous
        and (updates or (of_table.latest is not None and of_table.latest.ambiguous)),
    )


def _may_be_null(sent_names: Collection[str], facts: GaussDbTableMetadata, numbers: Mapping[str, int]) -> bool:
    """Whether an old row has a column that no key has: then it was a whole row, whatever is logged now."""
    nullable = {c.number for c in facts.columns if not c.filled}
    sent_numbers = {numbers[column_name] for column_name in sent_names if column_name in numbers}
    return facts.storage is not Storage.USTORE and not nullable.isdisjoint(sent_numbers)


def _key_before(latest: Relation | None, numbers: Mapping[str, int]) -> set[str]:
    """The columns that the previous layout logged of old rows, if not all, by their current names."""
    if latest is None or latest.identity is ReplicaIdentity.FULL:
        return set()
    names = {number: name for name, number in numbers.items()}
    return {names.get(c.number, c.name) if c.number is not None else c.name for c in latest.columns if c.key}


def _is_key(
    facts: GaussDbTableMetadata,
    latest: Relation | None,
    sent_names: Collection[str],
    names: Collection[str],
    primary_key: Collection[str],
) -> bool:
    """Whether an old row that lacks columns is a key, and not a whole one without its NULLs."""
    if not sent_names:
        return False
    if any(c.filled and c.name in names and c.name not in sent_names for c in facts.columns):
        return True
    return latest is None and set(sent_names) == set(primary_key)


def _identify_columns(
    columns: Names, facts: GaussDbTableMetadata | None, before: PriorRelation, xid: int | None
) -> dict[str, tuple[int | None, bool]]:
    """The number of each column at its row, and whether it is ambiguous; empty if the catalog has no numbers."""
    if facts is None or not facts.attributes:
        return {}
    kinds = [kind if isinstance(kind, int) else _oid(column_name, kind, facts) for column_name, kind in columns]
    announced = [Named(column_name, kind, None) for (column_name, _), kind in zip(columns, kinds, strict=True)]
    identified = identify(announced, facts.attributes, before.latest, xid, before.highest)
    if identified is None:
        of_now = {column_name.name: column_name.number for column_name in facts.attributes}
        return {column_name: (of_now.get(column_name), True) for column_name, _ in columns}
    # ambiguous columns stay ambiguous: rows with other columns have the same layout
    doubtful = {c.number for c in (() if before.latest is None else before.latest.columns) if c.ambiguous}
    return {
        column_name: (number, position in identified.ambiguous or number in doubtful)
        for position, ((column_name, _), number) in enumerate(zip(columns, identified.numbers, strict=True))
    }


def _oid(name: str, kind: str, facts: GaussDbTableMetadata) -> int | None:
    """The OID of a printed type; None if several types have this form."""
    oid = next((c.type_oid for c in facts.columns if c.name == name and is_of(c, kind)), OID_OF.get(kind))
    if oid is None and (printed_type := facts.printed_types(kind)) is not None:
        return printed_type[0]
    return oid


def _key_then(
    facts: GaussDbTableMetadata,
    latest: Relation | None,
    columns: Names,
    flagged_names: Collection[str],
    numbers: Mapping[str, int],
    xid: int | None,
) -> tuple[str, ...]:
    """The primary key at a row, by the names of its columns there."""
    now, was = facts.primary_key, () if latest is None else latest.primary_key
    if not numbers:
        return was if was and set(was) == set(flagged_names) and set(now) != set(flagged_names) else now
    of_now = {column.name: column.number for column in facts.attributes}
    of_before = {c.name: c.number for c in (() if latest is None else latest.columns) if c.number is not None}
    of_key = [of_now[name] for name in now if name in of_now]
    of_former = [of_before[name] for name in was if name in of_before]
    flagged = [numbers[column] for column, _ in columns if column in flagged_names and column in numbers]
    by_default = facts.identity is ReplicaIdentity.DEFAULT and len(flagged) < len(columns)
    key = key_then(
        flagged,
        of_key,
        of_former,
        numbers.values(),
        logged=by_default or set(flagged) in (set(of_key), set(of_former)),
        settled=xid is None or precedes(facts.key_changed, xid),
    )
    names = {number: name for name, number in numbers.items()}
    return tuple(names[number] for number in key if number in names)


def old_kind_of(relation: Relation, sent: Names) -> OldKind | None:
    """The kind of an old tuple with these columns; None for an empty one that cannot be a whole row of NULLs."""
    if relation.identity is ReplicaIdentity.FULL:
        return OldKind.FULL
    if not sent:
        return None
    names = {name for name, _ in sent}
    return OldKind.FULL if names == set(relation.names) and not names <= logged_of(relation) else OldKind.KEY


def logged_of(relation: Relation) -> set[str]:
    """The columns that the server logs of old rows."""
    return {c.name for c in relation.columns if c.key}


def is_of(column: GaussDbColumn | Column, kind: Kind) -> bool:
    """Whether a column has the type that a row names."""
    if isinstance(kind, int):
        return column.type_oid == kind
    printed = column.printed if isinstance(column, GaussDbColumn) else None
    builtin = BUILTIN.get(column.type_oid)
    return kind == (printed or (builtin.printed if builtin is not None else column.type_name))


def _column(
    name: str,
    kind: Kind,
    identified: tuple[int | None, bool] | None,
    facts: GaussDbTableMetadata | None,
    before: PriorRelation,
    xid: int | None,
    *,
    type_names: Mapping[int, str],
    key: bool,
) -> Column:
    """A column by its number, if known, else by its name."""
    number, ambiguous = identified or (None, False)
    latest = before.latest
    now = next((c for c in (facts.columns if facts is not None else ()) if _is(c, name, number)), None)
    then = next((c for c in (latest.columns if latest is not None else ()) if _is(c, name, number)), None)
    order = (then, now) if _altered_since(facts, number, xid) and not _holds(now, then) else (now, then)
    source_column = next((candidate for candidate in order if candidate is not None and is_of(candidate, kind)), None)
    if source_column is None:
        type_name, oid, modifier = _type(name, kind, facts, latest, type_names)
    else:
        type_name, oid, modifier = source_column.type_name, source_column.type_oid, source_column.modifier
    if facts is None or number is None:
        missing = Missing(None) if ambiguous else None if source_column is None else source_column.missing
        known_number = None if source_column is None else source_column.number
        return Column(name, type_name, oid, modifier, key, number=known_number, missing=missing, ambiguous=ambiguous)
    missing = missing_then(
        Named(name, oid, modifier),
        number,
        {candidate.number: candidate for candidate in facts.attributes},
        latest,
        rewritten=latest is None or latest.storage != facts.file or (now is not None and now.filled),
    )
    return Column(name, type_name, oid, modifier, key, number=number, missing=missing, ambiguous=ambiguous)


def _altered_since(facts: GaussDbTableMetadata | None, number: int | None, xid: int | None) -> bool:
    """Whether the catalog's facts of a column are known to be no older than transaction `xid`."""
    if facts is None or xid is None:
        return False
    written = (attribute.changed for attribute in facts.attributes if attribute.number == number)
    return any(changed is not None and not precedes(changed, xid) for changed in written)


def _holds(now: GaussDbColumn | Column | None, then: Column | None) -> bool:
    """Whether the current type has all values of the earlier one unchanged, like a decimal with more digits."""
    if now is None or then is None or now.type_oid != OID_OF["numeric"]:
        return False
    if (former := numeric_modifier(then.modifier)) is None:
        return False
    current = numeric_modifier(now.modifier)
    return current is None or (current[1] >= former[1] and current[0] - current[1] >= former[0] - former[1])


def _type(
    name: str, kind: Kind, facts: GaussDbTableMetadata | None, latest: Relation | None, type_names: Mapping[int, str]
) -> tuple[str, int, int]:
    """Name, OID and modifier of a type that neither the catalog nor the previous layout has for a column."""
    if isinstance(kind, str):
        if (oid := OID_OF.get(kind, 0)) or facts is None or (printed_type := facts.printed_types(kind)) is None:
            return BUILTIN[oid].name if oid else kind, oid, -1
        return printed_type[1], printed_type[0], -1
    builtin = BUILTIN.get(kind)
    type_name = builtin.name if builtin is not None else type_names.get(kind)
    if type_name is None and latest is not None:  # for a DELETE, which has the previous layout's columns
        type_name = next((c.type_name for c in latest.columns if c.type_oid == kind), None)
    if type_name is None:
        raise UnknownType(f"column `{name}` is of type OID {kind}, whose name is not known")
    return type_name, kind, -1


def _is(column: GaussDbColumn | Column, name: str, number: int | None) -> bool:
    return column.name == name if number is None else column.number == number


DOUBTS: Final = 8
"""Maximum number of catalog queries because of doubts about one table's identity."""

_Shape: TypeAlias = tuple[str, Names | None, Names | None, int]
"""Operation, names in the new and the old tuple, and the number of older catalog rows (`RelationResolver.age`)."""


@dataclass(frozen=True, slots=True)
class RowMapping:
    """How rows of one shape become changes.

    `first`: leading fields of a tuple that are no columns. `places[i]`: the position of the old tuple's i-th field in
    the relation, -1 for one that is ignored: a generated column that new rows omit, or one besides a key. `old_kind`:
    None without an old tuple. `cancels`: the row cancels the INSERT before it.
    """

    relation: Relation
    first: int = 0
    places: tuple[int, ...] = ()
    old_kind: OldKind | None = None
    cancels: bool = False


@dataclass(frozen=True, slots=True)
class _Known:
    """Knowledge about one table at a checkpoint."""

    facts: GaussDbTableMetadata | None
    latest: Relation | None
    plans: Mapping[_Shape, RowMapping]


ResolverCheckpoint: TypeAlias = Mapping[TableName, _Known]
"""Knowledge from rows about all tables, to be restored."""


@dataclass(slots=True)
class _Table:
    """Knowledge about one table. `deletes` are mappings of rows without a new tuple, which depend on `latest`.
    `highest`: the greatest column number; `round`: of `refresh` in which it was checked for alterations; `used`: in
    which rows of it came; `changes`: transactions that wrote the catalog's facts.

    `doubts`: number of catalog queries because a supposedly whole old row was not.
    """

    facts: GaussDbTableMetadata | None = None
    asked: bool = False
    round: int = -1
    used: int = -1
    doubts: int = 0
    latest: Relation | None = None
    highest: int = 0
    changes: tuple[int, ...] = ()
    plans: dict[_Shape, RowMapping] = field(default_factory=dict)
    deletes: dict[Names | None, RowMapping] = field(default_factory=dict)


class RelationResolver:
    """The layouts of a stream's tables. One instance per connection, used by one thread at a time.

    `known_relations`: the last layout of each table in bronze; without them a first DELETE gets the catalog's layout.
    `tables`: needed in style t for names with blanks. `takes`: whether a table is captured, called for those of a
    TRUNCATE. `takes_back`: a DELETE without an old row cancels the INSERT before it; False: it identifies no row,
    whatever the table logs now. `versions` finds tables that were altered since the catalog was queried; None: tables
    are never altered. `members`: OID and `named_by` of the tables from which the stream is read, '' if unknown.
    `type_names`: names of types by OID, for tables that the catalog no longer has.
    """

    def __init__(
        self,
        catalog: FamilyCatalog,
        codec: Codec | None = None,
        *,
        known_relations: Iterable[Relation] = (),
        tables: frozenset[TableName] = frozenset(),
        takes: Callable[[TableName], bool] = lambda _: True,
        takes_back: bool = True,
        versions: Versions | None = None,
        members: Mapping[TableName, tuple[int, str]] = MappingProxyType({}),
        type_names: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self.codec: Final = codec or Codec()
        self.tables: Final = tables
        self.takes: Final = takes
        self._takes_back = takes_back
        self._catalog = catalog
        self._versions = versions
        self._members = members
        self._type_names = type_names
        self._names = {oid: name for name, (oid, _) in members.items()}
        self._round = 0
        self._tables: dict[TableName, _Table] = {}
        for relation in known_relations:
            _follow(self._table_state(relation.table), relation)

    def latest(self) -> dict[TableName, Relation]:
        """The last layout of each table."""
        return {name: table.latest for name, table in self._tables.items() if table.latest is not None}

    def refresh(self) -> None:
        """Begin a batch: before a row is decoded, its table is checked for alterations since the last catalog query;
        the tables of the previous batch are checked at once. A row with the same column names may have other columns
        now. Raises PublicationAltered if another table has a table's name, SourceError.
        """
        recent = {name: table for name, table in self._tables.items() if table.used == self._round}
        self._round += 1
        self._ask_if_altered(recent)

    def _ask_if_altered(self, tables: Mapping[TableName, _Table]) -> None:
        """Mark altered tables, so that the catalog is queried again."""
        for table in tables.values():
            table.round = self._round
        asked = {name: table for name, table in tables.items() if table.asked}
        if self._versions is None or not asked:
            return
        now = self._versions(asked)
        for name, table in asked.items():
            oid, version = now.get(name, (None, ""))
            if version != (table.facts.version if table.facts is not None else ""):
                self._check_same(name, oid, version)
                table.asked = False
                table.plans.clear()
                table.deletes.clear()

    def age(self, name: TableName, xid: int | None) -> int:
        """How many of the transactions that wrote a table's catalog facts are older than this one: rows of one shape
        have the same mapping if that is equal.
        """
        return 0 if xid is None else sum(precedes(change, xid) for change in self._table_state(name).changes)

    def mark(self) -> ResolverCheckpoint:
        """The knowledge from rows so far."""
        return {name: _Known(table.facts, table.latest, dict(table.plans)) for name, table in self._tables.items()}

    def restore(self, mark: ResolverCheckpoint) -> None:
        """Restore earlier knowledge from rows; the catalog's facts are kept.

        Mappings are dropped too: identity and modifiers that the catalog lacks come from the previous layout.
        """
        for name, table in self._tables.items():
            then = mark.get(name, _Known(None, None, {}))
            table.latest = then.latest
            table.plans = dict(then.plans) if then.facts == table.facts else {}
            table.deletes.clear()

    def relation_of(self, name: TableName) -> Relation:
        """The layout of a table without a row (for a truncate); without columns if they are unknown."""
        table = self._table_state(name)
        if table.latest is not None:
            return table.latest
        return layout_now(name, self.facts_of(name))

    def facts_of(self, name: TableName) -> GaussDbTableMetadata | None:
        """The last facts of the catalog about a table."""
        table = self._table_state(name)
        return table.facts if table.asked else self._facts(name, table)

    def change(self, row: Row, xid: int | None = None) -> Change | None:
        """The change of a row of transaction `xid`; None if it cancels the INSERT before it. Raises DecodeError."""
        plan = self.plan(row, xid)
        new = tuple([f.value for f in row.new[plan.first :]]) if row.new is not None else ()
        old = _old(row.old, plan) if row.old is not None and plan.old_kind is not None else None
        if self.codec.policy is Policy.HEX:
            new = self._apply_text_policy(plan.relation, new)
            old = None if old is None else self._apply_text_policy(plan.relation, old)
        match row.operation:
            case Operation.INSERT:
                return Insert(plan.relation, new)
            case Operation.UPDATE:
                return Update(plan.relation, new, old, plan.old_kind)
            case Operation.DELETE:
                return None if plan.cancels else Delete(plan.relation, old, plan.old_kind)

    def _apply_text_policy(self, relation: Relation, values: Tuple) -> Tuple:
        codec, row = self.codec, (relation.table, relation.names[: len(values)], values)  # a DELETE has no new row
        return apply_text_policy(
            *row, codec.in_hex, codec.encode, lambda offset: TextNotInEncoding(codec.encoding, offset=offset)
        )

    def plan(self, row: Row, xid: int | None = None) -> RowMapping:
        """The mapping for rows of this shape in transaction `xid`, with the table's last layout. Raises DecodeError."""
        table = self._table_state(row.table)
        if table.used != self._round:
            table.used = self._round
            if table.round != self._round:
                self._ask_if_altered({row.table: table})
        new, old = _names(row.new), _names(row.old)
        if new is None and row.operation is Operation.DELETE:
            if (plan := table.deletes.get(old)) is None:
                plan = table.deletes[old] = self._plan(row, table, None, old, xid)
            return plan
        shape = (row.operation.value, new, old, self.age(row.table, xid))
        if (plan := table.plans.get(shape)) is None:
            plan = self._plan(row, table, new, old, xid)
            table.plans[(*shape[:3], self.age(row.table, xid))] = plan  # planning may have queried the catalog
        if table.latest is not plan.relation:
            if (
                table.facts is not None
                and table.facts.identity_changed is not None
                and (table.latest is None or identified_by(table.latest) != identified_by(plan.relation))
            ):
                # the identity of the others may have been derived from the previous layout
                table.plans = {shape: mapped for shape, mapped in table.plans.items() if mapped.old_kind is not None}
            _follow(table, plan.relation)
            table.deletes.clear()
        return plan

    def _table_state(self, name: TableName) -> _Table:
        if (table := self._tables.get(name)) is None:
            table = self._tables[name] = _Table()
        return table

    def _facts(self, name: TableName, table: _Table) -> GaussDbTableMetadata | None:
        facts = self._catalog(name)
        if facts is not None:
            self._check_same(name, facts.oid, facts.version)
        if table.asked and facts != table.facts:
            table.plans.clear()
            table.deletes.clear()
        table.facts, table.asked = facts, True
        table.changes = () if facts is None else facts.changes
        return facts

    def _check_same(self, name: TableName, oid: int | None, version: str) -> None:
        if oid is None:
            return
        known_oid, named = self._members.get(name, (oid, ""))
        if known_oid != oid:
            raise PublicationAltered(f"{name} is another table than before: it was renamed or recreated")
        if self._names.get(oid, name) != name:
            raise PublicationAltered(f"table {self._names[oid]} was renamed to {name}")
        if named and named_anew(named, named_by(version)):
            raise PublicationAltered(f"{name} had another name in the meantime: changes under that name are unknown")

    def _plan(self, row: Row, table: _Table, new: Names | None, old: Names | None, xid: int | None) -> RowMapping:
        _check(row)
        facts = table.facts
        if not table.asked or not _is_explained(facts, new, old) or _doubtful(table, old):
            facts = self._facts(row.table, table)
        first = _first(facts, new if new is not None else old)
        skipped = frozenset() if facts is None else facts.skipped
        sent = None if old is None else tuple(column for column in old[first:] if column[0] not in skipped)
        columns = new[first:] if new is not None else _columns_of_delete(table.latest, facts, sent)
        before, updates = PriorRelation(table.latest, table.highest), row.operation is Operation.UPDATE
        types = self._type_names
        relation = relation_of(row.table, facts, before, columns, sent, xid, updates=updates, type_names=types)
        if relation == table.latest:
            relation = table.latest  # one object per layout, so that comparing and hashing use identity
        kind = None if sent is None else old_kind_of(relation, sent)
        names = relation.names
        if kind is not None and not {name for name, _ in sent or ()} <= set(names):
            raise MalformedMessage(f"an old row of {row.table} with columns that the new row lacks")
        if kind is OldKind.KEY:
            skipped |= {name for name, _ in sent or ()} - logged_of(relation)
        # A DELETE that cancels an INSERT has no old row, as every DELETE of a table without an identity. If the
        # identity became NOTHING since, the one before decides.
        keyed = _identifies(relation) or (table.latest is not None and _identifies(table.latest))
        cancels = new is None and kind is None and keyed and self._takes_back
        fields = old[first:] if kind is not None and old is not None else ()
        places = tuple(-1 if name in skipped else names.index(name) for name, _ in fields)
        return RowMapping(relation, first, places, kind, cancels)


def _identifies(relation: Relation) -> bool:
    """Whether the server logs columns of old rows that identify them."""
    return relation.identity is ReplicaIdentity.FULL or any(c.key for c in relation.columns)


def identified_by(relation: Relation) -> tuple[frozenset[str], bool]:
    """The columns that identify rows, and whether that is ambiguous."""
    return frozenset(logged_of(relation)), relation.ambiguous


def _follow(table: _Table, relation: Relation) -> None:
    """Set the table's current layout."""
    same = table.latest is not None and table.latest.oid == relation.oid
    table.latest = relation
    table.highest = max((table.highest if same else 0, *(c.number or 0 for c in relation.columns)))


def _check(row: Row) -> None:
    """Refuse a row whose tuples do not suit its operation, or whose columns are ambiguous."""
    what = f"{row.operation.name} of {row.table}"
    if row.operation is Operation.DELETE:
        if row.new is not None:
            raise MalformedMessage(f"a {what} with a new row")
    elif not row.new:
        raise UnreadableRow(f"an {what} without values")
    elif row.operation is Operation.INSERT and row.old is not None:
        raise MalformedMessage(f"an {what} with an old row")
    for fields in (row.new, row.old):
        if fields and len({f.name for f in fields}) != len(fields):
            raise MalformedMessage(f"a row of {row.table} with two columns of the same name")


def _names(fields: tuple[Field, ...] | None) -> Names | None:
    if fields is None:
        return None
    return tuple([(f.name, f.type_oid if f.type_oid is not None else f.type_name or "") for f in fields])


def _old(fields: tuple[Field, ...], plan: RowMapping) -> Tuple:
    values: list[str | None] = [None] * len(plan.relation.columns)
    for place, old_field in zip(plan.places, fields[plan.first :], strict=True):
        if place < 0:
            continue
        if old_field.value is UNCHANGED:
            raise MalformedMessage(f"an old row of {plan.relation.table} with a value that was not sent")
        values[place] = old_field.value
    return tuple(values)


def _is_explained(facts: GaussDbTableMetadata | None, new: Names | None, old: Names | None) -> bool:
    """Whether the catalog's last answer fits a row so well that another query would be useless."""
    if facts is None:
        return False
    if new is not None and (
        len(new) != len(facts.columns)
        or any(c.name != name or not is_of(c, kind) for c, (name, kind) in zip(facts.columns, new, strict=True))
    ):
        return False
    logged = {*facts.skipped, *(c.name for c in facts.columns)} if facts.logs_full_rows else set(facts.identity_columns)
    return old is None or {name for name, _ in old} <= logged


def _doubtful(table: _Table, old: Names | None) -> bool:
    """Whether a supposedly whole old row lacks columns: they are NULL (3.0.x), or the identity was changed.

    Limited in number, because on 3.0.x any set of columns may be missing.
    """
    facts = table.facts
    if facts is None or not facts.logs_full_rows or old is None or len(old) >= len(facts.columns):
        return False
    table.doubts += 1
    return table.doubts <= DOUBTS


def _first(facts: GaussDbTableMetadata | None, names: Names | None) -> int:
    """1 if a text row begins with the system column `oid`, which up to 3.0.2 is printed like a column."""
    fake = bool(names) and names is not None and names[0] == ("oid", "oid")
    return int(fake and facts is not None and all(c.name != "oid" for c in facts.columns))
