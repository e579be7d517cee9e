"""Two histories of a log are one up to where they part, whatever their numbers."""

from __future__ import annotations

import pytest

from cdc_lake.errors import MalformedPosition, StreamProtocol
from cdc_lake.model.position import Lsn
from cdc_lake.source.primary import Branch, Timeline, parse_history

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
