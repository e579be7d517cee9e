"""A rule is written once and compiled twice: gate and Great Expectations count the same, on Spark and without it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cdc_lake.config.rules import Expression, RowRule, Rule, TypeCastable, rule_name
from cdc_lake.quality.great_expectations import run_suite
from cdc_lake.quality.rules import fails, holds_not

pytestmark = [
    pytest.mark.spark,
    # py4j leaves its sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
]

U = dt.UTC
NAN = float("nan")
TABLE = pa.table(
    {
        "small": pa.array([-128, 0, None, 7, 127], pa.int8()),
        "big": pa.array([-(1 << 62), 0, None, 10, 1 << 62], pa.int64()),
        "price": pa.array([Decimal("-0.01"), Decimal("0.00"), None, Decimal("10.01"), Decimal("99999999.99")], pa.decimal128(10, 2)),
        "ratio": pa.array([NAN, -1.5, None, 0.1, float("inf")], pa.float64()),
        "real": pa.array([NAN, 0.1, None, 0.5, 2.0], pa.float32()),
        "day": pa.array([dt.date(1, 1, 1), dt.date(2026, 1, 30), None, dt.date(2026, 1, 31), dt.date(9999, 12, 31)]),
        "at": pa.array(
            [dt.datetime(2026, 1, 31, h, 0, 0, us, tzinfo=U) if h >= 0 else None for h, us in ((0, 0), (12, 0), (-1, 0), (12, 1), (23, 9))],
            pa.timestamp("us", tz="UTC"),
        ),
        "wall": pa.array(
            [dt.datetime(2026, 1, 31, h, 0, 0, us) if h >= 0 else None for h, us in ((0, 0), (12, 0), (-1, 0), (12, 1), (23, 9))],  # noqa: DTZ001
            pa.timestamp("us"),
        ),
        "text": pa.array(["new", "", None, "Привет", "x\U0001f600y "]),
        "flag": pa.array([True, False, None, True, False]),
        "raw": pa.array([b"", b"\x00", None, b"a", b"b"]),
        "lines": pa.array(["abc\r\n", "abc\n", None, "abc\u2028", "a\nb"]),
        "number": pa.array(["12", " 7 ", None, "1.5", "x"]),
    }
)  # fmt: skip

CASES: list[tuple[dict[str, object], int]] = [
    *(({"rule": "not_null", "column": c}, 1) for c in TABLE.column_names),
    ({"rule": "between", "column": "small", "min": -0.5, "max": 7.9}, 2),
    ({"rule": "between", "column": "small", "min": 1000}, 4),
    ({"rule": "between", "column": "small", "min": -1000, "max": 1000}, 0),
    ({"rule": "between", "column": "big", "min": 0, "max": "10"}, 2),
    ({"rule": "between", "column": "price", "min": 0.005, "max": "10.019"}, 3),
    ({"rule": "between", "column": "price", "min": 0}, 1),
    ({"rule": "between", "column": "price", "max": 10**20}, 0),
    ({"rule": "between", "column": "price", "max": "10.01"}, 1),
    ({"rule": "between", "column": "ratio", "min": 0}, 1),
    ({"rule": "between", "column": "ratio", "max": 0.1}, 2),
    ({"rule": "between", "column": "real", "min": 0.25, "max": 2}, 2),
    ({"rule": "between", "column": "day", "min": "2026-01-31"}, 2),
    ({"rule": "between", "column": "at", "min": "2026-01-31T15:00+03:00", "max": "2026-01-31 12:00"}, 3),
    ({"rule": "between", "column": "wall", "min": "2026-01-31 12:00", "max": "2026-01-31 12:00:00.000001"}, 2),
    ({"rule": "in_set", "column": "text", "values": ["new", "Привет"]}, 2),
    ({"rule": "in_set", "column": "small", "values": [7, "127"]}, 2),
    ({"rule": "in_set", "column": "price", "values": [10.01, 0]}, 2),
    ({"rule": "in_set", "column": "ratio", "values": [0.1]}, 3),
    ({"rule": "in_set", "column": "flag", "values": [True]}, 2),
    ({"rule": "in_set", "column": "day", "values": ["2026-01-31"]}, 3),
    ({"rule": "in_set", "column": "at", "values": ["2026-01-31T12:00Z"]}, 3),
    ({"rule": "in_set", "column": "wall", "values": ["2026-01-31 12:00"]}, 3),
    ({"rule": "regex", "column": "text", "pattern": r"^(n|x)"}, 2),
    ({"rule": "regex", "column": "text", "pattern": r"(?i)NEW"}, 3),
    ({"rule": "regex", "column": "text", "pattern": r"^\w+$"}, 3),
    ({"rule": "length", "column": "text", "min": 1, "max": 4}, 2),
    ({"rule": "length", "column": "text", "max": 4}, 1),
    ({"rule": "regex", "column": "lines", "pattern": "^abc$"}, 3),
    ({"rule": "regex", "column": "lines", "pattern": "c."}, 2),
    ({"rule": "regex", "column": "lines", "pattern": "(?s)^a.b$"}, 3),
    ({"rule": "regex", "column": "text", "pattern": r"[\[{(x]"}, 3),
    ({"rule": "type_castable", "column": "number", "type": "int"}, 2),
    ({"rule": "type_castable", "column": "number", "type": "decimal(4,2)"}, 1),
    ({"rule": "type_castable", "column": "number", "type": "date"}, 4),
    ({"rule": "type_castable", "column": "text", "type": "double"}, 4),
    ({"rule": "expression", "expression": "small < 100 OR flag"}, 1),
    ({"rule": "expression", "expression": "length(text) > 0"}, 1),
    ({"rule": "expression", "expression": "wall = TIMESTAMP_NTZ'2026-01-31 12:00:00'"}, 3),
    ({"rule": "expression", "expression": "small IS NOT NULL"}, 1),
]
RULES: list[RowRule] = [
    TypeAdapter(Rule).validate_python({**fields, "name": f"r{at}"}) for at, (fields, _) in enumerate(CASES)
]
ONLY_SPARK = {rule_name(r) for r in RULES if isinstance(r, Expression | TypeCastable)}
EXPECTED = {f"r{at}": failed for at, (_, failed) in enumerate(CASES)}


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    """A session of its own in an odd zone: a rule's timestamps are UTC whatever the session's zone is."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    session.conf.set("spark.sql.ansi.enabled", "true")
    return session


@pytest.fixture(scope="module")
def frame(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    path = tmp_path_factory.mktemp("quality") / "t.parquet"
    pq.write_table(TABLE, path)
    return spark.read.parquet(str(path))


def broken(rule: RowRule, frame: DataFrame) -> Column:
    """What the gate counts."""
    if isinstance(rule, Expression):
        return holds_not(rule.expression)
    return fails(rule, frame.schema[rule.column].dataType)


def test_the_gate_counts_what_the_rules_say_and_is_never_null(frame: DataFrame) -> None:
    predicates = {rule_name(r): broken(r, frame) for r in RULES}
    counts = frame.select(*(F.count_if(p).alias(n) for n, p in predicates.items())).first()
    nulls = frame.select(*(F.count_if(p.isNull()).alias(n) for n, p in predicates.items())).first()
    assert counts is not None
    assert nulls is not None
    assert counts.asDict() == EXPECTED
    assert set(nulls.asDict().values()) == {0}


def test_great_expectations_on_spark_counts_as_the_gate(frame: DataFrame) -> None:
    result = run_suite(frame, RULES, "silver.t")
    assert {r.rule: r.broken for r in result.rules if r.broken} == {}
    assert {r.rule: r.failed for r in result.rules} == EXPECTED
    assert {r.evaluated for r in result.rules} == {TABLE.num_rows}


def test_great_expectations_without_a_jvm_counts_as_the_gate() -> None:
    result = run_suite(TABLE, RULES, "silver.t")
    assert {r.rule: r.broken for r in result.rules if r.broken} == {}
    assert {r.rule for r in result.rules if r.elsewhere} == ONLY_SPARK
    assert {r.rule: r.failed for r in result.rules if not r.elsewhere} == {
        name: failed for name, failed in EXPECTED.items() if name not in ONLY_SPARK
    }


def test_an_expression_that_spark_does_not_take_is_a_broken_rule(frame: DataFrame) -> None:
    texts = ("small >", "gone > 1")
    rules = [
        TypeAdapter(Rule).validate_python({"rule": "expression", "expression": t, "name": f"r{len(t)}"}) for t in texts
    ]
    assert {r.broken for r in run_suite(frame, rules, "silver.t").rules} == {"Spark rejects the expression"}
