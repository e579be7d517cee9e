"""Microsoft's emulator of blobs, Azurite, in a process of its own. npm fetches it once, into the cache of the user.

`CDC_LAKE_REQUIRE_AZURITE=1` turns a machine without Node.js into a failure.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

from pydantic import SecretStr

from cdc_lake.config.model import ObjectAddress, Storage
from cdc_lake.tables.store_options import arrow_filesystem
from cdc_lake_testing.ports import free_port

VERSION = "3.37.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that it comes with, and its key, which are public."""
_MAIN = Path("node_modules") / "azurite" / "dist" / "src" / "blob" / "main.js"
_START_SECONDS = 60


def sas_token() -> str:
    """A token for everything in the account, for an hour."""
    begun, expires = (f"{datetime.now(UTC) + timedelta(hours=hours):%Y-%m-%dT%H:%M:%SZ}" for hours in (-1, 1))
    version, values = "2021-06-08", {"sp": "rwdlacup", "ss": "b", "srt": "sco", "st": begun, "se": expires}
    text = "\n".join([ACCOUNT, *values.values(), "", "https,http", version, "", ""])
    signed = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    return urlencode({"sv": version, **values, "spr": "https,http", "sig": base64.b64encode(signed).decode()})


class NoAzurite(Exception):
    """Why it cannot be had here."""


def program() -> Path:
    """Its program, fetched if it is not there yet. Raises NoAzurite."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "cdc_lake" / f"azurite-{VERSION}"
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or (npm is None and not (cache / _MAIN).exists()):
        raise NoAzurite("Azurite needs node and npm; on Debian: apt-get install nodejs npm")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:  # of several test processes one fetches it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (cache / _MAIN).exists():
            assert npm is not None
            options = ("--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(cache))
            fetched = subprocess.run([npm, "install", *options, f"azurite@{VERSION}"], capture_output=True, check=False)
            if fetched.returncode:
                raise NoAzurite(f"npm could not fetch Azurite: {fetched.stderr.decode()[-300:]}")
    return cache / _MAIN


class Azurite:
    """A running one; what is stored goes with the process. Only blobs: it has no `dfs` endpoint, so no renames."""

    def __init__(self, folder: Path) -> None:
        self.host, self.port = "127.0.0.1", free_port()
        options = ("--silent", "--skipApiVersionCheck", "--inMemoryPersistence", "--disableTelemetry")
        command = ["node", str(program()), "--blobHost", self.host, "--blobPort", str(self.port), *options]
        self._process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
        end = time.monotonic() + _START_SECONDS
        while True:
            try:
                socket.create_connection((self.host, self.port), timeout=1).close()
                break
            except OSError:
                assert self._process.poll() is None, "Azurite ended"
                assert time.monotonic() < end, "Azurite did not start"
                time.sleep(0.05)

    @property
    def endpoint(self) -> str:
        """Address of the store."""
        return f"http://{self.host}:{self.port}"

    def bucket(self, name: str) -> str:
        """Make a container; its name."""
        arrow_filesystem(self.storage()).create_dir(name)
        return name

    def storage(self, endpoint: str | None = None, *, patience: int = 2_000) -> Storage:
        """Settings for it, or for a proxy before it, which may drop headers that a key would sign; `patience` in
        milliseconds.
        """
        return Storage(
            provider="azure",
            account=ACCOUNT,
            account_key=SecretStr(KEY) if endpoint is None else None,
            sas_token=None if endpoint is None else SecretStr(sas_token()),
            endpoint=endpoint or self.endpoint,
            allow_http=True,
            patience=patience,
        )

    def address(self, container: str, key: str) -> ObjectAddress:
        """The address of a folder."""
        return ObjectAddress(container, key, "abfss", ACCOUNT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
