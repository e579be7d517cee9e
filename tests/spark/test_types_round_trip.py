"""Text of a live server becomes typed silver columns and reads back as the same text, or does not fit."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cdc_lake.errors import SilverMissing
from cdc_lake.model.relation import Column, TableName
from cdc_lake.source.sql_text import PRINTING
from cdc_lake.tables.canonical_values import from_silver, from_source
from cdc_lake.tables.casts import cast_sql, fits_sql
from cdc_lake.tables.delta_log import json_lines
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.types import column_type
from tests.pipeline_file import make_project
from tests.type_cases import Case, cases

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.spark,
    pytest.mark.live,
    # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
]


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
        for name, value in PRINTING.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        connection.execute("CREATE TYPE mood AS ENUM ('so so', 'well')")
        connection.execute("CREATE DOMAIN positive AS int4 CHECK (VALUE > 0)")
        for case in cases(connection):
            column, texts = rendered(connection, case)
            columns.append(column)
            table.append([None, *texts, *case.never_printed])
            expected.append([True] * (1 + len(case.fit)) + [False] * (len(case.misfit) + len(case.never_printed)))
    depth = max(map(len, table))
    rows = [(at, [values[at] if at < len(values) else None for values in table]) for at in range(depth)]
    spark.createDataFrame(rows, "at int, new array<string>").createOrReplaceTempView("sample")
    projection = ", ".join(
        f"CASE WHEN {fits_sql(f'new[{i}]', column_type(c))} THEN {cast_sql(f'new[{i}]', column_type(c))} END AS v{i}, "
        f"{fits_sql(f'new[{i}]', column_type(c))} AS f{i}"
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
        assert table_log(project, target).exists()
        read = table_log(project, target).read(table_log(project, target).version()).sort_by("at")
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
        f"CAST({cast_sql('t', column_type(c))} AS string) AS v{i}, {fits_sql('t', column_type(c))} AS f{i}"
        for i, c in enumerate(kinds)
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
    version = table_log(project, target).version()
    assert sorted(table_log(project, target).read()["id"].to_pylist()) == list(range(10))
    assert table_log(project, target).read(version - 1, ["a b"]).num_rows == 100
    assert any(a["deletionVector"] for a in _adds(project.silver_path(target), version))
    with pytest.raises(SilverMissing):
        table_log(project, target).read(version + 1)


def _adds(folder, version):
    entry = folder / "_delta_log" / f"{version:020d}.json"
    return [line["add"] for line in json_lines(entry.read_bytes()) if "add" in line]
