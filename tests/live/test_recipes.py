"""The recipes of docs/guides/recipes.md, block by block, on a PostgreSQL that really has the trouble. No Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Database
from tests.shell import QuickShell

pytestmark = pytest.mark.live

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "recipes.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+)\n((?:(?!^## ).*\n)*)", PAGE, re.MULTILINE))
RUN = re.compile(r"<!-- run by: tests/live/test_recipes.py -->\n```(sql)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
RECEIVE = ("run", "--once", "--only", "receive")


class Library:
    """The pipeline of the page and its database; unless told otherwise, its initial copy has landed."""

    def __init__(self, database: Database, folder: Path, *, started: bool = True) -> None:
        self.database = database
        with database.connect() as db:
            db.execute("CREATE TABLE loans (id int PRIMARY KEY, book_id int, note text)")
            db.execute("INSERT INTO loans SELECT n, n, 'x' FROM generate_series(1, 20) n")
        QuickShell(folder).fine("init", "postgres", "library")
        reach = {"HOST": database.host, "PORT": database.port, "DATABASE": database.name, "USER": database.user}
        env = {f"PG{name}": str(value) for name, value in reach.items()}
        self.shell = QuickShell(folder / "library", {**env, "PGPASSWORD": database.password})
        if started:
            self.receive()

    def receive(self) -> None:
        """Receive to the end; the server has noticed that nobody reads the slot any more."""
        self.shell.fine(*RECEIVE)
        self.change("SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE active")

    def change(self, *statements: str) -> None:
        with self.database.admin() as db:
            for statement in statements:
                db.execute(statement.encode())

    def row(self, sql: str) -> tuple[Any, ...]:
        with self.database.admin() as db:
            row = db.execute(sql.encode()).fetchone()
        assert row is not None
        return row

    def fall_behind(self) -> None:
        """Some segments of log that nobody reads."""
        for _ in range(4):
            self.change("UPDATE loans SET note = 'y' || id", "SELECT pg_switch_wal()")

    def follow(self, section: str) -> str:
        """Do what a section says; what its commands print."""
        said = ""
        for language, text in RUN.findall(SECTIONS[section]):
            if language == "sql":
                self.change(*filter(str.strip, text.split(";")))
            else:
                said += self.shell.script(text)
        return said


@pytest.fixture
def library(database: Database, tmp_path: Path) -> Library:
    return Library(database, tmp_path)


@pytest.fixture
def little_room(library: Library) -> Iterator[None]:
    """A server that keeps a megabyte of log for slots, and no more."""
    library.change("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    yield
    library.change("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


KEPT = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint FROM pg_replication_slots"


def test_a_disk_that_fills_is_freed_by_receiving(library: Library) -> None:
    library.fall_behind()
    before = library.row(KEPT)[0]
    said = library.follow("The server's disk fills")
    assert "MiB" in next(line for line in said.splitlines() if "slot" in line), said
    assert before > 32 << 20
    assert library.row(KEPT)[0] < 1 << 20


@pytest.mark.usefixtures("little_room")
def test_a_lost_slot_is_told_and_a_new_copy_is_whole(library: Library) -> None:
    library.fall_behind()
    library.change("CHECKPOINT", "INSERT INTO loans VALUES (21, 21, 'later')")
    assert library.row("SELECT wal_status FROM pg_replication_slots") == ("lost",)
    refused = library.shell(*RECEIVE)
    assert "error[SRC204]" in refused.err
    assert library.shell.status()["slot"]["state"] == "lost"
    said = library.follow("The slot is lost")
    assert "the chain holds" in said
    assert "snapshot" in library.shell.fine("inspect", "row", "loans", "21"), "the row that the lost log had"


def test_a_dropped_slot_is_told_and_leads_to_the_same_recipe(library: Library) -> None:
    library.change("SELECT pg_drop_replication_slot('library')")
    refused = library.shell(*RECEIVE)
    assert "error[SRC212]" in refused.err
    assert library.shell.status()["slot"]["state"] == "missing"


def test_doubts_about_bronze_are_settled(library: Library) -> None:
    library.change("UPDATE loans SET note = 'seen' WHERE id = 17")
    library.receive()
    assert library.follow("Bronze is doubted").count("the chain holds") == 2
    assert "seen" in library.follow("Rows are held")


def test_a_table_is_paused_and_goes_on(library: Library) -> None:
    said = library.follow("One table is in the way")
    assert "is paused" in said
    assert "continues with the next span" in said


def test_a_lake_of_this_version_is_brought_to_it(library: Library) -> None:
    assert "nothing to upgrade" in library.follow("A new version is installed")


def test_a_server_that_takes_part_in_failover_is_looked_at(library: Library) -> None:
    library.follow("A standby took over")


def test_a_moved_pipeline_goes_on_and_the_one_left_behind_is_refused(library: Library, tmp_path: Path) -> None:
    library.shell.script("cp -a . ../behind")
    library.change("INSERT INTO loans VALUES (22, 22, 'moved')")
    library.follow("The pipeline moves")
    moved = QuickShell(tmp_path / "moved", library.shell.env)
    assert "moved" in moved.fine("inspect", "row", "loans", "22")
    assert "error[SRC215]" in QuickShell(tmp_path / "behind", library.shell.env)(*RECEIVE).err


def test_a_pipeline_that_is_given_up_leaves_nothing_on_the_server(library: Library) -> None:
    library.follow("A pipeline is not needed any more")
    assert library.row("SELECT count(*) FROM pg_replication_slots") == (0,)
    assert library.row("SELECT count(*) FROM pg_publication") == (0,)
    assert "20" in library.shell.fine("inspect", "row", "loans", "20")


def test_every_recipe_is_followed_here_or_names_the_test_that_shows_it() -> None:
    followed = set(re.findall(r'follow\("([^"]+)"\)', Path(__file__).read_text(encoding="utf-8")))
    assert {head for head, body in SECTIONS.items() if RUN.search(body)} == followed
    assert all(head in followed or "/test_" in body for head, body in SECTIONS.items())
