"""Loss of power at any moment: bronze is whole up to the last commit that returned; without syncing it is not."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from deltalake.exceptions import DeltaError

from cdc_lake.bronze import compaction
from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.errors import CdcLakeError
from cdc_lake.model.change import Insert, Transaction
from cdc_lake.tables.control_schema import RunRow, utc_now
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.delta_log import mend
from cdc_lake.tables.delta_storage import LocalDeltaStorage
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from cdc_lake_testing.power_loss import LyingDisk
from tests.tally import tally

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
ORDERS = table("public.orders", id="int8", note="text")


def transaction(position: int) -> BufferedTransaction:
    return raw_transaction(Transaction(boundaries(position), (Insert(ORDERS, (str(position), "note")),)))


class Bench:
    """A receiver that commits, now and then with upkeep, on a disk whose power goes at random moments."""

    def __init__(self, root: Path, dice: random.Random, durability: Literal["fsync", "os"], check: Check) -> None:
        self.folder, self.image, self.dice = root / "bronze", root / "image", dice
        self.durability, self.check = durability, check
        self.confirmed = 0
        self.losses = 0
        self.disk = LyingDisk(root, self._moment)

    def run(self, commits: int) -> None:
        root = self.folder.parent
        root.mkdir(exist_ok=True)
        with self.disk:
            writer = DeltaBronze(self.folder, self.durability)
            self.confirmed = writer.begin_stream("s", 10).upto
            for position in range(11, 11 + commits):
                self.confirmed = writer.append([transaction(position)]).upto
                self._moment()
                if self.dice.random() < 0.04:
                    self._keep_up()

    def _keep_up(self) -> None:
        kept = DeltaBronzeTable(LocalDeltaStorage(self.folder, durable=self.durability == "fsync"))
        compaction.prepare(kept)
        compaction.compact(kept, 5)
        compaction.tidy(kept, 3600.0, utc_now().timestamp() + 4000)

    def _moment(self) -> None:
        if self.dice.random() < 0.12 * min(BUDGET, 5):
            self.losses += 1
            self.disk.image(self.image, self.dice)
            self.check(self.image / "bronze", self.confirmed)


Check = Callable[[Path, int], None]


def recovered(folder: Path, confirmed: int) -> None:
    """Nobody helps: the next receiver goes on, and nothing that was confirmed is missing."""
    writer = DeltaBronze(folder, "os")
    state = writer.state()
    upto = state.upto if state is not None else 0
    assert upto >= confirmed, f"{confirmed} was confirmed, bronze is at {upto}"
    if state is None:
        return
    verdict = verify(BronzeReader(folder))
    assert verdict.holds, verdict.reason
    assert verdict.transactions == upto - 10
    assert writer.append([transaction(upto + 1)]).upto == upto + 1
    assert verify(BronzeReader(folder)).transactions == upto - 9


def test_what_was_confirmed_survives_a_loss_of_power_at_any_moment(tmp_path: Path, dice: random.Random):
    bench = Bench(tmp_path / "lake", dice, "fsync", recovered)
    bench.run(45 * BUDGET)
    tally("R10", **{"losses of power": bench.losses, "syncs": bench.disk.syncs})
    assert bench.losses > 10


def test_without_syncing_a_loss_of_power_loses_what_was_confirmed(tmp_path: Path, dice: random.Random):
    """The negative control: the disk lies, and the same check finds it."""
    found: list[str] = []

    def checked(folder: Path, confirmed: int) -> None:
        try:
            recovered(folder, confirmed)
        except (AssertionError, CdcLakeError, DeltaError, OSError, ValueError) as wrong:
            found.append(type(wrong).__name__)

    bench = Bench(tmp_path / "lake", dice, "os", checked)
    bench.run(60)
    print(f"{len(found)} of {bench.losses} losses of power lost something")
    assert bench.disk.syncs == 0
    assert len(found) > bench.losses / 2


def test_a_folder_that_was_there_and_not_synced_is_on_disk_with_what_is_made_in_it(tmp_path: Path, dice: random.Random):
    """As the receiver's own note makes the lake's folder before bronze is begun."""
    root = tmp_path / "root"
    root.mkdir()
    with LyingDisk(root) as disk:
        (root / "lake" / "logs").mkdir(parents=True)
        writer = DeltaBronze(root / "lake" / "bronze" / "shop")
        writer.begin_stream("s", 10)
        upto = writer.append([transaction(11)]).upto
        for _ in range(10):
            disk.image(tmp_path / "image", dice)
            recovered(tmp_path / "image" / "lake" / "bronze" / "shop", upto)


@pytest.mark.parametrize("what", ["entry", "entry at a line", "empty entry", "checkpoint", "empty checkpoint", "hint"])
def test_what_a_loss_of_power_cut_is_taken_out_of_the_way(tmp_path: Path, what: str):
    writer = DeltaBronze(tmp_path, "os")
    writer.begin_stream("s", 10)
    for position in range(11, 31):
        writer.append([transaction(position)])
    log = tmp_path / "_delta_log"
    names = {
        "entry": f"{21:020d}.json",
        "checkpoint": next(log.glob("*.checkpoint.parquet")).name,
        "hint": "_last_checkpoint",
    }
    path = log / next(name for kind, name in names.items() if kind in what)
    content = path.read_bytes()
    cut = {"entry at a line": content.splitlines(keepends=True)[0], "hint": content[:9]}
    path.write_bytes(b"" if "empty" in what else cut.get(what, content[: len(content) // 2]))
    upto = 29 if "entry" in what else 30
    state = DeltaBronze(tmp_path).state()
    assert state is not None
    assert state.upto == upto
    assert (path.exists(), path.with_name(f"{path.name}.cut").exists()) == (False, True)
    recovered(tmp_path, upto)


@pytest.mark.parametrize("left", [None, b"", b'{"commitInfo":'])
def test_a_checkpoint_whose_log_entry_was_lost_goes_with_it(tmp_path: Path, left: bytes | None):
    """The entry says what the head of the chain is: the commit was not on disk, and nobody was told of it."""
    writer = DeltaBronze(tmp_path, "os")
    upto = writer.begin_stream("s", 10).upto
    while not (checkpoints := list((tmp_path / "_delta_log").glob("*.checkpoint.parquet"))):
        upto = writer.append([transaction(upto + 1)]).upto
    entry = checkpoints[0].with_name(checkpoints[0].name.replace("checkpoint.parquet", "json"))
    if left is None:
        entry.unlink()
    else:
        entry.write_bytes(left)
    recovered(tmp_path, upto - 1)
    assert (state := DeltaBronze(tmp_path).state()) is not None
    assert state.upto == upto  # the one that `recovered` appended


def test_a_whole_log_is_left_alone(tmp_path: Path):
    assert mend(tmp_path) == []
    writer = DeltaBronze(tmp_path, "os")
    writer.begin_stream("s", 10)
    for position in range(11, 51):
        writer.append([transaction(position)])
        assert mend(tmp_path) == []


def test_a_control_table_survives_a_loss_of_power_too(tmp_path: Path, dice: random.Random):
    root = tmp_path / "lake"
    root.mkdir()
    done = 0

    def moment() -> None:
        if dice.random() < 0.2:
            disk.image(tmp_path / "image", dice)
            rows = ControlTables(tmp_path / "image" / "control").read("runs")
            assert rows.num_rows >= done

    disk = LyingDisk(root, moment)
    with disk:
        for number in range(20):
            ControlTables(root / "control").record(RunRow(str(number), "receive", utc_now(), utc_now(), "done", "{}"))
            done += 1
