"""The negative control of the proof of the fence: Adobe's S3Mock checks the condition of a put, and writes it later.

`python -m tests.unfenced_store` fetches it by Maven, starts it in a network namespace of its own (it listens on all
interfaces), and exits with 0 if LAK438 refuses it. Needs Linux, Java 17 and Maven; S3Mock takes 400 MB of memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path

from cdc_lake.errors import StoreUnfenced
from cdc_lake.tables.object_store import ObjectStore
from cdc_lake_testing.object_store import storage_at

VERSION = "4.9.1"
PORT = 9090
START_SECONDS = 90


def jar() -> Path:
    """S3Mock in the local Maven repository, fetched into it if it is not there."""
    folder = Path.home() / ".m2" / "repository" / "com" / "adobe" / "testing" / "s3mock" / VERSION
    file = folder / f"s3mock-{VERSION}-exec.jar"
    if not file.exists():
        wanted = f"-Dartifact=com.adobe.testing:s3mock:{VERSION}:jar:exec"
        subprocess.run(["mvn", "-q", "-B", "dependency:get", wanted, "-Dtransitive=false"], check=True)
    return file


def make_bucket(name: str) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            connection = HTTPConnection("127.0.0.1", PORT, timeout=30)
            connection.request("PUT", f"/{name}")
            assert connection.getresponse().status == 200
        except OSError:
            assert time.monotonic() < end, "S3Mock did not start"
            time.sleep(0.5)
        else:
            return


def refuse() -> int:
    """Start it, and let the proof run against it."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    command = ["java", "-Xmx384m", "-jar", str(jar())]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            make_bucket("lake")
            store = ObjectStore(storage_at(f"http://127.0.0.1:{PORT}"))
            for replaces in (False, True):
                try:
                    store.prove_fence("lake/fence", "S3Mock", replaces=replaces)
                    print(f"S3Mock was taken for a store with a fence (replaces: {replaces})")
                except StoreUnfenced as refused:
                    print(f"{refused.code}: {refused.message}")
                    return 0
            return 1
        finally:
            server.kill()


if __name__ == "__main__":
    if sys.argv[1:] == ["--inside"]:
        sys.exit(refuse())
    jar()
    inside = ["unshare", "--net", "--map-root-user", sys.executable, "-m", "tests.unfenced_store", "--inside"]
    os.execvp(inside[0], inside)
