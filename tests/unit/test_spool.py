"""The spool: what goes in comes out, memory and disk are bounded, and nothing is left of it."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from cdc_lake.connectors import spool as spooled
from cdc_lake.connectors.spool import Spool, SpooledFrames
from cdc_lake.decode.transaction import FrameStore, MemoryFrames
from cdc_lake.errors import Retry, SpoolFull, SpoolNotWritten
from tests.open_files import open_in
from tests.seeds import seeds


def content(store: FrameStore) -> list[tuple[bytes, int]]:
    return [one for frames, lsns in store.parts() for one in zip(frames, lsns, strict=True)]


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("large", [1 << 20, 700, 30], ids=["small frames", "some large", "most large"])
def test_several_transactions_keep_what_they_would_keep_in_memory(
    seed: int, large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(spooled, "_LARGE", large)
    monkeypatch.setattr(spooled, "_READ", 100)  # no read gives all of what is wanted
    with Spool(tmp_path, 1 << 30, 500) as spool:
        pairs: list[tuple[SpooledFrames, MemoryFrames]] = [(spool(), MemoryFrames()) for _ in range(3)]
        for step in range(2000):
            ours, theirs = dice.choice(pairs)
            if dice.random() < 0.02:
                count = dice.randint(0, len(theirs))
                ours.truncate(count)
                theirs.truncate(count)
            else:
                frame = bytes([step % 256]) * dice.choice([0, 1, 30, 700])
                ours.append(frame, step)
                theirs.append(frame, step)
            assert (len(ours), ours.size) == (len(theirs), theirs.size)
            assert sum(one.held for one, _ in pairs) <= 500 + 700
        for ours, theirs in pairs:
            ours.seal()
            assert content(ours) == content(theirs)
            assert content(ours) == content(theirs), "it can be read again"
            assert not ours.is_spilled or ours.held == 0
            ours.close()
        assert spool.used == 0


def test_the_largest_goes_to_disk_when_memory_is_full(tmp_path: Path) -> None:
    with Spool(tmp_path, 1 << 30, 1000) as spool:
        small, large = spool(), spool()
        small.append(b"x" * 300, 1)
        for _ in range(8):
            large.append(b"y" * 100, 2)
        assert (small.is_spilled, large.is_spilled) == (False, True)
        assert spool.used == spool.written > 800
        large.close()
        assert spool.used == 0


def test_what_leaves_without_an_end_is_closed_with_the_spool(tmp_path: Path) -> None:
    with Spool(tmp_path, 1 << 30, 10) as spool:
        for _ in range(3):
            spool().append(b"x" * 100, 1)
        assert open_in(tmp_path) == 3
    assert open_in(tmp_path) == 0
    assert spool.used == 0


def test_the_disk_budget_is_a_typed_error_that_waiting_does_not_mend(tmp_path: Path) -> None:
    def fill(store: SpooledFrames) -> None:
        for nth in range(100):
            store.append(b"x" * 50, nth)

    with Spool(tmp_path, 1 << 10, 100) as spool, pytest.raises(SpoolFull) as raised:
        fill(spool())
    assert raised.value.retry is Retry.NEVER
    assert "1 KiB" in raised.value.message
    assert spool.used == 0


def test_a_folder_that_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with Spool(tmp_path / "file" / "spool", 1 << 10, 1) as spool:
        store = spool()
        with pytest.raises(SpoolNotWritten) as raised:
            store.append(b"xx", 1)
        assert spool.used == 0
    assert raised.value.retry is Retry.LATER


KILLED = """
import os, signal, sys
from pathlib import Path
from cdc_lake.connectors import spool
from cdc_lake.connectors.spool import Spool
store = Spool(Path(sys.argv[1]), 1 << 30, 10)()
store.append(b"x" * 100, 1)
assert store.is_spilled
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_left_of_a_receiver_that_is_killed(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False)
    assert done.returncode == -9
    assert list(tmp_path.iterdir()) == []
