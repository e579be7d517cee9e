"""A GaussDB test server in front of a live PostgreSQL, as a background process.

It outlives the process that started it and is found again by its folder, which contains the journal of committed
transactions, the slots, the ports and a log. After a restart it continues: a slot goes back by at most the last
fraction of a second, so that a little is sent again, as after a crash of the real server::

    StandIn(folder).start(Settings(dsn, user="cdc", password="…", user_dsn=dsn_of_cdc))
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import psutil

from cdc_lake_testing.gaussdb.answers import LiveAnswers
from cdc_lake_testing.gaussdb.authentication import Method
from cdc_lake_testing.gaussdb.dialect import Product, Version
from cdc_lake_testing.gaussdb.live import LivePostgres
from cdc_lake_testing.gaussdb.server import GaussServer
from cdc_lake_testing.gaussdb.slots import Slot, SlotOrder, Slots

_MODULE: Final = "cdc_lake_testing.gaussdb.standin"
_STARTS: Final = 60.0  # seconds a start may take: the tables are copied
_SAVES: Final = 0.2  # seconds between looks at the slots


@dataclass(frozen=True, slots=True)
class Settings:
    """What a stand-in is. `dsn`: a superuser of the PostgreSQL; `user_dsn`: whom its clients' SQL runs as there.

    Ports of 0 are chosen at the first start and kept.
    """

    dsn: str
    user_dsn: str
    user: str
    password: str
    product: Product = "GaussDB"
    version: Version = "6.0.2"
    inversions: float = 0.0
    foreign: float = 0.0
    ddl_marks: bool = True
    port: int = 0
    replication_port: int = 0


class StandIn:
    """The stand-in of a folder. Methods raise RuntimeError with the last words of its log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._settings = self.folder / "settings.json"
        self._process = self.folder / "process.json"
        self._slots = self.folder / "slots.json"
        self._log = self.folder / "log"

    @property
    def settings(self) -> Settings:
        """What it was started with, and its ports."""
        return Settings(**json.loads(self._settings.read_text()))

    @property
    def running(self) -> bool:
        """True where its process lives."""
        return self._found() is not None

    def start(self, settings: Settings) -> Settings:
        """Start it, unless it runs; returns once it takes connections, with its ports."""
        if self.running:
            return self.settings
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._settings.exists():
            kept = self.settings
            settings = replace(settings, port=kept.port, replication_port=kept.replication_port)
        _write(self._settings, json.dumps(asdict(settings)))
        self._process.unlink(missing_ok=True)
        pid = self._spawn()
        deadline = time.monotonic() + _STARTS
        while not self._process.exists():
            if os.waitpid(pid, os.WNOHANG)[0] or time.monotonic() > deadline:
                raise RuntimeError(f"the stand-in did not start:\n{self._log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)
        return self.settings

    def stop(self) -> None:
        """Stop it; what it holds stays."""
        if (process := self._found()) is None:
            return
        process.terminate()
        try:
            process.wait(20)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(10)
        self._process.unlink(missing_ok=True)

    def serve(self) -> None:
        """Be the process: serve until it is asked to end, or PostgreSQL is gone."""
        stopping = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stopping.set())
        given = self.settings
        live = LivePostgres(
            given.dsn,
            inversions=given.inversions,
            foreign=given.foreign,
            ddl_marks=given.ddl_marks,
            journal=self.folder / "journal",
        )
        with live:
            answers = LiveAnswers(live, given.user_dsn)
            server = GaussServer(
                live.ledger,
                version=given.version,
                product=given.product,
                users={given.user: given.password},
                method=Method.SHA256,
                databases=[live.database],
                answers=answers,
                thread_pool=True,
                port=given.port,
                replication_port=given.replication_port,
            )
            self._load(server.state.slots)
            with server:
                self._announce(replace(given, port=server.port, replication_port=server.replication_port))
                while not stopping.wait(_SAVES) and live.reading:
                    self._save(server.state.slots)
            self._save(server.state.slots)

    def _spawn(self) -> int:
        """A process in a session of its own; not `subprocess`, which wants to see the end of what it starts."""
        log = os.open(self._log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        try:
            return os.posix_spawn(
                sys.executable,
                [sys.executable, "-m", _MODULE, str(self.folder)],
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, null, 0),
                    (os.POSIX_SPAWN_DUP2, log, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                    *((os.POSIX_SPAWN_CLOSE, inherited) for inherited in _inheritable()),
                ],
                setsid=True,
            )
        finally:
            os.close(log)
            os.close(null)

    def _found(self) -> psutil.Process | None:
        if not self._process.exists():
            return None
        kept = json.loads(self._process.read_text())
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(kept["pid"])
            if process.create_time() == kept["since"] and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None

    def _announce(self, settings: Settings) -> None:
        _write(self._settings, json.dumps(asdict(settings)))
        me = psutil.Process()
        _write(self._process, json.dumps({"pid": me.pid, "since": me.create_time()}))

    def _load(self, slots: Slots) -> None:
        with contextlib.suppress(FileNotFoundError):
            for kept in json.loads(self._slots.read_text()):
                slots.create(Slot(**{**kept, "order": SlotOrder(kept["order"])}))

    def _save(self, slots: Slots) -> None:
        text = json.dumps([{**asdict(slot), "order": slot.order.value} for slot, _ in slots.all()])
        if not self._slots.exists() or self._slots.read_text() != text:
            _write(self._slots, text)


def _inheritable() -> list[int]:
    """Descriptors that a new process would keep open: a lock of whoever started it must not outlive them."""
    found = []
    for entry in list(Path("/dev/fd").iterdir()):
        with contextlib.suppress(OSError):  # that of the listing itself is closed by now
            if (descriptor := int(entry.name)) > 2 and os.get_inheritable(descriptor):
                found.append(descriptor)
    return found


def _write(path: Path, text: str) -> None:
    """Replace a file as a whole; it may hold a password."""
    new = path.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_text(text)
    new.replace(path)


if __name__ == "__main__":
    StandIn(Path(sys.argv[1])).serve()
