"""Timelines: two histories of a log are one up to where they part, and which of them a stream may go on with."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.connectors.failover import check_timeline, last_timeline, note_timeline
from cdc_lake.decode.hashing import GENESIS
from cdc_lake.errors import MalformedPosition, OtherTimeline, StreamProtocol, TimelineUntold
from cdc_lake.model.position import Lsn
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.source.base import StreamIdentity
from cdc_lake.source.primary import Branch, Timeline, parse_history
from cdc_lake.tables.control_tables import ControlTables
from tests.pipeline_file import make_project

STATE = StreamCheckpoint(str(StreamIdentity("7", "shop", "s", Lsn(0x10))), 1, 0x40, 0x40, GENESIS)


@pytest.fixture
def reader(tmp_path: Path) -> BronzeReader:
    return bronze_reader(make_project(tmp_path))


@pytest.mark.parametrize(
    ("now", "last"),
    [
        (Timeline(1), None),  # a lake of 0.2
        (Timeline(1), Timeline(1)),
        (Timeline.from_history(2, "1@0/40"), Timeline(1)),  # the switch is exactly where bronze ends
        (
            Timeline.from_history(3, "1@0/50"),
            Timeline.from_history(2, "1@0/40"),
        ),  # a sibling, which parted behind bronze's end
        (Timeline(2, None), Timeline(2, None)),
        (Timeline(2, None), Timeline.from_history(2, "1@0/30")),
    ],
)
def test_a_timeline_that_has_all_of_bronze_is_gone_on_with(
    now: Timeline, last: Timeline | None, reader: BronzeReader
) -> None:
    check_timeline(now, last, reader, STATE)


@pytest.mark.parametrize(
    ("now", "last", "error", "words"),
    [
        (
            Timeline(1),
            Timeline.from_history(2, "1@0/50"),
            OtherTimeline,
            "on timeline 1, but bronze was already read on timeline 2",
        ),
        (Timeline.from_history(2, "1@0/50"), Timeline.from_history(2, "1@0/60"), OtherTimeline, "they diverge at 0/50"),
        (Timeline(3, None), Timeline(2, None), TimelineUntold, "no history of the switch"),
        (Timeline(2, None), Timeline(1), TimelineUntold, "no history of the switch"),
    ],
)
def test_a_timeline_that_cannot_be_gone_on_with_says_why(
    now: Timeline, last: Timeline, error: type[Exception], words: str, reader: BronzeReader
) -> None:
    with pytest.raises(error, match=words):
        check_timeline(now, last, reader, STATE)


def test_a_timeline_is_noted_once_and_a_new_one_is_told(tmp_path: Path) -> None:
    control, told = ControlTables(tmp_path, "os"), list[ProgressEvent]()
    assert last_timeline(control, STATE) is None
    for now in (Timeline(1), Timeline(1), Timeline.from_history(2, "1@0/40"), Timeline.from_history(2, "1@0/40")):
        note_timeline(now, control, STATE, told.append)
        assert last_timeline(control, STATE) == now
    rows = control.read("timelines").sort_by("timeline").to_pylist()
    assert [(row["timeline"], row["history"], row["acknowledged"]) for row in rows] == [
        (1, "", 0x40),
        (2, "1@0/40", 0x40),
    ]
    assert [progress.text for progress in told] == ["the server is now on timeline 2, before that on 1"]


FILE = "1\t0/3000148\tno recovery target specified\n\n# by hand\n2\t0/5000060\tbefore 2026-11-21 18:00:00+00\n"


def test_a_history_file_says_where_each_timeline_was_left() -> None:
    timeline = parse_history(3, FILE)
    assert timeline == Timeline(3, (Branch(1, Lsn(0x3000148)), Branch(2, Lsn(0x5000060))))
    assert timeline.history == "1@0/3000148 2@0/5000060"
    assert Timeline.from_history(3, timeline.history) == timeline


@pytest.mark.parametrize("line", ["one 0/30 x", "1", "1 somewhere"])
def test_a_history_file_with_a_line_that_is_none_is_refused(line: str) -> None:
    with pytest.raises(StreamProtocol, match="timeline 2"):
        parse_history(2, line)


def test_a_history_that_is_not_known_stays_so() -> None:
    assert Timeline.from_history(2, None) == Timeline(2, None)
    assert Timeline(2, None).history is None
    with pytest.raises(MalformedPosition):
        Timeline.from_history(2, "1-0/30")


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ((1, ""), (1, ""), None),
        ((1, ""), (2, "1@0/30"), "0/30"),
        ((1, ""), (3, "1@0/30 2@0/50"), "0/30"),
        ((2, "1@0/30"), (2, "1@0/30"), None),
        ((2, "1@0/30"), (3, "1@0/30 2@0/50"), "0/50"),
        ((2, "1@0/30"), (2, "1@0/40"), "0/30"),  # two standbys promoted on their own
        ((2, "1@0/30"), (3, "1@0/40"), "0/30"),
        ((2, "1@0/50"), (3, "1@0/40"), "0/40"),
        ((3, "1@0/30 2@0/50"), (4, "1@0/30 3@0/60"), "0/30"),
        ((1, ""), (9, "8@0/30"), "0/0"),
    ],
)
def test_two_histories_are_one_up_to_the_first_branch_that_differs(
    one: tuple[int, str], other: tuple[int, str], common: str | None
) -> None:
    first, second = Timeline.from_history(*one), Timeline.from_history(*other)
    expected = None if common is None else Lsn.parse(common)
    assert first.common_with(second) == expected
    assert second.common_with(first) == expected
