"""The PostgreSQL source against a real server: slot, publication, copy, stream, confirm."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr

from cdc_lake.config.source import PostgresSource, PostgresTls
from cdc_lake.decode.pgoutput.assembler import Assembler
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.errors import (
    AuthenticationRefused,
    DatabaseUnknown,
    NoFreeSlot,
    NoReplicaIdentity,
    NoTableMatches,
    PublicationUnfit,
    RoleLacksReplication,
    ServerSettings,
    ServerUnreachable,
    SlotActive,
    SlotAhead,
    SlotForeign,
    SlotInvalidated,
    SlotMissing,
    SourceError,
    SourcePermission,
    TlsRefused,
)
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import TableName
from cdc_lake.source.base import StreamIdentity, select_tables
from cdc_lake.source.postgres import publication, server, slot, snapshot
from cdc_lake.source.postgres.catalog import SourceCatalog, check_identities, relation_of
from cdc_lake.source.postgres.connection import Session, connect
from cdc_lake.source.postgres.plugins import message_options
from cdc_lake.source.postgres.stream import PostgresStream
from tests.conftest import CDC_PASSWORD, Database, make_database, make_role, start_server
from tests.mistakes import kept

pytestmark = pytest.mark.live
ROOT = Path("/")

TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN positive AS integer CHECK (VALUE > 0);
CREATE TABLE plain (id bigint PRIMARY KEY, name varchar(20), price numeric(10, 2), gone int, at timestamptz);
ALTER TABLE plain DROP COLUMN gone;
CREATE TABLE composite (b text, a int, note text, twice int GENERATED ALWAYS AS (a * 2) STORED, PRIMARY KEY (a, b));
CREATE TABLE covering (id int, extra text, PRIMARY KEY (id) INCLUDE (extra));
CREATE TABLE "Odd ""Name." ("The Key" text PRIMARY KEY, "select" mood, p positive);
CREATE TABLE full_row (x int, y text);
ALTER TABLE full_row REPLICA IDENTITY FULL;
CREATE TABLE by_index (id int PRIMARY KEY, code text NOT NULL UNIQUE);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_code_key;
CREATE TABLE parts (id int, kind int, PRIMARY KEY (id, kind)) PARTITION BY LIST (kind);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1);
"""
NAMES = [
    TableName("public", n) for n in ('Odd "Name.', "by_index", "composite", "covering", "full_row", "parts", "plain")
]


def settings(database: Database, /, **changes: object) -> PostgresSource:
    given = database.source
    return PostgresSource(**{**given, **changes})


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    opened = connect(settings(database), ROOT)
    opened.execute("SET search_path TO public")  # where tests make their tables
    yield opened
    opened.close()


def open_stream(database: Database, name: str, start: int, **given: object) -> PostgresStream:
    replication = connect(settings(database), ROOT, replication=True)
    try:
        return PostgresStream(replication, name, message_options("pub"), start, **{"status_interval": 10.0, **given})
    except SourceError:
        replication.close()
        raise


def prepared(database: Database, session: Session, name: str) -> int:
    """A publication `pub` of every table and a slot; returns its consistent point."""
    tables = select_tables(["public.*"], publication.tables_in_database(session))
    publication.create_publication(session, "pub", tables)
    replication = connect(settings(database), ROOT, replication=True)
    made = slot.export_slot(replication, name)
    slot.keep_slot(session, made, name)
    replication.close()
    return made.consistent.value


def collect(stream: PostgresStream, assembler: Assembler, count: int, seconds: float = 60) -> list[BufferedTransaction]:
    got: list[BufferedTransaction] = []
    until = time.monotonic() + seconds
    while len(got) < count and time.monotonic() < until:
        for lsn, payload in stream.poll(0.1):
            got += assembler.feed(payload, lsn)
    return got


def test_the_layout_from_the_catalog_is_the_layout_from_the_stream(database: Database, session: Session) -> None:
    session.execute(TABLES.encode())
    start = prepared(database, session, "layouts")
    session.execute("INSERT INTO plain VALUES (1, 'a', 1.5, now())")
    session.execute("INSERT INTO composite VALUES ('x', 1, NULL)")
    session.execute("INSERT INTO covering VALUES (1, 'e')")
    session.execute("""INSERT INTO "Odd ""Name." VALUES ('k', 'happy', 5)""")
    session.execute("INSERT INTO full_row VALUES (1, 'y')")
    session.execute("INSERT INTO by_index VALUES (1, 'c')")
    session.execute("INSERT INTO parts VALUES (1, 1)")
    stream = open_stream(database, "layouts", start)
    with SourceCatalogOf(database) as catalog:
        got = collect(stream, Assembler(catalog), 7)
    stream.close()
    announced = {r.table: r for t in got for r in t.layouts if r is not None}
    carried = publication.load_published_tables(session, "pub")
    assert [p.table for p in carried] == NAMES == sorted(announced)
    for p in carried:
        then = announced[
            p.table
        ]  # of a table that lost a column before anything landed, the stream leaves one in doubt
        sure = replace(then, columns=tuple(replace(column, ambiguous=False) for column in then.columns))
        assert relation_of(session, p.table, p.columns) == sure
        assert relation_of(session, p.table, p.columns).layout == sure.layout
    assert announced[TableName("public", "composite")].names == ("b", "a", "note")
    assert announced[TableName("public", "composite")].primary_key == ("a", "b")
    kinds = [c.type_name for c in announced[TableName("public", 'Odd "Name.')].columns]
    assert kinds == ["text", "public.mood", "public.positive"]


class SourceCatalogOf:
    def __init__(self, database: Database) -> None:
        self.database = database

    def __enter__(self) -> SourceCatalog:
        self.catalog = SourceCatalog(connect(settings(self.database), ROOT))
        return self.catalog

    def __exit__(self, *_: object) -> None:
        self.catalog.close()


def test_the_copy_and_the_stream_meet_without_a_gap_or_an_overlap(database: Database, session: Session) -> None:
    session.execute("CREATE TABLE t (id int PRIMARY KEY)")
    session.execute("INSERT INTO t SELECT generate_series(1, 100)")
    publication.create_publication(session, "pub", [TableName("public", "t")])
    replication = connect(settings(database), ROOT, replication=True)
    with database.connect(autocommit=False) as before, ThreadPoolExecutor(1) as pool:
        before.execute("INSERT INTO t VALUES (101)")  # in progress while the slot is made, which waits for it
        making = pool.submit(slot.export_slot, replication, "meet")
        while (
            session.execute("SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'").fetchone()
            is None
        ):
            time.sleep(0.01)
        before.commit()
        made = making.result()
    session.execute("INSERT INTO t VALUES (102)")
    reader = connect(settings(database), ROOT)
    relation = relation_of(reader, TableName("public", "t"), ["id"])
    with snapshot.import_snapshot(reader, made.snapshot) as inside:
        chunks = list(snapshot.read_chunks(inside, relation, row_filter=None, chunk_rows=40))
    reader.close()
    assert [len(c) for c in chunks] == [40, 40, 21]
    copied = {row[0] for c in chunks for row in c.to_pylist()}
    assert copied == {str(n) for n in range(1, 102)}
    session.execute("INSERT INTO t VALUES (103)")
    slot.keep_slot(session, made, "meet")
    replication.close()
    session.execute("INSERT INTO t VALUES (104)")
    stream = open_stream(database, "meet", made.consistent.value)
    with SourceCatalogOf(database) as catalog:
        got = [t for t in collect(stream, Assembler(catalog), 3) if t.frames]
    stream.close()
    assert [t.frames[0][-3:] for t in got] == [b"102", b"103", b"104"]


def test_copied_text_is_what_the_server_prints(database: Database, session: Session) -> None:
    session.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b bytea, c text[], d float8, e timestamptz)")
    nasty = "tab\t lf\n cr\r bs\\ \\N \\t \b\f\v ' \" ü €𝄞 \\"
    session.execute(
        "INSERT INTO t VALUES (1, %s, '\\x00ff', %s, 0.1, '2026-01-02 03:04:05.678+02'), (2, '', NULL, NULL, NULL, NULL)",
        [nasty, [nasty, None]],
    )
    relation = relation_of(session, TableName("public", "t"), ["id", "a", "b", "c", "d", "e"])
    with session.transaction():
        chunks = list(snapshot.read_chunks(session, relation, row_filter=None, chunk_rows=10))
    rows = [r for c in chunks for r in c.to_pylist()]
    printed = session.execute("SELECT id::text, a, b::text, c::text, d::text, e::text FROM t ORDER BY id").fetchall()
    assert [tuple(r) for r in rows] == printed
    assert rows[0][1] == nasty
    assert rows[0][5] == "2026-01-02 01:04:05.678+00"
    assert rows[1] == ["2", "", None, None, None, None]


def test_a_row_filter_of_the_publication_counts_for_the_copy_too(database: Database, session: Session) -> None:
    if session.info.server_version < 150000:
        pytest.skip("publications have row filters since PostgreSQL 15")
    session.execute(
        "CREATE TABLE t (id int PRIMARY KEY, x int); INSERT INTO t SELECT n, n FROM generate_series(1, 9) n"
    )
    session.execute("CREATE PUBLICATION pub FOR TABLE t (id) WHERE (id > 7)")
    (p,) = publication.load_published_tables(session, "pub")
    assert p.columns == ("id",)
    relation = relation_of(session, p.table, p.columns)
    with session.transaction():
        chunks = list(snapshot.read_chunks(session, relation, row_filter=p.row_filter, chunk_rows=10))
    assert [r for c in chunks for r in c.to_pylist()] == [["8"], ["9"]]


def test_confirming_moves_the_slot_and_a_restart_repeats_only_what_was_not_confirmed(
    database: Database, session: Session
) -> None:
    session.execute("CREATE TABLE t (id int PRIMARY KEY)")
    start = prepared(database, session, "confirms")
    for n in range(4):
        session.execute("INSERT INTO t VALUES (%s)", [n])
    with SourceCatalogOf(database) as catalog:
        stream = open_stream(database, "confirms", start)
        got = collect(stream, Assembler(catalog), 4)
        stream.confirm(got[1].bounds.confirm)
        stream.close()
        facts = wait_inactive(session, "confirms")
        assert facts.confirmed == Lsn(got[1].bounds.confirm)
        again = open_stream(database, "confirms", got[1].bounds.confirm)
        assert [t.bounds.position for t in collect(again, Assembler(catalog), 2)] == [
            t.bounds.position for t in got[2:]
        ]
        again.close()


def wait_inactive(session: Session, name: str) -> slot.SlotFacts:
    for _ in range(3000):
        facts = slot.find_slot(session, name)
        assert facts is not None
        if facts.active_pid is None:
            return facts
        time.sleep(0.02)
    raise AssertionError("the slot stays active")


def test_a_quiet_server_answers_a_ping_beyond_the_goal(database: Database, session: Session) -> None:
    session.execute("CREATE TABLE t (id int PRIMARY KEY)")
    start = prepared(database, session, "quiet")
    target = server.goal(session)
    stream = open_stream(database, "quiet", start)
    until = time.monotonic() + 60
    while stream.keepalive_end < target and time.monotonic() < until:
        stream.tick(ping=True)
        stream.poll(0.05)
    stream.close()
    assert stream.keepalive_end >= target


def test_the_identity_reads_back_with_colons_in_the_database_name() -> None:
    identity = StreamIdentity("7123", "a:b:c", "shop", Lsn.parse("0/16B3748"))
    assert StreamIdentity.parse(str(identity)) == identity


# ── what can be wrong ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"password": SecretStr("wrong")}, AuthenticationRefused),
        ({"user": "who"}, AuthenticationRefused),
        ({"database": "nope"}, DatabaseUnknown),
        ({"port": 1}, ServerUnreachable),
        ({"host": "/no/such/folder"}, ServerUnreachable),
        ({"host": "no.such.host.invalid"}, ServerUnreachable),
        ({"tls": PostgresTls(mode="require")}, TlsRefused),
    ],
)
def test_a_refused_connection_says_why(
    database: Database, changes: dict[str, object], error: type[SourceError]
) -> None:
    with pytest.raises(error) as caught:
        connect(settings(database, **changes), ROOT)
    assert caught.value.exit_status == (4 if error is ServerUnreachable else 1)
    assert "wrong" not in caught.value.message
    assert caught.value.remedy
    if error is TlsRefused:
        kept("tls-required", caught.value, database=database.name)


def test_a_password_with_quotes_and_backslashes_reaches_the_server(database: Database) -> None:
    words = 'it\'s a \\ "pass word" = $x'
    with database.admin() as admin:
        admin.execute(psycopg.sql.SQL("CREATE ROLE quoted LOGIN PASSWORD {}").format(psycopg.sql.Literal(words)))
        try:
            connect(settings(database, user="quoted", password=SecretStr(words)), ROOT).close()
            with pytest.raises(RoleLacksReplication, match="quoted") as caught:
                connect(settings(database, user="quoted", password=SecretStr(words)), ROOT, replication=True)
            assert 'ALTER ROLE "quoted" REPLICATION' in caught.value.remedy
            kept("role-lacks-replication", caught.value, database=database.name)
        finally:
            admin.execute("DROP ROLE quoted")


def test_slots_that_cannot_be_gone_on_from_each_say_why(database: Database, session: Session) -> None:
    session.execute("CREATE TABLE t (id int PRIMARY KEY)")
    start = prepared(database, session, "care")
    facts = slot.find_slot(session, "care")
    assert facts is not None
    assert slot.check_slot(facts, "care", database.name, start) is facts
    with pytest.raises(SlotMissing):
        slot.check_slot(slot.find_slot(session, "other"), "other", database.name, start)
    with pytest.raises(SlotAhead, match="7 bytes are missing"):
        slot.check_slot(facts, "care", database.name, start - 7)
    with pytest.raises(SlotForeign):
        slot.check_slot(facts, "care", "elsewhere", start)
    with pytest.raises(SlotForeign):
        slot.check_slot(replace(facts, plugin="test_decoding"), "care", database.name, start)
    first = open_stream(database, "care", start)
    with pytest.raises(SlotActive):
        open_stream(database, "care", start)
    first.close()
    with pytest.raises(SlotMissing):
        open_stream(database, "absent", start)


def test_tables_without_identity_are_named_before_the_publication_breaks_their_updates(
    database: Database, session: Session
) -> None:
    session.execute(TABLES.encode())
    session.execute(
        "CREATE TABLE bare (x int); CREATE TABLE bare2 (x int); CREATE TABLE late (x int PRIMARY KEY DEFERRABLE)"
    )
    tables = publication.tables_in_database(session)
    with pytest.raises(NoReplicaIdentity, match=r"public\.bare, public\.bare2, public\.late") as caught:
        check_identities(session, tables)
    assert 'ALTER TABLE "public"."bare" REPLICA IDENTITY FULL' in caught.value.remedy
    kept("no-replica-identity", caught.value, database=database.name)
    check_identities(session, NAMES)


def test_a_key_that_is_checked_at_the_end_of_a_transaction_is_no_replica_identity(database: Database) -> None:
    """So a stream has two rows of one key only where it has whole old rows, which tell them apart."""
    with database.connect() as conn:
        conn.execute("CREATE TABLE late (x int PRIMARY KEY DEFERRABLE); INSERT INTO late VALUES (1)")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="non-immediate"):
            conn.execute("ALTER TABLE late REPLICA IDENTITY USING INDEX late_pkey")
        conn.execute("CREATE PUBLICATION late FOR TABLE late")
        for refused in ("UPDATE late SET x = 2", "DELETE FROM late"):
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="replica identity"):
                conn.execute(refused)


def test_patterns_choose_tables_and_one_that_chooses_none_is_an_error() -> None:
    tables = [TableName("public", n) for n in ("a", "ab", "tmp_x")] + [TableName("s.1", "a")]
    assert select_tables(["public.*", "!public.tmp_*"], tables) == tables[:2]
    assert select_tables(["public.a?"], tables) == [tables[1]]
    assert select_tables(["s\\.1.a"], tables) == [tables[3]]
    for wrong in (["public.nope"], ["a"], ["public.a", "!public.a"]):
        with pytest.raises(NoTableMatches):
            select_tables(wrong, tables)


def test_a_publication_of_somebody_else_must_carry_exactly_our_tables(database: Database, session: Session) -> None:
    session.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    session.execute("CREATE PUBLICATION pub FOR TABLE a")
    have = [p.table for p in publication.load_published_tables(session, "pub")]
    with pytest.raises(PublicationUnfit, match=r"does not publish public\.b") as caught:
        publication.check_published("pub", have, [TableName("public", "a"), TableName("public", "b")])
    kept("table-not-in-publication", caught.value)
    with pytest.raises(PublicationUnfit, match=r"`source.tables` excludes"):
        publication.check_published("pub", have, [])
    session.execute("CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    session.execute("CREATE TABLE parts_1 PARTITION OF parts DEFAULT; ALTER PUBLICATION pub ADD TABLE parts")
    with pytest.raises(PublicationUnfit, match=r"under their own names: public\.parts_1") as apart:
        publication.load_published_tables(session, "pub")
    session.execute(apart.value.remedy.encode())
    assert [p.table.name for p in publication.load_published_tables(session, "pub")] == ["a", "parts"]
    session.execute("ALTER PUBLICATION pub SET (publish = 'insert')")
    with pytest.raises(PublicationUnfit, match="update, delete, truncate"):
        publication.load_published_tables(session, "pub")


def test_a_publication_of_tables_of_others_needs_their_owner(database: Database, session: Session) -> None:
    with database.admin() as admin:
        admin.execute("CREATE TABLE theirs (id int PRIMARY KEY)")
    with pytest.raises(SourcePermission):
        publication.create_publication(session, "pub", [TableName("public", "theirs")])


def test_no_free_slot_and_a_slot_that_the_server_gave_up_are_named() -> None:
    few = start_server(settings={"max_replication_slots": "1", "max_slot_wal_keep_size": "1MB"})
    try:
        with psycopg.connect(few.dsn(), autocommit=True) as admin:
            admin.execute("SELECT pg_create_logical_replication_slot('only', 'pgoutput')")
            make_role(few)
            there = PostgresSource(
                type="postgres", host="127.0.0.1", port=few.port, database="postgres", user="cdc",
                password=SecretStr(CDC_PASSWORD), tables=["public.*"],
            )  # fmt: skip
            with connect(there, ROOT, replication=True) as replication:
                with pytest.raises(NoFreeSlot) as none:
                    slot.export_slot(replication, "another")
                kept("no-free-slot", none.value)
            for _ in range(3):
                admin.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000)); SELECT pg_switch_wal()")
            admin.execute("CHECKPOINT")
            with connect(there, ROOT) as ordinary, pytest.raises(SlotInvalidated) as lost:
                slot.check_slot(slot.find_slot(ordinary, "only"), "only", "postgres", 0)
            kept("slot-invalidated", lost.value)
    finally:
        few.remove()


def test_a_server_without_logical_wal_is_refused_with_the_remedy() -> None:
    plain = start_server(settings={"wal_level": "replica"})
    try:
        make_role(plain)
        there = PostgresSource(
            type="postgres", host="127.0.0.1", port=plain.port, database="postgres", user="cdc",
            password=SecretStr(CDC_PASSWORD), tables=["public.*"],
        )  # fmt: skip
        replication = connect(there, ROOT, replication=True)
        with pytest.raises(ServerSettings, match="wal_level = replica") as caught:
            server.check_server(server.identify(replication, there))
        assert "ALTER SYSTEM" in caught.value.remedy
        kept("wal-level", caught.value)
        replication.close()
        plain.stop()
        with pytest.raises(ServerUnreachable):
            connect(there, ROOT)
    finally:
        plain.remove()


@pytest.mark.parametrize("replication", [False, True], ids=["a session", "a replication connection"])
def test_no_time_limit_of_the_role_cuts_a_connection(database: Database, replication: bool) -> None:
    limits = ["statement_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout"]
    with database.admin() as admin:
        limits += ["transaction_timeout"] if admin.info.server_version >= 170000 else []
        for limit in limits:
            admin.execute(f"ALTER ROLE {database.user} IN DATABASE {database.name} SET {limit} = '9min'".encode())
    session = connect(PostgresSource(**database.source), Path("/"), replication=replication)
    try:
        for limit in limits:
            assert session.pgconn.exec_(f"SHOW {limit}".encode()).get_value(0, 0) == b"0", limit
    finally:
        session.close()


def test_a_snapshot_whose_server_went_ends_by_the_servers_error() -> None:
    """Not by the driver's: the session rested, so it learns of it only where it ends its transaction."""
    own = start_server()
    try:
        make_role(own)
        database = make_database(own)
        with closing(connect(settings(database), ROOT)) as holder, closing(connect(settings(database), ROOT)) as reader:
            holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            (name,) = holder.execute("SELECT pg_export_snapshot()").fetchone() or ("",)
            with pytest.raises(ServerUnreachable, match="ending the snapshot"), snapshot.import_snapshot(reader, name):
                own.stop("immediate")
    finally:
        own.remove()
