"""The receiver of the GaussDB family stops at what cannot be decoded, and bronze is complete up to there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.connectors.gaussdb import adapter as family_stream
from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.decode.gaussdb.batches import RecordTransaction
from cdc_lake.decode.gaussdb.columnar import tabulate
from cdc_lake.decode.gaussdb.records import Commit, Operation, Row, Style
from cdc_lake.decode.gaussdb.undecodable import GaussDbFormat
from cdc_lake.errors import MalformedMessage
from cdc_lake.model.position import OrderDomain
from cdc_lake.source.base import domain_of
from cdc_lake_testing.gaussdb.ledger import Ledger, LedgerTransaction
from cdc_lake_testing.gaussdb.scripted import ScriptedAnswers
from cdc_lake_testing.gaussdb.server import GaussServer
from tests.bronze_replay import bronze_rows
from tests.tally import tally
from tests.unit.test_gaussdb_capture import NAME, TABLE, Way, fields, once, project_of, row

WAYS = [Way(Style.BINARY, 1), Way(Style.TEXT, 1), Way(Style.SERIAL), Way(Style.BINARY, 1, by_csn=True)]


@pytest.fixture(params=WAYS, ids=str)
def server(request: Any) -> Iterator[tuple[GaussServer, Way]]:
    way: Way = request.param
    answers = ScriptedAnswers(tables=[TABLE])
    product = "GaussDB" if way.by_csn else "openGauss"
    server = GaussServer(Ledger(), version=way.version, product=product, answers=answers, users={"cdc": "x"})
    server.state.batch_bytes, server.state.batch_seconds, server.state.keepalive_every = 3000, 0.05, 0.1
    with server:
        yield server, way


def landed(project: Project) -> list[int]:
    return [int(one["new"][0]) for one in bronze_rows(project) if one["op"] == "I"]


def whole_before(project: Project, server: GaussServer, transaction: LedgerTransaction) -> None:
    """Bronze has all before the undecodable transaction, and the server may forget no more."""
    assert landed(project) == [100, 101, 102]
    reader = bronze_reader(project)
    assert verify(reader).holds
    state = reader.state()
    assert state is not None
    by_csn = domain_of(state.stream) is OrderDomain.CSN
    assert state.upto < (transaction.csn if by_csn else transaction.commit_end)
    ((slot, _),) = server.state.slots.all()
    assert slot.confirmed <= state.confirm


def stops_twice_before(project: Project, server: GaussServer, bad: LedgerTransaction) -> None:
    """A second start stops at the same place."""
    for _ in range(2):
        with pytest.raises(MalformedMessage):
            once(project)
        whole_before(project, server, bad)
    tally("R15", {"undecodable, by the policy stop"}, stops=1)


def inserts(server: GaussServer) -> LedgerTransaction:
    """Five transactions; the fourth."""
    changes = [Row(Operation.INSERT, NAME, fields(row(number, None, "1"))) for number in range(100, 105)]
    return [server.ledger.commit([change]) for change in changes][3]


def test_a_row_that_cannot_be_decoded(
    server: tuple[GaussServer, Way], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, way = server
    project = project_of(source, tmp_path, way)
    once(project)
    bad = inserts(source)

    def refusing(batch: Sequence[RecordTransaction], layouts: Any) -> ChangeColumns:
        if any(bad.csn == raw.bounds.csn for raw in batch):
            raise MalformedMessage("a fault")
        return tabulate(batch, layouts)

    with monkeypatch.context() as patched:
        patched.setattr(
            family_stream, "GaussDbFormat", lambda layouts, plugin, _: GaussDbFormat(layouts, plugin, refusing)
        )
        stops_twice_before(project, source, bad)
    once(project)
    assert landed(project) == list(range(100, 105))


def test_a_message_that_cannot_be_taken_in(
    server: tuple[GaussServer, Way], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, way = server
    project = project_of(source, tmp_path, way)
    once(project)
    bad = inserts(source)
    close = GaussDbAssembler._close_transaction

    def refusing(self: GaussDbAssembler, commit: Commit, header_lsn: int, at: int) -> RecordTransaction:
        done = close(self, commit, header_lsn, at)
        if done.bounds.csn == bad.csn:
            raise MalformedMessage("a fault")
        return done

    with monkeypatch.context() as patched:
        patched.setattr(GaussDbAssembler, "_close_transaction", refusing)
        stops_twice_before(project, source, bad)
    once(project)
    assert landed(project) == list(range(100, 105))
