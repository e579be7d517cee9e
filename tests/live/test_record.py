"""`record` against a real PostgreSQL: what was committed is in the file, and the source is as it was."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from cdc_lake.cli.app import app
from cdc_lake.cli.process import run_command
from cdc_lake.config.loader import load_project
from cdc_lake.decode.pgoutput.assembler import Assembler
from cdc_lake.devtools.replay import Limits, record
from cdc_lake.source.postgres.catalog import SourceCatalog
from cdc_lake.source.postgres.connection import connect
from cdc_lake_testing.recordings import RecordingSource
from tests.conftest import Database
from tests.pipeline_file import pipeline_file

pytestmark = pytest.mark.live


@pytest.fixture
def pipeline(tmp_path: Path, database: Database) -> Path:
    with database.connect() as session:
        session.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        session.execute(f"CREATE PUBLICATION {database.name} FOR TABLE t".encode())
    return pipeline_file(database, tmp_path)


def write_until(database: Database, done: threading.Event) -> None:
    with database.connect() as session:
        for number in range(10_000):
            session.execute("INSERT INTO t VALUES (%s, %s)", [number, f"row {number}"])
            session.execute("UPDATE t SET v = %s WHERE id = %s", ["changed\nit", number])
            if done.wait(0.02):
                return


def recorded(database: Database, project, file: Path, limits: Limits, **more):
    done = threading.Event()
    writer = threading.Thread(target=write_until, args=(database, done))
    writer.start()
    try:
        return record(project, file, limits, stop=threading.Event(), report=lambda _: None, **more)
    finally:
        done.set()
        writer.join()


def slots(database: Database) -> list[tuple]:
    with database.admin() as session:
        query = "SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots WHERE database = %s"
        return session.execute(query, [database.name]).fetchall()


def test_a_recording_holds_whole_transactions_and_leaves_nothing_behind(database, pipeline, tmp_path):
    project, file = load_project(pipeline), tmp_path / "a.rec"
    found = recorded(database, project, file, Limits(seconds=120, transactions=20))
    assert (found.transactions, found.plugin, found.slot) == (20, "pgoutput", None)
    assert slots(database) == []
    source = RecordingSource(file)
    assert source.header is not None
    assert source.header.start == found.start
    session = connect(project.postgres, project.root)
    try:
        assembler = Assembler(SourceCatalog(session))
        got = [one for lsn, payload in source.poll(0) for one in assembler.feed(payload, lsn)]
    finally:
        session.close()
        source.close()
    assert len(got) == 20
    assert sum(one.count for one in got) == 20


def test_a_recording_is_replayed_and_inspected(database, pipeline, tmp_path, capsys):
    file = tmp_path / "a.rec"
    recorded(database, load_project(pipeline), file, Limits(seconds=120, transactions=6))
    assert run_command(app, ["replay", str(file), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["recordings"]
    assert found["plugin"] == "pgoutput"
    assert (found["transactions"], found["changes"]["public.t"]["insert"]) == (6, 3)
    assert run_command(app, ["inspect", "payload", str(file)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    update = next(line for line in lines if line["type"] == "update")
    assert {"name": "v", "type_oid": 25, "value": "changed\nit"} in update["new"]


def test_a_redacted_recording_replays_and_holds_no_value(database, pipeline, tmp_path, capsys):
    file, limits = tmp_path / "a.rec", Limits(seconds=120, transactions=6)
    found = recorded(database, load_project(pipeline), file, limits, redact=True)
    assert (found.redacted, found.unreadable) == (True, 0)
    assert b"changed" not in file.read_bytes()
    assert b"row " not in file.read_bytes()
    assert run_command(app, ["replay", str(file), "--json"]) == 0
    (played,) = json.loads(capsys.readouterr().out)["recordings"]
    assert (played["transactions"], played["changes"]["public.t"]) == (6, {"insert": 3, "update": 3})


def test_a_pipeline_that_redacts_is_recorded_only_as_it_is_told(database, pipeline, tmp_path, capsys):
    with pipeline.open("a") as text:
        text.write("bronze: {redact: [{columns: [public.t.v], strategy: drop}]}\n")
    command = ["record", str(pipeline), str(tmp_path / "a.rec"), "--seconds", "0.3"]
    assert run_command(app, command) == 2
    assert "CFG155" in capsys.readouterr().err
    assert not (tmp_path / "a.rec").exists()
    assert run_command(app, [*command, "--redact"]) == 0
    assert "every value is overwritten" in capsys.readouterr().out
    assert run_command(app, ["record", str(pipeline), str(tmp_path / "b.rec"), "--seconds", "0.3", "--raw"]) == 0


def test_a_slot_that_is_given_is_read_and_not_moved(database, pipeline, tmp_path):
    with database.connect() as session:
        session.execute("SELECT pg_create_logical_replication_slot('mine', 'pgoutput')")
        session.execute("INSERT INTO t VALUES (-1, 'before the recording')")
    before = slots(database)
    limits = Limits(seconds=120, transactions=3)
    found = recorded(database, load_project(pipeline), tmp_path / "a.rec", limits, slot="mine")
    assert (found.slot, found.transactions) == ("mine", 3)
    again = record(
        load_project(pipeline), tmp_path / "b.rec", limits, slot="mine", stop=threading.Event(), report=lambda _: None
    )
    assert again.transactions == 3
    assert slots(database) == before
    a, b = (RecordingSource(tmp_path / name) for name in ("a.rec", "b.rec"))
    assert b"before the recording" in b"".join(payload for _, payload in a.poll(0))
    assert b"before the recording" in b"".join(payload for _, payload in b.poll(0))
    a.close()
    b.close()


def test_the_command_ends_by_its_limits_and_refuses_to_overwrite(database, pipeline, tmp_path, capsys):
    file = tmp_path / "a.rec"
    assert run_command(app, ["record", str(pipeline), str(file), "--seconds", "0.3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "cdc-lake/record/1"
    size = file.stat().st_size
    assert run_command(app, ["record", str(pipeline), str(file), "--bytes", "1 KiB"]) == 1
    assert "STA630" in capsys.readouterr().err
    assert file.stat().st_size == size
    assert run_command(app, ["record", str(pipeline), str(tmp_path / "b.rec"), "--bytes", "lots"]) == 2
