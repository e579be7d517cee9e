"""A clock that is set back gives no old row of a control table the last word."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cdc_lake.control.table_pauses import _newest
from cdc_lake.tables.control_schema import (  # fmt: skip
    TABLES,
    ConfigurationRow,
    ControlName,
    ControlRow,
    CutRow,
    DecodedRow,
    MembershipRow,
    PauseRow,
    PinRow,
    SnapshotRow,
    StreamRow,
    TimelineRow,
    WithheldRow,
    schema_of,
)
from cdc_lake.tables.control_tables import BESIDE, ControlTables

T0 = datetime(2026, 3, 29, 12, tzinfo=UTC)
BACK = T0 - timedelta(days=1)


@pytest.fixture
def control(tmp_path: Path) -> ControlTables:
    return ControlTables(tmp_path / "control", durability="os")


def test_a_copy_that_was_completed_after_the_clock_went_back_is_complete(control: ControlTables) -> None:
    for state, at in (("started", T0), ("complete", BACK)):
        control.record(SnapshotRow("s", "stream", 1, 10, "[]", state, at))
    assert [row.state for row in control.snapshots()] == ["complete"]


def test_a_table_that_is_resumed_after_the_clock_went_back_goes_on(control: ControlTables) -> None:
    for paused, at in ((True, T0), (False, BACK), (True, BACK), (False, BACK)):
        control.record(PauseRow("public.t", paused, at))
        assert _newest(control)["public.t"].paused is paused


def test_a_cut_written_again_after_the_clock_went_back_is_the_last_one(control: ControlTables) -> None:
    for facts, at in (("{}", T0), ('{"public.t": {}}', BACK)):
        control.record(CutRow(1, "stream", 10, T0, facts, at))
        control.compact("cuts", more_than=0)
    last = control.last_cut()
    assert last is not None
    assert last.tables == '{"public.t": {}}'


def test_a_configuration_of_after_the_beginning_of_a_stream_stays_behind_it(control: ControlTables) -> None:
    control.record(ConfigurationRow(1, "one", "{}", "[]", 1, 0, T0))
    control.record(StreamRow(1, "stream", 0, "slot", "1", "shop", "lsn", T0 + timedelta(hours=1)))
    control.record(ConfigurationRow(2, "two", "{}", "[]", 1, 0, BACK))
    (stream,) = control.streams()
    assert [row.recorded_at > stream.recorded_at for row in control.configurations()] == [False, True]


def test_a_time_that_is_later_anyway_stays_as_it_is(control: ControlTables) -> None:
    for hours in range(3):
        control.record(PauseRow("public.t", hours % 2 == 0, T0 + timedelta(hours=hours)))
    times = control.read("pauses").sort_by("recorded_at")["recorded_at"].to_pylist()
    assert times == [T0 + timedelta(hours=hours) for hours in range(3)]


ROWS: dict[ControlName, ControlRow] = {
    "configurations": ConfigurationRow(1, "one", "{}", "[]", 1, 0, T0),
    "cuts": CutRow(1, "stream", 10, T0, "{}", T0),
    "decoded": DecodedRow(1, 10, "c", "1", '{"a": {}}', "f", T0),
    "memberships": MembershipRow(1, "stream", "{}", T0),
    "pauses": PauseRow("public.t", True, T0),
    "pins": PinRow("p", False, 1, "stream", 10, None, "{}", T0, None, T0),
    "snapshots": SnapshotRow("s", "stream", 1, 10, "[]", "started", T0),
    "streams": StreamRow(1, "stream", 0, "slot", "1", "shop", "lsn", T0),
    "timelines": TimelineRow(1, "stream", 1, "", 0, T0),
    "withheld": WithheldRow("p", False, 1, "stream", 10, T0, "[]", T0),
}


@pytest.mark.parametrize("name", BESIDE)
def test_an_append_opens_no_file_to_see_when_the_others_were_recorded(
    control: ControlTables, name: ControlName, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in (T0, BACK, BACK):
        control.record(replace(ROWS[name], recorded_at=at))
        control.compact(name, more_than=1)
    monkeypatch.setattr(ControlTables, "read", mock.Mock(wraps=control.read))
    control.record(replace(ROWS[name], recorded_at=BACK))
    asked = [call.kwargs["files"] for call in ControlTables.read.call_args_list]  # type: ignore[attr-defined]
    assert asked
    assert not any(asked)
    assert len(control.read(name)["recorded_at"].unique()) == 4


@pytest.mark.parametrize("name", BESIDE)
def test_the_log_has_bounds_that_every_row_is_within(control: ControlTables, name: ControlName) -> None:
    """By the library, which leaves out files that it finds no match in."""
    control.record(ROWS[name])
    table = control.place(name).open()
    assert table is not None
    (row,) = control.read(name).to_pylist()
    rows = table.to_pyarrow_dataset()
    for column, value in row.items():
        wanted = pa.scalar(value, schema_of(name).field(column).type)
        match = pc.is_null(pc.field(column)) if value is None else pc.field(column) == wanted
        assert rows.to_table(filter=match).num_rows == 1, column


def test_rows_that_a_version_before_wrote_without_bounds_come_first_too(
    control: ControlTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr("cdc_lake.tables.control_tables.BESIDE", {})
        control.record(PauseRow("public.t", True, T0))
        control.record(PauseRow("public.t", False, T0 + timedelta(hours=1)))
    for paused in (True, False):
        control.record(PauseRow("public.t", paused, BACK))
        assert _newest(control)["public.t"].paused is paused


def test_every_table_whose_rows_supersede_each_other_says_when_they_were_recorded() -> None:
    assert set(TABLES) >= BESIDE.keys()
    for name in BESIDE:
        assert schema_of(name).field("recorded_at").type == pa.timestamp("us", "UTC")
