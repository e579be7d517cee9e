"""A small lake that says the same every time: two tables, a quarantined change, a paused table, cuts, a pin, runs.

Made without a server and without Spark from real tables; its source cannot be reached.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.loader import load_project
from cdc_lake.config.project import Project
from cdc_lake.control.cuts import ACTIVE, PAUSED, TableState, table_facts
from cdc_lake.control.quarantine import record
from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, OldKind, Transaction, Update
from cdc_lake.model.position import Span
from cdc_lake.model.relation import TableName
from cdc_lake.tables.control_schema import CutRow, PauseRow, RunRow, SnapshotRow, StreamRow
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake_testing.messages import boundaries, raw_transaction, table

T0 = datetime(2026, 1, 1, tzinfo=UTC)
STREAM = "pg:7300000000000000001:shop:shop:0/3E8"
ORDERS = table("public.orders", id="int8", amount="int4", note="text")
ITEMS = table("public.items", id="int8", title="text")
YAML = """\
version: 1
pipeline: shop

source:
  type: postgres
  host: 127.0.0.1
  port: 1
  database: shop
  user: cdc
  tables: ["public.*"]

silver:
  tables:
    - from: public.orders
      rules:
        - {rule: between, column: amount, min: 0, max: 100, on_fail: quarantine}
"""
BROKEN = YAML.replace("database:", "databse:").replace("on_fail: quarantine", "on_fail: maybe")


def golden_lake(root: Path) -> Project:
    """Make the project in an empty folder."""
    (root / "pipelines").mkdir(parents=True)
    file = root / "pipelines" / "shop.yaml"
    file.write_text(YAML)
    (root / "broken.yaml").write_text(BROKEN)
    project = load_project(file)
    _land(project)
    control = ControlTables(project.control, durability="os")
    control.record(StreamRow(1, STREAM, 1000, "shop", "7300000000000000001", "shop", "lsn", T0))
    copied = json.dumps([{"relation": "public.orders", "layout": 1, "rows": 1, "chunks": 1}])
    control.record(SnapshotRow("initial-1", STREAM, 1, 1000, copied, "complete", T0))
    _silver(project, control)
    control.record(PauseRow("public.items", True, T0))
    control.record(RunRow("4f5a6b7c8d9e", "apply", T0, T0 + timedelta(seconds=5), "done", "{}"))
    return project


def _land(project: Project) -> None:
    bronze = DeltaBronze(project.bronze, durability="os")
    bronze.begin_stream(STREAM, 1000)
    bronze.append_snapshot("initial-1", 0, ORDERS, pa.array([["1", "10", "new"]]), 0, 1000)
    histories: dict[int, tuple[Change, ...]] = {
        2000: (Insert(ORDERS, ("2", "20", "new")), Insert(ITEMS, ("1", "pen"))),
        3000: (Update(ORDERS, ("2", "25", UNCHANGED)), Delete(ORDERS, ("1", None, None), OldKind.KEY)),
        4000: (Update(ORDERS, ("2", "999", "far too much")), Insert(ITEMS, ("2", "ink"))),
        5000: (Insert(ORDERS, ("3", "30", "waits to be applied")),),
    }
    for position, changes in histories.items():
        bronze.append([raw_transaction(Transaction(boundaries(position), changes))])


def _silver(project: Project, control: ControlTables) -> None:
    """Two cuts; in the second one a change of an order is held, and items is paused."""
    orders, items = (project.target(TableName("public", name)) for name in ("orders", "items"))
    rows = {
        2000: pa.table({"id": pa.array([1, 2]), "amount": pa.array([10, 20], pa.int32()), "note": ["new", "new"]}),
        4000: pa.table({"id": pa.array([2]), "amount": pa.array([25], pa.int32()), "note": ["new"]}),
    }
    write_deltalake(str(project.silver_path(items)), pa.table({"id": pa.array([1]), "title": ["pen"]}))
    quarantined = {
        "position": 4000, "ordinal": 1, "op": "U", "rules": ["between_amount"], "key": ["2"], "from_key": ["2"],
        "layout": ORDERS.layout, "new": ["2", "999", "far too much"], "old": None, "old_kind": None, "unchanged": [],
    }  # fmt: skip
    for number, (position, content) in enumerate(rows.items()):
        folder = str(project.silver_path(orders))
        write_deltalake(folder, content, mode="overwrite")
        version = DeltaTable(folder).version()
        if number:
            change = pa.Table.from_pylist([quarantined])
            record(control, orders, STREAM, Span(1, 2000, 4000), 1, change, ())
        states = {
            "public.orders": TableState(orders.label, "delta", version, position, ACTIVE, number),
            "public.items": TableState(items.label, "delta", 0, 2000, PAUSED if number else ACTIVE, 0),
        }
        time = T0 + timedelta(hours=number)
        control.record(CutRow(1, STREAM, position, time, table_facts(states), time + timedelta(minutes=1)))
