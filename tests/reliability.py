"""What the fault tests found, promise by promise: kept in docs/reliability.json, of which docs/reliability.md is made.

python -m tests.reliability            every promise at its full budget; each is kept as soon as it ran
python -m tests.reliability R3 R9      those
python -m tests.reliability --small    at the budget of `make test`; nothing is kept
python -m tests.reliability --page     the page again, from what is kept
python -m tests.reliability --others   what has pytest run the other tests alone

A promise is red, and the exit code 1, where a test failed or what was counted is less than the promise asks for. What is
kept names the commit it ran on, so a tree with changes of its own keeps nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from tests.promises import PROMISES, Found, Promise

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs" / "reliability.json"
PAGE = ROOT / "docs" / "reliability.md"
TREES = ("cdc_lake", "cdc_lake_testing", "tests")
"""What a row is about."""
AT_A_TIME = 2
"""Files of tests, where they may run side by side."""
HEAD = """\
<!-- Made from reliability.json by `python -m tests.reliability`; do not edit. -->

# What the faults found

Every promise, and the last run of its fault tests at full budget (`python -m tests.reliability R3`), which takes from half
a minute to hours: what it counted, on which version, when. A row is green where every test passed, which means nothing lost and
nothing twice where changes flow, and where at least as much was counted as the promise asks for. It speaks of the version that it names;
for every change behind it `make test` runs what is quick of the same tests, at a small budget.

"""
MET = """
## The faults, and how to have them again

What is random is drawn from a chance: `CDC_LAKE_CHANCE` with that of a row, on its version, draws the same anywhere. What
depends on time, as where a server under load is cut off, differs from run to run. The version is the name that the commit
had where it ran; commits that were put together since have other names, and are that version where
`git rev-parse COMMIT:cdc_lake COMMIT:tests` (and `COMMIT:cdc_lake_testing`) says what the row does.

"""


def added_up(lines: Sequence[str], number: str) -> tuple[Counter[str], list[str]]:
    """Counts and named faults of a promise, of all processes that wrote them."""
    counts: Counter[str] = Counter()
    faults: set[str] = set()
    for told in map(json.loads, lines):
        if told["promise"] == number:
            counts.update(told["counts"])
            faults.update(told["faults"])
    return counts, sorted(faults)


def tried(promise: Promise, chance: str, *, small: bool) -> Found:
    """Run a promise's tests."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tally.jsonl"
        file.touch()
        budget = "1" if small else str(promise.budget)
        settings = {"CDC_LAKE_TALLY": str(file), "CDC_LAKE_BUDGET": budget, "CDC_LAKE_CHANCE": chance}
        ours = {name: value for name, value in os.environ.items() if name != "CDC_LAKE_SEED"}  # one seed alone

        def passed(tests: Sequence[str]) -> bool:
            command = [sys.executable, "-m", "pytest", "-q", "-m", "", "--timeout", "3600", *tests]
            return subprocess.run(command, cwd=ROOT, env={**ours, **settings}, check=False).returncode == 0

        began = time.monotonic()
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            each = [(test,) for test in promise.tests] if promise.side_by_side else [promise.tests]
            all_passed = all([*pool.map(passed, each)])
        counts, faults = added_up(file.read_text(encoding="utf-8").splitlines(), promise.number)
    return Found(promise, all_passed, counts, faults, time.monotonic() - began)


@dataclass(frozen=True)
class Row:
    """What is kept of a run: what it found, the tests it ran, and whence they can be had again."""

    found: Found
    tests: Sequence[str]
    version: str
    day: str
    chance: str
    trees: Mapping[str, str] = field(default_factory=dict)
    """Folder → its hash in git: commits that have them are the version, also where its own commit is gone."""

    @property
    def verdict(self) -> str:
        """That of the run, by what the promise asks for today."""
        if tuple(self.tests) != self.found.promise.tests:
            return "to be run again: its tests are others now"
        return self.found.verdict(small=False)

    def document(self) -> dict[str, Any]:
        """The row in JSON."""
        found = self.found
        return {
            "version": self.version,
            "day": self.day,
            "chance": self.chance,
            "seconds": round(found.seconds),
            "passed": found.passed,
            "counts": dict(found.counts),
            "faults": list(found.faults),
            "tests": list(self.tests),
            **({"trees": dict(self.trees)} if self.trees else {}),
        }

    @classmethod
    def of(cls, promise: Promise, document: Mapping[str, Any]) -> Self:
        """The row that was written."""
        passed, counts, faults, seconds = (document[name] for name in ("passed", "counts", "faults", "seconds"))
        found = Found(promise, passed, counts, faults, seconds)
        said = (document[name] for name in ("tests", "version", "day", "chance"))
        return cls(found, *said, document.get("trees", {}))


def kept() -> dict[str, Row]:
    """What is kept, by the number of the promise; KeyError for a promise that is none."""
    promises = {promise.number: promise for promise in PROMISES}
    documents = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    return {number: Row.of(promises[number], document) for number, document in documents.items()}


def keep(row: Row) -> None:
    """Put a row in the place of the one that its promise had, and make the page anew."""
    rows = kept() | {row.found.promise.number: row}
    documents = {p.number: rows[p.number].document() for p in PROMISES if p.number in rows}
    KEPT.write_text(json.dumps(documents, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(rows), encoding="utf-8")


def page(rows: Mapping[str, Row]) -> str:
    """The page of what is kept."""
    ran = [rows[promise.number] for promise in PROMISES if promise.number in rows]
    green = sum(row.verdict == "green" for row in ran)
    never = len(PROMISES) - len(ran)
    were = "was" if never == 1 else "were"
    summary = f"{green} of {len(PROMISES)} promises are green; {never} {were} never run at full budget.\n\n"
    first = [["", "promise", "verdict", "counted", "seconds", "version", "day"]]
    second = [["", "faults", "tests", "chance", "cdc_lake and tests"]]
    for promise in PROMISES:
        tests = ", ".join(f"`{test.removeprefix('tests/')}`" for test in promise.tests)
        if (row := rows.get(promise.number)) is None:
            first.append([promise.number, promise.says, "**never run**", "", "", "", ""])
            second.append([promise.number, "", tests, "", ""])
            continue
        verdict = row.verdict if row.verdict == "green" else f"**{row.verdict}**"
        said = [counted(row.found), f"{row.found.seconds:,.0f}", row.version, row.day]
        first.append([promise.number, promise.says, verdict, *said])
        trees = " ".join(f"`{row.trees[folder][:12]}`" for folder in TREES if folder in row.trees)
        second.append([promise.number, "; ".join(row.found.faults), tests, f"`{row.chance}`", trees])
    return HEAD + summary + table(first) + MET + table(second)


def counted(found: Found) -> str:
    """What a run counted, in words."""
    return ", ".join(f"{count:,} {what}" for what, count in found.counts.items())


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as Markdown, the first one above the others."""
    ruled = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in ruled)


def of_git(*words: str) -> str:
    """What git says of the tree that runs."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def version() -> str | None:
    """The version that runs; None of a tree with changes that no commit has, but for what is kept here."""
    ours = [f":!{path.relative_to(ROOT)}" for path in (KEPT, PAGE)]
    return None if of_git("status", "--porcelain", "--", ".", *ours) else of_git("describe", "--always")


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.reliability")
    parser.add_argument("promises", nargs="*", choices=[[], *(p.number for p in PROMISES)], metavar="R1")
    parser.add_argument("--small", action="store_true", help="at the budget of `make test`; nothing is kept")
    parser.add_argument("--others", action="store_true", help="print what has pytest leave out the tests of promises")
    parser.add_argument("--page", action="store_true", help="make the page again from what is kept; nothing is run")
    asked = parser.parse_args(words)
    if asked.others:
        print(*(f"--ignore={test}" for test in sorted({test for promise in PROMISES for test in promise.tests})))
        return 0
    if asked.page:
        PAGE.write_text(page(kept()), encoding="utf-8")
        return 0
    red = False
    for promise in (p for p in PROMISES if not asked.promises or p.number in asked.promises):
        chance = os.environ.get("CDC_LAKE_CHANCE") or of_git("rev-parse", "HEAD^{tree}")
        before = None if asked.small else version()
        found = tried(promise, chance, small=asked.small)
        verdict = found.verdict(small=asked.small)
        red = red or verdict != "green"
        print(
            f"{promise.number}: {verdict}; {counted(found)}; {', '.join(found.faults)}; {found.seconds:,.0f} s",
            flush=True,
        )
        if before is not None and before == version():
            trees = {folder: of_git("rev-parse", f"HEAD:{folder}") for folder in TREES}
            keep(Row(found, promise.tests, before, f"{datetime.now(UTC):%Y-%m-%d}", chance, trees))
        elif not asked.small:
            print(f"{promise.number} is not kept: the tree has changes that no commit has")
    return int(red)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
