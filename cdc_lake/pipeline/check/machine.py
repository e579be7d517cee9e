"""The doctor's look at this machine: Java, Spark, jars, Python packages, the lake's folder. No network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from cdc_lake.config.project import Project
from cdc_lake.config.source import PostgresSource
from cdc_lake.errors import DriverMissing, JavaMissing, QualityEngineMissing, SparkMissing
from cdc_lake.errors.root import install
from cdc_lake.lake.session import JAVA_MAJORS, PACKAGES, SPARK_VERSION, java_found, java_version
from cdc_lake.pipeline.check.line import CheckLine

_NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "fuse.sshfs", "9p", "glusterfs", "ceph", "lustre")
_LOW_SPACE = 1 << 30


def machine(project: Project, *, receives: bool = False) -> Iterator[CheckLine]:
    """Java, Spark and its jars, unless it only receives; packages, the lake's folder."""
    if not receives:
        yield _java()
        yield _spark()
        yield from _jars()
    yield from _packages(project, receives=receives)
    yield from _lake(project)


def _java() -> CheckLine:
    found = java_version()
    majors = " or ".join(map(str, JAVA_MAJORS))
    if found in JAVA_MAJORS:
        home = os.environ.get("JAVA_HOME")
        return CheckLine(ok=True, subject="java", text=f"Java {found} ({f'JAVA_HOME={home}' if home else 'from PATH'})")
    text = f"{java_found(found)}; Spark needs {majors}"
    return CheckLine(ok=False, subject="java", text=text, fix=JavaMissing.hint, code=JavaMissing.code)


def _spark() -> CheckLine:
    found = _version("pyspark")
    if found is None:
        text = "pyspark is not installed (receiving works without)"
        return CheckLine(ok=False, subject="spark", text=text, fix=install("spark"), code=SparkMissing.code)
    if found != SPARK_VERSION:
        fix = f"pip install 'pyspark=={SPARK_VERSION}': Delta and Iceberg are built for one minor version"
        return CheckLine(ok=None, subject="spark", text=f"pyspark {found}, tested with {SPARK_VERSION}", fix=fix)
    return CheckLine(ok=True, subject="spark", text=f"pyspark {found}")


def _jars() -> Iterator[CheckLine]:
    missing = [package for package in PACKAGES if not _have(package)]
    if missing:
        names = ", ".join(p.split(":")[1] for p in missing)
        fix = (
            "the first start fetches them; behind a proxy or mirror, set spark.jars.ivySettings in spark-defaults.conf"
        )
        yield CheckLine(ok=None, subject="jars", text=f"not fetched yet: {names}", fix=fix, code="LAK403")
    else:
        yield CheckLine(ok=True, subject="jars", text=f"{len(PACKAGES)} at hand")


def _have(package: str) -> bool:
    """Whether a jar is in a cache that Spark's resolver looks into: Ivy's, or Maven's."""
    group, name, version = package.split(":")
    home = Path.home()
    if any(home.glob(f".ivy2*/jars/{group}_{name}-{version}.jar")):
        return True
    return (home / ".m2" / "repository" / Path(*group.split(".")) / name / version / f"{name}-{version}.jar").is_file()


def _packages(project: Project, *, receives: bool) -> Iterator[CheckLine]:
    silver, formats = project.pipeline.silver, {project.pipeline.bronze.format}
    iceberg = "iceberg" in (
        formats if receives else {*formats, silver.defaults.format, *(t.format for t in silver.tables)}
    )
    of_postgres = isinstance(project.pipeline.source, PostgresSource)
    wanted = [("psycopg", install("receive"), DriverMissing.code, of_postgres)]
    if iceberg:
        wanted.append(("pyiceberg", install("iceberg"), "", True))
    rules = not receives and any(t.rules for t in silver.tables)
    wanted.append(("great-expectations", install("quality"), QualityEngineMissing.code, rules))
    for name, fix, code, needed in wanted:
        found = _version(name)
        if found is not None:
            yield CheckLine(ok=True, subject="package", text=f"{name} {found}")
        elif needed:
            yield CheckLine(ok=False, subject="package", text=f"{name} is not installed", fix=fix, code=code)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _lake(project: Project) -> Iterator[CheckLine]:
    existing = next(p for p in (project.lake, *project.lake.parents) if p.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        fix = f"give this user the right to write to {existing}, or set `lake.path`"
        yield CheckLine(ok=False, subject="lake", text=f"{project.lake} cannot be written", fix=fix, code="LAK420")
        return
    free = shutil.disk_usage(existing).free
    text = f"{project.lake}, {free / (1 << 30):.1f} GiB free"
    kind = _file_system(existing)
    if kind.startswith(_NETWORK_FILE_SYSTEMS):
        fix = (
            "a commit is durable when the folder's fsync is: use a local disk, or know that your server keeps its word"
        )
        yield CheckLine(ok=None, subject="lake", text=f"{text}, on a network file system ({kind})", fix=fix)
    elif free < _LOW_SPACE:
        yield CheckLine(ok=None, subject="lake", text=text, fix="less than 1 GiB: make room or set `lake.path`")
    else:
        yield CheckLine(ok=True, subject="lake", text=text)


def _file_system(folder: Path) -> str:
    """The type of the file system a folder is on, empty where the system does not say."""
    mounts = Path("/proc/mounts")
    if not mounts.is_file():
        return ""
    best = ("", "")
    for line in filter(None, mounts.read_text(encoding="utf-8", errors="replace").split("\n")):
        _, point, kind, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        if folder.resolve().is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]
