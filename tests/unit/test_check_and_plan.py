"""What `check` and `plan` find before anything runs, and how they print it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from cdc_lake.cli.commands.status import ledger_text
from cdc_lake.cli.text import check_text, plan_text
from cdc_lake.config.loader import load_project
from cdc_lake.connectors.base import Action, ActionKind
from cdc_lake.model.relation import TableName
from cdc_lake.ops.check.postgres import language_lines
from cdc_lake.ops.check.runner import expectations, of_table
from cdc_lake.ops.findings import CheckLine
from cdc_lake.ops.plan import ColumnLedger, Loss, Plan, TableLedger
from cdc_lake_testing.messages import table

MANY = 500
SCREEN = 40
GRANTS = "\n".join(f"GRANT SELECT ON t{n} TO cdc;" for n in range(MANY))
LINES = [
    *(CheckLine(ok=True, subject="rules", text=f"silver.t{n}: every rule fits its column") for n in range(MANY)),
    CheckLine(ok=None, subject="jars", text="not downloaded yet", fix="the first start downloads them"),
    *(
        CheckLine(ok=False, subject="identity", text=f"t{n} has no key", fix="add one", code="SRC223")
        for n in range(MANY)
    ),
    CheckLine(ok=False, subject="tables", text="no privilege to read 500 tables", fix=GRANTS, code="SRC224"),
]


def table_ledger(number: int, loss: Loss) -> TableLedger:
    columns = tuple(ColumnLedger(f"c{n}", "int4", f"c{n}", "int", loss) for n in range(5))
    return TableLedger(f"public.t{number}", f"silver.t{number}", columns)


def test_problems_stand_first_and_500_tables_fit_a_screen():
    text = check_text(LINES, 100, colour=False)
    lines = text.splitlines()
    assert len(lines) <= SCREEN
    assert lines[0].startswith("✗ identity")
    assert lines[-1] == "501 problems to fix"
    marks = [line[0] for line in lines if line and line[0] in "✗-✓"]
    assert marks == sorted(marks, key="✗-✓".index)
    assert "… and 495 more of this kind: `cdc-lake check -v`" in text
    assert "… 495 more lines: `cdc-lake check --sql` prints them" in text


def test_verbose_prints_all_and_quiet_what_is_to_be_fixed():
    all_of_it = check_text(LINES, 100, colour=False, verbose=True)
    assert all(f" t{n} has no key" in all_of_it for n in range(MANY))
    assert GRANTS.splitlines()[-1] in all_of_it
    quiet = check_text(LINES, 100, colour=False, quiet=True)
    assert {line[0] for line in quiet.splitlines() if line and line[0] in "✗-✓"} == {"✗"}
    assert check_text(LINES[:MANY], 100, colour=False, quiet=True) == "ready: `cdc-lake run`"


def test_a_plan_of_500_tables_fits_a_screen_with_what_is_destructive_first():
    copies = [Action(ActionKind.SNAPSHOT, f"t{n}", f"snapshot t{n}: about 2 rows", rows=2) for n in range(MANY)]
    drop = Action(ActionKind.DROP_COLUMN, "silver.t1", "drop column a of silver.t1", destructive=True)
    lines = plan_text(Plan("shop", (*copies, drop))).splitlines()
    assert len(lines) <= SCREEN
    assert lines[2] == "  ! drop column a of silver.t1"
    assert f"    … and {MANY - 5} more of this kind, about 990 rows: `cdc-lake plan -v`" in lines
    assert len(plan_text(Plan("shop", tuple(copies)), verbose=True).splitlines()) > MANY


def test_of_many_tables_the_ledger_shows_those_in_which_something_is_refused():
    ledger = [table_ledger(n, Loss.REFUSED if n == MANY - 1 else Loss.CONVERTED) for n in range(MANY)]
    text = ledger_text(ledger, colour=False, verbose=False)
    assert f"types of public.t{MANY - 1} →" in text
    assert f"types of {MANY - 1} more tables: `cdc-lake check -v`" in text
    assert len(text.splitlines()) < SCREEN / 2
    assert ledger_text(ledger, colour=False).count("types of public.") == MANY
    assert ledger_text(ledger[:3], colour=False, verbose=False) == ledger_text(ledger[:3], colour=False)


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


@pytest.mark.parametrize("messages", ["", "C", "C.UTF-8", "POSIX", "en_US.UTF-8", "English_United States.1252"])
def test_english_is_no_finding(messages: str) -> None:
    assert list(language_lines(messages)) == []


@pytest.mark.parametrize("messages", ["ru_RU.UTF-8", "zh_CN", "Russian_Russia.1251"])
def test_another_language_is_warned_of(messages: str) -> None:
    (line,) = language_lines(messages)
    assert line.ok is None
    assert messages in line.text
    assert "lc_messages = 'C'" in line.fix


ADD = Action(ActionKind.ADD_COLUMN, "s.t", "add column a int to s.t")
DROP = Action(ActionKind.DROP_COLUMN, "s.t", "drop column it's of s.t", destructive=True)
RENAME = Action(ActionKind.RENAME_COLUMN, "s.t", "rename column b of s.t to c", destructive=True)
REMAKE = Action(ActionKind.REMAKE, "s.u", "s.u was made otherwise: it waits for `cdc-lake rebuild`", destructive=True)


def test_the_command_that_plan_ends_with_allows_all_that_waits_for_it() -> None:
    planned = Plan("shop", (ADD, DROP, RENAME))
    _, _, command = plan_text(planned).partition("! 2 destructive actions: not carried out unless allowed:\n")
    words = shlex.split(command.replace("\\\n", ""))
    assert words[:2] == ["cdc-lake", "run"]
    assert (set(words[2::2]), tuple(words[3::2])) == ({"--allow"}, planned.waiting)
    assert planned.waiting == (DROP.text, RENAME.text)


def test_what_only_a_rebuild_does_is_not_offered_to_be_allowed() -> None:
    assert plan_text(Plan("shop", (REMAKE,))).splitlines()[-1] == "! 1 rebuild needed, which a run does not do"
    copied = replace(REMAKE, kind=ActionKind.COPY_AGAIN)
    told = plan_text(Plan("shop", (copied,))).splitlines()[-1]
    assert told == "! 1 operation that need a new copy of the table"
    both = plan_text(Plan("shop", (DROP, REMAKE))).splitlines()
    assert both[-3:] == [
        "! 1 destructive action: not carried out unless allowed:",
        f"  cdc-lake run --allow {shlex.quote(DROP.text)}",
        "! 1 rebuild needed, which a run does not do",
    ]


def test_a_plan_that_loses_nothing_says_so() -> None:
    goes_on = Action(ActionKind.RESUME, "shop", "resume slot `shop`", changes=False)
    assert plan_text(Plan("shop", (ADD,))).endswith("\nnothing destructive; `cdc-lake run` carries it out")
    assert plan_text(Plan("shop", (goes_on,))).endswith("\nnothing to create or alter")
    assert plan_text(Plan("shop", ())) == "nothing to do: shop is up to date"
