"""Converts a PostgreSQL transaction to what openGauss would have sent.

openGauss logs more of a row than PostgreSQL: every value of the new row, including unchanged TOAST values, and the old
key with every update. What pgoutput omits is completed from an image of the rows by key, which starts as a copy of the
tables and follows the stream. Values remain PostgreSQL's text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, TypeAlias, assert_never

from cdc_lake.decode.gaussdb.records import Ddl, Field, Operation, Row, Truncated
from cdc_lake.decode.pgoutput.parser import changes
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, Message, Truncate, Tuple, Update, Value
from cdc_lake.model.relation import Relation, ReplicaIdentity, TableName, predecessors

Key: TypeAlias = tuple[Value, ...]
Touched: TypeAlias = tuple[TableName, Key]

SCHEMA: Final = "gaussdb_standin"
"""What the stand-in keeps in the database, hidden from its clients; an insert there says that DDL was done."""

_NUMBERS: Final = frozenset({700, 701, 1700})  # OIDs of real, double precision, numeric
_FRACTION: Final = re.compile(r"(-?)0(\.[0-9]*[1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class Told:
    """A transaction's records between BEGIN and COMMIT, and what decides whether another may pass it.

    `rows` are the rows touched, by table and key (all values where there is no key); `truncated` the tables emptied;
    `layouts` the layouts in force, by table.
    """

    records: tuple[Row | Truncated | Ddl, ...]
    rows: frozenset[Touched] = frozenset()
    truncated: frozenset[TableName] = frozenset()
    layouts: tuple[Relation, ...] = ()

    def excludes(self, other: Told) -> bool:
        """True where the two cannot be told in the other order: a common row, truncated table or changed layout."""
        mine = {layout.table: layout for layout in self.layouts}
        for layout in other.layouts:
            table = layout.table
            if table in mine and (mine[table] != layout or table in self.truncated or table in other.truncated):
                return True
        return not self.rows.isdisjoint(other.rows)


@dataclass(slots=True)
class _Image:
    """The rows of one table by key, by position in `layout`."""

    layout: Relation
    rows: dict[Key, Tuple] = field(default_factory=dict)

    def follow(self, layout: Relation) -> None:
        """Take over a changed layout, columns by their numbers."""
        if layout == self.layout:
            return
        places = predecessors(self.layout, layout)
        moved = [tuple(None if at is None else row[at] for at in places) for row in self.rows.values()]
        self.rows = {_key(layout, row): row for row in moved}
        self.layout = layout


class GeneratedField(Field):
    """A value of a generated column."""


class LiveRows:
    """Tells raw transactions of pgoutput one after the other; see the module.

    `type_name` gives the name of a type by its OID, as `format_type` prints it; `generated` gives a table's generated
    columns. Tables in `keyless` are shown without a replica identity, although PostgreSQL logs their rows whole:
    updates without old row, deletes without anything. With `leading_zero` False, fractions print as openGauss prints
    them: `.5`.
    """

    def __init__(
        self,
        type_name: Callable[[int], str],
        generated: Callable[[Relation], Collection[str]] = lambda _: (),
        *,
        keyless: Collection[TableName] = (),
        leading_zero: bool = True,
    ) -> None:
        self._type_name = type_name
        self._generated = generated
        self._keyless = frozenset(keyless)
        self._leading_zero = leading_zero
        self._images: dict[TableName | int, _Image] = {}
        self._fields: dict[Relation, list[tuple[type[Field], str, str, int]]] = {}

    def load(self, relation: Relation, rows: Iterable[Tuple]) -> None:
        """Rows that were there when the stream began."""
        image = self._images.setdefault(_identity(relation), _Image(relation))
        image.rows.update((_key(relation, row), row) for row in rows)

    def tell(self, raw: BufferedTransaction) -> Told:
        """The transaction as records; the image is then at its end."""
        told: list[Row | Truncated | Ddl] = []
        touched: set[Touched] = set()
        truncated: set[TableName] = set()
        layouts: dict[Relation, None] = {}
        for at, group in groupby(changes(raw), lambda pair: pair[0]):
            for_frame = [change for _, change in group]
            lsn = raw.lsns[at]
            if isinstance(for_frame[0], Truncate):
                emptied = self._truncated(for_frame, lsn)
                told.append(emptied)
                truncated.update(emptied.tables)
            elif (tag := _ddl(for_frame[0])) is not None:
                # no content: no publication asks for DDL lines, but parallel decoding drops the rows behind it
                told.append(Ddl("deparse", tag, "", None, lsn))
                continue
            else:
                told.extend(self._row(change, lsn, touched) for change in for_frame)
            layouts.update((change.relation, None) for change in for_frame if not isinstance(change, Message))
        return Told(tuple(told), frozenset(touched), frozenset(truncated), tuple(layouts))

    def _truncated(self, truncates: list[Change], lsn: int) -> Truncated:
        tables = []
        first = truncates[0]
        assert isinstance(first, Truncate)
        for truncate in truncates:
            assert isinstance(truncate, Truncate)
            tables.append(truncate.relation.table)
            if (image := self._images.get(_identity(truncate.relation))) is not None:
                image.rows.clear()
        return Truncated(tuple(tables), first.cascade, first.restart_identity, lsn)

    def _row(self, change: Change, lsn: int, touched: set[Touched]) -> Row:
        match change:
            case Insert(relation, new):
                self._image(relation, None, new, touched)
                return Row(Operation.INSERT, relation.table, self._new(relation, new), None, lsn)
            case Update(relation, new, old):
                before, whole = self._completed(relation, new, old)
                self._image(relation, before, whole, touched)
                return Row(
                    Operation.UPDATE, relation.table, self._new(relation, whole), self._old(relation, before), lsn
                )
            case Delete(relation, old):
                assert old is not None  # pgoutput always sends one
                self._image(relation, old, None, touched)
                return Row(Operation.DELETE, relation.table, None, self._old(relation, old), lsn)
            case Truncate() | Message():
                msg = "a truncate is told whole, messages are not asked for"
                raise TypeError(msg)
            case _:
                assert_never(change)

    def _completed(self, relation: Relation, new: Tuple, old: Tuple | None) -> tuple[Tuple, Tuple]:
        """The old identity (the whole old row where it is FULL) and the new row with every value."""
        if relation.identity is ReplicaIdentity.FULL:
            assert old is not None
            source = old
        else:
            key = _key(relation, old if old is not None else new)
            source = self._at(relation).rows.get(key, ()) if UNCHANGED in new or UNCHANGED in key else ()
        before = old if old is not None else new
        if UNCHANGED not in new:
            return before, new
        if not source:
            msg = f"the image of {relation.table} has no row for a change that leaves values out"
            raise LookupError(msg)
        whole = tuple(source[at] if value is UNCHANGED else value for at, value in enumerate(new))
        return (old if old is not None else whole), whole

    def _image(self, relation: Relation, before: Tuple | None, after: Tuple | None, touched: set[Touched]) -> None:
        """Follow a change, and note which rows it touches."""
        rows = self._at(relation).rows
        touched.update((relation.table, _key(relation, values)) for values in (before, after) if values is not None)
        if before is not None:
            rows.pop(_key(relation, before), None)
        if after is not None:
            rows[_key(relation, after)] = after

    def _at(self, relation: Relation) -> _Image:
        image = self._images.setdefault(_identity(relation), _Image(relation))
        image.follow(relation)
        return image

    def _new(self, relation: Relation, values: Tuple) -> tuple[Field, ...]:
        return tuple(self._field(kind, value) for kind, value in zip(self._kinds(relation), values, strict=True))

    def _old(self, relation: Relation, values: Tuple) -> tuple[Field, ...] | None:
        """The identity columns of an old row; None where the table is shown without identity."""
        if relation.table in self._keyless:
            return None
        kinds = zip(self._kinds(relation), values, relation.columns, strict=True)
        return tuple(self._field(kind, value) for kind, value, column in kinds if column.key)

    def _kinds(self, relation: Relation) -> list[tuple[type[Field], str, str, int]]:
        if (kinds := self._fields.get(relation)) is None:
            made = dict.fromkeys(self._generated(relation), GeneratedField)
            kinds = [
                (made.get(c.name, Field), c.name, self._type_name(c.type_oid), c.type_oid) for c in relation.columns
            ]
            self._fields[relation] = kinds
        return kinds

    def _field(self, kind: tuple[type[Field], str, str, int], value: Value) -> Field:
        made, name, type_name, oid = kind
        if not self._leading_zero and oid in _NUMBERS and isinstance(value, str):
            value = bare_fraction(value)
        return made(name, value, type_name, oid)


def _ddl(change: Change) -> str | None:
    """The command tag that a row of the stand-in's own table brings; None for any other change."""
    if isinstance(change, Insert) and change.relation.table.schema == SCHEMA:
        return str(change.new[0])
    return None


def bare_fraction(text: str) -> str:
    """A number without the zero before its point, as openGauss prints it; zero itself keeps it."""
    if (match := _FRACTION.fullmatch(text)) is None:
        return text
    return match[1] + match[2]


def _identity(relation: Relation) -> TableName | int:
    """What a table is known by: its OID outlives its name."""
    return relation.table if relation.oid is None else relation.oid


def _key(relation: Relation, values: Tuple) -> Key:
    """What tells a row from others, all values where nothing else does: old rows that come whole need the key once the
    table logs less, rows of a table without a key are there when it gets one.
    """
    logged = {column.name for column in relation.columns if column.key}
    by_key = relation.primary_key if relation.identity is ReplicaIdentity.FULL else ()
    wanted = set(by_key) or logged or set(relation.names)
    return tuple(value for column, value in zip(relation.columns, values, strict=True) if column.name in wanted)
