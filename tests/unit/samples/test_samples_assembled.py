"""What the receiver makes of the recorded streams (assembler, layouts, changes of the model) is what their records say.

The records of the same streams are proven against the server's own tables beside this file.
"""

from __future__ import annotations

import pytest

from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.decode.gaussdb.batches import RecordTransaction
from cdc_lake.decode.gaussdb.catalog_facts import GaussDbTableMetadata, Storage
from cdc_lake.decode.gaussdb.records import Begin, Field, Operation, Row, Truncated
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.model.change import Change, Delete, Insert, OldKind, Truncate, Tuple, Update
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import Relation, ReplicaIdentity, TableName
from cdc_lake_testing.decoded import of_records as transaction
from cdc_lake_testing.recordings import RecordingSource
from tests.unit.samples.recorded import CODEC, HEADS, KEYLESS, KEYS, State, Stream, stream, streams_of

OWN_TYPES = dict.fromkeys(range(1, 70_000), "public.own")
"""Names of types by OID, for those nobody knows: which it is does not matter here."""

FULL = {"t_full", "t_pkfull", "t_toastfull", "u_full"}
STREAMS = [
    ("6.0.2", "og_a_par2_b_batch1"),
    ("6.0.2", "og_a_par2_t_batch1"),
    ("6.0.2", "og_a_ser_default"),
    ("5.0.3", "og_a_par2_j_batch1"),
    ("3.0.0", "og_a_par2_b_batch1"),
]


def facts(table: TableName) -> GaussDbTableMetadata:
    """What the catalog said of a table of the workload, but for its columns: they changed in the stream's time."""
    key = () if table.name in KEYLESS else KEYS.get(table.name, ("id",))
    identity = ReplicaIdentity.DEFAULT
    if table.name in FULL:
        identity = ReplicaIdentity.FULL
    elif table.name == "t_ridnothing":
        identity = ReplicaIdentity.NOTHING
    logged = key if identity is ReplicaIdentity.DEFAULT else ()
    storage = Storage.USTORE if table.name.startswith("u_") else Storage.ASTORE
    return GaussDbTableMetadata((), key, identity, logged, storage, OWN_TYPES)


def assembled(recorded: Stream) -> list[RecordTransaction]:
    assembler = GaussDbAssembler(recorded.style, batch=recorded.batch, domain=OrderDomain.LSN, codec=CODEC)
    found = [one for lsn, payload in recorded.messages() for one in assembler.feed(payload, lsn)]
    assert not assembler.in_transaction
    assert not assembler.others
    return found


@pytest.mark.parametrize(("version", "name"), STREAMS)
def test_the_receivers_changes_give_the_state_of_the_records(version, name):
    recorded = stream(version, name)
    raws, records = assembled(recorded), list(recorded.records())
    positions = [raw.bounds.position for raw in raws]
    assert len(positions) == sum(isinstance(r, Begin) for r in records)
    assert positions == sorted(set(positions)), "every transaction once, in the order of their commit records"
    if recorded.parallel:
        csns = sorted(raw.bounds.csn for raw in raws)
        assert csns == list(range(csns[0], csns[0] + len(csns))), "dense where empty transactions are sent"
    layouts, state = RelationResolver(facts, CODEC, tables=HEADS), State()
    for raw in raws:
        state.apply([row_of(change) for change in transaction(raw, layouts).changes])
    assert state.bags() == State().run(records).bags()
    assert sum(len(rows) for rows in state.tables().values()) > 4000


def test_a_recording_is_a_source_that_the_receiver_can_read(tmp_path):
    recorded = stream("6.0.2", "og_a_par2_b_batch1")
    (tmp_path / "a.bin").write_bytes(streams_of("6.0.2")[recorded.name])
    source = RecordingSource(tmp_path / "a.bin")
    assembler = GaussDbAssembler(recorded.style, batch=recorded.batch, domain=OrderDomain.CSN)
    found: list[RecordTransaction] = []
    while not source.ended:
        for lsn, payload in source.poll(0):
            found += assembler.feed(payload, lsn)
        source.confirm(found[-1].bounds.confirm)
    source.close()
    assert source.confirmed == found[-1].bounds.confirm
    assert source.keepalive_end == 0
    assert [raw.bounds.commit_lsn for raw in found] == [raw.bounds.commit_lsn for raw in assembled(recorded)]


def row_of(change: Change) -> Row | Truncated:
    match change:
        case Insert(relation=relation, new=new):
            return Row(Operation.INSERT, relation.table, new=fields(relation, new))
        case Update(relation=relation, new=new, old=old, old_kind=kind):
            return Row(Operation.UPDATE, relation.table, fields(relation, new), sent(relation, old, kind))
        case Delete(relation=relation, old=old, old_kind=kind):
            return Row(Operation.DELETE, relation.table, old=sent(relation, old, kind))
        case Truncate(relation=relation):
            return Truncated((relation.table,))
    raise AssertionError(change)


def fields(relation: Relation, values: Tuple) -> tuple[Field, ...]:
    return tuple(Field(name, value) for name, value in zip(relation.names, values, strict=True))


def sent(relation: Relation, old: Tuple | None, kind: OldKind | None) -> tuple[Field, ...] | None:
    if old is None:
        return None
    named = zip(relation.columns, old, strict=True)
    return tuple(Field(c.name, value) for c, value in named if kind is OldKind.FULL or c.key)
