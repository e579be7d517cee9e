"""Evolution: what changed between two layouts of a table, as typed operations on its silver table.

Columns are known by name: the stream carries no attribute numbers, so a rename is a drop and an add. Only what silver
sees is listed: `varchar(10)` to `text` changes nothing there. An additive operation keeps every row readable as it
was; a destructive one would lose or reinterpret data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from cdc_lake.config.type_policy import UNDECLARED, TypePolicy
from cdc_lake.lake.typed_columns import typed_columns
from cdc_lake.model.relation import Relation


@dataclass(frozen=True, slots=True)
class AddColumn:
    """A column that silver lacks; rows from before it are NULL."""

    name: str
    sql: str

    @property
    def destructive(self) -> bool:
        """Never."""
        return False


@dataclass(frozen=True, slots=True)
class DropColumn:
    """A column that the source no longer has."""

    name: str
    sql: str

    @property
    def destructive(self) -> bool:
        """Always: its values would go."""
        return True


@dataclass(frozen=True, slots=True)
class ChangeType:
    """A column whose silver type is another one."""

    name: str
    old_sql: str
    new_sql: str

    @property
    def destructive(self) -> bool:
        """Unless every old value is a value of the new type."""
        return not widens(self.old_sql, self.new_sql)


SchemaChange: TypeAlias = AddColumn | DropColumn | ChangeType

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_WIDER = {
    ("smallint", "int"),
    ("smallint", "bigint"),
    ("int", "bigint"),
    ("float", "double"),
    ("date", "timestamp_ntz"),
}


def widens(old_sql: str, new_sql: str) -> bool:
    """Whether every value of one Spark SQL type is the same value of the other."""
    old, new = _DECIMAL.fullmatch(old_sql), _DECIMAL.fullmatch(new_sql)
    if old and new:
        (p, s), (q, t) = ((int(m[1]), int(m[2])) for m in (old, new))
        return t >= s and q - t >= p - s
    return old_sql == new_sql or (old_sql, new_sql) in _WIDER


def compare_layouts(old: Relation, new: Relation, types: TypePolicy = UNDECLARED) -> list[SchemaChange]:
    """What turns the silver table of one layout into that of the other: drops and type changes, then adds, in order."""
    before = _silver_columns(old, types)
    after = _silver_columns(new, types)
    changes: list[SchemaChange] = []
    for source, (name, sql) in before.items():
        if source not in after:
            changes.append(DropColumn(name, sql))
        elif after[source][1] != sql:
            changes.append(ChangeType(name, sql, after[source][1]))
    changes.extend(AddColumn(name, sql) for source, (name, sql) in after.items() if source not in before)
    return changes


def _silver_columns(relation: Relation, types: TypePolicy) -> dict[tuple[str, bool], tuple[str, str]]:
    """Name and type in silver by the source's column, and whether it is its companion."""
    return {(one.source.name, one.companion): (one.name, one.type.sql) for one in typed_columns(relation, types)}
