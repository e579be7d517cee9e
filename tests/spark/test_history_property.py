"""Any cut of the stream into spans gives every version the oracle has, and no other: hundreds of histories.

As in `test_net_change_property` the histories share one table and the silver table is a list, so that all of them go
through a handful of Spark jobs; what the MERGE means is the few lines of `Silver.merge`.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.span_index import outline, span_files
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Target
from cdc_lake.config.rules import Between
from cdc_lake.model.position import Span
from cdc_lake.model.relation import ReplicaIdentity, TableName
from cdc_lake.runtime.apply.table_schema import shape_of
from cdc_lake.runtime.apply.table_span import evaluate_rules, fold, type_changes
from cdc_lake.silver.changes import OP, read_changes
from cdc_lake.silver.kinds import kind_of
from cdc_lake.silver.row_tracing import QuarantineState
from cdc_lake_testing.histories import History, interleave
from cdc_lake_testing.messages import raw_transaction, table
from cdc_lake_testing.oracle import Oracle, Version, Versions
from tests.seeds import one_seed

pytestmark = pytest.mark.spark

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
SEEDS = 40 if BUDGET == 1 else 100 * BUDGET
T = TableName("public", "many")
NAMES = ("seed", "id", "amount", "body")


class Silver:
    """Versions, and what the MERGE does to them."""

    def __init__(self) -> None:
        self.versions: set[Version] = set()

    def current(self, spark: Any) -> Any:
        """What changes refer to, as `Kind.live` gives it."""
        rows = [dict(v.row) for v in self.versions if v.ended is None]
        data = {name: [row[name] for row in rows] for name in NAMES}
        text = spark.createDataFrame(pa.table(data, schema=pa.schema([(name, pa.string()) for name in NAMES])))
        return text.selectExpr("cast(seed as int) seed", "cast(id as int) id", "cast(amount as int) amount", "body")

    def merge(self, net: list[dict[str, Any]], first_truncate: int | None) -> None:
        closes = {_key(row): row for row in net if row[OP] != "V"}
        assert len(closes) == sum(row[OP] != "V" for row in net), "a key is closed or amended once"
        for version in [v for v in self.versions if v.ended is None]:
            close = closes.get(version.key)
            if close is None and first_truncate is None:
                continue
            ended = first_truncate if close is None else close["valid_to"]
            self.versions.remove(version)
            amended = close is not None and close[OP] == "A"
            values = _values(close) if amended and close is not None else version.row
            self.versions.add(replace(version, row=values, ended=ended))
        for row in net:
            if row[OP] == "V":
                assert row["is_current"] == (row["valid_to"] is None)
                self.versions.add(Version(_key(row), _values(row), row["valid_from"], row["valid_to"]))


def _values(row: dict[str, Any]) -> tuple[tuple[str, str | None], ...]:
    return tuple((name, None if row[name] is None else str(row[name])) for name in NAMES)


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return str(row["seed"]), str(row["id"])


@pytest.mark.parametrize(
    ("identity", "rules", "track"),
    [
        (ReplicaIdentity.DEFAULT, False, None),
        (ReplicaIdentity.DEFAULT, True, ("amount",)),
        (ReplicaIdentity.FULL, False, ("body",)),
    ],
)
def test_any_cut_gives_the_oracles_versions(
    spark: Any, tmp_path: Path, identity: ReplicaIdentity, rules: bool, track: tuple[str, ...] | None
) -> None:
    seed = one_seed()
    print(f"CDC_LAKE_SEED={seed}, {SEEDS} histories, identity {identity.name}, rules {rules}, track {track}")
    layout = table(
        "public.many", key=["seed", "id"], identity=identity, **dict.fromkeys(NAMES[:3], "int4"), body="text"
    )
    # Truncates stand below, in one history of many keys.
    histories = [History(seed + n, [layout], fixed={"seed": str(n)}) for n in range(SEEDS)]
    transactions = interleave(seed, histories, SEEDS * 6)
    rule = Between(rule="between", column="amount", min=0, max=89, on_fail="quarantine")
    fails = (lambda _, row: row["amount"] is not None and int(row["amount"]) > 89) if rules else None
    target = Target(T, "silver", "many", "delta", None, (rule,) if rules else (), kind="history", track=track)
    followed(spark, tmp_path, seed, layout, transactions, target, Oracle(fails=fails))


@pytest.mark.parametrize("nth", range(2))
def test_truncates_close_what_is_there(spark: Any, tmp_path: Path, nth: int) -> None:
    seed = one_seed() + nth
    print(f"CDC_LAKE_SEED={seed - nth}")
    layout = table("public.many", key=["seed", "id"], **dict.fromkeys(NAMES[:3], "int4"), body="text")
    history = History(seed, [layout], fixed={"seed": "1"}, keys=20, truncates=30)
    transactions = [history.transaction(1000 + 10 * n) for n in range(120)]
    track = ("amount",) if nth else None
    target = Target(T, "silver", "many", "delta", None, (), kind="history", track=track)
    followed(spark, tmp_path, seed, layout, transactions, target, Oracle())


def followed(
    spark: Any, tmp_path: Path, seed: int, layout: Any, transactions: Any, target: Target, oracle: Oracle
) -> None:
    """Follow the transactions in spans that the seed chooses; the versions must be the oracle's."""
    versions = Versions(oracle, {} if target.track is None else {T: target.track})
    versions.run(transactions)
    bronze = DeltaBronze(tmp_path / "bronze", durability="os")
    bronze.begin_stream("test", 10)
    bronze.append([raw_transaction(t) for t in transactions])
    reader, silver, kind = BronzeReader(tmp_path / "bronze"), Silver(), kind_of(target, layout)
    quarantined: set[tuple[str | None, ...]] = set()
    positions = [t.bounds.position for t in transactions]
    after = 10
    for upto in [*sorted(random.Random(seed).sample(positions, 2)), positions[-1]]:
        span, files = Span(1, after, upto), reader.files()
        seen = outline(files, T, span, snapshot=False)
        shape = shape_of(seen.layouts or (layout.layout,), reader.layouts([T]), target, kind)
        rows = read_changes(spark, span_files(files, T, span, snapshot=False), T, span, snapshot=False)
        changes = type_changes(
            rows,
            silver.current(spark),
            target,
            kind,
            shape,
            seen,
            span,
            QuarantineState({(0, 0): frozenset(quarantined)} if quarantined else {}),
        )
        folded = fold(evaluate_rules(changes))
        silver.merge(folded.net.toArrow().to_pylist(), seen.truncates[0][0] if seen.truncates else None)
        for row in [] if folded.quarantined is None else folded.quarantined.to_pylist():
            quarantined |= {tuple(k) for k in (row["key"], row["from_key"]) if k is not None}
        if folded.closings:
            quarantined = set()
        after = upto
    assert silver.versions == versions.of(T)
