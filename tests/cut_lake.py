"""A lake of cuts made by hand, without a server and without Spark: transactions, silver versions, and rows of `cuts`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.control.cuts import ACTIVE, TableState, table_facts
from cdc_lake.model.change import Boundaries, Insert, Transaction
from cdc_lake.model.relation import TableName
from cdc_lake.tables.catalog import catalog_address, open_catalog
from cdc_lake.tables.control_schema import CutRow
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.iceberg_table_log import iceberg_table
from cdc_lake_testing.messages import raw_transaction, table
from tests.pipeline_file import make_project

T0 = datetime(2026, 1, 1, tzinfo=UTC)
T = table("public.t", id="int4")
PG = "pg:7:shop:cdc:0/64"
GAUSS_LSN = "gauss:7:shop:cdc:lsn:50@0/64"
GAUSS_CSN = "gauss:7:shop:cdc:csn:50@0/64"


def at(minutes: float) -> datetime:
    return T0 + timedelta(minutes=minutes)


class CutLake:
    """A pipeline's lake; `fmt` of its silver tables; `silver` and other `sections` of its pipeline file."""

    def __init__(
        self, root: Path, fmt: str = "delta", stream: str = PG, *, silver: dict[str, Any] | None = None, **sections: Any
    ) -> None:
        tables = {"defaults": {"format": fmt}, **(silver or {})}
        self.project = make_project(root, silver=tables, **sections)
        self.bronze = DeltaBronze(self.project.bronze, durability="os")
        self.control = ControlTables(self.project.control, durability="os")
        self.epoch = 0
        self.begin(stream)

    def begin(self, stream: str) -> None:
        """A new stream."""
        self.stream = stream
        self.epoch += 1
        self.bronze.begin_stream(stream, 50 if stream == GAUSS_CSN else 100)

    def land(self, position: int, *, csn: int | None = None, lsn: int | None = None, minutes: float = 0) -> None:
        """A transaction in bronze."""
        micros = int(at(minutes).timestamp() * 1_000_000)
        bounds = Boundaries(position, position, lsn or position, csn=csn, xid=position, commit_ts=micros)
        self.bronze.append([raw_transaction(Transaction(bounds, (Insert(T, (str(position),)),)))])

    def cut(self, position: int, minutes: float | None = None, **tables: TableState) -> None:
        """A cut at a position whose latest commit time is that many minutes behind T0; it is written an hour later."""
        states = {f"public.{name}": state for name, state in tables.items()}
        time = None if minutes is None else at(minutes)
        written = at(60 + (minutes or 0))
        self.control.record(CutRow(self.epoch, self.stream, position, time, table_facts(states), written))

    def write(self, name: str, rows: pa.Table, *, append: bool = False) -> int:
        """A version of the silver table of `public.<name>` with these rows."""
        target = self.project.target(TableName("public", name))
        if target.format == "delta":
            folder = str(self.project.silver_path(target))
            write_deltalake(folder, rows, mode="append" if append else "overwrite", schema_mode="overwrite")
            return DeltaTable(folder).version()
        catalog = open_catalog(catalog_address(self.project))
        catalog.create_namespace_if_not_exists(target.namespace)
        made: Any = catalog.create_table_if_not_exists((target.namespace, target.name), rows.schema)
        if append or made.current_snapshot() is None:
            made.append(rows)
        else:
            made.overwrite(rows)
        head = made.current_snapshot()
        assert head is not None
        return int(head.snapshot_id)

    def state(self, name: str, version: int | None, position: int, **more: Any) -> TableState:
        """A table in a cut."""
        target = self.project.target(TableName("public", name))
        facts = {"state": ACTIVE, "quarantined_keys": 0, **more}
        return TableState(target.label, target.format, version, position, **facts)


def ids(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int32())})


def listed(rows: pa.Table) -> list[int]:
    return sorted(rows["id"].to_pylist())


def forget(lake: CutLake, name: str, version: int) -> None:
    """Remove a version as vacuum or expiry do."""
    target = lake.project.target(TableName("public", name))
    if target.format == "delta":
        DeltaTable(str(lake.project.silver_path(target))).vacuum(0, dry_run=False, enforce_retention_duration=False)
        return
    table = iceberg_table(lake.project, target)
    assert table is not None
    table.maintenance.expire_snapshots().by_id(version).commit()
