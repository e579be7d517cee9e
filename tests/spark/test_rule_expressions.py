"""Rules that are expressions: judged over the whole row, also where a change did not send all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc_lake.config.loader import load_project
from cdc_lake.config.rules import Expression
from cdc_lake.errors import RuleDoesNotFit
from cdc_lake.model.change import UNCHANGED, Update
from cdc_lake.model.relation import TableName
from cdc_lake.runtime.apply.rule_gate import reads, substitute_columns
from cdc_lake.runtime.apply.schema_changes import misfits
from cdc_lake.silver.layout_mapping import make_shape

from .formats import either
from .test_apply_cases import Lake, T, insert, row

pytestmark = pytest.mark.spark

SHAPE = make_shape([T.layout], {T.layout: T}, None)


def expression(sql: str, **more: object) -> Expression:
    return Expression.model_validate({"rule": "expression", "expression": sql, **more})


# The gate comes before the format; of that it needs the rows that are there.
@either("delta")
def test_an_expression_reads_what_a_change_did_not_send(spark: Any, lake_root: Path, fmt: str) -> None:
    rules = [
        {
            "rule": "expression",
            "name": "short",
            "expression": "Amount < 10 OR length(`BODY`) < 3",
            "on_fail": "quarantine",
        },
        # Of a value that is not known yet it would raise: a division by zero stops a table.
        {"rule": "expression", "name": "whole", "expression": "amount / coalesce(length(body), 0) < 100"},
    ]
    lake = Lake(lake_root, spark, "expressions", fmt, rules)
    lake.land(insert("1", "5", "large"), insert("2", "5", "b"), insert("3", None, "large"), insert("4", "50", "large"))
    lake.advance()
    assert lake.rows() == [row(1, 5, "large"), row(2, 5), row(3, None, "large")]  # NULL is not false
    lake.land(Update(T, ("1", "50", UNCHANGED)), Update(T, ("2", "500", UNCHANGED)), Update(T, ("3", "9", UNCHANGED)))
    lake.advance()
    assert lake.rows() == [row(1, 5, "large"), row(2, 500), row(3, 9, "large")]
    assert lake.quarantined() == [("failed", ["short"]), ("failed", ["short"])]


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("amount >", "Spark rejects"),
        ("gone > 1", "cannot be resolved"),
        ("amount + 1", "must be boolean"),
        ("sum(amount) > 1", "use a single row"),
        ("rand() < 2", "not deterministic"),
    ],
)
def test_an_expression_that_is_none_is_refused(spark: Any, sql: str, words: str) -> None:
    with pytest.raises(RuleDoesNotFit, match=words):
        reads(expression(sql), SHAPE)


def test_what_is_refused_comes_with_file_line_and_column(spark: Any, tmp_path: Path) -> None:
    file = tmp_path / "pipelines" / "shop.yaml"
    file.parent.mkdir()
    file.write_text(
        "version: 1\npipeline: shop\n"
        'source: {type: postgres, host: h, database: d, user: u, tables: ["public.*"]}\n'
        "silver:\n  tables:\n    - from: public.t\n      rules:\n"
        "        - {rule: not_null, column: id}\n"
        '        - {rule: expression, expression: "amuont > 1"}\n'
        "        - {rule: between, column: body, min: 1}\n"
        "        - {rule: unique, columns: [id]}\n"
        "        - {rule: regex, column: gone, pattern: a}\n"
    )
    project = load_project(file)
    found = list(misfits(project, project.target(TableName("public", "t")), SHAPE, expressions=True))
    places = [(one.code, one.where.rpartition("shop.yaml:")[2]) for one in found]
    assert places == [("QUA502", "9:42"), ("QUA502", "10:35"), ("QUA503", "12:33")]
    assert "amuont" in found[0].message


def test_only_names_of_columns_are_put_in_place_of_each_other(spark: Any) -> None:
    by = {"amount": "_a", "body": "_b"}
    assert substitute_columns("amount < 10 OR `BODY` = 'amount'", by) == "_a < 10 OR _b = 'amount'"
    assert substitute_columns("exists(array(1), body -> body > Amount)", by) == "exists(array(1), body -> body > _a)"
    assert substitute_columns(
        "exists(array(1), body -> body > 1 AND exists(array(2), y -> y > body + amount))", by
    ) == ("exists(array(1), body -> body > 1 AND exists(array(2), y -> y > body + _a))")
    assert substitute_columns("id > 1", by) == "id > 1"
    assert reads(expression("amount < 10 OR `BODY` = 'id'"), SHAPE) == {1, 2}
