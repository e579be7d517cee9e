"""Databases of the family in other encodings: the copy and the stream say the same, also where bytes are no text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.connectors.base import all_rows
from cdc_lake.connectors.gaussdb import adapter as family_stream
from cdc_lake.connectors.gaussdb.comparison import family_side
from cdc_lake.decode.gaussdb import undecodable as kept
from cdc_lake.decode.gaussdb.columnar import tabulate
from cdc_lake.errors import MalformedMessage, SlotUndecodable, TextNotInEncoding
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import silent
from cdc_lake.runtime.quarantine import list_quarantine
from cdc_lake.runtime.redecode import retry
from cdc_lake_testing.gaussdb.answers import LiveAnswers
from cdc_lake_testing.gaussdb.answers_settings import SessionSettings
from cdc_lake_testing.gaussdb.authentication import Credentials, Method
from cdc_lake_testing.gaussdb.live import LivePostgres
from cdc_lake_testing.gaussdb.server import GaussServer
from cdc_lake_testing.gaussdb.state import ServerState
from tests.conftest import Database
from tests.live.test_receive_loop import once

pytestmark = pytest.mark.live
NOTES = TableName("public", "notes")
PASSWORD = "only for tests"


@contextmanager
def serving(database: Database, encoding: str) -> Iterator[GaussServer]:
    with database.connect() as source:
        source.execute("CREATE TABLE IF NOT EXISTS notes (id int PRIMARY KEY, body text, memo text)")
    with (
        LivePostgres(database.server.dsn(database.name)) as live,
        GaussServer(
            live.ledger,
            databases=[database.name],
            users={"cdc": Credentials(PASSWORD, iterations=1)},
            method=Method.SHA256,
            answers=LiveAnswers(live, database.dsn),
            thread_pool=True,
            encoding=encoding,
        ) as server,
    ):
        yield server


def project_of(
    database: Database, server: GaussServer, root: Path, *, undecodable: str = "stop", **source: Any
) -> Project:
    document = {
        "version": 1,
        "pipeline": "encodings",
        "source": {
            "type": "opengauss",
            "host": server.host,
            "port": server.port,
            "replication_port": server.replication_port,
            "database": database.name,
            "user": "cdc",
            "password": PASSWORD,
            "tls": {"mode": "disable"},
            "decoding": {"parallel-decode-num": 4, "decode-style": "b", "sending-batch": 1},
            "tables": ["public.*"],
            **source,
        },
        "bronze": {"durability": "os", "undecodable": undecodable},
    }
    return Project(Pipeline.model_validate(document), root / "pipeline.yaml", root)


def folded(project: Project) -> dict[str, tuple[str | None, ...]]:
    rows = bronze_reader(project).history_rows(NOTES).to_pylist()
    assert {row["op"] for row in rows} <= {"S", "I"}
    return {row["new"][0]: tuple(row["new"][1:]) for row in rows}


def in_source(project: Project) -> dict[str, tuple[str | None, ...]]:
    """As a comparison reads it, which also looks at what the slot still has."""
    state = bronze_reader(project).state()
    assert state is not None
    with family_side(project, state) as side, side.snapshot([NOTES]) as shown:
        (one,) = side.captured_tables()
        rows = all_rows(side, side.relation_of(one), one).to_pylist()
        for unlanded in side.ahead(shown, state.upto) or ():
            assert unlanded.tables <= {NOTES}
    return {row["id"]: (row["body"], row["memo"]) for row in rows}


def insert(database: Database, *rows: tuple[int, str, str]) -> None:
    with database.connect() as source:
        for row in rows:
            source.execute("INSERT INTO notes VALUES (%s, %s, %s)", row)


@pytest.mark.parametrize("columns", [[], ["public.notes.body"]], ids=["by the server", "as it is stored"])
def test_a_database_in_gbk_says_the_same_in_copy_and_stream(database: Database, tmp_path: Path, columns: list[str]):
    texts = ("中文", "乗\\誠|", '"\n\t', "not-text:d6")
    with serving(database, "GBK") as server:
        project = project_of(database, server, tmp_path, hex_columns=columns)
        insert(database, *((n, text, text) for n, text in enumerate(texts)))
        once(project)
        insert(database, *((10 + n, text, text) for n, text in enumerate(texts)))
        once(project)
        found = folded(project)
        assert found == in_source(project)
        insert(database, (100, texts[0], texts[1]))
        assert in_source(project)["100"] == (texts[0], texts[1])
    bodies = [*texts[:3], f"not-text:{texts[3].encode().hex()}" if columns else texts[3]]
    assert found == {
        str(ten + n): (body, memo) for ten in (0, 10) for n, (body, memo) in enumerate(zip(bodies, texts, strict=True))
    }


@pytest.fixture
def latin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database in SQL_ASCII whose clients write Latin-1: what is stored is sent, and is no UTF-8."""
    startup = SessionSettings.startup

    def in_latin(settings: SessionSettings) -> Iterator[str]:
        yield from startup(settings)
        yield "SET client_encoding = 'LATIN1'"

    monkeypatch.setattr(ServerState, "codec", property(lambda _: "latin-1"))
    monkeypatch.setattr(SessionSettings, "startup", in_latin)


@pytest.mark.usefixtures("latin")
def test_a_database_in_sql_ascii_keeps_bytes_that_are_no_text_where_it_may(database: Database, tmp_path: Path):
    with serving(database, "SQL_ASCII") as server:
        project = project_of(database, server, tmp_path, hex_columns=["public.*.body"])
        insert(database, (1, "café\\", "x"), (2, "plain", "not-text:"))
        once(project)
        insert(database, (11, "café\\", "x"), (12, "plain", "not-text:"))
        once(project)
        wanted = {"1": ("not-text:636166e95c", "x"), "2": ("plain", "not-text:")}
        assert folded(project) == wanted | {f"1{key}": row for key, row in wanted.items()} == in_source(project)
        insert(database, (3, "x", "café"))
        with pytest.raises(TextNotInEncoding, match="SQL_ASCII"):
            once(project)
        assert verify(bronze_reader(project)).holds


@pytest.mark.usefixtures("latin")
@pytest.mark.obeys("STA656")
def test_a_comparison_that_the_slot_stops_says_what_a_run_says_and_is_equal_once_bronze_has_it(
    database: Database, tmp_path: Path
) -> None:
    with serving(database, "SQL_ASCII") as server:
        project = project_of(database, server, tmp_path)
        once(project)
        insert(database, (1, "café", "x"))
        state = bronze_reader(project).state()
        assert state is not None
        with (
            family_side(project, state) as side,
            side.snapshot([NOTES]) as shown,
            pytest.raises(SlotUndecodable) as asked,
        ):
            side.ahead(shown, state.upto)
        assert "`cdc-lake run`, which reports" in asked.value.remedy
        with pytest.raises(TextNotInEncoding) as said:
            once(project)
        assert said.value.code in asked.value.message
        assert "hex_columns" in said.value.remedy
        project = project_of(database, server, tmp_path, hex_columns=["public.notes.body"])
        once(project)
        assert folded(project) == in_source(project) == {"1": ("not-text:636166e9", "x")}
        assert verify(bronze_reader(project)).holds


@pytest.mark.usefixtures("latin")
def test_the_copy_stops_at_it_by_default(database: Database, tmp_path: Path):
    with serving(database, "SQL_ASCII") as server:
        insert(database, (1, "café", "x"))
        with pytest.raises(TextNotInEncoding) as stopped:
            once(project_of(database, server, tmp_path))
    assert stopped.value.where == "a row of public.notes"


def test_what_a_fault_made_undecodable_is_decoded_once_it_is_mended(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def faulty(batch: Any, layouts: Any) -> Any:
        if any(b"MARK" in record for raw in batch for record in raw.records):
            raise MalformedMessage("a fault")
        return tabulate(batch, layouts)

    with serving(database, "UTF8") as server:
        project = project_of(database, server, tmp_path, undecodable="land")
        once(project)
        monkeypatch.setattr(
            family_stream, "GaussDbFormat", lambda layouts, plugin, _: kept.GaussDbFormat(layouts, plugin, faulty)
        )
        insert(database, (1, "a", "x"), (2, "MARK", "x"), (3, "b", "MARK"), (4, "c", "x"))
        assert once(project).transactions == 4
        assert [one.tables for one in list_quarantine(project).undecodable] == [("public.notes",), ("public.notes",)]
        assert verify(bronze_reader(project)).holds
        wanted = in_source(project)
    assert retry(project, None, silent).failed_count == 0  # the server is not asked
    assert folded(project) == wanted
