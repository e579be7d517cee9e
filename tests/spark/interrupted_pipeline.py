"""A pipeline of two tables that is broken off in this process, with what its source committed, for the checker to judge."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.open import bronze_writer
from cdc_lake.bronze.writer import TableBronze
from cdc_lake.config.project import Project
from cdc_lake.errors import CdcLakeError
from cdc_lake.model.change import Transaction
from cdc_lake.model.relation import Relation
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.applier import apply
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake_testing.broken_off import BrokenOff, Failed, broken_off
from cdc_lake_testing.committed import Committed
from cdc_lake_testing.histories import History, interleave
from cdc_lake_testing.invariants import Known, invariants
from cdc_lake_testing.messages import raw_transaction
from cdc_lake_testing.watermarks import Watch

from .committed_lake import LOOKED_AT
from .two_tables import PLAIN, WHOLE, breaks
from .two_tables import lake as make_lake

TABLES = (PLAIN.table, WHOLE.table)
TRIES = 4
"""Advances until a point came about: not every span has something to hold."""


class Anything(frozenset[str]):
    """Allows every operation on a layout."""

    def __contains__(self, words: object) -> bool:
        return True


@dataclass
class World:
    """What landed of the pipeline, and how often it was broken off."""

    project: Project
    spark: Any
    bronze: TableBronze
    history: History
    dice: random.Random
    watch: Watch
    made: list[Transaction] = field(default_factory=list)
    position: int = 1000
    plain: Relation = PLAIN
    breaks: int = 0
    upkept: bool = False

    @property
    def fmt(self) -> str:
        return self.project.target(PLAIN.table).format

    def land(self, count: int) -> None:
        """Transactions arrive."""
        made = interleave(self.dice.randrange(1 << 20), [self.history], count, first=self.position)
        self.position += 10 * count
        self.made += made
        self.bronze.append([raw_transaction(one) for one in made])

    def change_plain(self, count: int) -> None:
        """Transactions arrive, and more of them until one has changed the plain table as it is now."""
        before = len(self.made)
        self.land(count)
        while not any(change.relation == self.plain for one in self.made[before:] for change in one.changes):
            self.land(1)

    def becomes(self, plain: Relation) -> None:
        """The plain table has another layout from the next change on."""
        self.plain = plain
        self.history.add_column(plain)

    def tried(self) -> dict[str, CdcLakeError]:
        """Advance; the errors of the tables that wait."""
        with SpanLoop(self.project, self.spark, silent, allowed=Anything()) as advance:
            advance.run(None, threading.Event())
            return dict(advance.totals.failed)

    def advance(self) -> None:
        waits = self.tried()
        assert not waits, waits

    def apply(self) -> None:
        apply(self.project, once=True, stop=threading.Event(), report=silent, spark=self.spark)

    def broken_at(self, settings: Sequence[str], *, in_stream: bool = False) -> None:
        """Break off at a failpoint, by the first setting that is reached; more lands before the next one is tried."""
        for setting in settings:
            with broken_off(setting, Failed if in_stream else BrokenOff) as reached:
                (self.apply if in_stream else self.advance)()
            if reached:
                self.breaks += 1
                return
            self.land(4)
        pytest.fail(f"none of {', '.join(settings)} was passed")

    def judge(self, *, applied: bool = False) -> None:
        """Nothing wrong is to be seen, wherever it was broken off; `applied`: a run came to its end."""
        self.watch.look()
        known = Known(committed=Committed(self.made, breaks), watch=self.watch, applied=applied, upkept=self.upkept)
        invariants(self.project, known).assert_held(*LOOKED_AT)


def world(root: Path, spark: Any, fmt: str, seed: int, dice: random.Random, **sections: Any) -> World:
    """One that has just begun, and merges one table at a time: so what dies between two is the same each time."""
    project = make_lake(root, fmt, seed, **sections)
    settings = project.pipeline.apply.model_copy(update={"parallelism": 1, "span_rows": 1000})
    project = replace(project, pipeline=project.pipeline.model_copy(update={"apply": settings}))
    bronze = bronze_writer(project)
    bronze.begin_stream("test", 10)
    history = History(seed, [PLAIN, WHOLE], truncates=30)
    return World(project, spark, bronze, history, dice, Watch(project))
