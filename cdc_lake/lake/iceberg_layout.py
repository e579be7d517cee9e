"""Layouts on Iceberg: operations as commits of the table's metadata, which keep column ids and touch no rows.

What Iceberg does by itself (add, drop, rename, its few promotions) is one commit. A value that old rows are to have, or
that becomes one of another type, needs rows: it is written to a new column by an UPDATE that is fenced as any other,
and a second commit puts that column in the old one's place. A table property says how far this went for which layout,
in the same commits, and each of them is refused where the table's rows are no longer those it was worked out from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdc_lake.errors import LakeError, TableChangedMeanwhile
from cdc_lake.lake.evolution import (
    AddColumn,
    ChangeType,
    DropColumn,
    RenameColumn,
    SchemaChange,
    filled,
)
from cdc_lake.lake.store import quoted

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.update.schema import UpdateSchema
    from pyiceberg.types import IcebergType

PROPERTY: Final = "cdc-lake.layout"
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_PROMOTED = {("int", "bigint"), ("float", "double")}
_PREFIX = "_cdc_next_"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the operations of a layout are done: those that a schema says (`begun`), or all (`done`)."""

    app: str
    position: int
    done: bool

    def text(self) -> str:
        """As the table property has it."""
        return json.dumps({"app": self.app, "position": self.position, "done": self.done})


def progress(table: Table) -> Progress | None:
    """What the table says of its last layout."""
    text = table.properties.get(PROPERTY)
    return None if text is None else Progress(**json.loads(text))


def promoted(change: ChangeType) -> bool:
    """Whether Iceberg reads values of the old type as the new one by itself."""
    if change.rewriting is not None:
        return False
    old, new = _DECIMAL.fullmatch(change.old_sql), _DECIMAL.fullmatch(change.new_sql)
    if old and new:
        return old[2] == new[2] and int(old[1]) <= int(new[1])
    return (change.old_sql, change.new_sql) in _PROMOTED


def assignments(changes: Sequence[SchemaChange], live: str) -> dict[str, str]:
    """What an UPDATE has to set once the schema is there: column → SQL. Raises Unconvertible."""
    out = {}
    for change in changes:
        match change:
            case ChangeType(name) if not promoted(change):
                out[_PREFIX + name] = change.converted(quoted(name))
            case AddColumn(column, fill) if fill is not None:
                out[column.name] = filled(column, fill, live)
            case _:
                pass
    return out


def begin(table: Table, version: int | None, changes: Sequence[SchemaChange], reached: Progress) -> None:
    """Commit what a schema says, on the table's version `version`. Raises TableChangedMeanwhile.

    Columns come in a step of their own: pyiceberg adds none under a name that another one has until that step ends.
    """

    def leave(schema: UpdateSchema) -> None:
        for change in changes:
            match change:
                case DropColumn(column):
                    schema.delete_column(column.name)
                case RenameColumn(name, to):
                    schema.rename_column(name, to)
                case _:
                    pass

    def come(schema: UpdateSchema) -> None:
        for change in changes:
            match change:
                case ChangeType(name, _, new) if promoted(change):
                    schema.update_column(name, _iceberg_type(new))
                case ChangeType(name, _, new):
                    schema.add_column(_PREFIX + name, _iceberg_type(new))
                case AddColumn(column):
                    schema.add_column(column.name, _iceberg_type(column.type))
                case _:
                    pass

    _commit(table, version, reached, leave, come)


def finish(table: Table, version: int | None, changes: Sequence[SchemaChange], reached: Progress) -> None:
    """Commit that columns of another type take the place of the old ones. Raises TableChangedMeanwhile."""
    swapped = [change.name for change in changes if isinstance(change, ChangeType) and not promoted(change)]

    def update(schema: UpdateSchema) -> None:
        for name in swapped:
            schema.delete_column(name)
            schema.rename_column(_PREFIX + name, name)

    _commit(table, version, reached, update)


def _commit(table: Table, version: int | None, reached: Progress, *updates: Callable[[UpdateSchema], None]) -> None:
    from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415 - an extra
    from pyiceberg.table.update import AssertRefSnapshotId  # noqa: PLC0415 - an extra

    meanwhile = TableChangedMeanwhile(f"another writer committed to {'.'.join(table.name())}")
    head = table.current_snapshot()
    if (None if head is None else head.snapshot_id) != version:
        raise meanwhile
    transaction = table.transaction()
    for update in updates:
        with transaction.update_schema(allow_incompatible_changes=True) as schema:
            update(schema)
    transaction.set_properties({PROPERTY: reached.text()})
    # Only where rows are still those the operations were worked out from: pyiceberg asks for nothing but the schema.
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
        "smallint": types.IntegerType,
        "int": types.IntegerType,
        "bigint": types.LongType,
        "float": types.FloatType,
        "double": types.DoubleType,
        "boolean": types.BooleanType,
        "binary": types.BinaryType,
        "string": types.StringType,
        "date": types.DateType,
        "timestamp": types.TimestamptzType,
        "timestamp_ntz": types.TimestampType,
    }
    if sql not in simple:
        raise LakeError(f"a column of type {sql} cannot be added to an Iceberg table")
    return simple[sql]()
