"""Transforms of the pipeline file: expressions checked by Spark's analyzer, projections, and filters of changes.

An expression depends on one row and must always give the same value; otherwise silver would depend on when it was
merged. Aggregates, windows, generators, subqueries, random numbers, clocks and users are therefore refused.

Changes are filtered before rules evaluate them, and projected to silver's columns before they are folded, so kinds see
a table that had only such columns and rows from the start. A row that stops matching is deleted, one that starts to
match is inserted.

A change can be projected if every value it needs is known. An unchanged value is the one sent before, or else the one
in silver (`silver.net_change`). Silver cannot provide it if it does not have the column, or if the row was not in
silver because it did not match: such a change is held, as `not_sent`.

Functions on changes map DataFrames to DataFrames, without an action. Expressions read the values after the change,
completed if they were not sent (`silver.net_change.complete_for_rules`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

from cdc_lake.config.project import Target
from cdc_lake.config.silver_tables import Transforms
from cdc_lake.errors import TransformUnfit
from cdc_lake.model.relation import Relation
from cdc_lake.silver.changes import FROM, OP, ORDER, TO, F, fits, fits_old, known_column
from cdc_lake.silver.kind import UNSENT, old_column
from cdc_lake.silver.layout_mapping import RelationMapping
from cdc_lake.silver.net_change import FOUND, any_of, judged_column, row_window, value_known_column
from cdc_lake.tables.types import SilverColumn, TypedColumn, literal, quote_identifier, typed_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


_OF_ONE_RUN: Final = frozenset(
    """
    CurrentTimestamp CurrentDate CurrentTime LocalTimestamp Now CurrentBatchTimestamp CurrentUser CurrentCatalog
    CurrentDatabase CurrentTimeZone SparkVersion RaiseError
    """.split()  # noqa: SIM905  # as the list of expectations
)
"""Spark's classes of expressions that it considers deterministic because they are constant within one query."""

_NO_COLUMN: Final = ("void", "interval", "variant")
"""Types that not both formats can store."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A valid expression: its Spark SQL type, and the names of the columns it reads."""

    sql: str
    type: str
    reads: frozenset[str]


@lru_cache(maxsize=512)
def analyze_expression(spark: SparkSession, columns: tuple[SilverColumn, ...], sql: str, where: str) -> Expression:
    """Check an expression over `columns`; `where` is its location in the file. Raises TransformUnfit."""
    from pyspark.errors import AnalysisException, ParseException  # noqa: PLC0415 - the receiver has no Spark

    empty = spark.createDataFrame([], ", ".join(column.ddl for column in columns))
    try:
        frame = empty.select(F.expr(sql).alias("x"))
        plan: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - pyspark shows no plan as a value
    except (AnalysisException, ParseException) as cause:
        # Its first sentence, without the class name; the following lines quote the plan.
        reason = re.sub(r"^\[[A-Z_.]+\]\s*|\s*SQLSTATE.*", "", str(cause).strip().splitlines()[0])
        raise TransformUnfit(f"Spark rejects the expression: {reason}", where=where) from cause
    base: Any = empty._jdf.queryExecution().analyzed()  # noqa: SLF001
    _one_row(plan, base, where)
    kind = frame.schema[0].dataType.simpleString()
    if any(word in kind for word in _NO_COLUMN):
        raise TransformUnfit(f"the expression is of type {kind}, which a table cannot store", where=where)
    # The column has the name that the expression uses, which may differ in case.
    names = {column.name.casefold(): column.name for column in columns}
    reads = {node.name().casefold() for name, node in _nodes(plan) if name == "AttributeReference"}
    return Expression(sql, kind, frozenset(names[name] for name in reads & names.keys()))


def _one_row(plan: Any, base: Any, where: str) -> None:
    """Refuse what depends on more than one row, or differs between runs."""
    if plan.nodeName() != "Project" or plan.children().apply(0).nodeName() != base.nodeName():
        raise TransformUnfit("the expression must use a single row: no aggregate, window or generator", where=where)
    if not plan.subqueries().isEmpty():
        raise TransformUnfit("the expression contains a subquery, but it can read only its own row", where=where)
    odd = {name for name, _ in _nodes(plan)} & _OF_ONE_RUN
    if odd or not plan.deterministic():
        which = f" ({', '.join(sorted(odd))})" if odd else ""
        raise TransformUnfit(f"the expression is not deterministic{which}", where=where)


def _nodes(plan: Any) -> Iterator[tuple[str, Any]]:
    """Spark's class of each part of the expression, and the part."""
    waiting = _list_items(plan.expressions())
    while waiting:
        node = waiting.pop()
        yield node.getClass().getSimpleName(), node
        waiting += _list_items(node.children())


def _list_items(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


NOT_SENT: Final = "not_sent"
"""The name under which a change is held if its row cannot be computed."""

MATCHES: Final = "_cdc_matches"
"""Whether the row after a change matches `where`, or may match."""


BESIDE: Final = "_cdc_beside_"
"""Prefix of silver's metadata columns while they exist next to the source's columns, which may have the same names."""


@dataclass(frozen=True, kw_only=True)
class SilverMapping(RelationMapping):
    """The mapping of a table with silver's columns. `silver_columns`: its columns; `of`: the source column of each,
    None if it is computed.
    """

    source: RelationMapping
    silver_columns: tuple[SilverColumn, ...]
    of: tuple[int | None, ...]

    @cached_property
    def columns(self) -> tuple[SilverColumn, ...]:
        """Silver's columns, which differ from those of the layout."""
        return self.silver_columns

    @cached_property
    def nullable(self) -> frozenset[int]:
        """As the source's: the key has the same parts in the same order."""
        return self.source.nullable

    def position(self, name: str) -> int | None:
        """The position of a source column, None if silver does not have it."""
        place = self.source.position(name)
        return self.of.index(place) if place in self.of and place is not None else None

    def row_key(self, index: int, value: str) -> str:
        """As the source's: the key has the same parts in the same order."""
        return self.source.row_key(index, value)

    def typed_sql(self, column_index: int, text: str) -> str:
        """The silver value of a text of column `column_index`, which is not computed."""
        place = self.of[column_index]
        assert place is not None  # keys are columns of the source
        return self.source.typed_sql(place, text)


@dataclass(frozen=True)
class Projection:
    """Maps the columns of `source` to those of `silver`. `condition`: the columns that `where` reads; `computed`: the
    expressions of silver's last columns, each with the columns it reads. All by position in the source.
    """

    source: RelationMapping
    silver: RelationMapping
    transforms: Transforms
    where: Expression | None = None
    computed: tuple[Expression, ...] = ()

    @property
    def kept_columns(self) -> tuple[int, ...]:
        """The source columns that silver has."""
        if not isinstance(self.silver, SilverMapping):
            return tuple(range(len(self.source.columns)))
        return tuple(place for place in self.silver.of if place is not None)

    @cached_property
    def condition(self) -> frozenset[int]:
        """The columns that `where` reads."""
        return frozenset() if self.where is None else self.read_by(self.where)

    @cached_property
    def inputs(self) -> frozenset[int]:
        """The columns that any expression reads."""
        return self.condition.union(*(self.read_by(expression) for expression in self.computed))

    @cached_property
    def needed_columns(self) -> frozenset[int]:
        """Columns whose value after each change must be known; with a filter all of a row that may start to match."""
        return self.inputs | (frozenset(self.kept_columns) if self.where is not None else frozenset())

    @property
    def used(self) -> frozenset[int]:
        """Columns on which silver depends at all."""
        return self.inputs | frozenset(self.kept_columns)

    def read_by(self, expression: Expression) -> frozenset[int]:
        """The positions of the columns that an expression reads."""
        return frozenset(index for index, c in enumerate(self.source.columns) if c.name in expression.reads)

    def carrying(self, carried: Mapping[SilverColumn, str]) -> Projection:
        """The same with other columns that come with each change."""
        if not isinstance(self.silver, SilverMapping):
            source = replace(self.source, carried=carried)
            return replace(self, source=source, silver=source)
        source = replace(self.source, carried=_prefix_columns(carried))
        return replace(self, source=source, silver=replace(self.silver, carried=carried, source=source))

    def to_source_columns(self, target: DataFrame) -> DataFrame:
        """Rows of the silver table with the source's columns under their names there."""
        if not isinstance(self.silver, SilverMapping):
            return target
        pairs = [(c, p) for c, p in zip(self.silver.silver_columns, self.silver.of, strict=True) if p is not None]
        return target.select(*(F.col(quote_identifier(c.name)).alias(self.source.columns[p].name) for c, p in pairs))


def taken_columns(columns: Sequence[TypedColumn], transforms: Transforms) -> dict[int, str]:
    """Silver's names of the columns that it has, by position."""
    return {
        index: column.name if column.companion else transforms.silver_name(column.source.name, column.name)
        for index, column in enumerate(columns)
        if transforms.keeps(column.source.name)
    }


def silver_names_of(relation: Relation, target: Target) -> dict[str, str]:
    """The columns of a layout that silver has: source names → silver names."""
    columns = typed_columns(relation, target.types)
    return {columns[index].name: name for index, name in taken_columns(columns, target.transforms).items()}


def plain(shape: RelationMapping) -> Projection:
    """The projection without transforms."""
    return Projection(shape, shape, Transforms())


def silver_shape(
    shape: RelationMapping, transforms: Transforms, computed: Mapping[str, str], label: str, place: Callable[[str], str]
) -> SilverMapping:
    """The mapping after transforms; `computed`: name → type; `place`: location of the table's key in the file.

    Raises TransformUnfit for columns that do not exist, that cannot be omitted, or that would have the same name.
    """
    names = shape.relation.names
    for key, listed in (
        ("columns", transforms.columns or ()),
        ("exclude", transforms.exclude),
        ("rename", [source for source, _ in transforms.rename]),
    ):
        if missing := [name for name in listed if name not in names]:
            text = f"`{key}` names `{missing[0]}`, but {shape.relation.table} has no such column"
            raise TransformUnfit(text, where=place(key))
    silver_names = taken_columns(shape.typed_columns, transforms)
    places = tuple(silver_names)
    if lost := [names[index] for index in shape.keys if index not in places]:
        key = "columns" if transforms.columns is not None else "exclude"
        raise TransformUnfit(f"column `{lost[0]}` identifies rows of {label}: silver cannot omit it", where=place(key))
    silver_columns = [SilverColumn(name, shape.columns[index].type) for index, name in silver_names.items()]
    silver_columns += [SilverColumn(name, kind) for name, kind in computed.items()]
    seen_names: set[str] = set()
    for column in silver_columns:
        if column.name.casefold() in seen_names:
            key = "compute" if column.name in computed else "rename"
            raise TransformUnfit(f"two columns of {label} would have the name `{column.name}`", where=place(key))
        seen_names.add(column.name.casefold())
    carried = _passthrough_columns(shape, silver_names)
    return SilverMapping(
        relation=shape.relation,
        layouts=shape.layouts,
        keys=tuple(places.index(index) for index in shape.keys),
        carried=carried,
        types=shape.types,
        source=replace(shape, carried=_prefix_columns(carried)),
        silver_columns=tuple(silver_columns),
        of=(*places, *(None for _ in computed)),
    )


def _prefix_columns(carried: Mapping[SilverColumn, str]) -> dict[SilverColumn, str]:
    """Columns that come with each change, under their names next to the source's columns."""
    return {SilverColumn(f"{BESIDE}{column.name}", column.type): text for column, text in carried.items()}


def _passthrough_columns(shape: RelationMapping, silver_names: Mapping[int, str]) -> dict[SilverColumn, str]:
    """Columns that each change carries along: the old values of silver's columns, by silver's names."""
    old = {old_column(column): index for index, column in enumerate(shape.columns)} if shape.old_values else {}
    columns = {}
    for column, text in shape.carried.items():
        index = old.get(column)
        if index is None:
            columns[column] = text
        elif index in silver_names:
            columns[old_column(SilverColumn(silver_names[index], column.type))] = text
    return columns


BLIND = "_cdc_blind"
"""Whether the row after a change cannot be computed, because a needed value is unknown."""

LEFT_TO = "_cdc_left_to"
"""The key of a row after an update that does not show by itself whether the row matches."""

_MOVED = "_cdc_moved"  # a change of the key made the row match or stop matching
_WHOLE = "_cdc_whole"  # the change contains the old row, as far as the filter reads it
_WAS = "_cdc_was"
_INSIDE = "_cdc_inside"  # silver has the row before a change


def old_values(projection: Projection) -> dict[str, str]:
    """What a filter reads of the row before a change, as SQL over bronze's row."""
    if projection.where is None:
        return {}
    shape = projection.source
    texts = {index: shape.text(index, "old") for index in sorted(projection.condition)}
    readable = [f"({shape.fits(index, f'({text})')})" for index, text in texts.items() if shape.may_misfit(index)]
    is_complete = " AND ".join([shape.whole_old, *readable])
    return {
        _WHOLE: is_complete,
        **{_old_value_column(index): shape.value(index, text) for index, text in texts.items()},
    }


def filter_changes(changes: DataFrame, projection: Projection) -> DataFrame:
    """The changes of matching rows, as if the source table had no others.

    A row that stops matching is deleted, one that starts to match is inserted; a change whose rows do not match is
    dropped. If a change does not contain the old row, silver may have that row; if the filter reads an unknown value,
    the row may match, and `_cdc_matches` is true.
    """
    return changes if projection.where is None else _rewrite_changes(_with_matches(changes, projection), projection)


def _rewrite_changes(after: DataFrame, projection: Projection) -> DataFrame:
    was, leaves = _with_previous_match(after, projection), F.col(OP).isin("I", "U") & ~F.col(MATCHES)
    operation = F.when(leaves, "D").when((F.col(OP) == "U") & ~F.col(_WAS), "I").otherwise(F.col(OP))
    keys = {}  # a row that moved and stopped matching is deleted at its old key
    for index, place in enumerate(projection.source.keys):
        name = projection.source.columns[place].name
        old_key = F.expr(projection.source.typed_sql(place, f"{FROM}[{index}]"))
        keys[name] = F.when(leaves, old_key).otherwise(F.col(quote_identifier(name)))
    former_key, landed_key = F.when(F.col(_WAS), F.col(FROM)), F.when(~leaves, F.col(TO))
    remaining = was.where(F.col(MATCHES) | F.col(_WAS))
    columns = {OP: operation, _MOVED: moves(was), FROM: former_key, TO: landed_key, **keys}
    return remaining.withColumns(columns).drop(_WAS)


def moves(changes: DataFrame) -> Column:
    """Whether a change moved a row to another key, even if a filter made it an insert or a delete."""
    return F.col(_MOVED) if _MOVED in changes.columns else (F.col(OP) == "U") & (F.col(FROM) != F.col(TO))


def concerning(changes: DataFrame, projection: Projection) -> DataFrame:
    """For a table that keeps every change: those of which a row matches or may match."""
    if projection.where is None:
        return changes
    both = _with_previous_match(_with_matches(changes, projection), projection)
    return both.where((F.col(OP) == "T") | F.col(MATCHES) | F.col(_WAS)).drop(_WAS)


def _with_matches(changes: DataFrame, projection: Projection) -> DataFrame:
    assert projection.where is not None
    reads = sorted(projection.condition)
    unknown = any_of([~F.col(known_column(index)) for index in reads if known_column(index) in changes.columns])
    unreadable = any_of([~F.col(fits(index)) for index in reads if projection.source.may_misfit(index)])
    stays = F.col(OP).isin("I", "U")
    matches = F.coalesce(F.when(stays, F.expr(projection.where.sql)), F.lit(False))
    return changes.withColumn(MATCHES, stays & (unknown | unreadable | matches))


def _with_previous_match(changes: DataFrame, projection: Projection) -> DataFrame:
    """Add `_cdc_was`: whether the row before a change matched, or may have."""
    assert projection.where is not None
    names = {projection.source.columns[index].name: index for index in sorted(projection.condition)}
    if not names:  # a filter that reads nothing matches all rows, or none
        return changes.withColumn(_WAS, F.col(OP).isin("U", "D"))
    saved = changes.withColumns({f"_cdc_new_{index}": F.col(quote_identifier(name)) for name, index in names.items()})
    swapped = saved.withColumns({name: F.col(_old_value_column(index)) for name, index in names.items()})
    has_old_row = F.col(OP).isin("U", "D") & F.col(_WHOLE)
    matched = F.coalesce(F.when(has_old_row, F.expr(projection.where.sql)), F.lit(False))
    was = swapped.withColumn(_WAS, F.col(OP).isin("U", "D") & (~F.col(_WHOLE) | matched))
    back = was.withColumns({name: F.col(f"_cdc_new_{index}") for name, index in names.items()})
    return back.drop(*(f"_cdc_new_{index}" for index in names.values()))


def fill_unchanged(
    changes: DataFrame, projection: Projection, completed: Collection[int], foreign: Collection[int]
) -> DataFrame:
    """Fill unchanged values of changes and filter them.

    `completed`: columns whose values are in `_cdc_judged_<n>`; `foreign`: needed columns that silver lacks. A value is
    known if the change sent it, or if silver has its column and the row before the change: if a span had ended there,
    nothing else would be known. If that is not enough, `_cdc_blind` is true. `_cdc_left_to` is the key that a row has
    after an update that does not show by itself whether it matches.
    """
    changes = changes.withColumns({_sent_column(index): F.col(known_column(index)) for index in completed})
    inside: Column = F.lit(True)
    if projection.where is not None:
        guessed = _with_values(changes, projection, completed)
        # Results of the previous change are right up to the first quarantined change of the row.
        before = F.lag(F.struct(F.col(MATCHES).alias("matched"))).over(row_window(F.col(ORDER)))
        was_inside = F.when(before.isNull(), F.col(FOUND)).otherwise(before["matched"])
        changes = _with_matches(guessed, projection).withColumn(_INSIDE, F.coalesce(was_inside, F.lit(False)))
        inside = F.col(_INSIDE)
    is_known = {index: F.col(value_known_column(index)) for index in completed}
    counts = {
        value_known_column(index): F.col(_sent_column(index)) | (F.lit(index not in foreign) & inside & value)
        for index, value in is_known.items()
    }
    values = {judged_column(index): F.when(value, F.col(judged_column(index))) for index, value in is_known.items()}
    changes = changes.withColumns(counts).withColumns(values)
    changes = _with_values(changes, projection, completed)

    def lacks(places: Collection[int]) -> Column:
        return any_of([~is_known[index] for index in sorted(places) if index in is_known])

    blind = lacks(foreign)
    if projection.where is not None:
        changes = _with_matches(changes, projection)
        blind = lacks(projection.condition) | (F.col(MATCHES) & lacks(projection.needed_columns.union(foreign)))
    doubt = any_of([~F.col(_sent_column(index)) for index in completed if index in projection.condition])
    update = F.col(OP) == "U"
    changes = changes.withColumns({BLIND: update & blind, LEFT_TO: F.when(update & doubt, F.col(TO))})
    changes = changes.drop(_INSIDE, *(_sent_column(index) for index in completed))
    return changes if projection.where is None else _rewrite_changes(changes, projection)


def _with_values(changes: DataFrame, projection: Projection, completed: Collection[int]) -> DataFrame:
    """Move the values in `_cdc_judged_<n>` to the columns on which silver depends."""
    own = {index: projection.source.columns[index] for index in sorted(completed) if index in projection.needed_columns}
    changes = changes.withColumns({c.name: F.col(judged_column(index)).cast(c.type) for index, c in own.items()})
    return changes.withColumns({known_column(index): F.col(value_known_column(index)) for index in own})


def project_columns(
    changes: DataFrame, projection: Projection, unsent: frozenset[int]
) -> tuple[DataFrame, frozenset[int]]:
    """Filtered changes with silver's columns, and the positions of those that some change does not know.

    Computed columns have a value in rows that exist and are completely known.
    """
    if not projection.transforms.any:
        return changes, unsent
    source, silver = projection.source, projection.silver
    spent = {c.name for c in source.columns}
    namings = (known_column, fits, fits_old, judged_column, value_known_column)
    spent |= {naming(index) for index in range(len(source.columns)) for naming in namings}
    spent |= {MATCHES, BLIND, FOUND, LEFT_TO, _MOVED, _WHOLE, *map(_old_value_column, projection.condition)}
    others = [name for name in changes.columns if name not in spent]
    columns = [F.col(quote_identifier(name)).alias(name.removeprefix(BESIDE)) for name in others]
    unknown: set[int] = set()
    stays = F.col(OP).isin("I", "U")
    for index, (place, column) in enumerate(zip(projection.kept_columns, silver.columns, strict=False)):
        columns.append(F.col(quote_identifier(source.columns[place].name)).alias(column.name))
        if place in unsent:
            unknown.add(index)
            columns.append(F.col(known_column(place)).alias(known_column(index)))
    first = len(projection.kept_columns)
    computed = zip(projection.computed, silver.columns[first:], strict=True)
    for index, (expression, column) in enumerate(computed, start=first):
        lacking = [F.col(known_column(place)) for place in sorted(projection.read_by(expression) & unsent)]
        told_ = ~any_of([~flag for flag in lacking])
        columns.append(F.when(stays & told_, F.expr(expression.sql)).cast(column.type).alias(column.name))
        if lacking:
            unknown.add(index)
            columns.append(told_.alias(known_column(index)))
    return changes.select(*columns), frozenset(unknown)


def projected_changes(changes: DataFrame, projection: Projection, unsent: frozenset[int]) -> DataFrame:
    """Changes of a table that keeps every change, with silver's columns.

    A computed value with an unknown input is NULL and listed in `_unchanged`, like an unchanged value.
    """
    if not projection.transforms.any:
        return changes
    unchanged = f"{BESIDE}{UNSENT.name}"
    return project_columns(changes.withColumn(unchanged, F.expr(_unsent_sql(projection))), projection, unsent)[0]


def _unsent_sql(projection: Projection) -> str:
    """Silver's names of the columns that were not sent, from their names in the source."""
    source, silver, name = projection.source, projection.silver, quote_identifier(f"{BESIDE}{UNSENT.name}")
    renamed = zip(projection.kept_columns, silver.columns, strict=False)
    silver_names = {source.columns[place].name: column.name for place, column in renamed}
    cases = " ".join(f"WHEN {literal(old)} THEN {literal(new)}" for old, new in silver_names.items())
    listed = f"array_compact(transform({name}, c -> CASE c {cases} END))"
    for expression, column in zip(projection.computed, silver.columns[len(silver_names) :], strict=True):
        if expression.reads:
            lacks = f"arrays_overlap({name}, array({', '.join(literal(read) for read in sorted(expression.reads))}))"
            listed = f"concat({listed}, array_compact(array(CASE WHEN {lacks} THEN {literal(column.name)} END)))"
    return f"CASE WHEN size({listed}) > 0 THEN {listed} END"


def _old_value_column(column_index: int) -> str:
    return f"_cdc_old_{column_index}"


def _sent_column(column_index: int) -> str:
    return f"_cdc_sent_{column_index}"
