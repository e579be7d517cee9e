"""Remedies that work: something breaks, the error says what to do, that is done at once, and nothing is missing.

A case is what breaks, the code that says so, and what is done besides the commands that the hint itself names in
backquotes: those are taken from what was printed. In the end every row of the source is in bronze, in an unbroken chain,
and what silver, cuts and control tables had is there still. No Spark, so no case of silver.
"""

from __future__ import annotations

import errno
import itertools
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.rest import RestCatalog

from cdc_lake.bronze import compaction
from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.cli.text import page
from cdc_lake.config.loader import load_project
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.control.coordination import ReceiverNote, apply_lease, copy_lease
from cdc_lake.control.streams import last_epoch
from cdc_lake.errors import StoreUnavailable
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.runtime.run import ReceiverProcess
from cdc_lake.source.postgres import stream
from cdc_lake.tables import control_schema, delta_log
from cdc_lake.tables import control_tables as control
from cdc_lake.tables.catalog import open_catalog
from cdc_lake.tables.control_schema import CONTROL_PROPERTY
from cdc_lake.tables.control_tables import control_tables
from cdc_lake_testing.beside import streams, until
from cdc_lake_testing.relay import Connection, Relay
from cdc_lake_testing.rest_catalog import RestCatalogServer
from cdc_lake_testing.server import EmbeddedServer
from cdc_lake_testing.standby import promote
from tests.conftest import Database, drop_database, make_database, make_role, start_server
from tests.live.test_receive_loop import once
from tests.live.test_recipes import RECEIVE, Library
from tests.postgres_with_test_decoding import start_decoding_server
from tests.shell import Said, Shell

pytestmark = pytest.mark.live

STATEMENT = re.compile(r"\b((?:ALTER|CREATE|GRANT) [A-Z]+ [^;\n…]+)")
FILE = "pipelines/library.yaml"
COMMAND = re.compile(r"`cdc-lake ([a-z][^`]*)`")
LOOKS = {"inspect", "run", "status", "explain", "plan", "check"}
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
    def move(library: Library) -> None:
        (library.shell.folder / path).rename(library.shell.folder / "aside")

    return move


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


ENTERED = ExitStack()
"""What a case has entered, until its remedy leaves it, or the test ends."""


def entered(context: Callable[[Library], AbstractContextManager[Any]]) -> Step:
    def enter(library: Library) -> None:
        ENTERED.enter_context(context(library))

    return enter


def left(_: Library) -> None:
    ENTERED.close()


def patched(owner: object, name: str, value: Callable[[Library, Any], object]) -> Step:
    """Replace a function by what `value` makes of the library and the function."""

    def context(library: Library) -> Iterator[pytest.MonkeyPatch]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, value(library, getattr(owner, name)))
            yield patch

    return entered(contextmanager(context))


class Rewritten(Connection):
    """A proxy that knows the protocol badly: what is streamed begins with a kind of message that there is not."""

    def to_client(self, data: bytes) -> None:
        super().to_client(data[:5] + b"?" + data[6:] if data[:1] == b"d" else data)


class Rewriting(Relay):
    def connection(self, client: socket.socket, server: socket.socket) -> Connection:
        return Rewritten(client, server)


def behind_a_proxy(library: Library) -> None:
    relay = ENTERED.enter_context(Rewriting(library.database.host, library.database.port))
    env(PGPORT=str(relay.port))(library)


def disk_fails(library: Library, sync: Callable[[Path], None]) -> Callable[[Path], None]:
    """The log entry of bronze is written, and the disk does not keep it."""

    def failing(path: Path) -> None:
        if path.is_relative_to(library.shell.folder / "lake" / "bronze") and path.suffix == ".json":
            raise OSError(errno.EIO, "Input/output error")
        sync(path)

    return failing


def received_first(library: Library, exchange: Callable[..., None]) -> Callable[..., None]:
    """Before each commit of upkeep there is one of the receiver."""

    def late(table: DeltaBronzeTable, *given: object, **more: object) -> None:
        library.change("UPDATE loans SET note = 'w' WHERE id = 1")
        library.shell.fine(*RECEIVE)
        exchange(table, *given, **more)

    return late


def overtaken(library: Library, commit: Callable[..., int]) -> Callable[..., int]:
    """Before a receiver commits, the server gives its slot to another one, which lands what there is."""

    def late(table: DeltaBronzeTable, *given: object) -> int:
        left(library)  # the other one commits as always
        library.change("SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE active")
        once(project_of(library))
        return commit(table, *given)

    return late


def in_the_way(path: str) -> Step:
    """Somebody took the folder away, and left a file there."""
    return both(moved(path), lambda library: (library.shell.folder / path).write_text("where is it?"))


def out_of_the_way(path: str) -> Step:
    """The file is moved away, and the folder comes back."""
    return both(lambda library: (library.shell.folder / path).rename(library.shell.folder / "note"), back(path))


def files_of(library: Library) -> list[Path]:
    return [Path(file) for file in DeltaTable(library.shell.folder / "lake/bronze/library").file_uris()]


def file_lost(library: Library) -> None:
    files_of(library)[-1].rename(library.shell.folder / "aside")


def file_found(library: Library) -> None:
    assert "does not exist" in library.shell("inspect", "chain").out
    (lost,) = [file for file in files_of(library) if not file.exists()]
    (library.shell.folder / "aside").rename(lost)


def of_an_older_form(library: Library) -> None:
    streams = DeltaTable(library.shell.folder / "lake" / "control" / "library" / "streams")
    streams.alter.set_table_properties({CONTROL_PROPERTY: "0"}, raise_if_not_exists=False)


def command(*words: str) -> Step:
    return lambda library: (library.shell.fine(*words), None)[1]


def slot_of_another_database(library: Library) -> None:
    library.change("SELECT pg_drop_replication_slot('library')")
    with psycopg.connect(library.database.server.dsn(), autocommit=True) as admin:
        admin.execute("SELECT pg_create_logical_replication_slot('library', 'pgoutput')")


def lost(library: Library) -> None:
    """The server gives the slot up."""
    library.change("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    library.fall_behind()
    library.change("CHECKPOINT", "ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


def source_has(setting: str, before: str = "  tables:") -> Step:
    """A line more in the section `source`."""
    return rewritten(before, f"  {setting}\n{before}")


def both(first: Step, second: Step) -> Step:
    def do(library: Library) -> None:
        first(library)
        second(library)

    return do


def without(setting: str) -> Step:
    return rewritten(f"  {setting}\n", "")


def had(setting: str) -> Step:
    """The source had a setting for a run, and has it no more."""

    def once(library: Library) -> None:
        source_has(setting)(library)
        library.receive()
        without(setting)(library)

    return once


def restored(library: Library) -> None:
    """Somebody puts bronze back to the version before its last."""
    library.change("UPDATE loans SET note = 'z' WHERE id < 9")
    library.receive()
    bronze = DeltaTable(library.shell.folder / "lake" / "bronze" / "library")
    bronze.restore(bronze.version() - 2)  # the last is without rows


def restore_as_said(library: Library) -> None:
    bronze = DeltaTable(library.shell.folder / "lake" / "bronze" / "library")
    bronze.restore(int(said_of(library, r"to version (\d+), then run again")))


def said_of(library: Library, pattern: str) -> str:
    """What is said when it is received."""
    found = re.search(pattern, library.shell(*RECEIVE).err)
    assert found is not None
    return found[1]


def copied_and_back(library: Library) -> None:
    """The statements of the page of DEC322."""
    (sql,) = re.findall(r"```sql\n(.*?)```", page("DEC322"), re.DOTALL)
    library.change(*filter(str.strip, sql.replace("shop", "library").split(";")))


def idle_for_too_long(library: Library) -> None:
    library.change("ALTER SYSTEM SET idle_replication_slot_timeout = '1s'", "SELECT pg_reload_conf()")
    library.change(
        "SELECT pg_sleep(1.1)",
        "CHECKPOINT",
        "ALTER SYSTEM RESET idle_replication_slot_timeout",
        "SELECT pg_reload_conf()",
    )


CLOSED = (
    "CREATE FUNCTION closed() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not before noon'; END $$",
    "CREATE EVENT TRIGGER closed ON ddl_command_start WHEN TAG IN ('CREATE PUBLICATION') EXECUTE FUNCTION closed()",
)
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
    "the role has too many connections": Case(changes("ALTER ROLE cdc CONNECTION LIMIT 0"), "SRC207", anew=False),
    "the server does not encrypt": Case(
        source_has("tls: {mode: require}"), "SRC206", anew=False, mend=without("tls: {mode: require}")
    ),
    "the server is another product": Case(
        rewritten("type: postgres", "type: gaussdb"),
        "SRC208",
        anew=False,
        mend=rewritten("type: gaussdb", "type: postgres"),
    ),
    "the slot has another name": Case(
        source_has("slot: {name: library_own}"), "SRC216", anew=False, mend=without("slot: {name: library_own}")
    ),
    "the slot has another plugin": Case(
        source_has("slot: {plugin: test_decoding}"), "SRC219", anew=False, mend=without("slot: {plugin: test_decoding}")
    ),
    "the slot sends prepared transactions": Case(
        had("decoding: {two_phase: true}"), "SRC236", anew=False, mend=copied_and_back
    ),
    "a filter is no condition": Case(
        source_has('row_filters: {public.loans: "note = 1"}'),
        "SRC239",
        anew=False,
        mend=without('row_filters: {public.loans: "note = 1"}'),
    ),
    "a column to redact is not there": Case(
        rewritten("bronze:", "bronze:\n  redact: [{columns: [public.loans.nte], strategy: drop}]"),
        "CFG154",
        anew=False,
        mend=rewritten("\n  redact: [{columns: [public.loans.nte], strategy: drop}]", ""),
    ),
    "the folder of bronze is another table's": Case(
        rewritten("bronze:", "bronze:\n  path: lake/control/library/streams"),
        "LAK421",
        anew=False,
        mend=rewritten("\n  path: lake/control/library/streams", ""),
    ),
    "bronze was put back": Case(restored, "LAK425", anew=False, mend=restore_as_said),
    "a recording is there": Case(nothing, "STA630", anew=False, verb=("record", FILE, FILE, "--seconds", "1")),
    "a transaction that is not in bronze": Case(nothing, "STA623", anew=False, verb=("inspect", "tx", "0/1")),
    "a cut that nobody pinned": Case(nothing, "STA679", anew=False, verb=("cuts", "show", "nonsense")),
    "a cut before the first": Case(nothing, "STA675", anew=False, verb=("cuts", "show", "latest")),
    "a table without its copy was to be rebuilt": Case(nothing, "STA673", anew=False, verb=("rebuild", "nowhere")),
    "a file is no recording": Case(nothing, "DEC320", anew=False, mend=nothing, verb=("replay", FILE)),
    "a table that is not there was to be copied again": Case(
        nothing, "STA690", anew=False, verb=("resync", "public.nowhere")
    ),
    "a position is none": Case(nothing, "STA601", anew=False, verb=("inspect", "tx", "here")),
    "a proxy rewrites the stream": Case(behind_a_proxy, "SRC226", anew=False, mend=both(left, env(PGPORT=None))),
    "a file is where the control tables were": Case(
        in_the_way("lake/control"), "LAK423", anew=False, mend=out_of_the_way("lake/control")
    ),
    "a file is where bronze was": Case(
        in_the_way("lake/bronze"), "LAK420", anew=False, mend=out_of_the_way("lake/bronze")
    ),
    "a file of bronze is gone": Case(
        file_lost, "LAK422", anew=False, mend=file_found, verb=("inspect", "row", "loans", "1")
    ),
    "the disk did not keep a commit": Case(
        patched(delta_log, "sync", disk_fails), "LAK426", anew=False, mend=both(left, command("inspect", "chain"))
    ),
    "maintenance finds no room": Case(
        both(patched(compaction, "_TURNS", lambda *_: 2), patched(DeltaBronzeTable, "exchange", received_first)),
        "LAK445",
        anew=False,
        mend=both(left, command("maintain")),
        verb=("maintain",),
    ),
    "another receiver lands the same": Case(
        patched(DeltaBronzeTable, "commit", overtaken), "STA620", anew=False, mend=nothing
    ),
    "another process applies": Case(
        both(of_an_older_form, entered(lambda library: apply_lease(project_of(library)))),
        "STA624",
        anew=False,
        mend=both(left, command("upgrade", "--yes")),
        verb=("upgrade", "--yes"),
    ),
    "another process copies": Case(
        entered(lambda library: copy_lease(project_of(library))),
        "STA625",
        anew=False,
        mend=both(left, command("resync", "public.loans")),
        verb=("resync", "public.loans"),
    ),
    "the log that the slot needs is gone": Case(lost, "SRC204"),
    "the slot was idle for too long": Case(idle_for_too_long, "SRC218"),
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


LAKE_AWAY = {"LAK427", "SRC214"}


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


def made(database: Database, folder: Path) -> Iterator[Library]:
    one = Library(database, folder)
    file = one.shell.folder / "pipelines" / "library.yaml"
    file.write_text(file.read_text(encoding="utf-8") + "\nbronze:\n  format: delta\n", encoding="utf-8")
    one.change("UPDATE loans SET note = 'seen' WHERE id < 5")
    one.receive()
    yield one
    with database.admin() as db:
        db.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        db.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'library'")


@pytest.fixture(autouse=True)
def role(server: EmbeddedServer) -> Iterator[None]:
    """The role is that of all tests of the process: what a case grants, or takes, ends with it."""
    yield
    ENTERED.close()
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute("ALTER ROLE cdc REPLICATION NOBYPASSRLS CONNECTION LIMIT -1")


@pytest.fixture
def library(database: Database, tmp_path: Path) -> Iterator[Library]:
    yield from made(database, tmp_path)


@pytest.fixture(scope="class")
def shared(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    """One library for all remedies after which the stream goes on."""
    database = make_database(server)
    yield from made(database, tmp_path_factory.mktemp("shared"))
    drop_database(database)


def project_of(library: Library) -> Project:
    values = {"version": 1, "pipeline": "library", "source": library.database.source}
    folder = library.shell.folder
    return Project(Pipeline.model_validate(values), folder / "library.yaml", folder)


def obey(library: Library, said: Said) -> list[str]:
    """Do the commands of a hint, and what they say in turn; what was done."""
    hint = said.err.partition("hint:")[2]
    assert hint, said.err
    assert "move the lake" not in hint
    done = []
    if (statement := STATEMENT.search(hint)) is not None:
        library.change(statement[1])
    for command in COMMAND.findall(hint):
        words = command.split()
        if words == ["check", "--sql"]:
            library.change(library.shell.fine(*words))
        if words[:1] == ["restart"]:
            told = library.shell.fine(*words)
            assert "add --yes" in told
            words.append("--yes")
        if words[0] in LOOKS:
            continue  # they look; running again comes in any case
        library.shell.fine(*words)
        done.append(" ".join(words))
    return done


@pytest.mark.parametrize("what", [what for what, case in CASES.items() if case.anew])
def test_what_an_error_says_is_done_at_once_and_nothing_is_missing(library: Library, what: str) -> None:
    break_and_obey(library, CASES[what])


class TestTheStreamGoesOn:
    @pytest.mark.parametrize("what", [what for what, case in CASES.items() if not case.anew])
    def test_what_an_error_says_is_done_at_once(self, shared: Library, what: str) -> None:
        break_and_obey(shared, CASES[what])


IDS = itertools.count(41)


def break_and_obey(library: Library, case: Case) -> None:
    shell, behind, later = library.shell, next(IDS), next(IDS)
    project = project_of(library)
    before = last_epoch(None, control_tables(project))
    case.breaks(library)
    library.change(f"INSERT INTO loans VALUES ({behind}, 41, 'behind')")
    said = shell(*case.verb)
    assert f"error[{case.code}]" in said.err, said.err
    if case.code in LAKE_AWAY:
        assert f"error[{case.code}]" in shell("plan").err, "what a start refuses"
        checked = shell("check")
        assert (checked.code, f"[{case.code}]" in checked.out) == (1, True), checked
        would = library.shell.fine("slot", "drop")
        assert "unknown: there is no bronze at" in would, would
        assert "if its lake is not mounted, or was moved, the stream is lost with the slot" in would
        assert "nothing was done: add --yes to do it" in would
    if case.mend is not None:
        case.mend(library)
    done = [] if case.mend is not None else obey(library, said)
    while (said := shell(*RECEIVE)).code and len(done) < 3:  # one remedy may lead to the next
        obeyed = obey(library, said)
        assert obeyed, said.err
        done += obeyed
    assert ("restart --yes" in done) == case.anew
    library.receive()
    assert "the chain holds" in shell.fine("inspect", "chain", "--against", "source")
    assert "behind" in shell.fine("inspect", "row", "loans", str(behind))
    state, streams = bronze_reader(project).state(), control_tables(project).streams()
    assert state is not None
    assert state.epoch == (before + 1 if case.anew else before) or case.code == "SRC230"
    assert streams[-1].stream == state.stream
    library.change(f"INSERT INTO loans VALUES ({later}, 42, 'later')")
    library.receive()
    assert "later" in shell.fine("inspect", "row", "loans", str(later))


@pytest.mark.obeys("SRC216")
def test_a_source_that_was_upgraded_goes_on_with_a_new_stream(library: Library) -> None:
    for elsewhere in moved_to_another_server(library):
        elsewhere.change("INSERT INTO loans VALUES (41, 41, 'behind')")
        said = elsewhere.shell(*RECEIVE)
        assert "error[SRC216]" in said.err, said.err
        assert "error[SRC216]" in elsewhere.shell("plan").err, "what a start refuses"
        assert "restart --yes" in obey(elsewhere, said)
        elsewhere.receive()
        assert "the chain holds" in elsewhere.shell.fine("inspect", "chain", "--against", "source")
        assert "41" in elsewhere.shell.fine("inspect", "row", "loans", "41")


@pytest.mark.obeys("SRC208", "SRC211", "SRC217")
def test_a_server_is_set_up_as_it_is_said_and_one_that_was_put_back_goes_on_with_a_new_stream(tmp_path: Path) -> None:
    server = start_server(settings={"max_replication_slots": "1", "wal_level": "replica"})
    try:
        make_role(server)
        library = Library(make_database(server), tmp_path, started=False)
        said = library.shell(*RECEIVE)
        assert "error[SRC208]" in said.err, said.err
        obey(library, said)
        server.restart()
        said = library.shell(*RECEIVE)
        assert "error[SRC211]: 0 of 1 replication slots are in use, and a start needs two" in said.err, said.err
        assert "raise max_replication_slots to 2 or more" in said.err
        library.change("ALTER SYSTEM SET max_replication_slots = 2")
        server.restart()
        library.receive()

        server.stop()
        subprocess.run(["cp", "-a", server.data, tmp_path / "backup"], check=True)
        server.start()
        library.change("INSERT INTO loans VALUES (40, 40, 'lost')")
        library.receive()
        server.stop()
        shutil.rmtree(server.data)
        subprocess.run(["cp", "-a", tmp_path / "backup", server.data], check=True)
        server.start()
        said = library.shell(*RECEIVE)
        assert "error[SRC217]" in said.err, said.err
        assert "restart --yes" in obey(library, said)
        library.change("INSERT INTO loans VALUES (41, 41, 'behind')")
        library.receive()
        assert "the chain holds" in library.shell.fine("inspect", "chain", "--against", "source")
        assert "behind" in library.shell.fine("inspect", "row", "loans", "41")
        assert "lost" in library.shell.fine("inspect", "row", "loans", "40"), "bronze still says what was"
    finally:
        server.remove()


def test_a_slot_that_was_given_two_phase_decoding_under_the_receiver_loses_it_as_is_said(tmp_path: Path) -> None:
    server = start_decoding_server(settings={"max_prepared_transactions": "5"})
    try:
        make_role(server)
        library = Library(make_database(server), tmp_path, started=False)
        source_has("slot: {plugin: test_decoding}")(library)
        library.receive()

        def made_again_first(library: Library, start: Callable[..., object]) -> Callable[..., object]:
            def late(*given: object) -> object:
                library.change(
                    "SELECT pg_drop_replication_slot('library')",
                    "SELECT pg_create_logical_replication_slot('library', 'test_decoding', false, true)",
                    "BEGIN; INSERT INTO loans VALUES (41, 41, 'behind'); PREPARE TRANSACTION 'one'",
                )
                return start(*given)

            return late

        patched(stream, "start_command", made_again_first)(library)
        said = library.shell(*RECEIVE)
        left(library)
        assert "error[DEC321]" in said.err, said.err
        library.change("COMMIT PREPARED 'one'")
        assert "DEC322" in page("DEC321")
        copied_and_back(library)
        said = library.shell(*RECEIVE)
        assert "error[SRC215]" in said.err, "as the page says of one that was made anew"
        assert obey(library, said) == ["restart --yes"]
        library.receive()
        assert "the chain holds" in library.shell.fine("inspect", "chain", "--against", "source")
        assert "behind" in library.shell.fine("inspect", "row", "loans", "41")
    finally:
        server.remove()


@pytest.mark.obeys("SRC227")
def test_a_receiver_that_was_killed_is_run_again_and_everything_lands(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in library.shell.env.items():
        monkeypatch.setenv(name, value)
    told: list[ProgressEvent] = []
    stop = threading.Event()
    with ReceiverProcess(load_project(library.shell.folder / FILE), stop, told.append):
        until(lambda: streams(told))
        for child in psutil.Process().children():
            if "--until-input-ends" in child.cmdline():
                child.kill()
        until(lambda: "SRC227" in {one.facts.get("code") for one in told})
        library.change("INSERT INTO loans VALUES (41, 41, 'behind')")
        until(lambda: sum(one.stage == "landed" for one in told))
        stop.set()
    library.receive()
    assert "the chain holds" in library.shell.fine("inspect", "chain", "--against", "source")
    assert "behind" in library.shell.fine("inspect", "row", "loans", "41")


BLOCKED = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "{module}":
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Block())
"""


@pytest.mark.parametrize(
    ("code", "module", "setting"),
    [("SRC209", "psycopg", "format: delta"), ("LAK404", "pyiceberg", "format: iceberg")],
)
@pytest.mark.obeys("SRC209", "LAK404")
def test_the_extra_that_is_named_brings_what_is_missing_and_the_same_command_goes_on(
    database: Database, tmp_path: Path, code: str, module: str, setting: str
) -> None:
    library = Library(database, tmp_path, started=False)
    rewritten("silver:\n", f"bronze:\n  {setting}\n\nsilver:\n")(library)
    (tmp_path / "sitecustomize.py").write_text(BLOCKED.format(module=module))
    said = Shell(library.shell.folder, {**library.shell.env, "PYTHONPATH": str(tmp_path)})(*RECEIVE)
    assert f"error[{code}]" in said.err, said.err
    (extra,) = re.findall(r"hint: pip install .*\[(\w+)\]", said.err)
    wanted = metadata("cdc_lake").get_all("Requires-Dist") or []
    assert [one for one in wanted if one.startswith(module) and f"extra == '{extra}'" in one]
    library.receive()  # as if it had been installed
    assert "the chain holds" in library.shell.fine("inspect", "chain", "--against", "source")


@pytest.mark.obeys("LAK490")
def test_a_lake_that_a_newer_version_upgraded_goes_on_with_a_newer_version(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        for module in (control, control_schema):
            newer.setattr(module, "CONTROL_VERSION", 3)
        library.shell.fine("upgrade", "--yes")
    library.change("INSERT INTO loans VALUES (41, 41, 'behind')")
    said = library.shell(*RECEIVE)
    assert "error[LAK490]" in said.err, said.err
    for module in (control, control_schema):
        monkeypatch.setattr(module, "CONTROL_VERSION", 3)
    library.receive()
    assert "behind" in library.shell.fine("inspect", "row", "loans", "41")
    assert "the chain holds" in library.shell.fine("inspect", "chain", "--against", "source")


@pytest.mark.obeys("LAK430", "LAK431")
def test_a_catalog_that_is_away_or_goes_in_a_commit_is_back_and_the_next_run_goes_on(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, numbers = Library(database, tmp_path, started=False), iter((41, 42))
    at = "lake: {iceberg: {type: rest, uri: 'URI'}}\n\nbronze: {format: iceberg}\n"
    rewritten("silver:\n", f"{at}\nsilver:\n")(library)
    said_away = "URI"

    def broken(code: str) -> None:
        library.change(f"INSERT INTO loans VALUES ({next(numbers)}, 41, 'behind')")
        said = library.shell(*RECEIVE)
        assert (said.code, f"error[{code}]" in said.err) == (4, True), said.err

    with RestCatalogServer(tmp_path / "catalog") as server:
        rewritten(said_away, server.uri)(library)
        library.receive()
        commit = RestCatalog.commit_table

        def commits_and_goes(*given: Any, **more: Any) -> None:
            commit(*given, **more)
            monkeypatch.setattr(RestCatalog, "load_table", gone)
            raise ConnectionError

        def gone(*_: object, **__: object) -> None:
            raise ConnectionError

        monkeypatch.setattr(RestCatalog, "commit_table", commits_and_goes)
        broken("LAK431")
        monkeypatch.undo()
        library.receive()
        said_away = server.uri
    open_catalog.cache_clear()  # another process
    broken("LAK430")
    with RestCatalogServer(tmp_path / "catalog") as server:
        rewritten(said_away, server.uri)(library)
        library.receive()
        assert "the chain holds" in library.shell.fine("inspect", "chain", "--against", "source")
        for number in ("41", "42"):
            assert "behind" in library.shell.fine("inspect", "row", "loans", number)


@pytest.mark.obeys("SRC261")
def test_a_history_file_that_is_missing_is_put_back_and_the_stream_goes_on(tmp_path: Path) -> None:
    server = start_server()
    try:
        make_role(server)
        library = Library(make_database(server), tmp_path)
        server.stop()
        (server.data / "standby.signal").touch()
        server.start()
        promote(server)
        library.change("INSERT INTO loans VALUES (41, 41, 'behind')")
        (file,) = (server.data / "pg_wal").glob("*.history")
        file.rename(tmp_path / file.name)
        said = library.shell(*RECEIVE)
        assert "error[SRC261]" in said.err, said.err
        (tmp_path / file.name).rename(file)
        library.receive()
        assert "the chain holds" in library.shell.fine("inspect", "chain", "--against", "source")
        assert "behind" in library.shell.fine("inspect", "row", "loans", "41")
    finally:
        server.remove()


def test_a_restart_leaves_alone_a_slot_that_the_pipeline_did_not_make(library: Library) -> None:
    library.change("SELECT pg_create_logical_replication_slot('theirs', 'pgoutput')")
    source_has("slot: {name: theirs}")(library)
    assert "error[SRC216]" in library.shell(*RECEIVE).err
    for asked in ((), ("--yes",)):
        refused = library.shell("restart", *asked)
        assert "error[SRC214]" in refused.err, refused
        assert not COMMAND.search(refused.err.replace("`cdc-lake slot inspect`", "").replace("`cdc-lake explain", ""))
    assert library.row("SELECT count(*) FROM pg_replication_slots") == (2,)
    rewritten("theirs", "ours")(library)
    said = library.shell.fine("restart", "--yes")
    (drop,) = COMMAND.findall(said.partition("stays")[2].partition("\n")[0])
    assert drop == "slot drop library"
    library.shell.fine(*drop.split(), "--yes")
    library.receive()
    assert library.row("SELECT count(*) FROM pg_replication_slots WHERE slot_name IN ('ours', 'theirs')") == (2,)


BEFORE_THE_FIRST_RUN: dict[str, tuple[str, ...]] = {
    "maintain": ("maintain",),
    "slot advance": ("slot", "advance"),
    "restart": ("restart",),
    "resync": ("resync", "loans", "--dry-run"),
    "pause": ("pause", "loans"),
}


@pytest.mark.obeys("STA622")
def test_what_needs_a_stream_says_so_and_works_behind_the_first_run(database: Database, tmp_path: Path) -> None:
    library = Library(database, tmp_path, started=False)
    for verb in BEFORE_THE_FIRST_RUN.values():
        said = library.shell(*verb)
        assert "error[STA622]" in said.err, (verb, said.err)
        assert "`cdc-lake run" in said.err, (verb, said.err)
    library.receive()
    for verb in BEFORE_THE_FIRST_RUN.values():
        library.shell.fine(*verb)
    library.receive()


@pytest.mark.obeys("LAK493")
def test_tables_of_one_silver_name_are_in_the_status_before_they_are_in_a_cut(library: Library) -> None:
    def waiting() -> dict[str, tuple[str, str]]:
        tables = library.shell.status()["tables"]
        return {table["source"]: (table["code"], table["remedy"]) for table in tables if table["state"] == "failed"}

    library.change('CREATE TABLE "Loans" (id int PRIMARY KEY)', 'ALTER TABLE "Loans" OWNER TO cdc')
    library.receive()
    found = waiting()
    assert {table: code for table, (code, _) in found.items()} == dict.fromkeys(
        ["public.Loans", "public.loans"], "LAK493"
    )
    (entry,) = re.findall(r"`silver.tables: (.*)`", found["public.Loans"][1])
    given = entry.replace("…", "public.Loans", 1).replace("…", "other_loans", 1)
    rewritten("silver:\n", f"silver:\n  tables: {given}\n")(library)
    assert waiting() == {}
    library.receive()


def waiting(library: Library) -> Iterator[None]:
    """A receiver that waits for its lake, as its note says."""
    with ReceiverNote(load_project(library.shell.folder / FILE)) as note:
        note.waits(StoreUnavailable("the lake is away", where="lake"))
        yield


TROUBLES: dict[str, tuple[Step, Step, str]] = {
    "the source is away": (env(PGPORT="1"), env(PGPORT=None), "not reachable"),
    "the receiver waits": (entered(contextmanager(waiting)), left, "the lake is away"),
    "two tables have one silver name": (
        both(changes('CREATE TABLE "Loans" (id int PRIMARY KEY)', 'ALTER TABLE "Loans" OWNER TO cdc'), Library.receive),
        both(changes('DROP TABLE "Loans"'), Library.receive),
        "failed",
    ),
    "the slot was dropped": (changes("SELECT pg_drop_replication_slot('library')"), nothing, "missing"),
}


def test_status_exits_with_1_for_what_somebody_has_to_look_at_and_with_0_otherwise(library: Library) -> None:
    for breaks, mends, word in TROUBLES.values():
        library.shell.fine("status", "--exit-code")
        breaks(library)
        said = library.shell("status", "--exit-code")
        assert (said.code, word in said.out) == (1, True), said
        library.shell.fine("status")  # the code is for who asks for it
        mends(library)


NO_KEY = ("CREATE TABLE notes (t text)", "ALTER TABLE notes OWNER TO cdc")
BY_POLICY = (
    "CREATE TABLE mine (t int PRIMARY KEY)",
    "ALTER TABLE mine ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY, OWNER TO cdc",
)
ENUM = ("CREATE TYPE mood AS ENUM ('a')", "CREATE TABLE moods (m mood PRIMARY KEY)", "ALTER TABLE moods OWNER TO cdc")
OTHER_TABLES = (
    "CREATE TABLE tags (t int PRIMARY KEY)",
    "ALTER TABLE tags OWNER TO cdc",
    "CREATE PUBLICATION library FOR TABLE tags",
)
FIRST: dict[str, Case] = {
    "a statement is refused": Case(changes(*CLOSED), "SRC225", mend=changes("DROP EVENT TRIGGER closed")),
    "a pattern matches nothing": Case(
        rewritten('["public.*"]', '["public.*", "Public.Loan"]'), "SRC222", mend=rewritten(', "Public.Loan"', "")
    ),
    "a table has no key": Case(changes(*NO_KEY), "SRC223"),
    "a table may not be read": Case(changes("CREATE TABLE others (t int PRIMARY KEY)"), "SRC224"),
    "row security hides rows": Case(changes(*BY_POLICY), "SRC237"),
    "a filter needs what is not logged": Case(source_has("row_filters: {public.loans: \"note = 'x'\"}"), "SRC239"),
    "the publication carries other tables": Case(changes(*OTHER_TABLES), "SRC221"),
    "a slot of that name is there": Case(
        changes("SELECT pg_create_logical_replication_slot('library', 'pgoutput')"),
        "SRC214",
        mend=source_has("slot: {name: library_own}"),
    ),
    "a type has no binary form that is read": Case(
        both(changes(*ENUM), source_has("decoding: {binary: true}")),
        "DEC325",
        mend=without("decoding: {binary: true}"),
    ),
}


@pytest.mark.parametrize("what", FIRST)
def test_what_a_first_start_says_is_done_at_once_and_every_row_is_copied(
    database: Database, tmp_path: Path, what: str
) -> None:
    case, library = FIRST[what], Library(database, tmp_path, started=False)
    case.breaks(library)
    said = library.shell(*RECEIVE)
    assert f"error[{case.code}]" in said.err, said.err
    if case.mend is None:
        obey(library, said)
    else:
        case.mend(library)
    library.receive()
    library.change("INSERT INTO loans VALUES (21, 21, 'x')")
    library.receive()
    assert "21" in library.shell.fine("inspect", "row", "loans", "21")
    published = library.row("SELECT count(DISTINCT tablename) FROM pg_publication_tables")
    assert (len(library.shell.status()["tables"]),) == published
