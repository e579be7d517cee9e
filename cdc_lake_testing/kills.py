"""Kills a receiver repeatedly where a test says, in processes that start quickly; with concurrent readers."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import pyarrow.compute as pc
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from cdc_lake.bronze.open import bronze_reader, bronze_writer
from cdc_lake.comparison.compare import compare
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.control.snapshots import copies_in_force
from cdc_lake.decode.pgoutput.assembler import Assembler
from cdc_lake.decode.pgoutput.spooled import SpooledTransaction
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.observability import failpoints as at
from cdc_lake.observability.events import silent
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake.runtime.run import run
from cdc_lake.tables.control_tables import control_tables
from cdc_lake_testing.controls import acknowledge_before_commit
from cdc_lake_testing.whole import assert_whole_transactions

RECEIVING = (
    at.STATE_READ,
    at.CONNECTED,
    at.FRAMES_READ,
    at.BATCH_OPEN,
    at.BEGUN,
    at.CHANGE_TAKEN,
    at.COMMIT_RECEIVED,
    at.FILE_OPEN,
    at.FILE_WRITTEN,
    at.COMMIT_WRITTEN,
    at.COMMIT_DOUBTED,
    at.BRONZE_COMMITTED,
    at.CONFIRMED,
    at.COMPACTING,
    at.COMPACTED,
)
"""Where a receiver that goes on with its stream may die, whatever it reads."""

COPYING = (
    at.SLOT_KEPT,
    at.FILE_WRITTEN,
    at.COMMIT_WRITTEN,
    at.SNAPSHOT_CHUNK,
    at.TABLE_COPIED,
    at.SNAPSHOT_DONE,
)
"""Where one of PostgreSQL may die in its first run, in an order in which each is still to come behind those before."""

KILLED = -signal.SIGKILL

Dying: TypeAlias = Callable[[str, Path, str], None]
"""What a process does: with the pipeline as JSON, its folder, and the failpoint that is set."""


def receive_until_killed(document: str, root: Path, setting: str) -> None:
    """What the process does: `run --once --only receive`, with a failpoint set."""
    at.arm(setting)
    project = Project(Pipeline.model_validate_json(document), root / "pipeline.yaml", root)
    run(project, once=True, only="receive", stop=threading.Event(), report=silent)


def receive_boasting(document: str, root: Path, setting: str) -> None:
    """A negative control: as `receive_until_killed`, confirming before it commits."""
    at.arm(setting)
    project = Project(Pipeline.model_validate_json(document), root / "pipeline.yaml", root)
    with acknowledge_before_commit():
        receive(project, bronze_writer(project), once=True, stop=threading.Event(), report=silent)


def receive_on(document: str, root: Path, setting: str) -> None:
    """What a process does that is killed from outside: `run --only receive`, without end."""
    at.arm(setting)
    project = Project(Pipeline.model_validate_json(document), root / "pipeline.yaml", root)
    receive(project, bronze_writer(project), once=False, stop=threading.Event(), report=silent, slot_patience=120)


def receive_unanswered(document: str, root: Path, setting: str) -> None:
    """As `receive_until_killed`; every commit to a table is made, and the call that made it fails."""

    def unanswered(call: Callable[..., Any]) -> Callable[..., Any]:
        def lost(*given: Any, **named: Any) -> Any:
            call(*given, **named)
            msg = "the reply was lost"
            raise OSError(msg)

        return lost

    # the process is for nothing else
    DeltaTable.create_write_transaction = unanswered(DeltaTable.create_write_transaction)
    SqlCatalog.commit_table = unanswered(SqlCatalog.commit_table)
    receive_until_killed(document, root, setting)


def receive_until_message(document: str, root: Path, setting: str) -> None:
    """As `receive_until_killed`, dead before it takes message number `setting` of the stream."""
    left, taken = itertools.count(1 - int(setting)), Assembler.feed

    def feed(assembler: Assembler, payload: bytes, lsn: int) -> tuple[BufferedTransaction | SpooledTransaction, ...]:
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return taken(assembler, payload, lsn)

    Assembler.feed = feed  # type: ignore[assignment, method-assign]  # the process is for nothing else
    receive_until_killed(document, root, "")


def repair_until_killed(document: str, root: Path, setting: str) -> None:
    """`compare --repair --yes`, with a failpoint set."""
    at.arm(setting)
    project = Project(Pipeline.model_validate_json(document), root / "pipeline.yaml", root)
    compare(project, (), silent, repair=True, yes=True)


class Receivers:
    """Starts receivers of one project, or what else is to die, forked from a process that has everything imported."""

    def __init__(self, project: Project, secrets: Mapping[str, str] | None = None) -> None:
        self._project = project
        self._document = json.dumps(project.pipeline.model_dump(mode="json", by_alias=True) | dict(secrets or {}))
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(["cdc_lake_testing.kills", "cdc_lake.runtime.receive.receiver"])

    def run(self, setting: str = "", seconds: float = 240, target: Dying = receive_until_killed) -> int:
        """Run one to its end or its failpoint; its exit code."""
        process = self._processes.Process(target=target, args=(self._document, self._project.root, setting))
        process.start()
        process.join(seconds)
        if process.is_alive():
            process.kill()
            process.join()
            msg = f"the receiver did not end in {seconds:g} s ({setting or 'no failpoint'})"
            raise AssertionError(msg)
        assert process.exitcode is not None
        return process.exitcode

    @contextmanager
    def running(self) -> Iterator[None]:
        """One beside what is inside, killed at its end. Raises AssertionError where it ended before that."""
        process = self._processes.Process(target=receive_on, args=(self._document, self._project.root, ""))
        process.start()
        try:
            yield
        finally:
            process.kill()
            process.join()
        assert process.exitcode == KILLED, f"the receiver ended by itself, with {process.exitcode}"


class Watching:
    """Readers that look at bronze all the while; leaving raises what they saw that nobody may see."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._failure: BaseException | None = None
        self.looks = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._failure is not None and kind is None:
            raise self._failure

    def _watch(self) -> None:
        try:
            reader = bronze_reader(self._project)
            while not self._over.wait(0.02):
                assert_whole_transactions(reader)
                self.looks += 1
        except BaseException as failure:  # noqa: BLE001 - raised where the watch ends
            self._failure = failure


def inserted(project: Project, relation: str) -> list[Any]:
    """First values of an insert-only table's rows in the newest epoch, each as often as it is there: of its whole copy,
    and of the transactions behind that.
    """
    reader = bronze_reader(project)
    state, files = reader.state(), reader.files()
    assert state is not None
    copies = copies_in_force(control_tables(project).snapshots(), state.stream, state.upto) or {}
    begins = copies[relation].position if relation in copies else -1
    paths = files.select(epoch=state.epoch, relations=[relation])
    op, position = pc.field("op"), pc.field("position")
    wanted = ((op == "S") & (position == begins)) | ((op == "I") & (position > begins))
    wanted &= (pc.field("epoch") == state.epoch) & (pc.field("relation") == relation)
    return [row[0] for part in files.batches(paths, ["new"], wanted) for row in part["new"].to_pylist()]
