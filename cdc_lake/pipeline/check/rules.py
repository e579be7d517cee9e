"""The doctor's look at rules: whether the columns they judge are there, and of types that they can judge."""

from __future__ import annotations

from collections.abc import Iterator

from cdc_lake.config.project import Project, Target
from cdc_lake.config.rules import Expectation, rule_name
from cdc_lake.errors import CdcLakeError, QualityEngineMissing, QualityError
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.pipeline.check.captured import captured, shape_of
from cdc_lake.pipeline.check.line import CheckLine
from cdc_lake.pipeline.target.fitting_rules import misfits
from cdc_lake.quality.table_suite import made


def rules(project: Project) -> Iterator[CheckLine]:
    """Every rule that cannot judge its column. What an expression reads comes with the first row: Spark says it."""
    for one in project.pipeline.silver.tables:
        yield from expectations(project, project.target(TableName.parse(one.from_)))
    for target, layout in captured(project, lambda one: bool(one.row_rules)):
        yield from of_table(project, target, layout)


def expectations(project: Project, target: Target) -> Iterator[CheckLine]:
    """What is to be said of the expectations that a table's rules name: each is made, none is run."""
    for at, rule in enumerate(target.rules):
        if not isinstance(rule, Expectation):
            continue
        try:
            made(rule)
        except QualityEngineMissing as missing:
            text = f"{target.label}, rule {rule_name(rule)}: {missing.message}; reports made here cannot judge it"
            yield CheckLine(ok=None, subject="rules", text=text, fix=missing.remedy)
        except QualityError as problem:
            text = f"{project.place(target, f'rules[{at}].expectation')}: {problem.message}"
            yield CheckLine(ok=False, subject="rules", text=text, fix=problem.remedy, code=problem.code)


def of_table(project: Project, target: Target, layout: Relation) -> Iterator[CheckLine]:
    """What is to be said of a table's rules, by its layout."""
    try:
        shape = shape_of(target, layout)
    except CdcLakeError:
        return  # no key: said elsewhere
    wrong = list(misfits(project, target, shape, expressions=False))
    for problem in wrong:
        text = f"{problem.where}: {problem.message}"
        yield CheckLine(ok=False, subject="rules", text=text, fix=problem.remedy, code=problem.code)
    if not wrong:
        yield CheckLine(ok=True, subject="rules", text=f"{target.label}: every rule fits its column")
