"""Operations worked out from layouts, done on a dictionary: it equals the source after each transaction, by numbers alone.

What SQL makes of them on real tables, `tests/spark/test_evolution.py` shows.
"""

from __future__ import annotations

import os
from datetime import date, datetime
from typing import Any

from cdc_lake.model.change import UNCHANGED, Delete, Insert, Truncate, Update
from cdc_lake.model.relation import Relation, predecessors
from cdc_lake.tables.schema_evolution import (
    AddColumn,
    ChangeType,
    DropColumn,
    RenameColumn,
    columns_after,
    layout_columns,
    operations,
)
from cdc_lake.tables.types import SilverColumn
from tests.schema_changes import TYPED, Evolving
from tests.seeds import one_seed

HISTORIES = int(300 * float(os.environ.get("CDC_LAKE_BUDGET", "1")))


class Silver:
    """Rows by key, columns by name."""

    def __init__(self) -> None:
        self.follows: Relation | None = None
        self.columns: tuple[SilverColumn, ...] = ()
        self.rows: dict[int, dict[str, Any]] = {}

    def take(self, changes: tuple[Any, ...]) -> None:
        """One transaction, as apply takes it: first what its last layout asks of the table, then its changes."""
        newest = changes[-1].relation
        if self.follows is None:
            self.columns = layout_columns(newest)
        else:
            self.reshape(newest)
        self.follows = newest
        for change in changes:
            self.change(change, newest)

    def reshape(self, newest: Relation) -> None:
        assert self.follows is not None
        todo = operations(self.follows, newest, self.columns, "drop")
        names = {one.name: one.to for one in todo if isinstance(one, RenameColumn)}
        gone = {one.column.name for one in todo if isinstance(one, DropColumn)}
        sources = dict(zip((c.name for c in layout_columns(newest)), newest.columns, strict=True))
        for key, row in self.rows.items():
            out = {names.get(name, name): value for name, value in row.items() if name not in gone}
            for one in todo:
                match one:
                    case ChangeType(name, _, new):
                        out[name] = as_type(out[name], new)
                    case AddColumn(column, fill):
                        source = sources[column.name]
                        assert not one.unknown
                        assert (fill is None) == (source.missing is None)
                        text = source.missing.text if source.missing is not None else None
                        out[column.name] = None if text is None else TYPED[source.type_name](text)
                    case _:
                        pass
            self.rows[key] = out
        self.columns = columns_after(self.columns, todo)

    def change(self, change: Any, newest: Relation) -> None:
        match change:
            case Truncate():
                self.rows.clear()
            case Delete(old=old):
                del self.rows[int(old[0])]
            case Insert(new=new):
                self.rows[int(new[0])] = self.row(change.relation, new, newest, {})
            case Update(new=new, old=old):
                before = self.rows.pop(int(new[0] if old is None else old[0]))
                self.rows[int(new[0])] = self.row(change.relation, new, newest, before)

    def row(self, layout: Relation, texts: Any, newest: Relation, before: dict[str, Any]) -> dict[str, Any]:
        out = {}
        for place, column, made in zip(
            predecessors(layout, newest), newest.columns, layout_columns(newest), strict=True
        ):
            text = texts[place] if place is not None else column.missing.text if column.missing is not None else None
            if text is UNCHANGED:
                out[made.name] = before[made.name]
            elif text is None:
                out[made.name] = None
            else:
                kind = column.type_name if place is None else layout.columns[place].type_name
                out[made.name] = as_type(TYPED[kind](text), made.type)
        return out


def as_type(value: Any, sql: str) -> Any:
    match value, sql:
        case None, _:
            return None
        case datetime() | date() | int(), "string":
            return str(value)
        case date(), "timestamp_ntz" if not isinstance(value, datetime):
            return datetime(value.year, value.month, value.day)  # noqa: DTZ001
        case _:
            return value


def test_a_table_that_follows_the_operations_equals_its_source() -> None:
    first = one_seed()
    for seed in range(first, first + HISTORIES):
        source, silver = Evolving("t", seed), Silver()
        source.insert()
        for turn in range(12):
            source.transaction(0.3 if turn else 0.0)
            if changes := source.taken():
                silver.take(changes)
            found = sorted(silver.rows.values(), key=lambda row: row["id"])
            assert found == source.expected(), f"CDC_LAKE_SEED={seed}, transaction {turn}"
            assert set(silver.columns) == set(layout_columns(source.relation)), f"CDC_LAKE_SEED={seed}"
