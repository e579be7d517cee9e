"""Bronze to silver through Spark: any spans, any restart, any replay gives the oracle's state, on Delta and on Iceberg."""

from __future__ import annotations

import os
import random
import shutil
import threading
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import cdc_lake
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Project
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.marker import read_marker
from cdc_lake.lake.read import read_silver
from cdc_lake.model.relation import ReplicaIdentity, TableName
from cdc_lake.model.transaction import Transaction
from cdc_lake.observe.progress import silent
from cdc_lake.pipeline.apply import apply
from cdc_lake.testing.histories import History, interleave, with_column
from cdc_lake.testing.messages import TYPE_OIDS, raw_transaction, table
from cdc_lake.testing.oracle import Oracle

from .conftest import make_project

pytestmark = pytest.mark.spark

SEEDS = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
GIVEN = os.environ.get("CDC_LAKE_SEED")
PLAIN = table("public.plain", id="int4", amount="int4", body="text")
WHOLE = table(
    "public.whole", key=["a", "b"], identity=ReplicaIdentity.FULL, a="int4", b="text", amount="int4", body="text"
)
RULE = {"rule": "between", "column": "amount", "min": 0, "max": 89, "on_fail": "quarantine"}
LIMIT = 89


def breaks(name: TableName, row: dict[str, str | None]) -> bool:
    return name == PLAIN.table and row["amount"] is not None and int(row["amount"]) > LIMIT


def lake(root: Path, spark_root: Path, fmt: str, seed: int) -> Project:
    """A project of its own inside the session's lake, so that its Iceberg catalog is the session's."""
    name = f"p{seed}_{fmt}"
    tables = [{"from": "public.plain", "rules": [RULE]}]
    return make_project(
        spark_root,
        name,
        silver={"defaults": {"format": fmt, "namespace": name}, "tables": tables},
        snapshot={"mode": "none"},
        apply={"span_rows": 30 + seed % 60, "parallelism": 2},
    )


Rows: TypeAlias = dict[tuple[str | None, ...], dict[str, str | None]]


def texts(project: Project, name: TableName) -> Rows:
    return by_key(read_silver(project, project.target(name)).to_pylist(), name)


def by_key(rows: list[dict[str, Any]], name: TableName) -> Rows:
    keys = ("id",) if name == PLAIN.table else ("a", "b")
    said = [{c: None if v is None else str(v) for c, v in row.items()} for row in rows]
    found = {tuple(row[k] for k in keys): row for row in said}
    assert len(found) == len(said), "one row a key"
    return found


def run(project: Project, spark: Any) -> Any:
    return apply(project, once=True, stop=threading.Event(), tell=silent, spark=spark)


def make_history(seed: int) -> list[Transaction]:
    history = History(seed, [PLAIN, WHOLE], truncates=40)
    first = interleave(seed, [history], 25)
    history.add_column(with_column(PLAIN, "note", "text", TYPE_OIDS["text"]))
    return first + interleave(seed, [history], 25, first=5000)


@pytest.mark.parametrize("fmt", ["delta", "iceberg"])
def test_any_spans_and_restarts_give_the_oracles_state(spark: Any, lake_root: Path, tmp_path: Path, fmt: str) -> None:
    for seed in [int(GIVEN)] if GIVEN else [random.randrange(1 << 20) for _ in range(SEEDS)]:
        print(f"seed {seed}, {fmt}")
        project = lake(tmp_path, lake_root, fmt, seed)
        transactions = make_history(seed)
        oracle = Oracle(fails=breaks)
        bronze = DeltaBronze(project.bronze, durability="os")
        bronze.begin_stream("test", 10)
        cut = random.Random(seed)
        at = 0
        states: dict[int, dict[TableName, Rows]] = {}
        while at < len(transactions):
            size = cut.randint(1, 20)
            bronze.append([raw_transaction(t) for t in transactions[at : at + size]])
            oracle.run(transactions[at : at + size])
            at += size
            if cut.random() < 0.5 or at >= len(transactions):
                if cut.random() < 0.4:  # the checkpoint is a hint: it may be gone
                    shutil.rmtree(project.checkpoint, ignore_errors=True)
                if cut.random() < 0.4:  # the cuts may lag behind the tables: a crash before the row was written
                    ControlTables(project.control).delete("cuts", f"position > {transactions[at // 2].bounds.position}")
                run(project, spark)
                for name in (PLAIN.table, WHOLE.table):
                    expected = oracle.tables.get(name, {})
                    found = texts(project, name) if read_marker(project, project.target(name), "test").version else {}
                    with_note = {k: {**dict.fromkeys(next(iter(found.values()), {})), **r} for k, r in expected.items()}
                    assert found == with_note
                    if found:
                        states.setdefault(transactions[:at][-1].bounds.position, {})[name] = found
        cuts = ControlTables(project.control).cut_places()["position"].to_pylist()
        for position in states.keys() & set(cuts):  # the others were deleted above
            session, tables = cdc_lake.session(project, as_of=position), states[position]
            assert {name: by_key(session.read(str(name)).to_pylist(), name) for name in tables} == tables
        held = ControlTables(project.control).read("held").to_pylist()
        recorded = sorted((r["position"], r["ordinal"]) for r in held if r["reason"] != "closed")
        assert recorded == sorted(oracle.held)
