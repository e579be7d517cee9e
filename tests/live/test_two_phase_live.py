"""Prepared transactions of a real server: whole at COMMIT PREPARED, parked from their PREPARE on or not."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.cli.commands.status import status_text
from cdc_lake.config.project import Project
from cdc_lake.connectors.postgres import adapter as postgres_stream
from cdc_lake.connectors.postgres.comparison import postgres_side
from cdc_lake.errors import (
    AnotherReceiver,
    PreparedDamaged,
    PreparedNotKept,
    PreparedUnknown,
    ServerUnreachable,
    SlotTwoPhase,
)
from cdc_lake.model.position import Span
from cdc_lake.model.relation import TableName
from cdc_lake.observability import failpoints as at
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.ops.check.runner import check, ddl_sql
from cdc_lake.ops.status import status
from cdc_lake.runtime.receive.lag import list_prepared
from cdc_lake.source.base import FrameSource, PendingTransaction
from cdc_lake.source.postgres.plugins import message_options
from cdc_lake.source.postgres.server import wal_position
from cdc_lake.source.postgres.slot_peek import MissingPrepareProbe, by_messages
from cdc_lake_testing.beside import streams, until
from cdc_lake_testing.kills import KILLED, receive_until_message
from cdc_lake_testing.server import EmbeddedServer
from cdc_lake_testing.whole import assert_whole_transactions
from tests.conftest import ROOT, TESTED, Database, make_database, make_role, start_server
from tests.live.added_columns import layouts, words
from tests.live.kill_sources import receivers_of
from tests.live.test_large_transactions import landed, pipeline, streaming
from tests.live.test_receive_loop import assert_equal_to_source, once, running
from tests.seeds import seeds

pytestmark = pytest.mark.live

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))

__all__ = ["streaming"]

ON = {"decoding": {"two_phase": True}}


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """One that can do it, whichever the others run on."""
    embedded = start_server(**{} if TESTED >= 15 else {"version": 18})
    make_role(embedded)
    yield embedded
    embedded.remove()


@pytest.fixture
def phased(streaming: Database) -> Database:
    """Its prepared transactions end with the database."""
    return streaming


def version(database: Database) -> int:
    with database.connect() as conn:
        return conn.info.server_version // 10000


def parked(project: Project) -> list[str]:
    folder = project.control / "prepared"
    return sorted(one.name for one in folder.iterdir()) if folder.exists() else []


def prepared(database: Database, gid: str, *statements: str) -> None:
    """A transaction of these statements, prepared."""
    with database.connect(autocommit=False) as conn:
        for statement in statements:
            conn.execute(statement)  # type: ignore[call-overload]
        conn.execute(sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(gid)))


def ended(database: Database, gid: str, how: str = "COMMIT") -> None:
    with database.connect() as conn:
        conn.execute(sql.SQL(how + " PREPARED {}").format(sql.Literal(gid)))  # type: ignore[arg-type]


def write(database: Database, *statements: str) -> None:
    with database.connect() as conn:
        for statement in statements:
            conn.execute(statement)  # type: ignore[call-overload]


def assert_whole(project: Project, database: Database) -> None:
    assert_equal_to_source(project, database)
    reader = bronze_reader(project)
    verdict = verify(reader)
    assert verdict.holds, verdict
    assert_whole_transactions(reader)


def confirmed_beyond(database: Database, project: Project) -> bool:
    """Whether the slot is confirmed beyond the PREPARE of everything that is kept."""
    with database.admin() as admin:
        row = admin.execute(
            "SELECT two_phase, confirmed_flush_lsn > ALL (%s::pg_lsn[]) FROM pg_replication_slots WHERE slot_name = %s",
            [[one.position for one in status(project).prepared], project.slot],
        ).fetchone()
    return row == (True, True)


def parked_and_passed(database: Database, project: Project) -> None:
    """Begun, with the transaction `one` prepared and another committed behind it, all of it received."""
    once(project)
    prepared(database, "one", "INSERT INTO a VALUES (1, 1, 'prepared')")
    once(project)
    write(database, "INSERT INTO b VALUES (1, 1, 'behind')")
    once(project)


def an_error_where_the_file_is_lost_or_damaged(database: Database, project: Project) -> None:
    """A file of a prepared transaction that is gone, or changed, ends the run; put back, everything lands."""
    parked_and_passed(database, project)
    with database.admin() as admin:  # whatever the server does, it keeps the log of what is prepared
        for _ in range(3):
            admin.execute("SELECT pg_switch_wal()")
            admin.execute("CHECKPOINT")  # which logs what is under way, and so lets the slot's log begin later
            once(project)
    [name] = parked(project)
    file = project.control / "prepared" / name
    content = file.read_bytes()
    ended(database, "one")
    write(database, "INSERT INTO b VALUES (2, 1, 'the last')")
    file.unlink()
    with pytest.raises(PreparedUnknown) as unknown:
        once(project)
    assert "`one`" in unknown.value.message
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(PreparedDamaged):
        once(project)
    file.write_bytes(content)
    once(project)
    assert parked(project) == []
    assert_whole(project, database)


def test_by_default_a_prepared_transaction_arrives_whole_at_its_commit(phased: Database, tmp_path: Path) -> None:
    project = pipeline(phased, tmp_path, "whole")
    once(project)
    prepared(phased, "one", "INSERT INTO a VALUES (1, 1, 'prepared')")
    write(phased, "INSERT INTO b VALUES (1, 1, 'between')")
    once(project)
    assert [row["relation"] for row in landed(project) if row["op"] == "I"] == ["public.b"]
    ended(phased, "one")
    once(project)
    assert [row["relation"] for row in landed(project) if row["op"] == "I"] == ["public.b", "public.a"]
    assert parked(project) == []
    assert_whole(project, phased)


def test_a_server_on_which_nothing_can_be_prepared_is_told_of(tmp_path: Path) -> None:
    embedded = start_server(settings={"max_prepared_transactions": "0"}, **{} if TESTED >= 15 else {"version": 18})
    try:
        make_role(embedded)
        database = make_database(embedded)
        with database.connect() as conn:
            conn.execute("CREATE TABLE a (id int PRIMARY KEY)")
        [line] = [line for line in check(pipeline(database, tmp_path, "on", **ON)) if line.subject == "two_phase"]
        assert "does not allow prepared transactions" in line.text
        assert "max_prepared_transactions" in line.fix
        off = check(pipeline(database, tmp_path, "off"))
        assert not [line for line in off if line.subject == "two_phase"]
    finally:
        embedded.remove()


def test_a_parked_transaction_outlives_its_receiver_and_lands_where_it_commits(
    phased: Database, tmp_path: Path
) -> None:
    project, whole = pipeline(phased, tmp_path, "parked", **ON), pipeline(phased, tmp_path, "whole")
    once(project)
    once(whole)
    write(
        phased, "INSERT INTO a VALUES (-1, 1, 'before'), (-2, 1, 'locked')"
    )  # announces it before, not in the prepared one
    prepared(phased, "it's 'ü'", "INSERT INTO a VALUES (1, 1, 'prepared')", "UPDATE a SET n = 2 WHERE id = 1")
    prepared(phased, "large", "INSERT INTO b SELECT g, 1, repeat('y', 100) FROM generate_series(1, 3000) g")
    prepared(phased, "dropped", "DELETE FROM a WHERE id = -1")
    prepared(phased, "empty", "CREATE TABLE not_seen (id int)")
    prepared(phased, "locks", "SELECT FROM b FOR UPDATE", "SELECT FROM a WHERE id = -2 FOR SHARE")
    prepared(phased, "nothing", "DELETE FROM b")
    write(phased, "INSERT INTO a VALUES (2, 1, 'between')")
    once(project)
    assert len([row for row in landed(project) if row["op"] == "I"]) == 3
    once(project)
    told, says_locks = status(project), version(phased) >= 18
    assert [one.gid for one in told.prepared] == ["it's 'ü'", "large", "dropped", "empty", *["locks"] * says_locks]
    assert [one.tables for one in told.prepared] == [
        ("public.a",),
        ("public.b",),
        ("public.a",),
        *[()] * (1 + says_locks),
    ]
    assert [one.changes for one in list_prepared(project).transactions] == [2, 3000, 1, *[0] * (1 + says_locks)]
    assert f"{4 + says_locks} transactions kept until COMMIT PREPARED" in status_text(told, 200)
    assert "the oldest, `it's 'ü'` (xid" in status_text(told, 200)
    assert confirmed_beyond(phased, project), "the server sends none of them again"
    assert len(parked(project)) == 4 + says_locks
    ended(phased, "dropped", "ROLLBACK")
    for nth, gid in enumerate(["large", "empty", "nothing", "locks", "it's 'ü'"]):
        ended(phased, gid)
        write(phased, f"INSERT INTO a VALUES ({100 + nth}, 1, 'behind')")
    prepared(phased, "late", "INSERT INTO b VALUES (-2, 1, 'late')")
    ended(phased, "late")
    assert [sorted(map(str, one.tables)) for one in ahead(project) or ()] == [
        ["public.b"], *[["public.a"]] * 6, ["public.b"],
    ]  # fmt: skip
    once(project)
    once(whole)
    assert parked(project) == []
    assert landed(project) == landed(whole)
    assert_whole(project, phased)


def ahead(project: Project) -> list[PendingTransaction] | None:
    """What the slot has and bronze does not, as `compare` asks; None while it is read."""
    state = bronze_reader(project).state()
    assert state is not None
    with postgres_side(project, state) as side, side.snapshot([TableName("public", "a")]) as shown:
        return side.ahead(shown, state.upto)


class Phases:
    """Transactions by chance, some of them prepared, and ended later or never."""

    def __init__(self, database: Database, dice: random.Random) -> None:
        self._database = database
        self._dice = dice
        self._next = 1
        self._open: list[str] = []

    def step(self) -> None:
        dice = self._dice
        if self._open and dice.random() < 0.5:
            gid = self._open.pop(dice.randrange(len(self._open)))
            ended(self._database, gid, dice.choice(["COMMIT", "COMMIT", "ROLLBACK"]))
        else:
            self._write(prepare=dice.random() < 0.6)

    def prepare(self) -> None:
        self._write(prepare=True)

    def _write(self, *, prepare: bool) -> None:
        dice, first = self._dice, self._next
        self._next += (rows := dice.choice([1, 3, 900]))
        table = dice.choice("ab")
        statements = [
            f"INSERT INTO {table} SELECT g, 0, repeat('x', 100) FROM generate_series({first}, {first + rows - 1}) g",
            "SAVEPOINT s",
            f"UPDATE {table} SET n = n + 1 WHERE id BETWEEN {first} AND {first + 1}",
            dice.choice(["ROLLBACK TO s", "RELEASE s"]),
            f"DELETE FROM {table} WHERE id = {first}",
        ]
        if prepare:
            prepared(self._database, f"gid {first}", *statements)
            self._open.append(f"gid {first}")
        else:
            with self._database.connect(autocommit=False) as conn:
                for statement in statements:
                    conn.execute(statement)  # type: ignore[call-overload]

    def end(self) -> None:
        for gid in self._open:
            ended(self._database, gid)
        self._open = []
        write(self._database, f"INSERT INTO a VALUES ({self._next}, 0, 'the last')")
        self._next += 1


@pytest.mark.parametrize("seed", seeds(1))
def test_what_is_parked_lands_as_what_comes_whole(phased: Database, tmp_path: Path, seed: int) -> None:
    project = pipeline(phased, tmp_path, "parked", **ON)
    whole = pipeline(phased, tmp_path, "whole", decoding={"streaming": "off"})
    once(project)
    once(whole)
    phases = Phases(phased, random.Random(seed))
    for _ in range(3):
        for _ in range(6):
            phases.step()
        once(project)
    phases.end()
    once(project)
    once(whole)
    assert parked(project) == []
    assert landed(project) == landed(whole)
    assert_whole(project, phased)


def test_by_sql_functions_they_are_parked_as_well(phased: Database, tmp_path: Path) -> None:
    project = pipeline(phased, tmp_path, "polled", **ON, mode="polling", polling={"interval": "20 ms"})
    once(project)
    prepared(phased, "kept", "INSERT INTO a VALUES (1, 1, 'prepared')")
    prepared(phased, "dropped", "INSERT INTO a VALUES (2, 1, 'dropped')")
    once(project)
    assert confirmed_beyond(phased, project), "the server gives none of them again"
    assert len(parked(project)) == 2
    [slots] = [line.text for line in check(project) if line.subject == "replication slots"]
    assert slots.endswith(" 1 needed"), "copies of the slot are read"
    ended(phased, "dropped", "ROLLBACK")
    write(phased, "INSERT INTO b VALUES (1, 1, 'between')")
    ended(phased, "kept")
    once(project)
    assert parked(project) == []
    assert [row["relation"] for row in landed(project) if row["op"] == "I"] == ["public.b", "public.a"]
    assert_whole(project, phased)


def test_it_can_be_asked_for_later_and_not_be_taken_back_unseen(phased: Database, tmp_path: Path) -> None:
    project = pipeline(phased, tmp_path, "later")
    once(project)
    prepared(phased, "before", "INSERT INTO a VALUES (1, 1, 'before')")
    once(project)
    later = changed(project, {"two_phase": True})
    prepared(phased, "behind", "INSERT INTO b VALUES (1, 1, 'behind')")
    once(later)
    assert len(parked(later)) == 1
    with pytest.raises(SlotTwoPhase) as refused:
        once(project)
    assert "two_phase" in refused.value.remedy
    for gid in ("before", "behind"):
        ended(phased, gid)
    write(phased, "INSERT INTO b VALUES (2, 1, 'the last')")
    once(later)
    assert parked(later) == []
    assert_whole(later, phased)
    prepared(phased, "over", "INSERT INTO b VALUES (3, 1, 'over')")
    once(later)
    taken_back(phased, project.slot)
    ended(phased, "over")
    once(project)
    assert parked(project) == []
    assert_whole(project, phased)


def taken_back(database: Database, slot: str) -> None:
    """What the page of an error says: two-phase decoding is taken from a slot that nobody reads."""
    [block] = re.findall(r"```sql\n(.*?)```", (ROOT / "docs/errors/DEC322.md").read_text(), re.DOTALL)
    with database.connect() as conn:
        for statement in block.replace("'shop", f"'{slot}").splitlines():
            conn.execute(statement)


def changed(project: Project, decoding: dict[str, Any]) -> Project:
    source = project.pipeline.source.model_copy(
        update={"decoding": project.postgres.decoding.model_copy(update=decoding)}
    )
    pipeline = project.pipeline.model_copy(update={"source": source})
    return Project(pipeline, project.file, project.root)


@pytest.mark.obeys("LAK484")
def test_a_lost_or_damaged_file_is_an_error_and_no_change_is_lost_unseen(phased: Database, tmp_path: Path) -> None:
    project = pipeline(phased, tmp_path, "lost", **ON)
    an_error_where_the_file_is_lost_or_damaged(phased, project)


@pytest.mark.obeys("LAK483")
def test_what_cannot_be_kept_is_sent_again_once_there_is_room(phased: Database, tmp_path: Path) -> None:
    project = pipeline(phased, tmp_path, "no_room", **ON)
    once(project)
    prepared(phased, "one", "INSERT INTO a VALUES (1, 1, 'prepared')")
    folder = project.control / "prepared"
    shutil.rmtree(folder, ignore_errors=True)
    folder.touch()  # nothing can be written into it
    with pytest.raises(PreparedNotKept):
        once(project)
    folder.unlink()
    once(project)
    assert len(parked(project)) == 1
    ended(phased, "one")
    once(project)
    assert_whole(project, phased)


def test_an_end_that_another_receiver_read_meanwhile_is_not_forgotten(
    phased: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot is confirmed behind it, so nobody would read it again, and the file would wait for ever."""
    project = pipeline(phased, tmp_path, "meanwhile", decoding={"two_phase": True})
    parked_and_passed(phased, project)
    started = postgres_stream._start

    def start(*given: Any) -> FrameSource:
        monkeypatch.undo()
        ended(phased, "one", "ROLLBACK")
        once(project)
        assert len(parked(project)) == 2, "the file and the note of its end"
        return started(*given)

    monkeypatch.setattr(postgres_stream, "_start", start)
    with contextlib.suppress(AnotherReceiver):
        once(project)
    assert len(parked(project)) == 2
    write(phased, "INSERT INTO b VALUES (2, 1, 'last')")
    once(project)
    assert parked(project) == []
    assert_whole(project, phased)


def test_without_the_file_the_server_still_sends_it_whole(phased: Database, tmp_path: Path) -> None:
    project = pipeline(phased, tmp_path, "gone", **ON)
    parked_and_passed(phased, project)
    for name in parked(project):
        (project.control / "prepared" / name).unlink()
    taken_back(phased, project.slot)
    ended(phased, "one")
    once(changed(project, {"two_phase": False}))
    assert_whole(project, phased)
    prepared(phased, "two", "INSERT INTO a VALUES (2, 1, 'prepared')")
    once(project)
    assert len(parked(project)) == 1


def test_the_server_is_asked_whether_one_whose_prepare_nobody_has_changed_anything(
    phased: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = pipeline(phased, tmp_path, "asked", **ON)
    once(project)
    write(phased, "CREATE SCHEMA other", "CREATE TABLE other.c (id int)", "INSERT INTO a VALUES (-1, 1, 'locked')")
    prepared(phased, "a", "INSERT INTO a VALUES (1, 1, 'prepared')")
    prepared(phased, "locks", "SELECT FROM a WHERE id = -1 FOR UPDATE")
    prepared(phased, "unpublished", "INSERT INTO other.c VALUES (1)")
    prepared(phased, "b", "INSERT INTO b VALUES (1, 1, 'prepared')")
    once(project)
    state = bronze_reader(project).state()
    assert state is not None
    with phased.connect() as session:
        xids = dict(session.execute("SELECT gid, transaction::text::bigint FROM pg_prepared_xacts").fetchall())
        given: Any = session
        options = message_options(project.publication)
        unsent = MissingPrepareProbe(given, project.slot, by_messages(options), state.confirm, lambda: None)
        later = session.execute("SELECT txid_current()").fetchone()
        assert later is not None
        assert not unsent.has_changes(later[0], 1 << 62), "it began on this connection"
        ends = {}
        for gid in xids:
            ended(phased, gid)
            ends[gid] = wal_position(given).value
        monkeypatch.setattr("cdc_lake.source.postgres.slot_peek.WINDOW", 0)
        found = {gid: unsent.has_changes(xids[gid], end) for gid, end in ends.items()}
        assert found == {"a": True, "locks": False, "unpublished": False, "b": True}
        copies = session.execute("SELECT count(*) FROM pg_replication_slots WHERE temporary").fetchone()
        assert copies == (0,)


@pytest.mark.timeout(100)
@pytest.mark.parametrize("answers", [True, False])
def test_a_connection_that_is_lost_meanwhile_ends_the_look(
    phased: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, answers: bool
) -> None:
    project = pipeline(phased, tmp_path, "lost", **ON)
    once(project)
    monkeypatch.setattr(
        "cdc_lake.source.postgres.slot_peek._CHANGED_BEFORE",
        "SELECT pg_sleep(1000), %s, %s::pg_lsn, %s::text[], %s::pg_lsn",
    )
    with phased.connect() as session, phased.admin() as admin:
        given: Any = session
        pid = session.info.backend_pid

        def lost() -> None:
            looks = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'"
            if admin.execute(looks, [pid]).fetchone() == (1,):
                if not answers:
                    os.kill(pid, signal.SIGSTOP)
                raise ServerUnreachable("the connection broke off")

        unsent = MissingPrepareProbe(given, project.slot, by_messages(message_options(project.publication)), 0, lost)
        try:
            with pytest.raises(ServerUnreachable, match="broke off"):
                unsent.has_changes(1, 1)
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_comparison_waits_for_the_receiver_that_reads_the_slot(phased: Database, tmp_path: Path) -> None:
    project, told = pipeline(phased, tmp_path, "read", **ON), list[ProgressEvent]()
    with running(project, told):
        until(lambda: streams(told))
        assert ahead(project) is None
    assert ahead(project) == []


def test_ddl_in_a_prepared_transaction_is_told_where_it_commits(phased: Database, tmp_path: Path) -> None:
    project = pipeline(phased, tmp_path, "told", decoding={"two_phase": True, "messages": True})
    with phased.admin() as admin:
        admin.execute(ddl_sql(project))  # type: ignore[arg-type]
    once(project)
    told: list[ProgressEvent] = []
    with running(project, told):
        # one that starts waits for the lock of what is prepared
        until(lambda: streams(told))
        write(phased, "INSERT INTO a VALUES (1, 1, 'before')")
        prepared(
            phased, "alters",
            "ALTER TABLE a RENAME COLUMN note TO word", "INSERT INTO a VALUES (2, 1, 'renamed')",
            "ALTER TABLE a DROP COLUMN n", "INSERT INTO a VALUES (3, 'dropped')",
        )  # fmt: skip
        write(phased, "INSERT INTO b VALUES (1, 1, 'between')")
        until(lambda: any(row["relation"] == "public.b" for row in landed(project)))
        assert len(parked(project)) == 1
        assert len(layouts(project, TableName("public", "a"))) == 1
        ended(phased, "alters")
        write(phased, "ALTER TABLE a RENAME COLUMN word TO said", "INSERT INTO a VALUES (4, 'behind')")
        until(lambda: len([row for row in landed(project) if row["op"] == "I"]) == 5)
    assert [words(*pair) for pair in pairwise(layouts(project, TableName("public", "a")))] == [
        ["rename column note of t to word"], ["keep column n of t, NULL from now on"], ["rename column word of t to said"],
    ]  # fmt: skip
    assert verify(bronze_reader(project)).holds


INSERT = "INSERT INTO l VALUES (1, 'n', 'a'), (2, 's', 'b')"


@pytest.mark.parametrize("two_phase", [True, False])
@pytest.mark.parametrize("logs", ["before", "inside", "meanwhile", "announced again", "behind"])
def test_what_changes_log_around_a_prepared_transaction_is_what_partitions_logged_then(
    phased: Database, tmp_path: Path, *, two_phase: bool, logs: str
) -> None:
    """`logs`: where keys are updated. Partitions are announced by the first change, before the transaction or in it."""
    project, table = pipeline(phased, tmp_path, "leaves", decoding={"two_phase": two_phase}), TableName("public", "l")
    whole = [f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in ("l", "l_n", "l_o")]
    write(
        phased, "CREATE TABLE l (id int, region text, a text, PRIMARY KEY (id, region)) PARTITION BY LIST (region)",
        *(f"CREATE TABLE l_{of} PARTITION OF l FOR VALUES IN ('{of}')" for of in "nos"), *whole, INSERT,
    )  # fmt: skip
    once(project)
    update = "UPDATE l SET id = id + 10 WHERE id < 3"
    if logs in ("before", "inside"):
        write(phased, update if logs == "before" else INSERT.replace("(1", "(4").replace("(2", "(5"))
    prepared(phased, "logs", update if logs == "inside" else INSERT.replace("(1", "(6").replace("(2", "(7"))
    if logs == "inside":
        once(project)
        assert len(parked(project)) == two_phase
    if logs == "announced again":
        write(phased, "INSERT INTO l VALUES (8, 'o')")
    if logs in ("meanwhile", "announced again"):
        write(phased, update)
    ended(phased, "logs")
    if logs == "behind":
        write(phased, update)
    write(phased, "ALTER TABLE l_s REPLICA IDENTITY FULL", "UPDATE l SET a = 'x'", "ALTER TABLE l DETACH PARTITION l_s")
    once(project)
    reader = bronze_reader(project)
    rows, found = reader.changes(table, Span(1, 0, 1 << 62)).to_pylist(), reader.layouts([table])
    mixed = [(row["new"][1], found[row["layout"]].mixed) for row in rows if row["op"] == "U"]
    assert mixed[1] == ("s", True), "the old row of the other partition was the key alone"
    assert ("s", False) in mixed
    assert verify(reader).holds


OWN = (at.PREPARE_KEPT, at.PREPARE_ENDED, at.PREPARE_CLEANED)
OTHERS = (at.FILE_WRITTEN, at.COMMIT_WRITTEN, at.BRONZE_COMMITTED, at.CONFIRMED)


def killed_at_every_durable_step(project: Project, phased: Database, seed: int) -> None:
    """With a small budget at one of the steps that all transactions have."""
    receivers = receivers_of(project, phased.password)
    assert receivers.run() == 0
    others = OTHERS if BUDGET > 1 else random.Random(seed).sample(OTHERS, 1)
    for nth, step in enumerate([*OWN, *others]):
        rows = 900 if nth % 2 else 1
        many = f"INSERT INTO a SELECT g, 1, repeat('y', 100) FROM generate_series({nth}001, {nth}000 + {rows}) g"
        prepared(phased, f"gid {nth}", many)
        dies = step == at.PREPARE_KEPT
        assert receivers.run(f"{step}:1" if dies else "") == (KILLED if dies else 0), step
        assert len(parked(project)) > 0
        ended(phased, f"gid {nth}")
        assert receivers.run(f"{step}:1") == (0 if dies else KILLED), step
    assert receivers.run() == 0
    assert parked(project) == []
    assert_whole(project, phased)


@pytest.mark.parametrize("seed", seeds(1))
def test_killed_at_every_durable_step_of_a_prepared_transaction(phased: Database, tmp_path: Path, seed: int) -> None:
    project = pipeline(phased, tmp_path, "killed", **ON)
    killed_at_every_durable_step(project, phased, seed)


@pytest.mark.parametrize("seed", seeds(1))
def test_killed_between_any_two_messages_of_streamed_and_prepared_transactions(
    phased: Database, tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    project = pipeline(phased, tmp_path, "killed", **ON)
    receivers = receivers_of(project, phased.password)
    assert receivers.run() == 0
    phases, ends = Phases(phased, dice), []
    for nth in range(4 * BUDGET):
        for _ in range(dice.randint(1, 4)):
            phases.step()
        # of small transactions each message, of large ones those around their blocks and some between; the first has five
        message = dice.choice([dice.randint(1, 20), dice.randint(20, 3000)]) if nth else dice.randint(1, 5)
        ends.append(receivers.run(str(message), target=receive_until_message))
    assert ends[0] == KILLED
    assert set(ends) <= {0, KILLED}
    phases.end()
    assert receivers.run() == 0
    assert parked(project) == []
    assert_whole(project, phased)
