"""ALTER TYPE on a live server: what silver makes of old values is what the server made, or it says that it cannot know.

Pairs of types are drawn: the text that the server prints before, taken the way a row of silver takes, has to be the text
that it prints afterwards.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from cdc_lake.model.relation import Column, Relation, ReplicaIdentity, TableName
from cdc_lake.source.sql_text import PRINTING
from cdc_lake.tables.canonical_values import from_source
from cdc_lake.tables.casts import UNREADABLE, cast_sql, fits_sql
from cdc_lake.tables.schema_evolution import ChangeType, operations
from cdc_lake.tables.types import column_type
from tests.seeds import one_seed
from tests.tally import tally

from .conftest import BUDGET

pytestmark = [
    pytest.mark.spark,
    pytest.mark.live,
    # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
]

WORDS = ("", " ", "a", "ab ", "abc", "abc  ", "abcdef", "12", "007", "ünï", "t", "f", "true")
NUMBERS = ("0", "1", "-1", "7", "1.5", "1.50", "-2.345", "100", "0.005", "NaN")
MOMENTS = (
    *("1999-12-31 23:59:59.5", "2000-01-01 00:00:00.5", "2024-02-29 12:00:00.123456", "2024-02-29 12:00:01.25"),
    *("1969-12-31 23:59:58.4999", "2024-01-01 00:00:00", "0044-03-15 00:00:00 BC"),
)
VALUES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("text", "varchar", "varchar(3)", "varchar(6)", "bpchar", "char(3)", "char(6)"), WORDS),
    **dict.fromkeys(("numeric", "numeric(50,1)", "numeric(50,2)", "numeric(60,2)", "numeric(6,3)"), NUMBERS),
    **dict.fromkeys(("int2", "int4", "int8", "oid"), ("0", "1", "7", "100")),
    **dict.fromkeys(("float4", "float8"), ("0.1", "-2.5", "7")),
    **dict.fromkeys(("timestamp", "timestamp(0)", "timestamp(3)", "timestamptz", "timestamptz(1)", "date"), MOMENTS),
    **dict.fromkeys(("time", "time(0)", "time(3)", "timetz", "timetz(2)"), ("10:00:00.55", "23:59:59.999999")),
    **dict.fromkeys(("interval", "interval(0)", "interval(3)"), ("1 day 02:03:04.567", "-00:00:00.5")),
    **dict.fromkeys(("json", "jsonb"), ('{"b": 1.0,"a":2}', "[]", '"x"')),
    **dict.fromkeys(("inet", "cidr"), ("10.0.0.1", "10.0.0.0/8", "::1")),
    **dict.fromkeys(("bit(3)", "bit(5)", "varbit", "varbit(4)"), ("101", "1")),
    **dict.fromkeys(("text[]", "varchar(3)[]", "char(3)[]"), ("{a,NULL}", '{"ab ",""}')),
    **dict.fromkeys(("numeric[]", "numeric(6,3)[]"), ("{1,2.50}",)),
    "bool": ("t", "f"),
    "bytea": ("\\x", "\\x00ff"),
    "uuid": ("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",),
    "name": ("", "abc"),
    '"char"': ("a",),
    "xml": ("<a/>",),
    "money": ("1.50",),
    "mood": ("so so", "well"),
    "feeling": ("well",),
    "code": ("a", "abc"),
}


class Server:
    """A table of one column on a live server, which is altered and taken back."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._sql = connection
        for name, value in PRINTING.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        connection.execute("CREATE TYPE mood AS ENUM ('so so', 'well')")
        connection.execute("CREATE TYPE feeling AS ENUM ('well', 'so so')")
        connection.execute("CREATE DOMAIN code AS text")

    def altered(self, old: str, new: str) -> tuple[Column, Column, list[tuple[str, str]]] | None:
        """A column before and after, and what is printed of each value; None where the server has no such cast."""
        self._sql.execute("DROP TABLE IF EXISTS altered")
        self._sql.execute(f"CREATE TABLE altered (at serial, c {old})")
        for value in VALUES[old]:
            try:
                self._sql.execute(f"INSERT INTO altered (c) VALUES (CAST(%s AS text)::{old})", (value,))
                self._sql.execute(f"SELECT c::{new} FROM altered")
            except psycopg.Error:
                self._sql.execute("DELETE FROM altered WHERE at = lastval()")
        before, texts = self._seen()
        try:
            self._sql.execute(f"ALTER TABLE altered ALTER c TYPE {new}")
        except psycopg.Error:
            try:
                self._sql.execute(f"ALTER TABLE altered ALTER c TYPE {new} USING c::{new}")
            except psycopg.Error:
                return None
        after, made = self._seen()
        return before, after, list(zip(texts, made, strict=True))

    def _seen(self) -> tuple[Column, list[str]]:
        oid, modifier, name = self._sql.execute(
            "SELECT atttypid, atttypmod, typname FROM pg_attribute a JOIN pg_type t ON t.oid = atttypid "
            "WHERE attrelid = 'altered'::regclass AND attname = 'c'"
        ).fetchone()  # type: ignore[misc]
        with self._sql.cursor().copy("COPY (SELECT c FROM altered ORDER BY at) TO STDOUT") as copy:
            return Column("c", name, oid, modifier, number=1), [row[0] for row in copy.rows()]


def change_between(before: Column, after: Column) -> ChangeType | None:
    """The operation on the column that silver sees."""
    one, two = (
        Relation(TableName("public", "t"), (column,), ReplicaIdentity.FULL, oid=7) for column in (before, after)
    )
    found = operations(one, two)
    assert len(found) <= 1
    change = found[0] if found else None
    assert change is None or isinstance(change, ChangeType)
    return change


def test_old_values_are_converted_as_the_server_converts_them_or_are_copied_again(database: Any, spark: Any) -> None:
    dice = random.Random(one_seed())
    wrong: list[str] = []
    others: list[tuple[str, str, Column, Column, ChangeType, list[tuple[str, str]]]] = []
    tried = unseen = unknown = 0
    with database.connect() as connection:
        server = Server(connection)
        pairs = list(itertools.permutations(VALUES, 2))
        for old, new in dice.sample(pairs, min(len(pairs), int(900 * BUDGET))):
            found = server.altered(old, new)
            if found is None:
                continue
            before, after, texts = found
            tried += 1
            change = change_between(before, after)
            if change is None:
                unseen += 1
                kind = pa.string() if column_type(after).sql == "string" else None
                wrong += [f"{old} → {new}: {a!r} became {b!r}, unseen" for a, b in texts if not same(a, b, after, kind)]
            elif change.convertible:
                others.append((old, new, before, after, change, texts))
            else:
                unknown += 1
    for old, new, before, after, change, texts in dice.sample(others, min(len(others), int(30 * BUDGET))):
        wrong += converted_otherwise(spark, before, after, change, texts, f"{old} → {new}")
    assert not wrong, "\n".join(wrong)
    assert min(tried, unseen, unknown, len(others)) > 15, (tried, unseen, unknown, len(others))
    tally("R15", {"altered types"}, altered=tried)


DATES = (
    *("2024-02-29", "0001-01-01", "9999-12-31", "0044-03-15 BC", "infinity", "-infinity", "10000-01-01", "20240229"),
    *("2024-02-29 12:00:00", "2024-02-29 12:00:00.5", "9999-12-31 23:59:59.7", "2024-02-28 24:00:00"),
)
ARE_DATES = {"2024-02-29", "0001-01-01", "9999-12-31"}
ARE_MOMENTS = {"2024-02-29 12:00:00", "2024-02-29 12:00:00.5"}
"""What a server prints, and silver has: years from 1 to 9999, to which .7 behind the last second does not belong."""


@pytest.mark.parametrize(
    ("old", "new", "kept"), [("text", "date", ARE_DATES), ("varchar", "timestamp(0)", ARE_MOMENTS)]
)
def test_texts_that_become_moments_are_those_of_the_server_or_end_in_an_error(
    database: Any, spark: Any, monkeypatch: pytest.MonkeyPatch, old: str, new: str, kept: set[str]
) -> None:
    monkeypatch.setitem(VALUES, old, DATES)
    with database.connect() as connection:
        before, after, texts = Server(connection).altered(old, new) or pytest.fail(f"no {old} becomes a {new}")
    assert {text for text, _ in texts} == {*DATES}
    change = change_between(before, after)
    assert change is not None
    cast = cast_sql("b", column_type(after))
    for some in ([one for one in texts if one[0] in kept], *([one] for one in texts if one[0] not in kept)):
        frame = spark.createDataFrame(some, "v string, b string").selectExpr(f"{change.conversion_sql('v')} AS v", cast)
        if len(some) == len(kept):
            assert [one[0] for one in frame.collect()] == [one[1] for one in frame.collect()]
        else:
            with pytest.raises((PySparkException, Py4JError), match=UNREADABLE):
                frame.collect()


def same(before: str, after: str, column: Column, kind: pa.DataType | None) -> bool:
    """Whether two texts are one silver value."""
    if kind is not None:
        return before == after
    sql = column_type(column).sql
    types = {"smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64(), "float": pa.float32()}
    types |= {"double": pa.float64(), "binary": pa.binary(), "date": pa.date32(), "boolean": pa.bool_()}
    types |= {"timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}
    if sql.startswith("decimal"):
        return float(before) == float(after)
    one, two = (from_source(pa.array([text], pa.string()), types[sql]).to_pylist() for text in (before, after))
    return bool(one == two)


def converted_otherwise(
    spark: Any, before: Column, after: Column, change: ChangeType, texts: list[tuple[str, str]], what: str
) -> list[str]:
    """Values of which silver would have another one than the server; what ends in an error is not one of them."""
    value, fits = (
        change.conversion_sql("v"),
        f"{fits_sql('a', column_type(before))} AND {fits_sql('b', column_type(after))}",
    )
    casts = f"{cast_sql('a', column_type(before))} AS v", f"{cast_sql('b', column_type(after))} AS w"

    def others(some: list[tuple[str, str]]) -> list[str]:
        frame = spark.createDataFrame(some, "a string, b string").where(fits).selectExpr("a", *casts)
        rows = frame.selectExpr("a", f"{value} AS made", "w").where("NOT (made <=> w)").collect()
        return [f"{what}: {row['a']!r} became {row['made']!r}, the server has {row['w']!r}" for row in rows]

    try:
        return others(texts) if texts else []
    except (PySparkException, Py4JError):  # one of them ends in an error, the others need not
        return [said for one in texts for said in alone(others, one)]


def alone(others: Callable[[list[tuple[str, str]]], list[str]], one: tuple[str, str]) -> list[str]:
    try:
        return others([one])
    except (PySparkException, Py4JError):
        return []
