"""Tables copied again, come and gone while the stream lives, at a real server under load: nothing lost, nothing twice."""

from __future__ import annotations

import dataclasses
import os
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc_lake.bronze.open import bronze_reader, bronze_writer
from cdc_lake.comparison.bronze_vs_source import against_source
from cdc_lake.config.project import Project
from cdc_lake.connectors.base import ActionKind
from cdc_lake.connectors.postgres.decoding import by_publication
from cdc_lake.control.coordination import copy_lease
from cdc_lake.control.snapshots import courses
from cdc_lake.errors import AnotherCopy, NoStream, TableNotKnown
from cdc_lake.model.relation import TableName
from cdc_lake.observability import failpoints as at
from cdc_lake.observability.events import silent
from cdc_lake.ops.check.runner import check, dba_sql
from cdc_lake.ops.plan import plan
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake.runtime.resync import resync
from cdc_lake.source.postgres.connection import connect
from cdc_lake.source.postgres.publication import load_published_tables
from cdc_lake.tables.control_tables import control_tables
from cdc_lake_testing.beside import beside, until
from cdc_lake_testing.kills import KILLED
from tests.bronze_replay import tables_from_bronze
from tests.conftest import Database, drop_database, make_database
from tests.live.bank import ACCOUNTS, SPLIT, assert_sums_right, make_bank, transfers
from tests.live.kill_sources import receivers_of
from tests.live.test_receive_loop import once, project_of, tables_at_source
from tests.live.test_source_stream import ROOT, settings
from tests.postgres_with_test_decoding import server as decoding_server
from tests.seeds import one_seed, seeds

pytestmark = pytest.mark.live

__all__ = ["decoding_server"]

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
ACCOUNTS_ONLY, BOTH = ["public.accounts"], ["public.accounts", "public.vault"]
POLLING = {"mode": "polling", "polling": {"interval": "20 ms", "max_changes": 50}}
LINES = {"slot": {"plugin": "test_decoding"}}
WAYS: dict[str, dict[str, Any]] = {
    "pgoutput": {},
    "lines": LINES,
    "pgoutput polled": POLLING,
    "lines polled": POLLING | LINES,
}
IN_EVERY_WAY = pytest.mark.parametrize(
    "database", [*WAYS] if BUDGET > 1 else ["pgoutput", "lines polled"], indirect=True
)
"""With a small budget in two that have nothing in common."""
IN_SOME_WAY = pytest.mark.parametrize(
    "database", [*WAYS] if BUDGET > 1 else random.Random(one_seed()).sample([*WAYS], 1), indirect=True
)
"""With a small budget in one by chance."""


@dataclass(frozen=True)
class Reached(Database):
    """A database with the way in which its log is read."""

    way: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def source(self) -> dict[str, Any]:
        return super().source | self.way


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[Reached]:
    """A fresh one, read in the way that a test asks for."""
    way = getattr(request, "param", "pgoutput")
    server = request.getfixturevalue("decoding_server" if "lines" in way else "server")
    made = Reached(server, make_database(server).name, way=WAYS[way])
    yield made
    drop_database(made)


@pytest.fixture
def bank(database: Reached) -> Iterator[psycopg.Connection[Any]]:
    with database.connect() as connection:
        make_bank(connection, partitioned="slot" not in database.way)
        yield connection


def taking(database: Database, root: Path, tables: Sequence[str] = BOTH, **sections: Any) -> Project:
    return project_of(database, root, source={"tables": [*tables]}, snapshot=SPLIT, **sections)


def assert_published(database: Database, project: Project, names: list[str]) -> None:
    """Where a publication says what is captured."""
    if by_publication(project):
        with closing(connect(settings(database), ROOT)) as session:
            assert [one.table.name for one in load_published_tables(session, project.publication)] == names


def course_of(project: Project, name: str) -> list[tuple[bool, bool]]:
    """Of each stretch of a table: whether it begins with a later copy, and whether it was left."""
    state = bronze_reader(project).state()
    assert state is not None
    found = courses(control_tables(project).snapshots(), state.stream)[f"public.{name}"]
    return [(one.later, one.left is not None) for one in found.stretches]


def assert_as_at_source(project: Project, database: Database, *names: str) -> None:
    ours, theirs = tables_from_bronze(project), tables_at_source(database)
    tables = [TableName("public", name) for name in names]
    assert {name: ours[name] for name in tables} == {name: theirs[name] for name in tables}
    proof = against_source(project)
    assert proof.holds
    assert {one.verdict for one in proof.tables if one.table in {str(name) for name in tables}} == {"equal"}


def said(project: Project) -> list[str]:
    """What `check` says of tables that came or went."""
    return [
        line.text
        for line in check(project)
        if line.subject == "tables" and (" added" in line.text or " removed" in line.text)
    ]


def receiving(project: Project, told: list[str]) -> Any:
    def run(stop: threading.Event) -> None:
        receive(project, bronze_writer(project), once=False, stop=stop, report=lambda p: told.append(p.text))

    return beside(run)


@IN_EVERY_WAY
@pytest.mark.parametrize("seed", seeds(1))
def test_tables_are_copied_again_by_several_readers_while_they_change_and_are_received(
    database: Database, tmp_path: Path, bank: psycopg.Connection[Any], seed: int
) -> None:
    print(f"seed {seed}")
    del bank
    project, told = taking(database, tmp_path), list[str]()
    once(project)
    with beside(lambda stop: transfers(database, seed, stop)), receiving(project, told):
        until(lambda: any("streams after" in text for text in told))
        first = resync(project, ["accounts"])
        again = resync(project, ["accounts", "public.vault"])
    once(project)
    assert [table.rows for table in again.tables] == [ACCOUNTS, ACCOUNTS]
    assert first.position is not None
    assert course_of(project, "accounts") == [(False, False), (True, False), (True, False)]
    assert assert_sums_right(project) > 0
    assert_as_at_source(project, database, "accounts", "vault")
    assert not [text for text in told if "another" in text], "the receiver takes a copy for upkeep"


@IN_EVERY_WAY
@pytest.mark.usefixtures("bank")
def test_copies_of_two_tables_of_a_quiet_server_stand_apart(database: Database, tmp_path: Path) -> None:
    project = taking(database, tmp_path)
    once(project)
    first, second = (resync(project, [name]).position for name in BOTH)
    assert first is not None
    assert second is not None
    assert first != second
    once(project)
    assert [course_of(project, name) for name in ("accounts", "vault")] == [[(False, False), (True, False)]] * 2
    assert_as_at_source(project, database, "accounts", "vault")


@IN_EVERY_WAY
def test_a_table_that_comes_is_copied_one_that_goes_is_left_and_copied_anew_when_it_comes_back(
    database: Database, tmp_path: Path, bank: psycopg.Connection[Any]
) -> None:
    one, both = taking(database, tmp_path, ACCOUNTS_ONLY), taking(database, tmp_path)
    once(one)
    with beside(lambda stop: transfers(database, 1, stop)):
        does = "publishes what was added and copies it" if by_publication(both) else "copies what was added"
        assert said(both) == [f"public.vault added: the next start {does}, while the other tables continue"]
        assert {line.ok for line in check(both) if line.subject == "publication"} <= {True}
        assert "public.vault" in {action.subject for action in plan(both).actions}
        done = once(both)
        assert done.snapshot_rows == ACCOUNTS
    once(both)
    assert_published(database, both, ["accounts", "vault"])
    assert course_of(both, "vault") == [(False, True), (True, False)]
    assert said(both) == []
    assert_as_at_source(both, database, "accounts", "vault")

    told: list[str] = []
    assert said(one) == ["public.vault removed: not captured from the next start on, and silver keeps its rows"]
    once(one, lambda progress: told.append(progress.text))
    assert "table public.vault is no longer captured: `source.tables` excludes it" in told
    assert_published(database, one, ["accounts"])
    bank.execute("DELETE FROM vault WHERE id < 50")
    bank.execute("UPDATE accounts SET coins = 0 WHERE id = 1")
    assert once(one, lambda progress: told.append(progress.text)).snapshot_rows == 0
    assert course_of(one, "vault") == [(False, True), (True, True)]
    assert_as_at_source(one, database, "accounts")

    assert once(both).snapshot_rows == ACCOUNTS - 49
    assert course_of(both, "vault") == [(False, True), (True, True), (True, False)]
    bank.execute("UPDATE vault SET coins = 1 WHERE id = 60")
    once(both)
    assert_as_at_source(both, database, "accounts", "vault")


@IN_SOME_WAY
def test_others_flow_while_a_table_that_came_is_copied(
    database: Database, tmp_path: Path, bank: psycopg.Connection[Any]
) -> None:
    once(taking(database, tmp_path, ACCOUNTS_ONLY))
    slow = taking(database, tmp_path, BOTH)
    limits = slow.pipeline.snapshot.model_copy(update={"max_rows_per_second": 60, "parallelism": 1})
    slow = Project(slow.pipeline.model_copy(update={"snapshot": limits}), slow.file, slow.root)
    told, reader = list[str](), bronze_reader(slow)
    with receiving(slow, told):
        until(lambda: any("copying public.vault" in text for text in told))
        before = reader.highest_commit(1) or 0
        bank.execute("UPDATE accounts SET coins = 5 WHERE id = 5")
        bank.execute("UPDATE vault SET coins = 5 WHERE id = 5")
        until(lambda: (reader.highest_commit(1) or 0) > before)
        assert course_of(slow, "vault") == [(False, True)], "the copy is under way"
        until(lambda: course_of(slow, "vault") == [(False, True), (True, False)])
    once(slow)
    assert_as_at_source(slow, database, "accounts", "vault")


def test_a_mistake_of_ours_in_the_copy_ends_the_receiver_and_the_next_one_copies(
    database: Database, tmp_path: Path, bank: psycopg.Connection[Any]
) -> None:
    del bank
    once(taking(database, tmp_path, ACCOUNTS_ONLY))
    both = taking(database, tmp_path)

    def mistaken() -> None:
        raise ZeroDivisionError

    at.arm(at.RECOPIED, mistaken)
    try:
        with pytest.raises(ZeroDivisionError):
            receive(both, bronze_writer(both), once=False, stop=threading.Event(), report=silent)
    finally:
        at.arm("")
    once(both)
    assert_as_at_source(both, database, "accounts", "vault")


STEPS = (at.TABLES_LEFT, at.PUBLICATION_ALTERED, at.SNAPSHOT_CHUNK, at.FILE_WRITTEN, at.RECOPIED)


@IN_SOME_WAY
@pytest.mark.parametrize("seed", seeds(1))
def test_killed_at_every_step_only_the_table_that_came_is_copied_again(
    database: Database, tmp_path: Path, bank: psycopg.Connection[Any], seed: int
) -> None:
    print(f"seed {seed}")
    del bank
    dice = random.Random(seed)
    once(taking(database, tmp_path, ACCOUNTS_ONLY))
    project = taking(database, tmp_path)
    receivers = receivers_of(project, database.password)
    with beside(lambda stop: transfers(database, seed, stop)):
        for name in dice.sample(STEPS, len(STEPS) if BUDGET > 1 else 3):
            passage = dice.randint(1, 8) if name in {at.SNAPSHOT_CHUNK, at.FILE_WRITTEN} else 1
            died = receivers.run(f"{name}:{passage}") == KILLED
            assert died == (course_of(project, "vault")[-1] == (False, True)) or name == at.FILE_WRITTEN
            if not died:
                break
        assert receivers.run() == 0
    assert receivers.run() == 0
    assert course_of(project, "accounts") == [(False, False)]
    assert course_of(project, "vault") == [(False, True), (True, False)]
    assert_as_at_source(project, database, "accounts", "vault")


def test_a_table_that_the_role_may_not_publish_is_named_with_what_a_superuser_runs(
    database: Database, tmp_path: Path, bank: psycopg.Connection[Any]
) -> None:
    del bank
    one, both = taking(database, tmp_path, ACCOUNTS_ONLY), taking(database, tmp_path)
    once(one)
    with database.admin() as admin:
        admin.execute("ALTER TABLE vault OWNER TO CURRENT_USER")
        admin.execute(f'GRANT SELECT ON vault TO "{database.user}"')
        [line] = [line for line in check(both) if " added" in line.text]
        assert (line.ok, line.code) == (False, "SRC224")
        assert 'ADD TABLE ONLY "public"."vault"' in line.fix
        [action] = [one for one in plan(both).actions if one.kind is ActionKind.ALTER_PUBLICATION]
        assert not action.changes
        assert "a superuser can run: ALTER PUBLICATION" in action.text
        sql = dba_sql(both)
        assert 'ADD TABLE ONLY "public"."vault";' in sql
        admin.execute(sql.encode())
    assert not [line for line in check(both) if line.code == "SRC224"]
    assert once(both).snapshot_rows == ACCOUNTS
    assert_as_at_source(both, database, "accounts", "vault")


def test_a_publication_that_the_pipeline_names_is_left_to_its_owner(
    database: Database, tmp_path: Path, bank: psycopg.Connection[Any]
) -> None:
    bank.execute("CREATE PUBLICATION mine FOR TABLE accounts WITH (publish_via_partition_root)")

    def named(tables: list[str]) -> Project:
        return project_of(database, tmp_path, source={"tables": tables, "publication": "mine"})

    told: list[str] = []
    once(named(ACCOUNTS_ONLY))
    assert [line.code for line in check(named(BOTH)) if line.subject == "publication"] == ["SRC221"]
    once(named(BOTH), lambda progress: told.append(progress.text))
    (text,) = [text for text in told if "not captured" in text]
    assert 'ALTER PUBLICATION "mine" ADD TABLE ONLY "public"."vault"' in text
    bank.execute("ALTER PUBLICATION mine ADD TABLE vault")
    assert once(named(BOTH)).snapshot_rows == ACCOUNTS
    assert_as_at_source(named(BOTH), database, "accounts", "vault")


def test_what_cannot_be_copied_again_is_said(database: Database, tmp_path: Path, bank: psycopg.Connection[Any]) -> None:
    del bank
    project = taking(database, tmp_path, ACCOUNTS_ONLY)
    with pytest.raises(NoStream, match="no stream yet"):
        resync(project, ["accounts"])
    once(project)
    with pytest.raises(TableNotKnown, match=r"does not contain public\.vault; it contains public\.accounts"):
        resync(project, ["vault"])
    with copy_lease(project), pytest.raises(AnotherCopy):
        resync(project, ["accounts"])
    dry = resync(project, ["accounts"], dry_run=True)
    assert (dry.position, dry.tables[0].rows) == (None, None)
    assert course_of(project, "accounts") == [(False, False)]
