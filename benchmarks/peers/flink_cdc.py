"""A peer, of jars: Flink CDC drains a slot into an Iceberg table that is kept by key (`FlinkCdc.java`).

    .venv-peers/bin/python benchmarks/peers/flink_cdc.py '{"slot": ..., "folder": DIR}'

It is compiled first, as Flink looks functions up by their class; then Java takes this process's place. Flink itself is
of PyPI's `apache-flink-libraries`, the connectors are of Maven Central (`environment.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from environment import JARS

FLINK = Path(sysconfig.get_path("purelib")) / "pyflink" / "lib"
PROGRAM = Path(__file__).with_name("FlinkCdc.java")
ASKED = ("host", "port", "user", "password", "database", "slot", "publication", "folder", "last")
"""What the program is told, in its order; `last`: the greatest key that the last transaction deletes."""
HEAP = "3g"
OPENED = ("lang", "net", "nio", "time", "util", "util.concurrent")
"""Packages of Java that Flink looks into, as its own start script opens them."""


def main() -> None:
    given = json.loads(sys.argv[1])
    classes = Path(given["folder"]) / "classes"
    path = f"{FLINK}/*:{JARS}/*"
    subprocess.run(["javac", "-d", str(classes), "-cp", path, str(PROGRAM)], check=True)
    opened = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in OPENED]
    words = ["java", f"-Xmx{HEAP}", *opened, "-cp", f"{classes}:{path}", "FlinkCdc"]
    os.execvp("java", [*words, *(str(given[name]) for name in ASKED)])


if __name__ == "__main__":
    main()
