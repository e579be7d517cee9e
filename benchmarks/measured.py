"""What a benchmark measured: printed as a table, kept as JSON in `benchmarks/results/`, read by `page.py`.

A result is `{"name", "at", "version", "machine", "parameters", "runs": [...], "tables": [...]}`. Runs are the raw
numbers; tables are what is printed, so the page shows what the terminal showed, but for what is to be reached. Saving
one adds a line to the history.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import history
import psutil
from figures import judged
from written import Written

from cdc_lake_testing.memory import hashing_beside, peak_mib

RESULTS = Path(__file__).parent / "results"

# What is installed has its bytecode beside it: so have the processes that are measured, also where a machine says that
# none be written.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(sys.prefix) / "bytecode"))


def machine() -> dict[str, Any]:
    """The machine without its name: what somebody else needs to judge the numbers."""
    model = ""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cores": os.cpu_count(),
        "processor": model,
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": platform.system(),
        "python": platform.python_version(),
        "load": [round(x, 1) for x in os.getloadavg()],
    }


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> dict[str, Any]:
    """A table of a result; numbers are formatted by the caller."""
    return {"title": title, "head": list(head), "rows": [[str(cell) for cell in row] for row in rows]}


def show(tables: Iterable[dict[str, Any]]) -> None:
    """Print tables, the first column left, the others right."""
    for one in tables:
        cells = [one["head"], *one["rows"]]
        widths = [max(len(row[n]) for row in cells) for n in range(len(one["head"]))]
        print(f"\n{one['title']}")
        for row in cells:
            line = [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
            print("  " + "  ".join(line).rstrip())
    sys.stdout.flush()


def conclude(
    name: str,
    *,
    parameters: dict[str, Any],
    runs: Sequence[dict[str, Any]],
    tables: list[dict[str, Any]],
    keep: bool = True,
) -> None:
    """Print the tables and which targets are reached; `keep`: write the result, and a line of the history."""
    targets = judged(name, runs)
    show([*tables, *([table("Targets", ("", "measured", "target", ""), targets)] if targets else [])])
    if not keep:
        return
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {
        "name": name,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": history.product(),
        "machine": machine(),
        "parameters": parameters,
        "runs": list(runs),
        "tables": tables,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    history.append(document)


def options_of(description: str | None, *hidden: str) -> argparse.ArgumentParser:
    """The options of a benchmark that makes a server and a lake of its own; `hidden`: those that its children get."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", type=Path, help="where server and lake are made; a temporary folder if left out")
    options.add_argument("--no-save", action="store_true", help="print only")
    for name in (*hidden, "--server", "--root"):
        options.add_argument(name, help=argparse.SUPPRESS)
    return options


def carry_out(
    name: str,
    given: argparse.Namespace,
    parameters: Sequence[str],
    measure: Callable[[argparse.Namespace, Path], list[dict[str, Any]]],
    tables_of: Callable[[list[dict[str, Any]]], list[dict[str, Any]]],
) -> None:
    """Measure in a folder that is gone then, and show the result, or save it; `parameters`: options that it names."""
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        Path(temporary).chmod(0o755)
        runs = measure(given, Path(temporary))
    named = {one: getattr(given, one) for one in parameters}
    conclude(name, parameters=named, runs=runs, tables=tables_of(runs), keep=not given.no_save)


@contextmanager
def costing(folder: Path) -> Iterator[dict[str, float]]:
    """What this process costs until the block ends, with those that hash beside it: `cpu` in s, `rss_mib` at most, and
    `bytes_written` and `files_written` in the folder.
    """
    cost: dict[str, float] = {}
    watch = Written(folder)
    with hashing_beside() as peaks:
        yield cost
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cost["cpu"] = sum(one.ru_utime + one.ru_stime for one in used)
    cost["rss_mib"] = peak_mib() + max(peaks, default=0.0)
    new = watch.since()
    cost["bytes_written"], cost["files_written"] = new["bytes"], new["files"]


def median(values: Iterable[float]) -> float:
    """The median; NaN where there is nothing."""
    some = list(values)
    return statistics.median(some) if some else float("nan")
