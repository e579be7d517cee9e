"""Silver in catalogs of other makes, each with a Spark of its own (`tests.catalog_silver`)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("kind", ["jdbc", "draft", "vended", "glue", "hive"])
def test_silver_is_fenced_in_a_catalog_of_another_make(kind: str) -> None:
    command = [sys.executable, "-m", "tests.catalog_silver", kind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["fence"], found["refused"], found["position"]) == ("branch", 2, 60)
    assert found["tables"] == ["t"], "no draft and no scratch table is left"
    assert kind != "vended" or sum(key.startswith("VENDED") for key in found["keys"]) > 2, "they are renewed"


@pytest.mark.obeys("LAK454")
def test_delta_tables_have_names_in_a_hive_metastore() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.hive_silver"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
