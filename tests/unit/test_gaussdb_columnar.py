"""Changes of the GaussDB family as columns: by hand, and of what running servers sent, plain and by the column."""

from __future__ import annotations

import struct
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cdc_lake.decode.encoding import Codec, Policy
from cdc_lake.decode.gaussdb import columnar, row_templates
from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.decode.gaussdb.batches import RecordTransaction, tabulate_plain
from cdc_lake.decode.gaussdb.catalog_facts import GaussDbColumn, GaussDbTableMetadata
from cdc_lake.decode.gaussdb.columnar import tabulate
from cdc_lake.decode.gaussdb.records import Field, Operation, Row, Style, Truncated
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.decode.hashing import canonical_relation, digest_of
from cdc_lake.decode.historic_catalog import Attribute
from cdc_lake.errors import DecodeError
from cdc_lake.model.change import Boundaries
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import Column, Relation, ReplicaIdentity, TableName
from cdc_lake_testing.gaussdb.encode import Print, binary_record, statement
from tests.decoded_columns import assert_same

DATA = Path(__file__).parents[1] / "data" / "opengauss"
T, U, BARE = TableName("public", "t"), TableName("public", "u"), TableName("public", "bare")
COLUMNS = (GaussDbColumn("id", "int4", 23), GaussDbColumn("note", "text", 25), GaussDbColumn("last", "text", 25))
PRINTED = {23: "integer", 25: "text"}
FACTS = {
    T: GaussDbTableMetadata(COLUMNS, ("id",), identity_columns=("id",)),
    U: GaussDbTableMetadata(COLUMNS, ("id",), ReplicaIdentity.FULL),
    BARE: GaussDbTableMetadata(COLUMNS),
}


@pytest.fixture(params=["plain", "columnar"])
def decode(request, monkeypatch):
    if request.param == "plain":
        return tabulate_plain
    monkeypatch.setattr(columnar, "SMALL", 1)
    monkeypatch.setattr(columnar, "tabulate_plain", None)  # a way back would be a TypeError
    return tabulate


def fields(*values: str | None) -> tuple[Field, ...]:
    return tuple(Field(c.name, v, PRINTED[c.type_oid], c.type_oid) for c, v in zip(COLUMNS, values, strict=False))


def insert(table: TableName, *values: str | None) -> Row:
    return Row(Operation.INSERT, table, fields(*values))


def update(table: TableName, values: Sequence[str | None], old: Sequence[str | None] | None = None) -> Row:
    return Row(Operation.UPDATE, table, fields(*values), None if old is None else fields(*old))


def delete(table: TableName, *old: str | None) -> Row:
    return Row(Operation.DELETE, table, None, fields(*old) if old else None)


def raw(*rows: Row, position: int = 100, style: Style = Style.BINARY) -> RecordTransaction:
    records = [
        binary_record(row, "utf-8")[12:] if style is Style.BINARY else statement(row, Print(style)) for row in rows
    ]
    lsns = list(range(position, position + len(rows)))
    return RecordTransaction(Boundaries(position, position), style, records, lsns, sum(map(len, records)))


def layouts() -> RelationResolver:
    return RelationResolver(FACTS.get)


def test_changes_of_every_kind(decode):
    found = decode(
        [
            raw(insert(T, "1", "a", None), update(T, ("1", "", "ö"), ("1",)), delete(T, "1")),
            raw(position=200),
            raw(insert(U, "2", "b", "c"), update(T, ("3", "x", "y")), delete(U, "2", None, "c"), delete(BARE), position=300),
        ],
        layouts(),
    )  # fmt: skip
    assert bytes(found.op) == b"IUDIUDD"
    assert found.transaction.tolist() == [0, 0, 0, 2, 2, 2, 2]
    assert found.lsn.tolist() == [100, 101, 102, 300, 301, 302, 303]
    assert [str(found.relations[at].table) for at in found.relation] == [
        "public.t", "public.t", "public.t", "public.u", "public.t", "public.u", "public.bare",
    ]  # fmt: skip
    assert found.new.to_pylist() == [
        ["1", "a", None],
        ["1", "", "ö"],
        None,
        ["2", "b", "c"],
        ["3", "x", "y"],
        None,
        None,
    ]
    assert found.old.to_pylist() == [None, ["1", None, None], ["1", None, None], None, None, ["2", None, "c"], None]
    assert found.old_kind.to_pylist() == [None, "key", "key", None, None, "full", None]
    assert found.unchanged.to_pylist() == found.info.to_pylist() == [None] * 7


def test_digests_are_of_the_canonical_bytes_whatever_the_format(decode):
    found = decode(
        [raw(insert(T, "1", "a", None), update(T, ("1", "", "ö"), ("2",)), delete(U, "1", "a"), delete(BARE))],
        layouts(),
    )
    t, u, bare = (canonical_relation(str(table)) for table in (T, U, BARE))
    one = b"t\0\0\0\x01"
    assert found.digests == [
        digest_of(b"I" + t + b"N\0\x03" + one + b"1" + one + b"an"),
        digest_of(b"U" + t + b"K\0\x03" + one + b"2nn" + b"N\0\x03" + one + b"1t\0\0\0\0t\0\0\0\x02\xc3\xb6"),
        digest_of(b"D" + u + b"O\0\x03" + one + b"1" + one + b"an"),
        digest_of(b"D" + bare),
    ]


UPSERTS = [
    insert(T, "0", "stays", ""),
    insert(T, "1", "speculative", ""),
    delete(T),
    update(T, ("1", "b", ""), ("1",)),
    insert(U, "9", "other table", ""),
    insert(T, "2", "first", ""),
    delete(T),
    insert(T, "3", "second", ""),
    delete(T),
    insert(T, "4", "", ""),
]


def test_a_delete_without_a_key_takes_the_insert_before_it_back(decode):
    found = decode(
        [raw(insert(T, "7", "", "")), raw(*UPSERTS, position=200), raw(delete(BARE), position=300)], layouts()
    )
    assert bytes(found.op) == b"IIUIID"
    assert [row and row[0] for row in found.new.to_pylist()] == ["7", "0", "1", "9", "4", None]
    assert found.lsn.tolist() == [100, 200, 203, 204, 209, 300]
    assert [str(found.relations[at].table) for at in found.relation] == [
        "public.t", "public.t", "public.t", "public.u", "public.t", "public.bare",
    ]  # fmt: skip


def test_a_layout_only_of_rows_taken_back_is_not_there(decode):
    found = decode([raw(insert(U, "1", "", ""), delete(U), insert(T, "1", "", ""))], layouts())
    assert [relation.table for relation in found.relations] == [T]
    assert found.relation.tolist() == [0]


@pytest.mark.parametrize(
    ("rows", "ops"),
    [
        ([delete(T)], b"ID"),
        ([insert(U, "1", "", ""), delete(T)], b"IID"),
        ([insert(T, "1", "", ""), delete(T), delete(T)], b"ID"),
        ([insert(T, "1", "", ""), insert(U, "1", "", ""), delete(T)], b"IIID"),
    ],
)
def test_a_delete_that_takes_nothing_back_names_no_row(decode, rows, ops):
    found = decode([raw(insert(T, "1", "", "")), raw(*rows, position=200)], layouts())
    assert bytes(found.op) == ops
    assert found.old.to_pylist()[-1] is None


def test_an_insert_of_an_existing_key_before_an_update_stays(decode):
    """ustore, and astore in 3.0.x, send the speculative insert and nothing that takes it back."""
    found = decode([raw(insert(T, "1", "new", ""), update(T, ("1", "b", ""), ("1",)))], layouts())
    assert bytes(found.op) == b"IU"


@pytest.mark.parametrize("make", [tabulate, tabulate_plain])
def test_a_delete_has_the_layout_that_its_table_had_last(make, monkeypatch):
    monkeypatch.setattr(columnar, "SMALL", 1)
    narrow = Row(Operation.INSERT, T, fields("1", "a"))
    found = make(
        [raw(delete(T, "1"), narrow, delete(T, "1"), insert(T, "2", "", ""), delete(T, "2"), narrow)], layouts()
    )
    assert [len(found.relations[at].columns) for at in found.relation] == [3, 2, 2, 3, 3, 2]
    known = layouts()
    make([raw(insert(T, "2", "", ""), narrow, insert(T, "2", "", ""), narrow, insert(T, "2", "", ""))], known)
    assert len(known.relation_of(T).columns) == 3


@pytest.mark.parametrize("style", [Style.TEXT, Style.JSON, Style.SERIAL])
def test_the_text_styles_give_the_same_columns(style):
    rows = [insert(T, "1", "it's\n", None), update(T, ("1", "", "ö"), ("1",)), delete(T, "1"), *UPSERTS]
    assert_same(tabulate([raw(*rows, style=style)], layouts()), tabulate([raw(*rows)], layouts()))


def test_a_truncate_is_one_change_a_table():
    data = statement(Truncated((T, U), cascade=True), Print(Style.SERIAL))
    one = RecordTransaction(Boundaries(9, 9), Style.SERIAL, [data], [5], len(data))
    found = tabulate([one], layouts())
    assert bytes(found.op) == b"TT"
    assert found.info.to_pylist() == ['{"cascade": true, "restart_identity": false}'] * 2
    assert found.lsn.tolist() == [5, 5]


def test_other_encodings_are_decoded_plainly():
    record = binary_record(insert(T, "1", "中文", ""), "gbk")[12:]
    one = RecordTransaction(Boundaries(9, 9), Style.BINARY, [record] * 40, list(range(40)), 40 * len(record))
    assert tabulate([one], RelationResolver(FACTS.get, Codec("GBK"))).new.to_pylist() == [["1", "中文", ""]] * 40
    with pytest.raises(DecodeError) as caught:
        tabulate([one], layouts())
    assert caught.value.where == "change 1 of the transaction at 9"
    assert caught.value.__cause__ is None
    assert tabulate([one], RelationResolver(FACTS.get, Codec("UTF8", Policy.HEX))).new[0].as_py() == [
        "1",
        "not-text:d6d0cec4",
        "",
    ]


def test_nothing_at_all():
    assert len(tabulate([], layouts())) == 0
    assert len(tabulate([raw()], layouts())) == 0


# ── what running servers sent ──


def streams() -> Iterator[tuple[str, str]]:
    for version in ("6.0.2", "5.0.3", "3.0.0"):
        for archive in sorted((DATA / version).glob("*streams.tar.xz")):
            with tarfile.open(archive) as tar:
                for name in tar.getnames():
                    if "_b_" in name or name.endswith("_b.bin"):
                        yield str(archive.relative_to(DATA)), name


class AnyType(dict):
    """A name for every type a user made."""

    def get(self, key, default=None):
        return f"public.type_{key}"


SPECULATIVE = GaussDbTableMetadata((), ("id",), identity_columns=("id",), type_names=AnyType())


def recorded(archive: str, name: str) -> list[RecordTransaction]:
    with tarfile.open(DATA / archive) as tar:
        stream = tar.extractfile(name).read()
    assembler = GaussDbAssembler(Style.BINARY, batch=True, domain=OrderDomain.CSN)
    at, found = 0, []
    while at < len(stream):
        (size,) = struct.unpack_from(">I", stream, at)
        body, at = stream[at + 4 : at + 4 + size], at + 4 + size
        if body[:1] == b"w":
            found += assembler.feed(body[25:], struct.unpack_from(">Q", body, 1)[0])
    assert assembler.open_csn is None
    return found


@pytest.mark.parametrize(("archive", "name"), list(streams()))
def test_recorded_streams_are_the_same_plain_and_by_the_column(archive, name, monkeypatch):
    monkeypatch.setattr(columnar, "SMALL", 1)
    monkeypatch.setattr(row_templates, "SOME", 1 << 30)
    facts = SPECULATIVE if name.startswith("spec") else GaussDbTableMetadata((), type_names=AnyType())
    transactions = recorded(archive, name)
    assert transactions
    csns = sorted(raw.bounds.csn for raw in transactions if "whitelist" not in name)
    assert not csns or csns == list(range(csns[0], csns[0] + len(csns)))  # none is missing, none twice
    size = 40 if "batch0" in name or "spec" in name else 1 << 30
    plain, fast = RelationResolver(lambda _: facts), RelationResolver(lambda _: facts)
    for at in range(0, len(transactions), size):
        batch = transactions[at : at + size]
        assert_same(tabulate(batch, fast), tabulate_plain(batch, plain))
        assert fast.latest() == plain.latest()


def test_rows_on_both_sides_of_an_altered_catalog_are_each_of_its_own_time(monkeypatch):
    monkeypatch.setattr(columnar, "SMALL", 1)
    key = replace(
        FACTS[U], oid=16500, attributes=tuple(Attribute(n, c.name, c.type_oid) for n, c in enumerate(COLUMNS, 1))
    )
    known = Relation(U, tuple(Column(c.name, c.type_name, c.type_oid, key=True, number=n) for n, c in enumerate(COLUMNS, 1)),
                     ReplicaIdentity.FULL, ("note",), 16500)  # fmt: skip
    rows = [raw(insert(U, "1", "a", "b"), position=at) for at in (100, 200, 300)]
    batch = [replace(one, bounds=replace(one.bounds, xid=xid)) for one, xid in zip(rows, (7, 9, 8), strict=True)]

    def decoded(by, some):
        layouts = RelationResolver(lambda _: replace(key, key_changed=8), known_relations=[known])
        found = by(some, layouts)
        return [found.relations[at].primary_key for at in found.relation]

    assert decoded(tabulate, batch) == decoded(tabulate_plain, batch) == [("note",), ("id",), ("note",)]
    assert decoded(tabulate, batch[1:2]) == [("id",)]
