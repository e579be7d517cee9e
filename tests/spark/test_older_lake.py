"""A lake that an older version left in the middle of its work goes on as it is.

`lake_0_2_0.tar.xz` was made by 0.2.0 with the code of its own tests: three transactions applied and one not, a held
row, a truncate, a table that got a column, a stream begun in the control tables.
"""

from __future__ import annotations

import json
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.open import bronze_reader, bronze_writer
from cdc_lake.control.cuts import table_states
from cdc_lake.model.change import Insert, Transaction, Update
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.applier import watching
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.data import make_lake
from tests.pipeline_file import make_project
from tests.tarballs import unpack

from .test_apply_cases import Lake

DATA = Path(__file__).parents[1] / "data" / "lake_0_2_0.tar.xz"
WIDE = table("public.t", id="int4", amount="int4", body="text", note="text")


class OldLake(Lake):
    """The lake of the archive, with the pipeline it was made by."""

    def __init__(self, root: Path, spark: Any) -> None:
        self.spark = spark
        rule = {"rule": "between", "column": "amount", "max": 10, "on_fail": "quarantine"}
        self.project = make_project(
            root,
            "old_delta",
            silver={
                "defaults": {"format": "delta", "namespace": "old_delta"},
                "tables": [{"from": "public.t", "rules": [rule]}],
            },
            snapshot={"mode": "none"},
        )


@pytest.mark.spark
def test_a_lake_of_0_2_0_is_verified_continued_and_applied(spark: Any, tmp_path: Path) -> None:
    with tarfile.open(DATA) as archive:
        unpack(archive, tmp_path)
    lake = OldLake(tmp_path, spark)
    found = verify(bronze_reader(lake.project))
    assert (found.holds, found.transactions, found.last) == (True, 5, (1, 150))
    assert [row.stream for row in ControlTables(lake.project.control).streams()] == ["test"]
    writer = bronze_writer(lake.project)
    state = writer.state()
    assert state is not None
    assert (state.upto, state.confirm) == (155, 155)
    again = raw_transaction(Transaction(boundaries(150), ()))
    update = raw_transaction(Transaction(boundaries(200), (Update(WIDE, ("7", "9", "b", "new")),)))
    assert writer.append([again, update]).repeats == 1
    assert verify(bronze_reader(lake.project)).transactions == 6
    lake.advance()
    assert lake.rows() == [
        {"id": 7, "amount": 9, "body": "b", "note": "new"},
        {"id": 8, "amount": 8, "body": "b", "note": "é"},
    ]
    assert lake.quarantined() == [("failed", ["between_amount"]), ("waiting", []), ("closed", None)]


@pytest.mark.spark
def test_a_lake_of_control_version_1_goes_on_and_older_versions_and_queries_still_understand_it(spark: Any) -> None:
    with make_lake.unpacked() as root:
        project = make_lake.project("delta", observe={"textfile": "shop.prom"})
        changes = tuple(Insert(make_lake.TABLES[name], ("9", "9", "later")) for name in ("now", "log"))
        bronze_writer(project).append([raw_transaction(Transaction(boundaries(400), changes))])
        watcher = watching(project, silent)
        with watcher, SpanLoop(project, spark, watcher.on_progress) as advance:
            watcher.follow(advance.totals)
            advance.run(None, threading.Event())
            assert advance.totals.failed == {}
        row = ControlTables(project.control).last_cut()
        assert row is not None
        states = {name.removeprefix("public."): table.state for name, table in table_states(row.tables).items()}
        assert (row.position, states) == (400, {"now": "active", "then": "active", "log": "active", "off": "paused"})
        assert {table["state"] for table in json.loads(row.tables).values()} == {"in", "paused"}
        assert table_log(project, project.target(TableName("public", "now"))).read()["id"].to_pylist().count(9) == 1
        metrics = (root / "shop.prom").read_text()
        for name in ("cdc_lake_table_failed", "cdc_lake_quarantined_keys"):
            assert f'{name}{{pipeline="shop_delta",table="silver_delta.now"}} ' in metrics
