"""Columns that silver adds: what `compare` and `plan` see without them, and by which a table's kind is known."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from cdc_lake.config.project import Target
from cdc_lake.errors import KindChanged
from cdc_lake.model.relation import ReplicaIdentity, TableName
from cdc_lake.silver.kinds import check_kind, own_names, source_rows
from cdc_lake_testing.messages import table

T = table("public.t", id="int4")
KINDS: list[dict[str, Any]] = [{}, {"deletes": "soft"}, {"kind": "history"}, {"kind": "append"}]


def target(**given: Any) -> Target:
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
    assert source_rows(history, target(kind="history", lineage=True), T).to_pylist() == [{"id": 1}]


def test_rows_deleted_softly_are_not_the_sources():
    soft = pa.table({"id": [1, 2], "_is_deleted": [True, False]})
    assert source_rows(soft, target(deletes="soft"), T).to_pylist() == [{"id": 2}]


def test_a_column_of_the_source_with_such_a_name_stays_where_silver_adds_none():
    assert source_rows(pa.table({"is_current": [None]}), target(), T).column_names == ["is_current"]


@pytest.mark.parametrize("made", KINDS, ids=str)
@pytest.mark.parametrize("said", KINDS, ids=str)
def test_a_kind_is_known_by_its_columns(made: dict[str, Any], said: dict[str, Any]):
    have, wanted = (["id", *own_names(target(**given), T, ())] for given in (made, said))
    if made == said:
        check_kind(have, wanted, "silver.t", T.table)
        return
    with pytest.raises(KindChanged, match=r"was created as .*, but now is"):
        check_kind(have, wanted, "silver.t", T.table)


def test_a_table_without_a_key_is_another_kind():
    bare = table("public.t", key=[], identity=ReplicaIdentity.FULL, id="int4")
    have = ["id", *own_names(target(), bare, ())]
    assert have == ["id", "_copy"]
    with pytest.raises(KindChanged, match="`kind: current` without a key, but now is `kind: current`"):
        check_kind(have, ["id", *own_names(target(), T, ())], "silver.t", T.table)
    assert own_names(target(keys=("id",)), bare, ()) == frozenset(), "keys that are given identify rows"


def test_old_values_are_silvers_own():
    have = ["id", "_op", "_old_id"]
    assert "_old_id" in own_names(target(kind="append", old_values=True), T, have)
    assert "_old_id" not in own_names(target(kind="append"), T, have)
