"""A full disk at successive budgets of bytes: nothing wrong is readable, and when space returns nobody has to help."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.seeds import one_seed
from tests.tally import tally

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
BUDGETS = 50 if BUDGET > 1 else 8
OWN = ["unshare", "--map-root-user", "--mount"]


def may_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*OWN, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not may_mount(), reason="no disk of its own can be mounted here")
@pytest.mark.parametrize(("fmt", "most"), [("delta", 200_000), ("iceberg", 500_000)])
def test_a_full_disk_shows_nothing_wrong_and_is_recovered_from_by_itself(tmp_path: Path, fmt: str, most: int):
    seed = one_seed()
    print(f"seed {seed}")
    first = seed % 8192
    words = [sys.executable, "-m", "cdc_lake.testing.full_disk", str(tmp_path / "disk"), fmt]
    given = [str(first), str(BUDGETS), str(most // BUDGETS)]
    done = subprocess.run([*OWN, *words, *given], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == BUDGETS
    assert {one["error"] for one in found} >= {"", "LAK420"} if BUDGETS > 8 else "LAK420" in {o["error"] for o in found}
    fitted = [one["fitted"] for one in found]
    assert fitted[0] < fitted[-1]
    tally("R9", {one["error"] for one in found} - {""}, **{"budgets of bytes": BUDGETS})
