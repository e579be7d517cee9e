"""Whose a silver table is, is asked before anything is made: by `plan`, by `check` and by `run`. No Spark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.transaction import Transaction

from tests.conftest import Database
from tests.live.test_recipes import RECEIVE, Library
from tests.shell import QuickShell

pytestmark = pytest.mark.live

ROWS = pa.table({"id": [1, 2], "whose": ["other", "other"]})
OTHER = "pg:1:elsewhere:other:0/10"


def strangers(folder: Path) -> None:
    write_deltalake(str(folder), ROWS)


def named(folder: Path) -> None:
    """As this version makes tables."""
    properties = {"cdc_lake.pipeline": "other", "cdc_lake.stream": OTHER}
    DeltaTable.create(str(folder), ROWS.schema, configuration=properties, raise_if_key_not_exists=False)
    write_deltalake(str(folder), ROWS, mode="append")


def marked(folder: Path) -> None:
    """As version 0.3.0 wrote them, with its marker in the newest commit but one."""
    marker = Transaction(f"cdc_lake:{OTHER}:silver.loans:1", 16)
    write_deltalake(str(folder), ROWS, commit_properties=CommitProperties(app_transactions=[marker]))
    DeltaTable(str(folder)).optimize.compact()


def marked_long_ago(folder: Path) -> None:
    """The same where only a checkpoint has the marker."""
    marked(folder)
    DeltaTable(str(folder)).create_checkpoint()
    for entry in (folder / "_delta_log").glob("*.json"):
        entry.unlink()


@pytest.fixture
def shell(database: Database, tmp_path: Path) -> QuickShell:
    """A pipeline that was never run."""
    with database.connect() as db:
        db.execute("CREATE TABLE loans (id int PRIMARY KEY, book_id int, note text)")
    QuickShell(tmp_path).fine("init", "postgres", "library")
    reach = {"HOST": database.host, "PORT": database.port, "DATABASE": database.name, "USER": database.user}
    env = {f"PG{name}": str(value) for name, value in reach.items()}
    return QuickShell(tmp_path / "library", {**env, "PGPASSWORD": database.password})


@pytest.mark.parametrize(
    ("made", "whose"),
    [
        (strangers, "was not written by cdc_lake"),
        (named, "belongs to pipeline `other`"),
        (marked, "belongs to the pipeline of stream pg:1:elsewhere:other"),
        (marked_long_ago, "belongs to the pipeline of stream pg:1:elsewhere:other"),
    ],
)
def test_a_table_of_somebody_else_is_refused_before_a_slot_is_made(
    database: Database, shell: QuickShell, made: object, whose: str
) -> None:
    folder = shell.folder / "lake" / "silver" / "loans"
    made(folder)  # type: ignore[operator]
    version = DeltaTable(str(folder)).version()
    for words in (["plan"], ["run", "--once"]):
        said = shell(*words)
        assert said.code == 1
        assert "error[LAK469]" in said.err, said.err
        assert whose in said.err
        assert "this is pipeline `library`" in said.err
        assert "cdc-lake run --adopt silver.loans" in said.err
    checked = shell("check")
    assert checked.code != 0
    assert whose in checked.out
    assert "LAK469" in checked.out
    with database.admin() as db:
        assert db.execute("SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'library'").fetchone() == (0,)
    planned = shell("plan", "--adopt", "silver.loans")
    assert planned.code == 0
    assert "adopt silver.loans and replace its content" in planned.out
    assert "cdc-lake run --adopt silver.loans" in planned.out
    assert DeltaTable(str(folder)).version() == version


def test_a_slot_of_another_pipeline_of_the_lake_is_refused_with_both_names(database: Database, tmp_path: Path) -> None:
    library = Library(database, tmp_path)
    pipelines = library.shell.folder / "pipelines"
    text = (pipelines / "library.yaml").read_text(encoding="utf-8")
    other = text.replace("pipeline: library", "pipeline: shelf").replace(
        "  tables:", "  slot: {name: library}\n  tables:"
    )
    (pipelines / "shelf.yaml").write_text(other, encoding="utf-8")
    shelf = ("-p", "pipelines/shelf.yaml")
    for words in (["plan"], [*RECEIVE]):
        said = library.shell(*words, *shelf)
        assert "error[SRC214]" in said.err, said.err
        assert "slot `library` belongs to pipeline `library`, but this is pipeline `shelf`" in said.err
        assert "slot drop" not in said.err
    checked = library.shell("check", *shelf)
    assert "belongs to pipeline `library`" in checked.out
    assert "slot drop" not in checked.out


def test_a_publication_of_another_pipeline_is_refused_with_both_names_and_read_if_it_is_named(
    database: Database, tmp_path: Path
) -> None:
    library = Library(database, tmp_path, started=False)
    pipelines, settings = library.shell.folder / "pipelines", "  publication: shelf\n  slot: {name: own}\n  tables:"
    text = (pipelines / "library.yaml").read_text(encoding="utf-8")
    (pipelines / "library.yaml").write_text(text.replace("  tables:", settings), encoding="utf-8")
    assert "publication `shelf` created for 1 table\n" in library.shell(*RECEIVE).err
    assert library.row("SELECT obj_description(oid, 'pg_publication') FROM pg_publication") == (
        "cdc_lake: made by pipeline library for slot own",
    )
    shelf, other = ("-p", "shelf.yaml"), QuickShell(tmp_path / "elsewhere", library.shell.env)
    other.folder.mkdir()
    given = text.replace("pipeline: library", "pipeline: shelf")
    (other.folder / "shelf.yaml").write_text(given, encoding="utf-8")
    words = "publication `shelf` belongs to pipeline `library` with slot `own`"
    for verb in (["plan"], RECEIVE):
        said = other(*verb, *shelf)
        assert f"error[SRC221]: {words}, but this is pipeline `shelf` with slot `shelf`" in said.err, said
    assert words in other("check", *shelf).out
    assert library.row("SELECT count(*) FROM pg_replication_slots") == (1,)
    (other.folder / "shelf.yaml").write_text(given.replace("  tables:", "  publication: shelf\n  tables:"))
    other.fine(*RECEIVE, *shelf)
    library.change("CREATE TABLE more (id int PRIMARY KEY)", "ALTER TABLE more OWNER TO cdc")
    assert "is not captured: ALTER PUBLICATION" in other(*RECEIVE, *shelf).err, "it is left to its owner"
    for slot in ("own", "shelf"):
        library.change(
            f"SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE slot_name = '{slot}'",
            f"SELECT pg_drop_replication_slot('{slot}')",
        )
    shutil.rmtree(other.folder / "lake")
    (other.folder / "shelf.yaml").write_text(given.replace("public.*", "public.loans"), encoding="utf-8")
    other.fine(*RECEIVE, *shelf)  # who made it reads it no more


def test_a_file_that_is_given_a_living_pipelines_name_is_refused_with_both_names(
    database: Database, tmp_path: Path
) -> None:
    library = Library(database, tmp_path)
    pipelines = library.shell.folder / "pipelines"
    text = (pipelines / "library.yaml").read_text(encoding="utf-8").replace("pipeline: library", "pipeline: shelf")
    (pipelines / "shelf.yaml").write_text(text, encoding="utf-8")
    library.shell.fine(*RECEIVE, "-p", "pipelines/shelf.yaml")
    given = text.replace("  tables:", "  publication: library\n  slot: {name: library}\n  tables:")
    (pipelines / "given.yaml").write_text(given, encoding="utf-8")
    for words in (["plan"], [*RECEIVE], ["restart", "--yes"]):
        said = library.shell(*words, "-p", "pipelines/given.yaml")
        assert "error[SRC214]" in said.err, (words, said)
        assert "slot `library` belongs to pipeline `library`, but this is pipeline `shelf`" in said.err
    assert "slot `library` belongs to pipeline `library`" in library.shell("check", "-p", "pipelines/given.yaml").out
    (pipelines / "given.yaml").unlink()
    library.shell.fine(*RECEIVE, "-p", "pipelines/shelf.yaml")
    library.shell.fine(*RECEIVE, "-p", "pipelines/library.yaml")


def test_a_renamed_pipeline_whose_folders_were_moved_goes_on_also_where_its_old_file_is_run_once_more(
    database: Database, tmp_path: Path
) -> None:
    library = Library(database, tmp_path)
    folder = library.shell.folder
    (row,) = DeltaTable(str(folder / "lake" / "control" / "library" / "streams")).to_pyarrow_table().to_pylist()
    properties = {"cdc_lake.pipeline": "library", "cdc_lake.stream": row["stream"]}
    silver = str(folder / "lake" / "silver" / "loans")
    DeltaTable.create(silver, ROWS.schema, configuration=properties, raise_if_key_not_exists=False)
    for place in ("bronze", "control"):
        (folder / "lake" / place / "library").rename(folder / "lake" / place / "shelf")
    file = folder / "pipelines" / "library.yaml"
    old = file.rename(file.with_name("old.yaml"))
    text = old.read_text(encoding="utf-8").replace("pipeline: library", "pipeline: shelf")
    text = text.replace("  tables:", "  publication: library\n  slot: {name: library}\n  tables:")
    file.write_text(text, encoding="utf-8")
    for words in (["plan"], ["check"], [*RECEIVE], ["run", "--once"], ["run", "--once", "--only", "apply"], ["status"]):
        library.shell(*words, "-p", f"pipelines/{old.name}")
        assert "LAK469" not in library.shell("plan", "-p", f"pipelines/{file.name}").err, words
    library.change("INSERT INTO loans VALUES (31, 31, 'renamed')")
    library.shell.fine(*RECEIVE, "-p", f"pipelines/{file.name}")
    assert "31" in library.shell.fine("inspect", "row", "loans", "31", "-p", f"pipelines/{file.name}")
    old.write_text(old.read_text(encoding="utf-8").replace("pipeline: library", "pipeline: desk"), encoding="utf-8")
    refused = library.shell("plan", "-p", f"pipelines/{old.name}").err
    assert "belongs to pipeline `shelf`, and this is pipeline `desk`" in refused
    assert "set `pipeline: shelf` again" in refused


def test_bronze_of_another_pipeline_is_refused_with_both_names_also_to_start_over_in(
    database: Database, tmp_path: Path
) -> None:
    library = Library(database, tmp_path)
    pipelines = library.shell.folder / "pipelines"
    text = (pipelines / "library.yaml").read_text(encoding="utf-8").replace("pipeline: library", "pipeline: shelf")
    (pipelines / "shelf.yaml").write_text(f"{text}\nbronze:\n  path: lake/bronze/library\n", encoding="utf-8")
    shelf = ("-p", "pipelines/shelf.yaml")
    for words in (["plan"], [*RECEIVE], ["restart", "--yes"]):
        said = library.shell(*words, *shelf)
        assert "error[LAK421]" in said.err, said.err
        assert "bronze belongs to pipeline `library`, but this is pipeline `shelf`" in said.err
    assert "bronze belongs to pipeline `library`" in library.shell("check", *shelf).out
    (pipelines / "shelf.yaml").unlink()
    library.change("INSERT INTO loans VALUES (31, 31, 'own')")
    library.receive()
    assert "the chain holds" in library.shell.fine("inspect", "chain", "--against", "source")


def test_a_pipeline_that_starts_over_leaves_the_other_one_of_its_lake_alone(database: Database, tmp_path: Path) -> None:
    library = Library(database, tmp_path)
    pipelines = library.shell.folder / "pipelines"
    text = (pipelines / "library.yaml").read_text(encoding="utf-8").replace("pipeline: library", "pipeline: shelf")
    (pipelines / "shelf.yaml").write_text(text.replace("{format: delta}", "{namespace: shelf}"), encoding="utf-8")
    mine, other = ("-p", "pipelines/library.yaml"), ("-p", "pipelines/shelf.yaml")
    library.shell.fine(*RECEIVE, *other)
    library.change("SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE active")
    library.change("SELECT pg_drop_replication_slot('library')", "INSERT INTO loans VALUES (31, 31, 'both')")
    library.shell.fine("restart", "--yes", *mine)
    for pipeline in (mine, other):
        library.shell.fine(*RECEIVE, *pipeline)
        assert "the chain holds" in library.shell.fine("inspect", "chain", "--against", "source", *pipeline)
        assert "31" in library.shell.fine("inspect", "row", "loans", "31", *pipeline)
    library.change("SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE active")
    epochs = {
        name: DeltaTable(str(library.shell.folder / "lake" / "control" / name / "streams"))
        for name in ("library", "shelf")
    }
    assert {name: sorted(table.to_pyarrow_table()["epoch"].to_pylist()) for name, table in epochs.items()} == {
        "library": [1, 2],
        "shelf": [1],
    }
