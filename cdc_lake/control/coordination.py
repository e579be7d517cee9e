"""How processes of a pipeline know of each other: notes, which are only hints, and leases.

The receiver notes why it waits, for processes that run while the lake is unreachable. Only bronze is authoritative. A
file has its full size from the start, so that it can be written on a full disk. If the control tables are in an object
store, the same object is put next to them, for processes on other machines.

A lease keeps two processes from applying one pipeline, or copying its tables, at the same time. If the control tables
are on this machine, it is a locked file, which the operating system releases with the process. If they are in an object
store, it is an object beside them, which is only ever replaced on the condition that it did not change. Its holder
renews it every few seconds; a process that wants it takes it from a holder that did not renew it for a while by the
clock of that process, so clocks of two machines are never compared. Each holder has the next `epoch`.

A lease keeps processes from disturbing each other. It is not what keeps silver right: a suspended holder may continue
after it was replaced, and each commit is refused if it was planned on a state that is no longer the newest. Rows of
control tables are not planned on a state: their commits carry the epoch, and none is accepted after one of a later
epoch (`tables.control_tables`).
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from uuid import uuid4

from cdc_lake.config.model import ObjectAddress
from cdc_lake.config.project import Project
from cdc_lake.errors import AnotherApply, AnotherCopy, LakeError, StateError
from cdc_lake.observability.events import ProgressEvent, ProgressReporter, silent
from cdc_lake.tables.control_files import ControlFiles, StoredControlFiles
from cdc_lake.tables.object_store import LEASE, HeldLease, ObjectStore, object_store

_SIZE: Final = 4096  # bytes, a block of a disk
T = TypeVar("T")


class NoteFile:
    """One JSON object of a pipeline, or none. `trouble`: what others will not learn if it cannot be written."""

    def __init__(self, project: Project, kind: str, trouble: str, report: ProgressReporter = silent) -> None:
        self._path = project.lake / "logs" / f"{project.name}.{kind}"
        self._name = kind
        self._shared = _shared_notes(project)
        self._trouble = trouble
        self._report = report

    def begin(self) -> None:
        """Create the file, if it does not exist with its size."""
        with self._report_errors():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if not self._path.exists() or self._path.stat().st_size != _SIZE:
                self._path.write_bytes(b" " * _SIZE)

    def write(self, note: Mapping[str, object] | None) -> None:
        """Write an object, or none."""
        text = b"" if note is None else json.dumps(note).encode()
        with self._report_errors(), self._path.open("r+b") as file:
            file.write(text[:_SIZE].ljust(_SIZE))
        if self._shared is not None:
            with self._report_errors():
                self._shared.put(self._name, lambda: [text])

    def read_as(self, value: Callable[[dict[str, Any]], T]) -> T | None:
        """The last object as a value; None also if it is invalid, because it is only a hint."""
        try:
            note = json.loads(self._read().strip() or b"null")
            return value(note) if isinstance(note, dict) else None
        except (FileNotFoundError, ValueError, RecursionError, KeyError, TypeError, OverflowError):
            return None  # never begun; read in the middle of a write; damaged

    def _read(self) -> bytes:
        """What all machines see; if that is not available, the file."""
        with suppress(LakeError):  # the next read of the control tables reports why
            if self._shared is not None and (text := self._shared.read(self._name, 0, _SIZE)) is not None:
                return text
        return self._path.read_bytes()

    @contextmanager
    def _report_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as failure:
            self._report(ProgressEvent("receive", f"{self._trouble}: {failure.strerror} at {self._path}"))
        except LakeError as failure:
            self._report(ProgressEvent("receive", f"{self._trouble}: {failure.message} at {failure.where}"))


def _shared_notes(project: Project) -> ControlFiles | None:
    """The notes that other machines can read, if any; a write is tried only once."""
    if (address := project.control_address) is None:
        return None
    return StoredControlFiles(object_store(project, patience=0), address / "notes")


@dataclass(frozen=True, slots=True)
class ReceiverWait:
    """Why the receiver waits: since when, its last attempt, and the error."""

    since: datetime
    tried: datetime
    code: str
    message: str
    where: str


class ReceiverNote:
    """Written only by the receiver while it is entered, one thread at a time; read by anybody."""

    def __init__(self, project: Project, report: ProgressReporter = silent) -> None:
        trouble = "`status` cannot be informed whether the receiver waits"
        self._file = NoteFile(project, "receiver", trouble, report)
        self._since: datetime | None = None

    def __enter__(self) -> Self:
        self._file.begin()
        self.goes_on()
        return self

    def __exit__(self, *_: object) -> None:
        self.goes_on()

    def waits(self, error: LakeError) -> None:
        """Record a wait."""
        now = datetime.now(UTC)
        self._since = self._since or now
        fields = asdict(ReceiverWait(self._since, now, error.code, error.message[:500], error.where[:500]))
        self._file.write({name: str(value) for name, value in fields.items()})

    def goes_on(self) -> None:
        """Record that there is no wait any more."""
        self._since = None
        self._file.write(None)

    def read(self) -> ReceiverWait | None:
        """The receiver's last record; None if it does not wait, or never ran."""
        return self._file.read_as(_waiting)


def _waiting(note: dict[str, Any]) -> ReceiverWait:
    since, tried = (datetime.fromisoformat(note[name]) for name in ("since", "tried"))
    return ReceiverWait(since, tried, str(note["code"]), str(note["message"]), str(note["where"]))


RENEW_SECONDS: Final = 5.0
_MISSED: Final = 3
"""A holder that missed so many renewals is replaced."""


def apply_lease(project: Project) -> AbstractContextManager[None]:
    """Hold the right to change silver. Raises AnotherApply if another process has it."""
    return _lease(project, "apply", AnotherApply, "applies this pipeline already")


def copy_lease(project: Project) -> AbstractContextManager[None]:
    """Hold the right to copy tables again: one resync at a time. Raises AnotherCopy."""
    return _lease(project, "copy", AnotherCopy, "copies tables of this pipeline already")


def _lease(project: Project, name: str, error: type[StateError], words: str) -> AbstractContextManager[None]:
    address = project.control_address
    if address is None:
        return _locked_file(project.control, f"{name}.lock", error, words)
    return _held_object(object_store(project), address / "_lease", name, error, words)


@contextmanager
def _locked_file(folder: Path, name: str, error: type[StateError], words: str) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as taken:
            holder = os.pread(file, 20, 0).decode("ascii", "replace").strip() or "unknown"
            raise error(f"process {holder} {words}", where=str(folder)) from taken
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(file)


@contextmanager
def _held_object(
    store: ObjectStore, folder: ObjectAddress, name: str, error: type[StateError], words: str
) -> Iterator[None]:
    lease = StoreLease(store, folder / f"{name}.json", renew_seconds=RENEW_SECONDS)
    holder = lease.take()
    if holder is not None:
        raise error(f"{holder} {words}", where=str(folder / f"{name}.json"))
    stop = threading.Event()
    renewing = threading.Thread(target=lease.renew_until, args=(stop,), name="lease", daemon=True)
    renewing.start()
    held = LEASE.set(HeldLease(name, lease.epoch))
    try:
        yield
    finally:
        LEASE.reset(held)
        stop.set()
        renewing.join()
        lease.release()


class StoreLease:
    """A lease in an object store. `renew_seconds`: how often its holder renews it, recorded in it."""

    def __init__(self, store: ObjectStore, address: ObjectAddress, *, renew_seconds: float) -> None:
        self._store = store
        self._address = address
        self._run = str(uuid4())
        self._every = renew_seconds
        self._tag = ""
        self._count = 0
        self.epoch = 0
        """The number of this holder; 0 before `take`."""

    def take(self) -> str | None:
        """Take the lease; returns who has it instead, None if this process has it now.

        Raises StoreUnavailable, StoreRefused; StoreUnfenced if the store cannot keep a lease.
        """
        record, tag = self._read()
        if record is None:
            self._store.prove_fence(f"{self._address.path}.fence", str(self._address), replaces=True)
        elif not _is_free(record):
            seen = tag
            record, tag = self._read_after_change(float(record["every"]), seen)
            if record is not None and tag != seen and record["holder"] is not None:
                return f"process {record['process']} on {record['host']}"
        self.epoch = 1 if record is None else record["epoch"] + 1
        taken = self._put(tag=tag)
        if taken is None:
            return "another process"  # it took the lease at the same moment
        self._tag = taken
        return None

    def renew_until(self, stop: threading.Event) -> None:
        """Renew the lease until `stop` is set, or until another process has it."""
        while not stop.wait(self._every):
            try:
                tag = self._put(tag=self._tag)
            except LakeError:
                continue  # the store is unavailable: to all processes, or this one is replaced
            if tag is None:
                return
            self._tag = tag

    def release(self) -> None:
        """Let the next process have the lease at once, unless another one has it already."""
        self._run = ""
        with suppress(LakeError):  # it is free when its renewals have been missed
            self._put(tag=self._tag)

    def _read(self) -> tuple[dict[str, Any] | None, str | None]:
        """What is in the lease, and its ETag; None without it."""
        present = self._store.read_tagged(self._address.path, str(self._address))
        return (None, None) if present is None else (json.loads(present[0]), present[1])

    def _read_after_change(self, every: float, seen: str | None) -> tuple[dict[str, Any] | None, str | None]:
        """The same once it differs from `seen`, or unchanged after a holder has missed its renewals."""
        until = time.monotonic() + _MISSED * every
        while True:
            record, tag = self._read()
            if tag != seen or time.monotonic() >= until:
                return record, tag
            time.sleep(self._every / 5)

    def _put(self, *, tag: str | None) -> str | None:
        self._count += 1
        record = {
            "holder": self._run or None,
            "epoch": self.epoch,
            "every": self._every,
            "renewals": self._count,
            "host": socket.gethostname(),
            "process": os.getpid(),
            "system": _system(),
        }
        return self._store.put_if(self._address.path, json.dumps(record), str(self._address), tag=tag)


def _is_free(record: dict[str, Any]) -> bool:
    """Whether the lease was released, or its holder ran on this system, in the same namespace of process ids, and is
    not there any more.
    """
    if record["holder"] is None:
        return True
    if record["system"] != _system():
        return False
    try:
        os.kill(int(record["process"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


@cache
def _system() -> str:
    """What tells this boot of this machine, and the namespace of its process ids, from all others."""
    boot, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    if not boot.exists():
        return str(uuid4())  # nobody else has it
    return f"{boot.read_text().strip()} {namespace.readlink()}"
