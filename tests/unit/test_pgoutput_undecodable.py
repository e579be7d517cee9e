"""A transaction that cannot be decoded is kept as bytes, whole, and the ones around it are as if it were not there."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cdc_lake.decode.historic_catalog import Attribute
from cdc_lake.decode.pgoutput.assembler import Assembler, TableFacts
from cdc_lake.decode.pgoutput.columnar import tabulate, tabulate_plain
from cdc_lake.decode.pgoutput.relations import ColumnFacts
from cdc_lake.decode.undecodable import READING, Frame, PgoutputFormat, StopAtUndecodable, StoreUndecodable, raw_of
from cdc_lake.errors import DecodeError, InvalidText, MalformedMessage, OutOfSequence, UnknownRelation
from cdc_lake.model.change import Boundaries, Insert, Transaction, Truncate
from cdc_lake.model.relation import Column, Missing, Relation, ReplicaIdentity, TableName
from cdc_lake_testing import messages
from cdc_lake_testing.messages import boundaries, catalog_of, encode_transaction, raw_transaction, table

ORDERS = table("public.orders", id="int8", note="text")
ITEMS = table("public.items", id="int8", note="text")
MOOD = Relation(
    TableName("public", "moods"), (Column("id", "mood", 70000, -1, True),), ReplicaIdentity.DEFAULT, ("id",)
)
GOOD = [
    Transaction(boundaries(at), (Insert(ORDERS, (str(at), "x")), Insert(ITEMS, (str(at), "y")))) for at in (100, 300)
]
BAD = b"\xff\xfe"


def wrong(position: int = 200, changes: tuple = (Insert(ORDERS, ("2", "BAD")), Truncate(ITEMS, cascade=True))):
    """A transaction whose text is not UTF-8."""
    raw = raw_transaction(Transaction(boundaries(position), changes))
    raw.frames[:] = [frame.replace(b"\0\0\0\3BAD", b"\0\0\0\2" + BAD) for frame in raw.frames]
    return raw


@pytest.mark.parametrize("decode", [tabulate, tabulate_plain])
def test_the_others_are_as_if_it_were_not_there(decode):
    good = [raw_transaction(t) for t in GOOD]
    found = StoreUndecodable(PgoutputFormat(decode))([good[0], wrong(), good[1]])
    alone = decode(good)
    kept = found.op == ord("X")
    assert bytes(found.op).decode() == "IIXXII"
    assert found.transaction.tolist() == [0, 0, 1, 1, 2, 2]
    rest = [at for at, x in enumerate(kept) if not x]
    for name in ("new", "old", "old_kind", "unchanged", "info"):
        assert getattr(found, name).take(rest).to_pylist() == getattr(alone, name).to_pylist()
    assert [found.digests[at] for at in rest] == alone.digests
    assert [str(found.relations[n].table) for n in found.relation[rest]] == ["public.orders", "public.items"] * 2
    assert found.raw.to_pylist()[2:4] == wrong().frames


def test_it_says_why_and_what_it_changes():
    found = StoreUndecodable(PgoutputFormat(tabulate))([wrong()])
    why = found.undecoded[0]
    assert (why.code, why.frames, why.tables) == ("DEC304", 2, ("public.orders", "public.items"))
    assert why.where == "change 1 of the transaction at 0/C8"
    infos = [json.loads(info) for info in found.info.to_pylist()]
    assert infos == [{"reading": READING}, {"truncated": ["public.items"]}]
    assert {relation.table for relation in found.relations} == {ORDERS.table, ITEMS.table}


def test_a_batch_that_decodes_is_what_it_was():
    good = [raw_transaction(t) for t in GOOD]
    found = StoreUndecodable(PgoutputFormat(tabulate))(good)
    assert found.raw is None
    assert not found.undecoded


@pytest.mark.parametrize("decode", [tabulate, tabulate_plain])
@pytest.mark.parametrize("many", [1, 2, 5, 8])
def test_by_the_policy_stop_the_first_that_cannot_be_decoded_is_named_and_those_before_it_counted(decode, many):
    batch = [raw_transaction(Transaction(boundaries(at), GOOD[0].changes)) for at in range(100, 100 + many)]
    for bad in range(many):
        for worse in range(bad, many):  # of several the first counts
            given = [wrong(raw.bounds.position) if at in (bad, worse) else raw for at, raw in enumerate(batch)]
            with pytest.raises(InvalidText) as caught:
                StopAtUndecodable(PgoutputFormat(decode))(given)
            assert caught.value.good == bad
            assert caught.value.where == f"change 1 of the transaction at 0/{100 + bad:X}"


def test_what_a_failed_batch_taught_is_forgotten():
    class Counting(PgoutputFormat):
        learned = 0

        def tabulate(self, batch):
            Counting.learned += len(batch)
            return tabulate(batch)

        def mark(self):
            return Counting.learned

        def restore(self, mark):
            Counting.learned = mark

    with pytest.raises(InvalidText):
        StopAtUndecodable(Counting(tabulate))([raw_transaction(GOOD[0]), wrong(), raw_transaction(GOOD[1])])
    assert Counting.learned == 0


def frames_of(columns) -> list[Frame]:
    """What a reader of bronze has of the rows X."""
    infos = [json.loads(info) if info else {} for info in columns.info.to_pylist()]
    layouts = [columns.relations[n] if n >= 0 else None for n in columns.relation.tolist()]
    parts = zip(columns.raw.to_pylist(), columns.lsn.tolist(), layouts, infos, strict=True)
    return [Frame(*part) for part in parts]


def again(raw, catalog=None):
    """The transaction as it is rebuilt of its rows X."""
    columns = StoreUndecodable(PgoutputFormat(tabulate))([raw])
    layouts = {relation.table: relation for relation in columns.relations}
    return raw_of(raw.bounds, frames_of(columns), layouts, catalog or {})


def test_a_layout_that_could_not_be_taken_in_is_read_behind_the_one_that_landed_before():
    """The table was rewritten since, and only the layout before tells what rows from before a column hold."""
    wide = table("public.t", id="int8", a="text")
    columns = {"id": ColumnFacts(1), "a": ColumnFacts(2)}
    there = (Attribute(1, "id", 20), Attribute(2, "a", 25))
    now = {wide.table: TableFacts(("id",), {20: "int8", 25: "text"}, columns, there)}
    numbered = tuple(replace(c, number=n) for n, c in enumerate(wide.columns, 1))
    before = replace(wide, columns=(numbered[0], replace(numbered[1], missing=Missing("5"))))
    frames = [Frame(messages.relation(wide), 1), Frame(messages.insert(wide, ("1", "x")), 2)]
    bounds = Boundaries(100, 100, xid=800)
    behind = raw_of(bounds, frames, {}, now, lambda oid, _: replace(before, oid=oid)).layouts[0]
    without = raw_of(bounds, frames, {}, now).layouts[0]
    assert [one.columns[1].missing for one in (behind, without) if one is not None] == [Missing("5"), None]


def test_it_is_rebuilt_as_it_was():
    raw = wrong()
    found = again(raw)
    assert (found.frames, found.lsns, found.layouts) == (raw.frames, raw.lsns, raw.layouts)
    assert found.truncated == raw.truncated
    with pytest.raises(InvalidText):
        tabulate([found])


# ── messages that the assembler cannot take in ──


def fed(payloads, catalog, **given):
    assembler = Assembler(catalog, **given)
    return [raw for lsn, payload in payloads for raw in assembler.feed(payload, lsn)]


def test_a_relation_that_cannot_be_taken_in_makes_its_transactions_undecodable_and_no_others():
    catalog = {MOOD.table: TableFacts(("id",), {}), **catalog_of(ORDERS)}
    stream = [
        message
        for at, relation in ((100, MOOD), (200, ORDERS), (300, MOOD))
        for message in encode_transaction(
            Transaction(boundaries(at), (Insert(relation, tuple("a" for _ in relation.columns)),))
        )
        if not (at == 300 and message[1][:1] == b"R")  # announced once a connection
    ]
    with pytest.raises(DecodeError, match="70000"):
        fed(stream, catalog)
    found = fed(stream, catalog, keeps=True)
    columns = StoreUndecodable(PgoutputFormat(tabulate))(found)
    assert bytes(columns.op).decode() == "XXIXX"
    assert {at: why.code for at, why in columns.undecoded.items()} == {0: "DEC307", 2: "DEC307"}
    assert columns.undecoded[2].tables == ("public.moods",)
    fixed = {MOOD.table: TableFacts(("id",), {70000: "mood"})}
    assert tabulate([again(found[0], fixed), again(found[2], fixed)]).new.to_pylist() == [["a"], ["a"]]


def test_a_layout_that_went_wrong_does_not_leave_the_one_before_it_in_force():
    wider = table("public.orders", id="int8", note="text", more="text")
    oid = messages.relation(ORDERS)[1:5]
    first = encode_transaction(GOOD[0])
    bad = oid.join([b"R", messages.relation(wider)[5:-1]])  # cut off
    second = [(0, m) for _, m in encode_transaction(Transaction(boundaries(200), (Insert(ORDERS, ("1", "x")),)))]
    second[1] = (0, bad)
    found = fed([*first, *second], catalog_of(ORDERS, ITEMS), keeps=True)
    assert found[1].layouts == [None, None]
    assert isinstance(found[1].fault, DecodeError)


def test_what_nobody_announced_is_for_a_new_connection_to_announce():
    stream = [m for m in encode_transaction(GOOD[0]) if m[1][:1] != b"R"]
    with pytest.raises(UnknownRelation):
        fed(stream, catalog_of(ORDERS, ITEMS), keeps=True)


def test_an_unknown_message_is_kept_in_its_transaction():
    stream = encode_transaction(GOOD[0])
    stream.insert(2, (7, b"?what"))
    (raw,) = fed(stream, catalog_of(ORDERS, ITEMS), keeps=True)
    columns = StoreUndecodable(PgoutputFormat(tabulate))([raw])
    assert bytes(columns.op).decode() == "XXX"
    assert columns.undecoded[0].code == "DEC302"


@pytest.mark.parametrize("nth", [0, -1])
def test_a_boundary_that_cannot_be_read_always_stops(nth: int):
    stream = encode_transaction(GOOD[0])
    stream[nth] = (stream[nth][0], stream[nth][1] + b"?")
    with pytest.raises(MalformedMessage):
        fed(stream, catalog_of(ORDERS, ITEMS), keeps=True)


def test_a_message_that_hides_a_boundary_is_found_by_the_next_one():
    first, second = encode_transaction(GOOD[0]), encode_transaction(GOOD[1])
    first[-1] = (first[-1][0], b"?" + first[-1][1])
    with pytest.raises(OutOfSequence):
        fed([*first, *second], catalog_of(ORDERS, ITEMS), keeps=True)
