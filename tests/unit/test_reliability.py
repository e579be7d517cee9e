"""The runner of the fault tests: what it draws, what it adds up, when it is red, what it keeps; the page is made of what is kept."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests import reliability
from tests.promises import PROMISES, Found, Promise
from tests.reliability import ROOT, Row, counted, keep, kept, page, tried
from tests.seeds import one_seed, seeds

KEPT = """\
from tests.tally import tally

def test_one():
    tally("R1", ["stalled"], kills=2)

def test_two(monkeypatch):
    monkeypatch.delenv("CDC_LAKE_TALLY")  # as where a command is to see nothing of the environment
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
    assert counted(found) == "5 kills, 1,000 changes"


def test_too_few_are_red_and_in_a_small_run_only_none_at_all(tmp_path: Path) -> None:
    found = tried(promise(tmp_path, KEPT, kills=6), "a chance", small=False)
    assert found.verdict(small=False) == "red: too few kills"
    assert found.verdict(small=True) == "green"
    none = tried(promise(tmp_path, KEPT, restarts=2), "a chance", small=True)
    assert none.verdict(small=True) == "red: too few restarts"


def test_too_few_kinds_of_faults_are_red(tmp_path: Path) -> None:
    asked = replace(promise(tmp_path, KEPT), kinds=3)
    found = tried(asked, "a chance", small=False)
    assert found.verdict(small=False) == "red: too few kinds of faults"
    assert replace(found, promise=replace(asked, kinds=2)).verdict(small=False) == "green"


@pytest.mark.parametrize("body", [f"{KEPT}    assert False\n", "", "import nothing_of_the_kind\n"])
def test_a_test_that_fails_or_is_not_there_is_red(tmp_path: Path, body: str) -> None:
    found = tried(promise(tmp_path, body), "a chance", small=True)
    assert found.verdict(small=True) == "red: a test failed"


@pytest.mark.parametrize(("ends", "verdict"), [("", "green"), ("    assert False\n", "red: a test failed")])
def test_files_side_by_side_count_together_and_one_that_fails_is_enough(
    tmp_path: Path, ends: str, verdict: str
) -> None:
    one = promise(tmp_path, KEPT, kills=10)
    other = tmp_path / "test_beside.py"
    other.write_text(KEPT + ends)
    found = tried(replace(one, tests=(str(other), *one.tests), side_by_side=True), "a chance", small=False)
    assert (found.verdict(small=False), found.counts["kills"]) == (verdict, 10)


def test_the_tests_of_the_promises_are_there_and_count_for_them() -> None:
    assert [p.number for p in PROMISES] == sorted({p.number for p in PROMISES}, key=lambda number: int(number[1:]))
    for one in PROMISES:
        texts = [(ROOT / test).read_text(encoding="utf-8") for test in one.tests]
        counted = [
            f'tally("{one.counted_as or one.number}"',
            *(["lived_through("] if one.number in {"R12", "R20"} else []),
        ]
        assert all(any(word in text for word in counted) for text in texts), one.number


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Where rows are kept, and the page; of two promises, and a tree without changes of its own."""
    second = Promise("R2", "nothing is there twice", ("test_of_another.py",))
    monkeypatch.setattr(reliability, "PROMISES", (promise(tmp_path, KEPT, kills=5), second))
    monkeypatch.setattr(reliability, "KEPT", rows := tmp_path / "kept.json")
    monkeypatch.setattr(reliability, "PAGE", shown := tmp_path / "page.md")
    monkeypatch.setattr(reliability, "version", lambda: "0.3.0-7-gabc1234")
    monkeypatch.setattr(reliability, "of_git", lambda *words: f"hash of {words[-1]}")
    monkeypatch.setenv("CDC_LAKE_CHANCE", "a chance")
    return rows, shown


def lines(shown: str, number: str) -> list[str]:
    return [line for line in shown.splitlines() if line.startswith(f"| {number} |")]


def test_a_run_at_full_budget_keeps_its_row_and_the_page_has_the_others_as_never_run(
    places: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    rows, shown = places
    assert reliability.main(["R1"]) == 0
    (row,) = json.loads(rows.read_text()).values()
    assert row["counts"] == {"kills": 5, "changes": 1000}
    assert (row["version"], row["chance"], row["faults"]) == ("0.3.0-7-gabc1234", "a chance", ["cut", "stalled"])
    assert row["trees"] == {folder: f"hash of HEAD:{folder}" for folder in reliability.TREES}
    page = shown.read_text()
    seconds = f"{row['seconds']:,}"
    assert lines(page, "R1")[0] == (
        f"| R1 | nothing is lost | green | 5 kills, 1,000 changes | {seconds} | 0.3.0-7-gabc1234 | {row['day']} |"
    )
    assert lines(page, "R1")[1].startswith("| R1 | cut; stalled | `")
    assert lines(page, "R1")[1].endswith("| `a chance` | `hash of HEAD` `hash of HEAD` `hash of HEAD` |")
    assert lines(page, "R2")[0] == "| R2 | nothing is there twice | **never run** |  |  |  |  |"
    assert "1 of 2 guarantees are green; 1 was never run at full budget." in page
    assert "R1: green; 5 kills, 1,000 changes; cut, stalled;" in capsys.readouterr().out


def test_a_row_takes_the_place_of_the_one_before_and_leaves_those_of_others(places: tuple[Path, Path]) -> None:
    rows, shown = places
    first, second = reliability.PROMISES
    for found in (
        Found(second, False, {}, (), 1),
        Found(first, True, {"kills": 5}, (), 1),
        Found(first, True, {"kills": 9}, (), 1),
    ):
        keep(Row(found, found.promise.tests, "v", "2026-01-01", "c"))
    assert list(json.loads(rows.read_text())) == ["R1", "R2"]
    assert "| green | 9 kills | 1 |" in lines(shown.read_text(), "R1")[0]
    assert "| **red: a test failed** |" in lines(shown.read_text(), "R2")[0]


def test_a_run_at_a_small_budget_or_of_a_changed_tree_keeps_nothing(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reliability.main(["--small", "R1"]) == 0
    assert "not kept" not in capsys.readouterr().out
    monkeypatch.setattr(reliability, "version", lambda: None)
    assert reliability.main(["R1"]) == 0
    assert "R1 is not kept: the tree has changes that no commit has" in capsys.readouterr().out
    found = iter(["one", "another"])
    monkeypatch.setattr(reliability, "version", lambda: next(found))
    assert reliability.main(["R1"]) == 0
    assert not any(path.exists() for path in places)


def test_a_version_is_that_of_a_commit_whatever_was_kept_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=Nobody", "-c", "user.email=nobody@example.com")
        ours = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        env = {**ours, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, env=env)

    monkeypatch.setattr(reliability, "ROOT", tmp_path)
    for name in ("KEPT", "PAGE"):
        monkeypatch.setattr(reliability, name, tmp_path / name)
    git("init")
    (tmp_path / "code.py").write_text("")
    git("add", ".")
    git("commit", "--message", "First")
    before = reliability.version()
    assert before
    for name in ("KEPT", "PAGE"):
        (tmp_path / name).write_text("kept")
    assert reliability.version() == before
    (tmp_path / "code.py").write_text("changed = True")
    assert reliability.version() is None


def test_a_row_is_green_by_what_its_promise_asks_for_today() -> None:
    asked = Promise("R1", "nothing is lost", ("tests/test_of_it.py",), {"kills": 5})

    def verdict(counts: Mapping[str, int], *tests: str, passed: bool = True) -> str:
        return Row(Found(asked, passed, counts, (), 1), tests, "v", "d", "c").verdict

    assert verdict({"kills": 5}, "tests/test_of_it.py") == "green"
    assert verdict({"kills": 4}, "tests/test_of_it.py") == "red: too few kills"
    assert verdict({"kills": 5}, "tests/test_of_it.py", passed=False) == "red: a test failed"
    assert (
        verdict({"kills": 5}, "tests/test_of_it.py", "tests/test_gone.py")
        == "to be run again: its tests are others now"
    )


def test_the_other_tests_are_those_of_no_promise(capsys: pytest.CaptureFixture[str]) -> None:
    assert reliability.main(["--others"]) == 0
    told = capsys.readouterr().out.split()
    assert "--ignore=tests/property/test_fuzz.py" in told
    assert {word.removeprefix("--ignore=") for word in told} == {test for one in PROMISES for test in one.tests}


def test_the_page_is_made_of_what_is_kept() -> None:
    """And what is kept is of promises that there are, in their order: `kept` knows no other."""
    rows = kept()
    assert reliability.PAGE.read_text(encoding="utf-8") == page(rows), "python -m tests.reliability --page"
    assert list(rows) == [p.number for p in PROMISES if p.number in rows]
    assert json.loads(reliability.KEPT.read_text(encoding="utf-8")) == {n: row.document() for n, row in rows.items()}
    assert all(row.version and row.day and row.chance and row.found.seconds for row in rows.values())


def test_a_chance_gives_as_many_seeds_as_asked_for_and_the_same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CDC_LAKE_SEED", raising=False)
    monkeypatch.setenv("CDC_LAKE_CHANCE", "a tree")
    assert len({*seeds(150)}) == 150
    assert seeds(3) == seeds(150)[:3]
    assert one_seed() == seeds(150)[0]
    monkeypatch.setenv("CDC_LAKE_CHANCE", "another tree")
    first = one_seed()
    monkeypatch.setenv("CDC_LAKE_CHANCE", "a tree")
    assert first != one_seed()


def test_one_seed_is_repeated_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_LAKE_CHANCE", "a tree")
    monkeypatch.setenv("CDC_LAKE_SEED", "7")
    assert seeds(150) == [7]
    assert one_seed() == 7
