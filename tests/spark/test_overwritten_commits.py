"""Another program's commit takes the version of ours, as it may in a folder, where a rename replaces what is there."""

from __future__ import annotations

import json
import random
import threading
import uuid
import zlib
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cdc_lake.errors import SilverRestored
from cdc_lake.observability.events import ProgressEvent, silent
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.tables.delta_silver import DeltaSilver
from cdc_lake_testing.committed import Committed
from cdc_lake_testing.invariants import Known, invariants
from tests.seeds import one_seed
from tests.tally import tally

from .conftest import BUDGET
from .interrupted_pipeline import World, world
from .two_tables import PLAIN, breaks

pytestmark = pytest.mark.spark
WHEN = ["restarted", "more came", "nothing came", "started again before"]


def log_of(there: World) -> Path:
    return there.project.silver_path(there.project.target(PLAIN.table)) / "_delta_log"


def newest(log: Path) -> int:
    return max(int(file.stem) for file in log.glob("[0-9]*.json"))


def overwrite(log: Path) -> None:
    """The newest version becomes what upkeep of another process commits that put no files together in the end."""
    version = newest(log)
    information = {
        "timestamp": 1_700_000_000_000, "operation": "OPTIMIZE", "operationParameters": {}, "readVersion": version - 1,
        "isolationLevel": "SnapshotIsolation", "isBlindAppend": False, "operationMetrics": {}, "txnId": str(uuid.uuid4()),
    }  # fmt: skip
    for name in (f".{version:020}.json.crc", f"{version:020}.crc", f".{version:020}.crc.crc"):
        (log / name).unlink(missing_ok=True)
    theirs = log / "theirs.tmp"
    theirs.write_text(json.dumps({"commitInfo": information}) + "\n")
    theirs.replace(log / f"{version:020}.json")


@pytest.fixture
def new(spark: Any, lake_root: Path, request: pytest.FixtureRequest) -> World:
    seed = one_seed() ^ zlib.crc32(request.node.name.encode())  # tests of a session have one lake
    print(f"seed {seed}")
    made = world(lake_root, spark, "delta", seed, random.Random(seed))
    made.change_plain(4)
    made.advance()
    return made


@pytest.fixture
def there(new: World) -> World:
    new.change_plain(4)
    return new


def test_a_commit_that_is_taken_before_it_was_looked_at_is_made_again(there: World) -> None:
    committed_version, taken = DeltaSilver._committed_version, []

    def raced(self: DeltaSilver, stream: str, generation: int, position: int) -> int:
        if not taken and "plain" in self.name:
            overwrite(log_of(there))
            taken.append(position)
        return committed_version(self, stream, generation, position)

    with patch.object(DeltaSilver, "_committed_version", raced):
        there.advance()
    assert taken
    there.judge(applied=True)
    tally("R10", ["commit taken by another program at once"], **{"commits to silver taken": 1})


@pytest.mark.parametrize("when", WHEN if BUDGET > 1 else [random.Random(one_seed()).choice(WHEN)])
def test_a_commit_that_is_taken_after_it_was_counted_is_made_again(there: World, when: str) -> None:
    told: list[ProgressEvent] = []
    if when == "started again before":
        there.advance()
    with SpanLoop(there.project, there.spark, told.append) as walk:
        walk.run(None, threading.Event())
        overwrite(log_of(there))
        if when == "more came":
            there.change_plain(4)
        if when != "restarted":
            walk.run(None, threading.Event())
            assert not walk.totals.failed
    if when == "restarted":
        with SpanLoop(there.project, there.spark, told.append) as walk:
            walk.run(None, threading.Event())
    (said,) = [one for one in told if one.stage == "warning"]
    assert "replaced the version of this pipeline's merge" in said.text
    there.judge(applied=True)
    tally("R10", [f"commit taken by another program, {when}"], **{"commits to silver taken": 1})


def test_a_commit_that_is_taken_when_nobody_looks_any_more_is_made_again_before_the_next_one(there: World) -> None:
    with SpanLoop(there.project, there.spark, silent) as walk:
        walk.run(None, threading.Event())
        walk._planner._fresh_since.clear()
        overwrite(log_of(there))
        there.change_plain(4)
        walk.run(None, threading.Event())
        assert not walk.totals.failed
    there.watch.look()
    known = Known(committed=Committed(there.made, breaks), watch=there.watch, applied=True)
    found = invariants(there.project, known).found
    assert [number for number, wrong in found.items() if wrong] == ["I3"]  # of the cut that was written before


def test_a_first_commit_that_is_taken_is_an_error_in_words(new: World) -> None:
    overwrite(log_of(new))
    new.change_plain(4)
    (error,) = new.tried().values()
    assert isinstance(error, SilverRestored)
    assert "empty again" in error.message
