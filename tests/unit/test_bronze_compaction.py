"""Upkeep of bronze: the same rows in the same order in fewer files, beside a receiver, and the chain behind what left."""

from __future__ import annotations

import datetime as dt
import os
import random
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from cdc_lake.bronze import compaction
from cdc_lake.bronze import compaction as upkeep
from cdc_lake.bronze.compaction import MaintainedTable, plan
from cdc_lake.bronze.contract import SCHEMA
from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.row_history import history
from cdc_lake.bronze.span_index import outline
from cdc_lake.bronze.writer import TableBronze
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.errors import AnotherReceiver, NoStream
from cdc_lake.model.change import Delete, Insert, OldKind, Transaction, Update
from cdc_lake.model.position import Span
from cdc_lake.tables import orphan_files
from cdc_lake.tables.delta_storage import LocalDeltaStorage
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.bronze_formats import Place, maintained

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
ORDERS = table("public.orders", id="int8", note="text")
WIDER = table("public.orders", id="int8", note="text", extra="text")
OTHERS = table("public.others", id="int8")
LATER = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "bronze"


def delta(folder: Path) -> DeltaBronzeTable:
    return DeltaBronzeTable(LocalDeltaStorage(folder, durable=False))


def writer_of(folder: Path) -> TableBronze:
    return TableBronze(delta(folder))


def transaction(position: int, dice: random.Random | None = None) -> BufferedTransaction:
    key = str(position % 7)
    changes = [Insert(ORDERS, (key, f"note {position}"))]
    if dice is not None:
        layout = dice.choice((ORDERS, WIDER))
        some = (
            Update(layout, (key, "changed", "more")[: len(layout.columns)]),
            Delete(layout, (key, None, None)[: len(layout.columns)], OldKind.KEY),
            Insert(OTHERS, (str(position),)),
        )
        changes += dice.sample(some, dice.randint(0, 3))
    return raw_transaction(Transaction(boundaries(position), tuple(changes)))


def commits(writer: TableBronze, first: int, count: int, dice: random.Random | None = None) -> int:
    """That many commits of a transaction each; the next position."""
    for position in range(first, first + count):
        writer.append([transaction(position, dice)])
    return first + count


def a_year(place: Place, dice: random.Random) -> TableBronze:
    """Several streams, each with a copy in chunks and many small commits."""
    writer = place.writer()
    share = {"delta": 1, "iceberg": 2}[place.format]  # a commit takes so much longer
    for epoch in range(1, 4):
        start = dice.randint(100, 200)
        writer.begin_stream(f"s{epoch}", start)
        for chunk in range(dice.randint(2, 4)):
            rows = [[str(chunk), "copied"], [str(chunk + 10), None]]
            copied = pa.array(rows, pa.list_(pa.string()))
            writer.append_snapshot(f"copy{epoch}", chunk, ORDERS, copied, 1 + (chunk << 32), start)
        commits(writer, start + 1, dice.randint(24, 40) * BUDGET // share, dice)
        writer.advance(10_000, 10_000)
    return writer


def rows_of(reader: BronzeReader) -> pa.Table:
    files = reader.files()
    return files.read(files.paths, SCHEMA.names)


def without_layouts(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.not_equal(rows["op"], "R"))


def assert_every_file_describes_what_it_holds(reader: BronzeReader) -> None:
    files = reader.files()
    for path in files.paths:
        known: set[int] = set()
        for row in files.read([path], ["op", "layout"]).to_pylist():
            if row["op"] == "R":
                known.add(row["layout"])
            assert row["layout"] is None or row["layout"] in known


def told(reader: BronzeReader) -> tuple[object, ...]:
    """What readers of every kind find."""
    span = Span(3, 0, 20_000)
    files = reader.files()
    outlines = [outline(files, t.table, span, snapshot=False) for t in (ORDERS, OTHERS)]
    return (
        verify(reader),
        reader.state(),
        reader.commits(span),
        outlines,
        reader.layouts(),
        reader.latest_layouts(3),
        history(reader, ORDERS.table, {"id": "3"}),
    )


def test_a_year_of_history_compacted_reads_the_same_row_for_row_and_hash_for_hash(place: Place, dice: random.Random):
    writer = a_year(place, dice)
    before, told_before, files = rows_of(place.reader()), told(place.reader()), len(place.reader().files().paths)
    groups = upkeep.compact(maintained(place), dice.randint(2, 9), ignore_tiers=True)
    assert 3 <= len(place.reader().files().paths) < files / 10
    assert sum(len(g.paths) for g in groups) > files * 0.9
    assert without_layouts(rows_of(place.reader())).equals(without_layouts(before)), "every row, in its order"
    assert told(place.reader()) == told_before
    assert_every_file_describes_what_it_holds(place.reader())
    assert writer.state() == place.writer().state()


def test_compacted_files_keep_their_bounds_and_their_order_in_and_across_files(place: Place, dice: random.Random):
    a_year(place, dice)
    upkeep.compact(maintained(place), 5)
    files = place.reader().files()
    for path, row in zip(files.paths, files.actions.to_pylist(), strict=True):
        rows = files.read([path], SCHEMA.names)
        for name in ("epoch", "position", "ordinal", "op", "relation", "commit_ts", "ingest_ts"):
            bounds = pc.min_max(rows[name]).as_py()
            assert (row[f"min.{name}"], row[f"max.{name}"]) == (bounds["min"], bounds["max"])
        assert row["num_records"] == rows.num_rows
    rows = rows_of(place.reader()).select(["epoch", "position"])
    assert rows.equals(rows.sort_by([("epoch", "ascending"), ("position", "ascending")]))


def test_a_receiver_goes_on_above_upkeep(place: Place):
    writer = place.writer()
    writer.begin_stream("s", 0)
    after = commits(writer, 1, 5)
    assert upkeep.prepare(maintained(place))
    assert upkeep.compact(maintained(place), 2)
    after = commits(writer, after, 5)
    writer.advance(200, 200)
    upkeep.compact(maintained(place), 2)
    upkeep.tidy(maintained(place), 0.0, time.time() + 10_000)
    assert writer.advance(300, 300).upto == 300
    assert verify(place.reader()).transactions == after - 1


def test_a_receiver_that_was_idle_for_long_goes_on_where_the_log_went_on_without_it(place: Place):
    writer = place.writer()
    writer.begin_stream("s", 0)
    after = commits(writer, 1, 5)
    for later in (10_000, 20_000):
        upkeep.compact(maintained(place), 2, ignore_tiers=True)
        upkeep.prepare(maintained(place))
        upkeep.tidy(maintained(place), 3600.0, time.time() + later)
    if place.format == "delta":
        assert len(list((place.folder / "_delta_log").glob("*.json"))) == 1
    commits(writer, after, 1)
    idle = place.writer()
    idle.state()
    commits(writer, after + 1, 30)
    upkeep.tidy(maintained(place), 3600.0, time.time() + 10_000)
    with pytest.raises(AnotherReceiver):
        commits(idle, after + 1, 1)
    assert verify(place.reader()).transactions == after + 30


def test_upkeep_goes_on_above_a_receiver(place: Place, monkeypatch: pytest.MonkeyPatch):
    writer = place.writer()
    writer.begin_stream("s", 0)
    after = commits(writer, 1, 5)
    exchange, late = type(maintained(place)).exchange, iter([True, True, False])

    def overtaken(self: MaintainedTable, *given: object, **more: object) -> int:
        nonlocal after
        if next(late, False):
            after = commits(writer, after, 2)
        return exchange(self, *given, **more)

    monkeypatch.setattr(type(maintained(place)), "exchange", overtaken)
    assert len(upkeep.compact(maintained(place), 2)) == 1
    assert len(place.reader().files().paths) == 1 + 4
    assert commits(writer, after, 1) == after + 1
    assert verify(place.reader()).transactions == after


def test_a_second_receiver_is_refused_with_upkeep_between(place: Place):
    first, second = place.writer(), place.writer()
    first.begin_stream("s", 0)
    commits(first, 1, 3)
    second.state()
    upkeep.compact(maintained(place), 2)
    commits(first, 4, 1)
    upkeep.compact(maintained(place), 2)
    with pytest.raises(AnotherReceiver):
        commits(second, 4, 1)
    with pytest.raises(AnotherReceiver):
        second.state()
    assert commits(first, 5, 1) == 6


def test_a_second_copy_is_refused_though_it_leaves_the_state_alone(place: Place):
    first, second = place.writer(), place.writer()
    first.begin_stream("s", 0)
    second.state()
    rows = pa.array([["1", "copied"]], pa.list_(pa.string()))
    first.append_snapshot("copy", 0, ORDERS, rows, 1, 0)
    with pytest.raises(AnotherReceiver):
        second.append_snapshot("copy", 0, ORDERS, rows, 1, 0)


def test_two_upkeeps_at_once_do_each_piece_once(place: Place, monkeypatch: pytest.MonkeyPatch):
    writer = place.writer()
    writer.begin_stream("s", 0)
    commits(writer, 1, 6)
    before = rows_of(place.reader())
    exchange, first = type(maintained(place)).exchange, iter([True])

    def overtaken(self: MaintainedTable, *given: object, **more: object) -> int:
        if next(first, False):
            assert upkeep.compact(maintained(place), 2)
        return exchange(self, *given, **more)

    monkeypatch.setattr(type(maintained(place)), "exchange", overtaken)
    assert upkeep.compact(maintained(place), 2) == []
    assert without_layouts(rows_of(place.reader())).equals(without_layouts(before))


def test_a_streaming_reader_sees_nothing_new_in_a_compaction(folder: Path):
    writer = writer_of(folder)
    writer.begin_stream("s", 0)
    commits(writer, 1, 6)
    upkeep.compact(delta(folder), 2)
    actions = DeltaTable(str(folder)).history(1)[0]
    entry = (folder / "_delta_log" / f"{actions['version']:020d}.json").read_text()
    assert entry.count('"dataChange":false') == 7
    assert 'dataChange":true' not in entry


def test_what_many_small_files_hold_is_measured_once_each(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Arrow looks at every buffer of a table to say its size: of 3,000 chunks of a copy, again with each, for minutes."""
    sizes: list[int] = []
    size = compaction._size
    monkeypatch.setattr(compaction, "_size", lambda part: sizes.append(size(part)) or sizes[-1])
    writer = writer_of(folder)
    writer.begin_stream("test", 0)
    for position in range(1, 31):
        writer.append([transaction(position)])
    (group,) = upkeep.compact(delta(folder), 2, ignore_tiers=True)
    assert len(group.paths) == len(sizes) == 30


def test_retention_lets_whole_files_leave_and_the_chain_starts_behind_them(place: Place, dice: random.Random):
    writer = a_year(place, dice)
    state = writer.state()
    assert state is not None
    upkeep.compact(maintained(place), 4)
    whole = verify(place.reader())
    files = place.reader().files()
    middle = files.actions.select(["max.epoch", "max.position"]).to_pylist()[len(files.paths) // 2]
    floor = (middle["max.epoch"], middle["max.position"])
    layouts = place.reader().layouts()
    trim = upkeep.trimmable(files, floor, LATER)
    assert trim is not None
    assert (trim.epoch, trim.position) <= floor
    assert upkeep.trim(maintained(place), trim)
    reader = place.reader()
    verdict = verify(reader)
    assert verdict.holds, verdict.reason
    assert verdict.behind is not None
    assert 0 < verdict.transactions < whole.transactions
    assert verdict.last == whole.last
    assert reader.state() == state
    assert reader.layouts() == layouts, "layouts stay"
    kept = rows_of(reader).filter(pc.not_equal(rows_of(reader)["op"], "R"))
    assert all((r["epoch"], r["position"]) > floor for r in kept.select(["epoch", "position"]).to_pylist())
    commits(writer, 20_000, 3)
    assert verify(place.reader()).transactions == verdict.transactions + 3


def test_retention_in_steps_ends_at_the_same_chain(place: Place, dice: random.Random):
    writer = a_year(place, dice)
    table = maintained(place)
    while table.refresh() and (trim := upkeep.trimmable(table.files(), (3, 130), LATER)) is not None:
        few = upkeep.Trim(trim.paths[:25], -1, 0, trim.epoch, trim.position)
        if not upkeep.trim(table, few) or len(trim.paths) <= 25:
            break
        assert verify(place.reader()).holds
    commits(writer, 20_000, 1)
    assert verify(place.reader()).holds


def test_an_edit_behind_the_border_is_found_all_the_same(folder: Path):
    writer = writer_of(folder)
    writer.begin_stream("s", 0)
    commits(writer, 1, 9)
    table = delta(folder)
    table.refresh()
    trim = upkeep.trimmable(table.files(), (1, 4), LATER)
    assert trim is not None
    assert upkeep.trim(table, trim)
    assert verify(BronzeReader(folder)).behind == (1, 4)
    DeltaTable(str(folder)).delete("position = 5")
    verdict = verify(BronzeReader(folder))
    assert (verdict.holds, verdict.broken_at) == (False, (1, 6))


def test_young_files_and_files_above_the_floor_stay(place: Place):
    writer = place.writer()
    writer.begin_stream("s", 0)
    commits(writer, 1, 6)
    files = place.reader().files()
    long_ago = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    assert upkeep.trimmable(files, (1, 6), long_ago) is None
    assert upkeep.trimmable(files, (0, 1 << 60), LATER) is None
    trim = upkeep.trimmable(files, (1, 4), LATER)
    assert trim is not None
    assert (len(trim.paths), trim.position) == (4, 4)


def test_only_what_nobody_needs_for_long_enough_is_removed(folder: Path):
    writer = writer_of(folder)
    writer.begin_stream("s", 0)
    commits(writer, 1, 30)
    reader = BronzeReader(folder)
    old = reader.files()
    orphan = delta(folder)
    orphan.refresh()
    orphan.write(old.read(old.paths[:1], SCHEMA.names))
    upkeep.compact(delta(folder), 2)
    expected = rows_of(BronzeReader(folder))
    assert upkeep.tidy(delta(folder), 3600.0) is not None
    assert without_layouts(old.read(old.paths, SCHEMA.names)).equals(without_layouts(expected)), (
        "who opened the old files still reads them"
    )
    assert len(list(folder.glob("*.parquet"))) == 32
    gone = upkeep.tidy(delta(folder), 3600.0, time.time() + 3700)
    assert gone is not None
    assert (len(gone.files), len(list(folder.glob("*.parquet")))) == (31, 1)
    assert len(list((folder / "_delta_log").glob("*.json"))) == 1
    assert rows_of(BronzeReader(folder)).equals(expected)
    assert rows_of(reader).equals(expected), "also for a reader that was open all the time"
    commits(writer, 31, 25)
    assert verify(BronzeReader(folder)).transactions == 55


def test_a_file_that_is_to_be_committed_stays_though_the_clock_went_on_by_days(place: Place):
    """The time of day was set forward, which makes every file old, between the writing of one and its commit."""
    writer = place.writer()
    writer.begin_stream("s", 0)
    commits(writer, 1, 3)
    table = maintained(place)
    assert table.refresh()
    before = {path for path in place.folder.rglob("*") if path.is_file()}
    files = table.files()
    table.write(files.read(files.paths, SCHEMA.names))
    (written,) = {path for path in place.folder.rglob("*.parquet") if path.is_file()} - before
    for path in before | {written}:
        os.utime(path, (time.time() - 2 * 86_400 + (path == written),) * 2)
    upkeep.tidy(maintained(place), 3600.0)
    assert written.exists()
    commits(writer, 4, 1)
    upkeep.tidy(maintained(place), 3600.0)
    assert not written.exists(), "by then it is a leftover of a day ago"


def test_a_table_without_a_stream_has_nothing_to_keep_up(place: Place):
    assert not upkeep.prepare(maintained(place))
    assert upkeep.compact(maintained(place), 2) == []
    assert upkeep.tidy(maintained(place), 0.0) is None
    with pytest.raises(NoStream):
        place.writer().append([transaction(1)])


def test_files_stay_few_however_many_commits_there_are(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """400 commits a second apart, by the times of files, and of all that is kept a twentieth; with a budget of ten a day."""
    count, after, kept = (86_400, 100, 3600) if BUDGET >= 10 else (400, 40, 180)
    if BUDGET < 10:
        for name in ("LOG_SECONDS", "LOG_VERSIONS", "LOG_LEAST"):
            monkeypatch.setattr(orphan_files, name, getattr(orphan_files, name) // 20)
    writer = writer_of(folder)
    writer.begin_stream("s", 0)
    few = _costs(folder)
    assert upkeep.prepare(delta(folder))
    for second in range(after, count + 1, after):
        commits(writer, second - after + 1, after)
        upkeep.compact(delta(folder), after)
        _made_until(folder, second)
        upkeep.tidy(delta(folder), float(kept), float(second))
        assert len(list_files(folder)) < 3 * after
    many = _costs(folder)
    print(f"{count} commits: files, seconds of the processor to open them: {few} at first, {many} at the end")
    assert len(list((folder / "_delta_log").iterdir())) < orphan_files.LOG_VERSIONS * 1.2 + 2 * after < count
    assert len(list(folder.glob("*.parquet"))) < kept + 3 * after < count
    assert verify(BronzeReader(folder)).transactions == count


def test_a_row_group_is_small_in_memory_however_well_it_packs(place: Place):
    """Two of the commits fill a row group."""
    before = packs_well(place, 10)
    assert len(upkeep.compact(maintained(place), 10)) == 1
    (file,) = {*place.data_files()} - before
    footer = pq.read_metadata(file)
    groups = [footer.row_group(n).num_rows // 210 for n in range(footer.num_row_groups)]
    assert (groups, file.stat().st_size < 100_000) == ([2, 2, 2, 2, 2], True)


def test_a_file_is_full_by_what_it_has_in_memory_too(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compaction, "FULL_UNPACKED", 7_000_000)
    packs_well(place, 10)
    assert [len(group.paths) for group in upkeep.compact(maintained(place), 2)] == [3, 3, 3]
    assert upkeep.compact(maintained(place), 2) == []
    assert len(place.reader().files().paths) == 4
    assert verify(place.reader()).transactions == 10


def packs_well(place: Place, count: int) -> set[Path]:
    """So many commits of two megabytes in memory and next to nothing on the disk; their files."""
    writer = place.writer()
    writer.begin_stream("s", 0)
    wide = tuple(Insert(ORDERS, (str(n), "x" * 10_000)) for n in range(210))
    for position in range(1, count + 1):
        writer.append([raw_transaction(Transaction(boundaries(position), wide))])
    return {*place.data_files()}


def _made_until(folder: Path, second: int) -> None:
    """Give what was made since the last call the times of the seconds before this one."""
    for of in (folder, folder / "_delta_log"):
        new = [path for path in of.iterdir() if path.is_file() and path.stat().st_mtime > 1e9]
        for path in new:
            os.utime(path, (second, second))


def _costs(folder: Path) -> tuple[int, float]:
    best = 1e9
    for _ in range(3):
        began = time.process_time()
        writer_of(folder).state()
        files = len(BronzeReader(folder).files().paths)
        best = min(best, time.process_time() - began)
    return files, round(best, 4)


def list_files(folder: Path) -> list[str]:
    return BronzeReader(folder).files().paths


def test_a_group_never_grows_over_a_full_file_nor_over_an_epoch(place: Place, dice: random.Random):
    a_year(place, dice)
    files = place.reader().files()
    for group in plan(files, 2, ignore_tiers=True):
        assert len(files.read(list(group.paths), ["epoch"])["epoch"].unique()) == 1
    assert plan(files, 10_000) == []
