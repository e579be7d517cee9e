"""A distributed GaussDB: one stream in CSN order through a coordinator, or a stream of its own from each data node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.loader import validate
from cdc_lake.config.project import Project, effective_options
from cdc_lake.decode.gaussdb.records import Operation, Row, Style
from cdc_lake.errors import CdcLakeError
from cdc_lake.model.position import Span
from cdc_lake.source.base import StreamIdentity
from cdc_lake_testing.gaussdb.ledger import Ledger
from cdc_lake_testing.gaussdb.scripted import ScriptedAnswers
from cdc_lake_testing.gaussdb.server import GaussServer
from cdc_lake_testing.gaussdb.slots import SlotOrder
from cdc_lake_testing.gaussdb.state import Node
from tests.bronze_replay import bronze_rows
from tests.unit.test_gaussdb_capture import (
    BUDGET,
    NAME,
    SEED,
    TABLE,
    Way,
    Writer,
    assert_bronze_is_the_table,
    fields,
    once,
    project_of,
    row,
)

STYLES = [Style.BINARY] if BUDGET == 1 else [Style.BINARY, Style.TEXT, Style.JSON, Style.SERIAL]


@pytest.fixture
def nodes() -> Iterator[Any]:
    with ExitStack() as opened:

        def start(node: Node, ledger: Ledger) -> GaussServer:
            answers = ScriptedAnswers(tables=[TABLE])
            server = GaussServer(ledger, product="GaussDB", answers=answers, users={"cdc": "x"})
            server.state.node = node
            server.state.batch_seconds, server.state.keepalive_every = 0.05, 0.1
            return opened.enter_context(server)

        yield start


def pipeline(server: GaussServer, root: Path, options: dict[str, int], style: Style = Style.BINARY) -> Project:
    way = Way(style, 1 if style is not Style.SERIAL else 0, by_csn=True)
    project = project_of(server, root, way)
    decoding = {**way.decoding, **options}
    source = project.pipeline.source.model_copy(update={"node": server.state.node, "decoding": decoding})
    return Project(project.pipeline.model_copy(update={"source": source}), project.file, project.root)


@pytest.mark.parametrize("style", STYLES)
def test_through_a_coordinator_every_transaction_comes_once_and_in_csn_order(
    nodes: Any, tmp_path: Path, style: Style
) -> None:
    print("CDC_LAKE_SEED =", SEED)
    ledger = Ledger()
    writer, server = Writer(ledger, SEED), nodes("coordinator", ledger)
    project = pipeline(server, tmp_path, {"logical-receiver-num": 3}, style)
    writer.transactions(20)
    once(project)
    assert [slot.order for slot, _ in server.state.slots.all()] == [SlotOrder.CSN]
    for _ in range(2):
        writer.transactions(40)
        once(project)
        server.crash()
    assert_bronze_is_the_table(project, ledger)
    state = bronze_reader(project).state()
    assert state is not None
    start = StreamIdentity.parse(state.stream).start
    landed = [one.position for one in bronze_reader(project).commits(Span(1, start, state.upto))]
    assert landed == sorted(one.csn for one in ledger.since(0) if one.changes and one.csn > start)
    sent = effective_options(project.family)
    assert sent["logical-receiver-num"] == "3"
    assert "output-order" not in sent  # whatever is asked of it, a coordinator sends by CSN


def test_data_nodes_have_a_stream_each_and_replicated_tables_need_the_slice(nodes: Any, tmp_path: Path) -> None:
    ledgers = [Ledger(), Ledger()]
    servers = [nodes("data_node", ledger) for ledger in ledgers]
    projects = [pipeline(server, tmp_path / str(n), {"slice-id": n}) for n, server in enumerate(servers)]
    for project in projects:
        once(project)
    for number in range(100, 120):  # CSNs count for the whole cluster: each node has a part of them
        change = Row(Operation.INSERT, NAME, fields(row(number, None, "1")))
        ledgers[number % 2].commit([change], csn=3000 + number)
    for project in projects:
        once(project)
    found = [[int(one["new"][0]) for one in bronze_rows(project) if one["op"] == "I"] for project in projects]
    assert found == [list(range(100, 120, 2)), list(range(101, 120, 2))]
    servers[0].state.replicated = frozenset([NAME])
    ledgers[0].commit([Row(Operation.INSERT, NAME, fields(row(200, None, "1")))], csn=4000)
    with pytest.raises(CdcLakeError, match="slice-id is needed"):
        once(pipeline(servers[0], tmp_path / "0", {}))
    once(projects[0])
    assert 200 in [int(one["new"][0]) for one in bronze_rows(projects[0]) if one["op"] == "I"]


def test_validate_says_what_a_data_node_alone_does_not_give(tmp_path: Path) -> None:
    file = tmp_path / "shard.yaml"
    text = (
        "version: 1\npipeline: shard\nsource:\n  type: gaussdb\n  host: dn1\n  port: 8000\n  database: d\n  user: u\n"
        "  node: data_node\n  slot: {output_order: csn}\n  tables: [public.*]\n"
    )
    file.write_text(text)
    said = [(one.severity.value, one.summary) for one in validate([file])]
    assert [severity for severity, _ in said] == ["warning", "warning"]
    assert "part of each transaction across shards" in said[0][1]
    assert "replicated table" in said[1][1]
    file.write_text(text + "  decoding: {slice-id: 3}\n")
    assert len(validate([file])) == 1
