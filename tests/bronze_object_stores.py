"""Bronze in each format in an object store: the suites of a local bronze run over it, and those of failing stores."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from cdc_lake.bronze.data_files import BronzeTable
from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.bronze.iceberg_table import IcebergBronzeTable
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import TableBronze
from cdc_lake.config.model import Storage
from cdc_lake.tables.catalog import CatalogAddress, open_catalog
from cdc_lake.tables.delta_storage import ObjectStoreDeltaStorage
from cdc_lake.tables.object_store import ObjectStore
from cdc_lake.tables.store_options import pyiceberg_properties
from cdc_lake_testing.azurite import Azurite
from cdc_lake_testing.object_store import LocalStore

FORMATS = ("delta", "iceberg")
BUCKET = "lake"
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Stored:
    """A bronze table of one format in a folder of the bucket; `folder`: of this machine, for a catalog."""

    format: str
    store: LocalStore | Azurite
    folder: Path
    key: str
    patience: int = 2_000

    def table(self, endpoint: str | None = None) -> BronzeTable:
        """By way of `endpoint`, straight to the store by default."""
        storage = self.store.storage(endpoint, patience=self.patience)
        if self.format == "delta":
            return DeltaBronzeTable(ObjectStoreDeltaStorage(ObjectStore(storage), self.store.address(BUCKET, self.key)))
        return IcebergBronzeTable(self._catalog(storage), "shop")

    def _catalog(self, storage: Storage) -> CatalogAddress:
        uri, warehouse = f"sqlite:///{self.folder / 'catalog.db'}", str(self.store.address(BUCKET, self.key))
        properties = tuple(sorted(pyiceberg_properties(storage).items()))
        return CatalogAddress("lake", "sql", uri, warehouse, properties, durable=False)

    def writer(self, endpoint: str | None = None) -> TableBronze:
        return TableBronze(self.table(endpoint))

    def reader(self, endpoint: str | None = None) -> BronzeReader:
        return BronzeReader(self.table(endpoint))

    def data_files(self) -> list[str]:
        """The data files in the store, whether a version names them or not."""
        objects = ObjectStore(self.store.storage()).filesystem
        found = objects.get_file_info(pafs.FileSelector(f"{BUCKET}/{self.key}", recursive=True, allow_not_found=True))
        return sorted(f.path for f in found if f.path.endswith(".parquet") and "_delta_log" not in f.path)

    def named(self) -> set[str]:
        """The files that versions of an Iceberg table name, and those that list them, as keys; of Delta none."""
        if self.format == "delta":
            return set()
        table = open_catalog(self._catalog(self.store.storage())).load_table(("bronze", "shop"))
        found = {table.metadata_location}
        for version in table.metadata.snapshots:
            found.add(version.manifest_list)
            for manifest in version.manifests(table.io):
                found.add(manifest.manifest_path)
                found.update(entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))
        where = str(self.store.address(BUCKET, self.key))
        return {f"{BUCKET}/{self.key}{name.removeprefix(where)}" for name in found}

    @property
    def commit_call(self) -> tuple[Any, str]:
        """The library's call that makes a commit, for a test to break."""
        return (DeltaTable, "create_write_transaction") if self.format == "delta" else (SqlCatalog, "commit_table")


@pytest.fixture(scope="module")
def store() -> Iterator[LocalStore]:
    with LocalStore() as running:
        running.bucket(BUCKET)
        yield running


def stored(kind: str, store: LocalStore | Azurite, folder: Path, **given: int) -> Stored:
    """At a key that nothing else has."""
    return Stored(kind, store, folder, f"bronze/t{next(_NUMBERS)}", **given)
