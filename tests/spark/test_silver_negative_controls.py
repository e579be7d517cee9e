"""Bugs of apply that are planted on purpose: the checker finds each, in a history that passes without it.

Those of a receiver are in tests/property/test_negative_controls.py.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

from cdc_lake.errors import ApplyFailed, ConcurrentModification, DestructiveChange
from cdc_lake.model.change import Insert
from cdc_lake.observability import failpoints as at
from cdc_lake.runtime.apply.merge import merge
from cdc_lake.tables.delta_silver import DeltaSilver
from cdc_lake_testing import controls_of_silver as controls
from cdc_lake_testing.broken_off import broken_off
from cdc_lake_testing.verdict import Signature
from tests.seeds import one_seed
from tests.tally import tally

from . import test_odd_values as odd
from . import test_ownership as ownership
from .committed_lake import BETWEEN, Told, breaks, update
from .conftest import BUDGET
from .test_apply_cases import Lake, insert
from .test_apply_concurrent import plan

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
            merge(stale)
        except ConcurrentModification:
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


EXISTING = DeltaSilver._existing


def undivided(silver: DeltaSilver) -> Any:
    """The table, of which nobody knows what its files are divided by."""
    table = EXISTING(silver)
    metadata = SimpleNamespace(partition_columns=[])
    return SimpleNamespace(metadata=lambda: metadata, transaction_version=table.transaction_version)


def a_key_gets_another_text(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = Lake(lake_root, spark, "another_text", fmt, table=odd.DECIMAL_KEY)
    lake.land(Insert(odd.numbered("numeric"), ("2", "1", "a")))
    lake.advance()
    odd.get_another_text(lake)


def by_its_text(text: str, _: object) -> str:
    """A key is what the server printed."""
    return text


def nothing(*_: object) -> dict[Any, Any]:
    """Nothing is known."""
    return {}


MENDED: dict[str, tuple[str, object, Callable[..., None], dict[str, Any], str]] = {
    "an empty text divides files": (
        "runtime.apply.table_schema._unkept",
        nothing,
        odd.test_a_delta_table_that_is_divided_by_a_text_holds_what_would_become_null,
        {},
        "'region': None",
    ),
    "keys are traced by their texts": (
        "silver.layout_mapping.key_sql",
        by_its_text,
        odd.test_texts_of_one_number_are_one_key_also_for_what_is_held,
        {"fmt": "delta"},
        r"\('1.0000', 3\)",
    ),
    "another text of a key is another key": (
        "silver.layout_mapping.key_sql",
        by_its_text,
        a_key_gets_another_text,
        {"fmt": "delta"},
        "key_taken",
    ),
    "-0 is 0": (
        "runtime.apply.table_schema._unkept",
        nothing,
        odd.test_minus_zero_is_held_where_only_the_value_tells_rows_apart,
        {"fmt": "delta"},
        "no row of 0 went for -0",
    ),
    "a column is added to files that are not divided": (
        "tables.delta_silver.DeltaSilver._existing",
        undivided,
        odd.test_columns_are_added_to_a_delta_table_whose_files_are_divided,
        {"given": {"partition_by": ["amount"]}},
        "could not be merged",
    ),
    "names that fold to one are two": (
        "runtime.apply.schema_changes.shared_names",
        nothing,
        ownership.test_of_tables_of_one_silver_name_the_one_that_has_it_goes_on_and_the_other_waits,
        {"fmt": "delta"},
        "public.T was altered: add column n int",
    ),
}
"""Causes of wrong rows that were mended: what is planted to have each again, the test that finds it, and by which words."""


def test_each_place_where_a_cause_is_planted_exists() -> None:
    for place, *_ in MENDED.values():
        resolve_name(f"cdc_lake.{place}")


@pytest.mark.parametrize("name", MENDED if BUDGET > 1 else [random.Random(one_seed()).choice([*MENDED])])
def test_a_cause_that_was_mended_is_found_when_it_is_planted_again(
    spark: Any, lake_root: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    place, plant, found_by, given, words = MENDED[name]
    if "monkeypatch" in found_by.__code__.co_varnames:
        given = {**given, "monkeypatch": monkeypatch}
    monkeypatch.setattr(f"cdc_lake.{place}", plant)
    with pytest.raises((AssertionError, ApplyFailed, DestructiveChange), match=words):
        found_by(spark=spark, lake_root=lake_root, **given)
