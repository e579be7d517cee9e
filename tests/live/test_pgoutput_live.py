"""What a real server sends decodes to what was done, in both decoders."""

from __future__ import annotations

import pytest

from cdc_lake.decode.pgoutput import columnar
from cdc_lake.decode.pgoutput.assembler import Assembler, TableFacts
from cdc_lake.decode.pgoutput.columnar import tabulate, tabulate_plain
from cdc_lake.model.change import UNCHANGED, Delete, Insert, Message, OldKind, Truncate, Update
from cdc_lake.model.position import Lsn
from cdc_lake_testing.decoded import of_messages as transaction
from tests.conftest import Database

pytestmark = pytest.mark.live

SETUP = """
CREATE TYPE mood AS ENUM ('gut', 'schön');
CREATE TABLE notes (id int8 PRIMARY KEY, feeling mood, body text);
ALTER TABLE notes ALTER body SET STORAGE EXTERNAL;
CREATE TABLE whole (a int4, b text);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE PUBLICATION everything FOR TABLE notes, whole;
"""
WORK = (
    "INSERT INTO notes VALUES (1, 'schön', repeat('x', 9000)), (2, NULL, '')",
    "UPDATE notes SET feeling = 'gut' WHERE id = 1",
    "UPDATE notes SET id = 3 WHERE id = 2",
    (
        "BEGIN; INSERT INTO whole VALUES (1, 'a'); SAVEPOINT s; INSERT INTO whole VALUES (2, 'b'); ROLLBACK TO s;"
        " UPDATE whole SET b = NULL; DELETE FROM whole; COMMIT"
    ),
    "BEGIN; INSERT INTO notes VALUES (9); ROLLBACK",
    (
        "BEGIN; INSERT INTO whole VALUES (5, 'e'); ALTER TABLE whole ADD c text DEFAULT 'd';"
        " INSERT INTO whole VALUES (6, 'f', 'g'); COMMIT"
    ),
    "DELETE FROM notes WHERE id = 3",
    "TRUNCATE notes, whole RESTART IDENTITY",
    "SELECT pg_logical_emit_message(false, 'p', 'outside')",  # flushed by the commit that follows
    "SELECT pg_logical_emit_message(true, 'p', 'content')",
)
FACTS = TableFacts(("id",), {20: "int8", 23: "int4", 25: "text"})  # the enum's name comes from the stream


def test_what_a_server_sends_is_what_was_done(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar, "SMALL", 1)
    with database.connect() as conn:
        conn.execute(SETUP)
        conn.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        for statements in WORK:
            conn.execute(statements)
        sent = conn.execute(
            "SELECT lsn::text, data FROM pg_logical_slot_get_binary_changes('s', NULL, NULL,"
            " 'proto_version', '1', 'publication_names', 'everything', 'messages', 'true')"
        ).fetchall()
        conn.execute("SELECT pg_drop_replication_slot('s')")
    assembler = Assembler(lambda _oid, _name: FACTS)
    raws = [raw for lsn, data in sent for raw in assembler.feed(data, Lsn.parse(lsn).value)]
    done = [transaction(raw).changes for raw in raws if raw.frames]

    notes, whole = raws[0].layouts[0], next(raw for raw in raws if len(raw.frames) == 3).layouts[0]
    assert notes is not None
    assert whole is not None
    assert [c.type_name for c in notes.columns] == ["int8", "public.mood", "text"]
    wider = done[4][1].relation  # type: ignore[union-attr]
    assert wider.names == ("a", "b", "c")
    assert done == [
        (Insert(notes, ("1", "schön", "x" * 9000)), Insert(notes, ("2", None, ""))),
        (Update(notes, ("1", "gut", UNCHANGED)),),
        (Update(notes, ("3", None, ""), ("2", None, None), OldKind.KEY),),
        (
            Insert(whole, ("1", "a")),
            Update(whole, ("1", None), ("1", "a"), OldKind.FULL),
            Delete(whole, ("1", None), OldKind.FULL),
        ),
        (Insert(whole, ("5", "e")), Insert(wider, ("6", "f", "g"))),
        (Delete(notes, ("3", None, None), OldKind.KEY),),
        (Truncate(notes, restart_identity=True), Truncate(wider, restart_identity=True)),
        (Message("p", b"content"),),
    ]
    assert assembler.outside_messages == 1
    positions = [raw.bounds.position for raw in raws]
    assert positions == sorted(positions)

    columns, reference = tabulate(raws), tabulate_plain(raws)
    assert columns.relations == reference.relations == [notes, whole, wider]
    assert columns.new.equals(reference.new)
    assert columns.old.equals(reference.old)
    assert columns.unchanged.equals(reference.unchanged)
    assert columns.digests == reference.digests
