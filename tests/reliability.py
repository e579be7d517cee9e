"""What the fault tests found, promise by promise; a whole run writes it into docs/reliability.md.

python -m tests.reliability            every promise at its full budget, then the page
python -m tests.reliability R3 R9      those, without the page
python -m tests.reliability --small    at the budget of `make test`, without the page

A promise is red, and the exit code 1, where a test failed or what was counted is less than the promise asks for.
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
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reliability.md"
HEAD = """\
<!-- Made by `python -m tests.reliability`; do not edit. -->

# What the faults found

Every promise, the faults it was tried with, and what a run counted (`python -m tests.reliability`). A row is green
where every test of it passed, which means nothing lost and nothing twice, and where at least as much was counted as the
promise asks for. What is random is drawn from the chance named below: `CDC_LAKE_CHANCE` gives the same run anywhere.

"""


@dataclass(frozen=True)
class Promise:
    """A promise, the tests that keep it, and how much they must count at full budget."""

    number: str
    says: str
    tests: tuple[str, ...]
    least: Mapping[str, int] = field(default_factory=dict)
    budget: int = 10
    """CDC_LAKE_BUDGET of a full run."""


PROMISES = (
    Promise(
        "R3",
        "silver: broken off at every step of apply, its JVM killed",
        ("tests/spark/test_apply_crashes.py", "tests/spark/test_apply_kills.py"),
        {"breaks": 200, "kills": 32},
    ),
    Promise(
        "R4",
        "streams repeated, cut, and out of order: every transaction once, in order",
        ("tests/property/test_csn_order.py", "tests/property/test_bronze_batching.py"),
        {"histories": 1000},
    ),
    Promise(
        "R7",
        "the fast decoder of style b equals the plain one",
        ("tests/property/test_mppdb_agreement.py",),
        {"rows": 10_000_000},
    ),
    Promise(
        "R9",
        "the disk is full after any number of bytes",
        ("tests/unit/test_disk_full.py",),
        {"budgets of bytes": 100},
    ),
    Promise(
        "R10",
        "a store fails, lies about it, tears what it writes, or forgets; power is lost",
        ("tests/property/test_faulty_store.py", "tests/unit/test_power_loss.py"),
        {"requests hit": 200, "losses of power": 20},
    ),
    Promise(
        "R19", "exactly the planted differences are told", ("tests/live/test_compare_property.py",), {"comparisons": 25}
    ),
)


@dataclass(frozen=True)
class Found:
    """What a run of a promise's tests came to."""

    promise: Promise
    passed: bool
    counts: Mapping[str, int]
    faults: Sequence[str]
    seconds: float

    def verdict(self, *, small: bool) -> str:
        """`green`, or `red` and why."""
        if not self.passed:
            return "red: a test failed"
        short = (
            [] if small else [what for what, least in self.promise.least.items() if self.counts.get(what, 0) < least]
        )
        return f"red: too few {', '.join(short)}" if short else "green"


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
        command = [sys.executable, "-m", "pytest", "-q", "-m", "", "--timeout", "3600", *promise.tests]
        began = time.monotonic()
        ended = subprocess.run(command, cwd=ROOT, env={**os.environ, **settings}, check=False).returncode
        counts, faults = added_up(file.read_text(encoding="utf-8").splitlines(), promise.number)
    return Found(promise, ended == 0, counts, faults, time.monotonic() - began)


def table(found: Sequence[Found], *, small: bool) -> str:
    """The rows of the page."""
    rows = [["", "promise", "counted", "faults", "tests", "seconds", "verdict"], ["---"] * 7]
    for one in found:
        counted = ", ".join(f"{count:,} {what}" for what, count in one.counts.items())
        tests = ", ".join(f"`{test.removeprefix('tests/')}`" for test in one.promise.tests)
        faults = ", ".join(one.faults)
        said = [one.promise.number, one.promise.says, counted, faults, tests, f"{one.seconds:,.0f}"]
        rows.append([*said, one.verdict(small=small)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def of_git(*words: str) -> str:
    """What git says of the tree that runs."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.reliability")
    parser.add_argument("promises", nargs="*", choices=[[], *(p.number for p in PROMISES)], metavar="R1")
    parser.add_argument("--small", action="store_true", help="at the budget of `make test`")
    asked = parser.parse_args(words)
    chosen = [p for p in PROMISES if not asked.promises or p.number in asked.promises]
    chance = os.environ.get("CDC_LAKE_CHANCE") or of_git("rev-parse", "HEAD^{tree}")
    found = [tried(promise, chance, small=asked.small) for promise in chosen]
    told = table(found, small=asked.small)
    print(told)
    if not asked.small and len(chosen) == len(PROMISES):
        made = f"Version {of_git('describe', '--always')}, {datetime.now(UTC):%Y-%m-%d}, chance `{chance}`.\n\n"
        PAGE.write_text(HEAD + made + told, encoding="utf-8")
        print(f"wrote {PAGE}")
    return int(any(one.verdict(small=asked.small) != "green" for one in found))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
