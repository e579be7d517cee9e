"""What the last cut counts of a table and the table itself does not have: a commit in whose place another one is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cdc_lake.control.cuts import ACTIVE, TableState
from cdc_lake.errors import SilverLost, SilverRestored
from cdc_lake.runtime.apply.table_integrity import (
    CommitLost,
    CommitUnrecorded,
    GenerationReplaced,
    InSync,
    Reconciliation,
    Violated,
    find_violation,
    first_merge_was_lost,
    reconcile,
)
from cdc_lake.tables.silver_table import Marker, app_id
from tests.silver_commits import STREAM, make, write

LISTED = TableState("silver.orders", "delta", 7, 40, ACTIVE, held=0, merged=40)


@pytest.mark.parametrize(
    ("recorded", "committed", "case"),
    [
        (None, Marker(None, None), InSync()),
        (None, Marker(40, 7), CommitUnrecorded(40)),  # cuts were lost
        (None, Marker(5, 7), InSync()),  # the table begins behind that
        (LISTED, Marker(40, 7), InSync()),
        (LISTED, Marker(40, 9), InSync()),  # maintenance came behind
        (LISTED, Marker(None, 7), InSync()),  # the marker was cleaned up
        (replace(LISTED, position=60), Marker(40, 7), InSync()),  # nothing touched it since
        (LISTED, Marker(50, 8), CommitUnrecorded(50)),  # a crash between the merge and the cut
        (replace(LISTED, merged=None), Marker(50, 8), CommitUnrecorded(50)),
        (LISTED, Marker(30, 7), CommitLost(30)),
        (LISTED, Marker(30, 9), CommitLost(30)),  # and maintenance came behind
        (replace(LISTED, merged=None), Marker(30, 7), InSync()),  # a cut of an older version of cdc_lake
        (replace(LISTED, format="iceberg"), Marker(30, 7), InSync()),  # others may have cleaned up its markers
        (LISTED, Marker(30, 8, generation=2), GenerationReplaced(30)),
        (LISTED, Marker(50, 8, generation=2), GenerationReplaced(50)),
        (LISTED, Marker(None, 8, generation=2), InSync()),
    ],
)
def test_what_a_table_says_against_what_the_last_cut_says_is_one_of_five_cases(
    recorded: TableState | None, committed: Marker, case: Reconciliation
) -> None:
    expected = 10 if recorded is None else recorded.position
    assert reconcile(recorded, committed, None, expected) == case
    lost = SilverLost("it is gone")
    violated = case if recorded is None else Violated(lost)
    assert reconcile(recorded, committed, lost, expected) == violated, "a violation comes before everything else"


def test_a_new_content_in_whose_place_another_commit_is_was_put_back(tmp_path: Path) -> None:
    project, target = make(tmp_path, "delta")
    error = find_violation(project, target, STREAM, replace(LISTED, generation=2), Marker(30, 7))
    assert isinstance(error, SilverRestored)
    assert "generation 1" in error.message


def test_a_table_without_a_marker_is_empty_again_where_another_commit_is_in_the_place_of_its_first_merge(
    tmp_path: Path,
) -> None:
    project, target = make(tmp_path, "delta")
    version = write(project, target, app_id(STREAM, target, 1), 40, None)
    listed, nothing = replace(LISTED, version=version), Marker(None, version)
    assert first_merge_was_lost(project, target, STREAM, listed, nothing) is None, (
        "the log has it: what was forgotten is the marker"
    )
    taken = write(project, target, None)
    error = first_merge_was_lost(
        project, target, STREAM, replace(listed, version=taken), replace(nothing, version=taken)
    )
    assert error is not None
    assert "empty again" in error.message
    assert first_merge_was_lost(project, target, STREAM, replace(listed, version=taken), Marker(30, taken)) is None
