"""Any cut of the stream into spans gives the oracle's state: hundreds of histories, or thousands, through the pure net change.

The histories of a case share one table, each with a first key column of its own, so that all of them go through a
handful of Spark jobs. The target is a dictionary, and the merge is the few lines that MERGE means.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.span_index import outline, span_files
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Target
from cdc_lake.config.rules import Between
from cdc_lake.model.change import Delete, Insert, Transaction, Truncate, Update
from cdc_lake.model.position import Span
from cdc_lake.model.relation import Column, Relation, ReplicaIdentity, TableName
from cdc_lake.runtime.apply.table_schema import shape_of
from cdc_lake.runtime.apply.table_span import FoldedSpan, evaluate_rules, fold, type_changes
from cdc_lake.silver.changes import OP, read_changes
from cdc_lake.silver.kinds import kind_of
from cdc_lake.silver.net_change import unknown
from cdc_lake.silver.row_tracing import QuarantineState
from cdc_lake_testing.copies import CopiesHistory, CopiesOracle
from cdc_lake_testing.histories import History, interleave
from cdc_lake_testing.messages import TYPE_OIDS, raw_transaction, table
from cdc_lake_testing.oracle import Oracle
from tests.seeds import one_seed
from tests.tally import tally

pytestmark = pytest.mark.spark

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
SEEDS = 100 if BUDGET == 1 else 300 * BUDGET
T = TableName("public", "many")
NAMES = ("seed", "id", "amount", "body")
RULE = Between(rule="between", column="amount", min=0, max=89, on_fail="quarantine")


def fails(_: TableName, row: dict[str, str | None]) -> bool:
    return row["amount"] is not None and int(row["amount"]) > 89


def relation(identity: ReplicaIdentity, key: Sequence[str] = ("seed", "id")) -> Relation:
    columns = dict.fromkeys(NAMES[:3], "int4") | {"body": "text"}
    return table("public.many", key=key, identity=identity, **columns)


def by_index() -> Relation:
    """The primary key is `id`, and the server logs the columns of an index instead."""
    columns = [Column(n, "int4", TYPE_OIDS["int4"], -1, n in {"seed", "amount"}) for n in NAMES[:3]]
    return Relation(T, (*columns, Column("body", "text", TYPE_OIDS["text"])), ReplicaIdentity.INDEX, ("id",))


@dataclass(frozen=True)
class Case:
    """Histories of one kind: how rows are identified, what is held."""

    name: str
    relation: Relation
    keys: tuple[str, ...] = ("seed", "id")
    given: bool = False
    rules: bool = False
    missing: bool = False
    truncates: int = 0
    nullable: frozenset[str] = field(default_factory=frozenset)

    def __str__(self) -> str:
        return self.name

    @property
    def target(self) -> Target:
        keys = self.keys if self.given else None
        rules = (RULE,) if self.rules else ()
        return Target(T, "silver", "many", "delta", keys, rules, missing_row="hold" if self.missing else "stop")


CASES = [
    Case("key", relation(ReplicaIdentity.DEFAULT), truncates=1),
    Case("rules", relation(ReplicaIdentity.DEFAULT), rules=True),
    Case("whole old rows", relation(ReplicaIdentity.FULL), rules=True, truncates=1),
    Case("an index beside the primary key", by_index(), keys=("seed", "amount")),
    Case("missing rows", relation(ReplicaIdentity.DEFAULT), missing=True),
    Case("NULL in keys", relation(ReplicaIdentity.FULL, []), given=True, nullable=frozenset({"id"}), rules=True),
]  # fmt: skip


class Silver:
    """What MERGE means, on a dictionary of texts."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys
        self.rows: dict[tuple[str | None, ...], dict[str, str | None]] = {}

    def frame(self, spark: Any) -> Any:
        return frame(spark, list(self.rows.values()))

    def merge(self, net: list[dict[str, Any]], unsent: frozenset[int], *, truncated: bool) -> None:
        keys = [tuple(text(row[name]) for name in self.keys) for row in net]
        assert len(set(keys)) == len(keys), "one row a key"
        if truncated:
            self.rows = {key: row for key, row in self.rows.items() if key in set(keys)}
        for key, row in zip(keys, net, strict=True):
            if row[OP] == "D":
                self.rows.pop(key, None)
                continue
            old = self.rows.get(key)
            new: dict[str, str | None] = {}
            for at, name in enumerate(NAMES):
                if at in unsent and row[unknown(at)]:
                    assert old is not None, "an unknown value needs a row that has it"
                    new[name] = old[name]
                else:
                    new[name] = text(row[name])
            self.rows[key] = new


def text(value: Any) -> str | None:
    return None if value is None else str(value)


def frame(spark: Any, rows: Sequence[dict[str, Any]], *extra: str) -> Any:
    names = (*NAMES, *extra)
    data = pa.table({n: [row[n] for row in rows] for n in names}, schema=pa.schema([(n, pa.string()) for n in names]))
    typed = [f"cast({n} as {'bigint' if n in extra else 'int'}) {n}" for n in (*NAMES[:3], *extra)]
    return spark.createDataFrame(data).selectExpr(*typed, "body")


def landed(root: Path, transactions: Sequence[Transaction]) -> BronzeReader:
    bronze = DeltaBronze(root / "bronze", durability="os")
    bronze.begin_stream("test", 10)
    bronze.append([raw_transaction(t) for t in transactions])
    return BronzeReader(root / "bronze")


def spans(seed: int, transactions: Sequence[Transaction], count: int = 2) -> list[Span]:
    positions = [t.bounds.position for t in transactions]
    ends = [10, *sorted(random.Random(seed).sample(positions[:-1], count)), positions[-1]]
    return [Span(1, after, upto) for after, upto in itertools.pairwise(ends)]


def folded(
    spark: Any, reader: BronzeReader, target: Target, layout: Relation, span: Span, silver: Any, quarantined: set[Any]
) -> FoldedSpan:
    files = reader.files()
    seen = outline(files, T, span, snapshot=False)
    kind = kind_of(target, layout)
    shape = shape_of(seen.layouts or (layout.layout,), reader.layouts([T]), target, kind)
    rows = read_changes(spark, span_files(files, T, span, snapshot=False), T, span, snapshot=False)
    changes = type_changes(
        rows,
        silver.frame(spark),
        target,
        kind,
        shape,
        seen,
        span,
        QuarantineState({(0, 0): frozenset(quarantined)} if quarantined else {}),
    )
    return fold(evaluate_rules(changes))


def record(done: FoldedSpan, places: list[tuple[int, int]], keys: set[Any], rules: Counter[str]) -> None:
    """What the control table `held` would say."""
    if done.closings:
        keys.clear()
    last = max(((c.position, c.ordinal) for c in done.closings), default=(0, 0))
    for row in [] if done.quarantined is None else done.quarantined.to_pylist():
        places.append((row["position"], row["ordinal"]))
        rules.update(row["rules"])
        if places[-1] > last:
            keys |= {tuple(key) for key in (row["key"], row["from_key"]) if key is not None}


def run_oracles(case: Case, transactions: Sequence[Transaction]) -> Collection[Oracle]:
    """An oracle a history, since each transaction costs one as much as it has rows; a truncate empties all of them."""
    made: dict[object, Oracle] = {}
    for one in transactions:
        for change in one.changes:
            if isinstance(change, Insert | Update | Delete):
                told = change.old if isinstance(change, Delete) else change.new
                assert told is not None
                given: dict[str, Any] = {"fails": fails if case.rules else None, "missing": case.missing}
                mine = made.setdefault(told[0], Oracle({T: case.keys}, **given))
                mine.run([one])
                break
        if any(isinstance(change, Truncate) for change in one.changes):
            at = max(n for n, change in enumerate(one.changes) if isinstance(change, Truncate))
            behind = [change for change in one.changes[at:] if not isinstance(change, Truncate)]
            for other in made.values():
                if not behind or other is not mine:
                    other.tables[T], other.quarantined_keys[T] = {}, set()
    return made.values()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_cut_gives_the_oracles_state_and_the_same_holds(spark: Any, tmp_path: Path, case: Case) -> None:
    seed = one_seed()
    print(f"CDC_LAKE_SEED={seed}, {SEEDS} histories, {case}")
    given: dict[str, Any] = {"identified": {T: case.keys}, "nullable": case.nullable, "truncates": case.truncates}
    histories = [History(seed + n, [case.relation], fixed={"seed": str(n)}, **given) for n in range(SEEDS)]
    transactions = interleave(seed, histories, SEEDS * 6)
    if case.missing:  # the stream began without a copy of the rows that were there
        transactions = transactions[SEEDS:]
    oracles = run_oracles(case, transactions)
    reader, silver = landed(tmp_path, transactions), Silver(case.keys)
    quarantined, quarantined_keys, rules = [], set[Any](), Counter[str]()
    for span in spans(seed, transactions):
        done = folded(spark, reader, case.target, case.relation, span, silver, quarantined_keys)
        silver.merge(done.net.toArrow().to_pylist(), done.part.unsent, truncated=bool(done.part.truncated))
        record(done, quarantined, quarantined_keys, rules)
    assert silver.rows == {key: row for oracle in oracles for key, row in oracle.tables.get(T, {}).items()}
    assert sorted(quarantined) == sorted(place for oracle in oracles for place in oracle.quarantined)
    assert quarantined_keys == {key for oracle in oracles for key in oracle.quarantined_keys.get(T, set())}
    assert set(rules) == {*["between_amount"] * case.rules, *["missing_row"] * case.missing}
    tally("R4", **{"histories in Spark": SEEDS})


class Copies:
    """What the MERGE of a table without a key means."""

    def __init__(self) -> None:
        self.rows: set[tuple[str | None, ...]] = set()

    def frame(self, spark: Any) -> Any:
        return frame(spark, [dict(zip((*NAMES, "_copy"), row, strict=True)) for row in self.rows], "_copy")

    def merge(self, net: list[dict[str, Any]], *, truncated: bool) -> None:
        rows = {tuple(text(row[name]) for name in (*NAMES, "_copy")): row[OP] for row in net}
        assert len(rows) == len(net), "one row a copy"
        if truncated:
            self.rows &= rows.keys()
        for row, op in rows.items():
            if op == "D":
                self.rows.remove(row)
            else:
                self.rows.add(row)

    def counted(self) -> Counter[tuple[str | None, ...]]:
        return Counter(row[:-1] for row in self.rows)


@pytest.mark.parametrize("rules", [False, True])
def test_a_table_without_a_key_has_each_row_as_often_as_the_oracle(spark: Any, tmp_path: Path, rules: bool) -> None:
    seed = one_seed()
    print(f"CDC_LAKE_SEED={seed}, {SEEDS} histories, rules {rules}")
    layout = relation(ReplicaIdentity.FULL, [])
    histories = [CopiesHistory(seed + n, layout, first=str(n), truncates=1) for n in range(SEEDS)]
    transactions, turn = [], random.Random(seed)
    for n in range(SEEDS * 6):
        transactions.append(turn.choice(histories).transaction(1000 + 10 * n))
        if any(isinstance(change, Truncate) for change in transactions[-1].changes):
            for other in histories:
                other.emptied()
    rule = Between(rule="between", column="amount", min=0, max=2, on_fail="quarantine")
    target = Target(T, "silver", "many", "delta", None, (rule,) if rules else ())
    oracle = CopiesOracle(fails=(lambda row: row[2] == "3") if rules else None)
    oracle.run(transactions)
    reader, silver = landed(tmp_path, transactions), Copies()
    quarantined, waiting = [], set[Any]()
    for span in spans(seed, transactions):
        done = folded(spark, reader, target, layout, span, silver, waiting)
        silver.merge(done.net.toArrow().to_pylist(), truncated=bool(done.part.truncated))
        record(done, quarantined, waiting, Counter())
        numbers = Counter(row[:-1] for row in silver.rows)
        assert {(*row, str(n)) for row, count in numbers.items() for n in range(1, count + 1)} == silver.rows
    assert silver.counted() == oracle.rows
    assert sorted(quarantined) == sorted(oracle.quarantined)
    assert waiting == oracle.waiting
    tally("R4", **{"histories in Spark": SEEDS})
