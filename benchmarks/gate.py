"""What twenty rules cost: the same span applied to a table with rules, and to one without.

    python benchmarks/gate.py [--rows 5000000] [--changes 100000] [--rounds 7] [--warm 4] [--formats delta iceberg]

Two pipelines have the same table, the same settings and the same changes; one of them has twenty rules of rows. A round
lands its changes in both and times `Advance.run` (bronze read, net change, MERGE, cut) of each; who comes first
alternates. No change is held, as rules that hold change what is merged: what is measured is the judging. Some changes
break rules that only count. Both tables are compared at the end: they are equal. Processor seconds are those of this
process and its JVM. The target: the rules add at most a quarter of the time that the span takes without them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from measured import conclude, median, table
from span_pair import Pair
from span_phases import Phases
from spans import counted, options, phases, session
from spark_costs import processor_seconds
from workload_spans import STATES

RULES: list[dict[str, Any]] = [
    *({"rule": "not_null", "column": c, "on_fail": "quarantine"} for c in ("customer", "state", "amount", "email")),
    {"rule": "not_null", "column": "created", "on_fail": "stop"},
    {"rule": "between", "column": "amount", "min": 0, "max": 100_000, "on_fail": "quarantine"},
    {"rule": "between", "column": "amount", "min": 1000, "name": "usual_amount"},
    {"rule": "between", "column": "quantity", "min": 0, "max": 16, "on_fail": "quarantine"},
    {"rule": "between", "column": "customer", "min": 0, "max": 100_002, "on_fail": "quarantine"},
    {"rule": "between", "column": "created", "min": "2026-01-01T00:00Z", "on_fail": "quarantine"},
    {"rule": "between", "column": "changed", "min": "2026-01-01", "max": "2036-01-01"},
    {"rule": "in_set", "column": "state", "values": [*STATES, "changed"], "on_fail": "stop"},
    {"rule": "in_set", "column": "quantity", "values": list(range(16))},
    {"rule": "regex", "column": "email", "pattern": "^[^@ ]+@[^@ ]+$", "on_fail": "quarantine"},
    {"rule": "regex", "column": "note", "pattern": "^[0-9a-f]+$"},
    {"rule": "length", "column": "note", "min": 96, "max": 96, "on_fail": "quarantine"},
    {"rule": "length", "column": "email", "max": 25},
    {"rule": "type_castable", "column": "state", "type": "date"},
    {"rule": "expression", "name": "changed_later", "expression": "changed >= created OR quantity >= 0"},
    {"rule": "expression", "name": "paid_amount", "expression": "NOT paid OR amount > 10"},
]  # fmt: skip
SIDES = ("with rules", "without")


def rounds_of(spark: Any, root: Path, fmt: str, given: Any) -> list[dict[str, Any]]:
    """The rounds of one format."""
    pairs = {
        side: Pair(
            spark, root, fmt, name, tables=1, rows=given.rows, changes=given.changes, files=10, alone=True, rules=rules
        )
        for side, name, rules in zip(SIDES, ("gated", "bare"), (RULES, []), strict=True)
    }
    runs = []
    for at in range(given.warm + given.rounds):
        took, cpu, steps = {}, {}, {side: Phases() for side in SIDES}
        for side in SIDES:
            pairs[side].land(at)
        for side in SIDES if at % 2 else reversed(SIDES):
            begun, used = time.perf_counter(), processor_seconds()
            pairs[side].apply(steps[side])
            took[side], cpu[side] = time.perf_counter() - begun, processor_seconds() - used
        number = at - given.warm + 1
        told = ", ".join(f"{side} {seconds:.2f} s" for side, seconds in took.items())
        print(f"  {fmt} round {number}: {told}", flush=True)
        runs += [
            {
                "case": f"{fmt}, {side}",
                "round": number,
                "seconds": took[side],
                "share": took[SIDES[0]] / took[SIDES[1]] - 1,
                "processor": cpu[side],
                "processor_share": cpu[SIDES[0]] / cpu[SIDES[1]] - 1,
                "phases": dict(steps[side].seconds),
            }
            for side in SIDES
        ]
    contents = [pairs[side].content() for side in SIDES]
    if contents[0] != contents[1]:
        raise SystemExit(f"the tables differ: {contents}")
    for pair in pairs.values():
        pair.close()
    return runs


def costs(runs: list[dict[str, Any]], formats: list[str]) -> dict[str, Any]:
    """What the rules add, medians over the counted rounds."""
    rows = []
    for fmt in formats:
        gated, bare = (counted(runs, f"{fmt}, {side}") for side in SIDES)
        shares = [run["share"] for run in gated]
        share = median(shares)
        rows.append(
            (
                fmt,
                f"{median(run['seconds'] for run in gated):.2f}",
                f"{median(run['seconds'] for run in bare):.2f}",
                f"{share:.0%}",
                f"{min(shares):.0%} to {max(shares):.0%}",
                f"{median(run['processor'] for run in gated):.1f}",
                f"{median(run['processor'] for run in bare):.1f}",
                f"{median(run['processor_share'] for run in gated):.0%}",
            )
        )
    head = (
        "", "with rules, s", "without, s", "added", "of the rounds", "processor with, s", "without, s", "added",
    )  # fmt: skip
    return table(f"{len(RULES)} rules", head, rows)


def main() -> None:
    given = options(__doc__, rows=5_000_000, changes=100_000, rounds=7, warm=4).parse_args()
    runs: list[dict[str, Any]] = []
    with session(given.folder, given.heap) as (spark, root):
        for fmt in given.formats:
            runs += rounds_of(spark, root, fmt, given)
    tables = [costs(runs, list(given.formats)), phases("Where a span's time goes", runs)]
    names = ("rows", "changes", "rounds", "warm")
    parameters = {**{name: getattr(given, name) for name in names}, "heap_mib": given.heap}
    conclude("gate", parameters=parameters, runs=runs, tables=tables, keep=not given.no_save)


if __name__ == "__main__":
    main()
