"""Failpoints kill at the named passage and nowhere else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

SCRIPT = "from cdc_lake.observability.failpoints import *\nfor _ in range(3):\n  failpoint(CONFIRMED); print('passed', flush=True)"


@pytest.mark.parametrize(
    ("setting", "passed", "code"),
    [
        ("", 3, 0),
        ("receive.connected", 3, 0),
        ("receive.confirmed", 0, -signal.SIGKILL),
        ("receive.confirmed:3", 2, -9),
    ],
)
def test_a_failpoint_kills_at_its_passage(setting: str, passed: int, code: int) -> None:
    env = os.environ | {"CDC_LAKE_FAILPOINT": setting}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count("passed")) == (code, passed)


def test_a_failpoint_that_is_not_named_in_the_list_is_refused() -> None:
    env = os.environ | {"CDC_LAKE_FAILPOINT": "nowhere"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "receive.connected" in done.stderr
