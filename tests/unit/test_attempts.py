"""A receiver that lost its source tries at one pace, and says so now and then; a lake, and a source that drops each
stream at once, are tried more and more seldom.
"""

from __future__ import annotations

import pytest

from cdc_lake.errors import BronzeNotWritten, ServerBusy, ServerUnreachable
from cdc_lake.observe.progress import Progress
from cdc_lake.pipeline.receiving.attempts import SOURCE_PAUSES, STEADY, Attempts


class Trying:
    """Attempts one after the other, each as long as its pause, by a clock of their own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.told: list[Progress] = []
        self.attempts = Attempts(self.told.append, clock=lambda: self.now)

    def fail(self, times: int, error: type[ServerUnreachable | ServerBusy]) -> list[float]:
        pauses = []
        for _ in range(times):
            assert not self.attempts.over(None)
            pauses.append(self.attempts.after_source(error("it is away")))
            self.now += pauses[-1]
        return pauses

    def drop(self, *, held: int = 0, after: float = 0.0) -> float:
        """A stream is opened where bronze holds 0, and breaks off `after` so many seconds; the pause behind it."""
        self.attempts.opened(0)
        self.now += after
        self.attempts.over(held)
        return self.attempts.after_source(ServerUnreachable("it broke off"))

    def succeed(self) -> None:
        """Something landed."""
        self.attempts.opened(0)
        assert self.attempts.over(1)


@pytest.fixture
def trying() -> Trying:
    return Trying()


def test_the_source_is_tried_no_more_than_once_a_second_and_within_two(trying: Trying) -> None:
    pauses = trying.fail(200, ServerUnreachable)
    shortest, longest = SOURCE_PAUSES
    assert 1 <= shortest <= min(pauses) < max(pauses) <= longest <= 1.25, (
        "which leaves three quarters of a second to connect"
    )
    assert len(set(pauses)) > 100, "receivers that lost one server come back one by one"


def test_what_fails_again_and_again_is_told_now_and_then_and_what_is_new_at_once(trying: Trying) -> None:
    pauses = trying.fail(100, ServerUnreachable)
    assert sum(pauses) / 12 < len(trying.told) <= sum(pauses) / 10 + 1
    assert trying.told[0].text == f"it is away; next attempt in {pauses[0]:.1f} s"
    before = len(trying.told)
    trying.fail(3, ServerBusy)
    assert [one.facts["code"] for one in trying.told[before:]] == [ServerBusy.code]
    trying.succeed()
    trying.fail(1, ServerBusy)
    assert len(trying.told) == before + 2


def test_a_lake_is_tried_more_and_more_seldom(trying: Trying) -> None:
    assert [trying.attempts.after_lake(BronzeNotWritten("full")) for _ in range(7)] == [0.5, 1, 2, 4, 8, 10, 10]
    trying.succeed()
    assert trying.attempts.after_lake(BronzeNotWritten("full")) == 0.5


def test_a_source_that_drops_each_stream_at_once_is_tried_more_and_more_seldom(trying: Trying) -> None:
    shortest, longest = SOURCE_PAUSES
    for many in (1, 2, 4, 8, 16, 20, 20):
        assert many * shortest <= trying.drop() <= many * longest
    assert 20 * longest == 25
    assert trying.fail(1, ServerUnreachable)[0] <= longest, "one that is away is met soon when it is back"
    assert trying.drop() >= 20 * shortest


def test_a_stream_of_which_something_landed_or_that_stood_long_was_there(trying: Trying) -> None:
    for _ in range(3):
        trying.drop()
    assert trying.drop(held=1) <= SOURCE_PAUSES[1]
    assert trying.drop() <= SOURCE_PAUSES[1] < trying.drop()
    assert trying.drop(after=STEADY) <= SOURCE_PAUSES[1]
    told = len(trying.told)
    for _ in range(3):
        trying.drop()
    assert len(trying.told) == told, "and while nothing changes it is not told each time"
