"""Bronze commits: their time, what the chain and Iceberg cost, and what a table with many of them costs to open.

    python benchmarks/bronze_commit.py [--commits 10000] [--folder DIR] [--growth FORMAT] [--no-save]

Rows have 10 columns of text, about 250 bytes, a fifth of them updates. A commit is what the receiver waits for before
it confirms: rows, chain, Parquet, commit, sync; their columns were made while the batch was open, as
`runtime.receive.commit_pipeline` does it. Kinds that are compared take turns in one run. Growth: see
`bronze_growth.py`; `--growth` measures that alone, of one format, and shows it. Of every table that was written the
chain is verified to its last row; those of different formats end with one hash.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from bronze_growth import growth, growth_table, p95, table_of
from end_state import chained, same
from measured import conclude, peak_mib, show, table
from written import Written

from cdc_lake.bronze.compaction import MaintainedTable
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze, TableBronze
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.model.change import Change, Insert, Transaction, Update
from cdc_lake_testing.messages import boundaries, raw_transaction
from cdc_lake_testing.messages import table as relation

WIDE = relation("public.orders", id="int8", **{f"c{n}": "text" for n in range(9)})
ROWS = 10_000
FORMATS = ("delta", "iceberg")
NOTHING = bytes(32)


def change(n: int) -> Change:
    row = (str(n), *(f"value {n * k % 9973} of column {k}" for k in range(9)))
    return Update(WIDE, row) if n % 5 == 0 else Insert(WIDE, row)


def transactions(start: int, count: int, rows: int) -> list[BufferedTransaction]:
    return [
        raw_transaction(Transaction(boundaries(start + n), tuple(change(n * rows + k) for k in range(rows))))
        for n in range(count)
    ]


@dataclass(frozen=True)
class Tables:
    """A table of each format and durability, written side by side."""

    folder: Path
    kinds: tuple[tuple[str, bool], ...] = tuple((fmt, durable) for fmt in FORMATS for durable in (True, False))

    def place(self, kind: tuple[str, bool]) -> Path:
        return self.folder / f"{kind[0]}{kind[1]}"

    def table(self, kind: tuple[str, bool]) -> MaintainedTable:
        return table_of(self.place(kind), kind[0], durable=kind[1])

    def check(self, transactions: int, changes: int) -> None:
        """Fail unless each has all of it in an unbroken chain, and all chains end with the same hash."""
        readers = {kind: BronzeReader(self.table(kind)) for kind in self.kinds}
        for kind, reader in readers.items():
            chained(str(kind), reader, transactions, changes)
        ends = {state.head.hex() for reader in readers.values() if (state := reader.state()) is not None}
        same("ends of the chains", len(ends), 1)


def latency(folder: Path, turns: int) -> tuple[dict[str, list[float]], dict[str, dict[str, float]]]:
    """Milliseconds of each commit of `ROWS` rows, by format and durability, and what all of them cost."""
    tables = Tables(folder)
    names = {kind: f"{kind[0]}, {'fsync' if kind[1] else 'os'}" for kind in tables.kinds}
    writers = {kind: TableBronze(tables.table(kind)) for kind in tables.kinds}
    for writer in writers.values():
        writer.begin_stream("s", 0)
    times: dict[str, list[float]] = {name: [] for name in names.values()}
    costs = {name: {"seconds": 0.0, "cpu": 0.0} for name in names.values()}
    watches: dict[tuple[str, bool], Written] = {}
    for turn in range(turns + 1):
        batch = transactions(1 + turn * ROWS // 100, ROWS // 100, 100)
        columns = tabulate(batch)
        for kind, writer in writers.items():
            began, used = time.perf_counter(), time.process_time()
            writer.append(batch, lambda _, made=columns: made)
            took, cost = time.perf_counter() - began, costs[names[kind]]
            if not turn:  # the first one warms up
                watches[kind] = Written(tables.place(kind))
                continue
            times[names[kind]].append(took * 1000)
            cost["seconds"], cost["cpu"] = cost["seconds"] + took, cost["cpu"] + time.process_time() - used
    for kind, watch in watches.items():
        new = watch.since()
        costs[names[kind]] |= {"rss_mib": peak_mib(), "bytes_written": new["bytes"], "files_written": new["files"]}
    tables.check((turns + 1) * ROWS // 100, (turns + 1) * ROWS)
    return times, costs


@contextmanager
def without_chain() -> Iterator[None]:
    """Everything but the digests of rows and the hashes of transactions."""
    places: dict[str, Callable[..., Any]] = {
        "cdc_lake.decode.hashing.digests_between": lambda _prefix, _data, borders, _head: NOTHING * (len(borders) - 1),
        "cdc_lake.decode.pgoutput.columnar.digest_of": lambda _: NOTHING,
        "cdc_lake.bronze.row_builder.content_of": lambda _: NOTHING,
        "cdc_lake.bronze.row_builder.chain_of": lambda *_: NOTHING,
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
            if not kind:
                chained(f"{count} transactions", BronzeReader(folder / f"{rows}-{turn}-{kind}"), count, count * rows)
    return best[0], best[1]


def tables_of(
    times: dict[str, list[float]], chain: dict[str, tuple[float, float]], grown: dict[str, dict[str, Any]]
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
        times, costs = latency(folder / "latency", given.turns)
        chain = {
            "1,000 transactions of 100 rows": chain_cost(folder / "batched", 1000, 100, 3),
            "20,000 transactions of 1 row": chain_cost(folder / "single", 20_000, 1, 3),
        }
        grown = {fmt: growth(folder / f"growth-{fmt}", fmt, given.commits) for fmt in FORMATS}
    tables = tables_of(times, chain, grown)
    costs |= {f"{fmt}, {one['commits']:,} commits of a row": one["costs"] for fmt, one in grown.items()}
    runs = [{"latency_ms": times, "chain_s": chain, "growth": grown, "costs": costs}]
    parameters = {"rows": ROWS, "commits": given.commits}
    conclude("bronze_commit", parameters=parameters, runs=runs, tables=tables, keep=not given.no_save)


if __name__ == "__main__":
    main()
