"""Layouts: a row's columns are its own, their modifiers and keys the catalog's, and an old row is what the server logs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection
from dataclasses import replace

import pytest

from cdc_lake.decode.gaussdb.catalog_facts import GaussDbColumn, GaussDbTableMetadata, Storage, named_anew, named_by
from cdc_lake.decode.gaussdb.records import Field, Operation, Row
from cdc_lake.decode.gaussdb.relations import PriorRelation, RelationResolver, relation_of
from cdc_lake.decode.historic_catalog import Attribute
from cdc_lake.errors import MalformedMessage, PublicationAltered, UnknownType, UnreadableRow
from cdc_lake.model.change import UNCHANGED, Delete, Insert, OldKind, Update
from cdc_lake.model.relation import Column, Missing, Relation, ReplicaIdentity, TableName

T = TableName("public", "t")
ID, NAME, PRICE = (
    GaussDbColumn("id", "int4", 23),
    GaussDbColumn("name", "varchar", 1043, 24),
    GaussDbColumn("price", "numeric", 1700, 655366),
)
KEYED = GaussDbTableMetadata((ID, NAME, PRICE), ("id",), identity_columns=("id",))
OIDS = {"id": 23, "name": 1043, "price": 1700, "oid": 26, "gone": 25, "mood": 16500}
PRINTED = {"id": "integer", "name": "character varying", "price": "numeric", "oid": "oid", "gone": "text"}


class Catalog:
    """Answers what it holds, and counts."""

    def __init__(self, facts: GaussDbTableMetadata | None) -> None:
        self.facts = facts
        self.asked = 0

    def __call__(self, table: TableName) -> GaussDbTableMetadata | None:
        self.asked += 1
        return self.facts


def fields(values: dict[str, object] | None, *, printed: bool = False) -> tuple[Field, ...] | None:
    if values is None:
        return None
    return tuple(
        Field(name, value, type_name=PRINTED[name]) if printed else Field(name, value, type_oid=OIDS[name])
        for name, value in values.items()
    )


def insert(printed: bool = False, /, **new: object) -> Row:
    return Row(Operation.INSERT, T, fields(new, printed=printed))


def update(new: dict[str, object], old: dict[str, object] | None = None) -> Row:
    return Row(Operation.UPDATE, T, fields(new), fields(old))


def delete(old: dict[str, object] | None, *, printed: bool = False) -> Row:
    return Row(Operation.DELETE, T, None, fields(old, printed=printed))


FULL_ROW = {"id": "1", "name": "a", "price": ".5"}
LAYOUT = Relation(
    T,
    (Column("id", "int4", 23, -1, True), Column("name", "varchar", 1043, 24), Column("price", "numeric", 1700, 655366)),
    ReplicaIdentity.DEFAULT,
    ("id",),
)


@pytest.mark.parametrize("printed", [False, True])
def test_a_row_by_oids_and_one_by_printed_types_have_the_same_layout(printed):
    catalog = Catalog(KEYED)
    layouts = RelationResolver(catalog)
    assert layouts.change(insert(printed, **FULL_ROW)) == Insert(LAYOUT, ("1", "a", ".5"))
    assert layouts.change(insert(printed, **FULL_ROW)).relation is layouts.change(insert(printed, **FULL_ROW)).relation
    assert catalog.asked == 1


def test_an_old_key_is_spread_over_the_columns_and_what_is_missing_of_it_is_null():
    two = GaussDbTableMetadata((ID, NAME, PRICE), ("id", "name"), identity_columns=("id", "name"))
    layouts = RelationResolver(Catalog(two))
    for old, values in [({"id": "1", "name": "a"}, ("1", "a", None)), ({"id": "1"}, ("1", None, None))]:
        change = layouts.change(update(FULL_ROW, old))
        assert isinstance(change, Update)
        assert (change.old, change.old_kind) == (values, OldKind.KEY)
    assert layouts.change(update(FULL_ROW)).old is None


@pytest.mark.parametrize(
    "facts",
    [
        GaussDbTableMetadata((ID, NAME, PRICE), ("id",), ReplicaIdentity.FULL),
        GaussDbTableMetadata((ID, NAME, PRICE), storage=Storage.USTORE),
        GaussDbTableMetadata((ID, NAME, PRICE), ("id",), ReplicaIdentity.NOTHING, storage=Storage.USTORE),
    ],
)
def test_under_full_and_of_ustore_without_identity_an_old_row_is_whole_and_missing_columns_are_null(facts):
    layouts = RelationResolver(Catalog(facts))
    change = layouts.change(delete({"id": "1", "name": "a"}))  # 3.0.x leaves NULLs out
    assert isinstance(change, Delete)
    assert (change.old, change.old_kind) == (("1", "a", None), OldKind.FULL)
    assert change.relation.identity is ReplicaIdentity.FULL
    assert layouts.change(delete({})) == Delete(change.relation, (None, None, None), OldKind.FULL)


def test_all_columns_are_a_whole_row_as_ustore_of_3_0_sends_it_and_of_some_the_key_is_taken():
    layouts = RelationResolver(
        Catalog(GaussDbTableMetadata((ID, NAME, PRICE), ("id",), identity_columns=("id",), storage=Storage.USTORE))
    )
    change = layouts.change(update(FULL_ROW, FULL_ROW))
    assert isinstance(change, Update)
    assert (change.old, change.old_kind) == (("1", "a", ".5"), OldKind.FULL)
    some = layouts.change(update(FULL_ROW, {"id": "1", "price": "2"}))
    assert isinstance(some, Update)
    assert (some.old, some.old_kind) == (("1", None, None), OldKind.KEY)
    assert change.relation == some.relation == LAYOUT


def test_an_identity_that_was_larger_than_the_key_of_now_makes_no_whole_row_of_it():
    layouts = RelationResolver(Catalog(KEYED))
    change = layouts.change(update(FULL_ROW, {"id": "1", "price": "2"}))
    assert isinstance(change, Update)
    assert (change.old, change.old_kind) == (("1", None, "2"), OldKind.KEY)
    assert [c.name for c in change.relation.columns if c.key] == ["id", "price"]


@pytest.mark.parametrize("old", [{"id": "1"}, {"name": "a"}, {"id": "1", "price": "2"}])
def test_an_old_row_without_a_column_that_may_not_be_null_is_no_whole_one(old):
    name = replace(NAME, filled=True)
    required = GaussDbTableMetadata((replace(ID, filled=True), name, PRICE), ("id",), ReplicaIdentity.FULL)
    for known in ((), (replace(LAYOUT, identity=ReplicaIdentity.FULL),)):
        change = RelationResolver(Catalog(required), known_relations=known).change(update(FULL_ROW, old))
        assert isinstance(change, Update)
        assert change.old_kind is OldKind.KEY
    assert (
        RelationResolver(Catalog(required)).change(update(FULL_ROW, {"id": "1", "name": "a"})).old_kind is OldKind.FULL
    )


@pytest.mark.parametrize(
    "facts",
    [
        GaussDbTableMetadata((ID, NAME, PRICE)),
        GaussDbTableMetadata((ID, NAME, PRICE), ("id",), ReplicaIdentity.NOTHING),
    ],
)
def test_without_an_identity_nothing_is_known_of_old_rows(facts):
    layouts = RelationResolver(Catalog(facts))
    assert layouts.change(update(FULL_ROW)).old_kind is None
    change = layouts.change(delete(None))
    assert isinstance(change, Delete)
    assert (change.old, change.old_kind) == (None, None)


@pytest.mark.parametrize(
    "facts",
    [
        KEYED,
        GaussDbTableMetadata((ID, NAME, PRICE), (), ReplicaIdentity.INDEX, ("id",)),
        GaussDbTableMetadata((ID,), (), ReplicaIdentity.FULL),
    ],
)
def test_a_delete_without_a_key_on_a_table_that_has_one_takes_an_insert_back(facts):
    assert RelationResolver(Catalog(facts)).change(delete(None)) is None


def test_a_column_that_is_gone_has_the_types_of_the_row_and_no_modifier():
    layouts = RelationResolver(Catalog(KEYED))
    relation = layouts.change(insert(id="1", gone="x", price="2")).relation
    assert relation.columns == (LAYOUT.columns[0], Column("gone", "text", 25), LAYOUT.columns[2])


def test_a_table_that_is_gone_is_known_by_its_rows_alone():
    layouts = RelationResolver(Catalog(None))
    change = layouts.change(update(FULL_ROW, {"id": "0"}))
    assert isinstance(change, Update)
    assert [(c.name, c.modifier, c.key) for c in change.relation.columns] == [
        ("id", -1, True),
        ("name", -1, False),
        ("price", -1, False),
    ]
    assert (change.old, change.old_kind) == (("0", None, None), OldKind.KEY)
    assert layouts.change(delete({"id": "1"})).relation == change.relation


def test_a_column_keeps_the_modifier_it_had_when_it_leaves_the_catalog():
    catalog = Catalog(KEYED)
    layouts = RelationResolver(catalog)
    layouts.change(insert(**FULL_ROW))
    catalog.facts = GaussDbTableMetadata((ID, PRICE), ("id",), identity_columns=("id",))
    assert layouts.change(insert(**FULL_ROW)).relation == LAYOUT
    assert layouts.change(insert(id="1", price="1")).relation.names == ("id", "price")
    assert RelationResolver(catalog, known_relations=[LAYOUT]).change(insert(**FULL_ROW)).relation == LAYOUT


def test_a_delete_has_the_last_layout_of_its_table_or_else_the_catalogs():
    wide = GaussDbTableMetadata((*KEYED.columns, GaussDbColumn("more", "text", 25)), ("id",), identity_columns=("id",))
    fresh = RelationResolver(Catalog(wide))
    assert fresh.change(delete({"id": "1"})).relation.names == ("id", "name", "price", "more")
    fresh.change(insert(**FULL_ROW))
    assert fresh.change(delete({"id": "1"})).relation == LAYOUT
    assert RelationResolver(Catalog(wide), known_relations=[LAYOUT]).change(delete({"id": "1"})).relation == LAYOUT


def test_adding_a_column_asks_the_catalog_again():
    catalog = Catalog(KEYED)
    layouts = RelationResolver(catalog)
    layouts.change(insert(id="1", name="a", price="1"))
    catalog.facts = GaussDbTableMetadata(
        (*KEYED.columns, GaussDbColumn("gone", "text", 25, 7)), ("id",), identity_columns=("id",)
    )
    assert layouts.change(insert(**FULL_ROW, gone="x")).relation.columns[3] == Column("gone", "text", 25, 7)
    assert layouts.change(insert(**FULL_ROW)).relation == LAYOUT


def test_an_identity_that_changed_since_is_told_from_what_was_sent():
    layouts = RelationResolver(Catalog(KEYED))
    change = layouts.change(update(FULL_ROW, {"name": "b"}))
    assert isinstance(change, Update)
    assert (change.old, change.old_kind) == ((None, "b", None), OldKind.KEY)
    assert change.relation.identity is ReplicaIdentity.INDEX
    assert [c.name for c in change.relation.columns if c.key] == ["name"]
    assert layouts.change(insert(**FULL_ROW)).relation == LAYOUT


def test_an_identity_that_is_no_longer_full_is_noticed_and_a_null_is_not_taken_for_one_again_and_again():
    full = GaussDbTableMetadata((ID, NAME, PRICE), ("id",), ReplicaIdentity.FULL)
    catalog = Catalog(full)
    layouts = RelationResolver(catalog)
    layouts.change(delete(FULL_ROW))
    catalog.facts = KEYED
    change = layouts.change(update(FULL_ROW, {"id": "1"}))
    assert isinstance(change, Update)
    assert (change.old, change.old_kind, change.relation) == (("1", None, None), OldKind.KEY, LAYOUT)
    wide = tuple(GaussDbColumn(f"c{n}", "text", 25) for n in range(20))
    catalog = Catalog(GaussDbTableMetadata(wide, (), ReplicaIdentity.FULL))
    layouts = RelationResolver(catalog)
    for n in range(20):
        row = Row(Operation.DELETE, T, None, (Field(f"c{n}", "x", type_oid=25),))
        assert layouts.change(row).old_kind is OldKind.FULL
    assert catalog.asked == 9


def test_the_system_column_oid_that_old_text_prints_first_is_left_out():
    layouts = RelationResolver(Catalog(KEYED))
    assert layouts.change(insert(True, oid="16401", **FULL_ROW)) == Insert(LAYOUT, ("1", "a", ".5"))
    own = GaussDbTableMetadata((GaussDbColumn("oid", "oid", 26), ID), ("id",), identity_columns=("id",))
    assert RelationResolver(Catalog(own)).change(insert(True, oid="1", id="2")).relation.names == ("oid", "id")


def test_a_type_that_the_catalog_names_no_more_is_that_of_the_layout_before() -> None:
    """A DELETE has the columns of that layout, of which one may be another one by now."""
    mood = Column("mood", "public.mood", 16500, number=2)
    before = Relation(T, (Column("id", "int4", 23, number=1), mood), ReplicaIdentity.DEFAULT, ("id",), 7)
    facts = replace(KEYED, columns=(replace(ID, number=1),), oid=7, attributes=(Attribute(1, "id", 23), Attribute(3)))
    columns = (("id", 23), ("mood", 16500))
    found = relation_of(T, facts, PriorRelation(before, 3), columns, (("id", 23),))
    assert found.columns[1].type_name == "public.mood"


def test_a_type_without_a_name_is_an_error_in_binary_and_a_name_without_an_oid_is_none():
    with pytest.raises(UnknownType):
        RelationResolver(Catalog(KEYED)).change(insert(id="1", mood="sad"))
    named = GaussDbTableMetadata(KEYED.columns, ("id",), type_names={16500: "public.mood"})
    assert (
        RelationResolver(Catalog(named)).change(insert(id="1", mood="sad")).relation.columns[1].type_name
        == "public.mood"
    )
    row = Row(Operation.INSERT, T, (Field("mood", "sad", type_name="public.mood"),))
    assert RelationResolver(Catalog(None)).change(row).relation.columns == (Column("mood", "public.mood", 0),)


def test_a_type_that_is_not_built_in_is_asked_for_by_its_oid_where_the_table_is_gone():
    row = Row(Operation.INSERT, T, (Field("mood", "sad", type_oid=16431),))
    with pytest.raises(UnknownType, match="type OID 16431"):
        RelationResolver(Catalog(None)).change(row)
    layouts = RelationResolver(Catalog(None), type_names={16431: "public.mood"})
    assert layouts.change(row).relation.columns == (Column("mood", "public.mood", 16431),)


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (Row(Operation.INSERT, T), UnreadableRow),
        (Row(Operation.INSERT, T, ()), UnreadableRow),
        (Row(Operation.UPDATE, T, None, fields({"id": "1"})), UnreadableRow),
        (Row(Operation.INSERT, T, fields(FULL_ROW), fields({"id": "1"})), MalformedMessage),
        (Row(Operation.DELETE, T, fields(FULL_ROW), fields({"id": "1"})), MalformedMessage),
        (Row(Operation.INSERT, T, (*fields({"id": "1"}), *fields({"id": "2"}))), MalformedMessage),
        (update({"id": "1"}, {"name": "b"}), MalformedMessage),
        (update(FULL_ROW, {"id": UNCHANGED}), MalformedMessage),
    ],
)
def test_rows_that_contradict_themselves_are_refused_also_when_their_columns_are_known(row, kind):
    layouts = RelationResolver(Catalog(KEYED))
    layouts.change(insert(**FULL_ROW))
    layouts.change(update(FULL_ROW, {"id": "1"}))
    for _ in range(2):
        with pytest.raises(kind):
            layouts.change(row)


def test_a_truncated_table_has_its_last_layout_the_catalogs_or_none():
    layouts = RelationResolver(Catalog(KEYED))
    assert layouts.relation_of(T) == LAYOUT
    layouts.change(insert(id="1", price="2"))
    assert layouts.relation_of(T).names == ("id", "price")
    assert RelationResolver(Catalog(None)).relation_of(T) == Relation(T, (), ReplicaIdentity.DEFAULT)


def test_what_the_catalog_knows_of_a_column_goes_with_it_also_when_the_catalog_has_it_no_more():
    told = (replace(ID, number=1), replace(NAME, number=3, missing=Missing("it")), replace(PRICE, number=4))
    catalog = Catalog(replace(KEYED, columns=told, oid=16399))
    layouts = RelationResolver(catalog)
    first = layouts.change(insert(**FULL_ROW)).relation
    assert first.oid == 16399
    assert [(c.number, c.missing) for c in first.columns] == [(1, None), (3, Missing("it")), (4, None)]
    catalog.facts = None
    again = layouts.change(insert(id="1", name="a", gone="x")).relation
    assert again.oid == 16399
    assert [(c.number, c.missing) for c in again.columns] == [(1, None), (3, Missing("it")), (None, None)]


def test_facts_survive_being_written_down_also_by_a_version_that_knew_less():
    whole = replace(NAME, printed="varchar", number=3, missing=Missing(None))
    facts = replace(KEYED, columns=(ID, whole, replace(PRICE, missing=Missing("0"))), oid=16399)
    told = json.loads(json.dumps(facts.describe()))
    assert GaussDbTableMetadata.from_description(told) == facts
    older = {**told, "columns": [column[:5] for column in told["columns"]]}
    del older["oid"]
    known = (ID, replace(NAME, printed="varchar"), PRICE)
    assert GaussDbTableMetadata.from_description(older) == replace(KEYED, columns=known)


NUMBERED = tuple(replace(c, number=n) for n, c in enumerate((ID, NAME, PRICE), start=1))


def altered(*dropped: int, changed: int = 700, key: tuple[str, ...] = ("id",), **more: object) -> GaussDbTableMetadata:
    """A table of three columns, of which those with these numbers were dropped and made again in transaction `changed`."""
    ends = itertools.count(4)
    columns = sorted(
        (replace(c, number=next(ends)) if c.number in dropped else c for c in NUMBERED), key=lambda c: c.number
    )
    there = [
        Attribute(c.number, c.name, c.type_oid, c.modifier, changed=changed if c.number > 3 else 500) for c in columns
    ]
    gone = [Attribute(number, changed=changed) for number in dropped]
    attributes = tuple(sorted((*there, *gone), key=lambda one: one.number))
    facts = GaussDbTableMetadata(
        tuple(columns), key, identity_columns=key, oid=16500, attributes=attributes, key_changed=500
    )
    return replace(facts, **{"version": str(changed), **more})


def test_a_column_that_is_made_again_under_its_name_is_noticed_and_in_doubt_where_the_catalog_cannot_tell() -> None:
    catalog = Catalog(altered(version="1"))
    layouts = RelationResolver(catalog, versions=lambda _: {T: (16500, catalog.facts.version)})
    before = layouts.change(insert(**FULL_ROW), 600).relation
    layouts.refresh()
    assert [(c.number, c.ambiguous) for c in before.columns] == [(1, False), (2, False), (3, False)]
    catalog.facts = altered(3, version="2")
    assert layouts.change(insert(**FULL_ROW), 800).relation is before
    layouts.refresh()
    after = layouts.change(insert(**FULL_ROW), 800).relation
    assert [(c.number, c.ambiguous) for c in after.columns] == [(1, False), (2, False), (4, True)]
    assert layouts.change(update(FULL_ROW, {"id": "1"}), 801).relation == after
    assert catalog.asked == 2


def test_tables_are_looked_at_once_a_batch_those_of_the_batch_before_together() -> None:
    looked: list[list[TableName]] = []
    names = [TableName("public", name) for name in "abc"]

    def versions(tables: Collection[TableName]) -> dict[TableName, tuple[int, str]]:
        looked.append(sorted(tables))
        return dict.fromkeys(tables, (16500, "700"))

    layouts = RelationResolver(lambda _: altered(), versions=versions)
    for batch in (names, names[:2], names[:2], names[2:]):
        layouts.refresh()
        for name in [*batch, *batch]:
            layouts.change(replace(insert(**FULL_ROW), table=name))
    assert looked == [names, names[:2], names[:2], names[2:]]


def test_rows_of_one_shape_have_the_key_of_their_transaction() -> None:
    moved = altered(key=("name",), key_changed=700, identity=ReplicaIdentity.FULL, identity_columns=())
    before = Relation(T, LAYOUT.columns, ReplicaIdentity.FULL, ("id",), 16500)
    numbered = replace(before, columns=tuple(replace(c, key=True, number=n) for n, c in enumerate(before.columns, 1)))
    layouts = RelationResolver(Catalog(moved), known_relations=[numbered])
    keys = [layouts.change(update(FULL_ROW, FULL_ROW), xid).relation.primary_key for xid in (600, 800, 600, None)]
    assert keys == [("id",), ("name",), ("id",), ("name",)]


def test_another_table_that_has_a_tables_name_ends_the_reading() -> None:
    catalog = Catalog(altered())
    layouts = RelationResolver(catalog, versions=lambda _: {T: (16501, "other")}, members={T: (16500, "")})
    layouts.change(insert(**FULL_ROW))
    with pytest.raises(PublicationAltered, match="another table"):
        layouts.refresh()
    catalog.facts = altered(oid=16501)
    with pytest.raises(PublicationAltered):
        RelationResolver(catalog, members={T: (16500, "")}).change(insert(**FULL_ROW))


def test_what_is_kept_of_facts_is_what_they_were() -> None:
    facts = altered(3, file=17, skipped=frozenset("g"))
    assert GaussDbTableMetadata.from_description(json.loads(json.dumps(facts.describe()))) == facts


@pytest.mark.parametrize(
    ("now", "expected"),
    [("700 10", False), ("800 10", True), ("800 11", False), ("2 10", False), ("9000000000 10", True)],
    ids=["as it was", "renamed", "another owner", "frozen", "of 64 bits"],
)
def test_a_name_is_anew_where_the_row_type_is_written_and_has_its_owner(now: str, *, expected: bool) -> None:
    assert named_anew("700 10", named_by(f"16500 900 16500 5 3500 1 700 {now}")) is expected
