"""Any cut of the stream into spans gives the oracle's state: hundreds of histories through the pure net change.

The histories share one table, each with a first key column of its own, so that all of them go through a handful of
Spark jobs. The target is a dictionary, and the merge is the few lines that MERGE means.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lake.bronze.outline import outline, span_files
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.model import Between
from cdc_lake.config.project import Target
from cdc_lake.model.relation import Relation, ReplicaIdentity, TableName
from cdc_lake.model.span import Span
from cdc_lake.pipeline.table_span import fold
from cdc_lake.silver.changes import OP, read_changes
from cdc_lake.silver.kinds import kind_of
from cdc_lake.silver.net_change import unknown
from cdc_lake.silver.shape import make_shape
from cdc_lake.testing.histories import History, interleave
from cdc_lake.testing.messages import raw_transaction, table
from cdc_lake.testing.oracle import Oracle

pytestmark = pytest.mark.spark

SEEDS = 200 * int(os.environ.get("CDC_LAKE_BUDGET", "1"))
T = TableName("public", "many")


def relation(identity: ReplicaIdentity) -> Relation:
    return table(
        "public.many", key=["seed", "id"], identity=identity, seed="int4", id="int4", amount="int4", body="text"
    )


class Silver:
    """What MERGE means, on a dictionary of texts."""

    def __init__(self, columns: list[str]) -> None:
        self.columns = columns
        self.rows: dict[tuple[str, ...], dict[str, str | None]] = {}

    def frame(self, spark: Any) -> Any:
        data = {c: [row[c] for row in self.rows.values()] for c in self.columns}
        schema = pa.schema([(c, pa.string()) for c in self.columns])
        text = spark.createDataFrame(pa.table(data, schema=schema))
        return text.selectExpr("cast(seed as int) seed", "cast(id as int) id", "cast(amount as int) amount", "body")

    def merge(self, net: list[dict[str, Any]], unsent: frozenset[int]) -> None:
        keys = [(str(row["seed"]), str(row["id"])) for row in net]
        assert len(set(keys)) == len(keys), "one row a key"
        for key, row in zip(keys, net, strict=True):
            if row[OP] == "D":
                self.rows.pop(key, None)
                continue
            old = self.rows.get(key)
            new: dict[str, str | None] = {}
            for at, name in enumerate(self.columns):
                if at in unsent and row[unknown(at)]:
                    assert old is not None, "an unknown value needs a row that has it"
                    new[name] = old[name]
                else:
                    new[name] = None if row[name] is None else str(row[name])
            self.rows[key] = new


@pytest.mark.parametrize(
    ("identity", "rules"),
    [(ReplicaIdentity.DEFAULT, False), (ReplicaIdentity.DEFAULT, True), (ReplicaIdentity.FULL, True)],
)
def test_any_cut_gives_the_oracles_state_and_the_same_holds(
    spark: Any, tmp_path: Path, identity: ReplicaIdentity, rules: bool
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}, {SEEDS} histories, identity {identity.name}, rules {rules}")
    layout = relation(identity)
    histories = [History(seed + n, [layout], fixed={"seed": str(n)}) for n in range(SEEDS)]
    transactions = interleave(seed, histories, SEEDS * 6)
    # A tenth of the amounts break the rule, and a change of the key's body does not tell the amount.
    rule = Between(rule="between", column="amount", min=0, max=89, on_fail="quarantine")
    oracle = Oracle(fails=(lambda _, row: row["amount"] is not None and int(row["amount"]) > 89) if rules else None)
    oracle.run(transactions)
    bronze = DeltaBronze(tmp_path / "bronze", durability="os")
    bronze.begin_stream("test", 10)
    bronze.append([raw_transaction(t) for t in transactions])

    reader = BronzeReader(tmp_path / "bronze")
    target = Target(T, "silver", "many", "delta", None, (rule,) if rules else ())
    silver = Silver(list(layout.names))
    held_keys: set[tuple[str | None, ...]] = set()
    held: list[tuple[int, int]] = []
    cut = random.Random(seed)
    positions = [t.bounds.position for t in transactions]
    after = 10
    for upto in [*sorted(cut.sample(positions, 2)), positions[-1]]:
        span = Span(1, after, upto)
        files = reader.files()
        seen = outline(files, T, span, snapshot=False)
        if not seen.rows:
            continue
        shape = make_shape(seen.layouts, reader.layouts([T]), None)
        rows = read_changes(spark, span_files(files, T, span, snapshot=False), T, span, snapshot=False)
        folded = fold(rows, silver.frame(spark), target, kind_of(target), shape, seen, span, frozenset(held_keys))
        silver.merge(folded.net.toArrow().to_pylist(), folded.part.unsent)
        if folded.held is not None:
            for row in folded.held.to_pylist():
                held.append((row["position"], row["ordinal"]))
                held_keys |= {tuple(k) for k in (row["key"], row["from_key"]) if k is not None}
        after = upto
    assert silver.rows == oracle.tables.get(T, {})
    assert sorted(held) == sorted(oracle.held)
    assert held_keys == oracle.held_keys.get(T, set())
    assert bool(held) == rules
