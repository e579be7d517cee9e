"""Makes `lake_contract1_control1.tar.xz`: a lake of bronze contract 1 and control version 1, for later versions to read.

    python -m tests.data.make_lake

Two pipelines, one with bronze in Delta and one in Iceberg; silver of every kind in both formats, a quarantined change, a
paused table, a promise. It is made once a contract, by the version that first writes it, and never again: what later
versions must read is what was written then. Iceberg's metadata holds absolute paths, so it is made and read in `ROOT`.
"""

from __future__ import annotations

import fcntl
import shutil
import tarfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cdc_lake.bronze.open import bronze_writer
from cdc_lake.config.project import Project
from cdc_lake.control.table_pauses import pause
from cdc_lake.model.change import Change, Delete, Insert, OldKind, Transaction, Truncate, Update
from cdc_lake.model.position import Latest
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.runtime.cut_retention import pin_cut
from cdc_lake.tables.control_schema import StreamRow, utc_now
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.spark_session import start
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.pipeline_file import make_project
from tests.tarballs import unpack

ROOT = Path("/tmp/cdc_lake_contract1_control1")  # its path is in the metadata of its Iceberg tables
ARCHIVE = Path(__file__).with_name("lake_contract1_control1.tar.xz")
STREAM = "pg:7:shop:cdc:0/64"
TABLES = {
    name: table(f"public.{name}", id="int4", amount="int4", body="text") for name in ("now", "then", "log", "off")
}
RULE = {"rule": "between", "column": "amount", "max": 10, "on_fail": "quarantine"}


def project(fmt: str, **sections: Any) -> Project:
    """The pipeline whose bronze has a format; its silver has the other one too."""
    other = {"delta": "iceberg", "iceberg": "delta"}[fmt]
    tables: list[dict[str, Any]] = [
        {"from": "public.now", "rules": [RULE]},
        {"from": "public.then", "kind": "history", "format": other},
        {"from": "public.log", "kind": "append"},
        {"from": "public.off", "format": other, "deletes": "soft"},
    ]
    silver = {"defaults": {"format": fmt, "namespace": f"silver_{fmt}"}, "tables": tables}
    return make_project(
        ROOT, f"shop_{fmt}", silver=silver, snapshot={"mode": "none"}, bronze={"format": fmt}, **sections
    )


def make(one: Project, spark: Any) -> None:
    """Fill bronze and silver of a pipeline in two runs, the second of which finds a table paused."""
    bronze, control = bronze_writer(one), ControlTables(one.control)
    bronze.begin_stream(STREAM, 100)
    control.record(StreamRow(1, STREAM, 100, "cdc", "7", "shop", "lsn", utc_now()))

    def run(position: int, changes: Sequence[Change]) -> None:
        bronze.append([raw_transaction(Transaction(boundaries(position), tuple(changes)))])
        with SpanLoop(one, spark, silent) as advance:
            advance.run(None, threading.Event())
            assert advance.totals.failed == {}
            advance.record(1.0, "done")

    run(200, [Insert(t, (str(i), str(i), "é")) for t in TABLES.values() for i in (1, 2, 3)])
    pin_cut(one, "first", Latest(), None, None)
    pause(one, "off")
    changes: list[Change] = [Truncate(TABLES["log"])]
    for t in (TABLES["now"], TABLES["then"], TABLES["off"]):
        changes += [Update(t, ("1", "7", "new")), Delete(t, ("2", None, None), OldKind.KEY)]
    run(300, [*changes, Insert(TABLES["now"], ("4", "99", "held"))])


@contextmanager
def unpacked() -> Iterator[Path]:
    """The lake where it was made; one test at a time on this machine, because Iceberg's metadata names the place."""
    with Path(f"{ROOT}.lock").open("w") as taken:
        fcntl.flock(taken, fcntl.LOCK_EX)
        shutil.rmtree(ROOT, ignore_errors=True)
        with tarfile.open(ARCHIVE) as archive:
            unpack(archive, ROOT)
        yield ROOT
        shutil.rmtree(ROOT)


def main() -> None:
    """Make the archive."""
    shutil.rmtree(ROOT, ignore_errors=True)
    spark = start(project("delta"))
    for fmt in ("delta", "iceberg"):
        make(project(fmt), spark)
    spark.stop()
    with tarfile.open(ARCHIVE, "w:xz") as archive:
        for path in sorted(ROOT.rglob("*")):
            if path.is_file() and not path.name.startswith(".") and "scratch" not in path.parts:
                archive.add(path, path.relative_to(ROOT))
    shutil.rmtree(ROOT)


if __name__ == "__main__":
    main()
