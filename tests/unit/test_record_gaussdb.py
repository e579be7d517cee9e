"""`record` against the server that speaks as GaussDB: every way of writing replays, the slot goes, nothing is confirmed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_lake.cli.app import app
from cdc_lake.cli.process import run_command
from cdc_lake.config.loader import load_project
from cdc_lake.decode.gaussdb.records import Field, Operation, Row
from cdc_lake.devtools.replay import Limits, record
from cdc_lake.errors import ServerSettings, SlotMissing
from cdc_lake.model.relation import TableName
from cdc_lake.source.gaussdb.slot import create_slot
from cdc_lake.source.gaussdb.wire.protocol import WireTarget, WireTls
from cdc_lake.source.gaussdb.wire.session import connect
from cdc_lake_testing.gaussdb.ledger import Ledger
from cdc_lake_testing.gaussdb.scripted import ScriptedAnswers
from cdc_lake_testing.gaussdb.server import GaussServer
from cdc_lake_testing.recordings import RecordingSource
from tests.unit.test_gaussdb_wire_client import catalog

PIPELINE = """\
version: 1
pipeline: shop
source:
  type: opengauss
  host: {host}
  port: {port}
  replication_port: {replication_port}
  database: postgres
  user: cdc
  password: Gauss@123
  tls: {{mode: disable}}
  decoding: {decoding}
  tables: ["public.*"]
"""
STYLES = [
    {"parallel-decode-num": 1},
    *({"parallel-decode-num": 2, "decode-style": s, "sending-batch": b} for s in "btj" for b in (0, 1)),
]

TABLE = TableName("public", "orders")


def row(ledger: Ledger, number: int) -> Row:
    fields = (Field("id", str(number), "integer", 23), Field("note", "中文", "text", 25))
    return Row(Operation.INSERT, TABLE, new=fields, lsn=ledger.allot())


@pytest.fixture
def server() -> Iterator[GaussServer]:
    ledger, answers = Ledger(), ScriptedAnswers(catalog("GBK"))
    with GaussServer(ledger, users={"cdc": "Gauss@123"}, answers=answers, encoding="GBK") as running:
        yield running


def pipeline(server: GaussServer, folder: Path, decoding: dict) -> Path:
    file = folder / "shop.yaml"
    where = {"host": server.host, "port": server.port, "replication_port": server.replication_port}
    file.write_text(PIPELINE.format(**where, decoding=json.dumps(decoding)))
    return file


def slots(server: GaussServer) -> dict[str, object]:
    return {slot.name: slot.confirmed for slot, _ in server.state.slots.all()}


def write(ledger: Ledger, done: threading.Event) -> None:
    for number in range(100_000):
        ledger.commit([row(ledger, number), row(ledger, number)])
        if done.wait(0.01):
            return


def recorded(server, project, file, capsys, *, redact=None):
    """Record ten transactions while they are written; what was found, and what a replay of the file says."""
    done = threading.Event()
    writer = threading.Thread(target=write, args=(server.ledger, done))
    writer.start()
    try:
        limits = Limits(seconds=120, transactions=10)
        found = record(project, file, limits, redact=redact, stop=threading.Event(), report=lambda _: None)
    finally:
        done.set()
        writer.join()
    assert found.transactions >= 10
    assert slots(server) == {}
    assert run_command(app, ["replay", str(file), "--json"]) == 0
    (played,) = json.loads(capsys.readouterr().out)["recordings"]
    assert played["transactions"] == found.transactions
    return found, played


@pytest.mark.parametrize("redact", [None, True], ids=["raw", "redacted"])
@pytest.mark.parametrize("decoding", STYLES, ids=lambda d: "-".join(str(v) for v in d.values()))
def test_every_way_of_writing_is_recorded_and_replays(server, tmp_path, capsys, decoding, redact):
    project = load_project(pipeline(server, tmp_path, decoding))
    found, played = recorded(server, project, tmp_path / "a.rec", capsys, redact=redact)
    assert played["changes"]["public.orders"]["insert"] == 2 * found.transactions
    assert run_command(app, ["inspect", "payload", str(tmp_path / "a.rec")]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    insert = next(line for line in lines if line["type"] == "insert")
    value = insert["new"][1]["value"]
    assert (value == "中文") is (redact is None), "the header says the encoding"
    assert found.unreadable == 0
    assert ("中文".encode("gbk") in (tmp_path / "a.rec").read_bytes()) is (redact is None)


def test_another_product_than_the_file_says_is_not_recorded(server, tmp_path):
    server.state.product = "MogDB"
    project = load_project(pipeline(server, tmp_path, STYLES[0]))
    with pytest.raises(ServerSettings, match="the server is MogDB"):
        record(project, tmp_path / "a.rec", Limits(seconds=1), stop=threading.Event(), report=lambda _: None)
    assert not (tmp_path / "a.rec").exists()


@pytest.mark.parametrize("decoding", STYLES[:2], ids=["serial", "binary"])
def test_a_pipeline_that_reads_in_csn_order_is_recorded_in_csn_order(server, tmp_path, capsys, decoding):
    server.state.product = "GaussDB"
    file = pipeline(server, tmp_path, decoding)
    file.write_text(file.read_text().replace("opengauss", "gaussdb") + "  slot: {output_order: csn}\n")
    recorded(server, load_project(file), tmp_path / "a.rec", capsys)


def test_a_slot_that_is_given_is_read_and_not_moved(server, tmp_path):
    target = WireTarget(
        hosts=((server.host, server.port),), database="postgres", user="cdc", password="Gauss@123",
        replication_port=server.replication_port, tls=WireTls("disable"),
    )  # fmt: skip
    session = connect(target, replication=True)
    create_slot(session, "mine", "mppdb_decoding")
    session.close()
    for number in range(3):
        server.ledger.commit([row(server.ledger, number)])
    before = slots(server)
    project = load_project(pipeline(server, tmp_path, {"parallel-decode-num": 2, "decode-style": "b"}))
    for name in ("a.rec", "b.rec"):
        limits = Limits(seconds=120, transactions=3)
        record(project, tmp_path / name, limits, slot="mine", stop=threading.Event(), report=lambda _: None)
        source = RecordingSource(tmp_path / name)
        assert b"".join(payload for _, payload in source.poll(0)).count("中文".encode("gbk")) == 3
        source.close()
    assert slots(server) == before


def test_a_slot_that_is_not_there_is_said_and_no_file_is_left(server, tmp_path):
    project = load_project(pipeline(server, tmp_path, {"parallel-decode-num": 2, "decode-style": "b"}))
    with pytest.raises(SlotMissing):
        record(
            project, tmp_path / "a.rec", Limits(seconds=1), slot="none", stop=threading.Event(), report=lambda _: None
        )
    assert not (tmp_path / "a.rec").exists()
