"""The same changes in pipelines of 1 to 500 tables; then more and more tables touched.

    python benchmarks/many_tables.py [--rounds 3] [--formats delta iceberg]

First 2,000 changes each of five tables, in pipelines of 5, 50 and 500 tables: a table that is not touched must cost
nothing. The target: at most 1.5 times the time with five. Then 1,000 changes a table for 1, 10 and 100 tables in one
span: the time for a change must not grow with the tables. Half of the changes are new rows, half are updates of rows
that are there. At the end every table of every pipeline has the rows that it was given, value by value.
"""

from __future__ import annotations

import random
import shutil
import threading
from pathlib import Path
from typing import Any, TypeAlias

from end_state import held_rows
from measured import conclude, median, table
from span_pair import PER_TRANSACTION, project_of
from spans import options, session
from spark_costs import costing
from workload_spans import Workload, orders

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.model.change import Change, Transaction, Update
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake_testing.messages import boundaries, raw_transaction

Runs: TypeAlias = list[dict[str, Any]]

PIPELINES, TOUCHED = (5, 50, 500), (1, 10, 100)
FEW, OF_FEW, OF_MANY = 5, 2_000, 1_000  # tables touched in each pipeline; changes of a table
ROWS = 1_000  # of a table at first


class Fleet:
    """A pipeline of many tables."""

    def __init__(self, spark: Any, root: Path, fmt: str, tables: int) -> None:
        names = [f"orders_{n}" for n in range(tables)]
        self._spark = spark
        self._project = project_of(root, f"fleet_{fmt}_{tables}", fmt, names)
        self._workloads = [Workload(orders(name), ROWS, 0) for name in names]
        self._advance = SpanLoop(self._project, spark, silent)
        self._bronze = DeltaBronze(self._project.bronze, durability="os")
        self._bronze.begin_stream("bench", 1)
        self._position = 1
        self._rows = [0] * tables
        for at in range(0, tables, 50):
            self._apply(
                [self._inserts(n, ROWS if n < max(FEW, *TOUCHED) else 1) for n in range(at, min(at + 50, tables))]
            )

    def span(self, touched: int, changes: int) -> dict[str, float]:
        """Apply one span with so many changes of so many tables; what it costs."""
        return self._apply([self._updates(n, changes // 2) + self._inserts(n, changes // 2) for n in range(touched)])

    def check(self) -> int:
        """How many rows all tables have; raise unless they are what each was given."""
        targets = [self._project.target(workload.layout.table) for workload in self._workloads]
        given = [one.inserted(range(rows)) for one, rows in zip(self._workloads, self._rows, strict=True)]
        return sum(held_rows(self._project, target, rows) for target, rows in zip(targets, given, strict=True))

    def close(self) -> None:
        """Forget the tables."""
        self._advance.__exit__(None, None, None)
        shutil.rmtree(self._project.lake / "silver", ignore_errors=True)

    def _apply(self, changes: list[list[Change]]) -> dict[str, float]:
        every = [change for of_table in changes for change in of_table]
        random.Random(len(every)).shuffle(every)
        batch = []
        for at in range(0, len(every), PER_TRANSACTION):
            self._position += 1_000
            some = every[at : at + PER_TRANSACTION]
            batch.append(raw_transaction(Transaction(boundaries(self._position), tuple(some))))
        self._bronze.append(batch)
        with costing(self._spark, self._project.lake) as cost:
            self._advance.run(None, threading.Event())
        for error in self._advance.totals.failed.values():
            raise error
        return cost

    def _inserts(self, table: int, count: int) -> list[Change]:
        first = self._rows[table]
        self._rows[table] += count
        return [self._workloads[table].insert(key) for key in range(first, first + count)]

    def _updates(self, table: int, count: int) -> list[Change]:
        layout = self._workloads[table].layout
        return [Update(layout, self._workloads[table].insert(key).new) for key in range(count)]


def measured_fleets(
    spark: Any, root: Path, fmt: str, sizes: list[int], spans: list[tuple[int, int]], rounds: int
) -> Runs:
    """Each kind of span `rounds` times in each fleet, in turn, and once more to warm up."""
    fleets, runs = [Fleet(spark, root, fmt, tables) for tables in sizes], []
    for number in range(rounds + 1):
        for tables, fleet in zip(sizes, fleets, strict=True):
            for touched, changes in spans:
                what, cost = f"{tables} tables, {touched} touched", fleet.span(touched, changes)
                facts = {"format": fmt, "what": what, "tables": tables, "touched": touched, "round": number}
                runs.append(facts | cost)
                print(f"  {fmt}, {what}, round {number}: {cost['seconds']:.2f} s", flush=True)
    for tables, fleet in zip(sizes, fleets, strict=True):
        print(f"  {fmt}, {tables} tables: {fleet.check():,} rows, as they were given", flush=True)
        fleet.close()
    return runs


def seconds(runs: Runs, fmt: str, tables: int, touched: int) -> float:
    some = [r for r in runs if (r["format"], r["tables"], r["touched"]) == (fmt, tables, touched) and r["round"]]
    return median(run["seconds"] for run in some)


def tables_of(
    few: Runs, many: Runs, formats: list[str], pipelines: list[int], touched: list[int]
) -> list[dict[str, Any]]:
    rows = []
    for fmt in formats:
        times = [seconds(few, fmt, tables, FEW) for tables in pipelines]
        rows.append((fmt, *(f"{one:.2f}" for one in times)))
    spans = []
    for fmt in formats:
        for count in touched:
            took = seconds(many, fmt, touched[-1], count)
            spans.append((f"{fmt}, {count} tables", f"{took:.2f}", f"{1e6 * took / (count * OF_MANY):,.0f}"))
    return [
        table(
            "Seconds of a span of 10,000 changes of five tables",
            ("pipeline of", *(f"{n} tables" for n in pipelines)),
            rows,
        ),
        table("Spans of 1,000 changes a table touched", ("", "s", "µs a change"), spans),
    ]


def main() -> None:
    given = options(__doc__, rounds=3, most=500).parse_args()
    pipelines = [one for one in PIPELINES if one <= given.most]
    touched = [one for one in TOUCHED if one <= given.most]
    few: Runs = []
    many: Runs = []
    with session(given.folder, given.heap) as (spark, root):
        for fmt in given.formats:
            few += measured_fleets(spark, root, fmt, pipelines, [(FEW, OF_FEW)], given.rounds)
            spans = [(count, OF_MANY) for count in touched]
            many += measured_fleets(spark, root, fmt, touched[-1:], spans, max(1, given.rounds // 2))
    found = tables_of(few, many, list(given.formats), pipelines, touched)
    parameters = {"rounds": given.rounds, "heap_mib": given.heap}
    conclude("many_tables", parameters=parameters, runs=few + many, tables=found, keep=not given.no_save)


if __name__ == "__main__":
    main()
