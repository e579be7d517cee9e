"""Evolution: what a new layout of a source table asks of its silver table, as typed operations.

An additive operation keeps every value and every name readable as it was; a destructive one would lose or reinterpret
values, or take a name away that somebody may read, and is never done without being allowed by its words. Only what
silver sees is listed: `varchar(10)` to `text` changes nothing there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from cdc_lake.config.type_policy import UNDECLARED, TypePolicy
from cdc_lake.lake.casts import cast_sql, fits_sql
from cdc_lake.lake.conversion import Rewriting, conversion, converted, rewriting, widens
from cdc_lake.lake.names import folded
from cdc_lake.lake.store import SilverColumn, literal, quoted
from cdc_lake.lake.typed_columns import TypedColumn, typed_columns
from cdc_lake.model.relation import Relation
from cdc_lake.model.succession import made_again, numbered, predecessors

OnDrop: TypeAlias = Literal["keep", "drop"]
"""What becomes of a column that the source drops."""


@dataclass(frozen=True, slots=True)
class AddColumn:
    """A column that silver lacks. `fill`: SQL of its value in the rows that are there, None: they are NULL.

    `unknown`: the server gave those rows values that nobody can read from the stream.
    """

    column: SilverColumn
    fill: str | None = None
    unknown: bool = False

    @property
    def destructive(self) -> bool:
        """Where silver's rows would be NULL and the source's are not."""
        return self.unknown

    def text(self, table: str) -> str:
        """The operation in words."""
        rest = ", rows before it unknown" if self.unknown else ""
        return f"add column {self.column.name} {self.column.type} to {table}{rest}"


@dataclass(frozen=True, slots=True)
class KeepColumn:
    """A column that the source no longer has stays; rows written from then on are NULL there."""

    column: SilverColumn

    @property
    def destructive(self) -> bool:
        """Never."""
        return False

    def text(self, table: str) -> str:
        """The operation in words."""
        return f"keep column {self.column.name} of {table}, NULL from now on"


@dataclass(frozen=True, slots=True)
class DropColumn:
    """A column that the source no longer has goes, or one that was kept so far and whose name is needed."""

    column: SilverColumn

    @property
    def destructive(self) -> bool:
        """Always: its values go."""
        return True

    def text(self, table: str) -> str:
        """The operation in words."""
        return f"drop column {self.column.name} of {table}"


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """A column that has another name now."""

    name: str
    to: str

    @property
    def destructive(self) -> bool:
        """Always: who reads the old name finds nothing."""
        return True

    def text(self, table: str) -> str:
        """The operation in words."""
        return f"rename column {self.name} of {table} to {self.to}"


@dataclass(frozen=True, slots=True)
class ChangeType:
    """A column, by its name afterwards, whose silver type is another one.

    Or the same, where the source's is another one with other values; `rewriting`: what the server made of them beyond
    the conversion of silver's type.
    """

    name: str
    old_sql: str
    new_sql: str
    rewriting: Rewriting | None = None

    @property
    def destructive(self) -> bool:
        """Unless every old value is a value of the new type."""
        return self.rewriting is not None or not widens(self.old_sql, self.new_sql)

    @property
    def convertible(self) -> bool:
        """Whether values can be made those of the new type as the server does it."""
        known = self.rewriting is None or self.rewriting.sql is not None
        return known and conversion("x", self.old_sql, self.new_sql) is not None

    def converted(self, value: str) -> str:
        """SQL of a value afterwards. Raises Unconvertible."""
        typed = converted(value, self.name, self.old_sql, self.new_sql)
        return typed if self.rewriting is None else self.rewriting.of(typed, self.name)

    def text(self, table: str) -> str:
        """The operation in words."""
        if self.rewriting is not None and self.old_sql == self.new_sql:
            return f"convert column {self.name} of {table} from {self.rewriting.old} to {self.rewriting.new}"
        return f"change column {self.name} of {table} from {self.old_sql} to {self.new_sql}"


@dataclass(frozen=True, slots=True)
class AssumeColumn:
    """A column, by its name afterwards, that may be another column of the source's table as well. `former`: the name
    that it had, None: it is a new one.
    """

    name: str
    former: str | None

    @property
    def destructive(self) -> bool:
        """Always: values of one column may stand in another."""
        return True

    def text(self, table: str) -> str:
        """The operation in words."""
        if self.former is None:
            return f"take column {self.name} of {table} for a new one"
        former = "the one that it was" if self.former == self.name else f"the former {self.former}"
        return f"take column {self.name} of {table} for {former}"


@dataclass(frozen=True, slots=True)
class AssumeKey:
    """Columns by which updates without an old row are matched, where these may be other ones as well."""

    names: tuple[str, ...]

    @property
    def destructive(self) -> bool:
        """Always: another row may be updated."""
        return True

    def text(self, table: str) -> str:
        """The operation in words."""
        return f"match updates of {table} by {', '.join(self.names)}"


@dataclass(frozen=True, slots=True)
class BeginAgain:
    """The source's table was dropped, and another one has its name: the rows of the first are gone."""

    @property
    def destructive(self) -> bool:
        """Always."""
        return True

    def text(self, table: str) -> str:
        """The operation in words."""
        return f"begin {table} again"


SchemaChange: TypeAlias = (
    AddColumn | KeepColumn | DropColumn | RenameColumn | ChangeType | AssumeColumn | AssumeKey | BeginAgain
)


_OF_THE_TABLE = (AddColumn, DropColumn, RenameColumn, ChangeType)

KINDS = {
    AddColumn: "add_column",
    KeepColumn: "keep_column",
    DropColumn: "drop_column",
    RenameColumn: "rename_column",
    ChangeType: "change_type",
    AssumeColumn: "assume_column",
    AssumeKey: "assume_key",
    BeginAgain: "begin_again",
}
"""Operations as metrics and progress call them."""


def layout_columns(relation: Relation, types: TypePolicy = UNDECLARED) -> tuple[SilverColumn, ...]:
    """The silver columns of a layout."""
    return tuple(SilverColumn(one.name, one.type.sql) for one in typed_columns(relation, types))


def operations(
    before: Relation,
    after: Relation,
    have: Sequence[SilverColumn] | None = None,
    on_drop: OnDrop = "keep",
    types: TypePolicy = UNDECLARED,
) -> tuple[SchemaChange, ...]:
    """What turns the silver table of one layout into that of a later one.

    `have`: the table's columns as they are, without those that silver adds itself; by default the layout's own. It may
    have more: columns that were kept.
    """
    held = {c.name: c.type for c in (layout_columns(before, types) if have is None else have)}
    again: list[SchemaChange] = [BeginAgain()] if made_again(before, after) else []
    old = {_source(one, before): one.name for one in typed_columns(before, types)}
    wanted, places = typed_columns(after, types), predecessors(before, after)
    stays, changed, added = {}, [], []
    gone = {held[name] for (at, _), name in old.items() if at not in places and name in held}
    for one in wanted:
        at, companion = _source(one, after)
        came = places[at]
        name = None if came is None else old.get((came, companion))
        kind = None if name is None else held.get(name, held.get(one.name))
        if name is not None:
            stays[name] = one.name
        if kind is None:
            guessed = not numbered(before, after) and one.type.sql in gone
            added.append(_added(one, unknown=guessed or came is not None))
        else:
            new = kind if (one.type.sql, kind) in _HELD else one.type.sql
            plain = came is None or one.companion
            values = None if plain else rewriting(before.columns[came or 0], one.source, kind, new)
            changed += [ChangeType(one.name, kind, new, values)] if kind != new or values is not None else []
    lost = _lost(held, stays, {folded(one.name) for one in wanted}, set(old.values()), on_drop)
    renamed = [RenameColumn(name, new) for name, new in stays.items() if name != new and name in held]
    return (*again, *_assumed(before, after, wanted, old), *lost, *renamed, *changed, *added)


def unlike(
    have: Sequence[SilverColumn], after: Relation, on_drop: OnDrop = "keep", types: TypePolicy = UNDECLARED
) -> tuple[SchemaChange, ...]:
    """The same by names alone, where nobody knows which layout the rows of a table follow."""
    held, wanted = {c.name: c.type for c in have}, typed_columns(after, types)
    names = {one.name for one in wanted}
    lost = _lost(held, {name: name for name in names}, {folded(name) for name in names}, set(held), on_drop)
    changed = [
        ChangeType(one.name, held[one.name], one.type.sql)
        for one in wanted
        if one.name in held and held[one.name] != one.type.sql and (one.type.sql, held[one.name]) not in _HELD
    ]
    gone = {kind for name, kind in held.items() if name not in names}
    added = [_added(one, unknown=one.companion or one.type.sql in gone) for one in wanted if one.name not in held]
    return (*lost, *changed, *added)


def _assumed(
    before: Relation, after: Relation, wanted: Sequence[TypedColumn], names: Mapping[tuple[int, bool], str]
) -> list[AssumeColumn]:
    """The columns of which nobody can tell which ones they are, where nothing was decided of them before."""
    if made_again(before, after):
        return []
    decided = {column.number for column in before.columns if column.ambiguous}
    places, out = predecessors(before, after), []
    for one in wanted:
        at, companion = _source(one, after)
        if one.source.ambiguous and one.source.number not in decided and not companion:
            came = places[at]
            out.append(AssumeColumn(one.name, None if came is None else names[came, False]))
    return out


def _source(one: TypedColumn, relation: Relation) -> tuple[int, bool]:
    """The position of the source's column, and whether this one stands beside it."""
    return relation.names.index(one.source.name), one.companion


_HELD = {("smallint", "int")}  # Iceberg has no smaller integers: what was made as smallint is int there


def _lost(
    held: dict[str, str], stays: dict[str, str], taken: set[str], old_names: set[str], on_drop: OnDrop
) -> list[SchemaChange]:
    """Of the columns that no later one continues: those that go, those that are kept from now on; not those kept."""
    out: list[SchemaChange] = []
    for name, kind in held.items():
        if name in stays:
            continue
        if folded(name) in taken or (on_drop == "drop" and name in old_names):
            out.append(DropColumn(SilverColumn(name, kind)))
        elif name in old_names:
            out.append(KeepColumn(SilverColumn(name, kind)))
    return out


def _added(one: TypedColumn, *, unknown: bool) -> AddColumn:
    column, missing = SilverColumn(one.name, one.type.sql), one.source.missing
    if unknown or missing is None:
        return AddColumn(column, unknown=unknown)
    if missing.text is None:
        return AddColumn(column, unknown=True)
    text = literal(missing.text)
    failed = f"raise_error({literal(f'cdc_lake: the default of column {column.name} has no silver value')})"
    return AddColumn(column, f"CASE WHEN {fits_sql(text, one.type)} THEN {cast_sql(text, one.type)} ELSE {failed} END")


def restated(
    have: Sequence[SilverColumn], changes: Sequence[SchemaChange], live: str
) -> tuple[tuple[SilverColumn, str], ...]:
    """The columns of a table after all of `changes`, each with the SQL over its columns before that gives it.

    `live`: SQL of the condition under which a row is one that the source's table has. Raises Unconvertible.
    """
    dropped = {change.column.name for change in changes if isinstance(change, DropColumn)}
    names = {change.name: change.to for change in changes if isinstance(change, RenameColumn)}
    out = {names.get(c.name, c.name): (c.type, quoted(c.name)) for c in have if c.name not in dropped}
    for change in changes:
        match change:
            case ChangeType(name, _, new):
                out[name] = new, change.converted(out[name][1])
            case AddColumn(column, fill):
                out[column.name] = column.type, filled(column, fill, live)
            case _:
                pass
    return tuple((SilverColumn(name, kind), sql) for name, (kind, sql) in out.items())


def columns_after(have: Sequence[SilverColumn], changes: Sequence[SchemaChange]) -> tuple[SilverColumn, ...]:
    """The columns of a table once all of `changes` are done."""
    dropped = {change.column.name for change in changes if isinstance(change, DropColumn)}
    names = {change.name: change.to for change in changes if isinstance(change, RenameColumn)}
    types = {change.name: change.new_sql for change in changes if isinstance(change, ChangeType)}
    stay = [SilverColumn(names.get(c.name, c.name), c.type) for c in have if c.name not in dropped]
    added = [change.column for change in changes if isinstance(change, AddColumn)]
    return (*(SilverColumn(c.name, types.get(c.name, c.type)) for c in stay), *added)


def filled(column: SilverColumn, fill: str | None, live: str) -> str:
    """SQL of a new column in the rows that are there."""
    return f"CAST({'NULL' if fill is None else f'CASE WHEN {live} THEN {fill} END'} AS {column.type})"


def only_adds(changes: Iterable[SchemaChange]) -> bool:
    """Whether no row changes: columns are added, and are NULL; then the schema says it all."""
    return all(isinstance(change, AddColumn) and change.fill is None for change in changes)


def for_the_table(changes: Iterable[SchemaChange]) -> tuple[SchemaChange, ...]:
    """The operations that do something to the table itself: what is kept stays, what begins again does as rows go."""
    return tuple(change for change in changes if isinstance(change, _OF_THE_TABLE))
