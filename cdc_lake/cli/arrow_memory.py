"""Loads Arrow for a process that only receives: without pandas, and with an allocator that returns memory to the
system.

Arrow imports an installed pandas as soon as it converts a list: 36 MiB and most of a second for nothing, as the
receiver never needs it. Code that creates a data frame later still finds it. Arrow's default allocator, mimalloc, kept
60 MiB and more after a backlog; others are as fast (docs/performance.md).

The system's allocator keeps memory that one thread allocates and another frees idle in the first one's arena, more with
every batch. So there are two arenas, enough for threads that alternate at Python's lock, Arrow uses jemalloc if its
build includes it, chunks and their hash inputs (2 MiB each) are requested from the system each time, and what remains
idle is returned after a commit (measured in docs/performance.md).

Only `cdc-lake run --only receive` does this, in a process of its own. `cdc_lake.run` is called in any process, and the
job `receive` in one started by the platform: other threads may import pandas meanwhile, and Spark and the caller affect
the allocator.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cdc_lake.observability.events import ProgressEvent, ProgressReporter

_POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"
_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1  # of `mallopt`: M_ARENA_MAX and so on in glibc's malloc.h
_ARENAS: Final = 2
"""A single one is no smaller, and threads would wait for each other (measured)."""
_LARGE: Final = 1_500_000
"""Size in bytes from which memory is allocated by the system. Payloads of 1 MiB are below: new memory is slow, and from
1,000,000 on the receiver used a quarter more CPU time (measured).
"""
_KEPT: Final = 64 << 20
"""Bytes kept at the end of an arena. If the other threshold is set, glibc leaves this one at 128 KiB."""
_COMMITS: Final = ("landed", "snapshot")  # stages reported after a commit
_MUCH: Final = 320 << 20
"""Size of a process in bytes from which idle memory is returned: new memory is slow, and short runs need no return."""


def load() -> None:
    """Load Arrow in this way, unless it is loaded already. Must be called before other threads run."""
    if "pyarrow" in sys.modules:
        return
    chosen = _POOL in os.environ  # an explicit choice has priority
    os.environ.setdefault(_POOL, "system")
    _tune_malloc()
    with _hide_package("pandas"):
        import pyarrow as pa

        pa.array([0])  # it looks for pandas and reads the variable only once
    if chosen:
        return
    del os.environ[_POOL]  # child processes must not inherit it
    if "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())


def giving_back(report: ProgressReporter) -> ProgressReporter:
    """Pass on the receiver's progress; after each commit idle memory of the C library is returned if there is much.

    So a long backlog uses little more than a short one (docs/performance.md). It takes some 10 ms, in any thread.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is None:
        return report

    def trim_after_commit(progress: ProgressEvent) -> None:
        report(progress)
        if progress.stage in _COMMITS and _resident() > _MUCH:
            trim(0)

    return trim_after_commit


def _resident() -> int:
    """The resident memory of this process in bytes, including pages of library files."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _tune_malloc() -> None:
    """Let threads share the C library's arenas, if it has any, except for large allocations; explicit settings win."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's
    if mallopt is None:
        return
    if not _chosen("MALLOC_ARENA_MAX"):
        mallopt(_ARENA_MAX, _ARENAS)
    if not (_chosen("MALLOC_MMAP_THRESHOLD_") or _chosen("MALLOC_TRIM_THRESHOLD_")):
        mallopt(_MMAP_THRESHOLD, _LARGE)
        mallopt(_TRIM_THRESHOLD, _KEPT)


def _chosen(variable: str) -> bool:
    """Whether this variable of glibc's, or the equivalent tunable, is set."""
    tunable = variable.removeprefix("MALLOC_").rstrip("_").lower()
    return variable in os.environ or tunable in os.environ.get("GLIBC_TUNABLES", "")


@contextmanager
def _hide_package(package: str) -> Iterator[None]:
    """Hide a package as if it were not installed."""
    if package in sys.modules:
        yield
        return
    finder = _Hiding(package)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Hiding:
    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002 - as imports ask
        if name == self._package:
            msg = f"No module named {name!r}"
            raise ModuleNotFoundError(msg, name=name)
