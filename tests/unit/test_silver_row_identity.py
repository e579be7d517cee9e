"""What identifies a row, as SQL and as the outline of a span sees it: keys with NULL, rows without a key."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.span_index import SpanSummary, outline
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Target
from cdc_lake.errors import KeylessDelete, NoKey
from cdc_lake.model.change import Change, Delete, Insert, OldKind, Transaction, Update
from cdc_lake.model.position import Span
from cdc_lake.model.relation import Relation, ReplicaIdentity, TableName
from cdc_lake.runtime.apply.table_schema import check_named, shape_of
from cdc_lake.silver.kind import TablePart, same_key
from cdc_lake.silver.kinds import kind_of
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
