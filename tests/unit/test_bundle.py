"""The bundle of a pipeline: what is written, what is refused, and that every mistake in it is found without a workspace.

Layers: a golden file, a round trip through Databricks' own classes, our own check with planted mistakes.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import yaml
from databricks.bundles.jobs import (
    ClusterSpec,
    Continuous,
    CronSchedule,
    Job,
    JobCluster,
    Library,
    PythonWheelTask,
    Task,
)
from pydantic import BaseModel, SecretStr

from cdc_lake.cli.project_template import scaffold
from cdc_lake.config.effective import read_deployment
from cdc_lake.config.model import Pipeline
from cdc_lake.config.secrets import CATALOG, PATHS, is_secret
from cdc_lake.deploy import databricks_checks
from cdc_lake.deploy.databricks_bundle import ENTRY_POINTS, GROUP, BundleParts, Extras, build, in_wheel
from cdc_lake.deploy.databricks_checks import BundleInvalid, Known, Names, check_bundle, require_valid
from cdc_lake.deploy.databricks_yaml import check_file, write_bundle
from cdc_lake.errors import BundleNotWritten, NotDeployable
from cdc_lake.model.diagnostic import ConfigInvalid, Severity
from tests.shell import QuickShell

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "data" / "databricks.yml"
EXTRAS = Extras({"psycopg": "3.3.9", "great-expectations": "1.24.1", "pandas": "2.3.3"})
Plain = dict[str, Any]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """The pipeline file of a fresh project."""
    scaffold("databricks", tmp_path / "shop")
    return tmp_path / "shop" / "pipelines" / "shop.yaml"


def built(file: Path, **parts: Any) -> Plain:
    read = {target: read_deployment(file, target) for target in ("dev", "prod")}
    return build(read, BundleParts(**{"version": "1.2.3", "extras": EXTRAS, "upward": "../", **parts}))


def replaced(file: Path, old: str, new: str) -> Path:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    return file


# ── what is written ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_bundle_of_the_template_is_the_golden_file(shop: Path) -> None:
    text = yaml.safe_dump(built(shop, schedule="0 0/5 * * * ?"), sort_keys=False, allow_unicode=True, width=110)
    assert text == GOLDEN.read_text(), f"where the change is meant, write it to {GOLDEN.relative_to(ROOT)}"


@pytest.mark.parametrize("schedule", [None, "0 0/5 * * * ?"])
def test_every_job_goes_through_databricks_own_classes_unchanged(shop: Path, schedule: str | None) -> None:
    jobs = built(shop, schedule=schedule)["resources"]["jobs"]
    assert list(jobs) == ["shop_receive", "shop_apply", "shop_report", "shop_maintain"]
    for job in jobs.values():
        assert Job.from_dict(job).as_dict() == job


@pytest.mark.parametrize(
    ("known", "kind"),
    [
        (databricks_checks.JOB, Job),
        (databricks_checks.TASK, Task),
        (databricks_checks.CLUSTER, ClusterSpec),
        (databricks_checks.LIBRARY, Library),
        (databricks_checks.WHEEL_TASK, PythonWheelTask),
        (databricks_checks.JOB_CLUSTER, JobCluster),
        (databricks_checks.SCHEDULE, CronSchedule),
        (databricks_checks.CONTINUOUS, Continuous),
    ],
)
def test_the_keys_that_are_known_are_those_of_databricks(known: frozenset[str], kind: type) -> None:
    assert known == {f.name for f in dataclasses.fields(kind)}


def test_receive_owns_the_slot_and_apply_runs_on_or_by_a_schedule(shop: Path) -> None:
    for schedule in (None, "0 0/5 * * * ?"):
        jobs = built(shop, schedule=schedule)["resources"]["jobs"]
        assert jobs["shop_receive"]["continuous"] == {"pause_status": "UNPAUSED"}
        assert all(job["max_concurrent_runs"] == 1 for job in jobs.values())
        apply = jobs["shop_apply"]
        assert ("continuous" in apply, "schedule" in apply) == (schedule is None, schedule is not None)
        once = apply["tasks"][0]["python_wheel_task"]["named_parameters"].get("once")
        assert once == (None if schedule is None else "true")
        for job in jobs.values():
            assert "environment_key" not in job["tasks"][0]
            assert job["job_clusters"][0]["new_cluster"]["num_workers"] == 0


def test_secrets_are_named_and_other_values_are_variables(shop: Path) -> None:
    replaced(shop, "${env:SOURCE_USER:-cdc}", "${env:SOURCE_USER}")
    replaced(shop, "tables:", "slot: {name: '${secret:ops/slot-name}'}\n  tables:")
    bundle = built(shop)
    environment = bundle["resources"]["jobs"]["shop_apply"]["job_clusters"][0]["new_cluster"]["spark_env_vars"]
    assert environment["SOURCE_PASSWORD"] == "{{secrets/${var.secret_scope}/SOURCE_PASSWORD}}"
    assert environment["SOURCE_USER"] == "${var.source_user}"
    assert environment["CATALOG"] == "${var.catalog}"
    assert "default" not in bundle["variables"]["source_user"], "it must be given"
    assert bundle["variables"]["source_host"]["default"] == "", "the file's own default holds"
    assert bundle["targets"]["dev"]["variables"] == {"secret_scope": "shop_dev"}


def test_the_same_files_give_the_same_bundle_whatever_the_environment_has(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = built(shop)
    for name in ("SOURCE_HOST", "SOURCE_PASSWORD", "CATALOG"):
        monkeypatch.setenv(name, "a value that must not leave this machine")
    assert built(shop) == before


def test_a_source_of_the_gaussdb_family_needs_no_driver(shop: Path) -> None:
    shop.write_text(
        "version: 1\npipeline: shop\nsource:\n  type: opengauss\n  host: h\n  port: 5432\n  database: d\n  user: u\n"
        "  password: ${env:P}\n  tables: ['public.*']\n"
    )
    for target in ("dev", "prod"):
        (shop.parents[1] / "conf" / f"{target}.yaml").write_text("lake: {path: /Volumes/main/shop/lake}\n")
    libraries = built(shop)["resources"]["jobs"]["shop_receive"]["tasks"][0]["libraries"]
    assert libraries == [{"whl": "dist/cdc_lake-1.2.3-py3-none-any.whl"}]


# ── what is not deployed ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("file", "old", "new", "said", "place"),
    [
        ("conf/prod.yaml", "/Volumes/${env:CATALOG:-main}/", "lake/", "relative", "conf/prod.yaml:7:9"),
        ("conf/dev.yaml", "/${env:SCHEMA:-shop_dev}/lake", "", "names no volume", "conf/dev.yaml:7:9"),
        ("pipelines/shop.yaml", "format: delta", "format: iceberg", "not deployed", "pipelines/shop.yaml:18:22"),
        ("pipelines/shop.yaml", "${env:SOURCE_PASSWORD}", "hunter2", "plain text", "pipelines/shop.yaml:12:13"),
        ("pipelines/shop.yaml", "${env:SOURCE_PASSWORD}", "${file:conf/p}", "in a file", "pipelines/shop.yaml:12:13"),
        ("pipelines/shop.yaml", "require}", "require, root_cert: ca.pem}", "not uploaded", "pipelines/shop.yaml:13"),
        ("pipelines/shop.yaml", "require}", "require, key: conf/k}", "private key", "pipelines/shop.yaml:13"),
        ("pipelines/shop.yaml", "SOURCE_USER", "Catalog", "variable `catalog`", "pipelines/shop.yaml:11"),
        ("conf/dev.yaml", "lake:\n", "pipeline: other\nlake:\n", "another name", "shop.yaml"),
    ],
)
def test_a_pipeline_that_cannot_be_deployed_is_refused_at_its_place(
    shop: Path, monkeypatch: pytest.MonkeyPatch, file: str, old: str, new: str, said: str, place: str
) -> None:
    monkeypatch.chdir(shop.parents[1])
    (shop.parents[1] / "conf" / "p").write_text("hunter2")
    replaced(shop.parents[1] / file, old, new)
    with pytest.raises(NotDeployable, match=re.escape(said)) as refused:
        built(shop)
    assert place in refused.value.where or said == "variable `catalog`"
    assert refused.value.remedy
    assert "hunter2" not in f"{refused.value.message}{refused.value.where}{refused.value.remedy}"


def test_a_file_that_is_wrong_anywhere_is_refused_as_by_validate(shop: Path) -> None:
    replaced(shop, "  tables:", "  tabels:")
    with pytest.raises(ConfigInvalid) as refused:
        built(shop)
    assert [d.code for d in refused.value.diagnostics] == ["CFG106", "CFG104"]


def test_a_target_without_its_environment_is_refused(shop: Path) -> None:
    (shop.parents[1] / "conf" / "prod.yaml").unlink()
    with pytest.raises(ConfigInvalid, match="environment `prod` has no file"):
        built(shop)


def test_every_secret_of_the_models_is_known_as_one() -> None:
    found = set(secret_fields(Pipeline, ""))
    assert found | {CATALOG} == {*PATHS, "lake.iceberg.properties.x"}
    assert all(map(is_secret, found))


def secret_fields(annotation: Any, path: str) -> Iterator[str]:
    if annotation is SecretStr:
        yield path
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, info in annotation.model_fields.items():
            yield from secret_fields(info.annotation, f"{path}.{info.alias or name}".lstrip("."))
    else:
        for part in get_args(annotation):
            yield from secret_fields(part, f"{path}.x" if get_origin(annotation) is dict else path)


# ── planted mistakes ─────────────────────────────────────────────────────────────────────────────────────────────


def job(bundle: Plain, what: str = "apply") -> Plain:
    return bundle["resources"]["jobs"][f"shop_{what}"]


def task(bundle: Plain, what: str = "apply") -> Plain:
    return job(bundle, what)["tasks"][0]


def cluster(bundle: Plain, what: str = "apply") -> Plain:
    return job(bundle, what)["job_clusters"][0]["new_cluster"]


PLANTED: dict[str, tuple[Callable[[Plain], Any], str, str]] = {
    # name: (the mistake, its code, words of the message)
    "dangling key": (lambda b: task(b).update(job_cluster_key="singel"), "DEP705", "`singel` is not a job cluster"),
    "dangling task": (lambda b: task(b).update(depends_on=[{"task_key": "gone"}]), "DEP705", "`gone` is not a task"),
    "no such variable": (lambda b: cluster(b).update(node_type_id="${var.nod_type}"), "DEP705", "no variable `nod_t"),
    "value of no variable": (
        lambda b: b["targets"]["prod"]["variables"].update(sceret_scope="x"),
        "DEP705",
        "no variable `sceret_scope`",
    ),
    "two computes": (lambda b: task(b).update(existing_cluster_id="0123-a"), "DEP706", "more than one compute"),
    "no compute": (lambda b: task(b).pop("job_cluster_key"), "DEP706", "no compute"),
    "serverless": (
        lambda b: (task(b).pop("job_cluster_key"), task(b).update(environment_key="default"),
                   job(b).update(environments=[{"environment_key": "default", "spec": {}}])),
        "DEP703",
        "speaks Spark Connect only",
    ),
    "plain secret": (
        lambda b: cluster(b)["spark_env_vars"].update(SOURCE_PASSWORD="hunter2"),
        "DEP707",
        "`SOURCE_PASSWORD` is the name of one",
    ),
    "secret with another name": (
        lambda b: cluster(b)["spark_env_vars"].update(WHATEVER="postgresql://u:hunter2@h/d"),
        "DEP707",
        "has the form of one",
    ),
    "secret as a variable": (
        lambda b: b["variables"].update(source_password={"default": "hunter2"}),
        "DEP707",
        "`source_password` is the name of one",
    ),
    "unknown field of a task": (lambda b: task(b).update(timeout=3), "DEP704", "a task has no key `timeout`"),
    "unknown field of a cluster": (lambda b: cluster(b).update(workers=3), "DEP704", "a cluster has no key `workers`"),
    "unknown field of a target's job": (
        lambda b: b["targets"]["prod"].update(resources={"jobs": {"shop_apply": {"tags_": {}}}}),
        "DEP704",
        "a job has no key `tags_`",
    ),
    "unknown section": (lambda b: b.update(resourcs={}), "DEP704", "a bundle has no key `resourcs`"),
    "no such entry point": (
        lambda b: task(b)["python_wheel_task"].update(entry_point="aply"),
        "DEP708",
        "no entry point `aply`",
    ),
    "no such parameter": (
        lambda b: task(b)["python_wheel_task"]["named_parameters"].update(onec="true"),
        "DEP708",
        "no parameter `onec`",
    ),
    "no pipeline": (
        lambda b: task(b)["python_wheel_task"]["named_parameters"].pop("pipeline"),
        "DEP708",
        "is given no `pipeline`",
    ),
    "an older Spark": (lambda b: b["variables"]["spark_version"].update(default="17.3.x-scala2.13"), "DEP709", "17.3"),
    "jars of another Spark": (
        lambda b: cluster(b)["spark_conf"].update({"spark.jars.packages": "io.delta:delta-spark_4.1_2.13:4.4.0"}),
        "DEP709",
        "jars of another Spark",
    ),
    "two receivers": (lambda b: job(b, "receive").update(max_concurrent_runs=2), "DEP714", "more than once at a time"),
    "a receiver that ends": (
        lambda b: job(b, "receive").update(schedule=job(b, "receive").pop("continuous") and {}),
        "DEP714",
        "is not continuous",
    ),
    "two triggers": (
        lambda b: job(b).update(trigger={"file_arrival": {"url": "/Volumes/a/b/c"}}),
        "DEP714",
        "starts in 2 ways",
    ),
}  # fmt: skip


def data_of(bundle: Plain) -> bytes:
    return yaml.safe_dump(bundle, sort_keys=False).encode()


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_found_with_its_place_and_remedy(shop: Path, name: str) -> None:
    mistake, code, words = PLANTED[name]
    known = Known(frozenset(ENTRY_POINTS), Names(frozenset({"SOURCE_PASSWORD"})))
    bundle = built(shop)
    assert check_bundle(data_of(bundle), "databricks.yml", known) == []
    mistake(bundle)
    bundle = yaml.safe_load(yaml.dump(bundle))
    data = data_of(bundle)
    with pytest.raises(BundleInvalid) as refused:
        require_valid(data, "databricks.yml", known)
    found = refused.value.diagnostics
    assert {d.code for d in found} == {code}, found
    assert words in found[0].summary
    assert found[0].hint
    assert all("hunter2" not in f"{d.summary}{d.hint}" for d in found)
    assert found[0].location is not None
    line = data.decode().splitlines()[found[0].location.line - 1]
    assert line[found[0].location.column - 1] not in {" ", ""}, "a place in the file"


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(shop: Path) -> None:
    bundle = built(shop)
    for name in ("dangling key", "plain secret", "unknown field of a task"):
        PLANTED[name][0](bundle)
    found = check_bundle(data_of(bundle), "databricks.yml", Known(frozenset(ENTRY_POINTS)))
    assert [d.code for d in found] == ["DEP705", "DEP704", "DEP707"]
    lines = [d.location.line for d in found if d.location]
    assert lines == sorted(lines)


def test_a_trigger_by_updates_of_a_table_is_warned_about(shop: Path) -> None:
    bundle = built(shop)
    job(bundle).pop("continuous")
    job(bundle)["trigger"] = {"table_update": {"table_names": ["main.bronze.shop"]}}
    found = require_valid(data_of(bundle), "databricks.yml", Known(frozenset(ENTRY_POINTS)))
    assert [(d.severity, d.code) for d in found] == [(Severity.WARNING, "DEP714")]


def test_what_others_added_beside_our_jobs_is_left_alone(shop: Path) -> None:
    bundle = built(shop)
    bundle["resources"]["jobs"]["theirs"] = {
        "tasks": [{"task_key": "a", "notebook_task": {"notebook_path": "a.py"}, "environment_key": "e"}],
        "environments": [{"environment_key": "e", "spec": {"environment_version": "4"}}],
        "email_notifications": {"on_failure": ["ops@example.com"]},
    }
    bundle["resources"]["schemas"] = {"silver": {"catalog_name": "main", "name": "silver"}}
    bundle["include"] = ["more/*.yml"]
    assert check_bundle(data_of(bundle), "databricks.yml", Known(frozenset(ENTRY_POINTS))) == []


@pytest.mark.parametrize("data", [b"", b"- a\n", b"a: &x 1\n", b"jobs: {", b"\xff\xfe"])
def test_what_is_no_bundle_is_refused(data: bytes) -> None:
    found = check_bundle(data, "databricks.yml", Known(frozenset(ENTRY_POINTS)))
    assert found
    assert not any("pipeline" in d.hint for d in found)


# ── the file and the verb ────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_that_somebody_changed_is_not_written_over(shop: Path) -> None:
    folder = shop.parents[1] / "deploy"
    write_bundle(shop, folder)
    write_bundle(shop, folder)
    assert check_file(shop, folder).jobs == ("shop_receive", "shop_apply", "shop_report", "shop_maintain")
    replaced(folder / "databricks.yml", "num_workers: 0", "num_workers: 2")
    with pytest.raises(BundleNotWritten, match="already"):
        write_bundle(shop, folder)
    assert check_file(shop, folder).written is False
    write_bundle(shop, folder, force=True)
    assert "num_workers: 2" not in (folder / "databricks.yml").read_text()


def test_the_bundle_may_be_the_project_itself_and_nowhere_outside(shop: Path, tmp_path: Path) -> None:
    write_bundle(shop, shop.parents[1])
    bundle = yaml.safe_load((shop.parents[1] / "databricks.yml").read_text())
    assert bundle["sync"]["paths"] == ["pipelines", "conf"]
    with pytest.raises(NotDeployable, match="not in the pipeline's project"):
        write_bundle(shop, tmp_path / "elsewhere")


def test_a_value_that_the_pipeline_does_not_take_for_a_secret_is_none(shop: Path) -> None:
    replaced(shop, '["public.*"]', '["public.${env:TOKEN_TABLE}"]')
    write_bundle(shop, shop.parents[1] / "deploy")
    assert "TOKEN_TABLE: ${var.token_table}" in (shop.parents[1] / "deploy" / "databricks.yml").read_text()


def test_the_wheel_that_is_there_is_looked_into(shop: Path) -> None:
    folder = shop.parents[1] / "deploy"
    found = write_bundle(shop, folder)
    assert not found.wheel_there
    wheel = folder / "dist" / Path(found.wheel).name
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("cdc_lake-0.dist-info/entry_points.txt", f"[{GROUP}]\nreceive = a:b\n")
    with pytest.raises(BundleInvalid, match="no entry point `apply`"):
        check_file(shop, folder)
    wheel.write_bytes(b"no wheel")
    with pytest.raises(BundleNotWritten, match="cannot be read"):
        check_file(shop, folder)


def test_the_verb_writes_checks_and_says_what_is_next(shop: Path) -> None:
    cdc_lake = QuickShell(shop.parents[1])
    done = cdc_lake("bundle", "pipelines/shop.yaml", "--out", "deploy")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("written  deploy/databricks.yml\njobs     shop_receive, shop_apply")
    assert "SCOPE/SOURCE_PASSWORD" in done.out
    wanted = "job_cluster_key: {}\n        libraries"
    replaced(shop.parents[1] / "deploy" / "databricks.yml", wanted.format("single"), wanted.format("singel"))
    wrong = cdc_lake("bundle", "--check", "--json")
    assert wrong.code == 3
    assert {d["code"] for d in json.loads(wrong.out)["diagnostics"]} == {"DEP705"}
    said = cdc_lake("bundle", "--check")
    assert "error[DEP705]: `singel` is not a job cluster of this job\n  in deploy/databricks.yml:" in said.err
    assert "hint: did you mean `single`?" in said.err


# ── entry points ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_wheel_declares_what_the_bundle_calls() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
    assert set(declared) == set(ENTRY_POINTS)
    for name, target in declared.items():
        module, _, function = target.partition(":")
        assert function == name
        assert callable(getattr(import_module(module), function))


def test_entry_points_are_read_from_a_wheel(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("a.dist-info/entry_points.txt", f"[console_scripts]\nx = y:z\n\n[{GROUP}]\nApply = a:b\n")
    assert in_wheel(tmp_path / "a.whl") == {"Apply"}
