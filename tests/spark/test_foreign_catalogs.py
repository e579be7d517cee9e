"""Silver in catalogs of other makes, each with a Spark of its own (`tests.catalog_silver`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cdc_lake.errors import CatalogKeepsNoVersions
from cdc_lake.tables.catalog import catalog_address, open_catalog
from cdc_lake.tables.catalog_fence import CatalogAbilities, probe, silver_fence
from cdc_lake_testing.java_catalogs import NessieCatalog
from cdc_lake_testing.object_store import ACCESS_KEY, SECRET_KEY, LocalStore
from tests.conftest import ROOT
from tests.pipeline_file import make_project

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


def test_nessie_keeps_no_versions_and_is_refused(tmp_path: Path) -> None:
    with LocalStore() as store:
        store.bucket("lake")
        keys = (ACCESS_KEY, SECRET_KEY)
        with NessieCatalog(tmp_path / "nessie", "s3://lake/tables", store.endpoint, keys) as nessie:
            storage = {"endpoint": store.endpoint, "region": "us-east-1", "allow_http": True}
            storage |= dict(zip(("access_key_id", "secret_access_key"), keys, strict=True))
            lake = {"storage": storage, "iceberg": {"type": "rest", "uri": nessie.uri}}
            project = make_project(tmp_path, lake=lake, silver={"defaults": {"format": "iceberg"}})
            with pytest.raises(CatalogKeepsNoVersions):
                silver_fence(project)
            found = probe(open_catalog(catalog_address(project)), "silver")
    assert found == CatalogAbilities(conditional=True, registers=True)


@pytest.mark.obeys("LAK454")
def test_delta_tables_have_names_in_a_hive_metastore() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.hive_silver"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
