"""Bronze commits: latency by size and durability, one-row transactions a second, growth over many commits.

    python benchmarks/bronze_commit.py [--commits 1000] [--folder DIR]

Rows have 10 columns of text, about 250 bytes, a fifth of them updates. `build` is rows.py alone; `decode` is the
columnar decoder; `append` is what the receiver calls: decode, build, Parquet, commit, sync.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Literal

from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.rows import build
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.decode.columnar import tabulate
from cdc_lake.decode.digest import GENESIS
from cdc_lake.decode.raw import RawTransaction
from cdc_lake.model.change import Change, Insert, Update
from cdc_lake.model.span import Span
from cdc_lake.model.transaction import Transaction
from cdc_lake.testing.messages import boundaries, raw_transaction, table

WIDE = table("public.orders", id="int8", **{f"c{n}": "text" for n in range(9)})


def change(n: int) -> Change:
    row = (str(n), *(f"value {n * k % 9973} of column {k}" for k in range(9)))
    return Update(WIDE, row) if n % 5 == 0 else Insert(WIDE, row)


def transactions(start: int, count: int, rows: int) -> list[RawTransaction]:
    return [
        raw_transaction(Transaction(boundaries(start + n), tuple(change(n * rows + k) for k in range(rows))))
        for n in range(count)
    ]


def latency(folder: Path, rows: int, durability: Literal["fsync", "os"], turns: int) -> str:
    writer = DeltaBronze(folder, durability)
    writer.begin_stream("s", 0)
    times, position = [], 1
    for _ in range(turns):
        batch = transactions(position, max(1, rows // 100), min(rows, 100))
        position += len(batch)
        begun = time.perf_counter()
        writer.append(batch)
        times.append((time.perf_counter() - begun) * 1000)
    median = statistics.median(times)
    speed = rows / median * 1000
    return f"{rows:>7} rows  {durability:<5}  median {median:7.1f} ms  max {max(times):7.1f} ms  {speed:>9,.0f} rows/s"


def one_row_transactions(folder: Path, count: int) -> str:
    batch = transactions(1, count, 1)
    begun = time.perf_counter()
    changes = tabulate(batch)
    decoded = time.perf_counter()
    build(batch, changes, stream="s", epoch=1, previous=GENESIS, ingest_ts=0)
    built = time.perf_counter()
    writer = DeltaBronze(folder)
    writer.begin_stream("s", 0)
    start = time.perf_counter()
    writer.append(batch)
    end = time.perf_counter()
    return (
        f"{count} one-row transactions: decode {count / (decoded - begun):,.0f}/s  "
        f"build {count / (built - decoded):,.0f}/s  append {count / (end - start):,.0f}/s"
    )


def growth(folder: Path, commits: int) -> None:
    writer, times = DeltaBronze(folder), []
    writer.begin_stream("s", 0)
    reader = BronzeReader(folder)
    for n in range(commits):
        batch = transactions(n * 10 + 1, 10, 10)
        begun = time.perf_counter()
        writer.append(batch)
        times.append((time.perf_counter() - begun) * 1000)
    part = max(1, commits // 5)
    for at in range(0, commits, part):
        some = sorted(times[at : at + part])
        print(
            f"commits {at:>5} to {at + len(some):>5}: median {statistics.median(some):6.1f} ms  "
            f"p95 {some[int(len(some) * 0.95)]:6.1f} ms  max {some[-1]:6.1f} ms"
        )
    for label, span in (
        ("all", Span(1, 0, commits * 10)),
        ("last 10 commits", Span(1, commits * 10 - 100, commits * 10)),
    ):
        begun = time.perf_counter()
        found = len(reader.commits(span))
        print(f"reader.commits, {label}: {(time.perf_counter() - begun) * 1000:.1f} ms for {found} transactions")
    begun = time.perf_counter()
    DeltaBronze(folder).state()
    print(f"reopen and state: {(time.perf_counter() - begun) * 1000:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=1000)
    parser.add_argument(
        "--folder", type=Path, default=None, help="where the tables are made; a temporary folder if left out"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        folder = Path(temporary)
        for rows, turns in ((1_000, 30), (10_000, 15), (100_000, 5)):
            for durability in ("fsync", "os"):
                print(latency(folder / f"{rows}{durability}", rows, durability, turns), flush=True)
        print(one_row_transactions(folder / "small", 20_000), flush=True)
        growth(folder / "growth", given.commits)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")


if __name__ == "__main__":
    main()
