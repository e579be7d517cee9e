"""The benchmarks of docs/performance.md by scenario, one after the other; the page is written anew at the end.

    python benchmarks/run.py [P3 P4 …] [--quick] [--list]
    python benchmarks/run.py [P3 P4 …] --check | --keep

Without a name all of them (`scenarios.py`). `--quick` is smaller and shorter, writes nothing, and shows that they run.
`--check` measures nothing: it compares the results with the baseline, and ends with 1 where a ratio to a peer fell by
more than its rounds differ (`regress.py`); `--keep` makes the results the baseline. Needs Java for the spans, 4 GiB of
memory, and a quiet machine; peers of other makes are measured where `make peers` was. What was left out because
something is not there is named at the end, and but for `--quick` the exit code is then 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import regress
from history import product
from measured import show, table
from page import documents
from scenarios import SCENARIOS, Measurement, chosen

HERE = Path(__file__).parent


def missing(run: Measurement) -> bool:
    """Whether what it needs is not there; that is said."""
    if run.needs is None or (HERE.parent / run.needs).exists():
        return False
    print(f"  left out: {run.needs} is not there", flush=True)
    return True


def measure(runs: list[Measurement], *, quick: bool) -> list[str]:
    """Run the scripts; those that were left out. Raises CalledProcessError where one fails."""
    left_out = []
    for run in runs:
        arguments = run.quick if quick else run.full
        if arguments is None:
            continue
        print(f"\n── {' '.join((run.script, *arguments))}", flush=True)
        if missing(run):
            left_out.append(f"{' '.join((run.script, *arguments))}, which needs {run.needs}")
        else:
            subprocess.run([sys.executable, str(HERE / run.script), *arguments], check=True)
    if not quick:
        subprocess.run([sys.executable, str(HERE / "page.py")], check=True)
    return left_out


def check(names: list[str]) -> int:
    """Show each ratio beside its baseline; 1 where one fell."""
    found = [one for one in regress.check(documents()) if not names or one.figure.scenario in names]
    show([table("Ratios to peers", regress.HEAD, [one.row() for one in found])])
    fell = [one.figure.name for one in found if one.verdict == "fell"]
    print(f"\n{len(fell)} of {len(found)} fell{': ' + ', '.join(fell) if fell else ''}")
    return 1 if fell else 0


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", metavar="SCENARIO")
    what = options.add_mutually_exclusive_group()
    what.add_argument("--quick", action="store_true")
    what.add_argument("--list", action="store_true", help="the scenarios")
    what.add_argument("--check", action="store_true")
    what.add_argument("--keep", action="store_true")
    given = options.parse_args()
    try:
        runs = chosen(given.names)
    except ValueError as unknown:
        options.error(str(unknown))
    if given.list:
        show([table("Scenarios", ("", ""), [(one.name, one.what) for one in SCENARIOS])])
    elif given.check:
        return check(given.names)
    elif given.keep:
        regress.keep(documents(), product())
    else:
        for what in (left_out := measure(runs, quick=given.quick)):
            print(f"left out: {what}")
        return int(bool(left_out) and not given.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
