"""Values that are odd in one place: line breaks of Unicode in statistics, empty texts in partition columns."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.errors import DestructiveChange, TableEndsSpark, TransformUnfit, Unconvertible
from cdc_lake.model.change import UNCHANGED, Delete, Insert, OldKind, Truncate, Update
from cdc_lake.model.relation import Column, Relation, ReplicaIdentity, TableName
from cdc_lake.runtime.apply import schema_changes, table_planner
from cdc_lake.runtime.apply.merge import MergeResult, merge
from cdc_lake.runtime.apply.table_span import MergePlan
from cdc_lake.runtime.quarantine import Choice, decide
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.spark_session import derive
from cdc_lake_testing.histories import AT_LIMITS, LINE_BREAKS, with_column
from cdc_lake_testing.messages import TYPE_OIDS, table

from .conftest import BUDGET
from .formats import FORMATS, drawn
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
        if fmt == "iceberg" and BUDGET == 1 and number not in {0, len(LINE_BREAKS), len(texts) - 1}:
            continue  # its bounds are bytes, and those of the long texts are all the same
        lake.advance()
        assert (
            table_log(lake.project, lake.target())
            .commit_metrics(table_log(lake.project, lake.target()).version())
            .files
        )
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
        before.setattr(schema_changes, "check_partition_types", lambda *_: None)
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
    assert lake.quarantined() == [("failed", ["type_region"]), ("failed", ["type_region"]), ("waiting", [])]
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


def of_type(kind: str, modifier: int = -1) -> Relation:
    columns = (
        Column("id", kind, {"bpchar": 1042, **TYPE_OIDS}[kind], modifier, key=True, number=1),
        Column("doc", "json", 114, number=2),
    )
    return Relation(TableName("public", "t"), columns, ReplicaIdentity.DEFAULT, ("id",), oid=7)


@FORMATS
def test_a_key_whose_type_strips_its_blanks_is_converted_once_that_is_allowed(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    lake = Lake(lake_root, spark, "stripped", fmt)
    padded, stripped = of_type("bpchar", 9), of_type("varchar", 9)
    lake.land(Insert(padded, ("a    ", "1")), Insert(padded, ("b    ", "2")))
    lake.advance()
    # In one transaction with the change, and behind it.
    lake.land(Insert(padded, ("c    ", "3")), Update(padded, ("b    ", "4")), Update(stripped, ("c", "5")))
    lake.land(Update(stripped, ("a", "6")), Delete(stripped, ("b", None), OldKind.KEY))
    with pytest.raises(DestructiveChange, match=r"convert column id of .* from bpchar\(5\) to varchar\(5\)"):
        lake.advance()
    lake.advance(f"convert column id of {lake.target().label} from bpchar(5) to varchar(5)")
    assert lake.rows() == [{"id": "a", "doc": "6"}, {"id": "c", "doc": "5"}]


@drawn
def test_what_only_the_server_can_convert_waits_for_another_copy(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = Lake(lake_root, spark, "reprinted", fmt)
    before = of_type("int4")
    after = replace(before, columns=(before.columns[0], replace(before.columns[1], type_name="jsonb", type_oid=3802)))
    lake.land(Insert(before, ("1", '{"b":1,"a":1.0}')))
    lake.advance()
    lake.land(Insert(after, ("2", '{"a": 1.0, "b": 1}')))
    with pytest.raises(Unconvertible, match="from json to jsonb") as refused:
        lake.advance(f"convert column doc of {lake.target().label} from json to jsonb")
    assert "cdc-lake resync public.t" in refused.value.remedy


@drawn
def test_rows_whose_texts_become_dates_are_converted_or_the_table_waits(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = Lake(lake_root, spark, "dated", fmt)
    texts, dates = (
        replace(one, columns=(one.columns[0], Column("doc", kind, TYPE_OIDS[kind], number=2)))
        for one, kind in ((of_type("int4"), "text"), (of_type("int4"), "date"))
    )
    to_date, to_text = (
        f"change column doc of {lake.target().label} from {way}" for way in ("string to date", "date to string")
    )
    lake.land(Insert(texts, ("1", "2024-02-29")), Insert(texts, ("2", None)), Insert(texts, ("3", "0001-01-01")))
    lake.advance()
    lake.land(Insert(dates, ("4", "9999-12-31")), Insert(dates, ("5", "infinity")))
    lake.advance(to_date)
    made = [(1, date(2024, 2, 29)), (2, None), (3, date.min), (4, date.max)]
    assert [(one["id"], one["doc"]) for one in lake.rows()] == made
    assert lake.quarantined() == [("failed", ["type_doc"])]
    lake.land(Insert(texts, ("6", "0044-03-15 BC")))
    lake.advance(to_text)
    lake.land(Insert(dates, ("7", "2024-01-01")))
    with pytest.raises(Unconvertible, match="texts that are not values of their column's new type") as refused:
        lake.advance(to_date)
    assert "cdc-lake resync public.t" in refused.value.remedy
    assert [one["doc"] for one in lake.rows()] == ["2024-02-29", None, "0001-01-01", "9999-12-31", "0044-03-15 BC"]


DECIMAL_KEY = {"types": {"columns": {"id": "decimal(10,4)"}}}


def numbered(kind: str) -> Relation:
    return table("public.t", id=kind, amount="int4", body="text")


def rows_by_text(lake: Lake) -> list[tuple[str, int | None]]:
    return sorted((str(one["id"]), one["amount"]) for one in lake.rows())


def get_another_text(lake: Lake) -> None:
    """An update at the source that moves no row of silver: it has the key that it had."""
    quarantined = lake.quarantined()
    lake.land(Update(numbered("numeric"), ("2.00", "4", UNCHANGED), ("2", None, None), OldKind.KEY))
    lake.advance()
    assert (lake.quarantined(), rows_by_text(lake)[-1]) == (quarantined, ("2.0000", 4))


@drawn
def test_texts_of_one_number_are_one_key_also_for_what_is_held(spark: Any, lake_root: Path, fmt: str) -> None:
    rule = {"rule": "between", "column": "amount", "max": 10, "on_fail": "quarantine"}
    n = numbered("numeric")
    lake = Lake(lake_root, spark, "numbers", fmt, [rule], table=DECIMAL_KEY)
    lake.land(Insert(n, ("1.0", "1", "a")), Insert(n, ("2", "1", "a")))
    lake.advance()
    lake.land(Update(n, ("1.0", "99", "held")))
    lake.advance()
    # The row of the held key goes, and another one comes under another text of it.
    lake.land(Delete(n, ("1.0", None, None), OldKind.KEY), Insert(n, ("1.00", "3", "new")))
    lake.advance()
    assert rows_by_text(lake) == [("1.0000", 1), ("2.0000", 1)]
    assert [reason for reason, _ in lake.quarantined()] == ["failed", "waiting", "waiting"]
    get_another_text(lake)
    assert rows_by_text(lake) == [("1.0000", 1), ("2.0000", 4)]
    assert len(decide(lake.project, "release", "t", Choice(("1.0000",)), "fine", yes=True).changes) == 3
    lake.land(Insert(n, ("7", "1", "a")))
    lake.advance()
    assert rows_by_text(lake) == [("1.0000", 3), ("2.0000", 4), ("7.0000", 1)], "the row that lives is not deleted"
    lake.land(Truncate(n), Insert(n, ("2.000", "5", "last")))
    lake.advance()
    assert rows_by_text(lake) == [("2.0000", 5)]


@drawn
def test_minus_zero_is_held_where_only_the_value_tells_rows_apart(spark: Any, lake_root: Path, fmt: str) -> None:
    f = numbered("float8")
    bag = table("public.bag", key=[], identity=ReplicaIdentity.FULL, id="float8", amount="int4")
    lake = Lake(lake_root, spark, "minus_zero", fmt)
    lake.land(Insert(f, ("0", "1", "a")), Insert(f, ("NaN", "1", "a")), Insert(f, ("-1.5", "1", "a")))
    lake.land(*(Insert(bag, row) for row in (("0", "1"), ("0", "2"), ("0", "2"), ("-0", "1"), ("-0", "2"))))
    lake.advance()
    lake.land(Update(f, ("-0", "2", "a"), ("0", None, None), OldKind.KEY))
    lake.land(Update(f, ("NaN", "2", "a")), Update(f, ("-0", "3", "a")))
    lake.land(Delete(bag, ("-0", "1"), OldKind.FULL), Update(bag, ("0", "3"), ("-0", "2"), OldKind.FULL))
    lake.land(Delete(bag, ("0", "2"), OldKind.FULL), Update(bag, ("0", "4"), ("0", "2"), OldKind.FULL))
    lake.advance()
    assert rows_by_text(lake) == [("-1.5", 1), ("0.0", 1), ("nan", 2)]
    rows = table_log(lake.project, lake.target(bag)).read().to_pylist()
    assert sorted((str(one["id"]), one["amount"]) for one in rows) == [("0.0", 1), ("0.0", 4)], (
        "no row of 0 went for -0"
    )
    failed, waiting = ("failed", ["type_id"]), ("waiting", [])
    assert lake.quarantined() == [failed, failed, failed, waiting, waiting, waiting]


def test_an_overwrite_is_of_the_whole_table_whatever_a_configuration_says(spark: Any, lake_root: Path) -> None:
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    table_ = {"partition_by": ["amount"], "on_drop": "drop"}
    lake = Lake(lake_root, spark, "whole", "delta", table=table_)
    lake.land(insert("1", "1"), insert("2", "2"))
    lake.advance()
    lake.land(Insert(replace(T, columns=T.columns[:2]), ("3", "1")))
    lake.advance(f"drop column body of {lake.target().label}")
    assert [(one["id"], one["amount"]) for one in lake.rows()] == [(1, 1), (2, 2), (3, 1)]
    assert derive(spark).conf.get("spark.sql.sources.partitionOverwriteMode") == "static"


def test_the_plan_of_a_wide_table_has_the_steps_of_a_narrow_one(
    spark: Any, lake_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,600 columns are what PostgreSQL has at most: a step or a nesting for each of them would end Java's stack."""
    plans: list[str] = []

    def seen(one: MergePlan) -> MergeResult:
        plans.append(one.folded.net._jdf.queryExecution().optimizedPlan().numberedTreeString())
        return merge(one)

    monkeypatch.setattr(table_planner, "merge", seen)
    for number in (20, 80 if BUDGET == 1 else 200):
        wide = table("public.t", id="int4", **{f"c{at}": ("int4", "text")[at % 2] for at in range(number)})
        lake = Lake(lake_root, spark, f"wide{number}", "delta")
        lake.land(Insert(wide, ("1", *["1"] * number)), Insert(wide, ("2", *["2"] * number)))
        lake.advance()
        lake.land(Update(wide, ("1", *["3"] * (number // 2), *[UNCHANGED] * (number // 2))))
        lake.land(
            Update(
                wide, ("9", *["4"] * (number // 2), *[UNCHANGED] * (number // 2)), ("2", *[None] * number), OldKind.KEY
            )
        )
        lake.advance()
        assert [[str(one[f"c{at}"]) for at in (0, number - 1)] for one in lake.rows(wide)] == [["3", "1"], ["4", "2"]]
    narrow, broad = plans[:2], plans[2:]
    assert [plan.count("\n") for plan in broad] == [plan.count("\n") for plan in narrow]
    assert derive(spark).conf.get("spark.sql.constraintPropagation.enabled") == "false"


def test_a_plan_that_ends_javas_stack_keeps_its_table_alone_from_going_on(
    spark: Any, lake_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deep(one: MergePlan) -> MergeResult:
        if one.shape.relation.table == T.table:
            endless = one.folded.net.sparkSession._jvm.java.util.ArrayList()
            endless.add(endless)
            endless.hashCode()
        return merge(one)

    monkeypatch.setattr(table_planner, "merge", deep)
    beside = table("public.beside", id="int4")
    lake = Lake(lake_root, spark, "deep", "delta")
    lake.land(insert("1", "1"), Insert(beside, ("1",)))
    with pytest.raises(TableEndsSpark, match=r"too little space to work on deep_delta\.t: StackOverflowError"):
        lake.advance()
    assert lake.rows(beside) == [{"id": 1}]
    monkeypatch.undo()
    lake.advance()
    assert lake.rows() == [row(1, 1)]


@drawn
def test_texts_of_one_number_share_a_key_whether_they_were_copied_or_streamed(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    """Servers of the GaussDB family print fractions with a digit before the point in a copy, and without in a stream."""
    n = table("public.t", id="numeric", amount="int4", body="numeric")
    lake = Lake(lake_root, spark, "bare", fmt)
    lake.land(*(Insert(n, (id_, "1", ".5")) for id_ in ("0.5", "-0.25", "1.5", ".125")))
    lake.advance()  # as versions before this one did
    source = {"type": "gaussdb", "host": "h", "database": "d", "user": "u", "tables": ["public.*"]}
    given = {**lake.project.pipeline.model_dump(mode="json", by_alias=True), "source": source}
    lake.project = replace(lake.project, pipeline=type(lake.project.pipeline).model_validate(given))
    lake.land(Update(n, (".5", "2", ".75")), Update(n, ("-.25", "2", UNCHANGED)), Update(n, (".125", "4", "2")))
    lake.land(Delete(n, ("1.5", None, None), OldKind.KEY), Insert(n, (".75", "3", "-.1")))
    lake.land(Update(n, (".625", "5", UNCHANGED), (".75", None, None), OldKind.KEY))
    lake.advance()
    assert sorted((one["id"], one["amount"], one["body"]) for one in lake.rows()) == [
        ("-0.25", 2, ".5"),
        (".125", 4, "2"),
        ("0.5", 2, "0.75"),
        ("0.625", 5, "-0.1"),
    ]
