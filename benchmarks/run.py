"""All benchmarks of docs/performance.md, one after the other; the page is written anew at the end.

    python benchmarks/run.py [--quick]

`--quick` is smaller and shorter, writes nothing, and shows that they run. Needs Java for the spans, 4 GiB of memory,
and a quiet machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

FULL: tuple[tuple[str, ...], ...] = (
    ("pgoutput_backlog.py",),
    ("snapshot.py",),
    ("streamed.py",),
    ("large_memory.py",),
    ("latency.py",),
    ("bronze_commit.py",),
    ("bronze_read.py",),
    ("decode_mppdb.py", "--save"),
    ("decode_mppdb_text.py", "--save"),
    ("gaussdb_backlog.py",),
    ("small_spans.py",),
    ("apply_span.py",),
    ("gate.py",),
    ("many_tables.py",),
    ("source_to_silver.py",),
    ("source_to_silver.py", "--changes", "10000000", "--rounds", "0"),
    ("compare.py",),
)
QUICK: tuple[tuple[str, ...], ...] = (
    ("pgoutput_backlog.py", "--changes", "100000", "--rounds", "2", "--no-save"),
    ("snapshot.py", "--rows", "300000", "--rounds", "1", "--no-save"),
    ("streamed.py", "--changes", "100000", "--rounds", "1", "--sizes", "10", "30", "--no-save"),
    ("large_memory.py", "--sizes", "10", "30", "--only", "pgoutput 1", "style b", "--no-save"),
    ("latency.py", "--seconds", "5", "--no-save"),
    ("bronze_commit.py", "--commits", "500", "--turns", "5", "--no-save"),
    ("bronze_read.py", "--rows", "1000000", "--no-save"),
    ("decode_mppdb.py", "--rows", "20000", "--seconds", "5"),
    ("decode_mppdb_text.py", "--rows", "10000", "--seconds", "5"),
    ("gaussdb_backlog.py", "--rows", "100000", "--rounds", "1", "--no-save"),
    ("small_spans.py", "--rounds", "2", "--no-save"),
    ("apply_span.py", "--rows", "500000", "--changes", "10000", "--rounds", "1", "--warm", "1", "--no-save"),
    ("gate.py", "--rows", "200000", "--changes", "5000", "--rounds", "1", "--warm", "1", "--no-save"),
    ("many_tables.py", "--rounds", "1", "--most", "50", "--no-save"),
    ("source_to_silver.py", "--changes", "100000", "--rows", "500000", "--rounds", "2", "--one", "100000", "--no-save"),
    ("compare.py", "--rows", "200000", "--rounds", "1", "--no-save"),
)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true")
    quick = options.parse_args().quick
    for script, *arguments in QUICK if quick else FULL:
        print(f"\n── {' '.join((script, *arguments))}", flush=True)
        subprocess.run([sys.executable, str(HERE / script), *arguments], check=True)
    if not quick:
        subprocess.run([sys.executable, str(HERE / "page.py")], check=True)


if __name__ == "__main__":
    main()
