"""One silver table twice: moved on by apply, and by a hand-written MERGE of the same net rows. The pair stays equal.

Both tables are made and filled the same way, by the store that apply uses, so they have the same properties and files;
with `peer` further ones without marks are moved on by what needs no Spark: a Delta table by delta-rs's merge, and
beside a pair of Iceberg tables one of theirs by pyiceberg's upsert and delete (two commits: it has no merge).

A round lands changes in bronze, times `Advance.run` (bronze read, rules judged, net change, MERGE with its marker,
holds, cut) on one table, and the plain statement, with the same net rows from a typed Parquet file and a broadcast
hint, on the other. Who comes first alternates. Bronze is landed, and the Parquet file written, outside the timing.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.expressions import In

from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project, Target
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.delta import DeltaSilver
from cdc_lake.lake.iceberg import IcebergSilver
from cdc_lake.lake.marker import iceberg_catalog
from cdc_lake.lake.row_marks import mark_when_large
from cdc_lake.lake.session import derive
from cdc_lake.lake.store import SilverColumn, store
from cdc_lake.model.change import Change, Delete, Insert, OldKind, Update
from cdc_lake.model.relation import Relation
from cdc_lake.model.transaction import Transaction
from cdc_lake.observe.progress import silent
from cdc_lake.pipeline import merging, table_job, table_span, table_steps
from cdc_lake.pipeline.advance import Advance
from cdc_lake.silver.shape import make_shape
from cdc_lake.testing.messages import boundaries, raw_transaction, table

PER_TRANSACTION = 1_000
ROUNDS_AT_MOST = 16
STATES = ("new", "packed", "sent", "returned")
_START = datetime(2026, 1, 1, tzinfo=UTC)
RULES = [
    {"rule": "not_null", "column": "customer", "on_fail": "quarantine"},
    {"rule": "between", "column": "amount", "min": 0, "max": 100_000, "on_fail": "quarantine"},
    {"rule": "in_set", "column": "state", "values": [*STATES, "changed"], "on_fail": "warn"},
]
BASE = {
    "id": "id",
    "customer": "id * 7919 % 100003",
    "state": "element_at(array('new', 'packed', 'sent', 'returned'), cast(1 + id % 4 AS int))",
    "amount": "cast((id % 99999) / 100 AS decimal(12,2))",
    "quantity": "cast(id % 17 AS int)",
    "note": "concat(md5(cast(id AS string)), md5(cast(id + 1 AS string)), md5(cast(id + 2 AS string)))",
    "email": "concat('customer', id % 100003, '@example.org')",
    "created": "timestamp_seconds(1767225600 + id)",
    "changed": "cast(timestamp_seconds(1767225600 + id) AS timestamp_ntz)",
    "paid": "id % 3 = 0",
}
"""Rows of the table before the first round, over a column `id`."""

NET = pa.schema(
    [
        ("op", pa.string()), ("id", pa.int64()), ("customer", pa.int64()), ("state", pa.string()),
        ("amount", pa.decimal128(12, 2)), ("quantity", pa.int32()), ("note", pa.string()), ("email", pa.string()),
        ("created", pa.timestamp("us", tz="UTC")), ("changed", pa.timestamp("us")), ("paid", pa.bool_()),
    ]
)  # fmt: skip


def orders(name: str) -> Relation:
    """Ten columns: three numbers, three texts, two times, a decimal and a boolean."""
    layout = table(
        f"public.{name}", id="int8", customer="int8", state="text", amount="numeric", quantity="int4", note="text",
        email="text", created="timestamptz", changed="timestamp", paid="bool",
    )  # fmt: skip
    bounded = tuple(replace(c, modifier=(12 << 16 | 2) + 4) if c.name == "amount" else c for c in layout.columns)
    return replace(layout, columns=bounded)


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


class Workload:
    """The changes of one table, one a key: 70 % updates and 5 % deletes of rows spread over it, 25 % inserts."""

    def __init__(self, layout: Relation, rows: int, changes: int) -> None:
        self.layout = layout
        self._rows = rows
        self._changes = changes

    def round(self, number: int) -> tuple[list[Change], pa.Table]:
        """The changes of a round, and their net rows."""
        rng = random.Random(f"{self.layout.table} {number}")
        updates, inserts = self._changes * 70 // 100, self._changes * 25 // 100
        deletes = self._changes - updates - inserts
        # every round has keys of its own, so that no round changes a row that another one deleted
        keys = rng.sample(range(self._rows // ROUNDS_AT_MOST), updates + deletes)
        touched = [key * ROUNDS_AT_MOST + number for key in keys]
        fresh = range(self._rows + number * inserts, self._rows + (number + 1) * inserts)
        plan = [("U", key) for key in touched[:updates]] + [("D", key) for key in touched[updates:]]
        plan += [("I", key) for key in fresh]
        rng.shuffle(plan)
        net = [self._row(op, key, rng) for op, key in plan]
        return [self._change(row) for row in net], pa.Table.from_pylist(net, schema=NET)

    def _row(self, op: str, key: int, rng: random.Random) -> dict[str, Any]:
        if op == "D":
            return {"op": "D", "id": key}
        at = _START + timedelta(microseconds=rng.randrange(10**13))
        return {
            "op": op,
            "id": key,
            "customer": rng.randrange(100_003),
            "state": "changed" if op == "U" else STATES[key % 4],
            "amount": Decimal(rng.randrange(10_000_000)).scaleb(-2),
            "quantity": rng.randrange(17),
            "note": f"{rng.getrandbits(384):096x}",
            "email": f"customer{rng.randrange(100_003)}@example.org",
            "created": at,
            "changed": at.replace(tzinfo=None),
            "paid": rng.random() < 0.3,
        }

    def insert(self, key: int) -> Insert:
        """A new row."""
        return Insert(self.layout, tuple(_printed(v) for v in self._row("I", key, random.Random(key)).values())[1:])

    def _change(self, row: dict[str, Any]) -> Change:
        if row["op"] == "D":
            return Delete(self.layout, (str(row["id"]), *([None] * 9)), OldKind.KEY)
        new = tuple(_printed(row[c.name]) for c in self.layout.columns)
        return Insert(self.layout, new) if row["op"] == "I" else Update(self.layout, new)


def _printed(value: object) -> str:
    """A value as the server prints it."""
    match value:
        case bool():
            return "t" if value else "f"
        case datetime():
            text = value.replace(tzinfo=None).isoformat(" ")
            text = text.rstrip("0") if "." in text else text
            return text + ("+00" if value.tzinfo else "")
    return str(value)


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
    ) -> None:
        """`marks`: as apply makes them by size; otherwise none. `alone`: apply's tables only."""
        names = ["orders"] if tables == 1 else [f"orders_{n}" for n in range(tables)]
        self.fmt, self.folder, self._spark = fmt, root / "net", derive(spark)
        self._own = derive(spark)
        marked = {"row_marks": "auto" if marks else "never"}
        self.project = project_of(root, f"{name}_{fmt}", fmt, names, rules=rules, apply=marked)
        self._peer = peer
        self._alone = alone
        self.workloads = [Workload(orders(one), rows, changes) for one in names]
        self._advance = Advance(self.project, spark, silent)
        self._bronze = DeltaBronze(self.project.bronze)
        self._bronze.begin_stream("bench", 1)
        self._position = 1
        self.folder.mkdir(exist_ok=True)
        for workload in self.workloads:
            for target in self._sides(workload):
                self._fill(target, workload.layout, rows, files)
                mark_when_large(self._own, store(self._own, self.project, target), self.project, target)
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
        silver.create(shape.columns)
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
        took = {}
        sides: list[tuple[str, Callable[[], None]]] = [("ours", lambda: self.apply(phases)), ("plain", self._plain)]
        if self._peer:
            sides.append(("delta-rs", self._delta_rs))
            sides += [("pyiceberg", self._pyiceberg)] * (self.fmt == "iceberg")
        for name, side in sides if number % 2 else reversed(sides):
            begun = time.perf_counter()
            side()
            took[name] = time.perf_counter() - begun
        return took

    def _net(self, n: int) -> str:
        return str(self.folder / f"{self.fmt}_{n}.parquet")

    def apply(self, phases: Phases | None = None) -> None:
        """Apply what was landed."""
        with phases.measured() if phases else ExitStack():
            self._advance.run(None, threading.Event())
        for error in self._advance.done.broken.values():
            raise error

    def _plain(self) -> None:
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 - after the session

        for n, workload in enumerate(self.workloads):
            target = self._both(workload)[1]
            F.broadcast(self._spark.read.parquet(self._net(n))).createOrReplaceTempView("net")
            columns = [c.name for c in workload.layout.columns]
            self._spark.sql(
                f"MERGE INTO {store(self._spark, self.project, target).name} t USING net s ON t.id = s.id "
                "WHEN MATCHED AND s.op = 'D' THEN DELETE "
                f"WHEN MATCHED THEN UPDATE SET {', '.join(f'{c} = s.{c}' for c in columns[1:])} "
                f"WHEN NOT MATCHED AND s.op <> 'D' THEN INSERT ({', '.join(columns)}) "
                f"VALUES ({', '.join(f's.{c}' for c in columns)})"
            )

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
            table = iceberg_catalog(self.project).load_table((target.namespace, target.name))
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

    def _content(self, target: Target) -> tuple[Any, ...]:
        name = store(self._own, self.project, target).name
        return tuple(self._own.sql(f"SELECT count(*), sum(cast(xxhash64(*) AS decimal(38,0))) FROM {name}").first())

    def close(self) -> None:
        self._advance.__exit__(None, None, None)


class Phases:
    """Where the time of `Advance.run` goes: seconds of our steps, each without what it calls of the others.

    With one table all steps run one after the other, so they add up to the whole.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._running: dict[int, list[float]] = defaultdict(list)
        self._lock = threading.Lock()

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        inner = self._running[threading.get_ident()]
        inner.append(0.0)
        begun = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - begun
            with self._lock:
                self.seconds[name] += took - inner.pop()
            if inner:
                inner[-1] += took

    def timed(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def around(*given: Any, **named: Any) -> Any:
            with self.of(name):
                return call(*given, **named)

        return around

    def _commit(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def around(silver: Any, stream: str, base: Any, position: int, work: Any) -> Any:
            with self.of("commit: branch, marker"):
                return call(silver, stream, base, position, self.timed(work, "merge"))

        return around

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure inside."""
        places: list[tuple[Any, str, str]] = [
            (table_steps, "read_marker", "read markers"),
            (table_steps, "record", "holds"),
            (table_job, "outline", "outline"),
            (table_steps, "outline", "outline"),
            (table_span, "survey", "survey"),
            (table_span, "evolve", "look up columns"),
            (table_span, "mark_when_large", "weigh the table"),
            (merging, "strategy_of", "weigh the table"),
            (merging, "written", "read what was written"),
            (table_span, "read_changes", "open bronze files"),
            (table_span, "fold", "build the plan"),
            (DeltaSilver, "marker", "read markers"),
            (IcebergSilver, "marker", "read markers"),
            (IcebergSilver, "_publish", "publish the branch"),
            (ControlTables, "read", "holds"),
            (ControlTables, "last_cut", "cut"),
            (ControlTables, "record", "cut"),
            (BronzeReader, "_commits", "bronze log"),
            (BronzeReader, "state", "bronze log"),
            (BronzeReader, "files", "bronze log"),
            (BronzeReader, "layouts", "bronze log"),
        ]
        with ExitStack() as patched:
            for owner, name, phase in places:
                patched.enter_context(patch.object(owner, name, self.timed(getattr(owner, name), phase)))
            for silver in (DeltaSilver, IcebergSilver):
                patched.enter_context(patch.object(silver, "commit", self._commit(silver.commit)))
            begun = time.perf_counter()
            before = dict(self.seconds)
            yield
            took = time.perf_counter() - begun
            inside = sum(seconds - before.get(name, 0.0) for name, seconds in self.seconds.items())
            self.seconds["everything else"] += took - inside
