"""`rebuild --to` at random positions gives the oracle's state there; Delta and Iceberg, kinds of tables mixed."""

from __future__ import annotations

import os
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.rebuild import rebuild
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake_testing.histories import History, interleave
from cdc_lake_testing.messages import raw_transaction
from cdc_lake_testing.oracle import Oracle
from tests.pipeline_file import make_project
from tests.seeds import one_seed

from .two_tables import PLAIN, RULE, WHOLE, breaks, same

pytestmark = pytest.mark.spark

POSITIONS = 2 if os.environ.get("CDC_LAKE_BUDGET", "1") == "1" else 20


def test_random_positions_give_the_oracles_state(spark: Any, lake_root: Path) -> None:
    seed = one_seed()
    print(f"seed {seed}")
    dice = random.Random(seed)
    name = f"positions{seed}"
    tables = [
        {"from": "public.plain", "rules": [RULE], "format": "delta"},
        {"from": "public.whole", "format": "iceberg", "kind": "history"},
    ]
    project = make_project(
        lake_root,
        name,
        silver={"defaults": {"namespace": name}, "tables": tables},
        snapshot={"mode": "none"},
        apply={"span_rows": 60},
    )
    transactions = interleave(seed, [History(seed, [PLAIN, WHOLE], truncates=30)], 60)
    bronze = DeltaBronze(project.bronze, durability="os")
    bronze.begin_stream("test", 10)
    bronze.append([raw_transaction(one) for one in transactions])
    with SpanLoop(project, spark, silent) as advance:
        advance.run(None, threading.Event())
        assert not advance.totals.failed
    for number in range(POSITIONS):
        upto = dice.randint(transactions[0].bounds.position - 5, transactions[-1].bounds.position)
        relation = (PLAIN, WHOLE)[number % 2]
        target = project.target(relation.table)
        oracle = Oracle(fails=breaks)
        oracle.run([one for one in transactions if one.bounds.position <= upto])
        done = rebuild(project, str(relation.table), to=upto, into=f"at_{number}", spark=spark)
        rows = table_log(project, replace(target, name=f"at_{number}")).read().to_pylist()
        if target.kind == "history":
            own = {"valid_from_epoch", "valid_from", "valid_from_ts", "valid_to_epoch", "valid_to", "valid_to_ts"}
            rows = [{k: v for k, v in r.items() if k not in {*own, "is_current"}} for r in rows if r["is_current"]]
        expected = list(oracle.tables.get(relation.table, {}).values())
        assert same(rows, expected), f"{relation.table} at {upto}"
        assert bool(done.quarantined) == bool(oracle.quarantined_keys.get(relation.table)), (
            f"{relation.table} at {upto}"
        )
