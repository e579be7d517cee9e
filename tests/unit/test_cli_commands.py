"""The command line as people and programs meet it: no terminal, no colour, 60 columns; the demo that `init demo` writes.

What ends a process, or is told by one that begins, is looked at in real ones; everything else in this process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shell import QuickShell, Said

HEAVY = (
    "pyspark",
    "pandas",
    "great_expectations",
    "pyarrow",
    "deltalake",
    "pyiceberg",
    "psycopg",
    "numpy",
    "structlog",
)
GOOD = """\
version: 1
pipeline: shop
source: {type: postgres, host: 127.0.0.1, port: 1, database: d, user: u, tables: ["public.*"]}
"""


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "CDC_LAKE", "FORCE_COLOR"))}
    return {**kept, "COLUMNS": "60"}


def program(folder: Path, *arguments: str) -> Said:
    done = subprocess.run(
        [sys.executable, "-m", "cdc_lake.cli.app", *arguments],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    return Said(done.returncode, done.stdout, done.stderr)


def cdc_lake(folder: Path, *arguments: str, **more: str) -> Said:
    return QuickShell(folder, {"COLUMNS": "60", **more})(*arguments)


@pytest.fixture
def project(tmp_path):
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "shop.yaml").write_text(GOOD)
    return tmp_path


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["schema"], ["explain", "CFG104"]])
def test_light_commands_import_nothing_heavy(arguments):
    code = f"""
import sys
from cdc_lake.cli.app import app
from cdc_lake.cli.process import run_command
assert run_command(app, {arguments!r}) == 0
loaded = [m for m in {HEAVY!r} if m in sys.modules]
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_imports_nothing():
    code = (
        "import sys, cdc_lake; assert not [m for m in sys.modules if m.startswith('cdc_lake.')]; print(dir(cdc_lake))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "Pipeline" in done.stdout
