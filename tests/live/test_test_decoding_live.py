"""`plugin: test_decoding` against a real server: the same rows in bronze as by pgoutput, and what is its own."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.config.source import PostgresSource
from cdc_lake.connectors.factory import source_view
from cdc_lake.connectors.postgres.comparison import postgres_side
from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb import relations as layouts_module
from cdc_lake.decode.gaussdb.batches import tabulate_plain
from cdc_lake.decode.gaussdb.columnar import tabulate
from cdc_lake.decode.test_decoding import LineAssembler
from cdc_lake.errors import (
    DecodeError,
    MalformedMessage,
    NoReplicaIdentity,
    NotForThisSource,
    PluginMissing,
    PreparedUnread,
    SlotOfOtherPlugin,
    SpoolFull,
    StreamedBlock,
)
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observability import failpoints as at
from cdc_lake.ops.check.postgres import dba_sql, findings
from cdc_lake.ops.check.runner import ddl_sql
from cdc_lake.runtime.redecode import retry
from cdc_lake.source.postgres.connection import connect
from cdc_lake.source.postgres.plugins import LINE_OPTIONS
from cdc_lake.source.postgres.slot import export_slot
from cdc_lake_testing.kills import KILLED
from cdc_lake_testing.workload import Workload
from tests import both_plugins
from tests.conftest import Database
from tests.live.kill_sources import receivers_of
from tests.live.test_receive_loop import bronze_rows, once, project_of, tables_at_source, tables_from_bronze
from tests.postgres_with_test_decoding import server  # noqa: F401 - a fixture
from tests.seeds import seeds

pytestmark = pytest.mark.live

LINES = {"slot": {"name": "by_lines", "plugin": "test_decoding"}}


def both(database: Database, root: Path, part: int) -> tuple[Project, Project]:
    """The same pipeline by pgoutput and by test_decoding, in lakes of their own; of lines so many bytes are a part."""
    projects = []
    for name, given, size in (("by_messages", {"slot": {"name": "by_messages"}}, 4 << 20), ("by_lines", LINES, part)):
        (root / name).mkdir()
        projects.append(project_of(database, root / name, source=given, bronze={"spool": {"part": size}}))
    return projects[0], projects[1]


def streamed(project: Project) -> list[dict[str, Any]]:
    """Rows of bronze's stream without what only pgoutput says, layouts put in the place of their numbers.

    A TRUNCATE of lines has the layout before it, which is the copy's where no row came since: without a storage.
    """
    rows = bronze_rows(project)
    layouts = {r["layout"]: Relation.from_description(json.loads(r["info"])) for r in rows if r["op"] == "R"}
    left_out = {"stream", "commit_lsn", "ingest_ts", "hash", "layout"}
    found = []
    for row in rows:
        if row["op"] in "BCIUDTMX":
            info = json.loads(row["info"] or "{}")
            told = {key: info[key] for key in info if row["op"] != "C" or key not in {"bytes", "hash"}}
            relation = None if row["layout"] is None else layouts[row["layout"]]
            if row["op"] == "T" and relation is not None:
                relation = replace(relation, storage=None)
            kept = {name: value for name, value in row.items() if name not in left_out}
            found.append(kept | {"info": told, "relation": relation})
    return found


@pytest.mark.parametrize("seed", seeds(1))
def test_a_workload_lands_the_rows_that_pgoutput_lands(database: Database, tmp_path: Path, seed: int) -> None:
    messages, lines = both(database, tmp_path, random.Random(seed).choice([400, 4 << 20]))
    with database.connect() as conn:
        workload = Workload(conn, seed)
        workload.create_tables()
        workload.run(30)
        assert once(messages).snapshot_rows == once(lines).snapshot_rows > 0
        workload.run(200)
    first, second = once(messages), once(lines)
    assert first.transactions == second.transactions > 80
    assert tables_from_bronze(lines) == tables_at_source(database)
    assert streamed(lines) == streamed(messages)


@pytest.mark.parametrize("seed", seeds(1))
def test_every_type_and_odd_names_are_decoded_as_pgoutput_has_them(database: Database, seed: int) -> None:
    with database.admin() as conn:
        sent = both_plugins.send(conn, PostgresSource(**database.source), seed)
    changes, bounds = both_plugins.expected(sent)
    raws = sent.by_lines()
    assert [asdict(raw.bounds) for raw in raws] == bounds
    assert both_plugins.changes(tabulate_plain(raws, sent.layouts())) == changes
    assert both_plugins.changes(tabulate(raws, sent.layouts())) == changes
    assert {change["op"] for change in changes} == set("IUDT")


XMLS = ("", "<a b='1'>ü &amp; <!-- c --></a>", "text only\n", "<?xml version='1.0'?><a/>")
QUERIES = ("", "'it''s' & !b:*AD", "a <-> (b | c) <3> d")


def test_documents_and_queries_land_as_the_server_prints_them(database: Database, tmp_path: Path) -> None:
    with database.connect() as conn:
        kinds: dict[str, tuple[str, ...]] = {"tsquery": QUERIES}
        try:
            conn.execute("SELECT '<a/>'::xml")
        except psycopg.errors.FeatureNotSupported:
            print("the server has no xml")
        else:
            kinds["xml"] = XMLS
        for name, values in kinds.items():
            conn.execute(f"CREATE TABLE t_{name} (id int PRIMARY KEY, value {name}, several {name}[])")
            conn.execute(f"ALTER TABLE t_{name} REPLICA IDENTITY FULL")
            for number, value in enumerate(values):
                conn.execute(f"INSERT INTO t_{name} VALUES (%s, %s, %s)", [number, value, [value, None]])
        projects = both(database, tmp_path, 4 << 20)
        for project in projects:
            assert once(project).snapshot_rows == sum(map(len, kinds.values()))
        for name in kinds:
            conn.execute(f"INSERT INTO t_{name} SELECT id + 100, value, several FROM t_{name}")
            conn.execute(f"INSERT INTO t_{name} VALUES (99, NULL, NULL)")
            conn.execute(f"UPDATE t_{name} SET id = -id WHERE id > 100; DELETE FROM t_{name} WHERE id = 1")
        for project in projects:
            assert once(project).changes > 0
            assert tables_from_bronze(project) == tables_at_source(database)


def test_a_large_transaction_lands_in_parts_whatever_kills_the_receiver(database: Database, tmp_path: Path) -> None:
    project = project_of(database, tmp_path, source=LINES, bronze={"spool": {"part": 20_000}})
    receivers = receivers_of(project, database.password)
    with database.connect() as conn:
        conn.execute("CREATE TABLE notes (id int PRIMARY KEY, body text)")
        assert receivers.run() == 0
        with conn.transaction():
            conn.execute("INSERT INTO notes SELECT n, repeat('x', 100) FROM generate_series(1, 1500) n")
            conn.execute("UPDATE notes SET id = -id WHERE id % 3 = 0")
    reader = bronze_reader(project)
    before = set(reader.files().paths)
    for setting in (f"{at.SPOOLED}:4", f"{at.FILE_OPEN}:3"):
        assert receivers.run(setting) == KILLED
        assert set(reader.files().paths) == before
        assert list(project.spool.iterdir()) == []
    assert receivers.run() == 0
    assert len(set(reader.files().paths) - before) > 10
    assert tables_from_bronze(project) == tables_at_source(database)
    assert verify(reader).holds


def test_a_large_transaction_beyond_the_disk_budget_stops_the_receiver(database: Database, tmp_path: Path) -> None:
    tight = {"spool": {"part": 20_000, "max_bytes": 100_000}}
    with database.connect() as conn:
        conn.execute("CREATE TABLE notes (id int PRIMARY KEY, body text)")
        once(project_of(database, tmp_path, source=LINES))
        conn.execute("INSERT INTO notes SELECT n, repeat('x', 100) FROM generate_series(1, 1500) n")
    with pytest.raises(SpoolFull):
        once(project_of(database, tmp_path, source=LINES, bronze=tight))
    project = project_of(database, tmp_path, source=LINES)
    once(project)
    assert tables_from_bronze(project) == tables_at_source(database)


# ── what is captured ──


def test_no_publication_is_made_and_the_patterns_choose_at_every_change(database: Database, tmp_path: Path) -> None:
    tables = ["public.*", "!public.left_out"]
    project = project_of(database, tmp_path, source={**LINES, "tables": tables})
    with database.connect() as conn:
        conn.execute(
            "CREATE TABLE notes (id int PRIMARY KEY, body text, twice int GENERATED ALWAYS AS (id * 2) STORED)"
        )
        conn.execute("CREATE TABLE left_out (id int PRIMARY KEY)")
        conn.execute("CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)")
        conn.execute("CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)")
        conn.execute("INSERT INTO notes VALUES (1, 'a'); INSERT INTO parts VALUES (1)")
        conn.execute("CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS n FROM notes")
        conn.execute("CREATE UNIQUE INDEX ON counted (n)")
        assert once(project).snapshot_rows == 2
        assert conn.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)
        conn.execute("CREATE TABLE later (id int PRIMARY KEY)")
        conn.execute("INSERT INTO left_out VALUES (1); INSERT INTO later VALUES (1); INSERT INTO parts VALUES (2)")
        conn.execute("UPDATE notes SET body = 'b'")
        conn.execute("INSERT INTO notes VALUES (2)")
        conn.execute("REFRESH MATERIALIZED VIEW CONCURRENTLY counted")
        conn.execute("TRUNCATE left_out")
        conn.execute("TRUNCATE left_out, parts, later")
        again = once(project)
    assert again.transactions == 4
    found = [(r["op"], r["relation"], r["new"]) for r in bronze_rows(project) if r["op"] in "SIUDT"]
    assert sorted(found[:2]) == [("S", "public.notes", ["1", "a", "2"]), ("S", "public.parts_1", ["1"])]
    assert found[2:6] == [
        ("I", "public.later", ["1"]),
        ("I", "public.parts_1", ["2"]),
        ("U", "public.notes", ["1", "b", "2"]),
        ("I", "public.notes", ["2", None, "4"]),
    ]
    assert sorted(found[6:]) == [("T", "public.later", None), ("T", "public.parts_1", None)]


def test_check_and_plan_speak_of_no_publication(database: Database, tmp_path: Path) -> None:
    project = project_of(database, tmp_path, source=LINES)
    with database.connect() as conn:
        conn.execute("CREATE TABLE notes (id int PRIMARY KEY, body text)")
        with source_view(project) as view:
            said = [action.text for action in view.steps(lambda: None)]
            layout = view.layout(TableName("public", "notes"))
        assert said[0] == "create slot `by_lines` (test_decoding)"
        assert layout is not None
        assert layout.names == ("id", "body")
        once(project)
        lines = list(findings(project))
        assert {line.subject for line in lines if line.ok is False} == set()
        assert "publication" not in {line.subject for line in lines}
        assert "PUBLICATION" not in dba_sql(project)
        with pytest.raises(NotForThisSource, match="test_decoding"):
            ddl_sql(project)
        conn.execute("CREATE TABLE bare (id int)")
    assert "SRC223" in {line.code for line in findings(project) if line.ok is False}


def test_what_is_not_landed_yet_is_seen_by_a_comparison(database: Database, tmp_path: Path) -> None:
    project = project_of(database, tmp_path, source={**LINES, "tables": ["*.Notes"]})
    with database.connect() as conn:
        conn.execute('CREATE TABLE "Notes" (id int PRIMARY KEY, body text); CREATE TABLE other (id int PRIMARY KEY)')
        once(project)
        conn.execute("""INSERT INTO "Notes" VALUES (1, 'table public.other: TRUNCATE:')""")
        conn.execute("INSERT INTO other VALUES (1)")
        with conn.transaction():
            conn.execute('TRUNCATE other, "Notes"; INSERT INTO other VALUES (2)')
    state = bronze_reader(project).state()
    assert state is not None
    with postgres_side(project, state) as side, side.snapshot([]) as shown:
        ahead = side.ahead(shown, state.upto)
        assert [one.table for one in side.captured_tables()] == [TableName("public", "Notes")]
    assert ahead is not None
    assert [one.tables for one in ahead] == [{TableName("public", "Notes")}] * 2
    assert ahead[0].position < ahead[1].position
    again = once(project)
    assert again.transactions == 2
    commits = [(r["position"], r["xid"]) for r in bronze_rows(project) if r["op"] == "C"]
    assert commits == [(one.position, one.number) for one in ahead]


# ── what is refused ──


def printed(conn: psycopg.Connection[Any], slot: str, **options: str) -> list[bytes]:
    words = [word for name, value in {**LINE_OPTIONS, **options}.items() for word in (name.replace("_", "-"), value)]
    query = "SELECT data FROM pg_logical_slot_get_changes(%s, NULL, NULL, VARIADIC %s)"
    return [str(text).encode() for (text,) in conn.execute(query, [slot, words]).fetchall()]


def refused(lines: list[bytes]) -> type[DecodeError] | None:
    """What a stream of these lines ends with."""
    assembler = LineAssembler(Codec(), lambda _: True)
    try:
        for at, line in enumerate(lines, start=1):
            assembler.feed(line, at)
    except DecodeError as error:
        return type(error)
    return None


def test_what_a_server_prints_of_streamed_and_prepared_transactions_is_refused(database: Database) -> None:
    rows = "INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series({}, {}) AS n"
    with database.admin() as conn:
        conn.execute("SET logical_decoding_work_mem = '64kB'; CREATE TABLE t (id int PRIMARY KEY, a text)")
        conn.execute("SELECT pg_create_logical_replication_slot('streams', 'test_decoding')")
        conn.execute("SELECT pg_create_logical_replication_slot('phases', 'test_decoding', false, true)")
        conn.execute(f"BEGIN; {rows.format(1, 3000)}; SAVEPOINT s; {rows.format(4000, 7000)}; ROLLBACK TO s")
        conn.execute("TRUNCATE t; SELECT pg_logical_emit_message(true, 'p', 'c'); COMMIT")
        for number, end in enumerate(("COMMIT", "ROLLBACK"), start=1):
            conn.execute(f"BEGIN; INSERT INTO t VALUES (-{number}); PREPARE TRANSACTION 'it''s'")
            conn.execute(f"{end} PREPARED 'it''s'")
        streams, phases = printed(conn, "streams", stream_changes="1"), printed(conn, "phases")
    whole = {b"BEGIN", b"COMMIT", b"table", b"message:"}
    for lines, words, error in (
        (streams, {b"opening", b"closing", b"streaming", b"committing", b"aborting"}, StreamedBlock),
        (phases, {b"PREPARE", b"COMMIT PREPARED", b"ROLLBACK PREPARED"}, PreparedUnread),
    ):
        others = [line for line in lines if not whole & {line.split(b" ")[0]} or b" PREPARED '" in line]
        assert {word for word in words if any(line.startswith(word) for line in others)} == words
        assert {refused([line]) for line in others} == {error}
        assert refused(lines) is error


def test_a_plugin_that_the_server_does_not_have_is_named(database: Database) -> None:
    with connect(PostgresSource(**database.source), Path("/"), replication=True) as replication:
        with pytest.raises(PluginMissing, match="test_decoding_2") as refused:
            export_slot(replication, "by_lines", "test_decoding_2")
        assert "contrib" in refused.value.remedy


def test_a_table_without_a_key_and_a_slot_of_another_plugin_are_refused(database: Database, tmp_path: Path) -> None:
    project = project_of(database, tmp_path, source=LINES)
    with database.connect() as conn:
        conn.execute("CREATE TABLE notes (id int)")
        with pytest.raises(NoReplicaIdentity):
            once(project)
        conn.execute("ALTER TABLE notes REPLICA IDENTITY FULL")
        once(project)
    with pytest.raises(SlotOfOtherPlugin, match="the pipeline reads pgoutput"):
        once(project_of(database, tmp_path, source={"slot": {"name": "by_lines"}}))


def refuse(patched: pytest.MonkeyPatch, wrong: Callable[[Any], object]) -> None:
    """No row that is `wrong` can be decoded while this holds."""
    plan = layouts_module.RelationResolver.plan

    def refusing(self: Any, row: Any, xid: int | None = None) -> Any:
        if wrong(row):
            raise MalformedMessage("refused by the test")
        return plan(self, row, xid)

    patched.setattr(layouts_module.RelationResolver, "plan", refusing)


def test_what_cannot_be_decoded_is_kept_and_decoded_once_it_is_mended(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = project_of(database, tmp_path, source=LINES, bronze={"undecodable": "land"})
    with database.connect() as conn:
        conn.execute("CREATE TABLE notes (id int PRIMARY KEY, body text)")
        once(project)
        with monkeypatch.context() as patched:
            refuse(patched, lambda row: row.new and row.new[0].value == "2")
            for at in (1, 2, 3):
                conn.execute("INSERT INTO notes VALUES (%s, 'it''s')", [at])
            once(project)
            assert [r["op"] for r in bronze_rows(project) if r["op"] in "IX"] == ["I", "X", "I"]
            assert retry(project, None, lambda _: None).failed_count == 1
        conn.execute("DROP TABLE notes")
    done = retry(project, None, lambda _: None)
    assert [(one.changes, one.tables) for one in done.tried] == [(1, ("public.notes",))]


def test_a_large_transaction_that_cannot_be_decoded_is_kept_in_parts(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = project_of(database, tmp_path, source=LINES, bronze={"undecodable": "land", "spool": {"part": 300}})
    with database.connect() as conn:
        conn.execute("CREATE TABLE notes (id int PRIMARY KEY, body text); CREATE TABLE others (a int PRIMARY KEY)")
        once(project)
        with monkeypatch.context() as patched:
            refuse(patched, lambda row: row.table.name == "others")
            with conn.transaction():
                conn.execute("INSERT INTO notes SELECT n, 'a note' FROM generate_series(1, 30) n")
                conn.execute("INSERT INTO others VALUES (1)")
            once(project)
        conn.execute("DROP TABLE notes, others")
    kept = [json.loads(r["info"] or "{}") for r in bronze_rows(project) if r["op"] == "X"]
    assert len(kept) == 31
    assert sum("reading" in info for info in kept) == 1 < sum("facts" in info for info in kept)
    done = retry(project, None, lambda _: None)
    assert [(one.changes, one.tables) for one in done.tried] == [(31, ("public.notes", "public.others"))]
