"""The ledger of types of live tables, as `check` and `plan` have it before the first row, without Spark."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.errors import TypeRefused
from cdc_lake.ops.check.runner import examine
from cdc_lake.ops.plan import TableLedger, plan
from cdc_lake.tables.types import LEDGER, Loss
from tests.conftest import Database
from tests.live.test_gaussdb_receive import project_of as family_project
from tests.live.test_gaussdb_workload import Kind, StandIn, stand_in
from tests.pipeline_file import make_project
from tests.type_cases import create, create_types, every

pytestmark = pytest.mark.live

__all__ = ["stand_in"]

FAMILYS_OWN = {"int1", "nvarchar2", "clob", "blob", "raw", "smalldatetime", "hash16", "hash32", "vector"}


@pytest.fixture(autouse=True)
def source_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what `check` says of the source: it starts Java otherwise."""
    monkeypatch.setattr("cdc_lake.ops.check.runner.machine", lambda _, **_more: ())


def make_table(sql: psycopg.Connection) -> int:
    """The table with every type; how many columns it has."""
    create_types(sql)
    columns = every(sql)
    create(sql, "every", columns)
    return 2 + len(columns)


def by_type(ledger: TableLedger) -> dict[str, tuple[str, Loss]]:
    return {column.source_type: (column.silver_type, column.loss) for column in ledger.columns}


def test_every_type_of_a_postgres_is_in_the_ledger_of_check_and_of_plan(database: Database, tmp_path: Path) -> None:
    project = make_project(tmp_path, "types", source=database.source)
    with database.connect() as sql:
        columns = make_table(sql)
    (ledger,) = plan(project).types
    found = examine(project)
    assert found.types == (ledger,)
    assert len(ledger.columns) == columns
    types = by_type(ledger)
    assert types["numeric(10,2)"] == ("decimal(10,2)", Loss.LOSSLESS)
    assert types["numeric"] == ("string", Loss.CONVERTED)
    assert types["int4[]"] == types["public.mood"] == types["public.positive"] == ("string", Loss.CONVERTED)
    assert types["bpchar(5)"] == ("string", Loss.LOSSLESS)
    plain = {name.partition("(")[0] for name in types}
    assert {row.name for row in LEDGER} - FAMILYS_OWN - plain == {
        *("name", "xml", "cidr", "macaddr", "macaddr8", "tsquery")
    }, "types that no case has"
    said = [line.text for line in found.lines if line.subject == "types"]
    assert said == [f"{columns} columns: {count(ledger, Loss.LOSSLESS)}, {count(ledger, Loss.CONVERTED)}"]


def count(ledger: TableLedger, loss: Loss) -> str:
    return f"{sum(column.loss is loss for column in ledger.columns)} {loss.value}"


def test_what_each_replica_identity_loses_is_said_by_check_and_by_plan(database: Database, tmp_path: Path) -> None:
    project = make_project(tmp_path, "types", source=database.source)
    with database.connect() as sql:
        sql.execute("CREATE TABLE keyed (a int, b int, c text, PRIMARY KEY (b, a))")
        sql.execute("CREATE TABLE whole (a int); ALTER TABLE whole REPLICA IDENTITY FULL")
        sql.execute("CREATE TABLE other (a int PRIMARY KEY, b int NOT NULL); CREATE UNIQUE INDEX ON other (b)")
        sql.execute("ALTER TABLE other REPLICA IDENTITY USING INDEX other_b_idx")
        said = {one.table: (one.identity, one.unsent) for one in plan(project).types}
        assert said["public.keyed"][0] == "primary key (a, b)"
        assert said["public.other"][0] == "index (b)"
        assert "are not sent" in said["public.keyed"][1] == said["public.other"][1]
        assert said["public.whole"] == ("whole old rows", "")
        sql.execute("CREATE TABLE bare (a int); CREATE TABLE silent (a int PRIMARY KEY)")
        sql.execute("ALTER TABLE silent REPLICA IDENTITY NOTHING")
    said = {one.table: (one.identity, one.unsent) for one in examine(project).types}
    assert (
        said["public.bare"]
        == said["public.silent"]
        == (
            "none",
            "the server rejects updates and deletes of it as soon as it is published",
        )
    )


def test_a_refused_type_fails_check_and_hides_no_other_column(database: Database, tmp_path: Path) -> None:
    types = {"columns": {"photo": "int", "note": "array<string>", "nothing": "string"}}
    silver = {"tables": [{"from": "public.t", "types": types}]}
    project = make_project(tmp_path, "types", source=database.source, silver=silver)
    with database.connect() as sql:
        sql.execute("CREATE TABLE t (id int PRIMARY KEY, photo bytea, note text)")
    found = examine(project)
    assert not found.ok
    wrong = [line.text for line in found.lines if line.ok is False and line.code == TypeRefused.code]
    assert len(wrong) == 2
    assert "photo" in wrong[0]
    assert "`nothing`" in wrong[1]
    assert [(c.column, c.loss) for c in found.types[0].columns] == [
        ("id", Loss.LOSSLESS),
        ("photo", Loss.REFUSED),
        ("note", Loss.CONVERTED),
    ]


def test_a_redacted_column_says_so(database: Database, tmp_path: Path) -> None:
    bronze = {"redact": [{"columns": ["public.t.iban"], "strategy": "null"}]}
    project = make_project(tmp_path, "types", source=database.source, bronze=bronze)
    with database.connect() as sql:
        sql.execute("CREATE TABLE t (id int PRIMARY KEY, iban text, day date)")
    ledger = {column.column: column.how for column in plan(project).types[0].columns}
    assert ledger == {"id": "", "iban": "redacted: null", "day": ""}


def test_a_server_of_the_family_has_a_ledger_too(stand_in: StandIn, tmp_path: Path) -> None:
    with stand_in.database.connect() as sql:
        columns = make_table(sql)
    project = family_project(stand_in, Kind(Style.SERIAL), tmp_path, source={"tables": ["public.every"]})
    (ledger,) = examine(project).types
    types = by_type(ledger)
    assert len(ledger.columns) == columns
    assert types["numeric(10,2)"] == ("decimal(10,2)", Loss.LOSSLESS)
    assert types["timestamptz"] == ("timestamp", Loss.LOSSLESS)
