"""What the span benchmarks share: a session, rounds, tables of results."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measured import median, table
from span_pair import Pair, project_of
from span_phases import Phases

from cdc_lake.tables.spark_session import start

FORMATS = ("delta", "iceberg")
PEERS = ("delta-rs", "pyiceberg")


@contextmanager
def session(folder: Path | None, heap_mib: int) -> Iterator[tuple[Any, Path]]:
    """A session as apply starts it, and the root of a lake of its own."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        root = Path(temporary)
        spark = start(project_of(root, "bench", "delta", ["orders"], apply={"driver_memory": f"{heap_mib} MiB"}))
        try:
            yield spark, root
        finally:
            spark.stop()


def rounds_of(make: Callable[[], Pair], label: str, count: int, warm: int = 1) -> list[dict[str, Any]]:
    """`warm` rounds to warm up and `count` that count; the pair is compared at the end."""
    pair, runs = make(), []
    for at in range(warm + count):
        phases, number = Phases(), at - warm + 1
        took = pair.round(at, phases)
        runs.append(
            {
                "case": label,
                "round": number,
                **took,
                "ratio": took["ours"] / took["plain"],
                "phases": dict(phases.seconds),
                "costs": pair.costs,
            }
        )
        print(f"  {label} round {number}: " + ", ".join(f"{name} {s:.2f} s" for name, s in took.items()), flush=True)
    rows = pair.check()
    pair.close()
    print(f"  {label}: all tables equal, {rows:,} rows", flush=True)
    return runs


def counted(runs: list[dict[str, Any]], label: str) -> list[dict[str, Any]]:
    return [run for run in runs if run["case"] == label and run["round"] > 0]


def labels(runs: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(run["case"] for run in runs))


def ratios(title: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Ours beside the plain MERGE, medians over the counted rounds."""
    rows = []
    for label in labels(runs):
        mine = counted(runs, label)
        values = [run["ratio"] for run in mine]
        rows.append(
            (
                label,
                f"{median(run['ours'] for run in mine):.2f}",
                f"{median(run['plain'] for run in mine):.2f}",
                *(f"{median(run[peer] for run in mine):.2f}" if peer in mine[0] else "" for peer in PEERS),
                f"{median(values):.2f}",
                f"{min(values):.2f} to {max(values):.2f}",
            )
        )
    return table(
        title,
        ("", "span, s", "plain MERGE, s", *(f"{peer}, s" for peer in PEERS), "span / plain", "of the rounds"),
        rows,
    )


def phases(title: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Where the span's time goes: milliseconds of each step, medians."""
    every = labels(runs)
    names = dict.fromkeys(name for run in runs for name in run["phases"])
    cells = {
        name: [median(run["phases"].get(name, 0.0) * 1000 for run in counted(runs, label)) for label in every]
        for name in names
    }
    order = sorted(cells, key=lambda name: -max(cells[name]))
    return table(title, ("ms", *every), [(name, *(f"{value:,.0f}" for value in cells[name])) for name in order])


def options(description: str | None, **defaults: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--heap", type=int, default=3072, help="driver heap, MiB")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--folder", type=Path, help="where the lake is made; a temporary folder if left out")
    parser.add_argument("--no-save", action="store_true", help="print only")
    return parser
