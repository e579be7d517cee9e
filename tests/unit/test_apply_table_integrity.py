"""What the last cut counts of a table and the table does not have: commits, quarantined keys, a past that others damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from cdc_lake.config.project import Project, Target
from cdc_lake.control.cuts import ACTIVE, FAILED, TableState
from cdc_lake.control.quarantine import quarantine_log
from cdc_lake.errors import OtherWriter, SilverLost, SilverRestored
from cdc_lake.model.relation import TableName
from cdc_lake.runtime.apply.table_integrity import (
    CommitLost,
    CommitUnrecorded,
    GenerationReplaced,
    InSync,
    Reconciliation,
    Violated,
    find_violation,
    first_merge_was_lost,
    missing_quarantine_rows,
    reconcile,
    was_merged_again,
)
from cdc_lake.runtime.restart import check_pasts
from cdc_lake.tables.control_schema import schema_of
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.silver_table import Marker, app_id
from tests.pipeline_file import make_project
from tests.silver_commits import STREAM, make, write

LISTED = TableState("silver.orders", "delta", 7, 40, ACTIVE, quarantined_keys=0, merged=40)


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


def test_a_cut_older_than_the_repetition_of_a_lost_merge_names_the_version_that_has_its_rows(tmp_path: Path) -> None:
    """The newer cuts were lost: by the cut the table is where it says, at a version that another program took."""
    project, target = make(tmp_path, "delta")
    write(project, target, app_id(STREAM, target, 1), 30, None)
    taken = write(project, target, None)  # in the place of our merge of 40
    again = write(project, target, app_id(STREAM, target, 1), 45, None)
    listed = replace(LISTED, version=taken, position=45, merged=40)
    assert was_merged_again(project, target, STREAM, listed, Marker(45, again))
    assert not was_merged_again(project, target, STREAM, listed, Marker(30, again)), "it is lost"
    assert not was_merged_again(project, target, STREAM, listed, Marker(50, again)), "nobody recorded that"
    assert not was_merged_again(project, target, STREAM, listed, Marker(45, taken))
    assert not was_merged_again(
        project, target, STREAM, replace(listed, version=again, merged=45), Marker(45, again + 1)
    )


HELD = TableState("silver.orders", "delta", 7, 40, ACTIVE, quarantined_keys=2)


def row(position: int, key: str | None, reason: str = "failed") -> dict[str, Any]:
    place = {"relation": "public.orders", "epoch": 1, "generation": 1, "position": position, "ordinal": 1}
    empty = dict.fromkeys(schema_of("quarantine").names)
    return {**empty, **place, "reason": reason, "key": None if key is None else [key]}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path)


def lost(project: Project, listed: TableState) -> str:
    quarantined = quarantine_log(ControlTables(project.control))
    error = missing_quarantine_rows(quarantined, project.target(TableName.parse("public.orders")), 1, listed)
    return "" if error is None else error.message


def test_keys_that_a_cut_counts_and_nothing_records_are_lost(project: Project) -> None:
    control = ControlTables(project.control)
    assert "counts 2 quarantined keys of silver.orders, but 0 are recorded" in lost(project, HELD)
    control.append("quarantine", [row(20, "1"), row(30, "2", "waiting"), row(50, "3")])
    assert not lost(project, HELD)
    assert "but 2 are" in lost(project, replace(HELD, quarantined_keys=3)), (
        "what lies above the table's position is not merged"
    )
    assert "but 0 are" in lost(project, replace(HELD, generation=2)), "nor is it of another content"
    control.delete("quarantine", pc.field("position") == 20)
    assert "but 1 are" in lost(project, HELD)


def test_what_ended_since_is_not_lost(project: Project) -> None:
    """A cut that counts fewer keys than were ever held: a truncate or a decision ended the others."""
    ControlTables(project.control).append("quarantine", [row(20, "1"), row(30, "2"), row(35, None, "closed")])
    assert not lost(project, replace(HELD, quarantined_keys=0))
    assert not lost(project, replace(HELD, quarantined_keys=1))


PAST = Target(TableName("public", "past"), "silver", "past", "delta", None, (), kind="history")
WRITTEN = ("LAK467", "silver.past was modified outside cdc_lake", "run `cdc-lake rebuild public.past` for it")
LISTED_PAST = TableState("silver.past", "delta", 7, 100, FAILED, 0, error=WRITTEN)


def test_a_past_that_others_damaged_is_mended_first(project: Project):
    with pytest.raises(OtherWriter, match=r"make the damage to the past of silver\.past permanent") as refused:
        check_pasts(project, "s", [PAST], {"public.past": LISTED_PAST})
    assert refused.value.remedy.startswith("run `cdc-lake rebuild public.past` for it, before you restart")


@pytest.mark.parametrize(
    ("target", "listed"),
    [
        (PAST, replace(LISTED_PAST, state=ACTIVE)),
        (PAST, replace(LISTED_PAST, error=("LAK410", "another layout", "allow"))),
        (replace(PAST, name="anew"), LISTED_PAST),
        (replace(PAST, kind="current"), LISTED_PAST),
    ],
    ids=["gone", "waits for something else", "goes to another table", "begins with the copy"],
)
def test_a_restart_goes_on_where_nothing_of_a_past_is_damaged(project: Project, target: Target, listed: TableState):
    check_pasts(project, "s", [target], {"public.past": listed})
