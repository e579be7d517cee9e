"""A table's transforms against its source's layout, before its first row."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cdc_lake.config.project import Project, Target
from cdc_lake.config.rules import Expression
from cdc_lake.errors import TransformUnfit
from cdc_lake.silver.expressions import analysed
from cdc_lake.silver.kind import Kind, RowIdentity
from cdc_lake.silver.own_columns import with_own
from cdc_lake.silver.projection import Projection, plain, silver_shape
from cdc_lake.silver.shape import Shape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_possible(project: Project, target: Target, kind: Kind) -> None:
    """Raise TransformUnfit for transforms of a table whose rows only all their values identify."""
    if target.transforms.any and kind.identity is RowIdentity.CONTENT:
        where = project.written(target, "from")
        raise TransformUnfit(f"{target.source} has no key, and transforms need one, or `kind: append`", where=where)


def projection_of(spark: SparkSession, project: Project, target: Target, shape: Shape) -> Projection:
    """What silver makes of a row of `shape`. Raises TransformUnfit, with the place in the pipeline file, NameTaken."""
    given = target.transforms
    if not given.any:
        return plain(shape)

    def place(key: str) -> str:
        return project.written(target, key)

    computed = {name: analysed(spark, shape.columns, sql, place(f"compute.{name}")) for name, sql in given.compute}
    where = None if given.where is None else analysed(spark, shape.columns, given.where, place("where"))
    if where is not None and where.type != "boolean":
        raise TransformUnfit(f"`where` has to be true or false, and is of type {where.type}", where=place("where"))
    types = {name: one.type for name, one in computed.items()}
    silver = silver_shape(shape, given, types, target.label, place)
    with_own(silver.source)  # the source's columns stand beside working columns on the way
    return Projection(silver.source, silver, given, where, tuple(computed.values()))


def named_columns(target: Target) -> frozenset[str]:
    """The columns of the source that a table's settings name, besides those that expressions and rules read."""
    given = target.transforms
    renamed, typed = (source for source, _ in given.rename), (name for name, _ in target.types.columns)
    return frozenset((*(given.columns or ()), *given.exclude, *renamed, *typed))


def words_read(target: Target) -> frozenset[str]:
    """All words of a table's expressions and the columns of its rules, in lower case: a column that is not among them
    is read by none. Which of the words are columns, Spark's analyser says.
    """
    given = target.transforms
    texts = [given.where or "", *(sql for _, sql in given.compute)]
    texts += [rule.expression for rule in target.row_rules if isinstance(rule, Expression)]
    judged = {rule.column.casefold() for rule in target.row_rules if not isinstance(rule, Expression)}
    return frozenset(re.findall(r"\w+", " ".join(texts).casefold())) | judged
