"""The doctor says which rule cannot judge its column, with its place in the file, before anything runs."""

from __future__ import annotations

from pathlib import Path

from cdc_lake.config.loader import load_project
from cdc_lake.model.relation import TableName
from cdc_lake.ops.check.runner import expectations, of_table
from cdc_lake_testing.messages import table

T = table("public.t", id="int4", amount="numeric", body="text")
HEAD = (
    "version: 1\npipeline: shop\n"
    'source: {type: postgres, host: h, database: d, user: u, tables: ["public.*"]}\n'
    "silver:\n  tables:\n    - from: public.t\n      rules:\n"
)


def said(tmp_path: Path, *rules: str) -> list[tuple[bool | None, str, str]]:
    file = tmp_path / "shop.yaml"
    file.write_text(HEAD + "".join(f"        - {rule}\n" for rule in rules))
    project = load_project(file)
    lines = of_table(project, project.target(TableName("public", "t")), T)
    return [(line.ok, line.code, line.text.rpartition("shop.yaml:")[2]) for line in lines]


def test_every_rule_that_does_not_fit_is_told_with_line_and_column(tmp_path: Path) -> None:
    found = said(
        tmp_path,
        "{rule: not_null, column: id}",
        "{rule: between, column: amount, min: 0}",
        "{rule: type_castable, column: id, type: int}",
        "{rule: in_set, column: gone, values: [a]}",
        "{rule: expression, expression: gone > 1}",
        "{rule: unique, columns: [gone]}",
    )
    assert [(ok, code) for ok, code, _ in found] == [(False, "QUA502"), (False, "QUA502"), (False, "QUA503")]
    assert found[0][2].startswith("9:35: `between` does not fit column `amount` of type string")
    assert found[1][2].startswith("10:41: `type_castable` does not fit column `id`")
    assert found[2][2] == "11:34: there is no column `gone` in public.t"


def test_rules_that_fit_are_said_to(tmp_path: Path) -> None:
    found = said(tmp_path, "{rule: regex, column: body, pattern: a}", "{rule: length, column: body, max: 5}")
    assert found == [(True, "", "silver.t: every rule fits its column")]


def test_an_argument_that_an_expectation_does_not_take_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    mean = "rule: expectation, expectation: expect_column_mean_to_be_between"
    rules = (
        f"{{{mean}, name: good, arguments: {{column: id, max_value: 3}}}}",
        f"{{{mean}, name: typo, arguments: {{colum: id, max_value: 3}}}}",
        f"{{{mean}, name: text, arguments: {{column: id, max_value: high}}}}",
    )
    file.write_text(HEAD + "".join(f"        - {rule}\n" for rule in rules))
    project = load_project(file)
    typo, text = expectations(project, project.target(TableName("public", "t")))
    assert (typo.ok, typo.code) == (text.ok, text.code) == (False, "QUA502")
    assert "shop.yaml:9:" in typo.text
    assert typo.text.endswith(
        "does not accept these arguments: `column` field required; `colum` extra fields not permitted"
    )
    assert "shop.yaml:10:" in text.text
    assert "`max_value` " in text.text
