"""What a new layout of a source table asks of its silver table, and names that are one name in silver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Target
from cdc_lake.config.silver_tables import Declared, TypePolicy
from cdc_lake.errors import DestructiveChange, SilverNameShared, Unconvertible, UnexpectedColumn
from cdc_lake.model.relation import Column, Missing, Relation, ReplicaIdentity, TableName
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.ops.plan import _copy_again, _foreign
from cdc_lake.runtime.apply.schema_changes import check_columns, check_names, refuse, shared_names
from cdc_lake.runtime.apply.table_integrity import ApprovedOperations
from cdc_lake.tables.casts import conversion
from cdc_lake.tables.schema_evolution import (
    AddColumn,
    BeginAgain,
    ChangeType,
    DropColumn,
    KeepColumn,
    OnDrop,
    RenameColumn,
    SchemaChange,
    columns_after,
    layout_columns,
    operations,
    restate_columns,
    unlike,
)
from cdc_lake.tables.types import SilverColumn
from tests.mistakes import kept
from tests.pipeline_file import make_project

OIDS = {"int2": 21, "int4": 23, "int8": 20, "text": 25, "varchar": 1043, "float4": 700, "float8": 701, "date": 1082}


def column(text: str, missing: Missing | None = None) -> Column:
    """`name:type` or `name:type:number`."""
    name, kind, *number = text.split(":")
    return Column(name, kind, OIDS[kind], key=name == "id", number=int(number[0]) if number else None, missing=missing)


def layout(*columns: str | Column, oid: int | None = None) -> Relation:
    made = tuple(column(c) if isinstance(c, str) else c for c in columns)
    oid = 1 if oid is None and all(c.number is not None for c in made) else oid
    return Relation(TableName("public", "t"), made, ReplicaIdentity.DEFAULT, ("id",), oid)


def between(
    before: Relation, after: Relation, have: Sequence[SilverColumn] | None = None, on_drop: OnDrop = "keep"
) -> list[tuple[str, bool]]:
    return [(change.text("s.t"), change.destructive) for change in operations(before, after, have, on_drop)]


def test_layouts_that_silver_sees_alike_ask_for_nothing() -> None:
    assert between(layout("id:int8", "t:varchar"), layout("id:int8", "t:text")) == []
    assert between(layout("id:int8:1", "t:text:2"), layout("id:int8", "t:text")) == []


def test_a_column_that_is_added_is_additive() -> None:
    assert between(layout("id:int8:1"), layout("id:int8:1", "c d:date:2")) == [
        ("add column c_d_e406a0 date to s.t", False)
    ]


def test_rows_before_a_column_get_the_default_that_the_server_gives_them() -> None:
    new = column("n:int4:2", Missing("7"))
    (added,) = operations(layout("id:int8:1"), layout("id:int8:1", new))
    assert isinstance(added, AddColumn)
    assert not added.destructive
    assert added.fill is not None
    assert "try_cast('7' AS int)" in added.fill


def test_a_column_whose_old_values_nobody_knows_waits() -> None:
    new = column("n:int4:2", Missing(None))
    assert between(layout("id:int8:1"), layout("id:int8:1", new)) == [
        ("add column n int to s.t, rows before it unknown", True)
    ]


def test_a_column_that_is_gone_is_kept_or_dropped_as_the_pipeline_says() -> None:
    before, after = layout("id:int8:1", "b:text:2"), layout("id:int8:1")
    assert between(before, after) == [("keep column b of s.t, NULL from now on", False)]
    assert between(before, after, on_drop="drop") == [("drop column b of s.t", True)]


def test_a_column_known_by_its_number_is_renamed() -> None:
    before, after = layout("id:int8:1", "a:int4:2", "b:int4:3"), layout("id:int8:1", "b:int4:2", "a:int4:3")
    assert between(before, after) == [("rename column a of s.t to b", True), ("rename column b of s.t to a", True)]
    have = columns_after(layout_columns(before), operations(before, after))
    assert [c.name for c in have] == ["id", "b", "a"]


def test_a_column_dropped_and_made_again_is_another_one() -> None:
    before, after = layout("id:int8:1", "a:int4:2"), layout("id:int8:1", "a:int4:3")
    assert between(before, after) == [("drop column a of s.t", True), ("add column a int to s.t", False)]


def test_without_numbers_a_drop_beside_an_add_of_its_type_may_be_a_rename_and_waits() -> None:
    assert between(layout("id:int8", "a:int4"), layout("id:int8", "b:int4")) == [
        ("keep column a of s.t, NULL from now on", False),
        ("add column b int to s.t, rows before it unknown", True),
    ]
    assert [d for _, d in between(layout("id:int8", "a:int4"), layout("id:int8", "b:text"))] == [False, False]


def test_a_name_that_a_kept_column_has_is_freed_first() -> None:
    have = (*layout_columns(layout("id:int8:1")), SilverColumn("Old", "string"))
    assert between(layout("id:int8:1"), layout("id:int8:1", "old:int4:5"), have) == [
        ("drop column Old of s.t", True),
        ("add column old int to s.t", False),
    ]
    assert between(layout("id:int8:1"), layout("id:int8:1", "n:int4:5"), have) == [("add column n int to s.t", False)]


def test_of_names_that_differ_by_case_the_second_follows_when_the_first_goes() -> None:
    before, after = layout("id:int8:1", "a:int4:2", "A:int4:3"), layout("id:int8:1", "A:int4:3")
    old, new = layout_columns(before)[2].name, layout_columns(after)[1].name
    assert (old.startswith("A_"), new) == (True, "A")
    assert between(before, after) == [
        ("drop column a of s.t", True),
        (f"rename column {old} of s.t to A", True),
    ]


def test_types_that_hold_every_old_value_are_additive_and_others_are_not() -> None:
    assert between(layout("id:int4", "f:float4"), layout("id:int8", "f:float8")) == [
        ("change column id of s.t from int to bigint", False),
        ("change column f of s.t from float to double", False),
    ]
    assert between(layout("id:int8"), layout("id:int4")) == [("change column id of s.t from bigint to int", True)]


def test_a_table_made_again_under_its_name_begins_again() -> None:
    before, after = layout("id:int8:1", "a:text:2", oid=1), layout("id:int8:1", "a:text:2", oid=2)
    assert operations(before, after) == (BeginAgain(),)
    assert BeginAgain().destructive


def test_a_small_integer_is_held_by_icebergs_int() -> None:
    have = [SilverColumn("id", "bigint"), SilverColumn("n", "int")]
    assert between(layout("id:int8", "n:int2"), layout("id:int8", "n:int2"), have) == []
    assert unlike(have, layout("id:int8", "n:int2")) == ()
    assert unlike(have, layout("id:int8", "n:int8")) == (ChangeType("n", "int", "bigint"),)


def test_where_nobody_knows_the_layout_before_columns_are_known_by_name() -> None:
    have = [SilverColumn("id", "bigint"), SilverColumn("gone", "string")]
    kept = KeepColumn(SilverColumn("gone", "string"))
    assert unlike(have, layout("id:int8:1", "more:int4:3")) == (kept, AddColumn(SilverColumn("more", "int")))
    maybe_renamed = AddColumn(SilverColumn("more", "string"), unknown=True)
    assert unlike(have, layout("id:int8:1", "more:text:3")) == (kept, maybe_renamed)
    assert unlike(have, layout("id:int8:1"), "drop") == (DropColumn(SilverColumn("gone", "string")),)


def test_one_statement_states_a_table_with_all_its_changes() -> None:
    have = [SilverColumn(name, "int") for name in ("id", "a", "b", "c")]
    changes: list[SchemaChange] = [
        DropColumn(SilverColumn("c", "int")),
        RenameColumn("a", "b"),
        RenameColumn("b", "a"),
        ChangeType("a", "int", "bigint"),
        AddColumn(SilverColumn("c", "string"), "'x'"),
    ]
    assert restate_columns(have, changes, "is_current") == (
        (SilverColumn("id", "int"), "`id`"),
        (SilverColumn("b", "int"), "`a`"),
        (SilverColumn("a", "bigint"), "CAST(`b` AS bigint)"),
        (SilverColumn("c", "string"), "CAST(CASE WHEN is_current THEN 'x' END AS string)"),
    )
    assert columns_after(have, changes) == tuple(c for c, _ in restate_columns(have, changes, "true"))


@pytest.mark.parametrize(
    ("old", "new", "known"),
    [
        ("int", "string", True),
        ("decimal(10,2)", "string", True),
        ("string", "int", True),
        ("bigint", "int", True),
        ("float", "string", False),
        ("timestamp", "string", False),
        ("binary", "string", False),
        ("boolean", "int", False),
    ],
)
def test_only_conversions_that_are_the_servers_own_are_made(old: str, new: str, known: bool) -> None:
    assert (conversion("v", old, new) is not None) is known
    if not known:
        with pytest.raises(Unconvertible):
            restate_columns([SilverColumn("n", old)], [ChangeType("n", old, new)], "true")


@pytest.mark.parametrize(("kind", "oid", "known"), [("smalldatetime", 9003, False), ("timestamp", 1114, True)])
def test_texts_that_the_server_rounds_to_minutes_are_copied_again(kind: str, oid: int, known: bool) -> None:
    columns = (Column("t", "text", 25, number=2), Column("t", kind, oid, number=2))
    (change,) = operations(*(layout("id:int8:1", one) for one in columns))
    assert isinstance(change, ChangeType)
    assert change.convertible is known


def test_a_layout_with_numbers_and_defaults_is_read_as_it_was_written() -> None:
    one = layout("id:int8:1", column("n:int4:2", Missing("7")), column("m:int4:3", Missing(None)))
    assert Relation.from_description(one.describe()) == one
    assert replace(one, oid=2).layout != one.layout


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({}, "resync public.t"),
        *(({"kind": kind}, "restart") for kind in ("history", "append")),
        ({"deletes": "soft"}, "restart"),
    ],
)
def test_what_only_the_source_can_convert_is_never_answered_by_what_is_refused(
    changes: dict[str, str], remedy: str
) -> None:
    target = replace(Target(TableName("public", "t"), "s", "t", "delta", None, ()), **changes)  # type: ignore[arg-type]
    with pytest.raises(Unconvertible) as refused:
        refuse([ChangeType("n", "float", "string")], target, ())
    assert f"`cdc-lake {remedy}`" in refused.value.remedy
    assert ("resync" in refused.value.remedy) is (remedy != "restart")
    assert _copy_again(target, ChangeType("n", "float", "string"), None).text.endswith(refused.value.remedy), (
        "plan says so too"
    )


def test_what_is_destructive_says_how_to_have_it_done() -> None:
    target = Target(TableName("public", "t"), "s", "t", "delta", None, ())
    changes = (DropColumn(SilverColumn("b", "string")),)
    refuse(changes, target, {"drop column b of s.t"})
    with pytest.raises(DestructiveChange) as refused:
        refuse(changes, target, {"drop column B of s.t"})
    assert "cdc-lake run --allow 'drop column b of s.t'" in (refused.value.remedy or "")
    kept("destructive-change", refused.value)


def test_all_that_a_table_waits_with_is_named_and_what_was_allowed_for_nothing_is_said() -> None:
    target = Target(TableName("public", "t"), "s", "t", "delta", None, ())
    changes = (DropColumn(SilverColumn("b", "string")), RenameColumn("a", "c"), DropColumn(SilverColumn("d", "int")))
    words = [change.text("s.t") for change in changes]
    allowed, told = ApprovedOperations([words[1], "drop column D of s.t", words[2]]), list[ProgressEvent]()
    with pytest.raises(DestructiveChange, match=words[0]) as refused:
        refuse(changes, target, allowed)
    assert words[1] not in str(refused.value)
    allowed.say(told.append)
    assert [(one.stage, one.facts) for one in told] == [("warning", {"operation": "drop column D of s.t"})]
    refuse(changes, target, ApprovedOperations(words))
    with pytest.raises(DestructiveChange) as refused:
        refuse(changes, target, ApprovedOperations([words[1]]))
    assert f"run --allow '{words[0]}' --allow '{words[2]}'`" in (refused.value.remedy or "")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (("id", "n"), None),
        (("id", "n", "_cdc_next_n"), None),
        (("id", "n", "n_decimal"), "is the second column of a numeric that is no longer declared `both`"),
        (("id", "n", "segment"), "public.t never had the column `segment` of silver.t"),
        (("id", "n", "_is_deleted"), "was created as"),
    ],
)
def test_plan_says_that_a_table_waits_with_columns_that_the_pipeline_does_not_make(
    tmp_path: Path, columns: tuple[str, ...], said: str | None
) -> None:
    project = make_project(tmp_path, "p")
    target = project.target(TableName("public", "t"))
    write_deltalake(str(project.silver_path(target)), pa.table({name: pa.array([], pa.string()) for name in columns}))
    numeric = Relation(target.source, (column("id:int8"), Column("n", "numeric", 1700)), ReplicaIdentity.DEFAULT)
    actions = list(_foreign(project, bronze_reader(project), target, numeric))
    assert [(action.destructive, said is not None and said in action.text) for action in actions] == (
        [] if said is None else [(True, True)]
    )


def test_the_decimal_beside_a_text_that_is_not_declared_any_more_has_a_remedy() -> None:
    relation = Relation(TableName("public", "t"), (Column("n", "numeric", 1700),), ReplicaIdentity.DEFAULT)
    other = Relation(TableName("public", "t"), (column("n_decimal:int4"),), ReplicaIdentity.DEFAULT)
    target = Target(relation.table, "s", "t", "delta", None, ())
    with pytest.raises(UnexpectedColumn) as refused:
        check_columns(target, ["n", "n_decimal"], relation, [])
    assert "cdc-lake rebuild public.t" in refused.value.remedy
    kept("another-shape", refused.value)
    check_columns(target, ["n", "n_decimal"], relation, [other])  # one that the source had, and that is kept
    check_columns(replace(target, types=TypePolicy(Declared.parse("both(9,2)"), ())), ["n", "n_decimal"], relation, [])


def test_names_that_fold_to_one_are_told_with_both(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    names = [TableName("public", name) for name in ("orders", "Orders", "строки", "поля__", "items", "a b", "a_b")]
    shared = shared_names(project, names)
    assert {str(table) for table in shared} == {
        "public.orders",
        "public.Orders",
        "public.строки",
        "public.поля__",
        "public.a b",
        "public.a_b",
    }
    assert "`public.Orders` and `public.orders` would both be written to silver.orders" in shared[names[0]].message
    with pytest.raises(SilverNameShared):
        check_names(project, names)
    check_names(project, [TableName("public", "items"), TableName("other", "items")])
