"""Where receivers are killed: a source of each kind with something that writes, and the proof at the end.

The proof is the checker of the invariants (`cdc_lake_testing.invariants`), which asks what ships, `inspect chain --against
source`, and a ledger at the source, of which each row must be in bronze once, and none of a transaction that aborted.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.config.project import Project
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.observability import failpoints as at
from cdc_lake_testing.gaussdb.faults import Faults
from cdc_lake_testing.invariants import Known, invariants
from cdc_lake_testing.kills import COPYING, RECEIVING, Receivers
from cdc_lake_testing.ledger import Ledger
from cdc_lake_testing.server import EmbeddedServer
from cdc_lake_testing.workload import Workload
from tests.conftest import Database, drop_database, make_database, make_role
from tests.live import test_gaussdb_receive, test_receive_loop
from tests.live.test_gaussdb_workload import PASSWORD, Kind, StandIn
from tests.pipeline_file import lake_section
from tests.postgres_with_test_decoding import start_decoding_server

STYLES = (
    Kind(Style.BINARY, batch=True),
    Kind(Style.JSON),
    Kind(Style.TEXT, batch=True, by_csn=True),
    Kind(Style.SERIAL),
)
BRONZE = {"batch": {"max_transactions": 3, "max_delay": "5 ms"}, "maintenance": {"compact_after_files": 6}}


OF_THE_FAMILY = (*RECEIVING, at.FRAME_PART)
"""Where a receiver may die whose frames come in pieces."""

IN_PIECES = Faults(stall_after=9, stall_seconds=5 if "CDC_LAKE_TEST_LAKE" in os.environ else 0.5, cuts=(1, 2, 3))
"""A stream whose first frame comes in two pieces, and whose batches hold a record or a few. The second one must not be
there before the receiver reads, which asks the store first.
"""


def _nothing() -> None:
    """Not of this kind."""


@dataclass
class Ground:
    """A pipeline whose receivers die, and what writes at its source.

    `copying`, `receiving`: the failpoints that one of its kind passes. `broken`: lets the next connection bring frames
    in pieces, where that takes a server of the kit's.
    """

    name: str
    project: Project
    receivers: Receivers
    workload: Workload
    ledger: Ledger
    dice: random.Random
    copying: tuple[str, ...] = COPYING
    receiving: tuple[str, ...] = RECEIVING
    broken: Callable[[], None] = _nothing

    def write(self) -> None:
        """Some transactions of each."""
        self.workload.run(self.dice.randint(4, 12))
        self.ledger.write(self.dice.randint(1, 5))

    def assert_proven(self) -> None:
        """Bronze is its source."""
        known = Known(source=True, silver=False, ledger=self.ledger)
        invariants(self.project, known).assert_held("I1", "I2", "I3", "I5", "I6")


def receivers_of(project: Project, password: str) -> Receivers:
    source = project.pipeline.source.model_dump(mode="json", by_alias=True) | {"password": password}
    return Receivers(project, {"source": source, **lake_section(project.root)})


@pytest.fixture(scope="module")
def decoding_server() -> Iterator[EmbeddedServer]:
    """One that has test_decoding."""
    embedded = start_decoding_server()
    make_role(embedded)
    yield embedded
    embedded.remove()


def of_postgres(database: Database, root: Path, dice: random.Random, sections: Any, **source: Any) -> Iterator[Ground]:
    project = test_receive_loop.project_of(database, root, **sections, source=source)
    with database.connect() as conn:
        workload, ledger = Workload(conn, dice.randrange(1 << 30)), Ledger(conn, dice)
        workload.create_tables()
        yield Ground("pgoutput", project, receivers_of(project, database.password), workload, ledger, dice)


def of_lines(server: EmbeddedServer, root: Path, dice: random.Random, sections: Any) -> Iterator[Ground]:
    database = make_database(server)
    try:
        slot = {"name": f"by_lines_{database.name}", "plugin": "test_decoding"}
        yield from of_postgres(database, root, dice, sections, slot=slot)
    finally:
        drop_database(database)


def of_family(stand_in: StandIn, root: Path, dice: random.Random, sections: Any) -> Iterator[Ground]:
    kind = dice.choice(STYLES)
    print(kind.slot)
    project = test_gaussdb_receive.project_of(stand_in, kind, root, **sections)
    with stand_in.database.connect() as conn:
        workload, ledger = Workload(conn, dice.randrange(1 << 30), truncates=False), Ledger(conn, dice)
        yield Ground(
            "family",
            project,
            receivers_of(project, PASSWORD),
            workload,
            ledger,
            dice,
            copying=tuple(name for name in COPYING if name not in {at.SLOT_KEPT, at.TABLE_COPIED}),
            receiving=OF_THE_FAMILY,
            broken=lambda: stand_in.servers[kind.by_csn].inject(IN_PIECES),
        )


@contextmanager
def ground(
    source: str, request: pytest.FixtureRequest, root: Path, dice: random.Random, **sections: Any
) -> Iterator[Ground]:
    """A pipeline on one of the sources, with sections of its file."""
    given = (root, dice, sections)
    match source:
        case "pgoutput":
            made = of_postgres(request.getfixturevalue("database"), *given)
        case "test_decoding":
            made = of_lines(request.getfixturevalue("decoding_server"), *given)
        case _:
            made = of_family(request.getfixturevalue("stand_in"), *given)
    yield from made
