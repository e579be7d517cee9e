"""The typed operations that bring a silver table to a new layout of its source table, and their commits on Iceberg.

An additive operation keeps every value and name readable; a destructive one would lose or reinterpret values, or remove
a name that somebody may read, and needs approval by its text. Only changes visible in silver are listed: `varchar(10)`
to `text` changes nothing there.

On Iceberg, add, drop, rename and its few type promotions are one metadata commit, which keeps column ids and touches no
rows. A new value for old rows, or a conversion to another type, rewrites rows: the value is written to a new column by
a fenced UPDATE, and a second commit puts that column in place of the old one. A table property records the progress for
the layout in the same commits, and each is refused if the table's rows changed since it was planned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from cdc_lake.config.silver_tables import UNDECLARED, TypePolicy
from cdc_lake.errors import ConcurrentModification, LakeError
from cdc_lake.model.relation import Relation, has_common_numbering, made_again, predecessors
from cdc_lake.tables.casts import TypeRewrite, cast_sql, conversion, fits_sql, require_conversion, rewriting, widens
from cdc_lake.tables.types import SilverColumn, TypedColumn, fold_case, literal, quote_identifier, typed_columns

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.update.schema import UpdateSchema
    from pyiceberg.types import IcebergType


OnDrop: TypeAlias = Literal["keep", "drop"]
"""What happens to a column that the source drops."""


@dataclass(frozen=True, slots=True)
class AddColumn:
    """A column that silver lacks. `fill`: SQL of its value in existing rows, None: NULL.

    `unknown`: the server gave existing rows values that are not in the stream.
    """

    column: SilverColumn
    fill: str | None = None
    unknown: bool = False

    @property
    def destructive(self) -> bool:
        """Whether silver's rows would be NULL and the source's are not."""
        return self.unknown

    def text(self, table: str) -> str:
        """The operation in words."""
        rest = ", rows before it unknown" if self.unknown else ""
        return f"add column {self.column.name} {self.column.type} to {table}{rest}"


@dataclass(frozen=True, slots=True)
class KeepColumn:
    """A column dropped at the source stays; rows written from then on are NULL there."""

    column: SilverColumn
    destructive = False

    def text(self, table: str) -> str:
        """The operation in words."""
        return f"keep column {self.column.name} of {table}, NULL from now on"


@dataclass(frozen=True, slots=True)
class DropColumn:
    """A column dropped at the source is removed, or a kept one whose name is needed."""

    column: SilverColumn
    destructive = True
    """Always: its values are lost."""

    def text(self, table: str) -> str:
        """The operation in words."""
        return f"drop column {self.column.name} of {table}"


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """A column was renamed."""

    name: str
    to: str
    destructive = True
    """Always: readers of the old name find nothing."""

    def text(self, table: str) -> str:
        """The operation in words."""
        return f"rename column {self.name} of {table} to {self.to}"


@dataclass(frozen=True, slots=True)
class ChangeType:
    """The silver type of a column, under its new name, changes.

    Or only the source's type, with other values; `rewriting`: how the server changed them beyond the conversion of
    silver's type.
    """

    name: str
    old_sql: str
    new_sql: str
    rewriting: TypeRewrite | None = None

    @property
    def destructive(self) -> bool:
        """Whether some old value is not a value of the new type."""
        return self.rewriting is not None or not widens(self.old_sql, self.new_sql)

    @property
    def convertible(self) -> bool:
        """Whether values can be converted to the new type as the server does it."""
        is_rewritable = self.rewriting is None or self.rewriting.sql is not None
        return is_rewritable and conversion("x", self.old_sql, self.new_sql) is not None

    def conversion_sql(self, value: str) -> str:
        """SQL of the converted value. Raises Unconvertible."""
        typed = require_conversion(value, self.name, self.old_sql, self.new_sql)
        return typed if self.rewriting is None else self.rewriting.rewrite_sql(typed, self.name)

    def text(self, table: str) -> str:
        """The operation in words."""
        if self.rewriting is not None and self.old_sql == self.new_sql:
            return f"convert column {self.name} of {table} from {self.rewriting.old} to {self.rewriting.new}"
        return f"change column {self.name} of {table} from {self.old_sql} to {self.new_sql}"


@dataclass(frozen=True, slots=True)
class AssumeColumn:
    """A column, by its later name, whose identity is uncertain. `former`: its assumed old name, None: new."""

    name: str
    former: str | None
    destructive = True
    """Always: values of one column may be attributed to another."""

    def text(self, table: str) -> str:
        """The operation in words."""
        if self.former is None:
            return f"take column {self.name} of {table} for a new one"
        former = "the one that it was" if self.former == self.name else f"the former {self.former}"
        return f"take column {self.name} of {table} for {former}"


@dataclass(frozen=True, slots=True)
class AssumeKey:
    """Columns that match updates without an old row, whose identity is uncertain."""

    names: tuple[str, ...]
    destructive = True
    """Always: another row may be updated."""

    def text(self, table: str) -> str:
        """The operation in words."""
        return f"match updates of {table} by {', '.join(self.names)}"


@dataclass(frozen=True, slots=True)
class BeginAgain:
    """The source's table was dropped and another one has its name: the rows of the first are removed."""

    destructive = True

    def text(self, table: str) -> str:
        """The operation in words."""
        return f"begin {table} again"


SchemaChange: TypeAlias = (
    AddColumn | KeepColumn | DropColumn | RenameColumn | ChangeType | AssumeColumn | AssumeKey | BeginAgain
)


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
"""Names of operations in metrics and progress."""


def layout_columns(relation: Relation, types: TypePolicy = UNDECLARED) -> tuple[SilverColumn, ...]:
    """The silver columns of a layout."""
    return tuple(SilverColumn(column.name, column.type.sql) for column in typed_columns(relation, types))


def operations(
    before: Relation,
    after: Relation,
    have: Sequence[SilverColumn] | None = None,
    on_drop: OnDrop = "keep",
    types: TypePolicy = UNDECLARED,
) -> tuple[SchemaChange, ...]:
    """The operations from the silver table of one layout to that of a later one.

    `have`: the table's actual columns, without those that silver adds itself; by default the layout's. It may have
    more: columns that were kept.
    """
    held = {c.name: c.type for c in (layout_columns(before, types) if have is None else have)}
    again: list[SchemaChange] = [BeginAgain()] if made_again(before, after) else []
    old = {_source(column, before): column.name for column in typed_columns(before, types)}
    wanted, places = typed_columns(after, types), predecessors(before, after)
    stays, changed, added = {}, [], []
    gone = {held[name] for (source_index, _), name in old.items() if source_index not in places and name in held}
    for column in wanted:
        source_index, companion = _source(column, after)
        came = places[source_index]
        name = None if came is None else old.get((came, companion))
        kind = None if name is None else held.get(name, held.get(column.name))
        if name is not None:
            stays[name] = column.name
        if kind is None:
            guessed = not has_common_numbering(before, after) and column.type.sql in gone
            added.append(_add_column(column, unknown=guessed or came is not None))
        else:
            new = kind if (column.type.sql, kind) in _HELD else column.type.sql
            plain = came is None or column.companion
            values = None if plain else rewriting(before.columns[came or 0], column.source, kind, new)
            changed += [ChangeType(column.name, kind, new, values)] if kind != new or values is not None else []
    lost = _lost_columns(held, stays, {fold_case(column.name) for column in wanted}, set(old.values()), on_drop)
    renamed = [RenameColumn(name, new) for name, new in stays.items() if name != new and name in held]
    return (*again, *_assumed_columns(before, after, wanted, old), *lost, *renamed, *changed, *added)


def unlike(
    have: Sequence[SilverColumn], after: Relation, on_drop: OnDrop = "keep", types: TypePolicy = UNDECLARED
) -> tuple[SchemaChange, ...]:
    """The same by names alone, if the layout of a table's rows is unknown."""
    held, wanted = {c.name: c.type for c in have}, typed_columns(after, types)
    names = {column.name for column in wanted}
    lost = _lost_columns(held, {name: name for name in names}, {fold_case(name) for name in names}, set(held), on_drop)
    changed = [
        ChangeType(column.name, held[column.name], column.type.sql)
        for column in wanted
        if column.name in held
        and held[column.name] != column.type.sql
        and (column.type.sql, held[column.name]) not in _HELD
    ]
    gone = {kind for name, kind in held.items() if name not in names}
    added = [
        _add_column(column, unknown=column.companion or column.type.sql in gone)
        for column in wanted
        if column.name not in held
    ]
    return (*lost, *changed, *added)


def _assumed_columns(
    before: Relation, after: Relation, wanted: Sequence[TypedColumn], names: Mapping[tuple[int, bool], str]
) -> list[AssumeColumn]:
    """The columns whose identity is uncertain and was not decided before."""
    if made_again(before, after):
        return []
    decided = {column.number for column in before.columns if column.ambiguous}
    places, assumptions = predecessors(before, after), []
    for typed_column in wanted:
        source_index, companion = _source(typed_column, after)
        if typed_column.source.ambiguous and typed_column.source.number not in decided and not companion:
            came = places[source_index]
            assumptions.append(AssumeColumn(typed_column.name, None if came is None else names[came, False]))
    return assumptions


def _source(column: TypedColumn, relation: Relation) -> tuple[int, bool]:
    """The position of the source's column, and whether this is its companion."""
    return relation.names.index(column.source.name), column.companion


_HELD = {("smallint", "int")}  # Iceberg has no smaller integers: smallint becomes int


def _lost_columns(
    held: dict[str, str], stays: dict[str, str], taken_names: set[str], old_names: set[str], on_drop: OnDrop
) -> list[SchemaChange]:
    """Of columns without a successor: those dropped, and those kept from now on; not those kept before."""
    changes: list[SchemaChange] = []
    for name, kind in held.items():
        if name in stays:
            continue
        if fold_case(name) in taken_names or (on_drop == "drop" and name in old_names):
            changes.append(DropColumn(SilverColumn(name, kind)))
        elif name in old_names:
            changes.append(KeepColumn(SilverColumn(name, kind)))
    return changes


def _add_column(typed_column: TypedColumn, *, unknown: bool) -> AddColumn:
    column, missing = SilverColumn(typed_column.name, typed_column.type.sql), typed_column.source.missing
    if unknown or missing is None:
        return AddColumn(column, unknown=unknown)
    if missing.text is None:
        return AddColumn(column, unknown=True)
    text = literal(missing.text)
    failed = f"raise_error({literal(f'cdc_lake: the default of column {column.name} has no silver value')})"
    return AddColumn(
        column,
        f"CASE WHEN {fits_sql(text, typed_column.type)} THEN {cast_sql(text, typed_column.type)} ELSE {failed} END",
    )


def restate_columns(
    have: Sequence[SilverColumn], changes: Sequence[SchemaChange], live: str
) -> tuple[tuple[SilverColumn, str], ...]:
    """The columns of a table after all of `changes`, each with its SQL over the columns before.

    `live`: SQL of the condition that a row exists in the source's table. Raises Unconvertible.
    """
    dropped = {change.column.name for change in changes if isinstance(change, DropColumn)}
    names = {change.name: change.to for change in changes if isinstance(change, RenameColumn)}
    columns = {names.get(c.name, c.name): (c.type, quote_identifier(c.name)) for c in have if c.name not in dropped}
    for change in changes:
        match change:
            case ChangeType(name, _, new):
                columns[name] = new, change.conversion_sql(columns[name][1])
            case AddColumn(column, fill):
                columns[column.name] = column.type, fill_sql(column, fill, live)
    return tuple((SilverColumn(name, kind), sql) for name, (kind, sql) in columns.items())


def columns_after(have: Sequence[SilverColumn], changes: Sequence[SchemaChange]) -> tuple[SilverColumn, ...]:
    """The columns of a table once all of `changes` are done."""
    dropped = {change.column.name for change in changes if isinstance(change, DropColumn)}
    names = {change.name: change.to for change in changes if isinstance(change, RenameColumn)}
    types = {change.name: change.new_sql for change in changes if isinstance(change, ChangeType)}
    stay = [SilverColumn(names.get(c.name, c.name), c.type) for c in have if c.name not in dropped]
    added = [change.column for change in changes if isinstance(change, AddColumn)]
    return (*(SilverColumn(c.name, types.get(c.name, c.type)) for c in stay), *added)


def fill_sql(column: SilverColumn, fill: str | None, live: str) -> str:
    """SQL of a new column in existing rows."""
    return f"CAST({'NULL' if fill is None else f'CASE WHEN {live} THEN {fill} END'} AS {column.type})"


def only_adds(changes: Iterable[SchemaChange]) -> bool:
    """Whether no row changes: columns are added as NULL, so a schema change suffices."""
    return all(isinstance(change, AddColumn) and change.fill is None for change in changes)


def for_the_table(changes: Iterable[SchemaChange]) -> tuple[SchemaChange, ...]:
    """The operations that change the table itself: not kept columns, and not a new beginning, which deletes rows."""
    return tuple(change for change in changes if isinstance(change, AddColumn | DropColumn | RenameColumn | ChangeType))


PROPERTY: Final = "cdc-lake.layout"
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_PROMOTED = {("int", "bigint"), ("float", "double")}
_PREFIX = "_cdc_next_"


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a layout's operations: the schema is changed (`begun`), or all are done (`done`)."""

    app: str
    position: int
    done: bool

    def text(self) -> str:
        """The value of the table property."""
        return json.dumps({"app": self.app, "position": self.position, "done": self.done})


def progress(table: Table) -> Progress | None:
    """The progress of the last layout, from the table."""
    text = table.properties.get(PROPERTY)
    return None if text is None else Progress(**json.loads(text))


def is_promotion(change: ChangeType) -> bool:
    """Whether Iceberg itself reads values of the old type as the new one."""
    if change.rewriting is not None:
        return False
    old, new = _DECIMAL.fullmatch(change.old_sql), _DECIMAL.fullmatch(change.new_sql)
    if old and new:
        return old[2] == new[2] and int(old[1]) <= int(new[1])
    return (change.old_sql, change.new_sql) in _PROMOTED


def assignments(changes: Sequence[SchemaChange], live: str) -> dict[str, str]:
    """The assignments of the UPDATE after the schema change: column → SQL. Raises Unconvertible."""
    values = {}
    for change in changes:
        match change:
            case ChangeType(name) if not is_promotion(change):
                values[_PREFIX + name] = change.conversion_sql(quote_identifier(name))
            case AddColumn(column, fill) if fill is not None:
                values[column.name] = fill_sql(column, fill, live)
    return values


def begin(table: Table, version: int | None, changes: Sequence[SchemaChange], reached: Progress) -> None:
    """Commit the schema change on the table's version `version`. Raises ConcurrentModification.

    Columns are added in a separate step: pyiceberg adds none under a name that another one has until that step ends.
    """

    def leave(schema: UpdateSchema) -> None:
        for change in changes:
            match change:
                case DropColumn(column):
                    schema.delete_column(column.name)
                case RenameColumn(name, to):
                    schema.rename_column(name, to)

    def add_columns(schema: UpdateSchema) -> None:
        for change in changes:
            match change:
                case ChangeType(name, _, new) if is_promotion(change):
                    schema.update_column(name, _iceberg_type(new))
                case ChangeType(name, _, new):
                    schema.add_column(_PREFIX + name, _iceberg_type(new))
                case AddColumn(column):
                    schema.add_column(column.name, _iceberg_type(column.type))

    _commit(table, version, reached, leave, add_columns)


def finish(table: Table, version: int | None, changes: Sequence[SchemaChange], reached: Progress) -> None:
    """Commit the replacement of columns by those of another type. Raises ConcurrentModification."""
    swapped = [change.name for change in changes if isinstance(change, ChangeType) and not is_promotion(change)]

    def update(schema: UpdateSchema) -> None:
        for name in swapped:
            schema.delete_column(name)
            schema.rename_column(_PREFIX + name, name)

    _commit(table, version, reached, update)


def _commit(table: Table, version: int | None, reached: Progress, *updates: Callable[[UpdateSchema], None]) -> None:
    from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415 - an extra
    from pyiceberg.table.update import AssertRefSnapshotId  # noqa: PLC0415 - an extra

    meanwhile = ConcurrentModification(f"another writer committed to {'.'.join(table.name())}")
    head = table.current_snapshot()
    if (None if head is None else head.snapshot_id) != version:
        raise meanwhile
    transaction = table.transaction()
    for update in updates:
        with transaction.update_schema(allow_incompatible_changes=True) as schema:
            update(schema)
    transaction.set_properties({PROPERTY: reached.text()})
    # Only if rows are still those of the plan: pyiceberg checks only the schema.
    fence = AssertRefSnapshotId(ref="main", snapshot_id=version)
    try:
        transaction._apply((), (fence,))  # noqa: SLF001 - it has no other word for a requirement
        transaction.commit_transaction()
    except CommitFailedException as cause:
        raise meanwhile from cause


def _iceberg_type(sql: str) -> IcebergType:
    from pyiceberg import types  # noqa: PLC0415 - an extra

    if decimal := _DECIMAL.fullmatch(sql):
        return types.DecimalType(int(decimal[1]), int(decimal[2]))
    if sql.startswith("array<"):
        return types.ListType(0, _iceberg_type(sql[len("array<") : -1]), element_required=False)
    simple: dict[str, type[IcebergType]] = {
        "smallint": types.IntegerType, "int": types.IntegerType, "bigint": types.LongType, "float": types.FloatType,
        "double": types.DoubleType, "boolean": types.BooleanType, "binary": types.BinaryType,
        "string": types.StringType, "date": types.DateType, "timestamp": types.TimestamptzType,
        "timestamp_ntz": types.TimestampType,
    }  # fmt: skip
    if sql not in simple:
        raise LakeError(f"a column of type {sql} cannot be added to an Iceberg table")
    return simple[sql]()
