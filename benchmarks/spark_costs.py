"""What a part of a benchmark costs that runs in this process and in Spark's driver below it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from measured import peak_mib
from written import Written


def processor_seconds() -> float:
    """What this process and the JVM below it have used."""
    me, total = psutil.Process(), 0.0
    for one in (me, *me.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # a worker that ended meanwhile
            used = one.cpu_times()
            total += used.user + used.system
    return total


def driver_mib(spark: Any) -> int:
    """The most memory that Spark's driver had so far: the JVM, its heap with it."""
    gateway = psutil.Process(spark.sparkContext._gateway.proc.pid)  # noqa: SLF001 - no other word for it
    java = [one for one in (gateway, *gateway.children(recursive=True)) if "java" in one.name()]
    return max(int(peak_mib(one.pid)) for one in java)


@contextmanager
def costing(spark: Any, root: Path) -> Iterator[dict[str, float]]:
    """What the block costs: seconds, the processor's too, the driver's peak so far, what is written below `root`."""
    cost: dict[str, float] = {}
    watch, used, begun = Written(root), processor_seconds(), time.perf_counter()
    yield cost
    cost["seconds"] = time.perf_counter() - begun
    cost["cpu"] = processor_seconds() - used
    cost["driver_mib"] = driver_mib(spark)
    new = watch.since()
    cost["bytes_written"], cost["files_written"] = new["bytes"], new["files"]
