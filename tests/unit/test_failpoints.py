"""Failpoints kill at the named passage and nowhere else, and each of them is passed by the program and struck by a test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from itertools import chain
from types import ModuleType

import pytest

from cdc_lake.observability import failpoints as at
from cdc_lake.observability.failpoints import CRASH_POINTS, list_failpoints
from tests.conftest import ROOT
from tests.failpoint_coverage import listed_in, struck

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


def test_there_are_24_crash_points_and_each_can_be_brought_about() -> None:
    assert [one.number for one in CRASH_POINTS] == list(range(1, 25))
    assert all(one.failpoints or one.besides for one in CRASH_POINTS)
    assert set(chain.from_iterable(one.failpoints for one in CRASH_POINTS)) <= at.FAILPOINTS.keys()
    assert {one.name: one.says for one in list_failpoints().failpoints} == at.FAILPOINTS


def test_every_failpoint_is_passed_somewhere() -> None:
    names = {value: name for name, value in vars(at).items() if isinstance(value, str) and value in at.FAILPOINTS}
    assert names.keys() == at.FAILPOINTS.keys()
    package = words("cdc_lake")
    for name, constant in names.items():
        assert re.search(rf"failpoint\([^)]*\b{constant}\b", package), f"{name} is passed nowhere"


def test_every_failpoint_is_struck_by_a_fault_test() -> None:
    found = struck(ROOT / "tests")
    assert not at.FAILPOINTS.keys() - found.keys(), "no test kills or breaks off there"
    assert found[at.REBUILT] >= {"tests.spark.test_apply_crashes", "tests.spark.test_rebuild"}


def test_a_failpoint_that_is_only_named_or_listed_and_not_used_is_not_taken_for_struck() -> None:
    module, source = (
        ModuleType("kept"),
        "ALL = [at.CONFIRMED]\nfor name in ALL:\n    ...\nNEVER = [at.BEGUN]\nat.PREPARED\n",
    )
    exec(source, {**vars(module), "at": at}, vars(module))
    assert {*listed_in(module, source)} == {at.CONFIRMED}


def words(folder: str) -> str:
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted((ROOT / folder).rglob("*.py")))
