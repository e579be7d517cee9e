"""Peak memory of processes: the receiver, and its hashing helper.

Read from /proc, because the system's value for a child (`ru_maxrss`) starts with that of its parent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from cdc_lake.connectors.hashing_process import HashingProcess


def peak_mib(process: int | str = "self") -> float:
    """The most memory a process had so far, in MiB."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


@contextmanager
def hashing_beside() -> Iterator[list[float]]:
    """The most memory of each process that hashes beside the receiver, in MiB."""
    peaks: list[float] = []
    close = HashingProcess.close

    def closed(process: HashingProcess) -> None:
        if process.pid is not None:
            peaks.append(peak_mib(process.pid))
        close(process)

    with mock.patch.object(HashingProcess, "close", closed):
        yield peaks
