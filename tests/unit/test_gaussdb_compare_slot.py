"""What a comparison asks of a slot of the GaussDB family: it moves nothing, and says what it cannot read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.connectors.gaussdb import decoding
from cdc_lake.connectors.gaussdb.comparison import CsnSnapshotPredicate, family_side
from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.decode.gaussdb.records import Operation, Row, Style
from cdc_lake.errors import MalformedMessage, SlotUndecodable
from cdc_lake.model.position import OrderDomain
from cdc_lake.source.base import PendingTransaction, domain_of
from cdc_lake_testing.gaussdb.ledger import Ledger
from cdc_lake_testing.gaussdb.scripted import ScriptedAnswers
from cdc_lake_testing.gaussdb.server import GaussServer
from tests.unit.test_gaussdb_capture import NAME, TABLE, Way, fields, once, project_of, row

POLLING, PARALLEL = Way(Style.SERIAL, polling=True), Way(Style.BINARY, 1)


@pytest.fixture
def server() -> Iterator[GaussServer]:
    answers = ScriptedAnswers(tables=[TABLE])
    with GaussServer(Ledger(), version="6.0.2", answers=answers, users={"cdc": "x"}) as server:
        server.state.batch_bytes, server.state.batch_seconds, server.state.keepalive_every = 3000, 0.05, 0.1
        yield server


def insert(server: GaussServer, *numbers: int) -> None:
    for number in numbers:
        server.ledger.commit([Row(Operation.INSERT, NAME, fields(row(number, None, "1")))])


def ahead(project: Project, server: GaussServer) -> list[PendingTransaction]:
    """What the slot still has of what is committed now."""
    state = bronze_reader(project).state()
    assert isinstance(state, StreamCheckpoint)
    last = server.ledger[len(server.ledger) - 1]
    position = last.csn if domain_of(state.stream) is OrderDomain.CSN else last.commit_end
    with family_side(project, state) as side:
        found = side.ahead(CsnSnapshotPredicate(last.csn + 1, position), state.upto)
    assert found is not None
    return list(found)


def test_by_sql_a_slot_that_is_behind_bronze_is_read_from_where_it_is_and_not_moved(
    server: GaussServer, tmp_path: Path
) -> None:
    project = project_of(server, tmp_path, POLLING)
    once(project)
    before = server.state.slots.all()[0][0]
    insert(server, *range(100, 140))  # more than one answer has
    once(project)
    server.state.slots.drop(before.name)
    server.state.slots.create(before)
    insert(server, 140, 141)
    assert len(ahead(project, server)) == 2
    assert server.state.slots.all()[0][0] == before


@pytest.mark.parametrize("way", [POLLING, PARALLEL], ids=str)
def test_what_cannot_be_decoded_there_is_said_with_its_cause(
    server: GaussServer, tmp_path: Path, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = project_of(server, tmp_path, way)
    once(project)
    insert(server, 100)

    def refusing(*_: Any) -> None:
        raise MalformedMessage("a fault")

    for owner, name in ((GaussDbAssembler, "_close_transaction"), (decoding, "tables_of")):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, refusing)
            with pytest.raises(SlotUndecodable, match=r"cannot be decoded: a fault .*\(DEC303, in the ") as caught:
                ahead(project, server)
            assert isinstance(caught.value.__cause__, MalformedMessage)
    assert len(ahead(project, server)) == 1
