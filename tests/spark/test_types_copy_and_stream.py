"""Every type of two live PostgreSQL versions, and every declared type, through copy and stream: by pgoutput into Delta
and Iceberg, by test_decoding into Iceberg.

`compare` proves it, by code that shares no cast with the projection; CDC_LAKE_TEST_POSTGRES names another version.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import pytest

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.comparison.compare import compare
from cdc_lake.comparison.row_sets import SilverRowSet
from cdc_lake.config.project import Project
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import silent
from cdc_lake.ops.plan import type_ledger
from cdc_lake.runtime.apply.applier import apply
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.types import Loss
from tests.conftest import Database, drop_database, make_database, make_role
from tests.pipeline_file import make_project
from tests.postgres_with_test_decoding import start_decoding_server
from tests.type_cases import Values, create, create_types, every, insert

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.spark,
    pytest.mark.live,
    # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:The 'without_files' parameter:DeprecationWarning"),
]

SESSION, OTHER = "types_session", "types_other"
"""The PostgreSQL that all tests have, by pgoutput, and another version by test_decoding."""
TABLES = {SESSION: {"every": "delta", "every_too": "iceberg"}, OTHER: {"every": "iceberg"}}
"""Tables alike, by the format that silver has of each."""

# column: (type at the source, declared, values that fit, values that do not)
DECLARED: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    "exact": (
        "numeric",
        "decimal(38,9)",
        ("1.5", "-0.000000001", "12345.100", "0", "9" * 29),
        ("1e-10", "NaN", "1e29"),
    ),
    "both ways": ("numeric", "both(12,2)", ("1.50", "NaN", "0.001", "-Infinity", "1" * 400, "-7"), ()),
    "wide": ("numeric(60,4)", "both(38,4)", ("1.5", "1" * 50, "NaN"), ()),
    "tight": ("numeric(10,2)", "decimal(6,1)", ("1.5", "-99999.90"), ("1.55", "100000")),
    "count": ("positive", "int", ("1", "2147483647"), ()),
    "tags": (
        "text[]",
        "array<string>",
        ('{a,NULL,"NULL","",": \\"\\\\ {},"}', "{}", "{Ä漢😀}"),
        ("{{a},{b}}", "[0:1]={a,b}"),
    ),
    "ids": ("int8[]", "array<bigint>", ("{1,NULL,-9223372036854775808}",), ("{{1}}",)),
    "weights": ("float8[]", "array<double>", ("{NaN,-0,1e300,0.1,-Infinity}",), ()),
    "days": ("date[]", "array<date>", ("{2024-02-29,0001-01-01}",), ("{infinity}",)),
    "amounts": ("numeric[]", "array<decimal(10,2)>", ("{1.5,-0.10,NULL}",), ("{1.555}",)),
    "moments": ("timestamp", "string", ("infinity", "0044-03-15 12:00:00 BC", "10000-01-01 00:00:00"), ()),
    "code": ("varchar(9)", "int", ("7", "-12"), ("007", " 7", "")),
}


ODD: list[Values] = [
    ('"a b"', "numeric(10,2)", ("0.10", "-0.01"), ("NaN",)),
    ('"A B"', "text", ("", "x"), ()),
    ("_deleted", "bool", ("true",), ()),
    ('"x,y"', "time", ("24:00:00",), ()),
]
"""Names that silver cannot have."""


def columns_of(sql: psycopg.Connection) -> list[Values]:
    declared = ((f'"{column}"', kind, fit, misfit) for column, (kind, _, fit, misfit) in DECLARED.items())
    return [*every(sql), *ODD, *declared]


@pytest.fixture(scope="module")
def other_database() -> Iterator[Database]:
    server = start_decoding_server()
    make_role(server)
    made = make_database(server)
    yield made
    drop_database(made)
    server.remove()


def project_of(database: Database, root: Path, name: str) -> Project:
    types = {"columns": {column: declared for column, (_, declared, _, _) in DECLARED.items()}}
    tables = [{"from": f"public.{table}", "format": fmt, "types": types} for table, fmt in TABLES[name].items()]
    silver = {"tables": tables, "defaults": {"namespace": name}}
    plugin = "pgoutput" if name == SESSION else "test_decoding"
    source = {**database.source, "slot": {"name": database.name, "plugin": plugin}}
    return make_project(root, name, source=source, silver=silver, bronze={"durability": "os"})


def step(project: Project, spark: Any) -> set[str]:
    """Receive and apply; what `compare` says of the tables."""
    bronze = DeltaBronze(project.bronze, "os")
    receive(project, bronze, once=True, stop=threading.Event(), report=silent, slot_patience=60)
    apply(project, once=True, stop=threading.Event(), report=silent, spark=spark)
    said = verdicts(project)
    with mock.patch.object(SilverRowSet, "_is_for_executors", return_value=True):  # summed up by tasks of Spark
        assert verdicts(project) == said
    return said


def verdicts(project: Project) -> set[str]:
    tables = compare(project, (), silent).tables
    assert len(tables) == len(TABLES[project.name])
    return {table.text + (f": {table.reason}" if table.reason else "") for table in tables}


def expected(sql: psycopg.Connection) -> set[str]:
    held = sql.execute("SELECT count(*) FROM every WHERE note = 'held'").fetchone()[0]
    return {f"equal but for {held} quarantined keys"}


@pytest.mark.parametrize("version", [SESSION, OTHER])
def test_copy_and_stream_of_every_type_end_equal_but_for_what_does_not_fit_until_it_goes(
    request: pytest.FixtureRequest, spark: Any, lake_root: Path, version: str
) -> None:
    database = request.getfixturevalue("database" if version == SESSION else "other_database")
    project = project_of(database, lake_root, version)
    with database.connect() as sql:
        columns = columns_of(sql)
        create_types(sql)
        for table in TABLES[version]:
            create(sql, table, columns)
            # a number that an update of another column does not send
            sql.execute(f'ALTER TABLE {table} ALTER "both ways" SET STORAGE EXTERNAL')
            insert(sql, table, columns, 0)
        assert step(project, spark) == expected(sql)
        for table in TABLES[version]:
            insert(sql, table, columns, 1)
            sql.execute(f"UPDATE {table} SET \"count\" = 3 WHERE note = 'fits'")
            sql.execute(f"UPDATE {table} SET id = id + 1000 WHERE id % 3 = 0 AND note = 'fits'")
        assert step(project, spark) == expected(sql)
        check_companions(project)
        for table in TABLES[version]:
            sql.execute(f"UPDATE {table} SET \"a b\" = 'NaN' WHERE id = 1")  # a key that was not held yet
            sql.execute(f"TRUNCATE {table}")  # all holds end
            sql.execute(f"INSERT INTO {table} (id, note, exact) VALUES (1, 'fits', '-0.5')")
        assert step(project, spark) == {"equal"}
    for ledger in type_ledger(project):
        assert all(column.loss is not Loss.REFUSED for column in ledger.columns)
        assert len(ledger.columns) == 2 + len(columns) + 2


def check_companions(project: Project) -> None:
    for table in TABLES[project.name]:
        check_companion(project, TableName("public", table))


def check_companion(project: Project, table: TableName) -> None:
    found = table_log(project, project.target(table)).read().to_pylist()
    text = next(name for name in found[0] if name.startswith("both_ways_"))
    assert {str(row[text])[:9]: str(row[f"{text}_decimal"]) for row in found} == {
        "1.50": "1.50",
        "NaN": "None",
        "0.001": "None",
        "-Infinity": "None",
        "111111111": "None",
        "-7": "-7.00",
        "None": "None",
    }
