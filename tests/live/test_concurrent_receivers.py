"""Two receivers of one pipeline, with upkeep beside them: one reads, the other is refused or fenced, nothing is lost.

The one that reads loses its connection now and then, so the slot goes to and fro between them while commits are under
way. `CDC_LAKE_BUDGET` of ten has eighty such rounds.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from cdc_lake.bronze import compaction
from cdc_lake.bronze.open import bronze_table, bronze_writer
from cdc_lake.config.project import Project
from cdc_lake.errors import AnotherReceiver, BronzeBusy, SlotActive
from cdc_lake.observability.events import silent
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake_testing.beside import beside, until
from cdc_lake_testing.invariants import Known, invariants
from cdc_lake_testing.kills import Watching
from cdc_lake_testing.ledger import at_source
from cdc_lake_testing.watermarks import Watch
from tests.bronze_replay import landed_position
from tests.conftest import Database
from tests.live.test_immediate_stops import write_until
from tests.live.test_receive_loop import once, project_of
from tests.seeds import one_seed
from tests.tally import tally

pytestmark = [pytest.mark.live, pytest.mark.timeout(1800)]

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
ROUNDS = 4 * BUDGET
GRACE = 20.0
"""Seconds that a file stays which no version names: somebody may be about to commit it, or be reading it."""
LOSING = (SlotActive, AnotherReceiver)
"""How the second one ends: refused by the server, or fenced by the table."""


class Rival:
    """A receiver that is started again whenever it was refused. `ends`: how often it was, by which error."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self.ends: Counter[str] = Counter()

    def __call__(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                receive(
                    self._project, bronze_writer(self._project),
                    once=False, stop=stop, report=silent, slot_patience=0.05, pauses=(0.0, 0.05),
                )  # fmt: skip
            except LOSING as refused:
                self.ends[type(refused).__name__] += 1
            stop.wait(0.02)


class Upkeep:
    """What `maintain` does, all the while. `done`: how many files were put together; `removed`: that no version names."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self.done = self.removed = self.busy = 0

    def __call__(self, stop: threading.Event) -> None:
        while not stop.wait(0.05):
            try:
                table = bronze_table(self._project)
                self.done += sum(len(group.paths) for group in compaction.compact(table, 4))
                found = compaction.tidy(table, GRACE, time.time())
                self.removed += 0 if found is None else len(found.files)
            except (AnotherReceiver, BronzeBusy):
                self.busy += 1

    def at_last(self) -> None:
        """Nobody writes or reads any more: what no version names goes, however young it is."""
        table = bronze_table(self._project)
        self.done += sum(len(group.paths) for group in compaction.compact(table, 4))
        found = compaction.tidy(table, 0.0, time.time() + 4000)
        self.removed += 0 if found is None else len(found.files)


@pytest.mark.parametrize("fmt", ["delta", "iceberg"])
def test_two_receivers_with_upkeep_beside_them_land_everything_once(
    database: Database, tmp_path: Path, fmt: str
) -> None:
    seed = one_seed()
    print(f"seed {seed}")
    dice = random.Random(seed)
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    batch = {"max_transactions": 3, "max_delay": "5 ms"}
    project = project_of(database, tmp_path, bronze={"format": fmt, "batch": batch})
    once(project)
    rivals, kept, watch = (Rival(project), Rival(project)), Upkeep(project), Watch(project)
    with (
        database.admin() as admin,
        Watching(project) as watching,
        beside(rivals[0]),
        beside(rivals[1]),
        beside(kept),
        beside(lambda stop: write_until(stop, database)),
    ):
        for number in range(ROUNDS):
            before = landed_position(project)
            until(lambda least=before: landed_position(project) > least, f"round {number}: rows land")
            watch.look()
            time.sleep(dice.uniform(0, 0.05))
            admin.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", [project.slot]
            )
    once(project)
    kept.at_last()
    assert watching.looks
    with database.connect() as conn:
        rows = at_source(conn, "public.t", "id")
    known = Known(source=True, silver=False, ledger=rows, watch=watch)
    invariants(project, known).assert_held("I1", "I2", "I3", "I5", "I6")
    ends = rivals[0].ends + rivals[1].ends
    print(
        f"{fmt}: {dict(ends)}, {kept.done} files put together, {kept.removed} removed, upkeep had no room {kept.busy} times, {len(rows.written)} rows"
    )
    assert ends.total()
    assert kept.done
    assert kept.removed or fmt == "iceberg"  # whose snapshots name them still
    tally("R16", ends, rounds=ROUNDS, refused=ends.total(), compacted=kept.done, removed=kept.removed)
