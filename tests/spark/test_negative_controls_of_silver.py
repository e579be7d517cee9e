"""Bugs of apply that are planted on purpose: the checker finds each, in a history that passes without it.

Those of a receiver are in tests/property/test_negative_controls.py.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from cdc_lake.errors import TableChangedMeanwhile
from cdc_lake.observe import failpoint as at
from cdc_lake.pipeline.applying.merging import merge
from cdc_lake.testing import controls_of_silver as controls
from cdc_lake.testing.broken_off import broken_off
from cdc_lake.testing.verdict import Signature
from tests.tally import tally

from .test_apply_cases import insert
from .test_apply_rivals import plan
from .told import BETWEEN, Told, breaks, update

pytestmark = pytest.mark.spark

Plant: TypeAlias = Callable[[], AbstractContextManager[None]]
History: TypeAlias = Callable[["Told", Plant], None]


def a_checkpoint_is_lost(lake: Told, plant: Plant) -> None:
    with plant():
        for number in range(1, 4):
            lake.land(insert(str(number), "1"))
            lake.apply()
        shutil.rmtree(lake.project.checkpoint)
        lake.land(insert("4", "4"))
        lake.apply()


def a_large_value_is_set_and_then_not_sent(lake: Told, plant: Plant) -> None:
    with plant():
        lake.land(insert("1", "1", "before"), insert("2", "1", "before"))
        lake.advance()
        lake.land(update("1", "2", "after"))
        lake.land(update("1", "3"), update("2", "3"))
        lake.advance()


def broken_off_behind_the_rows(lake: Told, plant: Plant) -> None:
    with plant():
        lake.land(insert("1", "1"), update("1", "2", "body"))
        with broken_off(at.TABLE_MERGED) as reached:
            lake.advance()
        assert reached
        lake.land(insert("2", "2"))
        lake.advance()


def a_failing_row_is_mended_in_the_same_span(lake: Told, plant: Plant) -> None:
    with plant():
        lake.land(insert("1", "1"), insert("2", "2"))
        lake.advance()
        lake.land(update("1", "95", "b"))
        lake.land(update("1", "7", "b"))
        lake.advance()


def a_plan_that_another_applier_overtook(lake: Told, plant: Plant) -> None:
    first = lake.land(insert("1", "1"))
    lake.advance()
    stale = plan(lake, first, lake.land(update("1", "2", "b")))
    lake.land(update("1", "3", "b"))
    lake.advance()
    with plant():
        try:
            merge(*stale)
        except TableChangedMeanwhile:
            print("refused")


def rows(missing: int, others: int) -> str:
    return rf"\.t at \d+: {missing} rows are missing, {others} are not the source's$"


CONTROLS: dict[str, tuple[Plant, History, str, dict[str, Any], Signature]] = {
    "batch id as version": (
        controls.batch_id_as_version,
        a_checkpoint_is_lost,
        "delta",
        {},
        Signature({"I3": r"^public\.t is at 1, not 110, in the cut 110$", "I4": rows(1, 0)}),
    ),
    "last-row-wins net change": (
        controls.last_row_wins,
        a_large_value_is_set_and_then_not_sent,
        "delta",
        {},
        Signature({"I4": rows(2, 2)}),
    ),
    "marker in a separate commit": (
        controls.marker_in_a_commit_of_its_own,
        broken_off_behind_the_rows,
        "delta",
        {"defaults": {"kind": "append"}},
        Signature({"I4": rows(0, 2)}),
    ),
    "rules judged after folding": (
        controls.rules_judged_after_folding,
        a_failing_row_is_mended_in_the_same_span,
        "delta",
        {"rules": [BETWEEN]},
        Signature({"I4": rf"{rows(1, 1)}|^0 changes of \S+ are held, and 2 should be$"}),
    ),
    "no fence on Iceberg": (
        controls.no_fence_on_iceberg,
        a_plan_that_another_applier_overtook,
        "iceberg",
        {},
        Signature({"I4": rows(1, 1), "I5": r"\.t went back from \S+ to \S+$"}),
    ),
}
"""What is planted, in which history, in which format and pipeline, and what the checker then says, and nothing else."""


@pytest.mark.parametrize("name", CONTROLS)
def test_what_is_planted_is_found_out_in_a_history_that_passes_without_it(
    spark: Any, lake_root: Path, name: str
) -> None:
    plant, history, fmt, sections, _ = CONTROLS[name]
    fails = breaks if "rules" in sections else None
    called = history.__name__[:20]
    as_it_is, planted = (Told(lake_root, spark, f"{called}_{n}", fmt, **sections) for n in range(2))
    history(as_it_is, nullcontext)
    as_it_is.assert_kept(fails)
    began = time.monotonic()
    history(planted, plant)
    verdict = planted.judged(fails)
    took = time.monotonic() - began
    print(verdict)
    assert [one for one, (*_, signature) in CONTROLS.items() if signature.fits(verdict)] == [name]
    tally("R8", [name], **{"controls": 1, "found within 60 seconds": int(took < 60)})
