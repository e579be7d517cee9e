"""Bronze commits: their time, what the chain and Iceberg cost, and what a table with many of them costs to open.

    python benchmarks/bronze_commit.py [--commits 10000] [--folder DIR] [--growth FORMAT] [--no-save]

Rows have 10 columns of text, about 250 bytes, a fifth of them updates. A commit is what the receiver waits for before
it confirms: rows, chain, Parquet, commit, sync; their columns were made while the batch was open, as `pipeline.landing`
does it. Kinds that are compared take turns in one run. Growth: commits of
one row, with the upkeep that a receiver has beside it, as if a second passed between two of them; a table of ten
commits beside it is opened in turns with it. `--growth` measures that alone, of one format, and shows it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from measured import conclude, peak_mib, show, table

from cdc_lake.bronze import upkeep
from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.bronze.iceberg_table import IcebergBronzeTable
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.upkeep import MaintainedTable
from cdc_lake.bronze.writer import DeltaBronze, TableBronze
from cdc_lake.decode.columnar import tabulate
from cdc_lake.decode.raw import RawTransaction
from cdc_lake.lake.catalog import CatalogAddress
from cdc_lake.lake.delta_place import LocalPlace
from cdc_lake.model.change import Change, Insert, Update
from cdc_lake.model.span import Span
from cdc_lake.model.transaction import Transaction
from cdc_lake.testing.messages import boundaries, raw_transaction
from cdc_lake.testing.messages import table as relation

WIDE = relation("public.orders", id="int8", **{f"c{n}": "text" for n in range(9)})
NARROW = relation("public.notes", id="int8", note="text")
ROWS = 10_000
FORMATS = ("delta", "iceberg")
AFTER = 100  # commits between two upkeeps, as the receiver has it
KEPT = 3600.0
OPENINGS = 50
NOTHING = bytes(32)


def change(n: int) -> Change:
    row = (str(n), *(f"value {n * k % 9973} of column {k}" for k in range(9)))
    return Update(WIDE, row) if n % 5 == 0 else Insert(WIDE, row)


def transactions(start: int, count: int, rows: int) -> list[RawTransaction]:
    return [
        raw_transaction(Transaction(boundaries(start + n), tuple(change(n * rows + k) for k in range(rows))))
        for n in range(count)
    ]


def note(position: int) -> RawTransaction:
    return raw_transaction(Transaction(boundaries(position), (Insert(NARROW, (str(position), "a note")),)))


def table_of(folder: Path, fmt: str, *, durable: bool) -> MaintainedTable:
    if fmt == "delta":
        return DeltaBronzeTable(LocalPlace(folder, durable=durable))
    folder.mkdir(parents=True, exist_ok=True)
    uri, warehouse = f"sqlite:///{folder / 'catalog.db'}", f"file://{folder / 'warehouse'}"
    return IcebergBronzeTable(CatalogAddress("lake", "sql", uri, warehouse, durable=durable), "bench")


def p95(times: list[float]) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * 0.95))]


# ── commits ──


def latency(folder: Path, turns: int) -> dict[str, list[float]]:
    """Milliseconds of each commit of `ROWS` rows, by format and durability."""
    kinds = [(fmt, durable) for fmt in ("delta", "iceberg") for durable in (True, False)]
    writers = {kind: TableBronze(table_of(folder / f"{kind[0]}{kind[1]}", kind[0], durable=kind[1])) for kind in kinds}
    for writer in writers.values():
        writer.begin_stream("s", 0)
    times: dict[str, list[float]] = {f"{fmt}, {'fsync' if durable else 'os'}": [] for fmt, durable in kinds}
    position = 1
    for turn in range(turns + 1):
        batch = transactions(position, ROWS // 100, 100)
        position += len(batch)
        columns = tabulate(batch)
        for (_, writer), took in zip(writers.items(), times.values(), strict=True):
            began = time.perf_counter()
            writer.append(batch, lambda _, made=columns: made)
            if turn:  # the first one warms up
                took.append((time.perf_counter() - began) * 1000)
    return times


@contextmanager
def without_chain() -> Iterator[None]:
    """Everything but the digests of rows and the hashes of transactions."""
    places: dict[str, Callable[..., Any]] = {
        "cdc_lake.decode.hashing.digests_between": lambda _prefix, _data, borders, _head: NOTHING * (len(borders) - 1),
        "cdc_lake.decode.columnar.digest_of": lambda _: NOTHING,
        "cdc_lake.decode.plain.digest_of": lambda _: NOTHING,
        "cdc_lake.bronze.rows.content_of": lambda _: NOTHING,
        "cdc_lake.bronze.rows.chain_of": lambda *_: NOTHING,
    }
    with ExitStack() as patched:
        for place, nothing in places.items():
            patched.enter_context(mock.patch(place, nothing))
        yield


def chain_cost(folder: Path, count: int, rows: int, turns: int) -> tuple[float, float]:
    """Processor seconds of landing a batch, with and without the chain; the best of each."""
    batch, best = transactions(1, count, rows), [float("inf")] * 2
    for turn in range(turns):
        for kind in (0, 1):
            with ExitStack() as patched:
                if kind:
                    patched.enter_context(without_chain())
                writer = DeltaBronze(folder / f"{rows}-{turn}-{kind}", "os")
                writer.begin_stream("s", 0)
                began = time.process_time()
                writer.append(batch)
                best[kind] = min(best[kind], time.process_time() - began)
    return best[0], best[1]


# ── growth ──


def growth(folder: Path, fmt: str, commits: int) -> dict[str, float]:
    """What opening costs after ten commits and after all of them, and how long commits take."""
    young, old = folder / "young", folder / "old"
    committed(young, fmt, 10)
    times = committed(old, fmt, commits)
    early, late = openings([young, old], fmt)
    return {
        "commits": commits,
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
            upkeep.prepare(kept)
            upkeep.compact(kept, AFTER)
            age(folder, position)
            upkeep.tidy(kept, KEPT, float(position))
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


def tables_of(
    times: dict[str, list[float]], chain: dict[str, tuple[float, float]], grown: dict[str, dict[str, float]]
) -> list[dict[str, Any]]:
    base = statistics.median(times["delta, fsync"])
    return [
        table(
            f"A commit of {ROWS:,} rows, ms",
            ["format, durability", "median", "p95", "to Delta with fsync"],
            [
                [kind, f"{statistics.median(t):.1f}", f"{p95(t):.1f}", f"{statistics.median(t) / base:.2f}"]
                for kind, t in times.items()
            ],
        ),
        table(
            "The chain's part of landing, processor time",
            ["batch", "with, s", "without, s", "part of all"],
            [[kind, f"{a:.3f}", f"{b:.3f}", f"{(a - b) / a:.0%}"] for kind, (a, b) in chain.items()],
        ),
        growth_table(grown),
    ]


def growth_table(grown: dict[str, dict[str, float]]) -> dict[str, Any]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=10_000, help="of one row, of each format")
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument(
        "--folder", type=Path, default=None, help="where the tables are made; a temporary one if left out"
    )
    parser.add_argument("--growth", choices=FORMATS, help="many commits of this format alone, shown and not saved")
    parser.add_argument("--no-save", action="store_true")
    given = parser.parse_args()
    if given.growth:
        with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
            show([growth_table({given.growth: growth(Path(temporary), given.growth, given.commits)})])
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        folder = Path(temporary)
        times = latency(folder / "latency", given.turns)
        chain = {
            "1,000 transactions of 100 rows": chain_cost(folder / "batched", 1000, 100, 3),
            "20,000 transactions of 1 row": chain_cost(folder / "single", 20_000, 1, 3),
        }
        grown = {fmt: growth(folder / f"growth-{fmt}", fmt, given.commits) for fmt in FORMATS}
    tables = tables_of(times, chain, grown)
    runs = [{"latency_ms": times, "chain_s": chain, "growth": grown}]
    parameters = {"rows": ROWS, "commits": given.commits}
    conclude("bronze_commit", parameters=parameters, runs=runs, tables=tables, keep=not given.no_save)
    print(f"peak memory {peak_mib():.0f} MiB")


if __name__ == "__main__":
    main()
