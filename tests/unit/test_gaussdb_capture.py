"""A capture of declared tables from the family's server alone: copy at a CSN, stream, faults; the ledger is the oracle."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.decode.gaussdb.records import Field, Operation, Row, Style
from cdc_lake.errors import ServerUnreachable
from cdc_lake.model.relation import Column, Relation, ReplicaIdentity, TableName
from cdc_lake.observability.events import silent
from cdc_lake.runtime.receive.loop import ReceiveSummary
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake_testing.gaussdb.declared import DeclaredTable
from cdc_lake_testing.gaussdb.dialect import Product, Version
from cdc_lake_testing.gaussdb.faults import Faults
from cdc_lake_testing.gaussdb.ledger import Ledger
from cdc_lake_testing.gaussdb.scripted import ScriptedAnswers
from cdc_lake_testing.gaussdb.server import GaussServer
from tests.bronze_replay import tables_from_bronze
from tests.seeds import one_seed

SEED = one_seed()
BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
NAME = TableName("public", "Konto")
RELATION = Relation(
    NAME,
    (Column("id", "int4", 23, -1, True), Column("note", "text", 25), Column("sum", "numeric", 1700)),
    ReplicaIdentity.DEFAULT,
    ("id",),
)
ODD = ("a\tb", "c\nd", r"\N", "", None, "'x'", "ü😀", "\\")


def row(number: int, note: str | None, total: str) -> tuple[str | None, ...]:
    return (str(number), note, total)


TABLE = DeclaredTable(
    RELATION, tuple(row(n, ODD[n % len(ODD)], ".5") for n in range(40)), ("integer", "text", "numeric")
)


def fields(values: tuple[str | None, ...]) -> tuple[Field, ...]:
    return tuple(
        Field(column.name, value, printed, column.type_oid)
        for column, value, printed in zip(RELATION.columns, values, TABLE.printed, strict=True)
    )


class Writer:
    """Writes transactions that make sense one after the other; now and then two commit against the order of their CSNs."""

    def __init__(self, ledger: Ledger, seed: int) -> None:
        self.ledger = ledger
        self._random = random.Random(seed)
        self._rows = {int(r[0] or 0): r for r in TABLE.rows}
        self._next = 1000

    def change(self) -> Row:
        chance = self._random.random()
        if chance < 0.5 or not self._rows:
            self._next += 1
            new = row(self._next, self._random.choice(ODD), str(self._random.randrange(10**6)))
            self._rows[self._next] = new
            return Row(Operation.INSERT, NAME, fields(new))
        number = self._random.choice(sorted(self._rows))
        key = fields(self._rows[number])[:1]
        if chance < 0.8:
            new = row(number, self._random.choice(ODD), "-.25")
            self._rows[number] = new
            return Row(Operation.UPDATE, NAME, fields(new), key)
        del self._rows[number]
        return Row(Operation.DELETE, NAME, None, key)

    def transactions(self, count: int, pause: float = 0.0) -> None:
        for _ in range(count):
            held = self.ledger.allot_csn() if self._random.random() < 0.2 else None
            self.ledger.commit([self.change() for _ in range(self._random.randrange(1, 6))])
            if held is not None:  # of another database, so no row of ours: such inversions are real ones
                self.ledger.commit([], csn=held, database="elsewhere")
            time.sleep(pause)


@dataclass(frozen=True)
class Way:
    """How a stream is read, and from which server."""

    style: Style
    batch: int = 0
    version: Version = "6.0.2"
    by_csn: bool = False
    polling: bool = False
    csn_export: bool = True

    def __str__(self) -> str:
        marks = {"csn": self.by_csn, "polling": self.polling, "no-export": not self.csn_export}
        return "-".join([f"{self.style.value}{self.batch}", self.version, *(mark for mark, on in marks.items() if on)])

    @property
    def decoding(self) -> dict[str, Any]:
        if self.style is Style.SERIAL:
            return {"parallel-decode-num": 1}
        return {"parallel-decode-num": 2, "decode-style": self.style.value, "sending-batch": self.batch}


def project_of(server: GaussServer, root: Path, way: Way) -> Project:
    document: dict[str, Any] = {
        "version": 1,
        "pipeline": "konten",
        "source": {
            "type": "gaussdb" if way.by_csn else "opengauss",
            "host": server.host,
            "port": server.port,
            "replication_port": server.replication_port,
            "database": "postgres",
            "user": "cdc",
            "password": "x",
            "tls": {"mode": "disable"},
            "slot": {"output_order": "csn"} if way.by_csn else {},
            "mode": "polling" if way.polling else "stream",
            "polling": {"interval": "20 ms", "max_changes": 50},
            "decoding": {} if way.polling else way.decoding,
            "tables": ["public.*"],
        },
        "bronze": {"batch": {"max_transactions": 20, "max_delay": "20 ms"}, "durability": "os"},
    }
    return Project(Pipeline.model_validate(document), root / "pipeline.yaml", root)


def once(project: Project) -> ReceiveSummary:
    bronze = DeltaBronze(project.bronze, "os")
    return receive(project, bronze, once=True, stop=threading.Event(), report=silent, slot_patience=60)


def assert_bronze_is_the_table(project: Project, ledger: Ledger) -> None:
    wanted = {r[:1]: r for r in TABLE.contents(ledger, ledger.next_csn)}
    ((table, found),) = tables_from_bronze(project).items()
    assert table == NAME
    assert {key: tuple(values.values()) for key, values in found.items()} == wanted


WAYS = [Way(Style.BINARY, 1), Way(Style.BINARY, 1, "3.0.0"), Way(Style.SERIAL)]
if BUDGET > 1:
    WAYS += [Way(Style.BINARY, 0), Way(Style.TEXT, 0), Way(Style.TEXT, 1), Way(Style.JSON, 0), Way(Style.JSON, 1)]
    WAYS += [Way(Style.BINARY, 1, "5.0.3"), Way(Style.SERIAL, 0, "3.0.0"), Way(Style.BINARY, 1, by_csn=True)]
    WAYS += [Way(Style.SERIAL, polling=True), Way(Style.BINARY, 1, csn_export=False)]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_copy_and_stream_end_as_the_ledger_does_whatever_happens_to_the_connection(tmp_path: Path, way: Way) -> None:
    print("CDC_LAKE_SEED =", SEED)
    ledger = Ledger()
    writer = Writer(ledger, SEED)
    answers = ScriptedAnswers(tables=[TABLE])
    product: Product = "GaussDB" if way.by_csn else "openGauss"
    with GaussServer(ledger, version=way.version, product=product, answers=answers, users={"cdc": "x"}) as server:
        server.state.batch_bytes, server.state.batch_seconds = 3000, 0.05
        server.state.keepalive_every, server.state.csn_export = 0.1, way.csn_export
        project = project_of(server, tmp_path, way)
        writer.transactions(20)
        thread = threading.Thread(target=writer.transactions, args=(60, 0.002))
        thread.start()
        first = once(project)
        assert first.snapshot_rows > 0
        thread.join()
        chance = random.Random(SEED)
        for _ in range(2 * BUDGET):
            writer.transactions(30)
            server.inject(Faults(cut_after=chance.randrange(100, 9000)))
            with contextlib.suppress(ServerUnreachable):  # nothing else may come of it
                once(project)
            server.crash()
        once(project)
        assert_bronze_is_the_table(project, ledger)
