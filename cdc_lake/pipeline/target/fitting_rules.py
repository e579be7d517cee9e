"""Rules against the columns of their table, before its first row: every problem with its place in the pipeline file."""

from __future__ import annotations

from collections.abc import Iterator

from cdc_lake.config.project import Project, Target
from cdc_lake.config.rules import Expression, RowRule
from cdc_lake.errors import QualityError, RuleColumnMissing
from cdc_lake.pipeline.target.rule_expressions import reads
from cdc_lake.quality.rules import check_rule
from cdc_lake.silver.shape import Shape


def check_fit(project: Project, target: Target, shape: Shape) -> None:
    """Raise QualityError for the first rule that cannot judge rows of `shape`. Expressions need Spark."""
    for problem in misfits(project, target, shape, expressions=True):
        raise problem


def misfits(project: Project, target: Target, shape: Shape, *, expressions: bool) -> Iterator[QualityError]:
    """What is wrong with each rule of rows that cannot judge rows of `shape`."""
    for at, rule in enumerate(target.rules):
        if not isinstance(rule, RowRule) or (isinstance(rule, Expression) and not expressions):
            continue
        key = "expression" if isinstance(rule, Expression) else "column"
        try:
            _fits(rule, shape, place := project.place(target, f"rules[{at}].{key}"))
        except QualityError as problem:
            problem.where = place
            yield problem


def _fits(rule: RowRule, shape: Shape, place: str) -> None:
    if isinstance(rule, Expression):
        reads(rule, shape, place)
        return
    column = shape.position(rule.column)
    if column is None:
        raise RuleColumnMissing(f"there is no column `{rule.column}` in {shape.relation.table}", where=place)
    check_rule(rule, shape.columns[column].type)
