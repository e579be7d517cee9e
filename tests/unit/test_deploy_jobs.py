"""Entry points of jobs without Spark: parameters, secrets, what a folder and a runtime must have, how they fail."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.deploy import databricks_jobs
from cdc_lake.deploy.databricks_bundle import ENTRY_POINTS, PREFIX, from_cluster, variable
from cdc_lake.deploy.databricks_jobs import require_folder, require_seen
from cdc_lake.errors import JobParametersWrong, LakeFolderUnfit, RuntimeUnfit, ServerlessCompute

# ── parameters ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_parameters_are_those_that_databricks_passes() -> None:
    given = databricks_jobs.parameters("apply", ["--pipeline=/w/a=b.yaml", "--environment=prod", "--once=true"])
    assert given == {"pipeline": "/w/a=b.yaml", "environment": "prod", "once": "true"}
    assert databricks_jobs.parameters("apply", ["pipeline=/w/a=b.yaml", "environment=prod", "once=true"]) == given


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("apply", []),
        ("apply", ["--pipeline="]),
        ("apply", ["--pipeline", "a.yaml"]),
        ("apply", ["--pipeline=a.yaml", "true"]),
        ("apply", ["--pipeline=a.yaml", "--pipeline=b.yaml"]),
        ("apply", ["--pipeline=a.yaml", "--once=yes"]),
        ("report", ["--pipeline=a.yaml", "--once=true"]),
    ],
)
def test_other_parameters_are_refused(name: str, arguments: list[str]) -> None:
    with pytest.raises(JobParametersWrong):
        databricks_jobs.parameters(name, arguments)


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_an_entry_point_fails_by_raising_and_says_code_and_remedy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--pipelin=a.yaml"])
    with pytest.raises(JobParametersWrong) as failed:
        getattr(databricks_jobs, name)()
    assert failed.value.__notes__[0] == "error[DEP712]"
    assert "--pipeline=FILE" in failed.value.__notes__[-1]


def test_an_entry_point_leaves_how_exceptions_are_shown_alone() -> None:
    code = (
        "import sys\nbefore = sys.excepthook\nfrom cdc_lake.deploy import databricks_jobs as jobs\nsys.argv = ['apply']\n"
        "try:\n    jobs.apply()\nexcept Exception:\n    pass\nassert sys.excepthook is before\n"
        "assert 'pyspark' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ── secrets ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_secret_of_a_scope_comes_by_a_variable_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = [("ops", "slot-name"), ("ops", "slot_name"), ("ops/slot", "name"), ("ops", "slotname")]
    names = [variable(*secret) for secret in secrets]
    assert len(set(names)) == len(secrets)
    assert all(name.isascii() and name.replace("_", "").isalnum() and name.startswith(PREFIX) for name in names)
    monkeypatch.setenv(names[0], "s1")
    assert from_cluster("ops", "slot-name") == "s1"
    with pytest.raises(JobParametersWrong, match="`ops/slot_name`"):
        from_cluster("ops", "slot_name")


# ── the folder ───────────────────────────────────────────────────────────────────────────────────────────────────


def project_at(folder: Path, **sections: object) -> Project:
    """A pipeline with its lake there."""
    source = {"type": "postgres", "host": "h", "database": "d", "user": "u", "tables": ["public.*"]}
    values = {"version": 1, "pipeline": "shop", "source": source, "lake": {"path": str(folder)}, **sections}
    return Project(Pipeline.model_validate(values), folder / "shop.yaml", Path("/"))


def without_links(*_: object) -> None:
    """As volumes are mounted."""
    raise OSError(errno.ENOSYS, "Function not implemented")


def test_a_folder_on_a_disk_is_fit_and_stays_empty(tmp_path: Path) -> None:
    require_folder(project_at(tmp_path / "lake"))
    assert list((tmp_path / "lake").iterdir()) == []


def test_a_folder_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", without_links)
    with pytest.raises(LakeFolderUnfit, match="Function not implemented") as refused:
        require_folder(project_at(tmp_path))
    assert refused.value.where == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_hard_links_is_fit_where_bronze_and_control_tables_are_in_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", without_links)
    lake = {"path": str(tmp_path), "control": "s3://lake/control"}
    require_folder(project_at(tmp_path, lake=lake, bronze={"path": "s3://lake/bronze"}))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(LakeFolderUnfit, match="Function not implemented"):
        require_folder(project_at(tmp_path, lake=lake))


def test_a_folder_where_a_link_overwrites_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", shutil.copyfile)
    with pytest.raises(LakeFolderUnfit, match="replaced the first one"):
        require_folder(project_at(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LakeFolderUnfit, match="cannot be created"):
        require_folder(project_at(tmp_path / "file" / "lake"))


# ── the runtime ──────────────────────────────────────────────────────────────────────────────────────────────────


class Session:
    """As much of a session as is looked at."""

    def __init__(self, version: str) -> None:
        self.version = version


class Connected(Session):
    __module__ = "pyspark.sql.connect.session"


def test_a_runtime_of_another_spark_is_refused() -> None:
    databricks_jobs.require_runtime(Session("4.1.0"))
    for version in ("4.0.1", "3.5.2", "4.10.0"):
        with pytest.raises(RuntimeUnfit, match=version):
            databricks_jobs.require_runtime(Session(version))


def test_a_session_of_spark_connect_is_refused() -> None:
    with pytest.raises(ServerlessCompute, match="Spark Connect"):
        databricks_jobs.require_runtime(Connected("4.1.0"))


def test_a_folder_that_spark_does_not_see_is_refused(tmp_path: Path) -> None:
    class Elsewhere:
        read = None

    with pytest.raises(LakeFolderUnfit, match="does not see"):
        require_seen(Elsewhere(), tmp_path)
    assert list(tmp_path.iterdir()) == []
