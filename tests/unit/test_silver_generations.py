"""Generations: which content of a silver table counts, read from the table's own commits, on both formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lake.control.cuts import TableState
from cdc_lake.errors import SilverMissing
from cdc_lake.tables.silver_table import Marker, app_id, read_marker
from tests.silver_commits import FORMATS, STREAM, make, write


@FORMATS
def test_the_generation_in_force_is_the_one_that_was_begun_last_wherever_it_stands(tmp_path: Path, fmt: str) -> None:
    project, target = make(tmp_path, fmt)
    assert read_marker(project, target, STREAM) == Marker(None, None, 1)
    first = write(project, target, app_id(STREAM, target, 1), 200)
    assert read_marker(project, target, STREAM) == Marker(200, first, 1)
    second = write(project, target, app_id(STREAM, target, 2), 150)
    assert read_marker(project, target, STREAM) == Marker(150, second, 2), "a rebuild may stand lower"
    others = write(project, target, None)
    assert read_marker(project, target, STREAM) == Marker(150, others, 2)
    assert read_marker(project, target, STREAM, first) == Marker(200, first, 1), "old versions say what they were"
    assert read_marker(project, target, "another").position is None


@FORMATS
def test_a_version_that_is_not_there_has_no_marker(tmp_path: Path, fmt: str) -> None:
    project, target = make(tmp_path, fmt)
    write(project, target, app_id(STREAM, target, 1), 200)
    with pytest.raises(SilverMissing):
        read_marker(project, target, STREAM, 99)


def test_a_cut_of_an_older_version_knew_only_the_first_generation() -> None:
    facts = {"table": "silver.t", "format": "delta", "version": 3, "position": 10, "state": "active", "held": 0}
    assert TableState(**facts).generation == 1
