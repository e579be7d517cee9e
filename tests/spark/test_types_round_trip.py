"""Text of a live server becomes typed silver columns and reads back as the same text, or does not fit."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pyarrow as pa
import pytest

from cdc_lake.errors import SilverMissing
from cdc_lake.lake.canonical import from_silver, from_source
from cdc_lake.lake.read import read_silver, silver_exists, silver_version
from cdc_lake.lake.types import cast_sql, column_type, fits_sql
from cdc_lake.model.relation import Column, TableName
from cdc_lake.source.connection import SETTINGS
from tests.spark.conftest import make_project

pytestmark = [
    pytest.mark.spark,
    pytest.mark.live,
    # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
]


@dataclass(frozen=True)
class Case:
    """A server type, values that fit, values that do not; all as SQL constants' text."""

    type: str
    fit: tuple[str, ...]
    misfit: tuple[str, ...] = ()
    never_printed: tuple[str, ...] = ()  # texts a server does not print: a lenient cast would take them


SPACES = (" 1", "1 ", "+1", "1.0", "", "one", "01", "1L")
CASES = (
    Case("int2", ("-32768", "32767", "0"), never_printed=("32768", *SPACES)),
    Case("int4", ("-2147483648", "2147483647"), never_printed=("2147483648", *SPACES)),
    Case("int8", ("-9223372036854775808", "9223372036854775807"), never_printed=("9223372036854775808", *SPACES)),
    Case("oid", ("0", "4294967295"), never_printed=SPACES),
    Case("numeric(38,0)", ("9" * 38, "-" + "9" * 38, "0"), ("NaN",), ("1" * 39, *SPACES)),
    Case("numeric(38,38)", ("0." + "9" * 38, "-0." + "0" * 37 + "1", "0"), ("NaN",), ("1", "1." + "0" * 38)),
    Case("numeric(10,2)", ("99999999.99", "-0.01", "0", "1.5"), ("NaN",), ("1.005", "1e2", "123456789.00", "1")),
    Case("numeric(5,-2)", ("12345", "-9999900", "NaN")),
    Case("numeric", ("NaN", "Infinity", "1e-20", "1" * 131072, "0.10", "-0")),
    Case(
        "float4",
        ("NaN", "Infinity", "-Infinity", "-0", "3.4028235e38", "1e-45", "0.1", "16777217", "123456.7"),
        never_printed=("1f", " 1", "1d", "inf", "1e39", "nan", "", "0x1p3", "+1"),
    ),
    Case(
        "float8",
        ("NaN", "Infinity", "-Infinity", "-0", "1.7976931348623157e308", "5e-324", "0.1", "0.30000000000000004"),
        never_printed=("1f", " 1", "1D", "inf", "1e400", "-1e400", "infinity", "", "1_0"),
    ),
    Case("bool", ("true", "false"), never_printed=("true", "T", "", "1", " t", "yes")),
    Case("bytea", ("\\x", "\\x00ff10", "\\x" + "ab" * 5000), never_printed=("\\xa", "\\xAB", "ab", "\\xzz", "", "x00")),
    Case("text", ("", " x ", "\t\n\r\\N\\.", "Größe 漢字 😀", "unchanged-toast-datum", "null", "'\"")),
    Case("varchar(12)", ("", "a ")),
    Case("char(5)", ("", "a", "ab   ")),
    Case('"char"', ("", "a", "\\377")),
    Case(
        "date",
        ("0001-01-01", "9999-12-31", "2024-02-29", "1582-10-10", "1900-03-01"),
        ("infinity", "-infinity", "0044-03-15 BC", "10000-01-01", "5874897-12-31", "4713-01-01 BC"),
        (
            "2024",
            "2024-1-1",
            "2024-01",
            "2024-02-30",
            "2024-01-01 ",
            "2024-01-01T",
            "+2024-01-01",
            "now",
            "-0044-03-15",
        ),
    ),
    Case(
        "timestamp",
        (
            "0001-01-01 00:00:00",
            "9999-12-31 23:59:59.999999",
            "2024-03-31 02:30:00",
            "1969-12-31 23:59:59.999999",
            "2024-01-01 12:00:00.1",
            "1883-11-18 12:03:58",
            "1582-10-10 01:02:03.000001",
        ),
        ("infinity", "-infinity", "0044-03-15 12:00:00 BC", "10000-01-01 00:00:00", "294276-12-31 23:59:59.999999"),
        (
            "2024-01-01",
            "2024-01-01T00:00:00",
            "2024-01-01 00:00:00+00",
            "2024-01-01 00:00",
            "2024-01-01 00:00:00.10",
            "2024-01-01 24:00:00",
            "2024-01-01 00:00:00.1234567",
            "2024-01-01 00:00:00Z",
        ),
    ),
    Case(
        "timestamptz",
        (
            "0001-01-01 00:00:00+00",
            "9999-12-31 23:59:59.999999+00",
            "2024-03-31 02:30:00 Europe/Berlin",
            "2024-10-27 02:30:00+02",
            "2024-10-27 02:30:00+01",
            "1883-11-18 12:03:58 America/New_York",
            "1969-12-31 23:59:59.5+00",
        ),
        ("infinity", "-infinity", "0044-03-15 12:00:00+00 BC", "10000-01-01 00:00:00+00"),
        (
            "2024-01-01 00:00:00",
            "2024-01-01 00:00:00 UTC",
            "00:00:00+00",
            "2024-01-01+00",
        ),
    ),
    Case("time", ("24:00:00", "00:00:00.000001")),
    Case("timetz", ("24:00:00+05:30",)),
    Case("interval", ("-1 year 2 days 03:04:05.000006", "178000000 years")),
    Case("uuid", ("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",)),
    Case("json", (' {"a" : 1.0, "a":2}',)),
    Case("jsonb", ('{"b":1e2,"a":"\\u00e4"}',)),
    Case("inet", ("192.168.0.1/24", "::1")),
    Case("bit(3)", ("101",)),
    Case("varbit", ("", "1")),
    Case("money", ("-1234.50",)),
    Case("int4range", ("[1,5)", "empty")),
    Case("int4[]", ("{}", "{1,NULL,3}", "[0:1]={1,2}")),
    Case("point", ("(1,-0)",)),
    Case("tsvector", ("a:1 'b c':2",)),
    Case("mood", ("so so",)),
    Case("positive", ("7",)),
)


@pytest.fixture(scope="module")
def project(lake_root):
    return make_project(lake_root, "types", silver={"tables": [{"from": "public.typed_i", "format": "iceberg"}]})


def rendered(connection, case: Case) -> tuple[Column, list[str]]:
    """The column as the catalog has it, and each value as the server prints it to a stream."""
    connection.execute(f"CREATE TABLE sample (at int, c {case.type})")
    for at, value in enumerate((*case.fit, *case.misfit)):
        connection.execute("INSERT INTO sample VALUES (%s, CAST(%s AS text)::" + case.type + ")", (at, value))
    oid, modifier, name = connection.execute(
        "SELECT atttypid, atttypmod, typname FROM pg_attribute a JOIN pg_type t ON t.oid = atttypid "
        "WHERE attrelid = 'sample'::regclass AND attname = 'c'"
    ).fetchone()
    with connection.cursor().copy("COPY (SELECT c FROM sample ORDER BY at) TO STDOUT") as copy:
        texts = [row[0] for row in copy.rows()]
    connection.execute("DROP TABLE sample")
    return Column("c", name, oid, modifier), texts


def test_every_type_reads_back_as_the_server_printed_it_or_is_held(database, spark, project):
    columns, table, expected = [], [], []
    with database.connect() as connection:
        for name, value in SETTINGS.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        connection.execute("CREATE TYPE mood AS ENUM ('so so', 'well')")
        connection.execute("CREATE DOMAIN positive AS int4 CHECK (VALUE > 0)")
        for case in CASES:
            column, texts = rendered(connection, case)
            columns.append(column)
            table.append([None, *texts, *case.never_printed])
            expected.append([True] * (1 + len(case.fit)) + [False] * (len(case.misfit) + len(case.never_printed)))
    depth = max(map(len, table))
    rows = [(at, [values[at] if at < len(values) else None for values in table]) for at in range(depth)]
    spark.createDataFrame(rows, "at int, new array<string>").createOrReplaceTempView("sample")
    projection = ", ".join(
        f"CASE WHEN {fits_sql(f'new[{i}]', c)} THEN {cast_sql(f'new[{i}]', c)} END AS v{i}, "
        f"{fits_sql(f'new[{i}]', c)} AS f{i}"
        for i, c in enumerate(columns)
    )
    typed = spark.sql(f"SELECT at, {projection} FROM sample").localCheckpoint()
    wrong = [
        f"{c.type_name}: {t} not {column_type(c).sql}"
        for i, c in enumerate(columns)
        if (t := typed.schema[f"v{i}"].dataType.simpleString()) != column_type(c).sql
    ]
    targets = [project.target(TableName("public", name)) for name in ("typed_d", "typed_i")]
    typed.write.format("delta").save(str(project.silver_path(targets[0])))
    catalog = project.pipeline.lake.iceberg.catalog
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.silver")
    typed.writeTo(f"{catalog}.silver.typed_i").using("iceberg").create()
    for target in targets:
        assert silver_exists(project, target)
        read = read_silver(project, target, silver_version(project, target)).sort_by("at")
        for i, (column, texts, fits) in enumerate(zip(columns, table, expected, strict=True)):
            values = read.column(f"v{i}")
            found = read.column(f"f{i}").to_pylist()[: len(fits)]
            wrong += [
                f"{target.format} {column.type_name}: fits({t!r:.60}) is {f}, not {e}"
                for t, f, e in zip(texts, found, fits, strict=True)
                if f is not e
            ]
            held = [t if f else None for t, f in zip(texts, fits, strict=True)]
            source = from_source(pa.array(held, pa.string()), values.type).to_pylist()
            silver = from_silver(values).to_pylist()[: len(fits)]
            wrong += [
                f"{target.format} {column.type_name}: {a!r:.60} is {b!r:.60} in silver"
                for a, b in zip(source, silver, strict=True)
                if a != b
            ]
    assert not wrong, "\n".join(wrong)


def test_casts_of_text_that_does_not_fit_do_not_raise(spark):
    samples = ["", " ", "x", "\\x", "-", "9" * 400, "1e999", "2024-13-45", "99999-01-01 00:00:00+00", "\u00df" * 3]
    spark.createDataFrame([(s,) for s in samples], "t string").createOrReplaceTempView("junk")
    kinds = [Column("c", n, 0) for n in ("int2", "int8", "float4", "float8", "bool", "bytea", "date", "timestamp")]
    kinds += [Column("c", "timestamptz", 0), Column("c", "numeric", 0, ((10 << 16) | 2) + 4)]
    # as text: Python cannot hold what a cast makes of the year 99999
    casts = ", ".join(
        f"CAST({cast_sql('t', c)} AS string) AS v{i}, {fits_sql('t', c)} AS f{i}" for i, c in enumerate(kinds)
    )
    rows = spark.sql(f"SELECT t, {casts} FROM junk").collect()
    fitting = {(row["t"], c.type_name) for row in rows for i, c in enumerate(kinds) if row[f"f{i}"]}
    assert fitting == {("\\x", "bytea")}


def test_rows_behind_a_deletion_vector_are_not_read_and_older_versions_are(spark, project):
    target = project.target(TableName("public", "typed_dv"))
    table = f"delta.`{project.silver_path(target)}`"
    spark.sql(
        f"CREATE TABLE {table} (id int, `a b` string) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name')"
    )
    spark.sql(f"INSERT INTO {table} SELECT id, 'x' FROM range(0, 100, 1, 1)")
    spark.sql(f"DELETE FROM {table} WHERE id >= 10")
    version = silver_version(project, target)
    assert sorted(read_silver(project, target)["id"].to_pylist()) == list(range(10))
    assert read_silver(project, target, version - 1, ["a b"]).num_rows == 100
    assert any(a["deletionVector"] for a in _adds(project.silver_path(target), version))
    with pytest.raises(SilverMissing):
        read_silver(project, target, version + 1)


def _adds(folder, version):
    entry = folder / "_delta_log" / f"{version:020d}.json"
    return [line["add"] for line in map(json.loads, entry.read_text().splitlines()) if "add" in line]
