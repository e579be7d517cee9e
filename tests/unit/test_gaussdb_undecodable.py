"""The family's assembler with `keeps`: a record whose end is certain is kept, a boundary in doubt always stops."""

from __future__ import annotations

import pytest

from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.decode.gaussdb.batches import TableFilter
from cdc_lake.decode.gaussdb.catalog_facts import GaussDbColumn, GaussDbTableMetadata
from cdc_lake.decode.gaussdb.records import Begin, Commit, Field, Operation, Row, Style
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.decode.gaussdb.undecodable import GaussDbFormat, tables_of
from cdc_lake.decode.undecodable import StoreUndecodable
from cdc_lake.errors import DecodeError, OutOfSequence
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import TableName
from cdc_lake_testing.gaussdb.encode import Print, binary_record, statement

T = TableName("public", "t")
ROW = Row(Operation.INSERT, T, (Field("id", "1", "text", 25),), lsn=70)
BEGIN, COMMIT = Begin(lsn=60, csn=5, first_lsn=60), Commit(lsn=90, csn=5)
FACTS = {T: GaussDbTableMetadata((GaussDbColumn("id", "text", 25),), ("id",), identity_columns=("id",))}


def assembler(style: Style, *, keeps: bool = True, batch: bool = False) -> GaussDbAssembler:
    return GaussDbAssembler(style, batch=batch, domain=OrderDomain.LSN, keeps=keeps)


def framed(body: bytes, lsn: int = 70, end: bytes = b"P") -> bytes:
    """A record of style b."""
    return (8 + len(body)).to_bytes(4, "big") + lsn.to_bytes(8, "big") + body + end


def binary(*bodies: bytes) -> bytes:
    head, tail = (binary_record(one, "utf-8") for one in (BEGIN, COMMIT))
    return head + b"P" + b"".join(map(framed, bodies)) + tail + b"F"


ROW_BODY = binary_record(ROW, "utf-8")[12:]


@pytest.mark.parametrize("odd", [b"?what", b"h", b"Z" + ROW_BODY[1:]])
def test_a_record_of_an_unknown_kind_is_kept_in_its_place(odd: bytes):
    payload = binary(ROW_BODY, odd, ROW_BODY)
    with pytest.raises(DecodeError):
        assembler(Style.BINARY, keeps=False).feed(payload, 90)
    (raw,) = assembler(Style.BINARY).feed(payload, 90)
    assert list(raw.records) == [ROW_BODY, odd, ROW_BODY]
    columns = StoreUndecodable(GaussDbFormat(RelationResolver(FACTS.get), "mppdb_decoding"))([raw])
    assert bytes(columns.op).decode() == "XXX"
    assert columns.undecoded[0].tables == ("public.t",)


@pytest.mark.parametrize(
    "payload",
    [
        binary(ROW_BODY)[:-5],
        binary(ROW_BODY).replace(b"1P", b"1Q"),
        framed(b"C?"),
        framed(b"?what", end=b"F"),
        binary_record(BEGIN, "utf-8") + b"P" + framed(b"B?", end=b"F"),
    ],
    ids=["cut off", "a wrong separator", "a COMMIT without a BEGIN", "outside of a transaction", "a broken BEGIN"],
)
def test_what_bounds_a_record_or_a_transaction_always_stops(payload: bytes):
    with pytest.raises(DecodeError):
        assembler(Style.BINARY).feed(payload, 90)


def test_a_record_that_hides_a_boundary_is_found_by_the_next_one():
    one = assembler(Style.BINARY)
    hidden = (
        binary_record(BEGIN, "utf-8")
        + b"P"
        + framed(ROW_BODY)
        + framed(b"?" + binary_record(COMMIT, "utf-8")[13:], end=b"F")
    )
    assert one.feed(hidden, 90) == []
    with pytest.raises(OutOfSequence):
        one.feed(binary(ROW_BODY), 90)


@pytest.mark.parametrize("style", [Style.TEXT, Style.JSON])
def test_a_statement_that_is_nothing_known_is_kept(style: Style):
    one = assembler(style)
    how = Print(style)
    begin, row, commit = (statement(record, how) for record in (BEGIN, ROW, COMMIT))
    for text in (begin, row, b"what is this"):
        assert one.feed(text, 70) == []
    (raw,) = one.feed(commit, 90)
    columns = StoreUndecodable(GaussDbFormat(RelationResolver(FACTS.get), "mppdb_decoding"))([raw])
    assert bytes(columns.op).decode() == "XX"
    assert columns.undecoded[0].code == "DEC313"


@pytest.mark.parametrize("word", [b"ABORT 5", b"PREPARE 5"])
@pytest.mark.parametrize("style", list(Style)[1:])
def test_the_end_of_another_kind_always_stops(style: Style, word: bytes):
    one = assembler(style)
    one.feed(statement(BEGIN, Print(style)), 60)
    with pytest.raises(OutOfSequence):
        one.feed(word, 70)


HEADS = {
    "b": (Style.BINARY, ROW_BODY[:-1] + b"\xff\xff"),
    "j": (Style.JSON, statement(ROW, Print(Style.JSON))[:-3]),
    "t": (Style.TEXT, statement(ROW, Print(Style.TEXT)) + b"'"),
    "serial": (Style.SERIAL, statement(ROW, Print(Style.SERIAL, plugin="test_decoding")) + b"'"),
}


@pytest.mark.parametrize("name", HEADS)
def test_the_table_is_known_by_the_head_of_its_row(name: str):
    style, record = HEADS[name]
    assert tables_of(style, record, RelationResolver(FACTS.get, tables=frozenset({T}))) == [T]


@pytest.mark.parametrize("style", list(Style))
@pytest.mark.parametrize(
    "record", [b"", b"I", b"I\0", b"I\0\1a\0\2b", b"{", b'{"table_name":"', b'{"table_name":"a"', b"table ", b"\xff"]
)
def test_a_head_that_is_none_gives_no_table(style: Style, record: bytes):
    assert tables_of(style, record, RelationResolver(FACTS.get, tables=frozenset({T}))) == []


def test_an_unreadable_first_row_of_a_table_that_is_not_captured_is_left_out():
    payload = binary(ROW_BODY[:-1] + b"\xff\xff", ROW_BODY)
    captured = TableFilter(RelationResolver(FACTS.get), lambda _: False)
    one = GaussDbAssembler(Style.BINARY, batch=False, domain=OrderDomain.LSN, keeps=True, captured=captured)
    assert [raw.count for raw in one.feed(payload, 90)] == [0]


def test_what_an_undecodable_transaction_taught_of_its_table_is_forgotten():
    """Of a table that the catalog no longer has, an old row tells the identity, and rows planned after it have it."""
    moved = Row(Operation.UPDATE, T, ROW.new, ROW.new)
    bodies = [binary_record(row, "utf-8")[12:] for row in (moved, ROW)]
    batch = [
        *assembler(Style.BINARY).feed(binary(*bodies, b"?"), 90),
        *assembler(Style.BINARY).feed(binary(ROW_BODY), 90),
    ]

    def layouts() -> RelationResolver:
        return RelationResolver({}.get)

    alone = GaussDbFormat(layouts(), "mppdb_decoding").tabulate(batch[1:])
    columns = StoreUndecodable(GaussDbFormat(layouts(), "mppdb_decoding"))(batch)
    assert set(columns.undecoded) == {0}
    assert columns.relations[columns.relation[-1]] == alone.relations[0]
    assert columns.digests[-1] == alone.digests[0]


def test_plans_from_before_an_undecodable_transaction_are_as_they_were():
    """What was learned before it stays, also where it would be learned otherwise by now."""
    moved = Row(Operation.UPDATE, T, ROW.new, ROW.new)
    first, second, third = (
        assembler(Style.BINARY).feed(binary(*bodies), 90)[0]
        for bodies in ((ROW_BODY, binary_record(moved, "utf-8")[12:]), (ROW_BODY, b"?"), (ROW_BODY,))
    )
    form = GaussDbFormat(RelationResolver({}.get), "mppdb_decoding")
    wanted = GaussDbFormat(RelationResolver({}.get), "mppdb_decoding")
    keep = StoreUndecodable(form)
    for one in (first, second, third):
        found = keep([one])
    for one in (first, third):
        good = wanted.tabulate([one])
    assert (found.relations, found.digests[0]) == (good.relations, good.digests[0])
