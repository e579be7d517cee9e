"""Bronze to silver through Spark: any spans, any restart, any crash and any replay give the oracle's silver.

A lake has a table of each kind (`tests.random_tables`), with a small budget of four kinds by the seed, each with several
histories. The same transactions go into two
lakes, in other parts and spans; what is a Delta table in one is an Iceberg table in the other.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow.compute as pc
import pytest

import cdc_lake
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.comparison.repair import land_refetched
from cdc_lake.config.project import Project
from cdc_lake.model.change import Transaction
from cdc_lake.observability import failpoints as at
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.applier import apply
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.silver.kind import IS_CURRENT, VALID_FROM, VALID_TO
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.types import silver_names
from cdc_lake_testing.broken_off import broken_off
from cdc_lake_testing.expected import LINEAGE, CurrentRows, Expected, HistoryRows
from cdc_lake_testing.faults import assert_cuts_are_true, assert_nothing_is_held_twice
from cdc_lake_testing.messages import raw_transaction
from cdc_lake_testing.oracle import AGAIN
from tests.pipeline_file import make_project
from tests.random_tables import RandomTable, Reread, Traffic, random_tables
from tests.seeds import seeds
from tests.silver_rows import Texts, as_texts, silver_rows

pytestmark = pytest.mark.spark

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
HISTORIES = 6 if BUDGET == 1 else 15
"""In each table, each through both formats."""
TABLES = 4 if BUDGET == 1 else 7
ROUNDS = -(-BUDGET // 2)
TRANSACTIONS = 30 * HISTORIES
PARTS = 2
"""Of the first lake; the second one has one less."""
POINTS = (at.PREPARED, at.QUARANTINE_RECORDED, at.BRANCH_WRITTEN, at.TABLE_MERGED, at.ALL_MERGED, at.CUT_WRITTEN)


Row: TypeAlias = tuple[tuple[str, str], ...]


@dataclass
class Lake:
    """One of the two lakes, what it must hold, and what it held after each part."""

    spark: Any
    root: Path
    seed: int
    nth: int
    tables: list[RandomTable]
    rereads: dict[int, list[Reread]]
    waiting: list[Reread] = field(default_factory=list)
    project: Project = field(init=False)
    expected: dict[str, Expected] = field(init=False)
    states: dict[int, dict[str, list[Texts]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dice = random.Random(f"{self.seed} {self.nth}")
        name = f"any{self.seed}_{self.nth}"
        formats = ("delta", "iceberg")
        sections = [{**one.section, "format": formats[(n + self.nth) % 2]} for n, one in enumerate(self.tables)]
        self.project = make_project(
            self.root,
            name,
            silver={"defaults": {"namespace": name}, "tables": sections},
            snapshot={"mode": "none"},
            apply={"span_rows": HISTORIES * self.dice.randint(120, 500), "parallelism": 2},
        )
        self.control = ControlTables(self.project.control)
        self.expected = {str(one.relation.table): one.expected() for one in self.tables}
        self.bronze = DeltaBronze(self.project.bronze, durability="os")
        self.bronze.begin_stream("test", 10)

    def run(self, transactions: Sequence[Transaction]) -> None:
        """Land and apply all transactions in parts, with a crash in one of them; silver must be right after each."""
        parts = PARTS - self.nth
        ends = sorted(self.dice.sample(range(1, len(transactions)), parts - 1))
        crash = self.dice.randrange(parts) if self.nth == self.seed % 2 or BUDGET > 1 else None
        for part, (after, upto) in enumerate(pairwise([0, *ends, len(transactions)])):
            some = transactions[after:upto]
            self.land(some)
            if part == crash:
                point = self.dice.choice(POINTS)
                passage = self.dice.randint(1, 6) if point in {at.TABLE_MERGED, at.BRANCH_WRITTEN} else 1
                with broken_off(f"{point}:{passage}"):
                    self.advance()
            if part and self.dice.random() < 0.5:
                self.lose_cuts(some)
            # In between the tables go on without the clock: its checkpoint is then an older one.
            (self.advance if (part + self.nth) % 2 else self.clock)()
            self.check(some[-1].bounds.position)
        self.lose_cuts(transactions)
        if self.dice.random() < 0.3:  # the checkpoint is a hint: it may be gone
            shutil.rmtree(self.project.checkpoint, ignore_errors=True)
        (self.advance if self.nth else self.clock)()
        self.check(transactions[-1].bounds.position)
        self.check_cuts()

    def lose_cuts(self, transactions: Sequence[Transaction]) -> None:
        """The cuts lag behind the tables: a crash before their rows were written."""
        self.control.delete("cuts", pc.field("position") > self.dice.choice(transactions).bounds.position)

    def land(self, transactions: Sequence[Transaction]) -> None:
        """Transactions arrive, in batches."""
        for one in transactions:
            for again in self.waiting:
                expected = self.expected[str(again.relation.table)]
                assert isinstance(expected, CurrentRows | HistoryRows)
                expected.reread(again.relation, again.position, again.rows)
            for expected in self.expected.values():
                expected.run(one)
            self.waiting = self.rereads[one.bounds.position]
        half = self.dice.randint(0, len(transactions) - 1)
        for batch in (transactions[:half], transactions[half:]):
            if batch:
                self.bronze.append([raw_transaction(one) for one in batch])
        for one in transactions:
            for again in self.rereads[one.bounds.position]:
                self.land_again(again)

    def land_again(self, again: Reread) -> None:
        """What was read again lands beside the transactions, each time by another writer than theirs."""
        state = self.bronze.state()
        assert state is not None
        names = again.relation.names
        rows = {key: row and [row[name] for name in names] for key, row in again.rows.items()}
        assert land_refetched(self.project, self.control, state, again.relation, again.names, rows, again.position)

    def advance(self) -> None:
        with SpanLoop(self.project, self.spark, silent) as advance:
            advance.run(None, threading.Event())
            for error in advance.totals.failed.values():
                raise error

    def clock(self) -> None:
        apply(self.project, once=True, stop=threading.Event(), report=silent, spark=self.spark)

    def check(self, position: int) -> None:
        """Every table and what is held of it are what the oracle says."""
        quarantined = self.quarantined()
        for table in self.tables:
            name = str(table.relation.table)
            expected, found = self.expected[name], self.rows(table)
            rows = compared(named(expected.rows, table), table)
            difference = differing(compared(found, table), rows)
            assert not difference, f"CDC_LAKE_SEED={self.seed}, lake {self.nth} at {position}, {table}: {difference}"
            places = [(row["position"], max(row["ordinal"], AGAIN)) for row in quarantined if row["relation"] == name]
            difference = differing(places, sorted(expected.quarantined))
            assert not difference, f"CDC_LAKE_SEED={self.seed}, held of lake {self.nth}, {table}: {difference}"
            self.states.setdefault(position, {})[name] = found

    def check_cuts(self) -> None:
        """The cuts are true, and readers at one see what silver was."""
        assert_cuts_are_true(self.project)
        assert_nothing_is_held_twice(self.project)
        places = set(self.control.cut_places()["position"].to_pylist())
        for position in self.states.keys() & places:  # the others were deleted above
            session = cdc_lake.Pipeline(self.project).cut(as_of=position)
            for name, rows in self.states[position].items():
                if rows:
                    difference = differing(ordered(as_texts(session.read(name))), ordered(at_cut(rows)))
                    assert not difference, f"CDC_LAKE_SEED={self.seed}, {name} in the cut at {position}: {difference}"

    def rows(self, table: RandomTable) -> list[Texts]:
        return silver_rows(self.project, self.project.target(table.relation.table))

    def quarantined(self) -> list[dict[str, Any]]:
        """The changes that are held, in order, without when that was."""
        rows = self.control.read("quarantine").to_pylist()
        kept = [{k: v for k, v in r.items() if k not in {"table", "span_upto", "recorded_at"}} for r in rows]
        return sorted(
            (row for row in kept if row["reason"] != "closed"),
            key=lambda row: (row["relation"], row["position"], row["ordinal"]),
        )


def named(rows: Sequence[Texts], table: RandomTable) -> list[Texts]:
    """The oracle's rows by silver's column names."""
    names = dict(zip(table.relation.names, silver_names(table.relation), strict=True))
    return [{names.get(c, c): v for c, v in row.items()} for row in rows]


def compared(rows: Sequence[Texts], table: RandomTable) -> list[Row]:
    """Rows of the columns that the oracle knows, in order; of a row that is gone it does not know what ended it."""
    lineage = LINEAGE if table.section.get("lineage") else ()
    own = {"_is_deleted", "valid_from", "valid_to", "is_current", "_copy", "_op", "_position", "_ordinal", "_unchanged"}
    keep = {*silver_names(table.relation), *lineage, *own, *(LINEAGE if table.way == "append" else ())}
    kept = [{c: v for c, v in row.items() if c in keep or c.startswith("_old_")} for row in rows]
    return ordered([{**row, **dict.fromkeys(lineage)} if row.get("_is_deleted") == "t" else row for row in kept])


def at_cut(rows: Sequence[Texts]) -> list[Texts]:
    """What a reader at a cut has of silver's rows then: of a history the versions that held, as rows."""
    names = {column.name for column in (*VALID_FROM, *VALID_TO, IS_CURRENT)}
    return [{c: v for c, v in row.items() if c not in names} for row in rows if row.get(IS_CURRENT.name) != "f"]


def differing(found: Sequence[Any], expected: Sequence[Any]) -> dict[str, list[Any]]:
    """What is there and is not expected, and what is expected and is not there."""
    more, less = Counter(found) - Counter(expected), Counter(expected) - Counter(found)
    return {word: [*rows.elements()] for word, rows in (("unexpected", more), ("missing", less)) if rows}


def ordered(rows: Sequence[Texts]) -> list[Row]:
    """Rows in order, without what is NULL, as a column is that a table did not have yet."""
    return sorted(tuple(sorted((c, v) for c, v in row.items() if v is not None)) for row in rows)


def traffic(seed: int) -> tuple[list[RandomTable], list[Transaction], dict[int, list[Reread]]]:
    """The tables as they are at the end, the transactions, and what is read again behind each; one table may get a
    column on the way.
    """
    moving = Traffic(seed, random.Random(seed).sample(random_tables(seed, HISTORIES), TABLES))
    before = moving.transactions(TRANSACTIONS // 2)
    if moving.dice.random() < 0.5:  # it divides a span of each lake
        evolving = moving.dice.choice([n for n, one in enumerate(moving.tables) if one.way != "copies"])
        moving.tables[evolving] = moving.tables[evolving].evolved()
    return moving.tables, before + moving.transactions(TRANSACTIONS // 2), moving.rereads


@pytest.mark.parametrize("seed", seeds(ROUNDS))
def test_any_spans_crashes_and_replays_give_the_oracles_silver(spark: Any, lake_root: Path, seed: int) -> None:
    tables, transactions, rereads = traffic(seed)
    print(f"CDC_LAKE_SEED={seed}: {len(tables) * HISTORIES} histories through Delta and as many through Iceberg")
    lakes = [Lake(spark, lake_root, seed, nth, tables, rereads) for nth in range(2)]
    for one in lakes:
        one.run(transactions)
    last = transactions[-1].bounds.position
    for name, rows in lakes[0].states[last].items():
        difference = differing(ordered(rows), ordered(lakes[1].states[last][name]))
        assert not difference, f"CDC_LAKE_SEED={seed}, {name} of both lakes: {difference}"
    quarantined = [[{**row, "ordinal": max(row["ordinal"], AGAIN)} for row in lake.quarantined()] for lake in lakes]
    assert quarantined[0] == quarantined[1], f"CDC_LAKE_SEED={seed}, held of both lakes"
