"""Sets up a live PostgreSQL: sessions, publication, DDL marks, the slot, and the rows at its start."""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterator
from typing import Final

import psycopg
from psycopg import conninfo, sql

from cdc_lake.errors import SlotActive
from cdc_lake.model.change import Tuple
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.source.postgres.catalog import relation_of
from cdc_lake.source.postgres.connection import Session
from cdc_lake.source.postgres.plugins import message_options
from cdc_lake.source.postgres.publication import load_published_tables
from cdc_lake.source.postgres.slot import export_slot, keep_slot
from cdc_lake.source.postgres.snapshot import import_snapshot, read_chunks
from cdc_lake.source.postgres.snapshot_visibility import SnapshotPredicate
from cdc_lake.source.postgres.stream import PostgresStream
from cdc_lake.source.sql_text import PRINTING
from cdc_lake_testing.gaussdb.live_journal import Opening
from cdc_lake_testing.gaussdb.live_rows import SCHEMA

PUBLICATION: Final = "gaussdb_standin"
_CHUNK_ROWS: Final = 10_000
_STATUS: Final = 5.0
_RELEASED: Final = 20.0  # seconds until the server has noticed that an earlier reader ended
_GENERATED: Final = 180000
"""First version whose publications can send generated columns, as openGauss does."""

_MARK_DDL: Final = f"""
CREATE SCHEMA {SCHEMA};
CREATE TABLE {SCHEMA}.ddl (tag text);
CREATE FUNCTION {SCHEMA}.mark() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
    AS $$ BEGIN INSERT INTO {SCHEMA}.ddl VALUES (tg_tag); END $$;
CREATE EVENT TRIGGER {SCHEMA} ON ddl_command_end EXECUTE FUNCTION {SCHEMA}.mark();
"""


def connect(dsn: str, *, replication: bool = False) -> Session:
    """A session that prints values as servers of the family do for a reader of ours: intervals in their own style."""
    options = " ".join(f"-c {name}={value}" for name, value in {**PRINTING, "IntervalStyle": "postgres"}.items())
    given = {"replication": "database"} if replication else {}
    made = conninfo.make_conninfo(dsn, options=options, client_encoding="UTF8", **given)
    return psycopg.connect(made, autocommit=True)


def prepare(session: Session, keyless: Collection[TableName], *, ddl_marks: bool) -> None:
    """Make the publication, whole old rows for tables that have no identity, and marks of DDL if they are wanted."""
    for table in keyless:
        name = sql.Identifier(table.schema, table.name)
        session.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(name))
    if ddl_marks and not _there(session, "pg_namespace", "nspname", SCHEMA):
        session.execute(_MARK_DDL.encode())
    if not _there(session, "pg_publication", "pubname", PUBLICATION):
        generated = ", publish_generated_columns = stored" if session.info.server_version >= _GENERATED else ""
        session.execute(
            f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES "
            f"WITH (publish_via_partition_root = true{generated})".encode()
        )


def rows_at(session: Session, snapshot: str) -> Iterator[tuple[Relation, list[Tuple]]]:
    """The rows of every published table in an exported snapshot, in portions."""
    with import_snapshot(session, snapshot):
        for entry in load_published_tables(session, PUBLICATION):
            relation = relation_of(session, entry.table, entry.columns)
            for rows in read_chunks(session, relation, row_filter=None, chunk_rows=_CHUNK_ROWS):
                yield relation, [tuple(row) for row in rows.to_pylist()]


def begin(replication: Session, image: Session, keeper: Session, *, outlives: bool) -> Opening:
    """Make a slot, and read the rows at its start with `image`; it ends with its connection unless it `outlives` it."""
    exported_slot = export_slot(replication, f"live_{random.SystemRandom().getrandbits(32):08x}")
    rows = list(rows_at(image, exported_slot.snapshot))
    slot = exported_slot.name
    if outlives:
        slot = slot.removesuffix("_new")
        keep_slot(keeper, exported_slot, slot)
    return Opening(slot, exported_slot.consistent.value, rows)


def open_stream(replication: Session, slot: str, start: int) -> PostgresStream:
    """Read the slot from there; an earlier reader that has just ended is waited for."""
    deadline = time.monotonic() + _RELEASED
    while True:
        try:
            return PostgresStream(replication, slot, message_options(PUBLICATION), start, status_interval=_STATUS)
        except SlotActive:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def current_snapshot(session: Session) -> SnapshotPredicate:
    """What `session` sees now, and a position nothing of it lies above."""
    row = session.execute("SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return SnapshotPredicate.parse(str(row[0]), Lsn.parse(str(row[1])).value)


class TypeNames:
    """Type names by OID, as `format_type` prints them for whoever has the default search path."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[int, str] = {}

    def __call__(self, oid: int) -> str:
        """The name of one type; LookupError where it is gone."""
        if (name := self._known.get(oid)) is None:
            row = self._session.execute("SELECT format_type(%s::oid, NULL)", [oid]).fetchone()
            if row is None or row[0] is None:
                msg = f"there is no type {oid}"
                raise LookupError(msg)
            name = self._known[oid] = str(row[0])
        return name


class GeneratedColumns:
    """Names of a table's generated columns."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __call__(self, relation: Relation) -> frozenset[str]:
        """Those that the table has now."""
        rows = self._session.execute(
            "SELECT attname::text FROM pg_attribute WHERE attrelid = %s AND attgenerated <> ''", [relation.oid]
        ).fetchall()
        return frozenset(str(name) for (name,) in rows)


def _there(session: Session, catalog: str, column: str, name: str) -> bool:
    query = sql.SQL("SELECT FROM {} WHERE {} = %s").format(sql.Identifier(catalog), sql.Identifier(column))
    return session.execute(query, [name]).fetchone() is not None
