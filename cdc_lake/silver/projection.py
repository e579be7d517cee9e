"""Projection: what a silver row is of its source row, and which rows there are (`config.transforms`).

Changes are filtered before rules judge them, and get silver's columns before they are folded, so kinds see a table that
has only such columns and rows from the start: what a filter leaves is as if the source's table had no other rows. A
row that stops matching leaves, one that begins to match arrives.

A change can be projected where every value it needs is known. A value that was not sent is the one sent before, else
the one in silver (`silver.complete`). Silver cannot tell it where it does not keep the column, nor where the row was
not in silver before the change because it did not match: such a change is held, by the name `not_sent`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from cdc_lake.config.transforms import Transforms
from cdc_lake.errors import TransformUnfit
from cdc_lake.lake.store import SilverColumn, quoted
from cdc_lake.lake.typed_columns import TypedColumn
from cdc_lake.silver.expressions import Expression
from cdc_lake.silver.own_columns import old_column
from cdc_lake.silver.shape import Shape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NOT_SENT: Final = "not_sent"
"""The name under which a change is held whose row cannot be worked out."""

MATCHES: Final = "_cdc_matches"
"""Whether the row after a change is one that `where` takes, or may be one."""


BESIDE: Final = "_cdc_beside_"
"""What names of silver's own columns begin with while they stand beside the source's, which may have the same ones."""


@dataclass(frozen=True, kw_only=True)
class SilverShape(Shape):
    """The shape of a table as silver has it. `given`: its columns; `of`: which source column each is, None where
    it is computed.
    """

    source: Shape
    given: tuple[SilverColumn, ...]
    of: tuple[int | None, ...]

    @cached_property
    def columns(self) -> tuple[SilverColumn, ...]:
        """Silver's columns, which are not those of the layout."""
        return self.given

    @cached_property
    def nullable(self) -> frozenset[int]:
        """As the source's: the key has the same parts in the same order."""
        return self.source.nullable

    def position(self, name: str) -> int | None:
        """The position of a column of the source, None where silver does not have it."""
        place = self.source.position(name)
        return self.of.index(place) if place in self.of and place is not None else None

    def row_key(self, index: int, value: str) -> str:
        """As the source's: the key has the same parts in the same order."""
        return self.source.row_key(index, value)

    def typed(self, at: int, text: str) -> str:
        """The silver value of a text of column `at`, which is no computed one."""
        place = self.of[at]
        assert place is not None  # keys are columns of the source
        return self.source.typed(place, text)


@dataclass(frozen=True)
class Projection:
    """From the columns of `source` to those of `silver`. `condition`: what `where` reads; `computed`: the expressions
    of silver's last columns, each with what it reads. All by position in the source.
    """

    source: Shape
    silver: Shape
    transforms: Transforms
    where: Expression | None = None
    computed: tuple[Expression, ...] = ()

    @property
    def kept(self) -> tuple[int, ...]:
        """The source columns that silver has."""
        if not isinstance(self.silver, SilverShape):
            return tuple(range(len(self.source.columns)))
        return tuple(place for place in self.silver.of if place is not None)

    @cached_property
    def condition(self) -> frozenset[int]:
        """What `where` reads."""
        return frozenset() if self.where is None else self.read_by(self.where)

    @cached_property
    def inputs(self) -> frozenset[int]:
        """What any expression reads."""
        return self.condition.union(*(self.read_by(one) for one in self.computed))

    @cached_property
    def needed(self) -> frozenset[int]:
        """Columns whose value after each change must be known: with a filter all of a row that may arrive."""
        return self.inputs | (frozenset(self.kept) if self.where is not None else frozenset())

    @property
    def used(self) -> frozenset[int]:
        """Columns that silver depends on at all."""
        return self.inputs | frozenset(self.kept)

    def read_by(self, expression: Expression) -> frozenset[int]:
        """The positions of the columns that an expression reads."""
        return frozenset(at for at, c in enumerate(self.source.columns) if c.name in expression.reads)

    def carrying(self, carried: Mapping[SilverColumn, str]) -> Projection:
        """The same with other columns that come with each change."""
        if not isinstance(self.silver, SilverShape):
            source = replace(self.source, carried=carried)
            return replace(self, source=source, silver=source)
        source = replace(self.source, carried=_prefixed(carried))
        return replace(self, source=source, silver=replace(self.silver, carried=carried, source=source))

    def back(self, target: DataFrame) -> DataFrame:
        """Rows of the silver table with the columns that are the source's, under the source's names."""
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the receiver has no Spark

        if not isinstance(self.silver, SilverShape):
            return target
        pairs = zip(self.silver.given, self.silver.of, strict=True)
        return target.select(
            *(F.col(quoted(c.name)).alias(self.source.columns[p].name) for c, p in pairs if p is not None)
        )


def taken_columns(made: Sequence[TypedColumn], transforms: Transforms) -> dict[int, str]:
    """Silver's names of the columns that it takes, by position."""
    return {
        at: one.name if one.companion else transforms.silver_name(one.source.name, one.name)
        for at, one in enumerate(made)
        if transforms.keeps(one.source.name)
    }


def plain(shape: Shape) -> Projection:
    """A silver row is its source row."""
    return Projection(shape, shape, Transforms())


def silver_shape(
    shape: Shape, transforms: Transforms, computed: Mapping[str, str], label: str, place: Callable[[str], str]
) -> SilverShape:
    """The shape that transforms make; `computed`: name → type; `place`: where a key of the table is written.

    Raises TransformUnfit for columns that are not there, that have to stay, or that would have one name.
    """
    names = shape.relation.names
    for key, listed in (
        ("columns", transforms.columns or ()),
        ("exclude", transforms.exclude),
        ("rename", [source for source, _ in transforms.rename]),
    ):
        if missing := [name for name in listed if name not in names]:
            text = f"`{key}` names `{missing[0]}`, and {shape.relation.table} has no such column"
            raise TransformUnfit(text, where=place(key))
    taken = taken_columns(shape.made, transforms)
    places = tuple(taken)
    if lost := [names[at] for at in shape.keys if at not in places]:
        key = "columns" if transforms.columns is not None else "exclude"
        raise TransformUnfit(
            f"column `{lost[0]}` identifies rows of {label}: silver cannot be without", where=place(key)
        )
    given = [SilverColumn(name, shape.columns[at].type) for at, name in taken.items()]
    given += [SilverColumn(name, kind) for name, kind in computed.items()]
    seen: set[str] = set()
    for column in given:
        if column.name.casefold() in seen:
            key = "compute" if column.name in computed else "rename"
            raise TransformUnfit(f"two columns of {label} would be called `{column.name}`", where=place(key))
        seen.add(column.name.casefold())
    carried = _carried(shape, taken)
    return SilverShape(
        relation=shape.relation,
        layouts=shape.layouts,
        keys=tuple(places.index(at) for at in shape.keys),
        carried=carried,
        types=shape.types,
        source=replace(shape, carried=_prefixed(carried)),
        given=tuple(given),
        of=(*places, *(None for _ in computed)),
    )


def _prefixed(carried: Mapping[SilverColumn, str]) -> dict[SilverColumn, str]:
    """Columns that come with each change as they are called beside the source's."""
    return {SilverColumn(f"{BESIDE}{column.name}", column.type): text for column, text in carried.items()}


def _carried(shape: Shape, taken: Mapping[int, str]) -> dict[SilverColumn, str]:
    """What comes with each change: of the old row the columns that silver takes, by silver's names."""
    old = {old_column(column): at for at, column in enumerate(shape.columns)} if shape.old_values else {}
    out = {}
    for column, text in shape.carried.items():
        at = old.get(column)
        if at is None:
            out[column] = text
        elif at in taken:
            out[old_column(SilverColumn(taken[at], column.type))] = text
    return out
