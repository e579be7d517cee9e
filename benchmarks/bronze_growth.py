"""A bronze table with many commits: what opening it costs, beside a table of ten that is opened in turns with it.

Commits of one row, with the upkeep that a receiver has beside it, as if a second passed between two of them.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any
from unittest import mock

from end_state import chained
from measured import peak_mib, table
from written import Written

from cdc_lake.bronze import compaction
from cdc_lake.bronze.compaction import MaintainedTable
from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.bronze.iceberg_table import IcebergBronzeTable
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import TableBronze
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.model.change import Insert, Transaction
from cdc_lake.model.position import Span
from cdc_lake.tables.catalog import CatalogAddress
from cdc_lake.tables.delta_storage import LocalDeltaStorage
from cdc_lake_testing.messages import boundaries, raw_transaction
from cdc_lake_testing.messages import table as relation

NARROW = relation("public.notes", id="int8", note="text")
AFTER = 100  # commits between two upkeeps, as the receiver has it
KEPT = 3600.0
OPENINGS = 50


def table_of(folder: Path, fmt: str, *, durable: bool) -> MaintainedTable:
    if fmt == "delta":
        return DeltaBronzeTable(LocalDeltaStorage(folder, durable=durable))
    folder.mkdir(parents=True, exist_ok=True)
    uri, warehouse = f"sqlite:///{folder / 'catalog.db'}", f"file://{folder / 'warehouse'}"
    return IcebergBronzeTable(CatalogAddress("lake", "sql", uri, warehouse, durable=durable), "bench")


def p95(times: list[float]) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * 0.95))]


def growth(folder: Path, fmt: str, commits: int) -> dict[str, Any]:
    """What opening costs after ten commits and after all of them, and how long commits take."""
    young, old = folder / "young", folder / "old"
    committed(young, fmt, 10)
    watch, used = Written(old), time.process_time()
    times = committed(old, fmt, commits)
    cpu, new = time.process_time() - used, watch.since()
    chained(f"{fmt}, many commits", BronzeReader(table_of(old, fmt, durable=False)), commits, commits)
    early, late = openings([young, old], fmt)
    return {
        "commits": commits,
        "costs": {
            "seconds": sum(times) / 1000,
            "cpu": cpu,
            "rss_mib": peak_mib(),
            "bytes_written": new["bytes"],
            "files_written": new["files"],
        },
        "files": len(BronzeReader(table_of(old, fmt, durable=False)).files().paths),
        "early_ms": early["wall"],
        "late_ms": late["wall"],
        "early_cpu_ms": early["cpu"],
        "late_cpu_ms": late["cpu"],
        "first_ms": statistics.median(times[:100]),
        "last_ms": statistics.median(times[-100:]),
        "last_p95_ms": p95(times[-500:]),
        "span_ms": reading(old, fmt, commits),
    }


def committed(folder: Path, fmt: str, commits: int) -> list[float]:
    """Make a table by that many commits of one row, with upkeep; milliseconds of each."""
    folder.mkdir(parents=True)
    writer, kept = TableBronze(table_of(folder, fmt, durable=False)), table_of(folder, fmt, durable=False)
    writer.begin_stream("s", 0)
    times: list[float] = []
    for position in range(1, commits + 1):
        began = time.perf_counter()
        writer.append([note(position)])
        times.append((time.perf_counter() - began) * 1000)
        if position % AFTER == 0:
            compaction.prepare(kept)
            with mock.patch("time.time_ns", return_value=time.time_ns() - (commits - position) * 10**9):
                compaction.compact(kept, AFTER)  # says when files left: Delta names them for ten minutes
            age(folder, position)
            compaction.tidy(kept, KEPT, float(position))
    return times


def openings(folders: list[Path], fmt: str) -> list[dict[str, float]]:
    """Milliseconds to open each table and read its markers, in turns; the median of many."""
    took: list[dict[str, list[float]]] = [{"wall": [], "cpu": []} for _ in folders]
    for turn in range(OPENINGS + 1):
        for folder, times in zip(folders, took, strict=True):
            began, used = time.perf_counter(), time.process_time()
            TableBronze(table_of(folder, fmt, durable=False)).state()
            if turn:  # the first one warms up
                times["wall"].append((time.perf_counter() - began) * 1000)
                times["cpu"].append((time.process_time() - used) * 1000)
    return [{kind: statistics.median(some) for kind, some in times.items()} for times in took]


def reading(folder: Path, fmt: str, commits: int) -> float:
    """Milliseconds to read the COMMIT rows of the last ten commits, opened anew."""
    began = time.perf_counter()
    found = BronzeReader(table_of(folder, fmt, durable=False)).commits(Span(1, commits - 10, commits))
    assert len(found) == 10
    return (time.perf_counter() - began) * 1000


def age(folder: Path, second: int) -> None:
    """What was made since the last call is as old as its second."""
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".db" and path.stat().st_mtime > 1e9:
            os.utime(path, (second, second))


def growth_table(grown: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return table(
        "Many commits of one row, with upkeep",
        ["format", "commits", "files", "open after 10, ms", "open after all, ms", "ratio", "commit p95, ms"],
        [
            [
                fmt, f"{g['commits']:,}", f"{g['files']}", f"{g['early_ms']:.1f}", f"{g['late_ms']:.1f}",
                f"{g['late_ms'] / g['early_ms']:.2f}", f"{g['last_p95_ms']:.1f}",
            ]
            for fmt, g in grown.items()
        ],
    )  # fmt: skip


def note(position: int) -> BufferedTransaction:
    return raw_transaction(Transaction(boundaries(position), (Insert(NARROW, (str(position), "a note")),)))
