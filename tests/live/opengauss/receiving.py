"""Receiving from a server under test: the whole loop into bronze, and the bare stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.decode.gaussdb.batches import RecordTransaction
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.model.change import Transaction
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import silent
from cdc_lake.runtime.receive.loop import ReceiveSummary
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake.source.gaussdb.catalog import GaussDbCatalog
from cdc_lake.source.gaussdb.slot import CreatedSlot, create_slot
from cdc_lake.source.gaussdb.stream import GaussDbStream
from cdc_lake.source.sql_text import identifier
from cdc_lake_testing.decoded import of_records as transaction
from tests.bronze_replay import tables_from_bronze
from tests.live.opengauss.site import Site
from tests.live.opengauss.workload import Workload, tables_at_source


@dataclass(frozen=True)
class Kind:
    """How a slot is read."""

    style: Style
    batch: bool = False

    def __str__(self) -> str:
        return f"{self.style.name.lower()}_{int(self.batch)}"

    @property
    def serial(self) -> bool:
        """Whether one decoder writes in the order of commits; only then is TRUNCATE sent."""
        return self.style is Style.SERIAL

    @property
    def decoding(self) -> dict[str, Any]:
        """The `decoding` section of a pipeline."""
        if self.serial:
            return {"parallel-decode-num": 1}
        return {"parallel-decode-num": 4, "decode-style": self.style.value, "sending-batch": int(self.batch)}

    @property
    def options(self) -> dict[str, str]:
        """What START_REPLICATION is given."""
        return {name: str(value) for name, value in self.decoding.items()} | {
            "include-xids": "on",
            "include-timestamp": "on",
        }


SERIAL = Kind(Style.SERIAL)
FAST = Kind(Style.BINARY, batch=True)
KINDS = (
    *(Kind(style, batch) for style in Style if style is not Style.SERIAL for batch in (False, True)),
    SERIAL,
)


@dataclass
class Place:
    """A schema on a server and a folder for a lake: of one test."""

    site: Site
    name: str
    root: Path
    slots: list[str] = field(default_factory=list)

    def workload(self, session: Any, seed: int, *, truncates: bool) -> Workload:
        """The workload on tables of this schema, which it makes."""
        made = Workload(session, self.name, seed, truncates=truncates, family=self.site.real)
        made.create_tables()
        return made

    def document(self, kind: Kind, **changes: Any) -> dict[str, Any]:
        """A pipeline on this schema."""
        if self.name not in self.slots:
            self.slots.append(self.name)
        source = {**self.site.source(), "decoding": kind.decoding, "tables": [f"{self.name}.*"]}
        document: dict[str, Any] = {
            "version": 1,
            "pipeline": self.name,
            "source": source | {"slot": {"name": self.name}},
            "snapshot": {"chunk_rows": 37},
            "bronze": {"batch": {"max_transactions": 20, "max_delay": "20 ms"}, "durability": "os"},
        }
        for section, values in changes.items():
            document[section] = {**document.get(section, {}), **values}
        return document

    def project(self, kind: Kind, **changes: Any) -> Project:
        """The same, read."""
        return Project(Pipeline.model_validate(self.document(kind, **changes)), self.root / "p.yaml", self.root)

    def slot(self) -> CreatedSlot:
        """A slot of this name, made over a replication connection."""
        self.slots.append(self.name)
        with self.site.replication() as session:
            return create_slot(session, self.name, "mppdb_decoding")

    def table(self, name: str) -> str:
        """A table of the schema in SQL."""
        return f"{identifier(self.name)}.{identifier(name)}"


def once(project: Project) -> ReceiveSummary:
    """Receive what was committed up to now."""
    bronze = DeltaBronze(project.bronze, "os")
    return receive(project, bronze, once=True, stop=threading.Event(), report=silent, slot_patience=75)


def assert_equal(project: Project, place: Place, workload: Workload) -> None:
    """Bronze, folded one transaction after the other, is what the server's tables hold."""
    with place.site.sql() as session:
        source = tables_at_source(session, workload)
    folded = tables_from_bronze(project)
    assert folded.keys() == source.keys()
    for table, rows in source.items():
        assert folded[table].keys() == rows.keys(), table
        wrong = {
            f"{table}.{name}: {folded[table][key][name]!r} for {value!r}"
            for key, row in rows.items()
            for name, value in row.items()
            if folded[table][key][name] != value
        }
        assert not wrong, wrong


@contextmanager
def streaming(place: Place, kind: Kind, **options: str) -> Iterator[GaussDbStream]:
    """The slot's stream."""
    stream = GaussDbStream(
        place.site.replication(),
        place.name,
        0,
        kind.options | options,
        keepalives_confirm=kind.serial,
        status_interval=2,
    )
    try:
        yield stream
    finally:
        stream.close()


def read_until(place: Place, kind: Kind, marker: TableName) -> list[RecordTransaction]:
    """The slot's transactions up to the one that touches `marker`; nothing is confirmed."""
    assembler = GaussDbAssembler(kind.style, batch=kind.batch, domain=OrderDomain.CSN)
    wanted = marker.name.encode()
    done: list[RecordTransaction] = []
    deadline = time.monotonic() + 120
    with streaming(place, kind) as stream:
        while not any(wanted in record for raw in done[-50:] for record in raw.records):
            assert time.monotonic() < deadline, f"{len(done)} transactions, none of them touches {marker}"
            for number, payload in stream.poll(5):
                done.extend(assembler.feed(payload, number))
    return done


def decoded(place: Place, raws: Sequence[RecordTransaction]) -> list[Transaction]:
    """The transactions by their CSN, read with the catalog as it is now."""
    with place.site.sql() as session:
        layouts = RelationResolver(GaussDbCatalog(session))
        return [transaction(raw, layouts) for raw in sorted(raws, key=lambda raw: raw.bounds.position)]
