"""Expressions of a pipeline file, put before Spark's analyser: what type they are of, and which columns they read.

An expression belongs to one row and gives the same value whenever it is worked out: anything else would make silver
depend on when it was merged. So aggregates, windows, generators, subqueries, random numbers, clocks and users are
refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from cdc_lake.errors import TransformUnfit
from cdc_lake.lake.store import SilverColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OF_ONE_RUN: Final = frozenset(
    {
        "CurrentTimestamp",
        "CurrentDate",
        "CurrentTime",
        "LocalTimestamp",
        "Now",
        "CurrentBatchTimestamp",
        "CurrentUser",
        "CurrentCatalog",
        "CurrentDatabase",
        "CurrentTimeZone",
        "SparkVersion",
        "RaiseError",
    }
)
"""Spark's classes of what it takes for deterministic because it is the same within one query."""

_NO_COLUMN: Final = ("void", "interval", "variant")
"""Types that not both formats can store."""


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression that may be used: its Spark SQL type, and the columns it reads, by name."""

    sql: str
    type: str
    reads: frozenset[str]


@lru_cache(maxsize=512)
def analysed(spark: SparkSession, columns: tuple[SilverColumn, ...], sql: str, where: str) -> Expression:
    """Check an expression over `columns`; `where` is its place in the file. Raises TransformUnfit."""
    from pyspark.errors import AnalysisException, ParseException  # noqa: PLC0415 - the receiver has no Spark
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    empty = spark.createDataFrame([], ", ".join(column.ddl for column in columns))
    try:
        frame = empty.select(F.expr(sql).alias("x"))
        plan: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - pyspark shows no plan as a value
    except (AnalysisException, ParseException) as cause:
        # Its first sentence, without the name of the class; the lines below quote the plan.
        said = re.sub(r"^\[[A-Z_.]+\]\s*|\s*SQLSTATE.*", "", str(cause).strip().splitlines()[0])
        raise TransformUnfit(f"Spark does not take the expression: {said}", where=where) from cause
    base: Any = empty._jdf.queryExecution().analyzed()  # noqa: SLF001
    _one_row(plan, base, where)
    kind = frame.schema[0].dataType.simpleString()
    if any(word in kind for word in _NO_COLUMN):
        raise TransformUnfit(f"the expression is of type {kind}, which a table cannot hold", where=where)
    # A column has the name there that the expression calls it by, which may be of other case.
    names = {column.name.casefold(): column.name for column in columns}
    reads = {node.name().casefold() for name, node in _nodes(plan) if name == "AttributeReference"}
    return Expression(sql, kind, frozenset(names[name] for name in reads & names.keys()))


def _one_row(plan: Any, base: Any, where: str) -> None:
    """Refuse what is not worked out from one row alone, or differs from run to run."""
    if plan.nodeName() != "Project" or plan.children().apply(0).nodeName() != base.nodeName():
        raise TransformUnfit("the expression is not of one row: no aggregate, window or generator", where=where)
    if not plan.subqueries().isEmpty():
        raise TransformUnfit("the expression holds a subquery: it can read its own row only", where=where)
    odd = {name for name, _ in _nodes(plan)} & _OF_ONE_RUN
    if odd or not plan.deterministic():
        which = f" ({', '.join(sorted(odd))})" if odd else ""
        raise TransformUnfit(f"the expression does not give the same value each time{which}", where=where)


def _nodes(plan: Any) -> Iterator[tuple[str, Any]]:
    """Spark's class of each part of the expression, and the part."""
    waiting = _each(plan.expressions())
    while waiting:
        node = waiting.pop()
        yield node.getClass().getSimpleName(), node
        waiting += _each(node.children())


def _each(sequence: Any) -> list[Any]:
    return [sequence.apply(at) for at in range(sequence.size())]
