"""The command line as people and programs meet it: no terminal, no colour, 60 columns; the demo that `init demo` writes.

What ends a process, or is told by one that begins, is looked at in real ones; everything else in this process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cdc_lake.cli.project_template import pipeline_name, scaffold, templates
from cdc_lake.config.loader import load_project
from cdc_lake.config.model import SilverTable
from tests.shell import QuickShell, Said

HEAVY = (
    "pyspark",
    "pandas",
    "great_expectations",
    "pyarrow",
    "deltalake",
    "pyiceberg",
    "psycopg",
    "numpy",
    "structlog",
)
GOOD = """\
version: 1
pipeline: shop
source: {type: postgres, host: 127.0.0.1, port: 1, database: d, user: u, tables: ["public.*"]}
"""


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "CDC_LAKE", "FORCE_COLOR"))}
    return {**kept, "COLUMNS": "60"}


def program(folder: Path, *arguments: str) -> Said:
    done = subprocess.run(
        [sys.executable, "-m", "cdc_lake.cli.app", *arguments],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    return Said(done.returncode, done.stdout, done.stderr)


def cdc_lake(folder: Path, *arguments: str, **more: str) -> Said:
    return QuickShell(folder, {"COLUMNS": "60", **more})(*arguments)


@pytest.fixture
def project(tmp_path):
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "shop.yaml").write_text(GOOD)
    return tmp_path


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["schema"], ["explain", "CFG104"]])
def test_light_commands_import_nothing_heavy(arguments):
    code = f"""
import sys
from cdc_lake.cli.app import app
from cdc_lake.cli.process import run_command
assert run_command(app, {arguments!r}) == 0
loaded = [m for m in {HEAVY!r} if m in sys.modules]
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_imports_nothing():
    code = (
        "import sys, cdc_lake; assert not [m for m in sys.modules if m.startswith('cdc_lake.')]; print(dir(cdc_lake))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "Pipeline" in done.stdout


@pytest.mark.parametrize(
    ("former", "name"),
    [
        ("held list", "quarantine list"),
        ("cuts promise x", "cuts pin x"),
        ("inspect parked", "inspect prepared"),
        ("cuts list --promised", "cuts list --pinned"),
    ],
)
def test_commands_of_0_3_work_under_their_names_and_say_the_new_one(project: Path, former: str, name: str) -> None:
    now, before = (cdc_lake(project, *words.split()) for words in (name, former))
    assert (before.code, before.out) == (now.code, now.out)
    word, new = next(pair for pair in zip(former.split(), name.split(), strict=True) if pair[0] != pair[1])
    warning, *others = before.err.splitlines()
    assert warning == f"warning: `{word}` is now called `{new}`; 0.5 will not know `{word}`"
    assert others == now.err.splitlines()
    assert f"\n  {word} " not in cdc_lake(project, *former.split()[:1], "--help").out + cdc_lake(project, "--help").out


# ── validate ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_validate_says_what_is_valid(project):
    done = program(project, "validate")
    assert (done.code, done.out, done.err) == (0, "valid: pipelines/shop.yaml\n", "")


def test_validate_tells_every_problem_with_its_place(project):
    (project / "pipelines" / "shop.yaml").write_text(
        GOOD.replace("user: u", "usr: u") + "silver:\n  tables:\n    - {from: public.a, catalgo: x}\n"
    )
    done = cdc_lake(project, "validate")
    assert done.code == 3
    assert done.out == "3 problems in pipelines/shop.yaml\n"
    assert (
        done.err
        == """\
error[CFG106]: `user` is missing in `source`
  in pipelines/shop.yaml:3:9  (source.user)

hint: add `user: …`: Role with the REPLICATION attribute and SELECT on the tables

error[CFG104]: unknown key `usr` in `source`
  in pipelines/shop.yaml:3:65  (source.usr)

hint: did you mean `user`?

error[CFG104]: unknown key `catalgo` in `silver.tables[0]`
  in pipelines/shop.yaml:6:24  (silver.tables[0].catalgo)

hint: known keys: KEYS
""".replace("KEYS", ", ".join(info.alias or name for name, info in SilverTable.model_fields.items()))
    )


def test_validate_as_json(project):
    (project / "pipelines" / "shop.yaml").write_text(GOOD + "lake: {pth: x}\n")
    done = cdc_lake(project, "--json", "validate")
    assert (done.code, done.err) == (3, "")
    assert json.loads(done.out) == {
        "schema": "cdc-lake/validate/1",
        "valid": False,
        "files": ["pipelines/shop.yaml"],
        "diagnostics": [
            {
                "severity": "error",
                "code": "CFG104",
                "summary": "unknown key `pth` in `lake`",
                "location": {"file": "pipelines/shop.yaml", "line": 4, "column": 8, "path": "lake.pth"},
                "hint": "did you mean `path`?",
            }
        ],
    }


# ── errors and exit codes ────────────────────────────────────────────────────────────────────────────────────


def test_a_broken_file_ends_a_command_with_3(project):
    (project / "pipelines" / "shop.yaml").write_text("")
    done = program(project, "status")
    assert (done.code, done.out) == (3, "")
    assert (
        done.err
        == """\
error[CFG109]: the file is empty
  in pipelines/shop.yaml:1:1

hint: `cdc-lake init postgres DIR` writes a pipeline file to start from
"""
    )


def test_an_error_as_json_is_a_document_on_stdout(project):
    done = cdc_lake(project, "status", "--json", "-p", "nowhere.yaml")
    body = json.loads(done.out)
    assert (done.code, body["schema"], body["code"], body["exit_code"]) == (3, "cdc-lake/error/1", "CFG101", 3)
    assert [d["code"] for d in body["diagnostics"]] == ["CFG102"]


def test_a_server_that_is_down_ends_with_4(project):
    done = cdc_lake(project, "plan")
    assert done.code == 4
    assert done.err.startswith("error[SRC201]: ")
    assert "Traceback" not in done.err


def test_status_works_while_the_source_is_down(project):
    done = cdc_lake(project, "status")
    assert done.code == 0
    assert "not reachable" in done.out
    assert json.loads(cdc_lake(project, "status", "--json").out)["reachable"] is False


@pytest.mark.parametrize(
    "arguments",
    [
        ["rnu"],
        ["run", "--onec"],
        ["run", "--only", "both"],
        ["check", "--only", "apply"],
        ["run", "--only", "receive", "--allow", "x"],
        ["explain"],
        ["init"],
        ["status", "--every", "x"],
    ],
)
def test_a_wrong_command_line_ends_with_2(arguments, project):
    done = cdc_lake(project, *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert "--help` shows its options" in done.err
    assert "Traceback" not in done.err


def test_no_arguments_show_the_help(tmp_path):
    done = cdc_lake(tmp_path)
    assert done.code == 2
    assert done.err.startswith("Usage: cdc-lake")


def test_no_pipeline_says_what_to_do(tmp_path):
    done = cdc_lake(tmp_path, "status")
    assert done.code == 2
    assert done.err.startswith("error[CFG140]: no pipeline file in ")


def test_several_pipelines_are_listed(project):
    (project / "pipelines" / "two.yaml").write_text(GOOD)
    done = cdc_lake(project, "status")
    assert done.code == 2
    assert (
        done.err
        == """\
error[CFG140]: this project has 2 pipelines:
  pipelines/shop.yaml
  pipelines/two.yaml

hint: name one: `--pipeline pipelines/shop.yaml`
"""
    )


def test_a_file_beside_others_is_found_by_its_key(tmp_path):
    (tmp_path / "flow.yaml").write_text(GOOD)
    (tmp_path / "other.yaml").write_text("a: 1\n")
    assert cdc_lake(tmp_path, "validate").out == "valid: flow.yaml\n"


BUG = "import cdc_lake.cli.text as p\ndef page(code): raise ZeroDivisionError(code)\np.page = page\n"


def test_a_bug_ends_with_70_and_shows_no_traceback_without_debug(tmp_path):
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        code = f"{BUG}import sys\nsys.argv = ['cdc-lake', *{arguments!r}]\nfrom cdc_lake.cli.app import main\nmain()"
        return subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
        )

    done = run("explain", "CFG104")
    assert (done.returncode, done.stdout) == (70, "")
    assert "a bug in cdc-lake (ZeroDivisionError)" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in run("--debug", "explain", "CFG104").stderr
    assert json.loads(run("explain", "CFG104", "--json").stdout)["exit_code"] == 70


def test_a_reader_that_goes_away_is_not_a_bug(tmp_path):
    command = f"{sys.executable} -m cdc_lake.cli.app schema | true"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


def test_ctrl_c_ends_with_130(project):
    child = subprocess.Popen(
        [sys.executable, "-u", "-m", "cdc_lake.cli.app", "status", "--watch", "--every", "60"],
        cwd=project, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    try:
        assert "shop  silver is empty  source not reachable  no tables" in child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=120)
    finally:
        child.kill()
    assert child.returncode == 130
    assert "interrupted: state is as the last commit left it" in said
    assert "Traceback" not in said


# ── completion ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("cdc-lake pa", ["pause"]),
        ("cdc-lake cuts ", ["list", "show", "pin"]),
        ("cdc-lake run --on", ["--once", "--only"]),
    ],
)
def test_a_shell_completes_verbs_and_options(tmp_path, typed, offered):
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1)}
    code = "from cdc_lake.cli.app import app; app(prog_name='cdc-lake')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**environment(), "_CDC_LAKE_COMPLETE": "complete_bash", **words},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert sorted(done.stdout.split()) == sorted(offered)


# ── explain, schema, show-config ─────────────────────────────────────────────────────────────────────────────


def test_explain_prints_the_page(tmp_path):
    done = cdc_lake(tmp_path, "explain", "cfg104")
    assert done.code == 0
    assert done.out.startswith("# CFG104: unknown key\n\n## What happened\n")
    body = json.loads(cdc_lake(tmp_path, "explain", "CFG104", "--json").out)
    assert (body["schema"], body["code"], body["page"]) == ("cdc-lake/explain/1", "CFG104", done.out)


def test_explain_of_an_unknown_code_suggests_one(tmp_path):
    done = cdc_lake(tmp_path, "explain", "CFG1O4")
    assert done.code == 2
    assert done.err.startswith("error[CFG143]: there is no code `CFG1O4`\n\nhint: did you mean CFG1")


def test_schema_is_the_reference_page(tmp_path):
    reference = Path(__file__).parents[2] / "docs" / "reference" / "pipeline.schema.json"
    assert cdc_lake(tmp_path, "schema").out == reference.read_text()


def test_show_config_needs_no_connection_and_masks_secrets(project):
    (project / "pipelines" / "shop.yaml").write_text(GOOD.replace("user: u", 'user: u, password: "${env:SHOP_PW}"'))
    done = cdc_lake(project, "plan", "--show-config", SHOP_PW="hunter2")
    assert done.code == 0
    assert "hunter2" not in done.out + done.err
    rows = [line.split() for line in done.out.splitlines()]
    assert ["source.password", "••••••", "pipelines/shop.yaml:3", "through", "env:SHOP_PW"] in rows
    assert ["bronze.batch.max_bytes", "32", "MiB", "default"] in rows


# ── init ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_init_says_what_it_wrote_and_what_comes_next(tmp_path):
    done = cdc_lake(tmp_path, "init", "postgres", "my-shop")
    assert (done.code, done.err) == (0, "")
    assert (
        done.out
        == """\
created a postgres project in my-shop

  README.md
  conf/dev.yaml
  conf/prod.yaml
  .gitignore
  pipelines/my_shop.yaml

next:
  cd my-shop
  cdc-lake validate
  cdc-lake check
  cdc-lake run --once
"""
    )


def test_init_as_json(tmp_path):
    body = json.loads(cdc_lake(tmp_path, "init", "empty", "a", "--json").out)
    assert (body["schema"], body["template"], body["folder"]) == ("cdc-lake/init/1", "empty", "a")
    assert "pipelines/a.yaml" in body["files"]


@pytest.mark.parametrize("template", templates())
def test_every_fresh_template_is_valid(template, tmp_path, monkeypatch):
    for name in ("SOURCE_PASSWORD", "BUCKET", "STORE_ACCESS_KEY_ID", "STORE_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "left-by-the-template-for-databricks-to-its-environment")
    scaffold(template, tmp_path / "shop")
    if template == "demo":  # the demo's server, once started, says where it is
        (tmp_path / "shop" / ".demo").mkdir()
        (tmp_path / "shop" / ".demo" / "port").write_text("5432")
        (tmp_path / "shop" / ".demo" / "password").write_text("secret")
    for arguments in ([], ["--env", "dev"]):
        if arguments and not (tmp_path / "shop" / "conf" / "dev.yaml").exists():
            continue
        done = cdc_lake(tmp_path / "shop", "validate", *arguments)
        assert done.code == 0, done.err


def test_init_refuses_a_folder_that_holds_something(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    done = cdc_lake(tmp_path, "init", "empty", "full")
    assert done.code == 2
    assert done.err.startswith("error[CFG141]: the folder `full` is not empty\n\nhint: ")
    assert cdc_lake(tmp_path, "init", "empty", "full", "--force").code == 0
    assert (tmp_path / "full" / "mine.txt").read_text() == "x"


def test_init_of_an_unknown_template_names_those_there_are(tmp_path):
    done = cdc_lake(tmp_path, "init", "postgre", "a")
    assert done.code == 2
    assert "did you mean `postgres`?" in done.err
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("folder", "name"), [("My Shop", "my_shop"), ("2024", "p_2024"), ("ä", "p"), ("a" * 80, "a" * 63), ("x--y", "x_y")]
)
def test_a_folder_gives_a_pipeline_its_name(folder, name):
    assert pipeline_name(Path(folder)) == name


@pytest.mark.parametrize(
    ("file", "code"),
    [("lake", "LAK423"), ("lake/control", "LAK423"), ("lake/bronze", "LAK420"), ("lake/bronze/shop", "LAK420")],
)
@pytest.mark.parametrize("verb", [["run", "--once"], ["status"], ["check"]])
def test_a_file_where_the_lake_has_a_folder_is_named(project: Path, file: str, code: str, verb: list[str]) -> None:
    place = project / file
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("mine")
    said = cdc_lake(project, *verb)
    assert f"error[{code}]" in said.err.replace("\n", "")
    assert "move it away" in " ".join(said.err.split())
    assert place.read_text() == "mine"
    place.rename(place.with_suffix(".away"))
    assert f"error[{code}]" not in cdc_lake(project, *verb).err


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["shop.yaml", "shop_workload.py"])
def test_template_is_the_repositorys_own_file(name: str) -> None:
    template = ROOT / "cdc_lake" / "cli" / "templates" / "demo" / "pipelines" / name
    assert template.read_text() == (ROOT / "pipelines" / name).read_text()


def test_dev_is_laid_over_the_shop(tmp_path: Path) -> None:
    for name in ("pipelines/shop.yaml", "conf/dev.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / ".demo").mkdir()
    (tmp_path / ".demo" / "port").write_text("5432")
    (tmp_path / ".demo" / "password").write_text("secret")
    plain = load_project(tmp_path / "pipelines" / "shop.yaml")
    dev = load_project(tmp_path / "pipelines" / "shop.yaml", environment="dev")
    assert (plain.lake.name, plain.pipeline.bronze.durability) == ("lake", "fsync")
    assert (dev.lake.name, dev.pipeline.bronze.durability) == ("lake-dev", "os")
