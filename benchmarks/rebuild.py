"""A silver table made anew from bronze, beside a plain write of the same rows.

    python benchmarks/rebuild.py [--rows 1000000] [--rounds 3] [--formats delta iceberg]

Bronze has `--rows` inserted rows of ten columns, then updates of a fifth of them, as a receiver lands them: 1,000
changes a transaction, 100,000 a commit. Ours is `rebuild`: bronze read, typed, folded, written as a draft, compared
with what is there, and put in its place. The plain write is `INSERT OVERWRITE` of the same rows, typed in one Parquet
file, into a table like it. Both run in one session and alternate; both tables are equal at the end. Rates are changes
of bronze.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from measured import conclude, median, table
from span_pair import PER_TRANSACTION, project_of
from spans import options, session
from spark_costs import costing
from workload_spans import Workload, orders

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Target
from cdc_lake.model.change import Change, Transaction, Update
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.rebuild import rebuild
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.tables.open_silver_table import store
from cdc_lake.tables.spark_session import derive
from cdc_lake_testing.messages import boundaries, raw_transaction

A_COMMIT = 100_000
HASHED = "SELECT count(*), sum(cast(xxhash64(*) AS decimal(38,0))) FROM"


class Anew:
    """A table that was applied from bronze, and one that is written plainly."""

    def __init__(self, spark: Any, root: Path, fmt: str, rows: int) -> None:
        self._spark, self._own, self._root = spark, derive(spark), root
        self._project = project_of(root, f"anew_{fmt}", fmt, ["orders"], rules=[])
        self._source = Workload(orders("orders"), rows, 0)
        self.changes = self._land(rows)
        with SpanLoop(self._project, spark, silent) as advance:
            advance.run(None, threading.Event())
            for error in advance.totals.failed.values():
                raise error
        ours: Target = self._project.target(self._source.layout.table)
        twin = replace(ours, name=f"{ours.name}_plain")
        self._ours, plain = (store(self._own, self._project, one) for one in (ours, twin))
        columns = self._ours.columns()
        assert columns is not None, "it was applied"
        plain.create(columns, "bench")
        self._plain, self._rows = plain, str(root / f"{fmt}_rows")
        self._own.sql(f"SELECT * FROM {self._ours.name}").coalesce(1).write.parquet(self._rows)

    def _land(self, rows: int) -> int:
        bronze, landed = DeltaBronze(self._project.bronze, durability="os"), 0
        bronze.begin_stream("bench", 1)
        layout = self._source.layout
        keys = [("I", key) for key in range(rows)] + [("U", key) for key in range(0, rows, 5)]
        for at in range(0, len(keys), A_COMMIT):
            batch = []
            for first in range(at, min(at + A_COMMIT, len(keys)), PER_TRANSACTION):
                some: list[Change] = []
                for op, key in keys[first : first + PER_TRANSACTION]:
                    row = self._source.insert(key if op == "I" else rows + key)
                    some.append(row if op == "I" else Update(layout, (str(key), *row.new[1:])))
                landed += len(some)
                batch.append(raw_transaction(Transaction(boundaries(1_000 + first), tuple(some))))
            bronze.append(batch)
        return landed

    def ours(self) -> None:
        rebuild(self._project, "public.orders", spark=self._spark)

    def plain(self) -> None:
        self._own.read.parquet(self._rows).createOrReplaceTempView("typed")
        self._own.sql(f"INSERT OVERWRITE {self._plain.name} SELECT * FROM typed")

    def check(self) -> int:
        """Raise unless both are equal; their rows."""
        sums = [tuple(self._own.sql(f"{HASHED} {one.name}").first()) for one in (self._ours, self._plain)]
        if sums[0] != sums[1]:
            raise SystemExit(f"the tables differ: {sums}")
        return int(sums[0][0])


def rounds_of(spark: Any, root: Path, fmt: str, given: Any) -> list[dict[str, Any]]:
    anew, runs = Anew(spark, root, fmt, given.rows), []
    for number in range(given.rounds + 1):
        sides = [("ours", anew.ours), ("plain", anew.plain)]
        took: dict[str, Any] = {"costs": {}}
        for name, side in sides if number % 2 else reversed(sides):
            with costing(spark, root) as cost:
                side()
            took[name], took["costs"][name] = cost["seconds"], cost
        runs.append({"format": fmt, "round": number, "changes": anew.changes, **took})
        print(f"  {fmt}, round {number}: rebuild {took['ours']:.1f} s, plain {took['plain']:.1f} s", flush=True)
    print(f"  {fmt}: both tables equal, {anew.check():,} rows", flush=True)
    return runs


def tables_of(runs: list[dict[str, Any]], formats: list[str]) -> list[dict[str, Any]]:
    rows = []
    for fmt in formats:
        mine = [run for run in runs if run["format"] == fmt and run["round"] > 0]
        ratios = [run["ours"] / run["plain"] for run in mine]
        rates = [f"{median(run['changes'] / run[side] for run in mine):,.0f}" for side in ("ours", "plain")]
        rows.append((fmt, *rates, f"{median(ratios):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}"))
    head = ("", "rebuild, changes/s", "plain write, the same", "seconds to the plain write's", "of the rounds")
    return [table("A table rebuilt from bronze", head, rows)]


def main() -> None:
    given = options(__doc__, rows=1_000_000, rounds=3).parse_args()
    runs: list[dict[str, Any]] = []
    with session(given.folder, given.heap) as (spark, root):
        for fmt in given.formats:
            runs += rounds_of(spark, root, fmt, given)
    tables = tables_of(runs, list(given.formats))
    parameters = {"rows": given.rows, "rounds": given.rounds, "heap_mib": given.heap}
    conclude("rebuild", parameters=parameters, runs=runs, tables=tables, keep=not given.no_save)


if __name__ == "__main__":
    main()
