"""Builds the log store for Delta tables in S3, which Spark loads, from its source: needs a JDK.

    python tools/log_store.py            # write cdc_lake/tables/log_store/log_store.jar

The jar is part of the repository because users have a Java runtime, but not necessarily a compiler. A test builds it
again and compares.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

import pyspark

FOLDER = Path(__file__).parents[1] / "cdc_lake" / "tables" / "log_store"
JAR = FOLDER / "log_store.jar"
_STORAGE = "cache/io.delta/delta-storage/jars/delta-storage-4.4.0.jar"
_TIME = (2026, 1, 1, 0, 0, 0)  # of every entry, so that equal classes make equal jars


def build(jar: Path) -> None:
    """Compile the source into a jar. Spark must have been started once: Ivy's cache then has Delta's classes."""
    storage = next(path for path in Path.home().glob(f".ivy2*/{_STORAGE}"))
    hadoop = next((Path(pyspark.__path__[0]) / "jars").glob("hadoop-client-api-*.jar"))
    with tempfile.TemporaryDirectory() as classes:
        sources = [str(source) for source in FOLDER.glob("*.java")]
        options = ["--release", "17", "-g:none", "-d", classes, "-cp", f"{storage}:{hadoop}"]
        subprocess.run([shutil.which("javac") or "javac", *options, *sources], check=True)  # noqa: S603
        with zipfile.ZipFile(jar, "w") as archive:
            for file in sorted(Path(classes).rglob("*.class")):
                archive.writestr(zipfile.ZipInfo(str(file.relative_to(classes)), _TIME), file.read_bytes())


if __name__ == "__main__":
    build(JAR)
