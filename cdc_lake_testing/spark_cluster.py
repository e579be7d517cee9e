"""A standalone Spark cluster on loopback, whose workers cannot see what the driver has on its disk.

Each worker is in a mount namespace of its own, in which given folders are empty. Otherwise a driver that hands its
executors a file would succeed by accident, because all are on one machine.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import pyspark

_SPARK: Final = Path(pyspark.__path__[0])
_DEPLOY: Final = "org.apache.spark.deploy"
_PATIENCE: Final = 60.0  # seconds for a process to say that it is there


class SparkCluster:
    """A master and its workers, one core each. `hidden`: folders that are empty for the workers; `logs`: of them;
    `pinned`: whether each worker has a core of the machine for itself.
    """

    def __init__(
        self, logs: Path, hidden: Sequence[Path], workers: int = 2, memory: str = "1g", *, pinned: bool = False
    ) -> None:
        self._logs = logs
        self._hidden = hidden
        self._processes: list[subprocess.Popen[bytes]] = []
        self._count = workers
        self._memory = memory
        self._pinned = pinned
        self.master = ""
        """The address of the master."""

    def __enter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        try:
            options = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
            log = self._start("master", [f"{_DEPLOY}.master.Master", *options], [])
            self.master = _said(log, r"Starting Spark master at (spark://\S+)")
            hiding = [f"mount -t tmpfs tmpfs {shlex.quote(str(folder))}" for folder in self._hidden]
            for number in range(self._count):
                options = ["--host", "127.0.0.1", "--webui-port", "0", "-c", "1", "-m", self._memory]
                work = ["-d", str(self._hidden[0] / "spark-work")]
                first = [*hiding, *[f"taskset --cpu-list --pid {number} $$"] * self._pinned]
                log = self._start(f"worker{number}", [f"{_DEPLOY}.worker.Worker", *options, *work, self.master], first)
                _said(log, r"Successfully registered with master")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()

    def executors(self) -> list[int]:
        """The process ids of the executors: children of the workers."""
        workers = {process.pid for process in self._processes}
        found = []
        for entry in Path("/proc").iterdir():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields and fields[0] != "Z" and int(fields[1]) in workers:
                found.append(int(entry.name))
        return found

    def _start(self, name: str, words: list[str], first: list[str]) -> Path:
        log = self._logs / f"{name}.log"
        command = " && ".join([*first, f"exec {shlex.join([str(_SPARK / 'bin' / 'spark-class'), *words])}"])
        environment = {**os.environ, "SPARK_HOME": str(_SPARK), "SPARK_LOCAL_IP": "127.0.0.1"}
        apart = ["unshare", "--map-root-user", "--mount", "sh", "-c", command]
        with log.open("wb") as output:
            process = subprocess.Popen(apart, stdout=output, stderr=subprocess.STDOUT, env=environment)
        self._processes.append(process)
        return log


def _said(log: Path, pattern: str) -> str:
    """What a process wrote into its log, once it did."""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        if (line := re.search(pattern, log.read_text(errors="replace"))) is not None:
            return line[line.lastindex or 0]
        time.sleep(0.1)
    raise AssertionError(f"{log} does not say `{pattern}`:\n{log.read_text(errors='replace')}")
