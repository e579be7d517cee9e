"""A bronze that something else changed is not written on: restored, rolled back, rewritten, appended to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cdc_lake.bronze import compaction
from cdc_lake.bronze.contract import SCHEMA
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.writer import DeltaBronze, TableBronze
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.errors import BronzeAltered
from cdc_lake.model.change import Insert, Transaction
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.bronze_formats import Place, loaded, maintained

ORDERS = table("public.orders", id="int8", note="text")
_POSITIONS = (200, 210, 220, 230, 240)


def transaction(position: int) -> BufferedTransaction:
    return raw_transaction(Transaction(boundaries(position), (Insert(ORDERS, (str(position), "note")),)))


def landed(place: Place) -> TableBronze:
    writer = place.writer()
    writer.begin_stream("s1", 100)
    for position in _POSITIONS:
        writer.append([transaction(position)])
    writer.advance(250, 250)
    return writer


@pytest.fixture
def delta(tmp_path: Path) -> Place:
    place = Place("delta", tmp_path / "b")
    landed(place)
    return place


@pytest.fixture
def iceberg(tmp_path: Path) -> Place:
    place = Place("iceberg", tmp_path / "b")
    landed(place)
    return place


def opened(place: Place) -> DeltaTable:
    return DeltaTable(str(place.folder))


def rows_of(place: Place) -> pa.Table:
    files = place.reader().files()
    return files.read(files.paths[:1], SCHEMA.names)


def newest(place: Place) -> int:
    snapshot = loaded(place).current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def before_last(place: Place, back: int) -> int:
    return loaded(place).history()[-1 - back].snapshot_id


def set_main(place: Place, snapshot: int) -> None:
    loaded(place).manage_snapshots().set_current_snapshot(snapshot_id=snapshot).commit()


def append_some(place: Place) -> None:
    if place.format == "delta":
        write_deltalake(opened(place), rows_of(place), mode="append")
    else:
        loaded(place).append(rows_of(place))


def delete_some(place: Place) -> None:
    if place.format == "delta":
        opened(place).alter.set_table_properties({"delta.appendOnly": "false"})
        opened(place).delete("position = 220")
    else:
        loaded(place).delete("position = 220")


def overwrite_all(place: Place) -> None:
    if place.format == "delta":
        opened(place).alter.set_table_properties({"delta.appendOnly": "false"})
        write_deltalake(opened(place), rows_of(place), mode="overwrite")
    else:
        loaded(place).overwrite(rows_of(place))


def take_back(place: Place) -> None:
    if place.format == "delta":
        opened(place).restore(4)
    else:
        set_main(place, before_last(place, 2))


@pytest.mark.parametrize("change", [take_back, append_some, delete_some, overwrite_all])
def test_a_bronze_that_something_else_changed_is_refused_until_it_is_put_back(
    place: Place, change: Callable[[Place], None]
):
    before = landed(place).state()
    ours = opened(place).version() if place.format == "delta" else newest(place)
    change(place)
    with pytest.raises(BronzeAltered) as refused:
        place.writer().state()
    assert refused.value.code == "LAK425"
    assert str(ours) in refused.value.remedy
    with pytest.raises(BronzeAltered):
        place.reader().proven()  # where apply reads
    if place.format == "delta":
        opened(place).restore(ours)
    else:
        set_main(place, ours)
    again = place.writer()
    assert again.state() == before
    again.append([transaction(300)])
    assert place.writer().state() == again.state()
    assert verify(place.reader()).holds


@pytest.mark.parametrize("change", [take_back, append_some])
def test_a_receiver_that_is_under_way_does_not_write_on_it(place: Place, change: Callable[[Place], None]):
    writer = landed(place)
    change(place)
    after = place.reader().version()
    for _ in range(2):
        with pytest.raises(BronzeAltered):
            writer.append([transaction(300)])
    assert place.reader().version() == after


@pytest.mark.parametrize("change", [take_back, append_some])
def test_upkeep_writes_and_removes_nothing(place: Place, change: Callable[[Place], None]):
    landed(place)
    change(place)
    after = place.reader().version()
    with pytest.raises(BronzeAltered):
        compaction.compact(maintained(place), 2)
    with pytest.raises(BronzeAltered):
        compaction.prepare(maintained(place))
    with pytest.raises(BronzeAltered):
        compaction.tidy(maintained(place), 0.0)
    assert place.reader().version() == after


def test_the_chain_tells_of_a_restored_bronze_all_the_same(delta: Place):
    take_back(delta)
    verdict = verify(delta.reader())
    assert not verdict.holds
    assert verdict.broken_at == (1, 220)


def test_files_rewritten_by_others_are_refused_with_their_number(delta: Place):
    opened(delta).optimize.compact()
    with pytest.raises(BronzeAltered, match=r"OPTIMIZE.*removed 5 data files and added 1"):
        delta.writer().state()


def test_a_vacuum_and_properties_by_others_change_nothing(delta: Place):
    before = delta.writer().state()
    opened(delta).alter.set_table_properties({"comment": "by hand"}, raise_if_not_exists=False)
    opened(delta).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    opened(delta).create_checkpoint()
    again = delta.writer()
    assert again.state() == before
    assert again.append([transaction(300)]).upto == 300


def test_expiry_by_others_changes_nothing(iceberg: Place):
    before = iceberg.writer().state()
    loaded(iceberg).maintenance.expire_snapshots().by_ids(
        [version.snapshot_id for version in loaded(iceberg).snapshots()[:-1]]
    ).commit()
    again = iceberg.writer()
    assert again.state() == before
    assert again.append([transaction(300)]).upto == 300


def test_a_branch_of_others_is_no_rollback(iceberg: Place):
    before = iceberg.writer().state()
    loaded(iceberg).manage_snapshots().create_branch(newest(iceberg), "others").commit()
    loaded(iceberg).append(rows_of(iceberg), branch="others")
    assert iceberg.writer().state() == before


def test_a_restore_that_takes_no_file_is_none(delta: Place):
    writer = DeltaBronze(delta.folder)
    before = writer.state()
    opened(delta).restore(opened(delta).version() - 1)  # only markers came with the last version
    assert delta.writer().state() == before
