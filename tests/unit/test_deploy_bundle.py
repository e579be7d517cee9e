"""The bundle of a pipeline: what is written, and which pipelines are refused.

A golden file, a round trip through Databricks' own classes, and every reference in the bundle resolved.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import yaml
from databricks.bundles.jobs import Job
from pydantic import BaseModel, SecretStr

from cdc_lake.cli.project_template import scaffold
from cdc_lake.config.effective import read_deployment
from cdc_lake.config.model import Pipeline
from cdc_lake.config.secrets import CATALOG, MAPPINGS, PATHS, is_secret
from cdc_lake.deploy.databricks_bundle import ENTRY_POINTS, BundleParts, build, write_bundle
from cdc_lake.errors import BundleNotWritten, NotDeployable
from cdc_lake.model.diagnostic import ConfigInvalid
from tests.shell import QuickShell

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "data" / "databricks.yml"
EXTRAS = {"psycopg": "3.3.9", "great-expectations": "1.24.1", "pandas": "2.3.3"}
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


@pytest.mark.parametrize("schedule", [None, "0 0/5 * * * ?"])
def test_everything_that_the_bundle_refers_to_is_in_it(shop: Path, schedule: str | None) -> None:
    bundle = built(shop, schedule=schedule)
    referred = set(re.findall(r"\$\{var\.(\w+)\}", yaml.safe_dump(bundle)))
    referred |= {name for target in bundle["targets"].values() for name in target.get("variables", ())}
    assert referred <= set(bundle["variables"])
    for job in bundle["resources"]["jobs"].values():
        clusters = {cluster["job_cluster_key"] for cluster in job["job_clusters"]}
        for task in job["tasks"]:
            called = task["python_wheel_task"]
            assert task["job_cluster_key"] in clusters
            assert "pipeline" in called["named_parameters"]
            assert set(called["named_parameters"]) <= ENTRY_POINTS[called["entry_point"]]
            assert task["libraries"][0]["whl"] in {f["source"] for f in bundle["artifacts"]["cdc_lake"]["files"]}


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
        ("conf/dev.yaml", "/${env:SCHEMA:-shop_dev}/lake", "", "is not on a volume", "conf/dev.yaml:7:9"),
        ("pipelines/shop.yaml", "format: delta", "format: iceberg", "not deployed", "pipelines/shop.yaml:18:22"),
        ("pipelines/shop.yaml", "${env:SOURCE_PASSWORD}", "hunter2", "plain text", "pipelines/shop.yaml:12:13"),
        (
            "pipelines/shop.yaml",
            "SOURCE_PASSWORD}",
            "SOURCE_PASSWORD:-hunter2}",
            "plain text",
            "pipelines/shop.yaml:12:13",
        ),
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
    assert found | {CATALOG} == {*PATHS, *(f"{mapping}.x" for mapping in MAPPINGS)}
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


# ── the file and the verb ────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_that_somebody_changed_is_not_written_over(shop: Path) -> None:
    folder = shop.parents[1] / "deploy"
    assert write_bundle(shop, folder).written
    assert not write_bundle(shop, folder).written
    replaced(folder / "databricks.yml", "num_workers: 0", "num_workers: 2")
    with pytest.raises(BundleNotWritten, match="already"):
        write_bundle(shop, folder)
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


def test_a_secret_is_named_and_its_value_is_nowhere_in_the_bundle(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_PASSWORD", "hunter3")
    write_bundle(shop, shop.parents[1] / "deploy")
    text = (shop.parents[1] / "deploy" / "databricks.yml").read_text()
    assert "SOURCE_PASSWORD: '{{secrets/${var.secret_scope}/SOURCE_PASSWORD}}'" in text
    assert "hunter" not in text


def test_the_verb_says_what_is_next(shop: Path) -> None:
    cdc_lake = QuickShell(shop.parents[1])
    done = cdc_lake("bundle", "pipelines/shop.yaml", "--out", "deploy")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("written  deploy/databricks.yml\njobs     shop_receive, shop_apply")
    assert "SCOPE/SOURCE_PASSWORD" in done.out
    steps = done.out.partition("next:\n")[2].split("\n")
    assert [step.split()[:3] for step in steps[1:4]] == [
        ["cd", "deploy"], ["databricks", "bundle", "validate"], ["databricks", "bundle", "deploy"]
    ]  # fmt: skip
    again = cdc_lake("bundle", "pipelines/shop.yaml", "--out", "deploy")
    assert again.out.startswith("unchanged deploy/databricks.yml\n")


# ── entry points ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_wheel_declares_what_the_bundle_calls() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["cdc_lake.jobs"]
    assert set(declared) == set(ENTRY_POINTS)
    for name, target in declared.items():
        module, _, function = target.partition(":")
        assert function == name
        assert callable(getattr(import_module(module), function))
