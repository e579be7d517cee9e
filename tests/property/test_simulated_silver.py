"""Simulated walks of apply: what bronze has come to hold goes into silver span by span, whatever goes wrong meanwhile.

Processes die, merges and cuts are refused, or land and are denied, old cuts come back, listings are stale, somebody
pauses tables or puts their files together, a rule stops a transaction, a version cannot read one. Which spans there are
and who takes part in them is decided by what ships (`runtime.apply.span_loop`, `table_planner`, `next_span`, `cuts`).
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import pytest

from cdc_lake.bronze.reader import CommitRow
from cdc_lake.config.model import Apply
from cdc_lake.config.project import Target
from cdc_lake.control.cuts import ACTIVE, TableState
from cdc_lake.errors import CdcLakeError
from cdc_lake.runtime.apply import span_loop, table_planner
from cdc_lake.runtime.apply.span_planning import next_span
from cdc_lake.runtime.apply.table_integrity import CommitLost, InSync, Reconciliation, reconcile
from cdc_lake.tables.silver_table import Marker
from cdc_lake_testing.simulation.run import play, project
from cdc_lake_testing.simulation.silver import Silver, SilverTable
from cdc_lake_testing.simulation.walk import walk
from tests.seeds import one_seed, seeds
from tests.tally import tally

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
KINDS = ("pg", "streamed", "gauss")
SEED = one_seed()
HISTORIES = {200: 70, 20: 600} if BUDGET > 1 else {200: 1, 20: 8}
"""How many of each kind, by how many transactions they have."""
FAULTS = {
    "stale listing", "merge failed", "merge landed and failed", "paused", "control not written",
    "control written and failed", "put together beside", "cuts lost", "rule stopped", "process died", "unreadable",
    "commit taken by another",
}  # fmt: skip


@pytest.mark.parametrize("length", HISTORIES)
@pytest.mark.parametrize("kind", KINDS)
def test_silver_and_every_cut_are_what_was_committed_whatever_goes_wrong(kind: str, length: int) -> None:
    met: Counter[str] = Counter()
    histories, spans, seconds = 0, 0, 0.0
    for seed in seeds(HISTORIES[length]):
        print(f"CDC_LAKE_SEED={seed}")
        landed = play(seed, length, kind).landed
        began = time.process_time()
        walked = walk(project(), landed, seed)
        seconds += time.process_time() - began
        met += walked.met
        histories, spans = histories + 1, spans + len(walked.spans)
    print(f"{60 * histories / max(seconds, 1e-9):,.0f} walks a minute of a processor: {dict(met)}")
    if BUDGET > 1:
        assert met.keys() >= FAULTS
    tally("R4", faults=met, **{"walks into silver": histories, "cuts": spans})


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_walks_the_same_each_time(kind: str) -> None:
    print(f"CDC_LAKE_SEED={SEED}")
    landed = play(SEED, 40, kind).landed
    assert walk(project(), landed, SEED) == walk(project(), landed, SEED)


# ── what it would find ──


def never_merged(*_: object) -> Marker:
    """Silver does not say what it has."""
    return Marker(None, None)


def all_is_well(_: Any, target: Target, position: int, __: CdcLakeError, recorded: TableState | None) -> TableState:
    """A table that could not be merged is in the cut all the same."""
    return recorded or TableState(target.label, target.format, None, position, ACTIVE, 0)


def one_too_few(ahead: Iterable[CommitRow], bounds: Apply) -> tuple[list[CommitRow], CommitRow | None]:
    """The last transaction of a span is lost, with what only it touches."""
    taken, stuck = next_span(ahead, bounds)
    return [one if one is not taken[-1] else _without_tables(one) for one in taken], stuck


def _without_tables(one: CommitRow) -> CommitRow:
    return CommitRow(one.epoch, one.position, one.commit_ts, one.xid, {}, one.size, one.content, one.hash)


def takes_what_it_cannot_read(ahead: Iterable[CommitRow], bounds: Apply) -> tuple[list[CommitRow], None]:
    """A transaction that is there as bytes only is passed over."""
    del bounds
    return list(ahead), None


def takes_its_word(*given: Any) -> Reconciliation:
    """A commit that was made stays made."""
    case = reconcile(*given)
    return InSync() if isinstance(case, CommitLost) else case


class Deaf(Silver):
    """A rule that stops is not heeded."""

    def prepare(self, spark: None, job: Any) -> Any:
        prepared = super().prepare(spark, job)
        if prepared is not None:
            prepared.stop = None
        return prepared


PLANTED: dict[str, Callable[[], Any]] = {
    "silver is not asked": lambda: mock.patch.object(SilverTable, "marker", never_merged),
    "a cut names what failed": lambda: mock.patch.object(table_planner.TablePlanner, "set_aside", all_is_well),
    "a change is left out": lambda: mock.patch.object(span_loop, "next_span", one_too_few),
    "what is unreadable is passed": lambda: mock.patch.object(span_loop, "next_span", takes_what_it_cannot_read),
    "what another program took is not missed": lambda: mock.patch.object(table_planner, "reconcile", takes_its_word),
    "no rule stops": lambda: mock.patch("cdc_lake_testing.simulation.walk.Silver", Deaf),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_walk_with_a_fault_is_found(planted: str) -> None:
    print(f"CDC_LAKE_SEED={SEED}")
    for seed in range(SEED, SEED + 60):
        landed = play(seed, 30, KINDS[seed % 3]).landed
        with PLANTED[planted]():
            if fails(landed, seed):
                return
    pytest.fail("nothing was found")


def fails(landed: Any, seed: int) -> bool:
    try:
        walk(project(), landed, seed)
    except (AssertionError, CdcLakeError):
        return True
    return False
