"""A pipeline under faults: runs its commands as processes, kills them where a test says, and verifies the result.

It uses only the public command line, and reads what that leaves on disk.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import psutil
import pyarrow.compute as pc

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.loader import load_project
from cdc_lake.config.project import Project
from cdc_lake.control.cuts import ACTIVE, kept_versions, table_states
from cdc_lake.errors import SilverMissing
from cdc_lake.model.position import Span
from cdc_lake.model.relation import TableName
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.open_silver_table import table_log

KILLED = -signal.SIGKILL


class Pipeline:
    """The pipeline file `file`; `environment` holds its secrets."""

    def __init__(self, file: Path, environment: Mapping[str, str]) -> None:
        self.file = file
        self._environment = {**os.environ, **environment}

    def command(self, *arguments: str, failpoint: str = "") -> Command:
        """Start `cdc-lake` with these arguments, to be killed at `failpoint`."""
        words = [sys.executable, "-m", "cdc_lake.cli.app", *arguments, "--json", "--pipeline", str(self.file)]
        return Command(words, {**self._environment, "CDC_LAKE_FAILPOINT": failpoint})

    def do(self, *arguments: str, failpoint: str = "", expect: int = 0) -> Command:
        """Run a command to its end, which must be the exit code `expect`, or the kill where a failpoint is given."""
        with self.command(*arguments, failpoint=failpoint) as command:
            code = command.wait(300)
        expect = KILLED if failpoint else expect
        assert code == expect, f"`{' '.join(arguments)}` {failpoint} ended with {code}, not {expect}:\n{command.said}"
        return command

    def prove(self) -> str:
        """Silver equal to the source but for held keys, the chain whole, cuts true; the verdict in words."""
        compared = json.loads(self.do("compare").output)
        assert compared["verdict"] in {"equal", "equal but for quarantined keys"}, json.dumps(compared, indent=1)
        assert json.loads(self.do("inspect", "chain").output)["holds"]
        assert_cuts_are_true(load_project(self.file))
        assert_nothing_is_held_twice(load_project(self.file))
        return str(compared["text"])


class Command:
    """A running command, leader of a process group of its own; leaving kills what is left of the group."""

    def __init__(self, words: list[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            words,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._lines: list[str] = []
        self._errors: list[str] = []
        self._news = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in ((self._process.stdout, self._lines), (self._process.stderr, self._errors))
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for reader in self._readers:
            reader.join(30)

    @property
    def output(self) -> str:
        """What it wrote to standard output."""
        return "".join(self._lines)

    @property
    def said(self) -> str:
        """The last of what it wrote anywhere."""
        return "".join([*self._lines[-8:], *self._errors[-20:]])

    @property
    def everything(self) -> str:
        """All that it wrote anywhere."""
        return "".join([*self._lines, *self._errors])

    @property
    def java_command_lines(self) -> list[str]:
        """What everybody on the machine sees of its JVM."""
        children = psutil.Process(self._process.pid).children(recursive=True)
        return [" ".join(child.cmdline()) for child in children if child.name() == "java"]

    def events(self, stage: str) -> list[dict[str, Any]]:
        """Events of a stage until now."""
        with self._news:
            return [e for e in map(_event, self._lines) if e.get("stage") == stage]

    def until(self, stage: str, count: int = 1, seconds: float = 240) -> None:
        """Wait for that many events of a stage."""
        end = time.monotonic() + seconds
        while len(self.events(stage)) < count:
            assert self._process.poll() is None, f"it ended before `{stage}`:\n{self.said}"
            with self._news:
                assert self._news.wait(end - time.monotonic()), f"no `{stage}` in time:\n{self.said}"

    @property
    def running(self) -> bool:
        """False once it ended."""
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, not to its group."""
        self._process.send_signal(number)

    def send_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and to its JVM."""
        os.killpg(self._process.pid, number)

    def kill_java(self) -> None:
        """Kill the JVM alone."""
        for child in psutil.Process(self._process.pid).children(recursive=True):
            if child.name() == "java":
                child.kill()

    def kill(self) -> None:
        """Kill the whole group, with its JVM."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            self._process.wait()

    def wait(self, seconds: float) -> int:
        """Its exit code."""
        return self._process.wait(seconds)

    def _read(self, stream: Any, lines: list[str]) -> None:
        with stream:
            for line in stream:
                with self._news:
                    lines.append(line)
                    self._news.notify_all()
        with self._news:
            self._news.notify_all()


def assert_cuts_are_true(project: Project, *, upkept: bool = False) -> None:
    """The version that a cut names of a table holds what bronze has up to the cut, and nothing above it.

    `upkept`: versions that nothing keeps may be gone. What a later cut of the same position takes back of a table, the
    one before it need not have.
    """
    kept = kept_versions(control_tables(project), datetime.now(UTC))
    cuts = control_tables(project).read("cuts").sort_by("recorded_at").to_pylist()
    assert [c["position"] for c in cuts] == sorted(c["position"] for c in cuts), "a cut went back"
    taken_back = _taken_back(cuts)
    for at_row, cut in enumerate(cuts):
        commits = bronze_reader(project).commits(Span(cut["epoch"], -1, cut["position"]))
        for relation, table in table_states(cut["tables"]).items():
            if table.state != ACTIVE or table.version is None or (at_row, relation) in taken_back:
                continue
            target = project.target(TableName.parse(relation))
            try:
                marker = table_log(project, target).marker(cut["stream"], table.version)
            except SilverMissing:
                if upkept and table.version not in kept.get(relation, ()):
                    continue
                raise
            at = marker.position
            assert marker.generation == table.generation, f"{relation} in the cut {cut['position']}"
            last = max((c.position for c in commits if relation in c.counts), default=-1)
            if at is None:  # its copy was empty: the table was made, and nothing is in it
                assert last == -1, f"{relation} has no marker in the cut {cut['position']}, and bronze has {last}"
                continue
            assert last <= at <= cut["position"], f"{relation} is at {at}, not {last}, in the cut {cut['position']}"


def _taken_back(cuts: Sequence[Mapping[str, Any]]) -> set[tuple[int, str]]:
    """What a later cut of the same position says to be further behind, by the row and the table."""
    found: set[tuple[int, str]] = set()
    lowest: dict[tuple[int, int, str], int] = {}
    for row, cut in reversed([*enumerate(cuts)]):
        for relation, table in json.loads(cut["tables"]).items():
            place, at = (cut["epoch"], cut["position"], relation), table["position"]
            if lowest.setdefault(place, at) < at:
                found.add((row, relation))
            lowest[place] = min(lowest[place], at)
    return found


def assert_nothing_is_held_twice(project: Project) -> None:
    """Each change is in `held` at most once for a generation of its table."""
    quarantined = control_tables(project).read("quarantine")
    quarantined = quarantined.filter(pc.field("reason") != "closed")
    one = ("relation", "epoch", "generation", "position", "ordinal")
    places = list(zip(*(quarantined[c].to_pylist() for c in one), strict=True))
    assert len(places) == len(set(places)), "a change is held twice"


def _event(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}
