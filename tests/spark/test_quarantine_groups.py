"""A group of tables that holds whole transactions, through Delta and Iceberg: any spans, deaths between the merges of two
tables, decisions and rebuilds give the oracle's silver and holds.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Project
from cdc_lake.control.cuts import ACTIVE, FAILED, last_cut
from cdc_lake.control.table_pauses import pause, resume
from cdc_lake.errors import BaseRowMissing, GroupDisagrees, GroupWaits, NoKey, QuarantineRemains, TruncateQuarantined
from cdc_lake.model.change import UNCHANGED, Change, Insert, Transaction, Truncate, Update
from cdc_lake.model.position import parse_position
from cdc_lake.model.quarantine import FIRST_ORDINAL, Verb
from cdc_lake.model.relation import Relation, ReplicaIdentity, TableName
from cdc_lake.observability import failpoints as at
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.rebuild import rebuild
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.runtime.quarantine import Choice, QuarantinedChange, decide, list_quarantine
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake_testing.broken_off import broken_off
from cdc_lake_testing.faults import assert_cuts_are_true, assert_nothing_is_held_twice
from cdc_lake_testing.histories import History
from cdc_lake_testing.messages import raw_transaction, table, transaction_at
from cdc_lake_testing.oracle import Oracle, Versions
from tests.pipeline_file import make_project
from tests.seeds import seeds
from tests.silver_rows import silver_rows

from .formats import BESIDE

pytestmark = pytest.mark.spark

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
PARTS, A_PART = (2, 8) if BUDGET == 1 else (8, 20)
LIMIT = 79
ORDERS, LINES, ALONE = (
    table(f"public.{n}", id="int4", amount="int4", body="text") for n in ("orders", "lines", "alone")
)
RULE = {"rule": "between", "column": "amount", "min": 0, "max": LIMIT, "on_fail": "quarantine"}
GROUP = {"name": "shop", "tables": ["public.orders", "public.lines"], "hold": "transaction"}
POINTS = (
    at.PREPARED,
    at.QUARANTINE_RECORDED,
    f"{at.TABLE_MERGED}:1",
    f"{at.TABLE_MERGED}:2",
    at.ALL_MERGED,
    at.CUT_WRITTEN,
)


def fails(_: object, row: dict[str, str | None]) -> bool:
    return row["amount"] is not None and int(row["amount"]) > LIMIT


def project_of(
    root: Path, name: str, *, rule: Any = RULE, groups: Any = (GROUP,), lines: Any = None, **more: Any
) -> Project:
    tables = [
        {"from": "public.orders", "rules": [rule], "kind": "history", "format": "iceberg"},
        {"from": "public.lines", "rules": [rule], **(lines or {})},
        {"from": "public.alone", "rules": [RULE], "format": BESIDE},
    ]
    silver = {"defaults": {"namespace": name}, "tables": tables, "groups": list(groups)}
    return make_project(root, name, silver=silver, snapshot={"mode": "none"}, **more)


def advance(project: Project, spark: Any) -> None:
    with SpanLoop(project, spark, silent) as walk:
        walk.run(None, threading.Event())
        for error in sorted(walk.totals.failed.values(), key=lambda error: isinstance(error, GroupWaits)):
            raise error


@dataclass
class Lake:
    """Two tables of a group and one that stands alone, and what they must hold."""

    spark: Any
    root: Path
    seed: int
    project: Project = field(init=False)
    decided: Counter[Any] = field(default_factory=Counter)
    position: int = 100

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        spans = {"span_rows": self.dice.randint(20, 60), "parallelism": 1}
        self.project = project_of(self.root, f"grouped{self.seed}", apply=spans)
        self.bronze = DeltaBronze(self.project.bronze, durability="os")
        self.bronze.begin_stream("test", 10)
        self.history = History(self.seed, [ORDERS, LINES, ALONE], keys=14)
        self.versions = Versions(Oracle(fails=fails, grouped=frozenset({ORDERS.table, LINES.table})))
        self._land([self.history.inserts(self.position)])

    def land(self, count: int) -> None:
        made = [self.history.transaction(self.position + 10 * n) for n in range(1, count + 1)]
        self.position += 10 * count
        self._land(made)

    def _land(self, made: list[Transaction]) -> None:
        self.bronze.append([raw_transaction(one) for one in made])
        self.versions.run(made)

    def advance(self, point: str) -> None:
        """A run dies at a point; more arrives before the next one in half of the cases."""
        with broken_off(point if ":" in point else f"{point}:1"):
            advance(self.project, self.spark)
        if self.dice.random() < 0.5:
            self.land(2)
        advance(self.project, self.spark)

    def decide(self) -> None:
        """Decide on some of what waits together."""
        waiting = [one for one in list_quarantine(self.project).changes if one.source != str(ALONE.table)]
        made: dict[TableName, dict[tuple[int, int], int]] = {}
        for one in self.dice.sample(waiting, min(2, len(waiting))):
            if any(
                (c.source, c.key) == (one.source, one.key) and c.decided for c in list_quarantine(self.project).changes
            ):
                continue  # by a decision on another key that it is connected with
            verb: Verb = self.dice.choice(["release", "discard"])
            try:
                done = decide(self.project, verb, one.source, Choice(one.key), "looked at", yes=True)
            except QuarantineRemains:
                verb = "discard"
                done = decide(self.project, verb, one.source, Choice(one.key), "looked at", yes=True)
            position = parse_position(done.position)
            for relation in (ORDERS, LINES):
                places = [places_of(c) for c in done.changes if c.source == str(relation.table)]
                first = FIRST_ORDINAL + self.decided[relation.table, position]
                self.decided[relation.table, position] += len(places)
                if places and verb == "discard":
                    self.versions.oracle.discard(relation.table, places)
                elif places:
                    made.setdefault(relation.table, {}).update(zip(places, itertools.count(first)))
        if made:
            self.versions.release_together(position, made)

    def check(self, when: str) -> None:
        """Silver and what is held of it are the oracle's."""
        when = f"CDC_LAKE_SEED={self.seed}, {when}"
        for relation in (ORDERS, LINES, ALONE):
            name, oracle = relation.table, self.versions.oracle
            found = silver_rows(self.project, self.project.target(name))
            rows = sorted((r["id"], r["amount"], r["body"]) for r in found if r.get("is_current") != "f")
            expected = sorted((r["id"], r["amount"], r["body"]) for r in oracle.tables.get(name, {}).values())
            assert rows == expected, f"{when}: {name}"
            if relation is ORDERS:
                begun = [(row["id"], row["valid_from"], row["valid_to"]) for row in found]
                told = [(dict(v.row)["id"], str(v.begun), v.ended and str(v.ended)) for v in self.versions.of(name)]
                assert sorted(begun, key=str) == sorted(told, key=str), when
            quarantined = [places_of(one) for one in list_quarantine(self.project).changes if one.source == str(name)]
            assert sorted(quarantined) == sorted(oracle.waiting.get(name, {})), f"{when}: held of {name}"
        assert_nothing_is_held_twice(self.project)
        assert_cuts_are_true(self.project)


def places_of(change: QuarantinedChange) -> tuple[int, int]:
    return parse_position(change.position), change.ordinal


@pytest.mark.parametrize("seed", seeds(-(-BUDGET // 2)))
def test_any_spans_deaths_and_rebuilds_hold_the_same_transactions(spark: Any, lake_root: Path, seed: int) -> None:
    print(f"CDC_LAKE_SEED={seed}")
    lake = Lake(spark, lake_root, seed)
    for part in range(PARTS):
        lake.land(A_PART)
        lake.advance(lake.dice.choice(POINTS))
        lake.check(f"part {part}")
        lake.decide()
    lake.land(1)
    advance(lake.project, spark)
    lake.check("at the end")
    for relation in (ORDERS, LINES):
        rebuild(lake.project, str(relation.table), spark=spark)
    lake.check("built again")
    lake.land(2)
    advance(lake.project, spark)
    lake.check("behind the rebuilds")


def test_a_group_goes_on_as_one_or_says_why_it_does_not(spark: Any, lake_root: Path) -> None:
    made = partial(project_of, lake_root, "groupcases", apply={"parallelism": 1})
    project = made()
    bronze = DeltaBronze(project.bronze, durability="os")
    bronze.begin_stream("test", 10)

    def land(position: int, *changes: Change) -> None:
        one = transaction_at(position, changes)
        bronze.append([raw_transaction(one)])

    def row(relation: Relation, id_: int, amount: int = 5) -> Insert:
        return Insert(relation, (str(id_), str(amount), "x"))

    def keys(relation: Relation) -> list[str]:
        rows = silver_rows(project, project.target(relation.table))
        return sorted(str(one["id"]) for one in rows if one.get("is_current") != "f")

    def quarantined() -> list[tuple[str, str | None, tuple[str, ...]]]:
        return [(one.source, one.key[0], one.rules) for one in list_quarantine(project).changes]

    land(100, row(ORDERS, 1), row(LINES, 1))
    land(110, row(ORDERS, 2), row(LINES, 2, LIMIT + 1), row(ALONE, 2))
    advance(project, spark)
    assert (keys(ORDERS), keys(LINES), keys(ALONE)) == (["1"], ["1"], ["2"])
    assert quarantined() == [("public.lines", "2", ("between_amount",)), ("public.orders", "2", ())]
    assert {one.group for one in list_quarantine(project).changes} == {"shop"}

    land(120, Truncate(ORDERS), row(LINES, 3, LIMIT + 1), row(ALONE, 3))
    for _ in range(2):
        with pytest.raises(TruncateQuarantined, match=r"truncates public\.orders"):
            advance(project, spark)
        assert (keys(ORDERS), keys(LINES), keys(ALONE)) == (["1"], ["1"], ["2", "3"])
    cut = last_cut(ControlTables(project.control), "test")
    assert cut is not None
    assert {relation.partition(".")[2]: one.state for relation, one in cut.tables.items()} == {
        "orders": FAILED, "lines": FAILED, "alone": ACTIVE
    }  # fmt: skip
    advance(made(rule=RULE | {"on_fail": "warn"}), spark)
    assert (keys(ORDERS), keys(LINES)) == ([], ["1", "3"])
    assert quarantined() == [("public.lines", "2", ("between_amount",))], "the TRUNCATE ended the other part"

    pause(project, "lines")
    land(130, row(ORDERS, 4), row(LINES, 4))
    advance(project, spark)
    assert (keys(ORDERS), keys(LINES)) == ([], ["1", "3"])
    resume(project, "orders")
    advance(project, spark)
    assert (keys(ORDERS), keys(LINES)) == (["4"], ["1", "3", "4"])

    with pytest.raises(GroupDisagrees, match=r"public\.lines has already applied it"):
        rebuild(made(rule=RULE | {"max": 3}), "public.orders", spark=spark)

    land(140, Update(LINES, ("9", "5", UNCHANGED), None), row(ORDERS, 5))
    for id_ in (6, 7):
        with pytest.raises(BaseRowMissing):
            advance(project, spark)
        land(140 + id_, row(ORDERS, id_))
    assert keys(ORDERS) == ["4", "5"], "it was merged before the other failed, and waits"
    with pytest.raises(GroupWaits, match=r"groupcases\.lines"):
        rebuild(project, "public.orders", spark=spark)
    holds = {"missing_row": "hold"}
    with pytest.raises(GroupDisagrees, match=r"public\.orders has already applied it"):
        advance(made(lines=holds), spark)
    advance(made(lines=holds, groups=()), spark)
    assert keys(ORDERS) == ["4", "5", "6", "7"]
    assert ("public.lines", "9", ("missing_row",)) in quarantined()

    bag = table("public.bag", key=[], identity=ReplicaIdentity.FULL, id="int4")
    land(160, Insert(bag, ("1",)), row(ORDERS, 8))
    with pytest.raises(NoKey, match=r"public\.bag"):
        advance(made(groups=[GROUP | {"tables": ["public.orders", "public.bag"]}]), spark)
    assert keys(ORDERS) == ["4", "5", "6", "7"]
