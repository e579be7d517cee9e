"""A full disk at successive budgets of bytes while silver is written: it is as it was or as it comes to, and goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.seeds import one_seed
from tests.tally import tally
from tests.unit.test_bronze_disk_full import OWN, may_mount

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.usefixtures("jars"),
    pytest.mark.skipif(not may_mount(), reason="no disk of its own can be mounted here"),
]

BUDGETS = 50 if os.environ.get("CDC_LAKE_BUDGET", "1") != "1" else 5


@pytest.fixture(autouse=True)
def settings() -> None:
    """No session here: the program starts its own."""


def test_silver_on_a_full_disk_is_never_in_between_and_goes_on_when_there_is_space(tmp_path: Path) -> None:
    seed = one_seed()
    print(f"seed {seed}")
    words = [sys.executable, "-m", "tests.silver_disk_full", str(tmp_path / "disk")]
    given = [str(seed % 4096), str(BUDGETS)]
    done = subprocess.run([*OWN, *words, *given], capture_output=True, text=True, check=False, timeout=3000)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) == BUDGETS
    assert found[0]["errors"]
    assert not found[-1]["errors"]
    met = {code for one in found for code in one["errors"].values()}
    print(met)
    tally("R9", {f"silver: {code}" for code in met}, **{"budgets of bytes": BUDGETS})
