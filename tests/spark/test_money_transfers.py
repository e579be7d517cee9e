"""Money moves between tables of both formats while appliers die: who reads at a cut never sees a sum that is wrong.

`CDC_LAKE_BUDGET` 10 reads 20,000 times and dies everywhere; by default 100 times, and at two places by the seed that is
printed.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cdc_lake
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.model.change import Transaction
from cdc_lake.observability import failpoints as places
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake_testing.faults import assert_cuts_are_true
from cdc_lake_testing.messages import boundaries, raw_transaction
from tests.money_transfers import CURRENCIES, TABLES, TOTAL, Bank, Reader, total
from tests.pipeline_file import make_project
from tests.seeds import one_seed

pytestmark = pytest.mark.spark
BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
READS = 2_000 * BUDGET if BUDGET > 1 else 100
SEED = one_seed()
DEATHS = (
    places.PREPARED, places.QUARANTINE_RECORDED, places.BRANCH_WRITTEN, places.TABLE_MERGED, places.ALL_MERGED,
    places.CUT_WRITTEN, places.COMMIT_WRITTEN,
)  # fmt: skip


class Died(BaseException):
    """Takes the place of SIGKILL: nothing that runs catches it."""


class Appliers:
    """One applier after the other on a lake, some of which die."""

    def __init__(self, root: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        tables = [{"from": f"public.{name}", "format": "delta" if name[0] == "d" else "iceberg"} for name in TABLES]
        silver = {"defaults": {"namespace": "money"}, "tables": tables}
        self.project = make_project(
            root, "money", silver=silver, snapshot={"mode": "none"}, apply={"span_rows": 60, "parallelism": 2}
        )
        self.spark = spark
        self.deaths: list[str] = []
        self._bank, self._position = Bank(SEED), 100
        self._bronze = DeltaBronze(self.project.bronze, durability="os")
        self._bronze.begin_stream("test", 10)
        monkeypatch.setattr(places, "os", SimpleNamespace(kill=self._die, getpid=os.getpid))
        self._land(self._bank.opened())

    def land(self, count: int) -> None:
        """That many transactions that move money."""
        for _ in range(count):
            self._land(self._bank.moved())

    def apply(self, death: str = "") -> None:
        """An applier walks to the top of bronze, or dies at that failpoint."""
        places.arm(death)
        try:
            with SpanLoop(self.project, self.spark, silent) as advance:
                advance.run(None, threading.Event())
                for error in advance.totals.failed.values():
                    raise error
        except Died:
            self.deaths.append(death.partition(":")[0])
        finally:
            places.arm("")
            for thread in threading.enumerate():  # a process that is killed takes its threads along
                if thread.name.startswith("merge"):
                    thread.join()

    def _land(self, changes: Any) -> None:
        self._position += 10
        self._bronze.append([raw_transaction(Transaction(boundaries(self._position), changes))])

    def _die(self, process: int, number: int) -> None:
        raise Died


def by_spark(spark: Any, tables: str) -> dict[str, int]:
    """The totals by SQL over tables of these names."""
    sums = {
        currency: " + ".join(f"(SELECT sum({currency}) FROM {tables.format(name)})" for name in pair)
        for currency, pair in CURRENCIES.items()
    }
    row = spark.sql("SELECT " + ", ".join(f"{total} AS {currency}" for currency, total in sums.items())).first()
    return dict(row.asDict())


def test_no_reader_at_a_cut_sees_money_that_is_on_its_way(
    spark: Any, lake_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    whole = dict.fromkeys(CURRENCIES, TOTAL)
    deaths = DEATHS if BUDGET > 1 else chance.sample(DEATHS, 2)
    appliers = Appliers(lake_root, spark, monkeypatch)
    appliers.apply()
    pinned = cdc_lake.Pipeline(appliers.project).cut().spark_session(spark)
    first = {name: pinned.table(name).orderBy("id").collect() for name in TABLES}
    with Reader(appliers.project) as reader:
        # The control: the newest versions of the tables show broken sums.
        while reader.reads < READS or not reader.naively_broken or len(set(appliers.deaths)) < len(deaths):
            appliers.land(chance.randint(1, 12))
            left = [death for death in deaths if death not in appliers.deaths] or list(deaths)
            appliers.apply(f"{chance.choice(left)}:{chance.choice([1, 1, 2])}")
            if chance.random() < 0.2:
                assert by_spark(cdc_lake.Pipeline(appliers.project).cut().spark_session(spark), "{}") == whole
    appliers.apply()
    assert reader.found["broken"] == []
    print(reader.found, reader.naively_broken, len(appliers.deaths))
    assert {name: pinned.table(name).orderBy("id").collect() for name in TABLES} == first, "views stay at their cut"
    assert by_spark(cdc_lake.Pipeline(appliers.project).cut().spark_session(spark), "{}") == whole
    project = appliers.project
    newest = [total(lambda name: table_log(project, project.target(TABLES[name].table)).read(), one) for one in whole]
    assert newest == list(whole.values())
    assert_cuts_are_true(appliers.project)
