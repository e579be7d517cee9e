"""A bundle's jobs without a workspace: the wheel, an environment of its own, and its entry points called as there.

What Databricks does is done here in a few lines: variables and secrets are put into the environment of a cluster, the
entry point is looked up in the wheel's metadata and called with the named parameters on the command line. The lake's
folder has no hard links, as volumes have none; bronze and the control tables are in a store that speaks S3.
"""

from __future__ import annotations

import os
import re
import shlex
import site
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdc_lake.api import Pipeline
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.control.streams import is_complete
from cdc_lake.deploy.databricks_bundle import variable
from cdc_lake.tables.control_tables import control_tables
from cdc_lake_testing.object_store import LocalStore
from tests.bronze_replay import landed_position
from tests.conftest import Database

ROOT = Path(__file__).parents[2]
PATIENCE = 240.0

WITHOUT_LINKS = """
import ctypes, errno, os, tempfile

class Step(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("k", ctypes.c_uint)]

class Filter(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("steps", ctypes.POINTER(Step))]

calls = {"x86_64": (86, 265), "aarch64": (37,)}[os.uname().machine]  # link, linkat
steps = [Step(0x20, 0, 0, 0), *(Step(0x15, len(calls) - i, 0, n) for i, n in enumerate(calls))]
steps += [Step(0x06, 0, 0, 0x7FFF0000), Step(0x06, 0, 0, 0x00050000 | errno.ENOSYS)]  # allowed; not implemented
given = Filter(len(steps), (Step * len(steps))(*steps))
prctl = ctypes.CDLL(None, use_errno=True).prctl
assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, ctypes.byref(given), 0, 0) == 0, ctypes.get_errno()
with tempfile.NamedTemporaryFile() as file:
    try:
        os.link(file.name, file.name + ".link")
    except OSError as refused:
        assert refused.errno == errno.ENOSYS
    else:
        raise AssertionError("links can be made")
"""
"""The kernel knows no hard links for this process and those it starts (seccomp(2)), as on a volume that is mounted."""

CALL = """
import importlib.metadata, sys
import cdc_lake
assert "site-packages" in cdc_lake.__file__, cdc_lake.__file__
package, name, *sys.argv[1:] = sys.argv[1:]
[entry] = [e for e in importlib.metadata.distribution(package).entry_points if e.name == name]
assert entry.load()() is None
"""
"""As a wheel task is run: the entry point by its name, whatever its group."""

RUNTIME = """
import shlex, sys
from pyspark.sql import SparkSession
from cdc_lake.tables.spark_session import EXCLUDES, PACKAGES
spark = (
    SparkSession.builder.appName("runtime").master("local[2]")
    .config("spark.jars.packages", ",".join(PACKAGES)).config("spark.jars.excludes", ",".join(EXCLUDES))
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.ui.enabled", "false").getOrCreate()
)
calls = [shlex.split(line) for line in sys.argv[1:]]
for sys.argv in (["job", *call] for call in calls):
    exec(CALL)
    assert spark.sparkContext.appName == SparkSession.builder.getOrCreate().sparkContext.appName == "runtime"
"""
"""Several jobs after one another, in a session of Spark that already exists; Delta is all it has."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel, and beside it what the wheel needs."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    made = subprocess.run(build, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"the wheel could not be built, its build system is not at hand: {made.stderr[-300:]}")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    into = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*into, *map(str, folder.glob("*.whl"))], check=True)
    packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
    assert not [file for file in (packages / "cdc_lake").rglob("*") if "testing" in file.parts]
    assert not (packages / "cdc_lake_testing").exists()
    (packages / "beside.pth").write_text("\n".join(site.getsitepackages()))
    return python


@dataclass(frozen=True)
class Workspace:
    """A deployed bundle: jobs, and the values of its variables and secrets."""

    python: Path
    files: Path
    bundle: dict[str, Any]
    values: dict[str, str]
    secrets: dict[str, str]

    def resolved(self, text: str) -> str:
        variables = self.bundle["variables"]
        given = self.bundle["targets"]["prod"].get("variables", {}) | self.values

        def value(found: re.Match[str]) -> str:
            name = found[1]
            if name.startswith("var."):
                name = name.removeprefix("var.")
                return str(given[name] if name in given else variables[name]["default"])
            return {"workspace.file_path": str(self.files), "bundle.target": "prod"}[name]

        text = re.sub(r"\$\{([\w.]+)\}", value, text)
        return re.sub(r"\{\{secrets/([^}]+)\}\}", lambda m: self.secrets[m[1]], text)

    def task(self, what: str) -> dict[str, Any]:
        return self.bundle["resources"]["jobs"][f"shop_{what}"]["tasks"][0]["python_wheel_task"]

    def call(self, what: str) -> list[str]:
        task = self.task(what)
        named = [f"--{key}={self.resolved(value)}" for key, value in task["named_parameters"].items()]
        return [task["package_name"], task["entry_point"], *named]

    def environment(self, what: str) -> dict[str, str]:
        job = self.bundle["resources"]["jobs"][f"shop_{what}"]
        cluster = job["job_clusters"][0]["new_cluster"]["spark_env_vars"]
        mine = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "PYTHON"))}
        return {**mine, **{key: self.resolved(value) for key, value in cluster.items()}}

    def start(self, what: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.python, "-c", WITHOUT_LINKS + CALL, *self.call(what)],
            env=self.environment(what),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture(scope="module")
def store() -> Iterator[LocalStore]:
    with LocalStore() as running:
        yield running


@pytest.fixture
def workspace(installed: Path, database: Database, tmp_path: Path, store: LocalStore) -> Workspace:
    """The template's project with a lake on this machine and a store, its bundle as the installed command writes it."""
    with database.connect() as db:
        db.execute("CREATE TABLE orders (id int PRIMARY KEY, amount numeric(10,2))")
        db.execute("INSERT INTO orders SELECT g, g FROM generate_series(1, 100) AS g")
    command = [installed, "-m", "cdc_lake.cli.app"]
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "PYTHON"))}
    project = tmp_path / "shop"
    subprocess.run([*command, "init", "databricks", str(project)], env=plain, check=True, capture_output=True)
    file = project / "pipelines" / "shop.yaml"
    text = file.read_text().replace("{mode: require}", "{mode: prefer}")
    file.write_text(text.replace("${env:SOURCE_USER:-cdc}", "${secret:ops/user}"))
    conf = project / "conf" / "prod.yaml"
    conf.write_text(
        re.sub(r"path: /.*", f"path: {tmp_path}/${{env:CATALOG:-main}}/lake", conf.read_text())
        .replace("{name: shop}", f"{{name: {database.name}}}")
        .replace("storage:", f"storage:\n    endpoint: {store.endpoint}\n    allow_http: true")
    )
    bundle = [*command, "bundle", str(file), "--schedule", "0 0/5 * * * ?"]
    subprocess.run(bundle, env=plain, check=True, capture_output=True)
    return Workspace(
        python=installed,
        files=project,
        bundle=yaml.safe_load((project / "deploy" / "databricks.yml").read_text()),
        values={
            "source_host": database.host,
            "source_port": str(database.port),
            "source_database": database.name,
            "bucket": store.bucket(database.name.replace("_", "-")),
        },
        secrets={
            "shop/SOURCE_PASSWORD": database.password,
            "shop/STORE_ACCESS_KEY_ID": "kit",
            "shop/STORE_SECRET_ACCESS_KEY": "kit-secret",
            "ops/user": database.user,
        },
    )


def loaded(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The pipeline as its jobs load it."""
    for key, value in workspace.environment("receive").items():
        monkeypatch.setenv(key, value)
    secrets = {("ops", "user"): os.environ[variable("ops", "user")]}
    file = workspace.files / "pipelines" / "shop.yaml"
    return Pipeline.load(file, environment="prod", secrets=lambda scope, key: secrets[scope, key]).project


def received(workspace: Workspace, project: Project, database: Database) -> None:
    """The job that receives, with its own parameters: it has no end, so it is cancelled as Databricks cancels it."""
    receiver = workspace.start("receive")
    try:
        wait(lambda: copied(project), receiver)
        landed = landed_position(project)
        with database.connect() as db:
            db.execute("UPDATE orders SET amount = 0 WHERE id = 1")
        wait(lambda: landed_position(project) > landed, receiver)
    finally:
        receiver.kill()
        receiver.communicate()


def copied(project: Project) -> bool:
    return is_complete(bronze_reader(project).state(), control_tables(project))


def wait(reached: Any, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + PATIENCE
    while not reached():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.live
def test_the_wheels_receiver_runs_as_its_bundle_says(
    workspace: Workspace, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = loaded(workspace, monkeypatch)
    received(workspace, project, database)
    assert Pipeline(project).bronze().transactions().num_rows >= 1
    files = [f for f in project.lake.rglob("*") if f.is_file()]
    assert not any(database.password.encode() in f.read_bytes() for f in files)
    assert not any(f.suffix == ".parquet" for f in files), "bronze and control tables are in the store"


@pytest.mark.live
def test_a_job_that_fails_ends_with_code_and_remedy_and_an_exit_code(workspace: Workspace, database: Database) -> None:
    workspace.secrets["shop/SOURCE_PASSWORD"] = "wrong horse"
    job = workspace.start("receive")
    said = job.communicate(timeout=PATIENCE)[0]
    assert job.returncode == 1
    assert "error[SRC202]" in said
    assert "`source.password`" in said
    assert "wrong horse" not in said


@pytest.mark.live
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("jars")
def test_all_four_jobs_of_the_wheel_run_in_a_runtimes_own_spark(
    workspace: Workspace, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = loaded(workspace, monkeypatch)
    received(workspace, project, database)
    calls = [shlex.join(workspace.call(what)) for what in ("apply", "report", "maintain", "apply")]
    done = subprocess.run(
        [workspace.python, "-c", f"{WITHOUT_LINKS}\nCALL = {CALL!r}\n{RUNTIME}", *calls],
        env=workspace.environment("apply"),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = {row["id"]: row["amount"] for row in Pipeline(project).read("public.orders").to_pylist()}
    assert len(rows) == 100
    assert (rows[1], rows[100]) == (0, 100)
    assert (project.reports / "report.html").is_file()
