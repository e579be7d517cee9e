"""A full disk at successive budgets of bytes, or one that fails: nothing wrong is readable, and nobody has to help after."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import TableBronze
from cdc_lake.errors import LakeError
from cdc_lake_testing.full_disk import table_of, transaction
from tests.seeds import one_seed
from tests.tally import tally

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
BUDGETS = 50 if BUDGET > 1 else 8
OWN = ["unshare", "--map-root-user", "--mount"]


def may_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*OWN, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not may_mount(), reason="no disk of its own can be mounted here")
@pytest.mark.parametrize(("fmt", "most"), [("delta", 200_000), ("iceberg", 500_000)])
def test_a_full_disk_shows_nothing_wrong_and_is_recovered_from_by_itself(tmp_path: Path, fmt: str, most: int):
    seed = one_seed()
    print(f"seed {seed}")
    first = seed % 8192
    words = [sys.executable, "-m", "cdc_lake_testing.full_disk", str(tmp_path / "disk"), fmt]
    given = [str(first), str(BUDGETS), str(most // BUDGETS)]
    done = subprocess.run([*OWN, *words, *given], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == BUDGETS
    assert {one["error"] for one in found} >= {"", "LAK420"} if BUDGETS > 8 else "LAK420" in {o["error"] for o in found}
    fitted = [one["fitted"] for one in found]
    assert fitted[0] < fitted[-1]
    tally("R9", {one["error"] for one in found} - {""}, **{"budgets of bytes": BUDGETS})


@pytest.mark.parametrize("fmt", ["delta", "iceberg"])
@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS], ids=errno.errorcode.get)
def test_what_was_confirmed_stays_on_a_disk_that_fails_to_write(tmp_path: Path, fmt: str, number: int):
    """Syncs fail from any of them on, as on a disk that is damaged or became read-only under way."""
    seed = one_seed()
    print(f"seed {seed}")
    dice, fsync = random.Random(seed), os.fsync
    writer, failed = TableBronze(table_of(tmp_path, fmt)), 0
    confirmed = writer.begin_stream("s", 10).upto
    for position in range(11, 11 + 6 * BUDGET):
        good = dice.randrange(6) if position > 11 else 0
        calls = itertools.count()

        def sync(file: int, calls: Iterator[int] = calls, good: int = good) -> None:
            if next(calls) >= good:
                raise OSError(number, os.strerror(number))
            fsync(file)

        try:
            with mock.patch.object(os, "fsync", sync):
                confirmed = writer.append([transaction(position)]).upto
        except LakeError as said:
            print(position, good, said)
            failed += 1
        writer = TableBronze(table_of(tmp_path, fmt))  # as the receiver that comes next
        state = writer.state()
        assert state is not None
        assert confirmed <= state.upto <= position
        if state.upto < position:
            confirmed = writer.append([transaction(position)]).upto
        verdict = verify(BronzeReader(table_of(tmp_path, fmt)))
        assert verdict.holds, verdict.reason
        assert verdict.transactions == position - 10
    assert failed
    tally("R9", {errno.errorcode[number]}, **{"failed syncs": failed})
