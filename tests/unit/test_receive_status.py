"""How far bronze is behind, as looks at the source tell it, and what the receiver says of its waiting."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.cli.commands.status import status_text
from cdc_lake.connectors.base import Action, SlotSeen
from cdc_lake.connectors.open_stream import ReceiverHealth
from cdc_lake.control.coordination import ReceiverNote
from cdc_lake.errors import StoreUnavailable
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.runtime.receive.lag import Lag, SlotStatus, Status
from cdc_lake.runtime.receive.metrics import SourceProbe
from cdc_lake_testing.object_store import LocalStore
from tests.cut_lake import GAUSS_CSN, PG, CutLake
from tests.pipeline_file import make_project


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


AWAY = StoreUnavailable("a request to the object store failed", where="s3://lake/shop")


def test_what_is_waited_for_is_said_until_it_is_back(tmp_path: Path) -> None:
    reader = ReceiverNote(make_project(tmp_path))
    assert reader.read() is None
    with ReceiverNote(make_project(tmp_path)) as note:
        size = (tmp_path / "lake" / "logs" / "shop.receiver").stat().st_size
        assert reader.read() is None
        note.waits(AWAY)
        first = reader.read()
        note.waits(AWAY)
        again = reader.read()
        assert first is not None
        assert again is not None
        assert (again.since, again.code, again.where) == (first.since, "LAK435", "s3://lake/shop")
        assert again.tried >= first.tried
        assert (tmp_path / "lake" / "logs" / "shop.receiver").stat().st_size == size, "a full disk takes it"
        note.goes_on()
        assert reader.read() is None
        note.waits(AWAY)
    assert reader.read() is None, "a receiver that ended waits for nothing"


def test_a_note_of_a_lake_in_a_store_is_read_on_other_machines_as_well(tmp_path: Path) -> None:
    told: list[ProgressEvent] = []
    with LocalStore() as store:
        store.bucket("lake")
        storage = {
            "endpoint": store.endpoint, "region": "us-east-1", "allow_http": True,
            "access_key_id": "kit", "secret_access_key": "kit-secret",
        }  # fmt: skip
        lake = {"path": "s3://lake/notes", "storage": storage}
        here, there = (make_project(tmp_path / name, lake=lake) for name in ("here", "there"))
        assert ReceiverNote(there).read() is None
        with ReceiverNote(here, told.append) as note:
            assert ReceiverNote(there).read() is None
            note.waits(AWAY)
            seen = ReceiverNote(there).read()
            assert seen == ReceiverNote(here).read()
            assert seen is not None
            note.goes_on()
            assert ReceiverNote(there).read() is None
            assert told == []
            note.waits(AWAY)
    assert ReceiverNote(here).read() is None, "the store is gone, and the last that this machine knows is nothing"
    note.waits(AWAY)
    assert ReceiverNote(here).read() is not None, "a store that is away hides nothing from this machine"
    assert [one.text.split(":")[0] for one in told] == ["`status` cannot be informed whether the receiver waits"]


def test_a_note_that_cannot_be_written_stops_nobody_and_is_told(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "logs").write_text("a file where the folder should be")
    told: list[ProgressEvent] = []
    with ReceiverNote(make_project(tmp_path), told.append) as note:
        note.waits(AWAY)
    assert told
    assert all("`status` cannot be informed" in one.text for one in told)


def test_a_note_torn_by_a_reader_in_the_middle_of_a_write_says_nothing(tmp_path: Path) -> None:
    with ReceiverNote(make_project(tmp_path)):
        path = tmp_path / "lake" / "logs" / "shop.receiver"
        path.write_bytes(json.dumps({"since": "2026"}).encode()[:9].ljust(4096))
        assert ReceiverNote(make_project(tmp_path)).read() is None


@pytest.mark.parametrize("said", [b'{"at": 1}', b'{"since": 5}', b'{"since": "2026", "tried": "soon"}', b"[" * 4000])
def test_a_note_that_says_something_else_says_nothing(tmp_path: Path, said: bytes) -> None:
    (tmp_path / "lake" / "logs").mkdir(parents=True)
    (tmp_path / "lake" / "logs" / "shop.receiver").write_bytes(said.ljust(4096))
    assert ReceiverNote(make_project(tmp_path)).read() is None


def test_status_shows_what_the_receiver_waits_for(tmp_path: Path) -> None:
    with ReceiverNote(make_project(tmp_path)) as note:
        note.waits(AWAY)
        waits = note.read()
    said = Status(
        pipeline="shop", at=datetime.now(UTC), source="db", reachable=True, unreachable_because="", stream=None,
        epoch=None, source_position=None, bronze_position=None, silver_position=None, last_commit=None,
        received=Lag(), landed=Lag(), applied=Lag(), slot=SlotStatus("shop", "active", "read"), tables=(), quarantined=(),
        receiver_waits=waits,
    )  # fmt: skip
    text = status_text(said, 120)
    assert "waiting   the receiver waits since" in text
    assert "(LAK435) at s3://lake/shop" in " ".join(text.split()), "it may be wrapped"
