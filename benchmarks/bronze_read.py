"""Reading bronze: what a hundredth of the positions costs in bytes, and all of it in time and memory.

    python benchmarks/bronze_read.py [--rows 10000000] [--folder DIR] [--no-save]

Rows have 10 columns, about 250 bytes of text; a commit has 100,000 of them, as a backlog is landed. Read as landed, and
after `maintain` made few files of many. Bytes are those that the reader asked the file system for; the delta log is not
among them. Time is CPU time of this process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bronze_commit import WIDE, transactions
from measured import conclude, peak_mib, table

from cdc_lake.bronze.change_reader import ChangeReader
from cdc_lake.bronze.compaction import compact
from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake_testing.counted import CountedReader

COMMIT_ROWS = 100_000
TRANSACTION_ROWS = 100
SPANS = 20


def land(folder: Path, rows: int) -> None:
    """The same changes in every commit, at ever higher positions."""
    writer = DeltaBronze(folder, durability="os")
    writer.begin_stream("pg:1:bench:bench:0/0", 0)
    batch = transactions(1, COMMIT_ROWS // TRANSACTION_ROWS, TRANSACTION_ROWS)
    for number in range(rows // COMMIT_ROWS):
        start = number * len(batch) * 10
        writer.append(
            [
                replace(raw, bounds=replace(raw.bounds, position=start + 10 * at, confirm=start + 10 * at))
                for at, raw in enumerate(batch, 1)
            ]
        )
        print(f"\r  landed {(number + 1) * COMMIT_ROWS:,} rows", end="", flush=True)
    print()


def read_spans(folder: Path, case: str, rows: int) -> list[dict[str, Any]]:
    """Spans of a hundredth of the positions, each by a reader of its own."""
    generator = random.Random(1)
    files = list(folder.glob("*.parquet"))
    named = BronzeReader(folder).files().paths
    whole = sum(file.stat().st_size for file in files if str(file) in named)
    last = rows // TRANSACTION_ROWS * 10
    runs = []
    for number in range(SPANS):
        reader = CountedReader(folder)
        after = generator.randrange(last - last // 100)
        ledger = ChangeReader(reader)
        begun = time.process_time()
        found = ledger.changes(WIDE.table, ledger.span(after, after + last // 100))
        took = time.process_time() - begun
        assert abs(found.num_rows - rows // 100) <= TRANSACTION_ROWS
        runs.append(
            {
                "case": case,
                "round": number,
                "files": len(named),
                "whole": whole,
                "bytes": reader.bytes_read,
                "rows": found.num_rows,
                "cpu_seconds": took,
            }
        )
    return runs


def read_all(folder: Path, case: str) -> dict[str, Any]:
    """All changes typed, a part at a time, and the chain over everything; in a process of its own, for its memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_read_all, (folder, case))


def _read_all(folder: Path, case: str) -> dict[str, Any]:
    ledger = ChangeReader(BronzeReader(folder))
    begun = time.process_time()
    rows = sum(batch.num_rows for batch in ledger.change_batches(WIDE.table))
    typed = time.process_time() - begun
    begun = time.process_time()
    verdict = verify(BronzeReader(folder))
    chain = time.process_time() - begun
    assert verdict.holds, verdict.reason
    return {
        "case": case,
        "all_rows": rows,
        "typed_cpu_seconds": typed,
        "chain_cpu_seconds": chain,
        "peak_mib": peak_mib(),
    }


def tables_of(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    spans, whole = [], []
    for case in dict.fromkeys(run["case"] for run in runs):
        some = [run for run in runs if run["case"] == case and "bytes" in run]
        shares = sorted(run["bytes"] / run["whole"] for run in some)
        seconds = sorted(run["cpu_seconds"] for run in some)
        size = f"{some[0]['whole'] / 2**20:,.0f} MiB"
        median, most = shares[len(shares) // 2], shares[-1]
        spans.append(
            [case, some[0]["files"], size, f"{median:.1%}", f"{most:.1%}", f"{seconds[len(seconds) // 2]:.2f} s"]
        )
    for one in (run for run in runs if "all_rows" in run):
        rates = [f"{one['all_rows'] / one[name]:,.0f}" for name in ("typed_cpu_seconds", "chain_cpu_seconds")]
        whole.append([one["case"], *rates, f"{one['peak_mib']:,.0f} MiB"])
    return [
        table("A hundredth of the positions", ["", "files", "size", "bytes, median", "most", "CPU"], spans),
        table("Everything", ["", "rows typed/s of CPU", "rows verified/s of CPU", "peak"], whole),
    ]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=10_000_000)
    options.add_argument("--folder", type=Path)
    options.add_argument("--no-save", action="store_true")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        folder = Path(temporary) / "bronze"
        land(folder, given.rows)
        runs = read_spans(folder, "as landed", given.rows)
        compact(DeltaBronzeTable(folder), 2, ignore_tiers=True)
        runs += read_spans(folder, "compacted", given.rows)
        runs.append(read_all(folder, "compacted"))
    parameters = {"rows": given.rows}
    conclude("bronze_read", parameters=parameters, runs=runs, tables=tables_of(runs), keep=not given.no_save)


if __name__ == "__main__":
    main()
