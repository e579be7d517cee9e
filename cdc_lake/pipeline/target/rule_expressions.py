"""Expressions of rules at the gate: what they read, and their text over values that were completed.

An expression names the source's columns. Where a change did not send one of them, what is judged stands in a column of
another name (`silver.complete`): the one is put in the place of the other where Spark's parser finds it in the text.
What Spark's analyser says of an expression does not depend on the session, so it is asked once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from cdc_lake.config.rules import Expression, rule_name
from cdc_lake.errors import RuleDoesNotFit, TransformUnfit
from cdc_lake.silver.expressions import Expression as Analysed
from cdc_lake.silver.expressions import analysed

if TYPE_CHECKING:
    from cdc_lake.lake.store import SilverColumn
    from cdc_lake.silver.shape import Shape


def reads(rule: Expression, shape: Shape, where: str = "") -> frozenset[int]:
    """The positions of the columns that a rule's expression reads. Raises RuleDoesNotFit."""
    place = where or f"rule {rule_name(rule)}"
    try:
        found = _analysed(tuple(shape.columns), rule.expression)
    except TransformUnfit as unfit:
        raise RuleDoesNotFit(unfit.message, where=place) from unfit
    if found.type != "boolean":
        raise RuleDoesNotFit(f"the expression has to be true or false, and is of type {found.type}", where=place)
    return frozenset(at for at, column in enumerate(shape.columns) if column.name in found.reads)


def replaced(sql: str, by: Mapping[str, str]) -> str:
    """The expression with other columns in the place of some, by name; SQL for SQL, whatever the case of the names."""
    given = {name.casefold(): text for name, text in by.items()}
    out, done = "", 0
    for name, start, end in _names(sql) if given else ():
        if name.casefold() in given:
            out, done = f"{out}{sql[done:start]}{given[name.casefold()]}", end
    return out + sql[done:]


@lru_cache(maxsize=512)
def _analysed(columns: tuple[SilverColumn, ...], sql: str) -> Analysed:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the receiver has no Spark

    return analysed(SparkSession.active(), columns, sql, "")


@lru_cache(maxsize=512)
def _names(sql: str) -> tuple[tuple[str, int, int], ...]:
    """The columns that an expression names: each with where its name begins and ends in the text."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    session: Any = SparkSession.active()
    parser = session._jsparkSession.sessionState().sqlParser()  # noqa: SLF001 - pyspark shows no parser
    return tuple(sorted(_named(parser.parseExpression(sql), frozenset()), key=lambda one: one[1]))


def _named(node: Any, bound: frozenset[str]) -> Iterator[tuple[str, int, int]]:
    """The columns below a node. Inside a function `x -> …` the parser takes every name for one of its variables."""
    kind = node.getClass().getSimpleName()
    if kind == "LambdaFunction":
        bound = bound | {one.nameParts().head().casefold() for one in _each(node.arguments())}
        yield from _named(node.function(), bound)
        return
    if kind in {"UnresolvedAttribute", "UnresolvedNamedLambdaVariable"}:
        name, origin = node.nameParts().head(), node.origin()
        if name.casefold() not in bound:
            yield name, origin.startIndex().get(), origin.stopIndex().get() + 1
    for child in _each(node.children()):
        yield from _named(child, bound)


def _each(sequence: Any) -> list[Any]:
    return [sequence.apply(at) for at in range(sequence.size())]
