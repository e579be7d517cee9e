"""Against a real server: a fault in the decoder and its mending, and a database in SQL_ASCII whose text is not UTF-8."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.open import bronze_reader, bronze_writer
from cdc_lake.comparison.bronze_vs_source import against_source
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.connectors.base import all_rows
from cdc_lake.connectors.postgres import decoding as postgres_reading
from cdc_lake.connectors.postgres.comparison import postgres_side
from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.errors import CdcLakeError, InvalidText, MalformedMessage, TextNotInEncoding
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import ProgressEvent, ProgressReporter, silent
from cdc_lake.ops.check.postgres import findings
from cdc_lake.runtime.quarantine import list_quarantine
from cdc_lake.runtime.receive.loop import ReceiveSummary
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake.runtime.redecode import retry
from tests.bronze_replay import bronze_rows
from tests.conftest import Database, drop_database
from tests.gauss_client import wait_until

pytestmark = pytest.mark.live
NOTES = TableName("public", "notes")
WRONG = b"\xd6\xd0\\\t\n"  # half of it is GBK, and COPY escapes the rest
HEX = "not-text:d6d05c090a"


def project_of(database: Database, root: Path, *, undecodable: str = "stop", **source: Any) -> Project:
    document = {
        "version": 1,
        "pipeline": database.name,
        "source": {**database.source, **source},
        "bronze": {"durability": "os", "undecodable": undecodable},
    }
    return Project(Pipeline.model_validate(document), root / "pipeline.yaml", root)


def once(project: Project, tell: ProgressReporter = silent) -> ReceiveSummary:
    stop = threading.Event()
    return receive(project, bronze_writer(project), once=True, stop=stop, report=tell, slot_patience=60)


def folded(project: Project) -> dict[str, tuple[str | None, ...]]:
    """The notes as the copy and the changes in bronze leave them, by id."""
    rows: dict[str, tuple[str | None, ...]] = {}
    reader = bronze_reader(project)
    for row in reader.history_rows(NOTES).to_pylist():
        if row["op"] == "T":
            rows.clear()
        elif row["op"] == "D":
            del rows[row["old"][0]]
        else:
            rows[row["new"][0]] = tuple(row["new"][1:])
    return rows


def in_source(project: Project) -> dict[str, tuple[str | None, ...]]:
    """The same as a comparison reads the source."""
    state = bronze_reader(project).state()
    assert state is not None
    with postgres_side(project, state) as side, side.snapshot([NOTES]):
        (one,) = side.captured_tables()
        rows = all_rows(side, side.relation_of(one), one).to_pylist()
    return {row["id"]: (row["body"], row["memo"]) for row in rows}


# ── a fault in the decoder ──


def refusing(batch: Sequence[Any], **given: Any) -> ChangeColumns:
    if any(b"MARK" in frame for raw in batch for frame in raw.frames):
        raise MalformedMessage("a fault")
    return tabulate(batch, **given)


def test_what_a_fault_made_undecodable_is_decoded_once_it_is_mended(database: Database, tmp_path: Path, monkeypatch):
    project = project_of(database, tmp_path, undecodable="land")
    with database.connect() as source:
        source.execute("CREATE TABLE notes (id int PRIMARY KEY, body text, memo text)")
        source.execute("INSERT INTO notes VALUES (1, 'one', NULL)")
        once(project)
        source.execute("INSERT INTO notes VALUES (2, 'two', NULL)")
        source.execute("UPDATE notes SET body = 'MARK' WHERE id = 1")
        source.execute("TRUNCATE notes")
        source.execute("INSERT INTO notes VALUES (3, 'MARK', 'x'), (4, 'four', '')")
        source.execute("DELETE FROM notes WHERE id = 4")
        monkeypatch.setattr(postgres_reading, "tabulate", refusing)
        told: list[ProgressEvent] = []
        received = once(project, told.append)
        assert received.transactions == 5  # the receiver did not stop
        assert [one.facts["code"] for one in told if "lands as bytes" in one.text] == ["DEC303", "DEC303"]
        assert [one.tables for one in list_quarantine(project).undecodable] == [("public.notes",), ("public.notes",)]
        assert verify(bronze_reader(project)).holds
        source.execute("INSERT INTO notes VALUES (5, 'five', 'x')")  # and goes on
        once(project)
    (proof,) = against_source(project).tables
    assert proof.verdict == "inconclusive"
    before = {path: path.read_bytes() for path in project.bronze.rglob("*.parquet")}
    assert retry(project, None, silent).failed_count == 0
    assert before == {path: path.read_bytes() for path in project.bronze.rglob("*.parquet")}
    assert folded(project) == in_source(project)
    (proof,) = against_source(project).tables
    assert proof.verdict == "equal"


def test_by_default_the_receiver_stops_at_it_and_says_where(database: Database, tmp_path: Path, monkeypatch):
    project = project_of(database, tmp_path)
    with database.connect() as source:
        source.execute("CREATE TABLE notes (id int PRIMARY KEY, body text, memo text)")
        once(project)
        monkeypatch.setattr(postgres_reading, "tabulate", refusing)
        source.execute("INSERT INTO notes VALUES (1, 'MARK', NULL)")
        with pytest.raises(MalformedMessage):
            once(project)
        assert not list_quarantine(project).undecodable


def test_what_was_committed_before_it_is_landed_and_confirmed(database: Database, tmp_path: Path, monkeypatch):
    project = project_of(database, tmp_path)
    with database.connect() as source:
        source.execute("CREATE TABLE notes (id int PRIMARY KEY, body text, memo text)")
        once(project)
        for body in ("one", "two", "three", "MARK", "five"):
            source.execute("INSERT INTO notes VALUES ((SELECT count(*) FROM notes), %s)", [body])
        with monkeypatch.context() as patched:
            patched.setattr(postgres_reading, "tabulate", refusing)
            for _ in range(2):
                with pytest.raises(MalformedMessage):
                    once(project)
                assert [row["new"][1] for row in bronze_rows(project) if row["op"] == "I"] == ["one", "two", "three"]
        assert verify(bronze_reader(project)).holds
        state = bronze_reader(project).state()
        assert state is not None
        wait_until(lambda: confirmed(source) == str(Lsn(state.confirm)))
        once(project)
        assert len([row for row in bronze_rows(project) if row["op"] == "I"]) == 5


def confirmed(source: psycopg.Connection) -> str:
    row = source.execute(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = current_database()"
    ).fetchone()
    assert row is not None
    return str(row[0])


# ── SQL_ASCII ──


@pytest.fixture
def ascii_database(database: Database) -> Iterator[Database]:
    """A database that checks and converts nothing."""
    made = Database(database.server, f"{database.name}_ascii")
    with psycopg.connect(database.server.dsn(), autocommit=True) as admin:
        admin.execute(
            sql.SQL(
                "CREATE DATABASE {} OWNER {} ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
            ).format(sql.Identifier(made.name), sql.Identifier(made.user))
        )
    with made.connect() as source:
        source.execute("CREATE TABLE notes (id int PRIMARY KEY, body text, memo text)")
    yield made
    drop_database(made)


def insert(database: Database, number: int, body: bytes, memo: bytes = b"") -> None:
    with database.connect() as source:
        source.execute(
            "INSERT INTO notes VALUES (%s, convert_from(%b, 'SQL_ASCII'), convert_from(%b, 'SQL_ASCII'))",
            [number, body, memo],
        )


def test_the_copy_and_the_stream_stop_at_text_that_is_none(ascii_database: Database, tmp_path: Path):
    project = project_of(ascii_database, tmp_path)
    insert(ascii_database, 1, WRONG)
    with pytest.raises(TextNotInEncoding) as copying:
        once(project)
    assert "public.notes" in copying.value.where
    keeps = project_of(ascii_database, tmp_path, hex_columns=["public.notes.body"])
    with ascii_database.connect() as source:
        source.execute("DELETE FROM notes")
    once(project)
    insert(ascii_database, 1, WRONG)
    with pytest.raises(InvalidText) as streaming:
        once(project)
    for error in (copying.value, streaming.value):
        assert isinstance(error, CdcLakeError)
        assert "d6d0" not in f"{error.message} {error.where} {error.remedy}".lower()
        assert "hex_columns" in error.remedy
    once(keeps)
    assert in_source(keeps) == {"1": (HEX, "")}
    assert [tuple(row["new"]) for row in bronze_rows(keeps) if row["op"] == "I"] == [("1", HEX, "")]


def test_check_says_what_such_a_database_promises(ascii_database: Database, tmp_path: Path):
    for columns, wanted in (([], "that is not UTF-8 stops"), (["public.notes.body"], "outside of public.notes.body")):
        lines = list(findings(project_of(ascii_database, tmp_path, hex_columns=columns)))
        (found,) = (line for line in lines if line.subject == "encoding")
        assert found.ok is None
        assert wanted in found.text
    lines = list(findings(project_of(ascii_database, tmp_path, encoding_errors="hex")))
    assert not [line for line in lines if line.subject == "encoding"]


def test_columns_that_may_hold_such_text_have_it_in_hexadecimal_digits(ascii_database: Database, tmp_path: Path):
    project = project_of(ascii_database, tmp_path, hex_columns=["public.notes.body"])
    values = {1: WRONG, 2: "plain é".encode(), 3: b"not-text:00", 4: b"\\x00"}
    for number, body in values.items():
        insert(ascii_database, number, body, memo=b"not-text:00")
    once(project)
    for number, body in values.items():
        insert(ascii_database, 10 + number, body, memo=b"not-text:00")
    once(project)
    wanted = [HEX, "plain é", "not-text:6e6f742d746578743a3030", "\\x00"]
    assert folded(project) == {
        str(ten + number): (text, "not-text:00") for ten in (0, 10) for number, text in enumerate(wanted, 1)
    }
    assert folded(project) == in_source(project)
    assert verify(bronze_reader(project)).holds


def test_a_column_that_may_not_is_landed_as_bytes_until_it_may(ascii_database: Database, tmp_path: Path):
    columns = ["public.notes.body"]
    project = project_of(ascii_database, tmp_path, undecodable="land", hex_columns=columns)
    once(project)
    insert(ascii_database, 1, WRONG, memo=b"fine")
    insert(ascii_database, 2, b"fine", memo=WRONG)
    once(project)
    (waits,) = list_quarantine(project).undecodable
    assert waits.code == "DEC304"
    assert retry(project, None, silent).failed_count == 1
    project = project_of(ascii_database, tmp_path, undecodable="land", hex_columns=[*columns, "public.notes.me*"])
    assert retry(project, None, silent).failed_count == 0
    assert folded(project) == {"1": (HEX, "fine"), "2": ("fine", HEX)} == in_source(project)
