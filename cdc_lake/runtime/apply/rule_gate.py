"""Evaluates row rules on the changes of a span, in one pass that counts how each rule fares.

The pass determines how the span is folded, so it also counts updates that move a row to another key, and changes that a
rule cannot evaluate because a value was not sent.

Expressions name the source's columns. If a change did not send a value, the completed value is in a column of another
name (`silver.net_change`), which replaces the name in the expression's text where Spark's parser finds it. The result
of Spark's analyzer does not depend on the session, so it is cached.

If a table is partitioned by a key column, or by Iceberg's `bucket` or `truncate` of one, a row and its changes are in
the same partition. The pass therefore also collects the partitions that the span touches. They become literals in the
MERGE, because no format evaluates the other side of a MERGE before it selects files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final

from cdc_lake.bronze.span_index import SpanSummary
from cdc_lake.config.project import Project, Target
from cdc_lake.config.rules import Expression, RowRule, rule_name
from cdc_lake.config.silver_tables import Partition
from cdc_lake.errors import RuleColumnMissing, RuleDoesNotFit, TransformUnfit
from cdc_lake.model.quarantine import CEILING
from cdc_lake.quality.rules import Condition, RuleCount, fails, holds_not
from cdc_lake.silver.changes import FROM, OP, ORDINAL, POSITION, TO, fits, fits_old, known_column
from cdc_lake.silver.kind import TablePart
from cdc_lake.silver.layout_mapping import RelationMapping
from cdc_lake.silver.net_change import any_of, judged_column, value_known_column
from cdc_lake.silver.transforms import BLIND, MATCHES, NOT_SENT, Projection, analyze_expression, moves
from cdc_lake.silver.transforms import Expression as Analysed
from cdc_lake.tables.types import literal, quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from cdc_lake.tables.types import SilverColumn


PARTS_AT_MOST: Final = 64
"""Partitions that a MERGE names; if a span touches more of them, it reads all."""

_WHOLE: Final = frozenset({"smallint", "int", "bigint", "string", "date", "boolean"})
"""Types whose text is read back as the same value."""


@dataclass(frozen=True, slots=True)
class KeyPart:
    """`of_change`: SQL for a change, the partition of its key as text; `of_row`: SQL for the table's row `t`, of type
    `type`.
    """

    of_change: str
    of_row: str
    type: str

    def condition(self, touched: Sequence[str]) -> str | None:
        """The condition that every row in one of the partitions meets; None if they are too many."""
        if len(touched) > PARTS_AT_MOST:
            return None
        values = (f"CAST({literal(text)} AS {self.type})" for text in sorted(touched))
        return f"{self.of_row} IN ({', '.join(values)})"


def key_parts(project: Project, target: Target, shape: RelationMapping) -> tuple[KeyPart, ...]:
    """How a table is partitioned by its key; `shape` has the source's columns. A nullable key is not used."""
    keys = {
        target.transforms.silver_name(column.name, column.name): column
        for index, column in enumerate(shape.key_columns)
        if index not in shape.nullable and column.type in _WHOLE and shape.row_key(index, "x") == "x"
    }
    parts = []
    for partition in map(Partition.parse, target.partition_by):
        if (column := keys.get(partition.column)) is None or partition.transform not in {"", "bucket", "truncate"}:
            continue
        of_change, of_row = quote_identifier(column.name), f"t.{quote_identifier(partition.column)}"
        kind = "int" if partition.transform == "bucket" else column.type
        if partition.transform:
            call = f"{project.pipeline.lake.iceberg.catalog}.system.{partition.transform}({partition.number}, "
            of_change, of_row = f"{call}{of_change})", f"{call}{of_row})"
        parts.append(KeyPart(f"CAST({of_change} AS STRING)", of_row, kind))
    return tuple(parts)


def reads(rule: Expression, shape: RelationMapping, where: str = "") -> frozenset[int]:
    """The positions of the columns that the expression of a rule reads. Raises RuleDoesNotFit."""
    place = where or f"rule {rule_name(rule)}"
    try:
        analysis = _analyse_expression(tuple(shape.columns), rule.expression)
    except TransformUnfit as unfit:
        raise RuleDoesNotFit(unfit.message, where=place) from unfit
    if analysis.type != "boolean":
        raise RuleDoesNotFit(f"the expression must be boolean, but is of type {analysis.type}", where=place)
    return frozenset(index for index, column in enumerate(shape.columns) if column.name in analysis.reads)


def substitute_columns(sql: str, by: Mapping[str, str]) -> str:
    """Replace columns of the expression by name (case-insensitive) with SQL."""
    replacements = {name.casefold(): text for name, text in by.items()}
    result, position = "", 0
    for name, start, end in _names(sql) if replacements else ():
        if name.casefold() in replacements:
            result, position = f"{result}{sql[position:start]}{replacements[name.casefold()]}", end
    return result + sql[position:]


@lru_cache(maxsize=512)
def _analyse_expression(columns: tuple[SilverColumn, ...], sql: str) -> Analysed:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the receiver has no Spark

    return analyze_expression(SparkSession.active(), columns, sql, "")


@lru_cache(maxsize=512)
def _names(sql: str) -> tuple[tuple[str, int, int], ...]:
    """The columns that an expression names, each with the start and end of its name in the text."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    session: Any = SparkSession.active()
    parser = session._jsparkSession.sessionState().sqlParser()  # noqa: SLF001 - pyspark shows no parser
    return tuple(sorted(_find_columns(parser.parseExpression(sql), frozenset()), key=lambda reference: reference[1]))


def _find_columns(node: Any, bound: frozenset[str]) -> Iterator[tuple[str, int, int]]:
    """The columns below a node. Inside a lambda `x -> …` the parser treats every name as one of its variables."""
    kind = node.getClass().getSimpleName()
    if kind == "LambdaFunction":
        bound = bound | {variable.nameParts().head().casefold() for variable in _to_list(node.arguments())}
        yield from _find_columns(node.function(), bound)
        return
    if kind in {"UnresolvedAttribute", "UnresolvedNamedLambdaVariable"}:
        name, origin = node.nameParts().head(), node.origin()
        if name.casefold() not in bound:
            yield name, origin.startIndex().get(), origin.stopIndex().get() + 1
    for child in _to_list(node.children()):
        yield from _find_columns(child, bound)


def _to_list(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


_INTEGERS = {"smallint", "int", "bigint"}


@dataclass(frozen=True, slots=True)
class SpanProfile:
    """What a span contains.

    `moved`: updates that change the key, whether or not a filter accepts both rows; `nulls`: changes of a key with a
    NULL part; `failing`: changes to be held; `lacking`: changes with an evaluated value that was not sent; `stop`:
    position and name of the first violated `stop` rule; `bounds`: smallest and largest value of an integer first key
    column, None if keys move; `parts`: conditions on the touched partitions, none if keys move.
    """

    counts: tuple[RuleCount, ...]
    moved: int
    nulls: int
    failing: int
    lacking: int
    stop: tuple[int, str] | None
    bounds: tuple[int, int] | None
    parts: tuple[str, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether nothing has to be followed: the span can be folded by key."""
        return not (self.moved or self.nulls or self.failing or self.lacking)


UNJUDGED = SpanProfile((), 0, 0, 0, 0, None, None)
"""The profile if nothing is evaluated."""


def conditions(
    target: Target, part: TablePart, projection: Projection, *, completed: bool = False, deletes: bool = False
) -> list[Condition]:
    """A table's conditions, for changes with the columns of its source.

    `completed`: unsent values are in `_cdc_judged_<n>`, and `_cdc_blind` marks those that are unknown; `deletes`: the
    old row of a delete is stored too, so it must have a silver value.
    """
    rules = _rules(target, projection, part.unsent, completed=completed)
    if part.released:
        rules = [replace(rule, fails=rule.fails & ~let_through()) for rule in rules]
    result = [*rules, *_misfits(projection, deletes=deletes)]
    needed = (projection.needed_columns | foreign(target, projection)) & part.unsent
    if needed and projection.transforms.any and not deletes:
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 - names and counts need no Spark

        blind = F.col(BLIND) if completed else F.lit(False)
        result.append(Condition(NOT_SENT, "quarantine", blind, needed))
    return result


def let_through() -> Column:
    """Whether a quarantined change is applied now because it was released."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - names and counts need no Spark

    return F.col(ORDINAL) < CEILING


def foreign(target: Target, projection: Projection) -> frozenset[int]:
    """Columns that an expression or a rule reads and that silver lacks: only a change contains them."""
    judged_ = {column for rule in target.row_rules for column in _read(rule, projection)}
    return (projection.needed_columns | judged_) - frozenset(projection.kept_columns)


def _read(rule: RowRule, projection: Projection) -> frozenset[int]:
    """The positions of the existing columns that a rule evaluates."""
    if isinstance(rule, Expression):
        return reads(rule, projection.source)
    column = projection.source.position(rule.column)
    return frozenset() if column is None else frozenset({column})


def _rules(target: Target, projection: Projection, unsent: frozenset[int], *, completed: bool) -> list[Condition]:
    result = []
    for rule in target.row_rules:
        read = _read(rule, projection)
        if isinstance(rule, Expression):
            failing = _false(rule, projection, read & unsent, completed=completed)
        elif not read:
            where = f"{target.label}, rule {rule_name(rule)}"
            raise RuleColumnMissing(f"there is no column `{rule.column}` in {target.source}", where=where)
        else:
            (index,) = read
            column = projection.source.columns[index]
            failing = _of_rows(fails(rule, column.type, _value(index, projection, unsent, completed=completed)))
        result.append(Condition(rule_name(rule), rule.on_fail, _matching(failing, projection), read))
    return result


def _value(column: int, projection: Projection, unsent: frozenset[int], *, completed: bool) -> Column:
    """The evaluated value of a column: the one after the change."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - names and counts need no Spark

    if completed and column in unsent:
        return F.col(judged_column(column))
    return F.col(quote_identifier(projection.source.columns[column].name))


def _false(rule: Expression, projection: Projection, unsent: frozenset[int], *, completed: bool) -> Column:
    """Whether an expression is false. It is not evaluated if it might raise: without a row, or with unknown values."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    columns = {index: projection.source.columns[index] for index in sorted(unsent)}
    has_row = F.col(OP).isin("I", "U")
    if not completed:
        return holds_not(rule.expression, has_row & ~any_of([~F.col(known_column(index)) for index in columns]))
    by = {
        column.name: f"CAST({quote_identifier(judged_column(index))} AS {column.type})"
        for index, column in columns.items()
    }
    return holds_not(
        substitute_columns(rule.expression, by),
        has_row & ~any_of([~F.col(value_known_column(index)) for index in columns]),
    )


def _misfits(projection: Projection, *, deletes: bool) -> list[Condition]:
    """Texts without an exact silver value: they are held or stop the run, and are never truncated or NULL. Columns that
    silver does not have may contain anything.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    result, shape = [], projection.source
    for index, column in enumerate(shape.columns):
        if index in projection.used and shape.may_misfit(index):
            misfit = _of_rows(~F.col(fits(index)), *("D" * deletes))
            if index not in projection.condition and not deletes:
                misfit = _matching(misfit, projection)
            if shape.old_values and index in projection.kept_columns:
                misfit = misfit | ~F.col(fits_old(index))
            result.append(Condition(f"type_{column.name}", shape.types.misfit, misfit, frozenset()))
    return result


def _matching(fails_: Column, projection: Projection) -> Column:
    """Restrict a condition to rows that silver accepts."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return fails_ if projection.where is None else fails_ & F.col(MATCHES)


def survey(
    changes: DataFrame,
    target: Target,
    part: TablePart,
    judge: Sequence[Condition],
    summary: SpanSummary,
    parts: Sequence[KeyPart] = (),
) -> SpanProfile:
    """Count in one Spark job, or without a job if there is nothing to count. `parts`: see `key_parts`.

    Nearly every column has the condition that its values convert; the columns are counted only if some value fails.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    shape = part.shape
    first = shape.key_columns[0] if shape.keys else shape.columns[0]
    bounded = bool(shape.keys) and first.type in _INTEGERS and not summary.truncates and 0 not in shape.nullable
    parts = () if summary.truncates else parts
    if not judge and not summary.olds and not bounded and not shape.nullable and not parts:
        return UNJUDGED
    unsent = {
        column
        for c in judge
        for column in c.columns
        if known_column(column) in changes.columns and judged_column(column) not in changes.columns
    }
    lacking = any_of([(F.col(OP) != "D") & ~F.col(known_column(column)) for column in sorted(unsent)])
    quarantined = any_of([c.fails for c in judge if c.on_fail == "quarantine"])
    wanted = {
        "moved": F.count_if(moves(changes)),
        "nulls": F.count_if(has_null()) if shape.nullable else F.lit(0),
        "judged": F.count_if((F.col(OP) != "D") & (F.col(MATCHES) if MATCHES in changes.columns else F.lit(True))),
        "lacking": F.count_if(lacking),
        "failing": F.count_if(quarantined),
        "misfits": F.count_if(any_of([c.fails for c in judge if not c.columns])),
        "low": F.min(quote_identifier(first.name)) if bounded else F.lit(None),
        "high": F.max(quote_identifier(first.name)) if bounded else F.lit(None),
    }
    for n, key_part in enumerate(parts):
        wanted[f"part_{n}"] = F.collect_set(F.expr(key_part.of_change))
    for n, condition in enumerate(judge):
        wanted |= _condition_counts(n, condition) if condition.columns else {}
    row = _aggregate_changes(changes, wanted)
    rare = [
        _condition_counts(n, condition) for n, condition in enumerate(judge) if row["misfits"] and not condition.columns
    ]
    row |= _aggregate_changes(changes, reduce(or_, rare)) if rare else {}
    stops = [(row[f"stop_{n}"], c.name) for n, c in enumerate(judge) if row.get(f"stop_{n}") is not None]
    return SpanProfile(
        counts=tuple(
            RuleCount(target.label, c.name, c.on_fail, row["judged"], row.get(f"failed_{n}", 0))
            for n, c in enumerate(judge)
        ),
        moved=row["moved"],
        nulls=row["nulls"],
        failing=row["failing"],
        lacking=row["lacking"],
        stop=min(stops) if stops else None,
        # A row that moves is deleted at its old key, which no change of the span may have as its own.
        bounds=None if row["low"] is None or row["moved"] else (row["low"], row["high"]),
        parts=() if row["moved"] else tuple(filter(None, (p.condition(row[f"part_{n}"]) for n, p in enumerate(parts)))),
    )


def _condition_counts(number: int, condition: Condition) -> dict[str, Column]:
    """The aggregates that count a condition."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    counts = {f"failed_{number}": F.count_if(condition.fails)}
    if condition.on_fail == "stop":
        counts[f"stop_{number}"] = F.min(F.when(condition.fails, F.col(POSITION)))
    return counts


def _aggregate_changes(changes: DataFrame, wanted: Mapping[str, Column]) -> dict[str, Any]:
    row = changes.agg(*(column.alias(name) for name, column in wanted.items())).first()
    assert row is not None  # an aggregate without groups has one row
    return dict(row.asDict())


def has_null() -> Column:
    """Whether a change touches a key with a NULL part."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return any_of([F.coalesce(F.exists(name, lambda part: part.isNull()), F.lit(False)) for name in (FROM, TO)])


def _of_rows(fails_: Column, *also: str) -> Column:
    """Restrict a condition to changes with a row: a delete has none to evaluate, nor has a truncate."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return F.col(OP).isin("I", "U", *also) & fails_
