"""Silver without Spark: folds bronze in memory with the product's own decisions.

The code of apply decides with which copy a table begins, where a span ends, how columns of layouts correspond, which
schema changes they require and whether these are allowed, and which key rows have. Only the SQL is replaced; the caller
provides the results of ALTER TYPE.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, cast

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.span_index import SpanSummary, outline
from cdc_lake.config.project import Project, Target
from cdc_lake.control.snapshots import TableTimeline, courses
from cdc_lake.errors import CdcLakeError
from cdc_lake.model.position import Span
from cdc_lake.model.relation import Column, Relation, TableName, made_again, predecessors
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.schema_changes import by_source_key, evolve, next_layout
from cdc_lake.runtime.apply.table_schema import check_key, check_named, shape_of
from cdc_lake.silver.kind import RowIdentity
from cdc_lake.silver.kinds import kind_of
from cdc_lake.silver.layout_mapping import RelationMapping
from cdc_lake.silver.row_tracing import NOTHING_WAITS
from cdc_lake.tables.casts import key_text, rewriting
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.schema_evolution import (
    AddColumn,
    ChangeType,
    DropColumn,
    RenameColumn,
    SchemaChange,
    columns_after,
)
from cdc_lake.tables.silver_table import Marker, SilverStore
from cdc_lake.tables.types import SilverColumn, column_type

Row: TypeAlias = dict[str, str | None]
Convert: TypeAlias = Callable[[str, Column, Column], str]
"""A text of a column as ALTER TYPE to another column's type makes it."""


@dataclass
class _Store:
    """A silver table in memory, as far as `evolve` asks of it; `rows` have no value in columns that are only kept."""

    convert: Convert
    rows: list[Row] = field(default_factory=list)
    have: tuple[SilverColumn, ...] | None = None
    layouts: tuple[Relation, Relation] | None = None
    done: int | None = None

    def marker(self, stream: str) -> Marker:
        del stream
        return Marker(None, None)

    def columns(self) -> tuple[SilverColumn, ...] | None:
        return self.have

    def create(self, columns: Sequence[SilverColumn], stream: str) -> None:
        del stream
        self.have = tuple(columns)

    def laid_out(self, stream: str, base: Marker) -> int | None:
        del stream, base
        return self.done

    def reshape(self, stream: str, base: Marker, position: int, changes: Sequence[SchemaChange], live: str) -> None:
        del stream, base, live
        assert self.have is not None
        assert self.layouts is not None
        before, after = self.layouts
        came = dict(zip(after.names, predecessors(before, after), strict=True))
        gone = {one.column.name for one in changes if isinstance(one, DropColumn)}
        names = {one.name: one.to for one in changes if isinstance(one, RenameColumn)}
        self.rows = [{names.get(n, n): v for n, v in row.items() if n not in gone} for row in self.rows]
        for one in changes:
            column = after.columns[after.names.index(one.name)] if isinstance(one, ChangeType) else None
            for row in self.rows:
                if column is not None and (text := row.get(column.name)) is not None:
                    place = came[column.name]
                    assert place is not None
                    row[column.name] = self.convert(text, before.columns[place], column)
                elif isinstance(one, AddColumn):
                    missing = after.columns[after.names.index(one.column.name)].missing
                    row[one.column.name] = None if one.fill is None or missing is None else missing.text
        self.have, self.done = columns_after(self.have, changes), position


class Folded:
    """One table of kind `current`; `allowed`: operations in words. Spans are drawn by `dice`."""

    whole: ClassVar = True
    """It has the source's values in all columns."""

    def __init__(self, project: Project, table: TableName, convert: Convert, dice: random.Random) -> None:
        self.target: Target = project.target(table)
        self.allowed: set[str] = set()
        self._project, self._convert, self._dice = project, convert, dice
        self._at, self._stretch = -1, 0
        self._store = _Store(convert)
        self._follows: Relation | None = None
        self._keyed = True

    @property
    def rows(self) -> list[Row]:
        """The rows by silver's names."""
        return self._store.rows

    @property
    def columns(self) -> dict[str, str]:
        """The types of silver's columns by name."""
        return {column.name: column.type for column in self._store.have or ()}

    def advance(self) -> CdcLakeError | None:
        """Apply what bronze has, up to what the table waits for."""
        reader = bronze_reader(self._project)
        state = reader.state()
        assert state is not None
        known = courses(control_tables(self._project).snapshots(), state.stream)
        stretches = known.get(str(self.target.source), TableTimeline()).stretches
        failed: CdcLakeError | None = None
        for number, stretch in enumerate(stretches):
            if number < self._stretch:
                continue
            last = number + 1 == len(stretches)
            ends = state.upto if last else stretches[number + 1].begins
            ends = ends if stretch.left is None else min(ends, stretch.left)
            try:
                if number > self._stretch or self._at < stretch.begins:
                    self._begin(reader, state.stream, state.epoch, stretch.copy)
                self._stretch = number
                self._span(reader, state.stream, Span(state.epoch, max(self._at, stretch.begins), ends))
                failed = None
            except CdcLakeError as error:
                failed = error
        return failed

    def _begin(self, reader: BronzeReader, stream: str, epoch: int, copy: Any) -> None:
        self._store, self._follows = _Store(self._convert), None
        if copy is None:
            return
        layouts = reader.layouts([self.target.source])
        seen = outline(reader.applied_files(), self.target.source, Span(epoch, -1, copy.position), snapshot=True)
        numbers = seen.layouts or (copy.layout,)
        kind = kind_of(self.target, layouts[numbers[-1]])
        shape = shape_of(numbers, layouts, self.target, kind)
        self._store.create(kind.columns(shape), stream)
        files = reader.applied_files()
        names = ["position", "op", "relation", "layout", "new", "epoch"]
        for row in files.read(files.select(relations=[str(self.target.source)]), names).to_pylist():
            at = (row["epoch"], row["op"], row["position"], row["relation"])
            if at == (epoch, "S", copy.position, str(self.target.source)):
                self.rows.append(self._values(shape, row, {}, None))
        self._follows, self._at = shape.relation, copy.position

    def _span(self, reader: BronzeReader, stream: str, whole: Span) -> None:
        name = str(self.target.source)
        while True:
            ahead = Span(whole.epoch, self._at, whole.upto)
            positions = [one.position for one in reader.commits_in_turn(ahead) if name in one.counts]
            if not positions:
                self._at = max(self._at, whole.upto)
                return
            upto = positions[self._dice.randrange(len(positions))]
            layouts = reader.layouts([self.target.source])
            seen = outline(
                reader.applied_files(), self.target.source, Span(whole.epoch, self._at, upto), snapshot=False
            )
            while (at := next_layout(seen, layouts, self.target)) is not None:
                upto = at - 1
                seen = outline(
                    reader.applied_files(), self.target.source, Span(whole.epoch, self._at, upto), snapshot=False
                )
            self._piece(reader, stream, seen, layouts, Span(whole.epoch, self._at, upto))
            self._at = upto

    def _piece(
        self, reader: BronzeReader, stream: str, seen: SpanSummary, layouts: dict[int, Relation], span: Span
    ) -> None:
        if not seen.runs:
            return
        kind = kind_of(self.target, layouts[seen.layouts[-1]])
        shape = shape_of(seen.layouts, layouts, self.target, kind)
        check_named(seen, shape, self.target, kind, stream)
        if kind.identity is RowIdentity.KEY and by_source_key(self.target):
            check_key(seen, shape, self.target, NOTHING_WAITS, self._follows, stream)
        self._store.layouts = None if self._follows is None else (self._follows, shape.relation)
        evolve(
            cast(SilverStore, self._store),
            self.target,
            kind,
            shape,
            stream=stream,
            position=seen.runs[0].position,
            follows=self._follows,
            allowed=self.allowed,
            all_relations=lambda: reader.layouts([self.target.source]).values(),
            report=silent,
        )
        if self._follows is not None and made_again(self._follows, shape.relation):
            self.rows.clear()
        keyed = kind.identity is RowIdentity.KEY
        for row in reader.changes(self.target.source, span).to_pylist():
            if made_again(layouts[row["layout"]], shape.relation):
                continue
            self._change(shape, row, keyed=keyed)
        self._follows = shape.relation

    def _change(self, shape: RelationMapping, row: dict[str, Any], *, keyed: bool) -> None:
        if row["op"] == "T":
            self.rows.clear()
            return
        before: Row | None = None
        if row["op"] in "UD":
            given = row["old"] if row["old"] is not None else row["new"]
            sought = self._values(shape, {**row, "new": given, "unchanged": None}, {}, None)
            by = [shape.typed_columns[at].name for at in (shape.keys if keyed else range(len(shape.typed_columns)))]
            key = self._key(shape, sought, by)
            found = [n for n, one in enumerate(self.rows) if self._key(shape, one, by) == key]
            assert found, f"{self.target.source}: no row {key} for {row['op']} at {row['position']}"
            before = self.rows.pop(found[-1])
        if row["op"] in "IU":
            self.rows.append(self._values(shape, row, before or {}, row["old"]))

    def _key(self, shape: RelationMapping, row: Row, names: Sequence[str]) -> list[str | None]:
        kinds = {one.name: one.type for one in shape.typed_columns}
        return [key_text(row.get(name), kinds[name]) for name in names]

    def _values(
        self, shape: RelationMapping, row: dict[str, Any], before: Row, old: Sequence[str | None] | None
    ) -> Row:
        layout = shape.layouts[row["layout"]]
        whole = row.get("old_kind") == "full" and not layout.mixed
        out: Row = {}
        for at, (place, one) in enumerate(zip(shape.places[row["layout"]], shape.typed_columns, strict=True)):
            if place is None:
                out[one.name] = None if one.source.missing is None else one.source.missing.text
                continue
            text = row["new"][place]
            if place in (row.get("unchanged") or ()):
                if old is None or not (whole or at in shape.keys):
                    out[one.name] = before[one.name]
                    continue
                text = old[place]
            out[one.name] = text if text is None else self._typed(text, layout.columns[place], one.source)
        return out

    def _typed(self, text: str, column: Column, newest: Column) -> str:
        old, new = column_type(column).sql, column_type(newest).sql
        if old == new and rewriting(column, newest, old, new) is None:
            return text
        return self._convert(text, column, newest)
