"""Held changes that are released and discarded: any spans, crashes and rebuilds give the oracle's silver and holds."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Project
from cdc_lake.errors import QuarantineRemains
from cdc_lake.model.change import Change, Delete, Insert, OldKind, Transaction, Truncate
from cdc_lake.model.position import parse_position
from cdc_lake.model.quarantine import FIRST_ORDINAL
from cdc_lake.model.relation import Relation, ReplicaIdentity
from cdc_lake.observability import failpoints as at
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.rebuild import rebuild
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.runtime.quarantine import Choice, QuarantineDecision, decide, list_quarantine
from cdc_lake_testing.broken_off import broken_off
from cdc_lake_testing.histories import History
from cdc_lake_testing.messages import boundaries, raw_transaction, table, transaction_at
from cdc_lake_testing.oracle import Oracle, Versions
from tests.pipeline_file import make_project
from tests.seeds import seeds
from tests.silver_rows import silver_rows

from .formats import either

pytestmark = pytest.mark.spark

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
PARTS, A_PART = (2, 12) if BUDGET == 1 else (8, 30)
SPAN = (25, 60) if BUDGET == 1 else (12, 40)
LIMIT = 69
NOW = table("public.now", id="int4", amount="int4", body="text")
EVER = table("public.ever", identity=ReplicaIdentity.FULL, id="int4", amount="int4", body="text")
RULE = {"rule": "between", "column": "amount", "min": 0, "max": LIMIT, "on_fail": "quarantine"}
POINTS = (at.PREPARED, at.QUARANTINE_RECORDED, at.TABLE_MERGED, at.ALL_MERGED, at.CUT_WRITTEN)
CONTROL = (at.FILE_OPEN, at.COMMIT_WRITTEN)


def fails(_: object, row: dict[str, str | None]) -> bool:
    return row["amount"] is not None and int(row["amount"]) > LIMIT


@dataclass
class Lake:
    """A table of rows as they are now and one of all versions, with the same rule, and what they must hold."""

    spark: Any
    root: Path
    seed: int
    project: Project = field(init=False)
    decided: Counter[Any] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        name, (one, other) = f"decided{self.seed}", self.dice.sample(["delta", "iceberg"], 2)
        tables = [
            {"from": "public.now", "rules": [RULE], "format": one},
            {"from": "public.ever", "rules": [RULE], "format": other, "kind": "history"},
        ]
        self.project = make_project(
            self.root,
            name,
            silver={"defaults": {"namespace": name}, "tables": tables},
            snapshot={"mode": "none"},
            apply={"span_rows": self.dice.randint(*SPAN), "parallelism": 2},
        )
        self.bronze = DeltaBronze(self.project.bronze, durability="os")
        self.bronze.begin_stream("test", 10)
        self.versions = {r.table: Versions(Oracle(fails=fails)) for r in (NOW, EVER)}

    def land(self, transactions: Sequence[Transaction]) -> None:
        self.bronze.append([raw_transaction(one) for one in transactions])
        for name, versions in self.versions.items():
            versions.run([_of(one, name) for one in transactions])

    def advance(self) -> None:
        with broken_off(f"{self.dice.choice(POINTS)}:1"):
            self._advance()
        self._advance()

    def _advance(self) -> None:
        with SpanLoop(self.project, self.spark, silent) as advance:
            advance.run(None, threading.Event())
            for error in advance.totals.failed.values():
                raise error

    def decide(self) -> int:
        """Decide on some of the keys that wait; how many decisions were made."""
        made = 0
        for relation in (NOW, EVER):
            keys = sorted(
                {one.key for one in list_quarantine(self.project).changes if one.source == str(relation.table)}
            )
            for key in self.dice.sample(keys, min(2, len(keys))):
                if any(one.key == key and one.decided for one in list_quarantine(self.project).changes):
                    continue  # by a decision on another key that it is connected with
                verb = self.dice.choice(["release", "discard"])
                try:
                    done = self._decide(verb, relation, key)
                except QuarantineRemains:
                    verb, done = "discard", self._decide("discard", relation, key)
                made += 1
                oracle, places = self.versions[relation.table], [places_of(one) for one in done.changes]
                position = parse_position(done.position)
                first = FIRST_ORDINAL + self.decided[relation.table, position]
                self.decided[relation.table, position] += len(places)
                if verb == "discard":
                    oracle.oracle.discard(relation.table, places)
                else:
                    oracle.release(relation.table, (position, first), places)
        return made

    def _decide(self, verb: Any, relation: Any, key: tuple[str | None, ...]) -> QuarantineDecision:
        chosen = (self.project, verb, str(relation.table), Choice(key), "looked at")
        listed = decide(*chosen, yes=False)
        with broken_off(self.dice.choice(CONTROL)):
            decide(*chosen, yes=True)
        again = decide(*chosen, yes=True)
        assert again.changes in {(), listed.changes}, "it is decided whole or not at all"
        return listed

    def check(self, when: str) -> None:
        """Silver and what is held of it are the oracle's."""
        for name, versions in self.versions.items():
            found = silver_rows(self.project, self.project.target(name))
            current = [row for row in found if row.get("is_current") != "f"]
            rows = sorted((row["id"], row["amount"], row["body"]) for row in current)
            expected = versions.oracle.tables.get(name, {}).values()
            assert rows == sorted((r["id"], r["amount"], r["body"]) for r in expected), f"{when}: {name}"
            if name == EVER.table:
                begun = [(row["id"], row["valid_from"], row["valid_to"]) for row in found]
                told = [(dict(v.row)["id"], str(v.begun), v.ended and str(v.ended)) for v in versions.of(name)]
                assert sorted(begun, key=str) == sorted(told, key=str), when
            quarantined = [places_of(one) for one in list_quarantine(self.project).changes if one.source == str(name)]
            assert sorted(quarantined) == sorted(versions.oracle.waiting.get(name, {})), f"{when}: held of {name}"


def places_of(change: Any) -> tuple[int, int]:
    return parse_position(change.position), change.ordinal


def _of(transaction: Transaction, name: Any) -> Transaction:
    """Changes of other tables are empty truncates of a table that nobody asks for, so that ordinals stay."""
    other = table("public.other", id="int4")
    changes = tuple(c if c.relation.table == name else Truncate(other) for c in transaction.changes)  # type: ignore[union-attr]
    return Transaction(transaction.bounds, changes, transaction.lsns)


@pytest.mark.parametrize("seed", seeds(1))
def test_any_spans_crashes_and_rebuilds_carry_out_the_same_decisions(spark: Any, lake_root: Path, seed: int) -> None:
    print(f"CDC_LAKE_SEED={seed}")
    history = History(seed, [NOW, EVER], keys=7, truncates=4)
    lake, made = Lake(spark, lake_root, seed), 0
    for n in range(PARTS):
        lake.land([history.transaction(1000 + 10 * (A_PART * n + one)) for one in range(A_PART)])
        lake.advance()
        lake.check(f"CDC_LAKE_SEED={seed} after part {n}")
        made += lake.decide()
    assert made, f"CDC_LAKE_SEED={seed}: nothing was decided"
    lake.land([Transaction(boundaries(1000 + 10 * A_PART * PARTS), (Insert(NOW, ("99", "1", "b")),), (1,))])
    lake.advance()
    lake.check(f"CDC_LAKE_SEED={seed} at the end")
    for relation in (NOW, EVER):  # in one span
        rebuild(lake.project, str(relation.table), spark=spark)
    lake.check(f"CDC_LAKE_SEED={seed}, rebuilt")


@either("iceberg")
def test_changes_of_a_table_that_keeps_each_are_decided_one_by_one_and_equal_rows_together(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    log = table("public.log", id="int4", amount="int4")
    bag = table("public.bag", key=[], identity=ReplicaIdentity.FULL, id="int4", amount="int4")
    tables = [{"from": "public.log", "rules": [RULE], "kind": "append"}, {"from": "public.bag", "rules": [RULE]}]
    project = make_project(
        lake_root,
        f"decided_others_{fmt}",
        silver={"defaults": {"namespace": f"decided_others_{fmt}", "format": fmt}, "tables": tables},
        snapshot={"mode": "none"},
    )
    bronze = DeltaBronze(project.bronze, durability="os")
    bronze.begin_stream("test", 10)

    def land(position: int, *changes: Change) -> None:
        bronze.append([raw_transaction(transaction_at(position, changes))])
        with SpanLoop(project, spark, silent) as advance:
            advance.run(None, threading.Event())
            for error in advance.totals.failed.values():
                raise error

    def rows(relation: Relation) -> list[tuple[str | None, str | None]]:
        return sorted((row["id"], row["amount"]) for row in silver_rows(project, project.target(relation.table)))

    bad = str(LIMIT + 1)
    land(100, *(Insert(log, (id_, bad)) for id_ in "123"), Insert(bag, ("1", bad)), Insert(bag, ("1", "1")))
    land(110, Delete(bag, ("1", bad), OldKind.FULL), Insert(bag, ("1", bad)), Insert(log, ("4", "4")))
    assert (rows(log), rows(bag)) == ([("4", "4")], [("1", "1")])
    first = list_quarantine(project).changes
    assert [(one.source, one.key) for one in first] == [("public.bag", ("1", bad))] * 3 + [("public.log", ())] * 3
    with pytest.raises(QuarantineRemains, match="no key"):
        decide(project, "discard", "bag", Choice(("1", bad)), "why", yes=True)
    assert len(decide(project, "release", "bag", Choice(("1", bad)), "fine", yes=True).changes) == 3
    assert len(decide(project, "release", "log", Choice(), "fine", yes=True).changes) == 3
    land(120, Insert(log, ("5", bad)), Insert(bag, ("2", "2")))
    assert rows(log) == [("1", bad), ("2", bad), ("3", bad), ("4", "4")]
    assert rows(bag) == [("1", "1"), ("1", bad), ("2", "2")]
    assert len(decide(project, "discard", "log", Choice(), "a test", yes=True).changes) == 1
    land(130, Insert(log, ("6", "6")))
    for again in (False, True):
        if again:
            rebuild(project, "public.log", spark=spark)
            rebuild(project, "public.bag", spark=spark)
        assert [id_ for id_, _ in rows(log)] == ["1", "2", "3", "4", "6"]
        assert rows(bag) == [("1", "1"), ("1", bad), ("2", "2")]
        assert list_quarantine(project).changes == ()
