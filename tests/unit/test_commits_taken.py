"""What the last cut counts of a table and the table itself does not have: a commit in whose place another one is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cdc_lake.control.cuts import IN, TableState
from cdc_lake.errors import SilverPutBack
from cdc_lake.runtime.apply.table_integrity import damage, first_merge_was_lost, merge_was_lost
from cdc_lake.tables.silver_table import Marker, app_id
from tests.silver_commits import STREAM, make, write

LISTED = TableState("silver.orders", "delta", 7, 40, IN, held=0, merged=40)


@pytest.mark.parametrize(
    ("listed", "marker", "gone"),
    [
        (LISTED, Marker(40, 7), False),
        (LISTED, Marker(40, 9), False),  # upkeep came behind
        (LISTED, Marker(50, 8), False),  # cuts were lost
        (LISTED, Marker(30, 7), True),
        (LISTED, Marker(30, 9), True),  # and upkeep came behind
        (replace(LISTED, merged=None), Marker(30, 7), False),  # a cut of an older version
        (replace(LISTED, position=60), Marker(40, 7), False),  # nothing touched it since
        (LISTED, Marker(30, 8, generation=2), False),  # another content
        (replace(LISTED, format="iceberg"), Marker(30, 7), False),  # whose markers may be let go by others
    ],
)
def test_a_merge_is_gone_where_the_marker_is_behind_it(listed: TableState, marker: Marker, gone: bool) -> None:
    assert merge_was_lost(listed, marker) is gone


def test_a_new_content_in_whose_place_another_commit_is_was_put_back(tmp_path: Path) -> None:
    project, target = make(tmp_path, "delta")
    error = damage(project, target, STREAM, replace(LISTED, generation=2), Marker(30, 7))
    assert isinstance(error, SilverPutBack)
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
