"""What `check` and `plan` print of many tables: problems first, on a screen, all of it with `-v`."""

from __future__ import annotations

from cdc_lake.cli.commands.status import ledger_text
from cdc_lake.cli.text import check_text, plan_text
from cdc_lake.connectors.base import Action, ActionKind
from cdc_lake.ops.findings import CheckLine
from cdc_lake.ops.plan import ColumnLedger, Loss, Plan, TableLedger

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


def table(number: int, loss: Loss) -> TableLedger:
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
    ledger = [table(n, Loss.REFUSED if n == MANY - 1 else Loss.CONVERTED) for n in range(MANY)]
    text = ledger_text(ledger, colour=False, verbose=False)
    assert f"types of public.t{MANY - 1} →" in text
    assert f"types of {MANY - 1} more tables: `cdc-lake check -v`" in text
    assert len(text.splitlines()) < SCREEN / 2
    assert ledger_text(ledger, colour=False).count("types of public.") == MANY
    assert ledger_text(ledger[:3], colour=False, verbose=False) == ledger_text(ledger[:3], colour=False)
