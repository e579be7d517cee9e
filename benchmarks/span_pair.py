"""One silver table twice: moved on by apply, and by a hand-written MERGE of the same net rows. The pair stays equal.

Both tables are made and filled the same way, by the store that apply uses, so they have the same properties and files;
with `peer` further ones without marks are moved on by what needs no Spark: a Delta table by delta-rs's merge, and
beside a pair of Iceberg tables one of theirs by pyiceberg's upsert and delete (two commits: it has no merge).

A round lands changes in bronze, times `Advance.run` (bronze read, rules judged, net change, MERGE with its marker,
holds, cut) on one table, and the plain statement, with the same net rows from a typed Parquet file and a broadcast
hint, on the other. Who comes first alternates. Bronze is landed, and the Parquet file written, outside the timing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.expressions import In
from span_merge import merge_by_hand
from span_phases import Phases
from spark_costs import costing
from workload_spans import BASE, SPREAD, STATES, Workload, orders

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project, Target
from cdc_lake.model.change import Change, Transaction
from cdc_lake.model.relation import Relation
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.silver.layout_mapping import make_shape
from cdc_lake.tables.catalog import catalog_address, open_catalog
from cdc_lake.tables.open_silver_table import mark_when_large, store
from cdc_lake.tables.spark_session import derive
from cdc_lake.tables.types import SilverColumn
from cdc_lake_testing.messages import boundaries, raw_transaction

PER_TRANSACTION = 1_000
RULES = [
    {"rule": "not_null", "column": "customer", "on_fail": "quarantine"},
    {"rule": "between", "column": "amount", "min": 0, "max": 100_000, "on_fail": "quarantine"},
    {"rule": "in_set", "column": "state", "values": [*STATES, "changed"], "on_fail": "warn"},
]


def project_of(
    root: Path, name: str, fmt: str, tables: list[str], *, rules: list[dict[str, Any]] | None = None, **sections: Any
) -> Project:
    """A pipeline of `tables`, each with `rules`, or with three."""
    document = {
        "version": 1,
        "pipeline": name,
        "source": {"type": "postgres", "host": "h", "database": "d", "user": "u", "tables": ["public.*"]},
        "silver": {
            "defaults": {"format": fmt, "namespace": name},
            "tables": [{"from": f"public.{one}", "rules": RULES if rules is None else rules} for one in tables],
        },
        "snapshot": {"mode": "none"},
        **sections,
    }
    return Project(Pipeline.model_validate(document), root / "pipeline.yaml", root)


class Pair:
    """A pipeline whose tables stand twice: as apply's, and as `plain`'s."""

    def __init__(
        self,
        spark: Any,
        root: Path,
        fmt: str,
        name: str,
        *,
        tables: int,
        rows: int,
        changes: int,
        files: int,
        marks: bool = True,
        peer: bool = False,
        alone: bool = False,
        rules: list[dict[str, Any]] | None = None,
        keys: str = SPREAD,
    ) -> None:
        """`marks`: as apply makes them by size; otherwise none. `alone`: apply's tables only; `keys`: see Workload."""
        names = ["orders"] if tables == 1 else [f"orders_{n}" for n in range(tables)]
        self.fmt, self.folder, self._spark = fmt, root / "net", derive(spark)
        self._own = derive(spark)
        marked = {"merge_on_read": "auto" if marks else "never"}
        self.project = project_of(root, f"{name}_{fmt}", fmt, names, rules=rules, apply=marked)
        self._peer = peer
        self._alone = alone
        self.costs: dict[str, dict[str, float]] = {}
        """What the last round cost, by side."""
        self.workloads = [Workload(orders(one), rows, changes, keys) for one in names]
        self._advance = SpanLoop(self.project, spark, silent)
        self._bronze = DeltaBronze(self.project.bronze)
        self._bronze.begin_stream("bench", 1)
        self._position = 1
        self.folder.mkdir(exist_ok=True)
        for workload in self.workloads:
            for target in self._sides(workload):
                self._fill(target, workload.layout, rows, files)
                mark_when_large(self._own, self.project, target)
            for target in self._others(workload):
                self._fill(target, workload.layout, rows, files)

    def _sides(self, workload: Workload) -> tuple[Target, ...]:
        return self._both(workload)[:1] if self._alone else self._both(workload)

    def _both(self, workload: Workload) -> tuple[Target, Target]:
        ours = self.project.target(workload.layout.table)
        return ours, replace(ours, name=f"{ours.name}_plain")

    def _others(self, workload: Workload) -> list[Target]:
        """The tables of peers: delta-rs's, then pyiceberg's where there is one."""
        ours = self.project.target(workload.layout.table)
        formats = ("delta", "iceberg") if self.fmt == "iceberg" else ("delta",)
        return [replace(ours, name=f"{ours.name}_peer_{fmt}", format=fmt) for fmt in formats] if self._peer else []

    def _fill(self, target: Target, layout: Relation, rows: int, files: int) -> None:
        shape = make_shape([layout.layout], {layout.layout: layout}, None)
        silver = store(self._own, self.project, target)
        silver.create(shape.columns, "bench")
        assert shape.columns == tuple(SilverColumn(c.name, c.type) for c in silver.columns() or ())
        base = self._own.range(0, rows, 1, files)
        base.selectExpr(*(f"{sql} AS `{name}`" for name, sql in BASE.items())).createOrReplaceTempView("base")
        self._own.sql(f"INSERT INTO {silver.name} SELECT * FROM base")

    def land(self, number: int) -> None:
        """Land the changes of a round."""
        everything: list[Change] = []
        for n, workload in enumerate(self.workloads):
            changes, net = workload.round(number)
            everything += changes
            pq.write_table(net, self._net(n))
        batch = []
        for at in range(0, len(everything), PER_TRANSACTION):
            self._position += 1_000
            one = Transaction(boundaries(self._position), tuple(everything[at : at + PER_TRANSACTION]))
            batch.append(raw_transaction(one))
        self._bronze.append(batch)

    def round(self, number: int, phases: Phases | None = None) -> dict[str, float]:
        """Land the changes of a round, apply them on both sides; seconds of each."""
        self.land(number)
        took, self.costs = {}, {}
        sides: list[tuple[str, Callable[[], None]]] = [("ours", lambda: self.apply(phases)), ("plain", self._plain)]
        if self._peer:
            sides.append(("delta-rs", self._delta_rs))
            sides += [("pyiceberg", self._pyiceberg)] * (self.fmt == "iceberg")
        for name, side in sides if number % 2 else reversed(sides):
            with costing(self._spark, self.project.lake) as self.costs[name]:
                side()
            took[name] = self.costs[name]["seconds"]
        return took

    def _net(self, n: int) -> str:
        return str(self.folder / f"{self.fmt}_{n}.parquet")

    def apply(self, phases: Phases | None = None) -> None:
        """Apply what was landed."""
        with phases.measured() if phases else ExitStack():
            self._advance.run(None, threading.Event())
        for error in self._advance.totals.failed.values():
            raise error

    def _plain(self) -> None:
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 - after the session

        for n, workload in enumerate(self.workloads):
            target = self._both(workload)[1]
            F.broadcast(self._spark.read.parquet(self._net(n))).createOrReplaceTempView("net")
            columns = [c.name for c in workload.layout.columns]
            self._spark.sql(merge_by_hand(store(self._spark, self.project, target).name, columns))

    def _delta_rs(self) -> None:
        for n, workload in enumerate(self.workloads):
            columns = [c.name for c in workload.layout.columns]
            given = {name: f"s.{name}" for name in columns}
            place = str(self.project.silver_path(self._others(workload)[0]))
            merge = DeltaTable(place).merge(
                pq.read_table(self._net(n)), "t.id = s.id", source_alias="s", target_alias="t"
            )
            merge = merge.when_matched_delete("s.op = 'D'").when_matched_update(given)
            merge.when_not_matched_insert(given, "s.op <> 'D'").execute()

    def _pyiceberg(self) -> None:
        for n, workload in enumerate(self.workloads):
            target, net = self._others(workload)[1], pq.read_table(self._net(n))
            table = open_catalog(catalog_address(self.project)).load_table((target.namespace, target.name))
            deletes = pc.equal(net["op"], "D")
            table.upsert(net.filter(pc.invert(deletes)).drop_columns(["op"]), join_cols=["id"])
            table.delete(In("id", net.filter(deletes)["id"].to_pylist()))

    def check(self) -> int:
        """Raise unless all sides hold the same rows; how many."""
        total = 0
        for workload in self.workloads:
            hashes = [self._content(target) for target in (*self._sides(workload), *self._others(workload))]
            if len(set(hashes)) != 1:
                raise SystemExit(f"the pair differs: {hashes}")
            total += hashes[0][0]
        return total

    def content(self) -> list[tuple[Any, ...]]:
        """Number and hash of the rows of each of apply's tables."""
        return [self._content(self._both(workload)[0]) for workload in self.workloads]

    def names(self) -> tuple[str, ...]:
        """Of the first table, in SQL: apply's and the plain one's."""
        return tuple(store(self._own, self.project, target).name for target in self._both(self.workloads[0]))

    def _content(self, target: Target) -> tuple[Any, ...]:
        name = store(self._own, self.project, target).name
        return tuple(self._own.sql(f"SELECT count(*), sum(cast(xxhash64(*) AS decimal(38,0))) FROM {name}").first())

    def close(self) -> None:
        self._advance.__exit__(None, None, None)
