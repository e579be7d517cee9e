"""Transforms of silver tables, on Delta and on Iceberg: columns, names, computed values, filters, divided files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cdc_lake.comparison.columns import SilverView
from cdc_lake.errors import DivisionChanged, TransformChanged, TransformUnfit
from cdc_lake.model.change import UNCHANGED, Delete, Insert, OldKind, Truncate, Update
from cdc_lake.model.relation import Missing, Relation, ReplicaIdentity
from cdc_lake.runtime.apply.rebuild import rebuild
from cdc_lake.silver.kinds import Columns
from cdc_lake.silver.transforms import analyze_expression
from cdc_lake.tables.iceberg_table_log import iceberg_table
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.silver_table import declared_layout
from cdc_lake.tables.types import SilverColumn
from cdc_lake_testing.messages import table
from tests.pipeline_file import make_project

from .formats import FORMATS, drawn, either
from .test_apply_cases import Lake, T, insert

pytestmark = pytest.mark.spark

FULL = table("public.t", identity=ReplicaIdentity.FULL, id="int4", amount="int4", body="text")


class Shaped(Lake):
    """A lake whose table has transforms."""

    def shape(self, given: dict[str, Any], fmt: str, **defaults: Any) -> None:
        name = self.project.name
        self.project = make_project(
            self.project.root,
            name,
            silver={
                "defaults": {"format": fmt, "namespace": name, **defaults},
                "tables": [{"from": "public.t", **given}],
            },
            snapshot={"mode": "none"},
        )

    def found(self, *columns: str) -> list[tuple[Any, ...]]:
        rows = table_log(self.project, self.target()).read().to_pylist()
        names = columns or tuple(rows[0])
        return sorted((tuple(row[name] for name in names) for row in rows), key=repr)


def lake_of(root: Path, spark: Any, name: str, fmt: str, given: dict[str, Any], **defaults: Any) -> Shaped:
    lake = Shaped(root, spark, name, fmt)
    lake.shape(given, fmt, **defaults)
    return lake


def full(old: tuple[str | None, ...], new: tuple[Any, ...]) -> Update:
    return Update(FULL, new, old, OldKind.FULL)


@drawn
def test_silver_has_the_columns_that_were_asked_for_and_what_is_computed_from_values_not_sent(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    given = {"rename": {"amount": "price"}, "compute": {"size": "length(body) + amount"}}
    lake = lake_of(lake_root, spark, "shaped", fmt, given, lineage=True)
    lake.land(insert("1", "1", "four"), insert("2", "2", "five5"))
    lake.advance()
    lake.land(Update(T, ("1", "10", UNCHANGED)), Update(T, ("20", "3", UNCHANGED), ("2", None, None), OldKind.KEY))
    lake.advance()
    assert lake.found("id", "price", "body", "size") == [(1, 10, "four", 14), (20, 3, "five5", 8)]
    lake.shape({**given, "compute": {"size": "length(body)"}}, fmt, lineage=True)
    lake.land(insert("3", "3"))
    with pytest.raises(TransformChanged, match="other `columns`"):
        lake.advance()


@drawn
def test_rows_leave_and_enter_a_filtered_table_whole(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = lake_of(lake_root, spark, "filtered", fmt, {"exclude": ["body"], "where": "amount > 5 AND body <> 'no'"})
    ten, one = ("1", "10", "b"), ("2", "1", "b")
    lake.land(Insert(FULL, ten), Insert(FULL, one), Insert(FULL, ("3", "10", "no")), Insert(FULL, ("4", "10", None)))
    lake.advance()
    assert lake.found() == [(1, 10)]
    lake.land(
        full(ten, ("1", "2", UNCHANGED)), full(one, ("2", "20", UNCHANGED)), full(("3", "10", "no"), ("3", "10", "x"))
    )
    lake.advance()
    assert lake.found() == [(2, 20), (3, 10)]
    # Two rows exchange keys, of which silver has one; then all of them go but one that enters behind the truncate.
    lake.land(full(("1", "2", "b"), ("2", "2", UNCHANGED)), full(("2", "20", "b"), ("1", "20", UNCHANGED)))
    lake.advance()
    assert lake.found() == [(1, 20), (3, 10)]
    lake.land(Delete(FULL, ("3", "10", "x"), OldKind.FULL), Truncate(FULL), Insert(FULL, ("7", "7", "b")))
    lake.advance()
    assert lake.found() == [(7, 7)]


@drawn
def test_a_row_that_enters_without_a_value_silver_lacks_is_held_and_the_others_go_on(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    lake = lake_of(lake_root, spark, "entering", fmt, {"where": "amount > 5"})
    lake.land(insert("1", "1", "large"), insert("2", "10", "two"), insert("3", "10", "three"))
    lake.advance()
    lake.land(Update(T, ("1", "9", UNCHANGED)), Update(T, ("2", "11", UNCHANGED)), Update(T, ("3", "1", UNCHANGED)))
    lake.advance()
    assert lake.found() == [(2, 11, "two")]
    assert lake.quarantined() == [("failed", ["not_sent"])]
    lake.land(Update(T, ("3", "12", "sent")), Update(T, ("1", "13", "sent")))
    lake.advance()
    assert lake.found() == [(2, 11, "two"), (3, 12, "sent")]
    assert lake.quarantined() == [("failed", ["not_sent"]), ("waiting", [])]


@either("iceberg")
def test_a_row_is_held_whose_value_a_filter_cannot_read(spark: Any, lake_root: Path, fmt: str) -> None:
    dated = table("public.t", identity=ReplicaIdentity.FULL, id="int4", day="date")
    lake = lake_of(lake_root, spark, "unreadable", fmt, {"where": "day > DATE'2020-01-01'"})
    one, old, odd = ("1", "2026-01-01"), ("2", "1999-01-01"), ("3", "infinity")
    lake.land(Insert(dated, one), Insert(dated, old), Insert(dated, odd))
    lake.land(
        Update(dated, ("1", "infinity"), one, OldKind.FULL), Update(dated, ("3", "1999-01-01"), odd, OldKind.FULL)
    )
    lake.advance()
    assert lake.found("id") == [(1,)]
    assert lake.quarantined() == [("failed", ["type_day"]), ("failed", ["type_day"]), ("waiting", [])]


@either("iceberg")
def test_history_of_a_filtered_table_has_the_time_a_row_matched(spark: Any, lake_root: Path, fmt: str) -> None:
    given = {"where": "amount > 5", "compute": {"twice": "amount * 2"}, "columns": ["id", "amount"]}
    lake = lake_of(lake_root, spark, "matched", fmt, given, kind="history")
    one = lake.land(Insert(FULL, ("1", "10", "b")), Insert(FULL, ("2", "1", "b")))
    two = lake.land(full(("1", "10", "b"), ("1", "2", "b")), full(("2", "1", "b"), ("2", "6", "b")))
    three = lake.land(full(("1", "2", "b"), ("1", "3", "b")))
    lake.advance()
    four = lake.land(full(("1", "3", "b"), ("5", "9", "b")), full(("2", "6", "b"), ("2", "7", "b")))
    lake.advance()
    assert three < four
    assert lake.found("id", "amount", "twice", "valid_from", "valid_to") == [
        (1, 10, 20, one, two),
        (2, 6, 12, two, four),
        (2, 7, 14, four, None),
        (5, 9, 18, four, None),
    ]


@either("iceberg")
def test_rules_judge_what_a_filter_lets_in_also_by_columns_that_silver_leaves_out(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    rules = [{"rule": "in_set", "column": "body", "values": ["b"], "on_fail": "quarantine"}]
    given = {"where": "amount > 5", "exclude": ["body"], "rename": {"amount": "price"}, "rules": rules}
    lake = lake_of(lake_root, spark, "ruled", fmt, given)
    lake.land(insert("1", "10"), insert("2", "10", "odd"), insert("3", "1", "odd"))
    lake.land(Update(T, ("1", "11", UNCHANGED)))
    lake.advance()
    assert lake.found() == [(1, 10)]
    assert sorted(lake.quarantined()) == [("failed", ["in_set_body"]), ("failed", ["not_sent"])]


@either("delta")
def test_append_leaves_out_what_is_known_not_to_concern_the_filter(spark: Any, lake_root: Path, fmt: str) -> None:
    given = {"where": "amount > 5", "rename": {"body": "words"}, "compute": {"size": "length(body)"}}
    lake = lake_of(lake_root, spark, "concerns", fmt, given, kind="append")
    lake.land(Insert(FULL, ("1", "10", "b")), Insert(FULL, ("2", "1", "b")))
    lake.land(full(("1", "10", "b"), ("1", "2", "b")), full(("1", "2", "b"), ("1", "3", "b")))
    lake.land(Delete(FULL, ("1", "3", "b"), OldKind.FULL), Update(T, ("2", "3", UNCHANGED)), Truncate(T))
    lake.advance()
    assert sorted(lake.found("_position", "_ordinal", "_op", "id", "words", "size", "_unchanged")) == [
        (110, 1, "I", 1, "b", 1, None),
        (120, 1, "U", 1, "b", 1, None),
        (130, 2, "U", 2, None, None, ["words", "size"]),  # what it was before is not told: it may have matched
        (130, 3, "T", None, None, None, None),
    ]


@either("iceberg")
def test_an_expression_that_cannot_be_used_stops_the_table_before_its_first_row(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    lake = lake_of(lake_root, spark, "unfit", fmt, {"where": "amount >"})
    lake.land(insert("1", "1"))
    for given, said, place in (
        ({"where": "amount >"}, "Syntax error", "silver.tables[0].where"),
        ({"where": "amount + 1"}, "must be boolean", "silver.tables[0].where"),
        ({"compute": {"n": "nope + 1"}}, "`nope` cannot be resolved", "silver.tables[0].compute.n"),
        ({"columns": ["amount"]}, "`id` identifies rows", "silver.tables[0].columns"),
        ({"exclude": ["gone"]}, "no such column", "silver.tables[0].exclude"),
        ({"rename": {"amount": "BODY"}}, "two columns", "silver.tables[0].rename"),
        ({"compute": {"body": "1"}}, "two columns", "silver.tables[0].compute"),
        ({"partition_by": ["gone"]}, "no such column", "silver.tables[0].partition_by"),
    ):
        lake.shape(given, fmt)
        with pytest.raises(TransformUnfit, match=said) as refused:
            lake.advance()
        assert refused.value.where == place
    lake.shape({}, fmt)
    lake.advance()
    assert lake.found() == [(1, 1, "b")]


@pytest.mark.parametrize(
    "sql",
    [
        "sum(a)",
        "row_number() over (order by a)",
        "explode(array(a))",
        "(select max(1))",
        "a in (select 1)",
        "rand()",
        "uuid()",
        "now()",
        "current_date",
        "unix_timestamp()",
        "current_user()",
        "monotonically_increasing_id()",
        "null",
        "*",
        "make_interval(1)",
    ],
)
def test_an_expression_is_of_one_row_and_always_the_same(spark: Any, sql: str) -> None:
    with pytest.raises(TransformUnfit):
        analyze_expression(spark, (SilverColumn("a", "int"), SilverColumn("t", "timestamp")), sql, "here")


@drawn
def test_a_table_with_transforms_takes_its_sources_new_columns_and_keeps_the_dropped(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    given = {"rename": {"body": "words"}, "compute": {"twice": "amount * 2"}, "exclude": ["secret"]}
    wider = table("public.t", id="int4", amount="int4", body="text", note="text", secret="text")
    hidden = table("public.t", id="int4", amount="int4", body="text", secret="text")
    lake = lake_of(lake_root, spark, "evolves", fmt, given)
    lake.land(Insert(hidden, ("1", "1", "b", "s")))
    lake.advance()
    lake.land(Insert(wider, ("2", "2", "b", "n", "s")))
    lake.advance()
    lake.land(Update(hidden, ("1", "3", "m", "s")))
    lake.advance()
    assert lake.found("id", "amount", "words", "note", "twice") == [(1, 3, "m", None, 6), (2, 2, "b", "n", 4)]
    lake.land(Update(T, ("1", "4", "m")))
    with pytest.raises(TransformUnfit, match="no such column"):
        lake.advance()


@drawn
def test_a_comparison_sees_the_source_through_the_same_transforms(spark: Any, lake_root: Path, fmt: str) -> None:
    given = {
        "where": "amount > 5",
        "rename": {"amount": "price"},
        "compute": {"amount": "length(body)", "half": "amount / 2"},
        "exclude": ["body"],
    }
    lake = lake_of(lake_root, spark, "seen", fmt, given)
    rows = [("1", "10", "b"), ("2", "1", "b"), ("3", None, "b"), ("4", "7", None), ("5", "9", "é\n")]
    lake.land(*(Insert(FULL, row) for row in rows))
    lake.advance()
    texts = {name: pa.array([row[at] for row in rows], pa.large_string()) for at, name in enumerate(T.names)}
    view = SilverView(lake.project, lake.target(), T)
    found = view.project_rows(pa.table(texts))
    assert view.names == {"id": "id", "amount": "price"}
    assert found.rows.to_pydict() == {"id": ["1", "4", "5"], "amount": ["10", "7", "9"]}
    assert found.all_rows.num_rows == 5
    silver = table_log(lake.project, lake.target()).read().sort_by("id")
    assert found.computed.to_pydict() == silver.select(["amount", "half"]).to_pydict()


@FORMATS
def test_files_are_divided_and_clustered_as_the_pipeline_says(spark: Any, lake_root: Path, fmt: str) -> None:
    parts = ["bucket(4, id)", "truncate(10, amount)"] if fmt == "iceberg" else ["amount"]
    lake = lake_of(lake_root, spark, "divided", fmt, {"partition_by": parts})
    lake.land(insert("1", "1"), insert("2", "12"), insert("3", "13"))
    lake.advance()
    lake.land(Update(T, ("1", "12", UNCHANGED)), insert("4", "1"))
    lake.advance()
    assert lake.found() == [(1, 12, "b"), (2, 12, "b"), (3, 13, "b"), (4, 1, "b")]
    made = table_log(lake.project, lake.target()).layout()
    assert made is not None
    assert made.partition_by == tuple(parts)
    lake.shape({"partition_by": ["body"]}, fmt)
    lake.land(insert("5", "5"))
    with pytest.raises(DivisionChanged, match=r"is partitioned by .*amount"):
        lake.advance()
    lake.shape({"partition_by": parts, **({"cluster_by": ["body", "amount"]} if fmt == "iceberg" else {})}, fmt)
    lake.advance()
    assert len(lake.found()) == 5
    if fmt == "iceberg":
        sorted_ = iceberg_table(lake.project, lake.target())
        assert sorted_ is not None
        assert len(sorted_.sort_order().fields) == 2


def test_clustering_of_a_delta_table_is_changed_in_place(spark: Any, lake_root: Path) -> None:
    lake = lake_of(lake_root, spark, "clustered", "delta", {"cluster_by": ["amount"]})
    lake.land(insert("1", "1"), insert("2", "2"))
    lake.advance()
    lake.shape({"cluster_by": ["body", "id"]}, "delta")
    lake.land(Update(T, ("1", "5", UNCHANGED)))
    lake.advance()
    spark.sql(f"OPTIMIZE delta.`{lake.project.silver_path(lake.target())}`")
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{lake.project.silver_path(lake.target())}`").first()
    assert detail["clusteringColumns"] == ["body", "id"]
    assert lake.found() == [(1, 5, "b"), (2, 2, "b")]
    assert "clustering" in (DeltaTable(str(lake.project.silver_path(lake.target()))).protocol().writer_features or [])


# How files are divided before, then, and in the end.
DAYS = {"partition_by": ["days(at)"], "cluster_by": ["id"]}
REMADE = {
    "iceberg": (DAYS, {"partition_by": ["bucket(4, id)", "price"]}, DAYS),
    "delta": ({"partition_by": ["region"]}, {"cluster_by": ["price"]}, {}),
}
DATED = table("public.t", id="int4", amount="int4", region="text", at="timestamp")


@either("iceberg")
@pytest.mark.obeys("LAK476")
def test_a_rebuild_gives_a_table_other_transforms_and_divides_it_otherwise(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    first, then, last = REMADE[fmt]
    lake = lake_of(lake_root, spark, "remade", fmt, first)
    day = "2026-01-02 00:00:00"
    lake.land(*(Insert(DATED, (str(n), str(n), "EU", day)) for n in (1, 6, 7)))
    lake.advance()
    version = lake.marker().version
    given = {**then, "rename": {"amount": "price"}, "exclude": ["region"], "where": "amount > 5"}
    lake.shape({**given, "compute": {"twice": "amount * 2"}}, fmt)
    lake.land(Update(DATED, ("6", "60", "EU", day)))
    with pytest.raises(TransformChanged, match="created with other"):
        lake.advance()
    done = rebuild(lake.project, "public.t", spark=spark, keys=5)
    assert (done.difference.before, done.difference.after, done.difference.keys) == (3, 2, {"removed": [("1",)]})
    assert done.difference.columns == Columns(added=("price", "twice"), gone=("amount", "region"))
    lake.land(Update(DATED, ("7", "3", "EU", day)), Insert(DATED, ("8", "8", "EU", day)))
    lake.advance()
    assert lake.found("id", "price", "twice") == [(6, 60, 120), (8, 8, 16)]
    assert table_log(lake.project, lake.target()).layout() == declared_layout(lake.target())
    assert len(table_log(lake.project, lake.target()).read(version)) == 3
    if fmt == "delta":
        lake.shape(first, fmt)
        with pytest.raises(DivisionChanged, match="was clustered"):
            rebuild(lake.project, "public.t", spark=spark)
    lake.shape(last, fmt)
    rebuild(lake.project, "public.t", spark=spark)
    assert lake.found("id", "amount", "region") == [(1, 1, "EU"), (6, 60, "EU"), (7, 3, "EU"), (8, 8, "EU")]
    assert table_log(lake.project, lake.target()).layout() == declared_layout(lake.target())


@drawn
@pytest.mark.parametrize(
    "kind",
    [
        {"lineage": True},
        {"kind": "history", "lineage": True},
        {"kind": "append", "old_values": True},
        {"deletes": "soft"},
    ],
)
def test_columns_of_the_source_that_are_called_as_silvers_own_are_renamed_or_left_out(
    spark: Any, lake_root: Path, fmt: str, kind: dict[str, Any]
) -> None:
    renamed = {"_ordinal": "nth", "_op": "op", "is_current": "now", "_is_deleted": "away"}
    left_out = ["valid_from", "_unchanged", "_old_id"]
    odd = table("public.t", id="int4", **dict.fromkeys([*renamed, *left_out], "text"))
    name = "_".join(["own", *map(str, kind.values())]).lower()
    given = {"rename": renamed, "exclude": left_out, "compute": {"both": "_ordinal || is_current || valid_from"}}
    lake = lake_of(
        lake_root,
        spark,
        name,
        fmt,
        given | {n: v for n, v in kind.items() if n != "lineage"},
        **{n: v for n, v in kind.items() if n == "lineage"},
    )
    lake.land(Insert(odd, ("1", "a", "b", "c", "d", "e", "f", "g")))
    lake.advance()
    lake.land(Update(odd, ("1", "A", "B", UNCHANGED, "D", "E", "f", "g")))
    lake.advance()
    *_, last = sorted(
        table_log(lake.project, lake.target()).read().to_pylist(), key=lambda row: str(row["nth"]), reverse=True
    )
    both = None if kind.get("kind") == "append" else "AcE"
    now = None if kind.get("kind") == "append" else "c"
    assert [last[n] for n in ("id", "nth", "op", "now", "away", "both")] == [1, "A", "B", now, "D", both]
    for own, value in {"_ordinal": 1, "is_current": True, "_is_deleted": False, "_op": "U", "_old_id": None}.items():
        assert last.get(own, value) == value, own
    if "old_values" in kind:
        assert last["_unchanged"] == ["now", "both"]


@drawn
@pytest.mark.parametrize("kind", ["current", "history"])
def test_a_rebuild_takes_settings_that_name_columns_of_which_the_first_changes_know_nothing(
    spark: Any, lake_root: Path, fmt: str, kind: str
) -> None:
    def numbered(*names: str) -> Relation:
        plain = table("public.t", **dict.fromkeys(names, "int4"))
        columns = tuple(replace(column, number=number) for number, column in enumerate(plain.columns, 1))
        return replace(plain, columns=columns, oid=5)

    first, renamed = numbered("id", "n", "gone"), numbered("id", "price", "gone")
    more = replace(renamed.columns[1], name="grade", number=4, missing=Missing("7"))
    wider = replace(renamed, columns=(*renamed.columns[:2], more))
    lake = lake_of(lake_root, spark, f"later_{kind}", fmt, {"kind": kind}, on_drop="keep")
    lake.land(Insert(first, ("1", "1", "1")), Insert(first, ("2", "60", "2")))
    lake.land(Insert(renamed, ("3", "70", "3")), Update(renamed, ("1", "2", "1")))
    label = lake.target().label
    lake.advance(f"rename column n of {label} to price")
    lake.land(Insert(wider, ("4", "80", "1")), Update(wider, ("2", "61", "8")))
    lake.advance(f"keep column gone of {label}, NULL from now on")
    rule = {"rule": "between", "column": "grade", "min": 2, "on_fail": "quarantine"}
    given = {"rename": {"grade": "mark"}, "compute": {"twice": "grade * 2"}, "where": "price > 50", "rules": [rule]}
    lake.shape({**given, "kind": kind, "types": {"columns": {"grade": "bigint"}}}, fmt, on_drop="keep")
    lake.land(Insert(wider, ("5", "90", "9")))
    with pytest.raises(TransformChanged):
        lake.advance()
    rebuild(lake.project, "public.t", spark=spark)
    lake.advance()
    rows = [row for row in table_log(lake.project, lake.target()).read().to_pylist() if row.get("is_current", True)]
    found = sorted((row["id"], row["price"], row["gone"], row["mark"], row["twice"]) for row in rows)
    assert found == [(2, 61, None, 8, 16), (3, 70, 3, 7, 14), (5, 90, None, 9, 18)]
    assert lake.quarantined() == [("failed", ["between_grade"])]


@either("iceberg")
def test_a_row_that_silver_never_had_is_there_once_silver_does_without_what_was_not_sent(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    lake = lake_of(lake_root, spark, "never_had", fmt, {"missing_row": "hold"})
    lake.land(insert("1", "1", "large"), Update(T, ("9", "9", UNCHANGED)))
    lake.land(Update(T, ("9", "10", "all")))
    lake.advance()
    assert lake.found("id", "amount", "body") == [(1, 1, "large")]
    assert lake.quarantined() == [("failed", ["missing_row"]), ("waiting", [])]
    lake.shape({"missing_row": "hold", "exclude": ["body"]}, fmt)
    rebuild(lake.project, "public.t", spark=spark)
    assert (lake.found("id", "amount"), lake.quarantined()) == ([(1, 1), (9, 10)], [])
