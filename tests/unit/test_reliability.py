"""The runner of the fault tests: what it adds up, and when it is red."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import reliability
from tests.reliability import PROMISES, ROOT, Promise, table, tried

KEPT = """\
from tests.tally import tally

def test_one():
    tally("R1", ["stalled"], kills=2)

def test_two():
    tally("R1", ["cut"], kills=3, changes=1000)
    tally("R2", kills=50)
"""


def promise(folder: Path, body: str, **least: int) -> Promise:
    file = folder / "test_of_a_promise.py"
    file.write_text(body)
    return Promise("R1", "nothing is lost", (str(file),), least)


def test_counts_of_all_tests_of_a_promise_are_added_up(tmp_path: Path) -> None:
    found = tried(promise(tmp_path, KEPT, kills=5), "a chance", small=False)
    assert found.verdict(small=False) == "green"
    assert (found.counts, found.faults) == ({"kills": 5, "changes": 1000}, ["cut", "stalled"])
    assert "| R1 | nothing is lost | 5 kills, 1,000 changes | cut, stalled |" in table([found], small=False)


def test_too_few_are_red_but_in_a_small_run(tmp_path: Path) -> None:
    found = tried(promise(tmp_path, KEPT, kills=6, restarts=1), "a chance", small=False)
    assert found.verdict(small=False) == "red: too few kills, restarts"
    assert found.verdict(small=True) == "green"


@pytest.mark.parametrize("body", [f"{KEPT}    assert False\n", "", "import nothing_of_the_kind\n"])
def test_a_test_that_fails_or_is_not_there_is_red(tmp_path: Path, body: str) -> None:
    found = tried(promise(tmp_path, body), "a chance", small=True)
    assert found.verdict(small=True) == "red: a test failed"


def test_the_tests_of_the_promises_are_there_and_count_for_them() -> None:
    assert [p.number for p in PROMISES] == sorted({p.number for p in PROMISES}, key=lambda number: int(number[1:]))
    for one in PROMISES:
        texts = [(ROOT / test).read_text(encoding="utf-8") for test in one.tests]
        assert all(f'tally("{one.number}"' in text for text in texts), one.number


def test_only_a_whole_run_at_full_budget_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reliability, "PAGE", page := tmp_path / "page.md")
    monkeypatch.setattr(reliability, "PROMISES", (promise(tmp_path, KEPT, kills=9),))
    assert reliability.main(["--small"]) == 0
    assert not page.exists()
    assert reliability.main([]) == 1
    assert "red: too few kills" in page.read_text()
    assert "5 kills, 1,000 changes" in capsys.readouterr().out
