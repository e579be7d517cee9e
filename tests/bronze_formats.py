"""Bronze in each format, at a place of its own: what the suites of writer, reader and chain run over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from cdc_lake.bronze.compaction import MaintainedTable
from cdc_lake.bronze.data_files import BronzeTable
from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.bronze.iceberg_table import IcebergBronzeTable
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import TableBronze
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.model.change import Insert, Transaction
from cdc_lake.tables.catalog import CatalogAddress, open_catalog
from cdc_lake.tables.delta_storage import LocalDeltaStorage
from cdc_lake_testing.messages import boundaries, raw_transaction, table

FORMATS = ("delta", "iceberg")
ORDERS = table("public.orders", id="int8", note="text")


@dataclass(frozen=True)
class Place:
    """A bronze table of one format below a folder, whether it is there or not."""

    format: str
    folder: Path

    def table(self, *, durable: bool = False) -> BronzeTable:
        if self.format == "delta":
            return DeltaBronzeTable(LocalDeltaStorage(self.folder, durable=durable))
        return IcebergBronzeTable(self.address(durable=durable), "shop")

    def writer(self, *, durable: bool = False) -> TableBronze:
        return TableBronze(self.table(durable=durable))

    def reader(self) -> BronzeReader:
        return BronzeReader(self.table())

    def address(self, *, durable: bool = False) -> CatalogAddress:
        """The catalog of an Iceberg table."""
        uri, warehouse = f"sqlite:///{self.folder / 'catalog.db'}", f"file://{self.folder / 'warehouse'}"
        return CatalogAddress("lake", "sql", uri, warehouse, durable=durable)

    def data_files(self) -> list[Path]:
        """The data files on the disk, whether a version names them or not."""
        return sorted(path for path in self.folder.rglob("*.parquet") if "_delta_log" not in path.parts)

    @property
    def commit_call(self) -> tuple[Any, str]:
        """The library's call that makes a commit, for a test to break."""
        return (DeltaTable, "create_write_transaction") if self.format == "delta" else (SqlCatalog, "commit_table")


@pytest.fixture(params=FORMATS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path / "b")


def transaction(position: int, rows: int = 1) -> BufferedTransaction:
    return raw_transaction(
        Transaction(boundaries(position), tuple(Insert(ORDERS, (f"{position}{n}", "note")) for n in range(rows)))
    )


def loaded(place: Place) -> Table:
    """The table as its Iceberg catalog has it."""
    return open_catalog(place.address()).load_table(("bronze", "shop"))


def maintained(place: Place) -> MaintainedTable:
    table = place.table()
    assert isinstance(table, DeltaBronzeTable | IcebergBronzeTable)
    return table
