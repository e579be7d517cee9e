"""Bronze on a full disk: a program that mounts a small disk of its own.

    unshare --map-root-user --mount python -m cdc_lake_testing.full_disk FOLDER FORMAT FIRST BUDGETS STEP

For each budget, growing by `STEP` bytes, it writes a table commit by commit until the disk is full; checks what readers
see; checks that a receiver's writer waits and reports it; and frees space, after which this writer and a new one
continue. It prints one line of JSON per budget: the number of commits that fitted, and the error that ended them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cdc_lake.bronze.data_files import BronzeTable
from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.iceberg_table import IcebergBronzeTable
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import TableBronze
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.control.coordination import ReceiverNote
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.errors import CatalogUnreachable, CdcLakeError
from cdc_lake.model.change import Insert, Transaction
from cdc_lake.observability.events import silent
from cdc_lake.runtime.receive.commit_pipeline import RetryingBronzeWriter
from cdc_lake.tables.catalog import CatalogAddress
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from cdc_lake_testing.whole import assert_whole_transactions

COMMITS = 12
_ORDERS = table("public.orders", id="int8", note="text")
_DISK = 8 << 20
_START = 10


def transaction(position: int) -> BufferedTransaction:
    """Twenty rows whose texts do not compress to nothing."""
    rows = [Insert(_ORDERS, (f"{position}{n}", os.urandom(60).hex())) for n in range(20)]
    return raw_transaction(Transaction(boundaries(position), tuple(rows)))


def table_of(folder: Path, fmt: str) -> BronzeTable:
    """The bronze table in a folder, whether it is there or not."""
    if fmt == "delta":
        return DeltaBronzeTable(folder / "bronze")
    uri, warehouse = f"sqlite:///{folder / 'catalog.db'}", f"file://{folder / 'warehouse'}"
    return IcebergBronzeTable(CatalogAddress("lake", "sql", uri, warehouse), "shop")


def main(folder: Path, fmt: str, first: int, budgets: int, step: int) -> None:
    """Mount the disk and go through the budgets."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(folder)], check=True)
    for number in range(budgets):
        budget = first + number * step
        lake = folder / f"lake{number}"  # an open catalog outlives its file
        fitted, error = _one(lake, fmt, budget, folder / "ballast")
        print(json.dumps({"budget": budget, "fitted": fitted, "error": error}), flush=True)
        shutil.rmtree(lake)


def _one(folder: Path, fmt: str, budget: int, ballast: Path) -> tuple[int, str]:
    folder.mkdir()
    source = {"type": "postgres", "host": "h", "database": "d", "user": "u", "tables": ["public.*"]}
    shop = Pipeline.model_validate({"version": 1, "pipeline": "shop", "source": source, "lake": {"path": "."}})
    note = ReceiverNote(Project(shop, folder / "shop.yaml", folder))
    note.__enter__()  # for as long as the disk is there
    _fill(ballast, leave=budget)
    writer = TableBronze(table_of(folder, fmt))
    acknowledged, error = 0, ""
    try:
        writer.begin_stream("s", _START)
        for position in range(_START + 1, _START + 1 + COMMITS):
            writer.append([transaction(position)])
            acknowledged += 1
    except CdcLakeError as full:
        error = full.code
    try:
        _check(folder, fmt, acknowledged, acknowledged + (error == "LAK431"))
    except CatalogUnreachable:
        assert acknowledged == 0, "a catalog that was there answers"
    if acknowledged:
        _outlast(RetryingBronzeWriter(writer, threading.Event(), silent, note, (0.1, 0.1)), note, ballast)
    else:
        ballast.unlink()
    for again in (writer, TableBronze(table_of(folder, fmt))):
        state = again.state() or again.begin_stream("s", _START)
        again.append([transaction(state.upto + 1)])
    held = TableBronze(table_of(folder, fmt)).state()
    assert held is not None
    _check(folder, fmt, held.upto - _START, held.upto - _START)
    return acknowledged, error


def _outlast(writer: RetryingBronzeWriter, note: ReceiverNote, ballast: Path) -> None:
    """A commit on a full disk waits, says so on it, and is made when there is space."""
    if os.statvfs(ballast.parent).f_bavail:
        _fill(ballast.with_suffix(".more"), leave=0)
    state = writer.state()
    assert state is not None
    with ThreadPoolExecutor(1) as thread:
        commit = thread.submit(writer.append, [transaction(state.upto + 1)])
        while (waits := note.read()) is None:
            assert not commit.done(), "there was no space"
            time.sleep(0.01)
        assert waits.code in {"LAK420", "LAK430", "LAK431"}, waits
        ballast.unlink()
        ballast.with_suffix(".more").unlink(missing_ok=True)
        assert commit.result(30).upto == state.upto + 1
    assert note.read() is None


def _check(folder: Path, fmt: str, least: int, most: int) -> None:
    """Readers see what was acknowledged, whole, and nothing else; one more where that was not known."""
    reader = BronzeReader(table_of(folder, fmt))
    assert_whole_transactions(reader)
    verdict = verify(reader)
    assert verdict.holds, verdict.reason
    assert least <= verdict.transactions <= most, f"{verdict.transactions} of {least} to {most} transactions"


def _fill(ballast: Path, leave: int) -> None:
    status = os.statvfs(ballast.parent)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, status.f_bavail * status.f_frsize - leave))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6]))
