"""How far bronze is behind, as looks at the source tell it: never less than it is, and not more for a source at rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.connectors.base import Action, SlotSeen
from cdc_lake.connectors.open_stream import ReceiverHealth
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.runtime.receive.metrics import SourceProbe
from tests.cut_lake import GAUSS_CSN, PG, CutLake


class Source:
    """A source whose log ends where the test says."""

    def __init__(self, end: int, received: int | None = None) -> None:
        self.ends, self.read = end, received

    def tables(self) -> list[TableName]:
        return []

    def end(self, domain: OrderDomain) -> int:
        return self.ends

    def received_position(self) -> int | None:
        return self.read

    def slot(self) -> SlotSeen | None:
        return SlotSeen("0/3E8", 77, "server process 1", None)

    def steps(self, state: Callable[[], StreamCheckpoint | None]) -> Iterator[Action]:
        return iter(())

    def layout(self, table: TableName) -> Relation | None:
        return None


@pytest.fixture
def pulse() -> ReceiverHealth:
    return ReceiverHealth()


@pytest.fixture
def looks(tmp_path: Path, pulse: ReceiverHealth) -> SourceProbe:
    return SourceProbe(CutLake(tmp_path).project, pulse)


def hour_ago() -> int:
    return int((time.time() - 3600) * 1_000_000)


def test_before_a_stream_is_open_only_the_slot_is_known(looks: SourceProbe) -> None:
    assert (looks.last(), looks.landed_seconds()) == (None, None)
    looks.probe_source(Source(1000))
    last = looks.last()
    assert last is not None
    assert (last.slot, last.landed.bytes, looks.landed_seconds()) == (Source(1).slot(), None, None)


def test_lag_in_bytes_is_that_of_status(looks: SourceProbe, pulse: ReceiverHealth) -> None:
    with pulse.follow_stream(StreamCheckpoint(PG, 1, 1000, 1000, b"")):
        looks.probe_source(Source(1500, received=1200))
        last = looks.last()
    assert last is not None
    assert (last.received.bytes, last.landed.bytes, last.landed.transactions) == (300, 500, None)


def test_lag_where_csns_order_is_in_transactions(looks: SourceProbe, pulse: ReceiverHealth) -> None:
    with pulse.follow_stream(StreamCheckpoint(GAUSS_CSN, 1, 1000, 1000, b"")):
        looks.probe_source(Source(1007))
        last = looks.last()
    assert last is not None
    assert (last.landed.bytes, last.landed.transactions) == (None, 7)


def test_a_source_at_rest_whose_log_moves_is_as_far_behind_as_the_last_look_at_which_nothing_was_missing(
    looks: SourceProbe, pulse: ReceiverHealth
) -> None:
    with pulse.follow_stream(StreamCheckpoint(PG, 1, 1000, 1000, b"")):
        pulse.commit_started(1000, hour_ago())
        pulse.commit_finished(1000, 1000)
        looks.probe_source(Source(1000))
        assert looks.landed_seconds() == 0
        looks.probe_source(Source(1500))
        behind = looks.landed_seconds()
        assert behind is not None
        assert 0 < behind < 600, "not the hour since anything was committed"


def test_a_receiver_that_catches_up_is_as_far_behind_as_what_landed_is_old(
    looks: SourceProbe, pulse: ReceiverHealth
) -> None:
    with pulse.follow_stream(StreamCheckpoint(PG, 1, 1000, 1000, b"")):
        looks.probe_source(Source(9000))
        assert looks.landed_seconds() is None, "nobody can say before anything landed"
        pulse.commit_started(2000, hour_ago())
        pulse.commit_finished(2000, 2000)
        behind = looks.landed_seconds()
        assert behind is not None
        assert 3000 < behind < 4200
        pulse.commit_started(9000, hour_ago())
        pulse.commit_finished(9000, 9000)
        assert looks.landed_seconds() == 0


def test_another_stream_forgets_where_the_one_before_it_ended(looks: SourceProbe, pulse: ReceiverHealth) -> None:
    with pulse.follow_stream(StreamCheckpoint(PG, 1, 1000, 1000, b"")):
        looks.probe_source(Source(1000))
    with pulse.follow_stream(StreamCheckpoint(GAUSS_CSN, 2, 5000, 5000, b"")):
        assert looks.landed_seconds() is None
        looks.probe_source(Source(5001))
        assert looks.landed_seconds() is None
