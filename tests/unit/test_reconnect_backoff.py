"""A receiver that lost its source tries at one pace, and says so now and then; a lake, a source that drops each stream
at once, and a Spark that ends each time are tried more and more seldom.
"""

from __future__ import annotations

import re
import threading
from types import SimpleNamespace

import pytest

from cdc_lake.errors import BronzeNotWritten, ServerBusy, ServerUnreachable, SparkDied
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.runtime import run
from cdc_lake.runtime.apply.applier import ApplySummary
from cdc_lake.runtime.apply.spark_sessions import SparkLives
from cdc_lake.runtime.receive.receiver import SOURCE_PAUSES, STEADY, ReconnectBackoff


class Trying:
    """Attempts one after the other, each as long as its pause, by a clock of their own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.told: list[ProgressEvent] = []
        self.attempts = ReconnectBackoff(self.told.append, clock=lambda: self.now)

    def fail(self, times: int, error: type[ServerUnreachable | ServerBusy]) -> list[float]:
        pauses = []
        for _ in range(times):
            assert not self.attempts.record_end(None)
            pauses.append(self.attempts.after_source(error("it is away")))
            self.now += pauses[-1]
        return pauses

    def drop(self, *, held: int = 0, after: float = 0.0) -> float:
        """A stream is opened where bronze holds 0, and breaks off `after` so many seconds; the pause behind it."""
        self.attempts.record_open(0)
        self.now += after
        self.attempts.record_end(held)
        return self.attempts.after_source(ServerUnreachable("it broke off"))

    def succeed(self) -> None:
        """Something landed."""
        self.attempts.record_open(0)
        assert self.attempts.record_end(1)


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


DONE = ApplySummary("pg:1:d:s:0/1", 1, 0, 0, 0, 0, 0, (), {}, (), (), 0.0)


class Dying(threading.Event):
    """A run whose JVM ends after each of `lived` seconds, and then lives; it is the run's `stop` and its clock too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *lived: float, asked_to_stop_in_pause: int = 0) -> None:
        super().__init__()
        self.lived, self.now, self.pauses, self.forgotten = list(lived), 0.0, list[float](), 0
        self.sessions: list[object] = []
        self.told: list[ProgressEvent] = []
        self.stops_in = asked_to_stop_in_pause
        monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr("cdc_lake.tables.spark_session.forget", self.forget)

    def forget(self) -> None:
        self.forgotten += 1

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.pauses.append(timeout)
        self.now += timeout
        if len(self.pauses) == self.stops_in:
            self.set()
        return self.is_set()

    def work(self, *, spark: object, lives: SparkLives) -> ApplySummary:
        self.sessions.append(spark)
        lives.working = {"s.a", "s.b"}
        if not self.lived:
            assert lives.suspects == ({"s.a", "s.b"} if self.pauses else set())
            return DONE
        self.now += self.lived.pop(0)
        raise SparkDied("killed by signal 9")

    def outlive(self, *, own: bool = True) -> ApplySummary:
        return run._outliving(self.work, "first", self, self.told.append, own=own)


GROWING = [1, 2, 4, 8, 16, 30, 30]


def test_a_spark_that_ends_each_time_is_started_more_and_more_seldom_and_eight_times_in_a_row_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dying = Dying(monkeypatch, *[59.9] * 8)
    with pytest.raises(SparkDied):
        dying.outlive()
    assert (dying.pauses, dying.forgotten, dying.lived) == (GROWING, 7, [])
    assert dying.sessions == ["first", *[None] * 7], "each time another one"
    assert [one.facts for one in dying.told] == [{"code": "LAK405"}] * 7
    assert [re.findall(r"in (\d+) s$", one.text) for one in dying.told] == [[str(pause)] for pause in GROWING]


def test_a_spark_that_ran_for_a_minute_is_started_at_once_again_as_often_as_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dying = Dying(monkeypatch, *[0.0] * 7, *[60.0] * 20, *[0.0] * 6)
    assert dying.outlive() is DONE
    assert dying.pauses == [*GROWING, *[1] * 20, *GROWING[1:]]


@pytest.mark.parametrize(("own", "pauses"), [(False, []), (True, [1, 2])])
def test_a_spark_is_not_started_again_by_who_was_given_it_or_is_asked_to_stop(
    monkeypatch: pytest.MonkeyPatch, *, own: bool, pauses: list[float]
) -> None:
    dying = Dying(monkeypatch, *[0.0] * 8, asked_to_stop_in_pause=2)
    with pytest.raises(SparkDied):
        dying.outlive(own=own)
    assert dying.pauses == pauses
    assert len(dying.sessions) == len(pauses) or not own
