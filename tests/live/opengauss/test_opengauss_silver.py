"""The command line against a server of the family: silver ends equal to the source, as `compare` proves."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.live.opengauss.receiving import FAST, Kind, Place
from tests.seeds import one_seed

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(900)]

SEED = one_seed()
CLI = "from cdc_lake.cli.app import main; main()"


def cli(place: Place, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One command in the pipeline's folder."""
    command = [sys.executable, "-c", CLI, *arguments]
    return subprocess.run(command, cwd=place.root, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.parametrize("kind", [FAST], ids=str)
def test_two_runs_and_compare(place: Place, kind: Kind) -> None:
    print("CDC_LAKE_SEED =", SEED)
    names = ["items", "pairs", "whole", *(["kinds", "in_place"] if place.site.real else [])]
    formats = ["delta", "iceberg"]
    tables = [{"from": f"{place.name}.{name}", "format": formats[at % 2]} for at, name in enumerate(names)]
    document = place.document(
        kind,
        source={"tables": [f"{place.name}.{name}" for name in names]},
        silver={"defaults": {"namespace": place.name}, "tables": tables},
    )
    (place.root / "pipeline.yaml").write_text(json.dumps(document))  # JSON is YAML
    with place.site.sql() as session:
        workload = place.workload(session, SEED, truncates=False)
        for _ in range(2):
            workload.run(60)
            ran = cli(place, "run", "--once", "-p", "pipeline.yaml")
            assert ran.returncode == 0, ran.stderr
    compared = cli(place, "compare", "-p", "pipeline.yaml")
    print(compared.stdout)
    assert compared.returncode == 0, compared.stdout + compared.stderr
    checked = cli(place, "check", "-p", "pipeline.yaml")
    print(checked.stdout)
    assert checked.returncode == 0, checked.stdout
