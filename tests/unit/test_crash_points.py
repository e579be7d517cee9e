"""The catalogue of crash points: whole, of failpoints that exist, and each of those passed by the program."""

from __future__ import annotations

import re
from itertools import chain

from cdc_lake.observe import failpoint as at
from cdc_lake.observe.crash_points import CRASH_POINTS, listed
from tests.conftest import ROOT


def test_there_are_24_crash_points_and_each_can_be_brought_about() -> None:
    assert [one.number for one in CRASH_POINTS] == list(range(1, 25))
    assert all(one.failpoints or one.besides for one in CRASH_POINTS)
    assert set(chain.from_iterable(one.failpoints for one in CRASH_POINTS)) <= at.FAILPOINTS.keys()
    assert {one.name: one.says for one in listed().failpoints} == at.FAILPOINTS


def test_every_failpoint_is_passed_somewhere_and_killed_at_by_a_test() -> None:
    names = {getattr(at, name): name for name in vars(at) if name.isupper() and name != "FAILPOINTS"}
    assert names.keys() == at.FAILPOINTS.keys()
    package, tests = (words(folder) for folder in ("cdc_lake", "tests"))
    kit = words("cdc_lake/testing")
    for name, constant in names.items():
        assert re.search(rf"failpoint\([^)]*\b{constant}\b", package), f"{name} is passed nowhere"
    assert not {name for name, constant in names.items() if not re.search(rf"\b{constant}\b", tests + kit)}


def words(folder: str) -> str:
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted((ROOT / folder).rglob("*.py")))
