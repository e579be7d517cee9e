"""Where prepared transactions are parked: a folder and a store keep the same promises."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.config.model import ObjectAddress
from cdc_lake.connectors.prepared_transactions import (
    BucketPreparedFiles,
    LocalPreparedFiles,
    PreparedFileStore,
    PreparedTransactions,
)
from cdc_lake.connectors.spool import Spool
from cdc_lake.decode.pgoutput.assembler import Assembler
from cdc_lake.tables.object_store import ObjectStore
from cdc_lake_testing.messages import catalog_of, insert, relation, table
from cdc_lake_testing.object_store import LocalStore, storage_at
from cdc_lake_testing.two_phase import begin_prepare, commit_prepared, prepare
from tests.bronze_object_stores import BUCKET, store

__all__ = ["store"]

_NUMBERS = itertools.count()


def never(xid: int, end_lsn: int) -> bool:
    raise AssertionError((xid, end_lsn))


@pytest.fixture(params=["folder", "store"])
def parked_at(request: pytest.FixtureRequest, store: LocalStore, tmp_path: Path) -> PreparedFileStore:
    if request.param == "folder":
        return LocalPreparedFiles(tmp_path / "control" / "prepared")
    objects = ObjectStore(storage_at(store.endpoint, patience=2_000))
    return BucketPreparedFiles(objects, ObjectAddress(BUCKET, f"parked/{next(_NUMBERS)}/prepared"))


def test_a_file_is_there_whole_is_replaced_and_goes(parked_at: PreparedFileStore) -> None:
    assert (parked_at.sizes(), parked_at.read("one", 0, 10)) == ({}, None)
    parked_at.put("one", lambda: [b"some", b"thing"])
    parked_at.put("one.end", list)
    assert parked_at.sizes() == {"one": 9, "one.end": 0}
    assert [parked_at.read("one", at, 6) for at in (0, 6, 9, 20)] == [b"someth", b"ing", b"", b""]
    parked_at.put("one", lambda: [b"other"])
    parked_at.remove("one.end")
    parked_at.remove("one.end")
    assert (parked_at.sizes(), parked_at.read("one", 0, 10)) == ({"one": 5}, b"other")


def test_more_than_a_file_has_asks_for_no_memory(parked_at: PreparedFileStore) -> None:
    parked_at.put("one", lambda: [b"something"])
    assert [parked_at.read("one", at, (1 << 64) - 1) for at in (0, 4, 99)] == [b"something", b"thing", b""]


def test_what_one_machine_parked_another_one_lands(parked_at: PreparedFileStore, tmp_path: Path) -> None:
    layout, state = table("public.a", id="int8", note="text"), StreamCheckpoint("pg:1:d:s:0/0", 1, 50, 50, b"")
    rows = [insert(layout, (str(n), "x" * 100)) for n in range(100)]
    with Spool(tmp_path / "one", 1 << 20, 1_000) as spool:
        assembler = Assembler(
            catalog_of(layout),
            frames=spool,
            prepared_storage=PreparedTransactions(parked_at, spool, state, highest=lambda: 0, changed=never),
        )
        for payload in [begin_prepare(7, "g", 200), relation(layout), *rows, prepare(7, "g", 200)]:
            assert assembler.feed(payload, 200) == ()
    with Spool(tmp_path / "other", 1 << 20, 1_000) as spool:
        parked = PreparedTransactions(parked_at, spool, state, highest=lambda: 0, changed=never)
        [large] = Assembler(catalog_of(layout), frames=spool, prepared_storage=parked).feed(
            commit_prepared(7, "g", 300), 300
        )
        parts = list(large.parts())  # type: ignore[union-attr]
        assert len(parts) > 5
        assert [frame for part in parts for frame in part.frames] == rows
        parked.clean(340, 340)
    assert parked_at.sizes() == {}
