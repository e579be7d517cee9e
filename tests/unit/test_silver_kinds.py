"""Kinds of silver tables: what identifies a row, and the columns that silver adds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.span_index import SpanSummary, outline
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Target
from cdc_lake.errors import KeylessDelete, KindChanged, NoKey
from cdc_lake.model.change import Change, Delete, Insert, OldKind, Transaction, Update
from cdc_lake.model.position import Span
from cdc_lake.model.relation import Relation, ReplicaIdentity, TableName
from cdc_lake.runtime.apply.table_schema import check_named, shape_of
from cdc_lake.silver.kind import TablePart, same_key
from cdc_lake.silver.kinds import check_kind, kind_of, own_names, source_rows
from cdc_lake.silver.layout_mapping import RelationMapping
from cdc_lake_testing.messages import boundaries, raw_transaction, table

FULL = ReplicaIdentity.FULL
BARE = table("public.t", key=[], identity=FULL, id="int4", body="text")


def target(**given: object) -> Target:
    return Target(
        **{
            "source": TableName("public", "t"),
            "namespace": "s",
            "name": "t",
            "format": "delta",
            "keys": None,
            "rules": (),
        }
        | given
    )  # type: ignore[arg-type]


def shaped(relation: Relation, of: Target) -> RelationMapping:
    return shape_of((relation.layout,), {relation.layout: relation}, of, kind_of(of, relation))


def condition(shape: RelationMapping) -> str:
    return same_key(TablePart(shape, frozenset(), (), Span(1, 0, 9)), ("t.`id` BETWEEN 1 AND 5",))


def test_only_parts_of_a_key_that_may_be_null_are_matched_as_null_is():
    keyed = shaped(table("public.t", key=["id", "part"], id="int4", part="int4"), target())
    assert condition(keyed) == "t.`id` = s.`id` AND t.`part` = s.`part` AND t.`id` BETWEEN 1 AND 5"
    given = shaped(table("public.t", identity=FULL, id="int4", part="int4"), target(keys=("id", "part")))
    assert condition(given) == "t.`id` = s.`id` AND t.`part` <=> s.`part` AND t.`id` BETWEEN 1 AND 5"
    whole = shaped(BARE, target())
    assert condition(whole).startswith("t.`id` <=> s.`id` AND t.`body` <=> s.`body`")
    assert kind_of(target(), BARE).words == "`kind: current` without a key"


@pytest.mark.parametrize("given", [{"kind": "history"}, {"deletes": "soft"}], ids=str)
def test_versions_and_soft_deletes_need_a_key(given: dict[str, str]):
    with pytest.raises(NoKey) as refused:
        shaped(BARE, target(**given))
    assert refused.value.remedy.startswith(
        f"{NoKey.identity_hint}; if changes landed without one, then give public.t another"
    )


def seen(root: Path, *changes: Change) -> SpanSummary:
    bronze = DeltaBronze(root, durability="os")
    bronze.begin_stream("test", 10)
    bronze.append([raw_transaction(Transaction(boundaries(20), changes))])
    return outline(BronzeReader(root).files(), BARE.table, Span(1, 10, 20), snapshot=False)


def test_a_change_of_rows_without_a_key_names_all_of_the_row(tmp_path: Path):
    whole = seen(tmp_path / "whole", Insert(BARE, ("1", "b")), Update(BARE, ("1", "b"), ("1", "b"), OldKind.FULL))
    assert whole.bare is None
    check_named(whole, shaped(BARE, target()), target(), kind_of(target(), BARE), "test")
    bare = seen(tmp_path / "bare", Insert(BARE, ("1", "b")), Update(BARE, ("1", "c")))
    assert bare.bare == 20
    with pytest.raises(KeylessDelete, match="does not contain all values"):
        check_named(bare, shaped(BARE, target()), target(), kind_of(target(), BARE), "pg:1")


def test_a_key_of_now_that_an_older_layout_did_not_log_is_none(tmp_path: Path):
    before = table("public.t", key=["id"], id="int4", body="text")
    after = table("public.t", key=["body"], id="int4", body="text")
    found = seen(tmp_path / "t", Delete(before, ("1", None), OldKind.KEY), Insert(after, ("2", "b")))
    assert found.by_key == {before.layout}
    of = target()
    kind = kind_of(of, after)
    shape = shape_of((before.layout, after.layout), {r.layout: r for r in (before, after)}, of, kind)
    with pytest.raises(NoKey, match="did not log column `body`") as refused:
        check_named(found, shape, of, kind, "test")
    assert "`cdc-lake resync public.t`" in refused.value.remedy
    with pytest.raises(NoKey) as refused:
        check_named(found, shape, target(kind="history"), kind, "test")
    assert "resync" not in refused.value.remedy, "a past is made again through the same changes"
    assert "another silver table" in refused.value.remedy


T = table("public.t", id="int4")
KINDS: list[dict[str, Any]] = [{}, {"deletes": "soft"}, {"kind": "history"}, {"kind": "append"}]


def target_of_silver_metadata_columns(**given: Any) -> Target:
    return Target(TableName("public", "t"), "silver", "t", "delta", **{"keys": None, "rules": (), **given})


def test_closed_versions_and_own_columns_are_not_the_sources():
    history = pa.table(
        {
            "id": [1, 1],
            "valid_from_epoch": [1, 1],
            "valid_from": [10, 20],
            "valid_from_ts": [None, None],
            "valid_to_epoch": [1, None],
            "valid_to": [20, None],
            "valid_to_ts": [None, None],
            "is_current": [False, True],
            "_csn": [1, 2],
            "_lsn": [1, 2],
            "_xid": [1, 2],
            "_ordinal": [1, 1],
            "_commit_ts": [None, None],
        }
    )
    assert source_rows(history, target_of_silver_metadata_columns(kind="history", lineage=True), T).to_pylist() == [
        {"id": 1}
    ]


def test_rows_deleted_softly_are_not_the_sources():
    soft = pa.table({"id": [1, 2], "_is_deleted": [True, False]})
    assert source_rows(soft, target_of_silver_metadata_columns(deletes="soft"), T).to_pylist() == [{"id": 2}]


def test_a_column_of_the_source_with_such_a_name_stays_where_silver_adds_none():
    assert source_rows(pa.table({"is_current": [None]}), target_of_silver_metadata_columns(), T).column_names == [
        "is_current"
    ]


@pytest.mark.parametrize("made", KINDS, ids=str)
@pytest.mark.parametrize("said", KINDS, ids=str)
def test_a_kind_is_known_by_its_columns(made: dict[str, Any], said: dict[str, Any]):
    have, wanted = (["id", *own_names(target_of_silver_metadata_columns(**given), T, ())] for given in (made, said))
    if made == said:
        check_kind(have, wanted, "silver.t", T.table)
        return
    with pytest.raises(KindChanged, match=r"was created as .*, but now is"):
        check_kind(have, wanted, "silver.t", T.table)


def test_a_table_without_a_key_is_another_kind():
    bare = table("public.t", key=[], identity=ReplicaIdentity.FULL, id="int4")
    have = ["id", *own_names(target_of_silver_metadata_columns(), bare, ())]
    assert have == ["id", "_copy"]
    with pytest.raises(KindChanged, match="`kind: current` without a key, but now is `kind: current`"):
        check_kind(have, ["id", *own_names(target_of_silver_metadata_columns(), T, ())], "silver.t", T.table)
    assert own_names(target_of_silver_metadata_columns(keys=("id",)), bare, ()) == frozenset(), (
        "keys that are given identify rows"
    )


def test_old_values_are_silvers_own():
    have = ["id", "_op", "_old_id"]
    assert "_old_id" in own_names(target_of_silver_metadata_columns(kind="append", old_values=True), T, have)
    assert "_old_id" not in own_names(target_of_silver_metadata_columns(kind="append"), T, have)
