"""Layouts: from the names and types a row brings along, and the catalog, to a relation and a change of the model.

A row of the GaussDB family says which columns it has and of which types, but not their modifiers, the key, or what an
old row is. That is known from the catalog, which speaks of now and not of the change. So the columns and types are
always the row's; the modifiers come from elsewhere (`decode.mppdb.row_relation`).

Old rows (openGauss 3.0 to 7.0, relcache.cpp, knl_uheap.cpp, and recordings):

* The columns of the replica identity; what is missing of them is NULL (3.0.x leaves NULLs out).
* All columns under identity FULL, and of a ustore table without one; 3.0.x sends all of every ustore table. Of some
  columns more than the key nobody knows whether the others were NULL: they are taken for the key.
* A DELETE without an old row, of a table that has an identity, is no delete: it takes back the INSERT before it.
* A DELETE brings the key only: its layout is the last one that the table had, if that has the key, else the catalog's.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeAlias

from cdc_lake.decode.historic_catalog import precedes
from cdc_lake.decode.mppdb.codec import Codec, Policy
from cdc_lake.decode.mppdb.facts import FamilyCatalog, FamilyTableFacts, Versions, named_anew, named_by
from cdc_lake.decode.mppdb.records import Field, Operation, Row
from cdc_lake.decode.mppdb.row_relation import (
    Before,
    Names,
    columns_of_delete,
    is_of,
    layout_now,
    logged_of,
    old_kind_of,
    relation_of,
)
from cdc_lake.decode.not_text import settled
from cdc_lake.errors import (
    MalformedMessage,
    PublicationAltered,
    TextNotInEncoding,
    UnreadableRow,
)
from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, OldKind, Tuple, Update
from cdc_lake.model.relation import Relation, ReplicaIdentity, TableName

DOUBTS: Final = 8
"""Times the catalog is asked again about the identity of one table."""

_Shape: TypeAlias = tuple[str, Names | None, Names | None, int]
"""Operation, names of the new tuple and of the old one, and how many rows of the catalog are older (`Layouts.age`)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How rows of one shape become changes.

    `first`: leading fields of a tuple that are no columns. `places[i]`: where the i-th field of the old tuple stands in
    the relation, -1 for one that says nothing: a generated column that new rows do not have, what came besides a key.
    `old_kind`: None where there is no old tuple.
    `cancels`: the row takes back the INSERT before it.
    """

    relation: Relation
    first: int = 0
    places: tuple[int, ...] = ()
    old_kind: OldKind | None = None
    cancels: bool = False


@dataclass(frozen=True, slots=True)
class _Known:
    """What was known of one table at a mark."""

    facts: FamilyTableFacts | None
    latest: Relation | None
    plans: Mapping[_Shape, Plan]


@dataclass(frozen=True, slots=True)
class Mark:
    """What rows had taught of all tables until then, to go back to."""

    tables: Mapping[TableName, _Known]


@dataclass(slots=True)
class _Table:
    """What is known of one table. `deletes` are plans of rows without new tuple, which depend on `latest`. `highest`:
    of the numbers of its columns; `round`: of `refresh`, in which it was looked whether it was altered; `used`: in
    which rows of it came; `changes`: transactions that wrote what the catalog says of it.

    `doubts`: how often the catalog was asked because an old row that should be whole was not.
    """

    facts: FamilyTableFacts | None = None
    asked: bool = False
    round: int = -1
    used: int = -1
    doubts: int = 0
    latest: Relation | None = None
    highest: int = 0
    changes: tuple[int, ...] = ()
    plans: dict[_Shape, Plan] = field(default_factory=dict)
    deletes: dict[Names | None, Plan] = field(default_factory=dict)


class Layouts:
    """The layouts of a stream's tables. One instance a connection, used by one thread at a time.

    `known`: layouts that the stream had before, the last one of each table (bronze has them): without them a DELETE
    that comes first has the layout of the catalog. `tables`: what style t needs where a name has a blank in it.
    `takes`: whether a table is captured, asked of those that a TRUNCATE names. `takes_back`: a DELETE without an old
    row takes back the INSERT before it; False: it names no row, whatever the table logs now. `versions` tells
    which tables were altered since the catalog was asked; None: nobody alters any. `members`: OID and `named_by` of the
    tables that the stream is read from, '' where it is not known.
    """

    def __init__(
        self,
        catalog: FamilyCatalog,
        codec: Codec | None = None,
        *,
        known: Iterable[Relation] = (),
        tables: frozenset[TableName] = frozenset(),
        takes: Callable[[TableName], bool] = lambda _: True,
        takes_back: bool = True,
        versions: Versions | None = None,
        members: Mapping[TableName, tuple[int, str]] = MappingProxyType({}),
    ) -> None:
        self.codec: Final = codec or Codec()
        self.tables: Final = tables
        self.takes: Final = takes
        self._takes_back = takes_back
        self._catalog = catalog
        self._versions = versions
        self._members = members
        self._names = {oid: name for name, (oid, _) in members.items()}
        self._round = 0
        self._tables: dict[TableName, _Table] = {}
        for relation in known:
            _follow(self._of(relation.table), relation)

    def latest(self) -> dict[TableName, Relation]:
        """The last layout of each table."""
        return {name: table.latest for name, table in self._tables.items() if table.latest is not None}

    def refresh(self) -> None:
        """Transactions came: before a row of them is read it is looked whether its table was altered since the catalog
        was asked, of tables of the transactions before at once. A row of the same columns may be of other ones now.
        Raises PublicationAltered where another table has the name of one, SourceError.
        """
        recent = {name: table for name, table in self._tables.items() if table.used == self._round}
        self._round += 1
        self._ask_if_altered(recent)

    def _ask_if_altered(self, tables: Mapping[TableName, _Table]) -> None:
        """Have the catalog asked again of those that were altered."""
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
        """How many of the transactions that wrote what the catalog says of a table are older than this one: rows of
        one shape have the same plan where that is the same.
        """
        return 0 if xid is None else sum(precedes(change, xid) for change in self._of(name).changes)

    def mark(self) -> Mark:
        """What rows have taught so far."""
        known = self._tables.items()
        return Mark({name: _Known(table.facts, table.latest, dict(table.plans)) for name, table in known})

    def back(self, mark: Mark) -> None:
        """Forget what rows taught since; what the catalog said stays.

        Plans too: the identity and modifiers that the catalog does not tell are those of the layout before.
        """
        for name, table in self._tables.items():
            then = mark.tables.get(name, _Known(None, None, {}))
            table.latest = then.latest
            table.plans = dict(then.plans) if then.facts == table.facts else {}
            table.deletes.clear()

    def relation_of(self, name: TableName) -> Relation:
        """The layout of a table without a row at hand (a truncate); without columns where nobody knows any."""
        table = self._of(name)
        if table.latest is not None:
            return table.latest
        return layout_now(name, self.facts_of(name))

    def facts_of(self, name: TableName) -> FamilyTableFacts | None:
        """What the catalog said of a table when it was asked last."""
        table = self._of(name)
        return table.facts if table.asked else self._facts(name, table)

    def change(self, row: Row, xid: int | None = None) -> Change | None:
        """What a row of transaction `xid` did; None where it takes back the INSERT before it. Raises DecodeError."""
        plan = self.plan(row, xid)
        new = tuple([f.value for f in row.new[plan.first :]]) if row.new is not None else ()
        old = _old(row.old, plan) if row.old is not None and plan.old_kind is not None else None
        if self.codec.policy is Policy.HEX:
            new, old = self._settled(plan.relation, new), None if old is None else self._settled(plan.relation, old)
        match row.operation:
            case Operation.INSERT:
                return Insert(plan.relation, new)
            case Operation.UPDATE:
                return Update(plan.relation, new, old, plan.old_kind)
            case Operation.DELETE:
                return None if plan.cancels else Delete(plan.relation, old, plan.old_kind)

    def _settled(self, relation: Relation, values: Tuple) -> Tuple:
        codec = self.codec
        names = relation.names[: len(values)]  # of a DELETE there is no new row
        return settled(
            relation.table,
            names,
            values,
            codec.in_hex,
            codec.encode,
            lambda at: TextNotInEncoding(codec.encoding, at=at),
        )

    def plan(self, row: Row, xid: int | None = None) -> Plan:
        """The plan for rows of this shape in transaction `xid`, after which its layout is the table's last one. Raises
        DecodeError.
        """
        table = self._of(row.table)
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
            table.plans[(*shape[:3], self.age(row.table, xid))] = plan  # planning may have asked the catalog
        if table.latest is not plan.relation:
            if (
                table.facts is not None
                and table.facts.identity_changed is not None
                and (table.latest is None or identified_by(table.latest) != identified_by(plan.relation))
            ):
                # what the others are identified by may have been concluded from the layout before
                table.plans = {known: one for known, one in table.plans.items() if one.old_kind is not None}
            _follow(table, plan.relation)
            table.deletes.clear()
        return plan

    def _of(self, name: TableName) -> _Table:
        if (table := self._tables.get(name)) is None:
            table = self._tables[name] = _Table()
        return table

    def _facts(self, name: TableName, table: _Table) -> FamilyTableFacts | None:
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
        known, named = self._members.get(name, (oid, ""))
        if known != oid:
            raise PublicationAltered(f"{name} is another table than before: it was renamed or made anew")
        if self._names.get(oid, name) != name:
            raise PublicationAltered(f"table {self._names[oid]} was renamed to {name}")
        if named and named_anew(named, named_by(version)):
            raise PublicationAltered(f"{name} had another name meanwhile: what was changed under that is not known")

    def _plan(self, row: Row, table: _Table, new: Names | None, old: Names | None, xid: int | None) -> Plan:
        _check(row)
        facts = table.facts
        if not table.asked or not _explained(facts, new, old) or _doubtful(table, old):
            facts = self._facts(row.table, table)
        first = _first(facts, new if new is not None else old)
        skipped = frozenset() if facts is None else facts.skipped
        sent = None if old is None else tuple(one for one in old[first:] if one[0] not in skipped)
        columns = new[first:] if new is not None else columns_of_delete(table.latest, facts, sent)
        before, updates = Before(table.latest, table.highest), row.operation is Operation.UPDATE
        relation = relation_of(row.table, facts, before, columns, sent, xid, updates=updates)
        if relation == table.latest:
            relation = table.latest  # one object a layout: what is compared and hashed is then compared by identity
        kind = None if sent is None else old_kind_of(relation, sent)
        names = relation.names
        if kind is not None and not {name for name, _ in sent or ()} <= set(names):
            raise MalformedMessage(f"an old row of {row.table} with columns that the new one has not")
        if kind is OldKind.KEY:
            skipped |= {name for name, _ in sent or ()} - logged_of(relation)
        # Where the identity has become NOTHING, a DELETE says as little as of an INSERT that is taken back: by what the
        # table logged before, and not as the delete of no row.
        keyed = _identifies(relation) or (table.latest is not None and _identifies(table.latest))
        cancels = new is None and kind is None and keyed and self._takes_back
        return Plan(
            relation=relation,
            first=first,
            places=_places(names, old[first:], skipped) if kind is not None and old is not None else (),
            old_kind=kind,
            cancels=cancels,
        )


def _identifies(relation: Relation) -> bool:
    """Whether the server logs of old rows what tells them apart."""
    return relation.identity is ReplicaIdentity.FULL or any(c.key for c in relation.columns)


def identified_by(relation: Relation) -> tuple[frozenset[str], bool]:
    """What rows are identified by, and whether it may be something else."""
    return frozenset(logged_of(relation)), relation.ambiguous


def _follow(table: _Table, relation: Relation) -> None:
    """It has this layout now."""
    same = table.latest is not None and table.latest.oid == relation.oid
    table.latest = relation
    table.highest = max((table.highest if same else 0, *(c.number or 0 for c in relation.columns)))


def _places(names: Sequence[str], old: Names, skipped: Container[str]) -> tuple[int, ...]:
    return tuple(-1 if name in skipped else names.index(name) for name, _ in old)


def _check(row: Row) -> None:
    """Refuse a row whose tuples are not those of its operation, or whose columns are ambiguous."""
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
            raise MalformedMessage(f"a row of {row.table} with two columns of one name")


def _names(fields: tuple[Field, ...] | None) -> Names | None:
    if fields is None:
        return None
    return tuple([(f.name, f.type_oid if f.type_oid is not None else f.type_name or "") for f in fields])


def _old(fields: tuple[Field, ...], plan: Plan) -> Tuple:
    values: list[str | None] = [None] * len(plan.relation.columns)
    for place, one in zip(plan.places, fields[plan.first :], strict=True):
        if place < 0:
            continue
        if one.value is UNCHANGED:
            raise MalformedMessage(f"an old row of {plan.relation.table} with a value that was not sent")
        values[place] = one.value
    return tuple(values)


def _explained(facts: FamilyTableFacts | None, new: Names | None, old: Names | None) -> bool:
    """Whether the catalog's last answer fits a row so well that asking again would tell nothing."""
    if facts is None:
        return False
    if new is not None and (
        len(new) != len(facts.columns)
        or any(c.name != name or not is_of(c, kind) for c, (name, kind) in zip(facts.columns, new, strict=True))
    ):
        return False
    logged = {*facts.skipped, *(c.name for c in facts.columns)} if facts.whole else set(facts.identity_columns)
    return old is None or {name for name, _ in old} <= logged


def _doubtful(table: _Table, old: Names | None) -> bool:
    """Whether an old row that the server logs whole lacks columns: they are NULL (3.0.x), or the identity was changed.

    A few times, because on 3.0.x it may be any set of columns.
    """
    facts = table.facts
    if facts is None or not facts.whole or old is None or len(old) >= len(facts.columns):
        return False
    table.doubts += 1
    return table.doubts <= DOUBTS


def _first(facts: FamilyTableFacts | None, names: Names | None) -> int:
    """1 where a text row begins with the system column `oid`, which up to 3.0.2 is printed like a column."""
    fake = bool(names) and names is not None and names[0] == ("oid", "oid")
    return int(fake and facts is not None and all(c.name != "oid" for c in facts.columns))
