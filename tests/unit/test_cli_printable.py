"""What is written to a terminal gives it no commands, whatever a table is called."""

from __future__ import annotations

import io
import random
import sys
import unicodedata

import pytest

from cdc_lake.cli import output
from cdc_lake.cli.output import CommandOutput, OutputOptions
from cdc_lake.cli.text import GREEN, RESET, table
from cdc_lake.model.diagnostic import printable
from cdc_lake.observability.events import ProgressEvent
from tests.odd_names import odd_text
from tests.seeds import one_seed

CLEARS = "a\x1b[2Jb"


def test_names_of_people_stay_as_they_are() -> None:
    for name in ("größe", "日本", "имя", "e\u0301", "😀", "a\u00a0b", "`;'\"\\"):
        assert printable(name) == name


def test_commands_are_escaped_and_line_feeds_where_a_line_is_asked_for() -> None:
    assert printable(f"{CLEARS}\u202e\u2028\x9b\n") == "a\\x1b[2Jb\\u202e\\u2028\\x9b\n"
    assert printable("a\nb\tc", keep="") == "a\\nb\\tc"


def test_only_colours_pass_and_only_where_there_is_colour() -> None:
    text = f"{GREEN}live{RESET} {CLEARS}"
    assert printable(text, colour=True) == f"{GREEN}live{RESET} a\\x1b[2Jb"
    assert "\x1b" not in printable(text)


def test_a_row_of_a_table_is_one_line() -> None:
    seed = one_seed()
    print(f"CDC_LAKE_SEED={seed}")
    dice = random.Random(seed)
    for _ in range(200):
        rows = [[odd_text(dice), odd_text(dice)] for _ in range(3)]
        lines = table(rows)
        assert len(lines) == len(rows)
        assert all(len(line.splitlines()) <= 1 for line in lines)  # none of a row of blanks alone
        assert not [one for line in lines for one in line if unicodedata.category(one)[0] == "C"]


def test_results_and_narration_are_printable(monkeypatch: pytest.MonkeyPatch) -> None:
    output.forget_log()  # of a test before this one
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    view = CommandOutput(OutputOptions(), "status")
    view.result(None, f"table {CLEARS}\n")
    view.report(ProgressEvent("copy", f"copying {CLEARS}"))
    assert "table a\\x1b[2Jb" in out.getvalue()
    assert "copying a\\x1b[2Jb" in err.getvalue()
    assert "\x1b" not in out.getvalue() + err.getvalue()
