"""Transforms and divisions in a pipeline file: what is told about them, where, and what they come to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cdc_lake.comparison.pending_changes import PendingChange, fold_changes, is_explained
from cdc_lake.config.loader import load_project
from cdc_lake.config.project import Project, Target
from cdc_lake.config.silver_tables import Partition, Transforms
from cdc_lake.errors import TransformUnfit
from cdc_lake.model.diagnostic import ConfigInvalid
from cdc_lake.model.relation import ReplicaIdentity, TableName
from cdc_lake.ops.check.runner import _doubtful
from cdc_lake.silver.current import AppendKind
from cdc_lake.silver.layout_mapping import make_shape
from cdc_lake.silver.transforms import SilverMapping, silver_shape
from cdc_lake.tables.silver_table import declared_layout, partition_sql
from cdc_lake.tables.types import SilverColumn
from cdc_lake_testing.messages import table

HEAD = """\
version: 1
pipeline: shop
source: {type: postgres, host: h, port: 1, database: d, user: u, tables: ["public.*"]}
silver:
  tables:
    - from: public.orders
"""
ORDERS = table("public.orders", id="int8", region="text", qty="int4", note="text", **{"unit price": "int4"})


def project_of(folder: Path, *lines: str) -> Project:
    file = folder / "shop.yaml"
    file.write_text(HEAD + "".join(f"      {line}\n" for line in lines))
    return load_project(file)


@pytest.mark.parametrize(
    ("lines", "code", "place"),
    [
        (("columns: [id]", "exclude: [note]"), "CFG160", "exclude"),
        (("keys: [id]", "columns: [region]"), "CFG160", "keys[0]"),
        (("keys: [id]", "exclude: [id]"), "CFG160", "keys[0]"),
        (("exclude: [note]", "rename: {note: words}"), "CFG160", "rename.note"),
        (("columns: [id, region]", "rename: {id: Region}"), "CFG160", "rename.id"),
        (("rename: {qty: n}", 'compute: {N: "1"}'), "CFG160", "compute.N"),
        (('compute: {_cdc_op: "1"}',), "CFG160", "compute._cdc_op"),
        (("exclude: [note, note]",), "CFG137", "exclude[1]"),
        (('compute: {"unit price": "1"}',), "CFG107", "compute.unit price"),
        (('where: ""',), "CFG107", "where"),
        (("partition_by: [days(at)]",), "CFG161", "partition_by[0]"),
        (("format: iceberg", 'partition_by: ["bucket(0, id)"]'), "CFG161", "partition_by[0]"),
        (("format: iceberg", "partition_by: [weeks(at)]"), "CFG161", "partition_by[0]"),
        (("partition_by: [region]", "cluster_by: [id]"), "CFG161", "cluster_by"),
        (("cluster_by: [id, id]",), "CFG137", "cluster_by[1]"),
    ],
)
def test_what_contradicts_itself_is_told_at_its_place(
    tmp_path: Path, lines: tuple[str, ...], code: str, place: str
) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        project_of(tmp_path, *lines)
    found = [(d.code, d.location.path if d.location else "") for d in refused.value.diagnostics]
    assert found == [(code, f"silver.tables[0].{place}")]


def test_a_table_has_the_transforms_that_its_entry_says_and_others_have_none(tmp_path: Path) -> None:
    project = project_of(
        tmp_path,
        "exclude: [note]",
        "rename: {qty: quantity}",
        'compute: {total: "qty * 2"}',
        "where: \"region = 'EU'\"",
        "format: iceberg",
        'partition_by: [days( at ), "bucket(16,  id)", region]',
        "cluster_by: [quantity]",
    )
    target = project.target(TableName("public", "orders"))
    given = Transforms(None, ("note",), (("qty", "quantity"),), (("total", "qty * 2"),), "region = 'EU'")
    assert target.transforms == given
    assert declared_layout(target).partition_by == ("days(at)", "bucket(16, id)", "region")
    assert partition_sql(target) == " PARTITIONED BY (days(`at`), bucket(16, `id`), `region`)"
    assert project.key_location(target, "compute.total").endswith("shop.yaml:9")
    assert project.target(TableName("public", "others")).transforms == Transforms()
    assert (Transforms().fingerprint, Transforms().any, given.any) == ("", False, True)
    assert given.fingerprint != Transforms(None, ("note",), (), (("total", "qty * 2"),), "region = 'EU'").fingerprint


@pytest.mark.parametrize("text", ["", "a b", "days()", "days(a, b)", "bucket(a)", "bucket(-1, a)", "f(x)", "a,b"])
def test_what_is_no_partition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no partition"):
        Partition.parse(text)


def shape_of(given: Transforms) -> SilverMapping:
    layout = make_shape([ORDERS.layout], {ORDERS.layout: ORDERS}, None)
    computed = dict.fromkeys((name for name, _ in given.compute), "int")
    return silver_shape(layout, given, computed, "silver.orders", lambda key: key)


def test_silver_has_its_columns_in_the_sources_order_then_the_computed_ones() -> None:
    shape = shape_of(Transforms(exclude=("region",), rename=(("unit price", "price"),), compute=(("total", "x"),)))
    assert [c.ddl for c in shape.columns] == ["`id` bigint", "`qty` int", "`note` string", "`price` int", "`total` int"]
    assert [c.name for c in shape.key_columns] == ["id"]
    assert shape.typed_sql(0, "x") == "try_cast(x AS bigint)"


def test_old_values_are_of_the_columns_that_silver_takes_by_its_names() -> None:
    plain = make_shape([ORDERS.layout], {ORDERS.layout: ORDERS}, None)
    carried = {SilverColumn("_op", "string"): "op", **AppendKind(old_values=True).passthrough_columns(plain)}
    given = Transforms(columns=("id", "qty"), rename=(("qty", "quantity"),), compute=(("total", "qty * 2"),))
    shape = replace(plain, carried=carried, old_values=True)
    silver = silver_shape(shape, given, {"total": "int"}, "silver.orders", lambda key: key)
    beside = {f"_cdc_beside_{column.name}": text for column, text in silver.carried.items()}
    assert {column.name: text for column, text in silver.source.carried.items()} == beside, "the source may have such"
    old = {column.name: text for column, text in silver.carried.items() if column.name.startswith("_old_")}
    assert old == {"_old_id": "try_cast(old[0] AS bigint)", "_old_quantity": "try_cast(old[2] AS int)"}
    names = [column.name for column in AppendKind(old_values=True).columns(silver)]
    assert names[:4] == ["id", "quantity", "total", "_op"]
    assert names[-2:] == ["_old_id", "_old_quantity"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Transforms(columns=("id", "gone")), "`columns` names `gone`"),
        (Transforms(exclude=("id",)), "`id` identifies rows"),
        (Transforms(rename=(("qty", "REGION"),)), "would have the name"),
    ],
)
def test_what_does_not_fit_the_layout_is_refused(given: Transforms, said: str) -> None:
    with pytest.raises(TransformUnfit, match=said):
        shape_of(given)


def test_check_names_the_columns_that_an_update_may_leave_out() -> None:
    def doubtful(given: Transforms, identity: ReplicaIdentity = ReplicaIdentity.DEFAULT) -> list[str]:
        layout = table("public.orders", identity=identity, id="int8", region="text", qty="int4", note="text")
        return _doubtful(Target(layout.table, "silver", "orders", "delta", None, (), transforms=given), layout)

    assert doubtful(Transforms(where="qty > 1")) == ["region", "note"]
    assert doubtful(Transforms(where="qty > 1 AND region = 'EU'", exclude=("note", "region"))) == ["region"]
    assert doubtful(Transforms(where="qty > 1", columns=("id", "qty"))) == []
    assert doubtful(Transforms(compute=(("size", "length(note)"),))) == []
    assert doubtful(Transforms(compute=(("size", "length(note)"),), exclude=("note",))) == ["note"]
    assert doubtful(Transforms(where="qty > 1"), ReplicaIdentity.FULL) == []


def test_a_held_change_of_a_row_that_a_filter_kept_out_explains_what_it_tells() -> None:
    change = PendingChange((1, 5, 1), "U", {"id": "1", "qty": "9", "note": None}, None, frozenset({"note"}))
    found = fold_changes([change], ["id"], ["id", "qty", "note"], {}, partial=True)
    assert found.odd == frozenset()
    assert found.rows == {("1",): ({"id": "1", "qty": "9"},)}
    assert is_explained(found.rows["1",], [{"id": "1", "qty": "9", "note": "large"}])
    assert not is_explained(found.rows["1",], [{"id": "1", "qty": "8", "note": "large"}])
    assert not is_explained(found.rows["1",], [])
    assert fold_changes([change], ["id"], ["id", "qty", "note"], {}).odd == {("1",)}
