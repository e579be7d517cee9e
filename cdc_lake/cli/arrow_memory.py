"""Arrow for a process that only receives: without pandas, and with memory that goes back to the system.

Arrow imports pandas, where it is installed, as soon as it is given a list: 36 MiB and most of a second for nothing, as
nobody gives it any there. It is found all the same by who asks for a data frame later. What Arrow's first choice of an
allocator, mimalloc, keeps for later was 60 MiB and more with a backlog; others are as quick (docs/performance.md).

The system's has an arena for each thread, and what one thread took and another gave back lies idle in the first one's:
of a backlog of the GaussDB family 245 MiB were held for 80 in use, and more with every batch. Two arenas are enough for
threads that take turns at Python's lock. Columns wait for their commit between what lives only as long as a chunk is
decoded; where they are jemalloc's, which Arrow brings along in most of its builds, that leaves no holes. Chunks and
what is hashed of them, two mebibytes each, would leave them all the same, more with every batch: what is as large as
memory that was given back before, the C library takes from its arenas. It is told to ask the system each time. What
lies idle all the same, payloads of a mebibyte leave holes too, goes back to the system behind a commit.

Only `cdc-lake run --only receive` does so, whose process is its own. `cdc_lake.run` is called in anybody's process, and
the job `receive` in one that the platform began: other threads may import pandas there meanwhile, and Spark and the
caller have a say in the allocator.
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
"""One is no smaller, and a thread would wait for any other (measured)."""
_LARGE: Final = 1_500_000
"""Bytes from which on memory is the system's. Payloads of a mebibyte are below: new memory is slow, and from 1,000,000
on the receiver took a fourth more processor time (measured).
"""
_KEPT: Final = 64 << 20
"""Bytes at the end of an arena that stay. Where the other threshold is set, glibc leaves this one at 128 KiB."""
_COMMITS: Final = ("landed", "snapshot")  # stages of what is told behind a commit
_MUCH: Final = 320 << 20
"""Bytes that a process may have before what lies idle goes back: new memory is slow, and short runs need none of it."""


def load() -> None:
    """Load Arrow in this way; where it is loaded already, nothing happens. To be called before other threads run."""
    if "pyarrow" in sys.modules:
        return
    chosen = _POOL in os.environ  # what somebody chose, counts
    os.environ.setdefault(_POOL, "system")
    _tune_malloc()
    with _hide_package("pandas"):
        import pyarrow as pa

        pa.array([0])  # it looks for pandas once, and for the variable
    if chosen:
        return
    del os.environ[_POOL]  # for a process that this one starts nobody chose
    if "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())


def giving_back(report: ProgressReporter) -> ProgressReporter:
    """Pass on what the receiver tells; behind each commit what the C library holds idle goes back, where it is much.

    So a long backlog takes little more than a short one (docs/performance.md). It takes some 10 ms, in any thread.
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
    """Bytes of memory that this process has, pages of its libraries' files among them."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _tune_malloc() -> None:
    """Let threads share the C library's arenas, where it has any, without what is large; what was chosen, counts."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's
    if mallopt is None:
        return
    if not _chosen("MALLOC_ARENA_MAX"):
        mallopt(_ARENA_MAX, _ARENAS)
    if not (_chosen("MALLOC_MMAP_THRESHOLD_") or _chosen("MALLOC_TRIM_THRESHOLD_")):
        mallopt(_MMAP_THRESHOLD, _LARGE)
        mallopt(_TRIM_THRESHOLD, _KEPT)


def _chosen(variable: str) -> bool:
    """Whether somebody set this variable of glibc's, or the tunable that is the same."""
    tunable = variable.removeprefix("MALLOC_").rstrip("_").lower()
    return variable in os.environ or tunable in os.environ.get("GLIBC_TUNABLES", "")


@contextmanager
def _hide_package(package: str) -> Iterator[None]:
    """As if it were not installed."""
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
