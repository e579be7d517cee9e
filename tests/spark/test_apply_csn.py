"""Apply in the csn domain: a stream that openGauss 6.0.2 sent under 14 writers, whose CSNs and commit LSNs differ in
order, is on Delta and on Iceberg what snapshots of the server said, with CSNs as watermarks, cuts and positions shown.
"""

from __future__ import annotations

import io
import json
import lzma
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.model import Batch
from cdc_lake.connectors.gaussdb.csn_order import CsnOrdering
from cdc_lake.connectors.open_stream import OrderedTransaction
from cdc_lake.control.streams import snapshot_id
from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.decode.gaussdb.catalog_facts import GaussDbColumn, GaussDbTableMetadata
from cdc_lake.decode.gaussdb.columnar import tabulate
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.decode.pgoutput.columnar import columns_of
from cdc_lake.decode.transaction import ReceivedTransaction
from cdc_lake.devtools.recording import Data, RecordingReader
from cdc_lake.errors import KeylessDelete
from cdc_lake.model.change import Delete, Insert, Transaction
from cdc_lake.model.position import Csn, Lsn, OrderDomain
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import silent
from cdc_lake.ops.status import status
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.runtime.receive.loop import OpenBatch
from cdc_lake.source.base import Kind, StreamIdentity
from cdc_lake.tables.control_schema import SnapshotRow, utc_now
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.pipeline_file import make_project

pytestmark = pytest.mark.spark

TRANSFERS = Path(__file__).resolve().parents[1] / "data" / "opengauss" / "6.0.2" / "transfers"
BEFORE = 2681327  # the last CSN before the stream
NAMES = ("tr_a", "tr_b")
FACTS = GaussDbTableMetadata(
    (GaussDbColumn("id", "int4", 23), GaussDbColumn("balance", "int8", 20), GaussDbColumn("note", "text", 25)),
    primary_key=("id",),
    identity_columns=("id",),
)
STREAM = str(StreamIdentity("1", "og_pg", "s", Lsn(1), Csn(BEFORE), Kind.GAUSS))


def closed_steps() -> Iterator[OrderedTransaction]:
    """The recorded transactions as they leave the CSN order."""
    assembler = GaussDbAssembler(Style.BINARY, batch=True, domain=OrderDomain.CSN)
    order = CsnOrdering(BEFORE, 1, bound=1, policy="stop", clock=lambda: 0.0)
    recording = RecordingReader(io.BytesIO(lzma.decompress((TRANSFERS / "stream.bin.xz").read_bytes())), "transfers")
    for entry in recording:
        if isinstance(entry, Data):
            for transaction in assembler.feed(entry.payload, entry.lsn):
                yield from order.add(transaction)


def advance(project: Any, spark: Any) -> dict[str, Any]:
    """What `apply` does between two beats of its clock; the tables that could not go on, with their errors."""
    with SpanLoop(project, spark, silent) as one:
        one.run(None, threading.Event())
        return dict(one.totals.failed)


def test_silver_is_each_snapshot_of_the_server_at_its_csn(spark: Any, lake_root: Path) -> None:
    project = make_project(
        lake_root,
        "transfers",
        silver={
            "defaults": {"namespace": "transfers"},
            "tables": [{"from": "public.tr_a", "format": "delta"}, {"from": "public.tr_b", "format": "iceberg"}],
        },
    )
    bronze = DeltaBronze(project.bronze, durability="os")
    layouts = RelationResolver(lambda _: FACTS)
    state = bronze.begin_stream(STREAM, BEFORE, 1)
    relations = {name: layouts.relation_of(TableName("public", name)) for name in NAMES}
    rows = pa.array([[str(k), "1000", "n"] for k in range(1, 301)], pa.list_(pa.string()))
    for chunk, relation in enumerate(relations.values()):
        bronze.append_snapshot(snapshot_id(1), chunk, relation, rows, chunk * 300, BEFORE)
    copied = [{"relation": str(r.table), "layout": r.layout, "rows": 300, "chunks": 1} for r in relations.values()]
    control = ControlTables(project.control, "os")
    control.record(SnapshotRow(snapshot_id(1), state.stream, 1, BEFORE, json.dumps(copied), "complete", utc_now()))

    snapshots = json.loads(lzma.decompress((TRANSFERS / "snapshots.json.xz").read_bytes()))["snapshots"]
    steps = closed_steps()
    batch = OpenBatch(Batch(), lambda: 0.0, BEFORE, 1)
    for snapshot in (snapshots[0], snapshots[3]):
        for step in steps:
            batch.add(step)
            if step.upto == snapshot["csn"] - 1:
                break
        bronze.append(batch.take(), partial(tabulate, layouts=layouts))
        assert advance(project, spark) == {}
        reached = control.last_cut(STREAM)
        assert reached is not None
        for name in NAMES:
            target = project.target(relations[name].table)
            found = sorted(table_log(project, target).read().to_pylist(), key=lambda row: row["id"])
            expected = [{"id": int(i), "balance": int(balance), "note": note} for i, balance, note in snapshot[name]]
            assert found == expected, (snapshot["csn"], name)
            marker = table_log(project, target).marker(STREAM).position
            assert marker is not None
            assert BEFORE < marker <= reached.position < snapshot["csn"]
        assert status(project).silver_position == str(reached.position)


def test_a_delete_that_names_no_row_stops_its_table_and_no_other(spark: Any, lake_root: Path) -> None:
    project = make_project(
        lake_root, "nameless", silver={"defaults": {"namespace": "nameless"}}, snapshot={"mode": "none"}
    )
    keyed, other = table("public.keyed", id="int4", body="text"), table("public.other", id="int4", body="text")
    bronze = DeltaBronze(project.bronze, durability="os")
    bronze.begin_stream(STREAM, BEFORE, 1)
    position = BEFORE + 1
    first = raw_transaction(
        Transaction(boundaries(1000), (Insert(keyed, ("1", "a")), Insert(keyed, ("2", "b")), Insert(other, ("1", "a"))))
    )
    bronze.append([replace(first, bounds=replace(first.bounds, position=position, csn=position))])
    assert advance(project, spark) == {}

    def nameless(batch: Sequence[ReceivedTransaction]) -> ChangeColumns:
        return columns_of(
            [(nth, 1, c) for nth, _ in enumerate(batch) for c in (Delete(keyed, None, None), Insert(other, ("2", "b")))]
        )

    second = raw_transaction(Transaction(boundaries(2000), (Insert(other, ("2", "b")),)))
    bronze.append([replace(second, bounds=replace(second.bounds, position=position + 1, csn=position + 1))], nameless)
    broken = advance(project, spark)
    assert [type(error) for error in broken.values()] == [KeylessDelete]
    (error,) = broken.values()
    assert f"a delete of public.keyed at {position + 1} does not identify" in error.message
    ids = {
        t: sorted(table_log(project, project.target(t.table)).read().column("id").to_pylist()) for t in (keyed, other)
    }
    assert ids == {keyed: [1, 2], other: [1, 2]}
