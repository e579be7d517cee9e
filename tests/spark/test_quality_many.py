"""Every kind of rule over many rows: the gate, Great Expectations and SQL written by hand count the same.

Two thousand rows by default, a million with a greater CDC_LAKE_BUDGET; then Great Expectations judges them on Spark too.
"""

from __future__ import annotations

import datetime as dt
import os
from typing import Any

import pyarrow as pa
import pytest
from pydantic import TypeAdapter
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cdc_lake.config.rules import ROW_RULES, TABLE_RULES, Expectation, Expression, Rule, rule_name
from cdc_lake.quality.great_expectations import run_suite
from cdc_lake.quality.rules import fails, holds_not
from cdc_lake.quality.table_rules import Referenced, tally
from cdc_lake.quality.table_suite import TableView, evaluate_with_engine

pytestmark = [
    pytest.mark.spark,
    # py4j leaves its sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
]

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
MANY = 1_000_000 if BUDGET > 1 else 2_000
NOW = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)
COLUMNS = {
    "id": "id",
    "a": "IF(id % 13 = 0, NULL, CAST(pmod(hash(id), 1000) AS INT))",
    "price": "IF(id % 17 = 0, NULL, CAST(pmod(hash(id, 1), 100000) / 100 AS DECIMAL(10, 2)))",
    "ratio": "pmod(hash(id, 2), 1000) / 7D",
    "day": "date_add(DATE'2020-01-01', CAST(pmod(hash(id, 3), 2000) AS INT))",
    "at": "timestamp_seconds(1600000000 + pmod(hash(id, 4), 100000000))",
    "code": "element_at(array('new', 'paid', 'shipped', 'lost', '', NULL), CAST(pmod(hash(id, 5), 6) + 1 AS INT))",
    "num": "CASE pmod(hash(id, 6), 5) WHEN 0 THEN 'x' WHEN 1 THEN '1.5' ELSE CAST(pmod(hash(id, 7), 1000000) AS STRING) END",
    "up": "id * 3 + pmod(hash(id, 8), 5)",
}
ROWS: list[tuple[dict[str, Any], str]] = [
    ({"rule": "not_null", "column": "a"}, "a IS NULL"),
    ({"rule": "not_null", "column": "price"}, "isnull(price)"),
    ({"rule": "not_null", "column": "day"}, "false"),
    ({"rule": "between", "column": "a", "min": 10, "max": 900}, "a < 10 OR a > 900"),
    ({"rule": "between", "column": "a", "min": 499.5}, "a <= 499"),
    ({"rule": "between", "column": "price", "min": "0.005", "max": 500}, "price = 0 OR price > 500"),
    ({"rule": "between", "column": "ratio", "max": 100.5}, "ratio > 100.5"),
    ({"rule": "between", "column": "day", "min": "2021-01-01"}, "year(day) < 2021"),
    ({"rule": "between", "column": "at", "max": "2022-01-01T03:00+03:00"}, "unix_timestamp(at) > 1640995200"),
    ({"rule": "in_set", "column": "code", "values": ["new", "paid"]}, "NOT (code = 'new' OR code = 'paid')"),
    ({"rule": "in_set", "column": "a", "values": [1, 2, "3"]}, "a NOT BETWEEN 1 AND 3"),
    ({"rule": "regex", "column": "code", "pattern": "^(new|lost)$"}, "NOT (code = 'new' OR code = 'lost')"),
    ({"rule": "regex", "column": "code", "pattern": "(?i)P"}, "NOT contains(code, 'p')"),
    ({"rule": "regex", "column": "num", "pattern": r"^\d+$"}, "num = 'x' OR num = '1.5'"),
    ({"rule": "length", "column": "code", "min": 1, "max": 4}, "code = '' OR code = 'shipped'"),
    ({"rule": "length", "column": "num", "max": 5}, "substring(num, 6, 1) <> ''"),
    ({"rule": "type_castable", "column": "num", "type": "int"}, "num = 'x' OR num = '1.5'"),
    ({"rule": "type_castable", "column": "num", "type": "decimal(6,1)"}, "num = 'x' OR length(num) > 5"),
    ({"rule": "type_castable", "column": "code", "type": "date"}, "code IS NOT NULL"),
    ({"rule": "expression", "expression": "price < 900 OR code = 'new'"}, "price >= 900 AND code <> 'new'"),
    ({"rule": "expression", "expression": "id % 13 = 0 OR a IS NOT NULL"}, "false"),
    ({"rule": "expression", "expression": "code = 'new'"}, "code <> 'new'"),
]
TABLES: list[tuple[dict[str, Any], str]] = [
    ({"rule": "unique", "columns": ["id"]}, "SELECT 0"),
    ({"rule": "unique", "columns": ["a"]}, "SELECT sum(n) FROM (SELECT count(*) n FROM t WHERE a IS NOT NULL GROUP BY a) WHERE n > 1"),
    ({"rule": "unique", "columns": ["price", "code"]}, "SELECT count_if(n > 1) FROM (SELECT count(*) OVER (PARTITION BY price, code) n FROM t WHERE price IS NOT NULL AND code IS NOT NULL)"),
    ({"rule": "foreign_key", "columns": ["a"], "references": "public.o", "referenced": ["k"]}, "SELECT count(*) FROM t WHERE a IS NOT NULL AND a NOT IN (SELECT k FROM o)"),
    ({"rule": "row_count", "min": MANY, "max": MANY}, "SELECT 0"),
    ({"rule": "row_count", "min": MANY + 1}, "SELECT 1"),
    ({"rule": "freshness", "column": "at", "max_age": "1 d"}, "SELECT int(max(at) < TIMESTAMP'2026-01-30 00:00:00Z') FROM t"),
    ({"rule": "freshness", "column": "day", "max_age": "10000 d"}, "SELECT 0"),
    ({"rule": "monotonic", "column": "up", "by": "id"}, "SELECT count_if(up < before) FROM (SELECT up, lag(up) OVER (ORDER BY id) before FROM t)"),
    ({"rule": "monotonic", "column": "up", "by": "id", "strict": True}, "SELECT count_if(up <= before) FROM (SELECT up, lag(up) OVER (ORDER BY id) before FROM t)"),
]  # fmt: skip


def made(cases: list[tuple[dict[str, Any], str]]) -> dict[str, Any]:
    """The rules by names of their own."""
    build = TypeAdapter(Rule).validate_python
    return {f"r{at}": build({**fields, "name": f"r{at}"}) for at, (fields, _) in enumerate(cases)}


@pytest.fixture(scope="module")
def frame(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    path = str(tmp_path_factory.mktemp("many") / "t.parquet")
    spark.range(MANY).selectExpr(*(f"{sql} AS {name}" for name, sql in COLUMNS.items())).write.parquet(path)
    return spark.read.parquet(path)


@pytest.fixture(scope="module")
def arrow(frame: DataFrame) -> pa.Table:
    return frame.toArrow()


def test_every_kind_of_rule_is_counted_here() -> None:
    kinds = {type(rule) for rule in (*made(ROWS).values(), *made(TABLES).values())}
    assert kinds == {*ROW_RULES, *TABLE_RULES} - {Expectation}


def test_rules_of_rows_are_counted_alike(frame: DataFrame, arrow: pa.Table) -> None:
    rules = made(ROWS)
    by_hand = frame.select(*(F.expr(f"count_if({sql})").alias(f"r{at}") for at, (_, sql) in enumerate(ROWS))).first()
    assert by_hand is not None
    predicates = {
        name: holds_not(rule.expression)
        if isinstance(rule, Expression)
        else fails(rule, frame.schema[rule.column].dataType)
        for name, rule in rules.items()
    }
    gate = frame.select(*(F.count_if(fails_).alias(name) for name, fails_ in predicates.items())).first()
    assert gate is not None
    assert gate.asDict() == by_hand.asDict()
    without_jvm = {r.rule: r.failed for r in run_suite(arrow, list(rules.values()), "t").rules if not r.elsewhere}
    assert without_jvm == {name: by_hand[name] for name in without_jvm}
    assert len(without_jvm) == 16
    if BUDGET > 1:
        assert {r.rule: r.failed for r in run_suite(frame, list(rules.values()), "t").rules} == by_hand.asDict()


def test_rules_of_tables_are_counted_alike(spark: SparkSession, frame: DataFrame, arrow: pa.Table) -> None:
    frame.createOrReplaceTempView("t")
    others = pa.table({"k": pa.array(range(0, 1000, 3), pa.int32())})
    spark.createDataFrame([(k,) for k in range(0, 1000, 3)], "k int").createOrReplaceTempView("o")
    by_hand = {f"r{at}": spark.sql(sql).first()[0] for at, (_, sql) in enumerate(TABLES)}  # type: ignore[index]
    ours, theirs = {}, {}
    for name, rule in made(TABLES).items():
        ours[name] = tally(rule, arrow, NOW, Referenced(others)).failed
        for result in evaluate_with_engine(TableView(arrow, NOW, lambda _: Referenced(others)), rule, "t").get(
            "results", ()
        ):
            theirs[name] = result["result"].get("unexpected_count", 0 if result["success"] else 1)
    assert ours == by_hand
    assert theirs == {name: by_hand[name] for name in theirs}
    assert len(theirs) == len(TABLES) - 1
    assert {rule_name(rule) for rule in made(TABLES).values()} == by_hand.keys()
