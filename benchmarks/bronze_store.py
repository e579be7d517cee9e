"""Bronze in an object store against a local folder: commits side by side, requests a commit, opening after many.

    python benchmarks/bronze_store.py [--rounds 30] [--rows 10000] [--commits 200]

The store is moto's server in this process, so its own work counts as the store's. The two take turns, so that what else
the machine does falls on both; the ratio is what counts. A request over a network adds its round trip to each of those
counted.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from bronze_commit import transactions

from cdc_lake.bronze.data_files import BronzeTable
from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.bronze.iceberg_table import IcebergBronzeTable
from cdc_lake.bronze.writer import TableBronze
from cdc_lake.config.model import ObjectAddress
from cdc_lake.tables.catalog import CatalogAddress
from cdc_lake.tables.delta_storage import LocalDeltaStorage, ObjectStoreDeltaStorage
from cdc_lake.tables.object_store import ObjectStore
from cdc_lake.tables.store_options import pyiceberg_properties
from cdc_lake_testing.faulty_store import FaultyStore
from cdc_lake_testing.object_store import LocalStore, storage_at


def table(kind: str, where: str, folder: Path, endpoint: str) -> BronzeTable:
    """An empty bronze of its own."""
    storage, key = storage_at(endpoint), f"{kind}/{folder.name}"
    if kind == "delta":
        place = (
            LocalDeltaStorage(folder)
            if where == "local"
            else ObjectStoreDeltaStorage(ObjectStore(storage), ObjectAddress("lake", key))
        )
        return DeltaBronzeTable(place)
    catalog = f"sqlite:///{folder}.db"
    if where == "local":
        return IcebergBronzeTable(CatalogAddress("lake", "sql", catalog, f"file://{folder}"), "shop")
    properties = tuple(sorted(pyiceberg_properties(storage).items()))
    return IcebergBronzeTable(CatalogAddress("lake", "sql", catalog, f"s3://lake/{key}", properties), "shop")


def commits(kind: str, folder: Path, store: LocalStore, rounds: int, rows: int) -> None:
    """Latency of a commit, local and in the store, in turns."""
    writers = {
        where: TableBronze(table(kind, where, folder / f"{kind}-{where}", store.endpoint))
        for where in ("local", "store")
    }
    times: dict[str, list[float]] = {where: [] for where in writers}
    for writer in writers.values():
        writer.begin_stream("s", 0)
    for turn in range(rounds):
        batch = transactions(1 + turn * 100, 100, rows // 100)
        for where, writer in writers.items():
            begun = time.perf_counter()
            writer.append(batch)
            times[where].append((time.perf_counter() - begun) * 1000)
    local, stored = (statistics.median(times[where]) for where in ("local", "store"))
    p95 = {where: sorted(values)[int(0.95 * len(values))] for where, values in times.items()}
    print(
        f"{kind:<8} {rows} rows: local {local:.0f} ms (p95 {p95['local']:.0f}), "
        f"store {stored:.0f} ms (p95 {p95['store']:.0f}), ratio {stored / local:.2f}",
        flush=True,
    )


def requests(kind: str, folder: Path, store: LocalStore, many: int) -> None:
    """Requests of one commit and of one opening, after a few and after many commits."""
    with FaultyStore(store) as proxy:
        place = folder / f"{kind}-requests"
        writer = TableBronze(table(kind, "store", place, proxy.endpoint))
        writer.begin_stream("s", 0)
        for turn in range(1, many + 1):
            proxy.requests.clear()
            writer.append(transactions(turn, 1, 10))
            if turn in {10, many}:
                commit = len(proxy.requests)
                proxy.requests.clear()
                begun = time.perf_counter()
                TableBronze(table(kind, "store", place, proxy.endpoint)).state()
                took = (time.perf_counter() - begun) * 1000
                to_open = f"{len(proxy.requests)} and {took:.0f} ms to open"
                print(f"{kind:<8} after {turn} commits: {commit} requests a commit, {to_open}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--commits", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, LocalStore() as store:
        store.bucket("lake")
        for kind in ("delta", "iceberg"):
            commits(kind, Path(temporary), store, given.rounds, given.rows)
            requests(kind, Path(temporary), store, given.commits)


if __name__ == "__main__":
    main()
