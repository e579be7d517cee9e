"""Slots of the GaussDB family, over real sockets: seen, made, moved, dropped, and a budget for what they keep."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import cdc_lake
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.cli.commands.slots import advanced_text, details_text, list_text
from cdc_lake.config.project import Project
from cdc_lake.connectors.wal_budget import ApplyYield, WalNote
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.errors import AdvancePastBronze, NoStream, NotForThisSource, SlotActive, SlotGivenUp, SlotMissing
from cdc_lake.observability.events import ProgressEvent, silent
from cdc_lake.ops.check.runner import check
from cdc_lake.ops.plan import plan
from cdc_lake.ops.slots import advance_slot, create_slot, drop_slot, inspect_slot, list_slots
from cdc_lake.ops.status import status
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake.runtime.restart import restart
from cdc_lake.source.gaussdb import slot
from cdc_lake.source.gaussdb.server import target_of
from cdc_lake.source.gaussdb.slot import find_slot
from cdc_lake.source.gaussdb.wire.session import connect
from cdc_lake_testing.beside import beside, streams, until
from cdc_lake_testing.workload import Workload
from tests.live.test_gaussdb_receive import SEED, assert_equal_to_source, project_of
from tests.live.test_gaussdb_workload import Kind, StandIn, stand_in
from tests.live.test_receive_loop import once, running
from tests.live.test_slot_commands import receiver_beside
from tests.live.test_wal_budget_live import MIB, Stuck, quick

pytestmark = pytest.mark.live

__all__ = ["quick", "stand_in"]

ORDINARY, BY_CSN = Kind(Style.BINARY, batch=True), Kind(Style.BINARY, batch=True, by_csn=True)


def has_look(path: Path) -> bool:
    """Whether a module has `find_slot` of the family's slots."""
    text = path.read_text()
    if find_slot.__name__ not in text:
        return False
    imports = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom))
    names = (name.name for node in imports if node.module == slot.__name__ for name in node.names)
    return path == Path(slot.__file__) or "find_slot" in names


PACKAGE = Path(cdc_lake.__file__).parent
LOOK_SLOTS_UP = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if has_look(path)
]
"""The modules that have `find_slot`."""


def confirmed(project: Project) -> int | None:
    with connect(target_of(project.family, project.root)) as session:
        found = find_slot(session, project.slot)
    return None if found is None else found.confirmed


@pytest.mark.parametrize("kind", [ORDINARY, BY_CSN], ids=["lsn", "csn"])
def test_a_slot_made_beforehand_is_listed_keeps_every_change_and_goes_where_it_is_told(
    stand_in: StandIn, tmp_path: Path, kind: Kind
) -> None:
    project = project_of(stand_in, kind, tmp_path)
    with stand_in.database.connect() as conn:
        workload = Workload(conn, SEED, truncates=False)
        workload.run(20)
        made = create_slot(project)
        assert made.created
        workload.run(20)
        assert not create_slot(project).created
    (mine,) = [one for one in list_slots(project).slots if one.own]
    assert (mine.name, mine.kind, mine.database, mine.state) == (
        project.slot, "logical", stand_in.database.name, "idle",
    )  # fmt: skip
    assert mine.retained_bytes is not None
    assert project.slot in list_text(list_slots(project))
    assert once(project).transactions
    assert_equal_to_source(project, stand_in)
    assert_inspected(project)

    told = drop_slot(project)
    assert (told.own, told.done) == (True, False)
    assert told.lost.startswith("all changes after")
    with running(project, progress := []):
        until(lambda: streams(progress))
        assert {one.state for one in list_slots(project).slots if one.own} == {"active"}
        with pytest.raises(SlotActive):
            drop_slot(project, yes=True)
    assert drop_slot(project, yes=True, wait=10).done
    assert confirmed(project) is None
    with pytest.raises(SlotMissing):
        drop_slot(project, yes=True)


def assert_inspected(project: Project) -> None:
    """Everything that the server has of the slot is told, and what may come of it."""
    found, state = inspect_slot(project), bronze_reader(project).state()
    assert state is not None
    with connect(target_of(project.family, project.root)) as session:
        facts = find_slot(session, project.slot)
    assert facts is not None
    assert (found.order, found.catalog_xmin, found.restart) == (facts.order, facts.catalog_xmin, str(facts.restart))
    assert found.catalog_xmin is not None
    assert found.bronze is not None
    assert facts.confirmed is not None
    assert found.bronze.unconfirmed == state.confirm - facts.confirmed
    assert (found.wal_status, found.two_phase, found.counters) == (None, None, None)
    assert ["no limit on" in one.text for one in found.threats] == [True]
    text = details_text(found, 80)
    assert f"in {facts.order.upper()} order" in text
    assert f"→ {found.threats[0].remedy}" in text


def test_an_ordinary_slot_goes_as_far_as_bronze_and_never_further(stand_in: StandIn, tmp_path: Path) -> None:
    project = project_of(stand_in, ORDINARY, tmp_path)
    with pytest.raises(NoStream):
        advance_slot(project)
    once(project)
    with stand_in.database.connect() as conn:
        workload = Workload(conn, SEED, truncates=False)
        workload.run(20)
        state = bronze_reader(project).state()
        assert state is not None
        with pytest.raises(AdvancePastBronze, match="1 bytes would be missing"):
            advance_slot(project, state.confirm + 1)
        stand_in.servers[False].state.slots.checkpoint()
        once(project)
        stand_in.servers[False].state.slots.crash()  # which remembers an older position
        fell_back = confirmed(project)
        done = advance_slot(project)
        assert fell_back is not None
        assert done.bytes > 0
        assert "of WAL can be discarded" in advanced_text(done)
        state = bronze_reader(project).state()
        assert state is not None
        assert confirmed(project) == state.confirm
        assert advance_slot(project).bytes == 0
        workload.run(20)
        once(project)
    assert_equal_to_source(project, stand_in)


@pytest.mark.parametrize("kind", [ORDINARY, BY_CSN], ids=["lsn", "csn"])
def test_a_receiver_that_lands_while_a_verb_looks_takes_nothing_away(
    stand_in: StandIn, tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = project_of(stand_in, kind, tmp_path)
    with stand_in.database.connect() as conn:
        conn.execute("CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1)")
    once(project)
    runs = receiver_beside(stand_in.database, project, monkeypatch, *LOOK_SLOTS_UP)
    if kind is ORDINARY:
        assert advance_slot(project).bytes == 0
    assert not [
        threat for threat in inspect_slot(project).threats if "missing" in threat.text or "read by" in threat.text
    ]
    assert any("resume slot" in action.text for action in plan(project).actions)
    assert [line for line in check(project) if line.subject == "slot" and line.ok is False] == []
    assert len(runs) >= 3
    assert all(run.transactions for run in runs)


def test_a_slot_in_csn_order_is_moved_by_its_receiver_alone(stand_in: StandIn, tmp_path: Path) -> None:
    project = project_of(stand_in, BY_CSN, tmp_path)
    once(project)
    with pytest.raises(NotForThisSource, match="in CSN order: no function can advance it") as refused:
        advance_slot(project)
    assert "--only receive" in refused.value.remedy


@pytest.mark.usefixtures("quick")
def test_where_bronze_is_away_the_ladder_is_climbed_and_left_again(stand_in: StandIn, tmp_path: Path) -> None:
    project = with_big(stand_in, ORDINARY, tmp_path, {"max_bytes": MIB})
    bronze, told = Stuck(project.bronze, "os"), list[ProgressEvent]()
    gives_way = ApplyYield(project, silent)
    with beside(lambda stop: receive(project, bronze, once=False, stop=stop, report=told.append)):
        fill(stand_in, project, bronze, told)
        try:
            until(gives_way)
            seen = status(project).wal_budget
            assert seen is not None
            assert (seen.step, seen.pauses_apply) == ("exceeded", True)
            assert [line.code for line in check(project) if line.subject == "WAL budget"] == ["SRC235"]
        finally:
            bronze.away.clear()
        until(lambda: not gives_way(), "it landed, and apply goes on")
    assert_equal_to_source(project, stand_in)


@pytest.mark.usefixtures("quick")
def test_a_slot_is_dropped_where_the_pipeline_says_so_also_one_in_csn_order(stand_in: StandIn, tmp_path: Path) -> None:
    project = with_big(stand_in, BY_CSN, tmp_path, {"max_age": 1000, "on_exceeded": "drop_slot"})
    bronze, told = Stuck(project.bronze, "os"), list[ProgressEvent]()
    before = bronze.state()

    def receive_until_it_is_gone() -> None:
        with beside(lambda stop: receive(project, bronze, once=False, stop=stop, report=told.append)):
            fill(stand_in, project, bronze, told)
            until(lambda: confirmed(project) is None, "it no longer exists")

    try:
        with pytest.raises(SlotGivenUp, match="the slot is dropped"):
            receive_until_it_is_gone()
    finally:
        bronze.away.clear()
    assert bronze.state() == before
    with pytest.raises(SlotMissing):
        once(project)


def with_big(stand_in: StandIn, kind: Kind, root: Path, budget: dict[str, Any]) -> Project:
    """A stream that was begun, of a table that takes much log."""
    with stand_in.database.connect() as conn:
        conn.execute("CREATE TABLE big (id int PRIMARY KEY, words text)")
    project = project_of(stand_in, kind, root, source={"wal_budget": budget})
    once(project)
    return project


def fill(stand_in: StandIn, project: Project, bronze: Stuck, told: list[ProgressEvent]) -> None:
    """Write more than the budget while bronze is away, until it is told."""
    until(lambda: streams(told))
    until(lambda: WalNote(project).read(), "it is looked at")
    bronze.away.set()
    with stand_in.database.connect() as conn:
        conn.execute("INSERT INTO big SELECT g, repeat(md5(g::text), 32) FROM generate_series(1, 3000) AS g")
    until(lambda: any(one.facts.get("code") == "SRC235" for one in told), "it is told")


@pytest.mark.parametrize("kind", [ORDINARY, BY_CSN], ids=["lsn", "csn"])
def test_a_slot_that_is_gone_is_followed_by_a_new_stream_in_the_same_lake(
    stand_in: StandIn, tmp_path: Path, kind: Kind
) -> None:
    project = project_of(stand_in, kind, tmp_path)
    with stand_in.database.connect() as conn:
        workload = Workload(conn, SEED, truncates=False)
        workload.run(20)
        once(project)
        drop_slot(project, yes=True, wait=10)
        workload.run(20)
        with pytest.raises(SlotMissing) as missing:
            once(project)
        assert "cdc-lake restart" in missing.value.remedy
        assert restart(project).slot is None
        restart(project, yes=True)
        assert "start a new stream" in plan(project).actions[0].text
        once(project)
        workload.run(20)
        once(project)
    state = bronze_reader(project).state()
    assert state is not None
    assert state.epoch == 2
    assert_equal_to_source(project, stand_in)
