"""Pins: which cuts stay readable, until when, and which versions nothing may remove."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cdc_lake.control.cuts import (
    PinnedCut,
    TableState,
    WrittenCut,
    due,
    kept_versions,
    parse_cut,
    pinned_cuts,
    record,
    standing,
    table_facts,
)
from cdc_lake.tables.control_schema import CutRow
from cdc_lake.tables.control_tables import ControlTables

T0 = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def control(tmp_path: Path) -> ControlTables:
    return ControlTables(tmp_path / "control", durability="os")


def cut(control: ControlTables, position: int, epoch: int = 1, **versions: int | None) -> WrittenCut:
    tables = {
        f"public.{name}": TableState(f"s.{name}", "delta", version, position, "active", 0)
        for name, version in versions.items()
    }
    row = CutRow(epoch, f"stream {epoch}", position, None, table_facts(tables), T0 + timedelta(minutes=position))
    control.record(row)
    return parse_cut(row)


def test_a_pin_comes_back_with_its_cut_and_its_newest_row_counts(control: ControlTables):
    one = PinnedCut("month_end", scheduled=False, cut=cut(control, 10, a=1, b=None), until=None)
    other = PinnedCut("audit", scheduled=False, cut=cut(control, 5, a=0), until=T0 + HOUR)
    record(control, one, T0)
    record(control, other, T0)
    assert pinned_cuts(control) == (other, one)
    ended = replace(one, until=T0 + HOUR)
    record(control, ended, T0 + HOUR)
    assert pinned_cuts(control) == (other, ended)


def test_a_pin_stands_until_its_time_and_one_without_a_time_for_ever(control: ControlTables):
    some = cut(control, 10, a=1)
    until, ever = PinnedCut("u", False, some, T0 + HOUR), PinnedCut("e", False, some, None)
    assert standing((until, ever), T0 + HOUR - timedelta(microseconds=1)) == (until, ever)
    assert standing((until, ever), T0 + HOUR) == (ever,)


def test_what_is_kept_are_the_versions_of_pinned_cuts_and_of_the_newest_cut_of_each_stream(control: ControlTables):
    first, second = cut(control, 10, a=1, b=None), cut(control, 20, a=2, b=7)
    cut(control, 30, a=3, b=7)
    cut(control, 40, a=4, b=8)
    cut(control, 5, epoch=2, a=9)
    record(control, PinnedCut("named", scheduled=False, cut=first, until=None), T0)
    record(control, PinnedCut("past", scheduled=True, cut=second, until=T0 + HOUR), T0)
    assert kept_versions(control, T0) == {"public.a": {1, 2, 4, 9}, "public.b": {7, 8}}
    assert kept_versions(control, T0 + HOUR) == {"public.a": {1, 4, 9}, "public.b": {8}}


def test_nothing_is_kept_where_there_is_no_cut(control: ControlTables):
    assert kept_versions(control, T0) == {}


def test_the_schedule_pins_the_first_cut_of_each_interval(control: ControlTables):
    made: list[PinnedCut] = []
    for minute in (0, 10, 59, 60, 119, 200, 205, 259, 260):
        one = due(made, cut(control, minute, a=minute), HOUR, 2 * HOUR)
        made += [] if one is None else [one]
    assert [one.cut.position for one in made] == [0, 60, 200, 260]
    assert [one.until for one in made] == [one.cut.written_at + 2 * HOUR for one in made]
    assert made[1].name == "at_20260101T010000Z"


def test_a_name_that_was_given_does_not_stand_for_the_schedule(control: ControlTables):
    named = PinnedCut("mine", scheduled=False, cut=cut(control, 10, a=1), until=None)
    assert due([named], cut(control, 11, a=1), HOUR, HOUR) is not None
