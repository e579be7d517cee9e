"""Keeps two processes from applying one pipeline, or copying its tables, at the same time.

If the control tables are on this machine, the lease is a locked file, which the operating system releases with the
process. If they are in an object store, it is an object beside them, which is only ever replaced on the condition that
it did not change. Its holder renews it every few seconds; a process that wants it takes it from a holder that did not
renew it for a while by the clock of that process, so clocks of two machines are never compared. Each holder has the
next `epoch`.

The lease keeps processes from disturbing each other. It is not what keeps silver right: a suspended holder may continue
after it was replaced, and each commit is refused if it was planned on a state that is no longer the newest.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from cdc_lake.config.model import ObjectAddress
from cdc_lake.config.project import Project
from cdc_lake.errors import AnotherApply, AnotherCopy, LakeError, StateError
from cdc_lake.tables.object_store import ObjectStore, object_store

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
    return _held_object(object_store(project), address / "_lease" / f"{name}.json", error, words)


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
def _held_object(store: ObjectStore, address: ObjectAddress, error: type[StateError], words: str) -> Iterator[None]:
    lease = StoreLease(store, address, renew_seconds=RENEW_SECONDS)
    holder = lease.take()
    if holder is not None:
        raise error(f"{holder} {words}", where=str(address))
    stop = threading.Event()
    renewing = threading.Thread(target=lease.renew_until, args=(stop,), name="lease", daemon=True)
    renewing.start()
    try:
        yield
    finally:
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
        try:
            self._put(tag=self._tag)
        except LakeError:
            return  # it is free when its renewals have been missed

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
