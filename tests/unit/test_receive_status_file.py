"""What the receiver says of its waiting reaches who asks from another process, also on a disk that got full."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cdc_lake.cli.commands.status import status_text
from cdc_lake.control.status_files import ReceiverNote
from cdc_lake.errors import StoreUnavailable
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.runtime.receive.lag import Lag, SlotStatus, Status

AWAY = StoreUnavailable("a request to the object store failed", where="s3://lake/shop")


def test_what_is_waited_for_is_said_until_it_is_back(tmp_path: Path) -> None:
    reader = ReceiverNote(tmp_path, "shop")
    assert reader.read() is None
    with ReceiverNote(tmp_path, "shop") as note:
        size = (tmp_path / "logs" / "shop.receiver").stat().st_size
        assert reader.read() is None
        note.waits(AWAY)
        first = reader.read()
        note.waits(AWAY)
        again = reader.read()
        assert first is not None
        assert again is not None
        assert (again.since, again.code, again.where) == (first.since, "LAK435", "s3://lake/shop")
        assert again.tried >= first.tried
        assert (tmp_path / "logs" / "shop.receiver").stat().st_size == size, "a full disk takes it"
        note.goes_on()
        assert reader.read() is None
        note.waits(AWAY)
    assert reader.read() is None, "a receiver that ended waits for nothing"


def test_a_note_that_cannot_be_written_stops_nobody_and_is_told(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")
    told: list[ProgressEvent] = []
    with ReceiverNote(tmp_path, "shop", told.append) as note:
        note.waits(AWAY)
    assert told
    assert all("`status` cannot be informed" in one.text for one in told)


def test_a_note_torn_by_a_reader_in_the_middle_of_a_write_says_nothing(tmp_path: Path) -> None:
    with ReceiverNote(tmp_path, "shop"):
        path = tmp_path / "logs" / "shop.receiver"
        path.write_bytes(json.dumps({"since": "2026"}).encode()[:9].ljust(4096))
        assert ReceiverNote(tmp_path, "shop").read() is None


@pytest.mark.parametrize("said", [b'{"at": 1}', b'{"since": 5}', b'{"since": "2026", "tried": "soon"}', b"[" * 4000])
def test_a_note_that_says_something_else_says_nothing(tmp_path: Path, said: bytes) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "shop.receiver").write_bytes(said.ljust(4096))
    assert ReceiverNote(tmp_path, "shop").read() is None


def test_status_shows_what_the_receiver_waits_for(tmp_path: Path) -> None:
    with ReceiverNote(tmp_path, "shop") as note:
        note.waits(AWAY)
        waits = note.read()
    said = Status(
        pipeline="shop", at=datetime.now(UTC), source="db", reachable=True, unreachable_because="", stream=None,
        epoch=None, source_position=None, bronze_position=None, silver_position=None, last_commit=None,
        received=Lag(), landed=Lag(), applied=Lag(), slot=SlotStatus("shop", "active", "read"), tables=(), held=(),
        receiver_waits=waits,
    )  # fmt: skip
    text = status_text(said, 120)
    assert "waiting   the receiver waits since" in text
    assert "(LAK435) at s3://lake/shop" in " ".join(text.split()), "it may be wrapped"
