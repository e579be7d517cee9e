"""Remedies that work: something breaks, the error says what to do, that is done at once, and nothing is missing.

A case is what breaks, the code that says so, and what is done besides the commands that the hint itself names in
backquotes: those are taken from what was printed. In the end every row of the source is in bronze, in an unbroken chain,
and what silver, cuts and control tables had is there still. No Spark, so no case of silver.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.lake.control import control_tables
from cdc_lake.pipeline.state.streams import last_epoch
from tests.conftest import Database, make_database, make_role, start_server
from tests.live.test_recipes import RECEIVE, Library
from tests.shell import Said

pytestmark = pytest.mark.live

SUPERUSER = re.compile(r"a superuser runs: ([^;\n]+)")
COMMAND = re.compile(r"`cdc-lake ([a-z][^`]*)`")
Step = Callable[[Library], None]


@dataclass(frozen=True)
class Case:
    """`anew`: the remedy is a new stream; `mend`: what the hint says in words, done by hand before its commands."""

    breaks: Step
    code: str
    anew: bool = True
    mend: Step | None = None
    verb: tuple[str, ...] = RECEIVE


def nothing(library: Library) -> None:
    """Nothing."""


def changes(*statements: str) -> Step:
    return lambda library: library.change(*statements)


def moved(path: str) -> Step:
    return lambda library: shutil.move(library.shell.folder / path, library.shell.folder / "aside")


def back(path: str) -> Step:
    def put_back(library: Library) -> None:
        shutil.rmtree(library.shell.folder / path, ignore_errors=True)  # what a refused run noted there
        shutil.move(library.shell.folder / "aside", library.shell.folder / path)

    return put_back


def rewritten(old: str, new: str) -> Step:
    def edit(library: Library) -> None:
        file = library.shell.folder / "pipelines" / "library.yaml"
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new, 1), encoding="utf-8")

    return edit


def env(**values: str | None) -> Step:
    """Set variables of the shell; None: as they were."""

    def change(library: Library) -> None:
        if "before" not in library.__dict__:
            library.__dict__["before"] = dict(library.shell.env)
        for name, value in values.items():
            library.shell.env[name] = library.__dict__["before"][name] if value is None else value

    return change


def slot_of_another_database(library: Library) -> None:
    library.change("SELECT pg_drop_replication_slot('library')")
    with psycopg.connect(library.database.server.dsn(), autocommit=True) as admin:
        admin.execute("SELECT pg_create_logical_replication_slot('library', 'pgoutput')")


def lost(library: Library) -> None:
    """The server gives the slot up."""
    library.change("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    library.fall_behind()
    library.change("CHECKPOINT", "ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


MADE_AGAIN = (
    "SELECT pg_drop_replication_slot('library')",
    "INSERT INTO loans VALUES (77, 77, 'between')",
    "SELECT pg_create_logical_replication_slot('library', 'pgoutput')",
)

CASES: dict[str, Case] = {
    "nobody listens there": Case(env(PGPORT="1"), "SRC201", anew=False, mend=env(PGPORT=None)),
    "the password is wrong": Case(env(PGPASSWORD="no"), "SRC202", anew=False, mend=env(PGPASSWORD=None)),
    "the database is not there": Case(env(PGDATABASE="nowhere"), "SRC203", anew=False, mend=env(PGDATABASE=None)),
    "the role lost its right": Case(changes("ALTER ROLE cdc NOREPLICATION"), "SRC205", anew=False),
    "the publication was narrowed": Case(
        changes("ALTER PUBLICATION library SET (publish = 'insert')"),
        "SRC221",
        anew=False,
        mend=changes("ALTER PUBLICATION library SET (publish = 'insert, update, delete, truncate')"),
    ),
    "the slot is another database's": Case(
        slot_of_another_database, "SRC229", mend=rewritten("  tables:", "  slot: {name: library_own}\n  tables:")
    ),
    "the slot was to forget what bronze does not hold": Case(
        nothing, "SRC234", anew=False, verb=("slot", "advance", "FF/0")
    ),
    "a table that is not there was to be copied again": Case(
        nothing, "STA690", anew=False, verb=("resync", "public.nowhere")
    ),
    "a position is none": Case(nothing, "STA601", anew=False, verb=("inspect", "tx", "here")),
    "the log that the slot needs is gone": Case(lost, "SRC204"),
    "the slot was dropped": Case(changes("SELECT pg_drop_replication_slot('library')"), "SRC212"),
    "the slot was made again": Case(changes(*MADE_AGAIN), "SRC215"),
    "the publication was dropped": Case(
        changes("UPDATE loans SET note = 'a'", "DROP PUBLICATION library", "UPDATE loans SET note = 'b'"), "SRC220"
    ),
    "the control tables were deleted": Case(moved("lake/control"), "SRC230"),
    "the control tables were deleted, and are put back": Case(
        moved("lake/control"), "SRC230", anew=False, mend=back("lake/control")
    ),
    "bronze was moved": Case(moved("lake/bronze"), "LAK427", anew=False, mend=back("lake/bronze")),
    "bronze is lost": Case(moved("lake/bronze"), "LAK427"),
    "the lake is not mounted": Case(moved("lake"), "SRC214", anew=False, mend=back("lake")),
    "bronze.path was changed": Case(
        rewritten("bronze:", "bronze:\n  path: elsewhere"),
        "LAK427",
        anew=False,
        mend=rewritten("bronze:\n  path: elsewhere", "bronze:"),
    ),
}


def moved_to_another_server(library: Library) -> Iterator[Library]:
    """The database on a server of another system identifier, as `pg_upgrade` and a restore from a dump leave it."""
    before = library.database
    server = start_server()
    try:
        make_role(server)
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            admin.execute(f'CREATE DATABASE "{before.name}" OWNER {before.user}'.encode())
        library.database = Database(server, before.name)
        with before.connect() as old, library.database.connect() as new:
            new.execute("CREATE TABLE loans (id int PRIMARY KEY, book_id int, note text)")
            for row in old.execute("SELECT id, book_id, note FROM loans").fetchall():
                new.execute("INSERT INTO loans VALUES (%s, %s, %s)", row)
        library.shell.env["PGPORT"] = str(server.port)
        yield library
    finally:
        server.remove()


@pytest.fixture
def library(database: Database, tmp_path: Path) -> Iterator[Library]:
    one = Library(database, tmp_path)
    file = one.shell.folder / "pipelines" / "library.yaml"
    if "bronze:" not in (text := file.read_text(encoding="utf-8")):
        file.write_text(f"{text}\nbronze:\n  format: delta\n", encoding="utf-8")
    one.change("UPDATE loans SET note = 'seen' WHERE id < 5")
    one.receive()
    yield one
    with database.admin() as db:
        db.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        db.execute("ALTER ROLE cdc REPLICATION")
        db.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'library'")


def obey(library: Library, said: Said) -> list[str]:
    """Do the commands of a hint, and what they say in turn; what was done."""
    hint = said.err.partition("hint:")[2]
    assert hint, said.err
    assert "move the lake" not in hint
    done = []
    if (statement := SUPERUSER.search(hint)) is not None:
        library.change(statement[1])
    for command in COMMAND.findall(hint):
        words = command.split()
        if words[:1] == ["restart"]:
            told = library.shell.fine(*words)
            assert "add --yes" in told
            words.append("--yes")
        if words[:1] in (["run"], ["status"], ["explain"], ["plan"], ["check"]):
            continue  # they look; running again comes in any case
        library.shell.fine(*words)
        done.append(" ".join(words))
    return done


@pytest.mark.parametrize("what", CASES)
def test_what_an_error_says_is_done_at_once_and_nothing_is_missing(library: Library, what: str) -> None:
    case, shell = CASES[what], library.shell
    values = {"version": 1, "pipeline": "library", "source": library.database.source}
    project = Project(Pipeline.model_validate(values), shell.folder / "library.yaml", shell.folder)
    before = last_epoch(None, control_tables(project))
    case.breaks(library)
    library.change("INSERT INTO loans VALUES (41, 41, 'behind')")
    said = shell(*case.verb)
    assert f"error[{case.code}]" in said.err, said.err
    if case.mend is not None:
        case.mend(library)
    done = [] if case.mend is not None else obey(library, said)
    while (said := shell(*RECEIVE)).code and len(done) < 3:  # one remedy may lead to the next
        done += obey(library, said)
    assert ("restart --yes" in done) == case.anew
    library.receive()
    assert "the chain holds" in shell.fine("inspect", "chain", "--against", "source")
    assert "41" in shell.fine("inspect", "row", "loans", "41")
    state, control = bronze_reader(project).state(), control_tables(project)
    assert state is not None
    assert state.epoch == (before + 1 if case.anew else before) or case.code == "SRC230"
    assert control.streams()[-1].stream == state.stream
    library.change("INSERT INTO loans VALUES (42, 42, 'later')")
    library.receive()
    assert "42" in shell.fine("inspect", "row", "loans", "42")


def test_a_source_that_was_upgraded_goes_on_with_a_new_stream(library: Library) -> None:
    for elsewhere in moved_to_another_server(library):
        elsewhere.change("INSERT INTO loans VALUES (41, 41, 'behind')")
        said = elsewhere.shell(*RECEIVE)
        assert "error[SRC216]" in said.err, said.err
        assert "restart --yes" in obey(elsewhere, said)
        elsewhere.receive()
        assert "the chain holds" in elsewhere.shell.fine("inspect", "chain", "--against", "source")
        assert "41" in elsewhere.shell.fine("inspect", "row", "loans", "41")


def test_a_server_of_one_slot_says_how_many_are_in_use_and_how_many_a_start_needs(tmp_path: Path) -> None:
    server = start_server(settings={"max_replication_slots": "1"})
    try:
        make_role(server)
        with pytest.raises(AssertionError, match="0 of 1 replication slots are in use, and a start needs two") as first:
            Library(make_database(server), tmp_path)
        assert "raise max_replication_slots to 2 or more" in str(first.value)
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            admin.execute("ALTER SYSTEM SET max_replication_slots = 2")
        server.stop()
        server.start()
        (again := tmp_path / "again").mkdir()
        Library(make_database(server), again)
    finally:
        server.remove()
