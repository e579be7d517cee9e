"""Silver on a disk that gets full: a program that runs where it may mount a small disk of its own.

    unshare --map-root-user --mount python -m tests.silver_disk_full FOLDER FIRST BUDGETS

For each of so many budgets, from `FIRST` bytes to half more than all that was ever needed: changes land, the disk is filled
but for the budget, and both tables, a Delta and an Iceberg one, are brought forward. What readers see then is what they
saw before, or all of it; space returns, and the next attempt brings all of it. One line of JSON a budget: which tables
came through, by which errors others did not. (What is needed grows with the tables' metadata, so it is measured.)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Project
from cdc_lake.errors import CdcLakeError
from cdc_lake.model.change import Change, Insert, Transaction, Update
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.applier import watching
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.spark_session import RUNTIME_SETTINGS, start
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.conftest import INTERPRETED
from tests.pipeline_file import make_project

_DISK = 96 << 20
_ROWS = 60
TABLES = {fmt: table(f"public.{fmt}", id="int8", note="text") for fmt in ("delta", "iceberg")}


def free(disk: Path) -> int:
    """Bytes that are free."""
    status = os.statvfs(disk)
    return status.f_bavail * status.f_frsize


def fill(ballast: Path, leave: int) -> None:
    """Leave so many bytes free."""
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, free(ballast.parent) - leave))


def advance(project: Project, spark: Any) -> dict[str, str]:
    """What `apply` does between two beats; the codes of tables that did not come through, or of the whole."""
    try:
        watcher = watching(project, silent)
        with watcher, SpanLoop(project, spark, watcher.on_progress) as beat:
            beat.run(None, threading.Event())
            return {str(name): error.code for name, error in beat.totals.failed.items()}
    except CdcLakeError as error:
        return {"all": error.code}


def seen(project: Project, fmt: str) -> dict[int, str]:
    found = table_log(project, project.target(TABLES[fmt].table)).read().to_pylist()
    rows = {row["id"]: row["note"] for row in found}
    assert len(rows) == len(found), "a row is there twice"
    return rows


class Source:
    """Rows of both tables as the source has them."""

    def __init__(self, bronze: DeltaBronze) -> None:
        self._bronze = bronze
        self._position = 100
        self.rows: dict[int, str] = {}

    def change(self, number: int) -> None:
        """New rows, and new texts for as many at most that are there; none compress to nothing."""
        old = [n for n in self.rows if n % 7 == number % 7][-_ROWS:]
        new = range(number * _ROWS, (number + 1) * _ROWS)
        notes = {n: os.urandom(60).hex() for n in (*old, *new)}
        self.rows.update(notes)
        changes: list[Change] = []
        for layout in TABLES.values():
            changes += [Update(layout, (str(n), notes[n]), None, None) for n in old]
            changes += [Insert(layout, (str(n), notes[n])) for n in new]
        self._position += 10
        self._bronze.append([raw_transaction(Transaction(boundaries(self._position), tuple(changes)))])


def main(folder: Path, first: int, budgets: int) -> None:
    """Mount the disk and go through the budgets."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(folder)], check=True)
    RUNTIME_SETTINGS.update(INTERPRETED)
    tables = [{"from": f"public.{fmt}", "format": fmt} for fmt in TABLES]
    project = make_project(folder / "lake", "full", silver={"tables": tables}, snapshot={"mode": "none"})
    spark = start(project)
    bronze = DeltaBronze(project.bronze, durability="os")
    bronze.begin_stream("test", 10)
    source = Source(bronze)
    source.change(0)
    space = free(folder)
    assert advance(project, spark) == {}
    needed = space - free(folder)
    for number in range(budgets):
        before = dict(source.rows)
        source.change(number + 1)
        space, budget = free(folder), first + needed * 3 * number // (2 * (budgets - 1))
        fill(folder / "ballast", budget)
        errors = advance(project, spark)
        for fmt in TABLES:
            assert seen(project, fmt) in (before, source.rows), f"{fmt} is neither what it was nor what it comes to"
        (folder / "ballast").unlink()
        again = advance(project, spark)
        assert again == {}, again
        for fmt in TABLES:
            assert seen(project, fmt) == source.rows, fmt
        needed = max(needed, space - free(folder))
        print(json.dumps({"budget": budget, "errors": errors}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:4]))
