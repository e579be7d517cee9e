"""14 writers moved money while 16 snapshots were taken: the stream in CSN order gives each of them, to the row.

The parallel binary stream of openGauss 6.0.2 is assembled, closed in CSN order and applied transaction by transaction;
at each CSN of a snapshot the tables are compared. Both began with 300 rows of (id, 1000, 'n'), before the stream.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from functools import cache
from io import BytesIO
from itertools import pairwise

from cdc_lake.connectors.gaussdb.csn_order import CsnOrdering
from cdc_lake.connectors.open_stream import OrderedTransaction
from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.decode.gaussdb.batches import RecordTransaction
from cdc_lake.decode.gaussdb.catalog_facts import GaussDbColumn, GaussDbTableMetadata
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.devtools.recording import Data, RecordingReader
from cdc_lake.model.change import Delete, Insert, Update
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import ReplicaIdentity
from cdc_lake_testing.decoded import of_records as transaction
from tests.unit.samples.recorded import DATA

FOLDER = DATA / "6.0.2" / "transfers"
TABLES = ("tr_a", "tr_b")
KEY = ReplicaIdentity.DEFAULT
FACTS = GaussDbTableMetadata(
    (GaussDbColumn("id", "int4", 23), GaussDbColumn("v", "int4", 23), GaussDbColumn("note", "text", 25)),
    ("id",), KEY, ("id",),
)  # fmt: skip


@cache
def assembled() -> tuple[RecordTransaction, ...]:
    """The transactions as the server sent them: in the order of their commit records."""
    assembler = GaussDbAssembler(Style.BINARY, batch=True, domain=OrderDomain.CSN)
    recording = RecordingReader(BytesIO(lzma.decompress((FOLDER / "stream.bin.xz").read_bytes())), "transfers")
    return tuple(
        one for entry in recording if isinstance(entry, Data) for one in assembler.feed(entry.payload, entry.lsn)
    )


def snapshots() -> list[dict]:
    return json.loads(lzma.decompress((FOLDER / "snapshots.json.xz").read_bytes()))["snapshots"]


def csns() -> list[int]:
    return [one.bounds.position for one in assembled()]


def test_every_csn_is_there_once_and_some_come_late():
    found = csns()
    assert sorted(found) == list(range(min(found), min(found) + len(found)))
    assert sum(later < one for one, later in pairwise(found)) == 7
    assert len(found) == 26_723


def test_commit_lsns_ascend():
    lsns = [one.bounds.commit_lsn for one in assembled()]
    assert lsns == sorted(set(lsns))


def test_every_snapshot_is_the_state_below_its_csn():
    wanted = {snapshot["csn"]: snapshot for snapshot in snapshots()}
    assert len(wanted) == 16
    layouts = RelationResolver(lambda table: FACTS if table.name in TABLES else None)
    state = {name: {str(i): (str(i), "1000", "n") for i in range(1, 301)} for name in TABLES}
    shown = 0
    for step in closed():
        if (snapshot := wanted.get(step.upto)) is not None:  # everything below this CSN, and nothing else
            assert {name: rows(snapshot[name]) for name in TABLES} == state, step.upto
            shown += 1
        for change in transaction(step.transaction, layouts).changes if step.transaction else ():
            apply(state, change)
    assert shown == 16


def test_the_order_of_commit_records_is_not_that_of_csns():
    # What the sorting is for: a cut of the stream as it comes is not always the state at a CSN.
    found = csns()
    assert found != sorted(found)


def closed() -> Iterator[OrderedTransaction]:
    """The transactions as they are closed, by the order that receives use."""
    order = CsnOrdering(min(csns()) - 1, 0, bound=60.0, policy="stop", clock=lambda: 0.0)
    for one in assembled():
        yield from order.add(one)


def apply(state: dict[str, dict[str, tuple]], change: object) -> None:
    match change:
        case Insert(relation=relation, new=new):
            assert new[0] not in state[relation.table.name]
            state[relation.table.name][new[0]] = new
        case Update(relation=relation, new=new, old=old):
            del state[relation.table.name][old[0]]
            state[relation.table.name][new[0]] = new
        case Delete(relation=relation, old=old):
            del state[relation.table.name][old[0]]
        case _:
            raise AssertionError(change)


def rows(listed: list[list[str | None]]) -> dict[str, tuple]:
    return {row[0]: tuple(row) for row in listed}
