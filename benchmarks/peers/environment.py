"""The environment of the peers: `.venv-peers`, made once from `requirements.txt`, never part of the product's.

    python benchmarks/peers/environment.py [--source DIR]

dlt's `pg_replication` is no package: `dlt init` writes it, from the repository of dlt's verified sources, which has to
be reachable; `--source` names a folder that has `pg_replication` instead. Without it dlt is not measured. Connectors of
Flink CDC are jars of Maven Central, which `mvn` gets; without it Flink CDC is not measured.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / ".venv-peers"
PYTHON = FOLDER / "bin" / "python"
SOURCES = FOLDER / "sources"
"""Where `pg_replication` is."""
JARS = FOLDER / "jars"
"""Where Flink's connectors are."""
CONNECTORS = (
    "org.apache.flink:flink-sql-connector-postgres-cdc:3.5.0",
    "org.apache.iceberg:iceberg-flink-runtime-1.20:1.10.0",
    "org.apache.hadoop:hadoop-client-api:3.4.2",
    "org.apache.hadoop:hadoop-client-runtime:3.4.2",
)
"""Of Flink 1.20, the newest that both connectors are made for; Iceberg's folders are read by Hadoop's client."""
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"


def install() -> None:
    """Make the environment, or bring it to what is asked for."""
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=True)
    words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(HERE / "requirements.txt")]
    subprocess.run([str(PYTHON), *words], check=True)


def fetch(source: Path | None) -> bool:
    """Put dlt's source in its place; whether it is there."""
    there = SOURCES / "pg_replication"
    if source is not None:
        shutil.rmtree(there, ignore_errors=True)
        shutil.copytree(source / "pg_replication", there)
    if not there.exists():
        with tempfile.TemporaryDirectory() as folder:
            words = [str(FOLDER / "bin" / "dlt"), "--non-interactive", "init", "pg_replication", "duckdb"]
            subprocess.run(words, cwd=folder, check=False)
            if (Path(folder) / "pg_replication").exists():
                shutil.copytree(Path(folder) / "pg_replication", there)
    return there.exists()


def fetch_connectors() -> bool:
    """Put Flink's connectors in their place; whether they are there."""
    if not JARS.exists() and (maven := shutil.which("mvn")):
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            for wanted in CONNECTORS:
                words = [f"-Dartifact={wanted}", f"-DoutputDirectory={folder}"]
                subprocess.run([maven, "-q", "-B", COPY, *words], check=True)
            shutil.copytree(folder, JARS)
    return JARS.exists()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--source", type=Path, help="folder with dlt's `pg_replication`")
    given = options.parse_args()
    install()
    print("dlt's pg_replication is there" if fetch(given.source) else "without dlt's pg_replication, dlt is left out")
    print(
        "Flink's connectors are there"
        if fetch_connectors()
        else "without mvn there are no connectors, Flink CDC is left out"
    )


if __name__ == "__main__":
    main()
