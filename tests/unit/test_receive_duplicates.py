"""Repeats: what comes again has to be what was landed; another configuration is noted; nothing else is looked at."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.connectors.open_stream import CommitLsnOrdering
from cdc_lake.connectors.redaction import with_redaction
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.redaction import Redaction, Strategy
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.errors import DecodeError, DuplicateMismatch
from cdc_lake.model.change import Insert, Transaction
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.runtime.receive.stream_setup import DuplicateVerifier
from cdc_lake_testing.messages import boundaries, raw_transaction, table

USERS = table("public.users", id="int8", email="text")
STREAM = "postgres:7:db:slot:0/32"


def one(position: int, email: str = "a", *, xid: int | None = None) -> BufferedTransaction:
    return raw_transaction(Transaction(boundaries(position, xid=xid), (Insert(USERS, ("1", email)),)))


def hashing(key: bytes, number: int) -> Redaction:
    return Redaction(lambda _, name: Strategy.SHA256 if name == "email" else None, key=key, configuration=number)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Positions 100, 200 and 300, landed under configuration 2."""
    writer = DeltaBronze(tmp_path, durability="os")
    writer.begin_stream(STREAM, 50)
    by = with_redaction(tabulate, hashing(b"k" * 16, 2))
    writer.append([one(100), one(200)], by)
    writer.append([one(300)], by)
    return tmp_path


def checked(
    folder: Path, told: list[ProgressEvent], *, key: bytes = b"k" * 16, number: int = 2, by_catalog: bool = False
):
    state = DeltaBronze(folder, durability="os").state()
    assert state is not None
    return DuplicateVerifier(
        CommitLsnOrdering(),
        partial(BronzeReader, folder),
        state,
        configuration=number,
        tabulate=with_redaction(tabulate, hashing(key, number)),
        by_catalog=by_catalog,
        report=told.append,
    )


def test_the_same_again_passes_and_so_does_what_is_new(folder: Path):
    order = checked(folder, told := [])
    for position in (100, 200, 300, 400):
        (closed,) = order.add(one(position))
        assert closed.upto == position
    assert told == []


def test_other_content_at_a_landed_position_is_an_error(folder: Path):
    with pytest.raises(DuplicateMismatch, match="other content"):
        checked(folder, []).add(one(200, "b"))


def test_another_transaction_at_a_landed_position_is_an_error_in_any_configuration(folder: Path):
    with pytest.raises(DuplicateMismatch, match="as transaction 9"):
        checked(folder, [], number=3).add(one(300, xid=9))


def test_another_configuration_is_noted_once_and_nothing_else(folder: Path):
    order = checked(folder, told := [], key=b"other key" * 2, number=3)
    for position in (100, 200):
        order.add(one(position))
    assert [event.facts for event in told] == [{"configuration": 2}]


def test_what_bronze_does_not_hold_is_held_against_nothing(folder: Path):
    order = checked(folder, [])
    raw = one(150, "b", xid=9)
    order.add(raw)
    order.add(replace(raw, frames=[], lsns=[], layouts=[], size=0))


WIDER = table("public.users", id="int8", email="text", more="text")


def test_by_a_catalog_content_is_compared_as_long_as_the_layouts_are_the_same(folder: Path):
    order = checked(folder, told := [], by_catalog=True)
    order.add(one(100))
    wider = raw_transaction(Transaction(boundaries(200), (Insert(WIDER, ("1", "a", "b")),)))
    order.add(wider)
    assert ["other layouts in the current catalog" in event.text for event in told] == [True]
    with pytest.raises(DuplicateMismatch, match="other content"):
        order.add(one(300, "b"))


def test_what_the_catalog_of_now_cannot_read_is_noted(folder: Path):
    raw = one(200)
    raw.frames[:] = [frame.replace(b"\1a", b"\1\xff") for frame in raw.frames]
    checked(folder, told := [], by_catalog=True).add(raw)
    assert ["cannot be read with the current catalog" in event.text for event in told] == [True]
    with pytest.raises(DecodeError):
        checked(folder, []).add(raw)
