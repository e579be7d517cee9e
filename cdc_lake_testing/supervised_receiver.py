"""A receiver in a separate process that is started again whenever it was killed, and is monitored meanwhile.

It receives the pipeline of `pipeline.json` in its folder until it is stopped (SIGTERM), and prints a line for each
commit. A number on its input makes commits take half a second longer for that many seconds, as on a slow disk.
"""

from __future__ import annotations

import collections
import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from cdc_lake.bronze.contract import BronzeCommit, Tabulate, TransactionBatch
from cdc_lake.bronze.writer import TableBronze
from cdc_lake.cli import arrow_memory
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.transaction import ReceivedTransaction
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.runtime.run import run

_SLOW = 0.5  # seconds
_AS_SHIPPED = """
import sys
from pathlib import Path
from cdc_lake.cli import arrow_memory as lean_arrow
lean_arrow.load()
from cdc_lake_testing.supervised_receiver import main
main(Path(sys.argv[1]))
"""
"""Arrow is loaded as the command loads it, before anything else loads it."""


@dataclass(frozen=True, slots=True)
class Look:
    """The process at one moment. `life`: how many times it had been started; `rss` in bytes."""

    at: float
    life: int
    rss: int
    files: int


class SupervisedReceiver:
    """Runs while it is entered; leaving asks the process to stop and waits. `given`: the pipeline's document."""

    def __init__(self, document: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pipeline.json").write_text(document)
        self._folder = folder
        self._over = threading.Event()
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._live, self._watch)]
        self._process: subprocess.Popen[str] | None = None
        self.commits = self.transactions = self.changes = self.lives = self.kills = 0
        self.looks: list[Look] = []
        self.said: collections.deque[str] = collections.deque(maxlen=60)
        """The last of what it told of anything else."""
        self.failed = ""
        """How it ended, where that was of its own accord."""

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
        for thread in self._threads:
            thread.join(120)
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def kill(self) -> None:
        """Kill -9; it is started again."""
        if self._process is not None:
            self.kills += 1
            self._process.kill()

    def slow(self, seconds: float) -> None:
        """Its commits take long for a while."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.write(f"{seconds}\n")
                self._process.stdin.flush()

    @contextlib.contextmanager
    def full(self, size: int = 0) -> Iterator[None]:
        """No file of it can grow beyond `size` bytes: the system refuses the write, as on a full disk."""
        assert self._process is not None
        pid = self._process.pid
        try:
            before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, before[1]))
        except ProcessLookupError:  # it was killed just now
            yield
            return
        yield
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """It does nothing at all."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        yield
        self._process.send_signal(signal.SIGCONT)

    def _live(self) -> None:
        words = [sys.executable, "-c", _AS_SHIPPED, str(self._folder)]
        while not self._over.is_set():
            self.lives += 1
            # by pipes alone, which no limit of files reaches
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            assert self._process.stdout is not None
            for line in self._process.stdout:
                self._heard(line)
            code = self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what was written to who was killed
                        pipe.close()
            if not self._over.is_set() and code != -signal.SIGKILL:
                self.failed = f"it ended by itself with {code}: {''.join(self.said)}"
                return

    def _heard(self, line: str) -> None:
        match line.split():
            case ["landed", transactions, changes]:
                self.commits += 1
                self.transactions += int(transactions)
                self.changes += int(changes)
            case _:
                self.said.append(line)

    def _watch(self) -> None:
        while not self._over.wait(1):
            with contextlib.suppress(psutil.Error):
                if self._process is not None and self._process.poll() is None:
                    own = psutil.Process(self._process.pid)
                    words = own.cmdline()  # a child that has the same is about to become another, and no memory yet
                    others = [child for child in own.children() if child.cmdline() != words]  # the one that hashes
                    rss = sum(one.memory_info().rss for one in (own, *others))
                    self.looks.append(Look(time.monotonic(), self.lives, rss, own.num_fds()))


def growth(looks: Sequence[Look]) -> float:
    """By how many bytes a minute memory grows, as a straight line through all looks."""
    times = [look.at for look in looks]
    middle, mean = sum(times) / len(times), sum(look.rss for look in looks) / len(looks)
    spread = sum((at - middle) ** 2 for at in times)
    return 60 * sum((look.at - middle) * (look.rss - mean) for look in looks) / spread


def main(folder: Path) -> None:
    """Receive until told to stop."""
    project = Project(
        Pipeline.model_validate_json((folder / "pipeline.json").read_text()), folder / "pipeline.yaml", folder
    )
    stop, slow_until, append = threading.Event(), [0.0], TableBronze.append
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def listen() -> None:
        for line in sys.stdin:
            slow_until[0] = time.monotonic() + float(line)

    def slowly(
        bronze: TableBronze, batch: TransactionBatch | Sequence[ReceivedTransaction], tabulate: Tabulate = tabulate
    ) -> BronzeCommit:
        if time.monotonic() < slow_until[0]:
            time.sleep(_SLOW)
        return append(bronze, batch, tabulate)

    def tell(progress: ProgressEvent) -> None:
        if progress.stage == "landed":
            print("landed", progress.facts["transactions"], progress.facts["changes"], flush=True)
        elif progress.stage in {"retry", "connect"}:
            print(progress.stage, progress.text, flush=True)

    threading.Thread(target=listen, daemon=True).start()
    TableBronze.append = slowly  # type: ignore[assignment, method-assign]  # the process is for nothing else
    run(project, once=False, only="receive", stop=stop, report=arrow_memory.giving_back(tell))
    os._exit(0)  # the listener waits for input that may never come
