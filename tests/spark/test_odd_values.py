"""Values that are odd in one place: line breaks of Unicode in statistics, empty texts in partition columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc_lake.errors import TransformUnfit
from cdc_lake.lake.read import silver_version
from cdc_lake.lake.written import written
from cdc_lake.model.change import Delete, Insert, OldKind, Update
from cdc_lake.pipeline.target import division
from cdc_lake.testing.histories import AT_LIMITS, LINE_BREAKS, with_column
from cdc_lake.testing.messages import TYPE_OIDS, table

from .formats import FORMATS
from .test_apply_cases import Lake, T, insert, row

pytestmark = pytest.mark.spark


@FORMATS
def test_texts_with_every_line_break_or_at_a_limit_of_statistics_arrive_and_do_not_stop_what_follows(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    lake = Lake(lake_root, spark, "breaks", fmt)
    lake.land(insert("0", "0"))
    lake.advance()
    texts = [*(f"a{one}b" for one in LINE_BREAKS), "".join(LINE_BREAKS), *AT_LIMITS]
    for number, text in enumerate(texts):
        lake.land(insert(str(number + 1), "1", text))
        lake.advance()
        assert written(lake.project, lake.target(), silver_version(lake.project, lake.target())).files
    lake.land(*(Update(T, (str(number + 1), "2", text)) for number, text in enumerate(texts)))
    lake.advance()
    assert lake.rows() == [row(0, 0), *(row(number + 1, 2, text) for number, text in enumerate(texts))]


R = table("public.t", key=["id", "region"], id="int4", region="text", amount="int4")


def test_a_delta_table_is_not_divided_by_texts_or_bytes(spark: Any, lake_root: Path) -> None:
    for name, relation in (("text", R), ("bytes", table("public.t", id="int4", region="bytea"))):
        lake = Lake(lake_root, spark, f"divided_by_{name}", "delta", table={"partition_by": ["region"]})
        lake.land(Insert(relation, ("1", "\\x00", "1")[: len(relation.columns)]))
        with pytest.raises(TransformUnfit, match="partition_by") as refused:
            lake.advance()
        assert "cluster_by: [region]" in refused.value.remedy
        computed = {"partition_by": ["part"], "compute": {"part": "upper(CAST(region AS STRING))"}}
        lake = Lake(lake_root, spark, f"divided_by_computed_{name}", "delta", table=computed)
        lake.land(Insert(relation, ("1", "\\x00", "1")[: len(relation.columns)]))
        with pytest.raises(TransformUnfit, match="partition_by"):
            lake.advance()


def test_a_delta_table_that_is_divided_by_a_text_holds_what_would_become_null(
    spark: Any, lake_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(lake_root, spark, "divided_before", "delta", table={"partition_by": ["region"]})
    lake.land(Insert(R, ("1", "EU", "1")), Insert(R, ("2", " ", "1")))
    with monkeypatch.context() as before:
        before.setattr(division, "check_partition_types", lambda *_: None)
        lake.advance()
    hive = "__HIVE_DEFAULT_PARTITION__"
    lake.land(Insert(R, ("3", "", "1")), Insert(R, ("4", hive, "1")), Insert(R, ("5", "a/b=c", "1")))
    lake.land(Update(R, ("3", "", "2")), Update(R, ("1", "EU", "2")))
    lake.advance()
    assert lake.rows() == [
        {"id": 1, "region": "EU", "amount": 2},
        {"id": 2, "region": " ", "amount": 1},
        {"id": 5, "region": "a/b=c", "amount": 1},
    ]
    assert lake.held() == [("failed", ["type_region"]), ("failed", ["type_region"]), ("waiting", [])]
    lake.land(Delete(R, ("3", "", None), OldKind.KEY), Delete(R, ("4", hive, None), OldKind.KEY))
    lake.advance()
    assert len(lake.rows()) == 3


@pytest.mark.parametrize("given", [{"partition_by": ["amount"]}, {"cluster_by": ["amount"]}])
def test_columns_are_added_to_a_delta_table_whose_files_are_divided(
    spark: Any, lake_root: Path, given: dict[str, Any]
) -> None:
    lake = Lake(lake_root, spark, f"grown_{next(iter(given))}", "delta", table=given)
    lake.land(insert("1", "1"), insert("2", None))
    lake.advance()
    wider = with_column(T, "note", "text", TYPE_OIDS["text"])
    lake.land(Insert(wider, ("3", "1", "b", "new")), Insert(wider, ("4", "4", "b", None)))
    lake.land(Update(wider, ("1", "5", "b", "moved")))
    lake.advance()
    assert [(one["id"], one["amount"], one["note"]) for one in lake.rows()] == [
        (1, 5, "moved"),
        (2, None, None),
        (3, 1, "new"),
        (4, 4, None),
    ]
