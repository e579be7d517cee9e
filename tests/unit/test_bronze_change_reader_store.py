"""Bronze in an object store is read as one on this machine; for Spark its files come near by."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cdc_lake.bronze.change_reader import ChangeReader
from cdc_lake.model.change import Insert, Transaction
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from cdc_lake_testing.object_store import LocalStore
from tests.bronze_object_stores import FORMATS, store, stored

__all__ = ["store"]

ORDERS = table("public.orders", id="int8", note="text")


@pytest.mark.parametrize("kind", FORMATS)
def test_a_bronze_in_a_store_is_read(kind: str, store: LocalStore, tmp_path: Path) -> None:
    place = stored(kind, store, tmp_path)
    writer = place.writer()
    writer.begin_stream("pg:1:shop:shop:0/64", 100)
    for position in (200, 300):
        raw = raw_transaction(Transaction(boundaries(position), (Insert(ORDERS, (str(position), "a")),)))
        writer.append([raw])
    ledger = ChangeReader(place.reader())
    assert ledger.changes("public.orders", ledger.span(200, 300))["id"].to_pylist() == [300]
    assert ledger.transactions()["position"].to_pylist() == [200, 300]
    assert ledger.verify().holds
    files = place.reader().files()
    near = ledger._local_paths(files, files.paths)
    assert sum(pq.read_metadata(path).num_rows for path in near) == 8  # two times R B I C
    folder = Path(near[0]).parent
    del ledger
    assert not folder.exists()
