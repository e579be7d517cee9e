"""Every statement for the source, on a server whose schemas, tables, columns, types and roles have the oddest names."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import yaml
from psycopg import sql

from cdc_lake.config.loader import load_project
from cdc_lake.config.source import PostgresSource
from cdc_lake.connectors.gaussdb import decoding as family_facts
from cdc_lake.connectors.postgres.server_checks import tables as table_facts
from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.decode.pgoutput.assembler import Assembler
from cdc_lake.errors import NoReplicaIdentity, PublicationUnfit
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.ops.check.postgres import dba_sql
from cdc_lake.source import sql_text
from cdc_lake.source.gaussdb import catalog
from cdc_lake.source.gaussdb.catalog import GaussDbCatalog
from cdc_lake.source.gaussdb.snapshot import GaussDbReader
from cdc_lake.source.gaussdb.wire.protocol import WireTarget, WireTls
from cdc_lake.source.gaussdb.wire.session import connect as wire_connect
from cdc_lake.source.postgres import publication, slot, snapshot
from cdc_lake.source.postgres.catalog import SourceCatalog, check_identities, relation_of
from cdc_lake.source.postgres.connection import Session, connect
from cdc_lake.source.postgres.plugins import message_options
from cdc_lake.source.postgres.snapshot_visibility import read_blocks, visible
from cdc_lake.source.postgres.stream import PostgresStream
from cdc_lake_testing.gaussdb.standin import Settings, StandIn
from tests.conftest import Database
from tests.odd_names import odd_names, odd_text
from tests.seeds import one_seed

pytestmark = pytest.mark.live

SEED = one_seed()
COUNT = int(8 * float(os.environ.get("CDC_LAKE_BUDGET", "1")))
ROOT = Path("/")
PASSWORD = "o'dd \\ \"pass;word"


@dataclass(frozen=True)
class Odd:
    """A table of two rows; `keyed`: it has a primary key."""

    name: TableName
    columns: tuple[str, ...]
    keyed: bool
    rows: tuple[tuple[str, ...], ...]

    @property
    def sql(self) -> sql.Identifier:
        return sql.Identifier(self.name.schema, self.name.name)


@pytest.fixture
def odd(database: Database) -> list[Odd]:
    """Made by the driver's own quoting, which is not ours. The table `public.victim` is to stay."""
    rng = random.Random(SEED)
    schemas = odd_names(rng, 2)
    made = []
    with database.connect() as session:
        session.execute("CREATE TABLE victim (id int PRIMARY KEY)")
        for schema in schemas:
            session.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        for number, name in enumerate(odd_names(rng, COUNT)):
            columns = tuple(odd_names(rng, 4))
            rows = tuple((str(n), *(odd_text(rng) for _ in columns[1:])) for n in (1, 2))
            one = Odd(TableName(schemas[number % 2], name), columns, number % 2 == 0, rows)
            kind = sql.Identifier(schemas[0], f"{number}{name}"[:20])
            session.execute(sql.SQL("CREATE DOMAIN {} AS text").format(kind))
            kinds = [sql.SQL("text PRIMARY KEY" if one.keyed else "text"), *[sql.SQL("text")] * 2, kind]
            parts = [sql.SQL("{} {}").format(sql.Identifier(c), k) for c, k in zip(columns, kinds, strict=True)]
            session.execute(sql.SQL("CREATE TABLE {} ({})").format(one.sql, sql.SQL(", ").join(parts)))
            for row in rows:
                session.execute(sql.SQL("INSERT INTO {} VALUES ({})").format(one.sql, sql.SQL(", ").join(row)))
            made.append(one)
    return made


@contextmanager
def opened(database: Database, *, replication: bool = False) -> Iterator[Session]:
    session = connect(PostgresSource(**database.source), ROOT, replication=replication)
    try:
        yield session
    finally:
        session.close()


def layouts(session: Session, odd: list[Odd]) -> dict[TableName, Relation]:
    return {one.name: relation_of(session, one.name, None) for one in odd}


def test_the_catalog_finds_what_is_there(database: Database, odd: list[Odd]) -> None:
    with opened(database) as session:
        names = [one.name for one in odd]
        assert set(publication.tables_in_database(session)) == {*names, TableName("public", "victim")}, SEED
        found = layouts(session, odd)
        assert [found[one.name].names for one in odd] == [one.columns for one in odd], SEED
        assert [found[one.name].primary_key for one in odd] == [one.columns[: one.keyed] for one in odd], SEED
        assert [(f.table, f.readable, f.owned) for f in table_facts(session, names)] == [
            (name, True, True) for name in names
        ], SEED
        for one in odd:
            facts = SourceCatalog(session)(found[one.name].oid or 0, one.name)
            assert set(facts.columns) == set(one.columns), SEED


def test_copy_and_compare_read_the_rows(database: Database, odd: list[Odd]) -> None:
    with opened(database) as session, visible(session, [one.name for one in odd]):
        found = layouts(session, odd)
        for one in odd:
            relation = found[one.name]
            chunks = list(snapshot.read_chunks(session, relation, row_filter=None, chunk_rows=10))
            assert sorted(tuple(row) for chunk in chunks for row in chunk.to_pylist()) == sorted(one.rows), SEED
            (block,) = read_blocks(session, relation, Codec())
            assert sorted(zip(*(c.to_pylist() for c in block.columns), strict=True)) == sorted(one.rows), SEED


def test_the_stream_brings_the_rows(database: Database, odd: list[Odd]) -> None:
    """Also under a name of the publication that a replication command needs quoted twice."""
    name = odd_names(random.Random(SEED + 1), 1)[0]
    with opened(database) as session, opened(database, replication=True) as making:
        keyed = [one for one in odd if one.keyed]
        publication.create_publication(session, name, [one.name for one in keyed])
        carried = publication.load_published_tables(session, name)
        assert [(p.table, p.columns) for p in carried] == sorted((one.name, one.columns) for one in keyed), SEED
        made = slot.export_slot(making, "odd")
        slot.keep_slot(session, made, "odd")
        for one in keyed:
            session.execute(sql.SQL("UPDATE {} SET {} = {}").format(one.sql, sql.Identifier(one.columns[1]), name))
        found = layouts(session, keyed)
        assembler = Assembler(SourceCatalog(session))
        replication = connect(PostgresSource(**database.source), ROOT, replication=True)
        stream = PostgresStream(replication, "odd", message_options(name), made.consistent.value, status_interval=10.0)
        got: dict[TableName, Relation] = {}
        until = time.monotonic() + 60
        try:
            while len(got) < len(keyed) and time.monotonic() < until:
                for lsn, payload in stream.poll(0.1):
                    for raw in assembler.feed(payload, lsn):
                        got |= {layout.table: layout for layout in raw.layouts if layout is not None}
        finally:
            stream.close()
    assert got == found, SEED


def test_statements_that_errors_name_do_what_they_say(database: Database, odd: list[Odd]) -> None:
    names = [one.name for one in odd]
    with opened(database) as session, database.admin() as admin:
        with pytest.raises(NoReplicaIdentity) as bare:
            check_identities(session, names)
        for statement in _between(bare.value.remedy, "or run: ", "; or leave them out").split(" REPLICA IDENTITY FULL"):
            if statement:
                admin.execute(f"{statement.removeprefix('; ')} REPLICA IDENTITY FULL".encode())
        check_identities(session, names)
        publication.create_publication(session, "pub", names[:1])
        with pytest.raises(PublicationUnfit) as unfit:
            publication.check_published("pub", names[:1], names)
        admin.execute(unfit.value.remedy.encode())
        assert {p.table for p in publication.load_published_tables(session, "pub")} == set(names), SEED


def test_what_check_tells_the_superuser_lets_an_odd_role_work(
    database: Database, odd: list[Odd], tmp_path: Path
) -> None:
    role = odd_names(random.Random(SEED + 2), 1)[0]
    with database.admin() as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(role), sql.Literal(PASSWORD)))
    try:
        source = {**database.source, "user": role, "password": PASSWORD.replace("$", "$$"), "tables": ["*.*"]}
        source |= {"slot": {"name": "odd"}, "user": role.replace("${", "$${")}
        file = tmp_path / "odd.yaml"
        file.write_text(yaml.safe_dump({"version": 1, "pipeline": "odd", "source": source, "silver": {"tables": []}}))
        project = load_project(file)
        assert project.postgres.user == role, SEED
        said = dba_sql(project)
        with database.admin() as admin:
            admin.execute(said.encode())
        with opened(database) as session:
            assert {p.table for p in publication.load_published_tables(session, project.publication)} >= {
                o.name for o in odd
            }, SEED
        own = connect(project.postgres, ROOT)
        for one in odd:
            statement = f"SELECT count(*) FROM {sql_text.quote_table(one.name)}"
            assert own.execute(statement.encode()).fetchone() == (2,), SEED
        own.close()
        connect(project.postgres, ROOT, replication=True).close()
    finally:
        with database.admin() as admin:
            admin.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def test_a_server_of_the_gaussdb_family_is_asked_the_same(database: Database, odd: list[Odd], tmp_path: Path) -> None:
    """Over its wire, through the stand-in."""
    process = StandIn(tmp_path / "standin")
    try:
        at = process.start(Settings(database.server.dsn(database.name), database.dsn, "cdc", "Gauss@123"))
        where = (("127.0.0.1", at.port),)
        target = WireTarget(where, database.name, "cdc", at.password, at.replication_port, WireTls("disable"))
        session = wire_connect(target)
        names = [one.name for one in odd]
        assert set(catalog.tables_in_database(session)) >= set(names), SEED
        found = {one.name: facts for one in odd if (facts := catalog.facts_of(session, one.name))}
        assert [tuple(c.name for c in found[one.name].columns) for one in odd] == [one.columns for one in odd], SEED
        assert [found[one.name].primary_key for one in odd] == [one.columns[: one.keyed] for one in odd], SEED
        assert [f.table for f in family_facts.tables(session, names)] == names, SEED
        reader = GaussDbReader(session, 10, Codec())
        layouts = RelationResolver(GaussDbCatalog(session), Codec())
        for one in odd:
            chunks = list(reader.read(layouts.relation_of(one.name)))
            assert sorted(tuple(row) for chunk in chunks for row in chunk.to_pylist()) == sorted(one.rows), SEED
        with pytest.raises(NoReplicaIdentity) as bare:
            catalog.check_identities(found, "here")
        session.close()
    finally:
        process.stop()
    wanted = [sql_text.quote_table(one.name) for one in odd if not one.keyed]
    for name in wanted:
        assert f"ALTER TABLE {name} REPLICA IDENTITY FULL" in bare.value.remedy, SEED


@pytest.mark.parametrize("conforming", ["on", "off"])
def test_a_text_arrives_as_it_is_whatever_the_server_takes_backslashes_for(database: Database, conforming: str) -> None:
    rng = random.Random(SEED)
    texts = ["", *(odd_text(rng) for _ in range(40 * COUNT))]
    with database.connect() as session:
        session.execute(f"SET standard_conforming_strings = {conforming}".encode())
        session.execute("SET escape_string_warning = off")
        listed = ", ".join(f"({number}, {sql_text.literal(text)})" for number, text in enumerate(texts))
        rows = session.execute(f"SELECT t FROM (VALUES {listed}) AS v(n, t) ORDER BY n".encode()).fetchall()
    assert [text for (text,) in rows] == texts, SEED


@pytest.fixture(autouse=True)
def the_victim_stays(request: pytest.FixtureRequest, database: Database) -> Iterator[None]:
    yield
    if "odd" in request.fixturenames:
        with psycopg.connect(database.server.dsn(database.name)) as session:
            assert session.execute("SELECT to_regclass('public.victim') IS NOT NULL").fetchone() == (True,), SEED


def _between(text: str, start: str, end: str) -> str:
    return text.partition(start)[2].rpartition(end)[0]
