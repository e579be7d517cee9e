"""Changes as columns: what each column holds, from both decoders."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cdc_lake.decode.change_batch import Numbering
from cdc_lake.decode.hashing import canonical_relation, canonical_tuple, digest_of
from cdc_lake.decode.pgoutput import columnar
from cdc_lake.decode.pgoutput import columnar as plain
from cdc_lake.decode.pgoutput.columnar import tabulate, tabulate_plain
from cdc_lake.errors import BatchTooLarge, InvalidText
from cdc_lake.model.change import UNCHANGED, Delete, Insert, Message, OldKind, Transaction, Truncate, Update
from cdc_lake.model.relation import Relation, ReplicaIdentity, TableName
from cdc_lake_testing.messages import boundaries, raw_transaction, table, truncate

ORDERS = table("public.orders", id="int8", note="text")
ITEMS = table("public.items", a="text", b="text", c="text")
BARE = Relation(TableName("public", "bare"), (), ReplicaIdentity.DEFAULT)


@pytest.fixture(params=["columnar", "plain"])
def decode(request, monkeypatch):
    if request.param == "plain":
        return tabulate_plain
    monkeypatch.setattr(columnar, "SMALL", 1)
    monkeypatch.setattr(columnar, "tabulate_plain", None)  # a way back would be a TypeError
    return tabulate


def batch(*transactions):
    return [
        raw_transaction(
            Transaction(boundaries(1000 * (nth + 1)), changes, tuple(range(nth * 10, nth * 10 + len(changes))))
        )
        for nth, changes in enumerate(transactions)
    ]


def test_columns_stand_in_the_order_of_the_changes(decode):
    columns = decode(
        batch(
            (Insert(ORDERS, ("1", "é")), Insert(ITEMS, ("x", "", None))),
            (),
            (
                Update(ORDERS, ("1", UNCHANGED), ("0", None), OldKind.KEY),
                Delete(ITEMS, ("x", "", None), OldKind.FULL),
                Insert(ORDERS, ("2", None)),
            ),
        )
    )
    assert len(columns) == 5
    assert columns.relations == [ORDERS, ITEMS]
    assert columns.transaction.tolist() == [0, 0, 2, 2, 2]
    assert bytes(columns.op) == b"IIUDI"
    assert columns.relation.tolist() == [0, 1, 0, 1, 0]
    assert columns.lsn.tolist() == [0, 1, 20, 21, 22]
    assert columns.new.to_pylist() == [["1", "é"], ["x", "", None], ["1", None], None, ["2", None]]
    assert columns.old.to_pylist() == [None, None, ["0", None], ["x", "", None], None]
    assert columns.old_kind.to_pylist() == [None, None, "key", "full", None]
    assert columns.unchanged.to_pylist() == [None, None, [1], None, None]
    assert columns.info.to_pylist() == [None] * 5


def test_a_large_row_among_small_ones_has_the_same_columns(decode):
    large = "\u00e9" * (9 << 20)  # 18 MiB: copied value by value
    around = tuple(Insert(ITEMS, (str(n), "", None)) for n in range(3))
    [raw] = batch((*around, Update(ITEMS, (large, UNCHANGED, "c"), ("a", None, ""), OldKind.FULL), *around))
    columns = decode([raw])
    assert columns.new.to_pylist() == [[str(n), "", None] for n in range(3)] + [[large, None, "c"]] + [
        [str(n), "", None] for n in range(3)
    ]
    assert columns.old.to_pylist() == [None] * 3 + [["a", None, ""]] + [None] * 3
    assert columns.unchanged.to_pylist() == [None] * 3 + [[1]] + [None] * 3


@pytest.mark.parametrize("tail", [b"\xc3", b"\xff"])
def test_a_large_text_that_is_not_utf8_is_refused(decode, tail):
    [raw] = batch((Insert(ORDERS, ("1", "x" * (17 << 20))), Insert(ORDERS, ("2", "y"))))
    raw.frames[0] = raw.frames[0][:-1] + tail
    with pytest.raises((InvalidText, TypeError)):  # a way back, as the fixture has it
        decode([raw])


def test_a_truncate_of_several_tables_and_a_message_are_rows_with_info(decode):
    [raw] = batch((Insert(ORDERS, ("1", "x")), Truncate(ITEMS), Message("p\u00e4", b"\x00"), Insert(BARE, ())))
    raw.frames[1] = truncate([ITEMS, ORDERS], cascade=True)
    raw.truncated[1] = (ITEMS, ORDERS)
    columns = decode([raw])
    assert bytes(columns.op) == b"ITTMI"
    assert columns.relations == [ORDERS, ITEMS, BARE]
    assert columns.relation.tolist() == [0, 1, 0, -1, 2]
    assert columns.lsn.tolist() == [0, 1, 1, 2, 3]
    assert columns.new.to_pylist() == [["1", "x"], None, None, None, []]
    assert [text and json.loads(text) for text in columns.info.to_pylist()] == [
        None,
        {"cascade": True, "restart_identity": False},
        {"cascade": True, "restart_identity": False},
        {"prefix": "p\u00e4", "content": "AA=="},
        None,
    ]


def test_digests_are_those_of_the_canonical_bytes(decode):
    columns = decode(
        batch(
            (
                Insert(ORDERS, ("1", None)),
                Update(ORDERS, ("2", UNCHANGED), ("1", None), OldKind.KEY),
                Delete(ORDERS, ("2", "x"), OldKind.FULL),
                Truncate(ORDERS, cascade=True, restart_identity=True),
                Message("p", b"\xff"),
            )
        )
    )
    name = canonical_relation("public.orders")
    assert columns.digests == [
        digest_of(b"I" + name + b"N" + canonical_tuple(["1", None])),
        digest_of(b"U" + name + b"K" + canonical_tuple(["1", None]) + b"N" + canonical_tuple(["2", None], frozenset([1]))),
        digest_of(b"D" + name + b"O" + canonical_tuple(["2", "x"])),
        digest_of(b"T" + name + b"cr"),
        digest_of(b"M\x00\x00\x00\x01p\x00\x00\x00\x01\xff"),
    ]  # fmt: skip


def test_equal_layouts_of_different_objects_have_one_number(decode):
    again = table("public.orders", id="int8", note="text")
    columns = decode(batch((Insert(ORDERS, ("1", "x")), Insert(again, ("2", "x")))))
    assert columns.relations == [ORDERS]
    assert columns.relation.tolist() == [0, 0]


def test_only_deletes_and_only_empty_rows_are_columns_too(decode):
    columns = decode(batch((Delete(ORDERS, ("1", None), OldKind.KEY),) * 3))
    assert columns.new.to_pylist() == [None] * 3
    columns = decode(batch((Insert(BARE, ()),) * 3))
    assert columns.new.to_pylist() == [[]] * 3


@pytest.mark.parametrize("decode", [tabulate, tabulate_plain])
def test_no_change_at_all_is_no_row(decode):
    for nothing in ([], batch((), ())):
        columns = decode(nothing)
        assert len(columns) == 0
        assert columns.new.to_pylist() == []


def test_a_batch_of_many_chunks_is_one_array_a_column(monkeypatch):
    monkeypatch.setattr(columnar, "CHUNK_BYTES", 100)
    raws = batch(*[tuple(Insert(ORDERS, (str(n), "x" * (n % 90))) for n in range(50))] * 3)
    columns, reference = tabulate(raws), tabulate_plain(raws)
    assert columns.new.equals(reference.new)
    assert columns.digests == reference.digests


@pytest.mark.parametrize("decode", [tabulate, tabulate_plain])
def test_the_first_bad_change_of_a_batch_is_the_error(decode):
    raws = batch((Insert(ORDERS, ("1", "xyz")),) * 100, (Insert(ORDERS, ("1", "xyz")),) * 100)
    raws[0].frames[70] = raws[0].frames[70].replace(b"y", b"\x80")
    raws[1].frames[0] = b"?"
    with pytest.raises(InvalidText) as caught:
        decode(raws)
    assert caught.value.where == "change 71 of the transaction at 0/3E8"


@pytest.mark.parametrize("decode", [tabulate, tabulate_plain])
def test_a_batch_beyond_32_bit_offsets_is_refused(decode, monkeypatch):
    monkeypatch.setattr(plain, "MAX_BYTES", 1000)
    with pytest.raises(BatchTooLarge):
        decode(batch((Insert(ORDERS, ("1", "x")),) * 100))


def test_a_relation_that_takes_the_place_in_memory_of_an_equal_one_has_a_number_of_its_own():
    """Of equal relations one is kept; where another one came to the place of the one that was let go, it had its number:
    changes of one table were those of another.
    """
    first = table("public.orders", id="int8")
    numbering = Numbering()
    numbering.number(first)
    for n in range(200):
        name = TableName("public", f"t{n}")
        numbering.number(replace(first))  # equal, and nobody else has it
        other = replace(first, table=name)
        assert numbering.relations[numbering.number(other)] == other
