"""Creates the bundle of a pipeline: the `databricks.yml` of a Declarative Automation Bundle for Databricks' own tool.

Four jobs, each on its own single-node classic cluster: `receive` owns the slot and never ends, `apply` runs
continuously or by a schedule, `report` and `maintain` by one. Values that the pipeline takes from its environment
(`${env:NAME}`) become variables of the bundle, and secrets of a scope if the value is secret; targets differ in nothing
else. The value of `${secret:scope/key}` reaches a job through an environment variable of its cluster: the bundle names
it, Databricks sets it when the cluster starts, and the job reads it.

A pipeline that cannot run as jobs on Databricks is refused before anything is written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from cdc_lake.config.effective import Deployed, Reference, Written, read_deployment
from cdc_lake.config.loader import CONF, PIPELINES, display, project_root
from cdc_lake.config.secrets import CATALOG, has_password, is_secret
from cdc_lake.config.source import POSTGRES_TYPES
from cdc_lake.errors import BundleNotWritten, JobParametersWrong, NotDeployable
from cdc_lake.errors.base import install

VOLUMES = "/Volumes/"
_FILES_OF_TLS = ("source.tls.root_cert", "source.tls.cert", "source.tls.key")
_FORMAT = re.compile(r"(silver\.defaults|silver\.tables\[\d+\]|bronze)\.format")


def require_deployable(pipeline: Deployed) -> None:
    """Raise NotDeployable for the first setting of a pipeline that cannot run there."""
    if pipeline.file.parent.name != PIPELINES:
        hint = f"move it into a folder `{PIPELINES}` of a project: that folder and `{CONF}` are uploaded"
        raise NotDeployable("the pipeline file does not belong to a project", where=str(pipeline.file), hint=hint)
    _check_lake(pipeline)
    for value in pipeline.values:
        if _FORMAT.fullmatch(value.path) and value.text == "iceberg":
            hint = "use `format: delta`; this version does not set up the Iceberg catalog of a session on Databricks"
            raise _not_deployable("tables of `format: iceberg` are not deployed", value, hint)
        if is_secret(value.path):
            _check_secret(value)
        _check_uploaded_files(value)


def _check_lake(pipeline: Deployed) -> None:
    hint = f"write an absolute path, `{VOLUMES}CATALOG/SCHEMA/VOLUME/…` for a volume; its names may be ${{env:NAME}}"
    lake_path = pipeline.value("lake.path")
    if lake_path is None:
        where = f"{pipeline.file.name}, conf/{pipeline.environment}.yaml"
        raise NotDeployable("`lake.path` is not set: the lake would be lost with the cluster", where=where, hint=hint)
    if not lake_path.text.startswith("/"):
        raise _not_deployable("`lake.path` is relative: the lake would be lost with the cluster", lake_path, hint)
    volume = [part for part in lake_path.text.removeprefix(VOLUMES).split("/") if part]
    if lake_path.text.startswith(VOLUMES) and len(volume) < 3:  # catalog, schema, volume
        raise _not_deployable("`lake.path` is not on a volume", lake_path, hint)
    bronze = pipeline.value("bronze.path")
    if bronze is not None and not bronze.text.startswith("/") and "://" not in bronze.text:
        raise _not_deployable("`bronze.path` is relative: bronze would be lost with the cluster", bronze, hint)


def _check_secret(value: Written) -> None:
    hint = "write ${env:NAME} or ${secret:scope/key}: the bundle takes the value from a secret scope"
    references = list(value.references())
    is_plain = any(reference.default for reference in references) if references else bool(value.text)
    if is_plain and (value.path != CATALOG or has_password(value.text)):
        raise _not_deployable(f"`{value.path}` is a secret in plain text, and would be uploaded", value, hint)
    if any(reference.kind == "file" for reference in references):
        raise _not_deployable(f"`{value.path}` is a secret in a file, which would have to be uploaded", value, hint)


def _check_uploaded_files(value: Written) -> None:
    """Files that a pipeline reads: only the project's folders of pipelines and environments are uploaded."""
    named = [reference.name for reference in value.references() if reference.kind == "file"]
    if value.path in _FILES_OF_TLS and not value.text.startswith("/"):
        named.append(value.text)
    if value.path == "source.tls.key" and named:
        hint = f"put it on a volume and set its path, `{VOLUMES}…`"
        raise _not_deployable("the private key of `source.tls.key` would be uploaded", value, hint)
    for name in named:
        if PurePosixPath(name).parts[:1] not in {(PIPELINES,), (CONF,)} or ".." in PurePosixPath(name).parts:
            hint = f"move it into `{CONF}`: that folder and `{PIPELINES}` are uploaded"
            raise _not_deployable(f"`{name}` is not uploaded", value, hint)


def _not_deployable(message: str, value: Written, hint: str) -> NotDeployable:
    return NotDeployable(message, where=str(value.mark.location(value.path)), hint=hint)


PACKAGE = "cdc_lake"
ENTRY_POINTS: Mapping[str, frozenset[str]] = {
    "receive": frozenset({"pipeline", "environment", "once"}),
    "apply": frozenset({"pipeline", "environment", "once"}),
    "report": frozenset({"pipeline", "environment"}),
    "maintain": frozenset({"pipeline", "environment"}),
}
"""Parameters by entry point of the group `cdc_lake.jobs` (not `console_scripts`: no command `apply`)."""
NEEDED = "pipeline"
"""The parameter that every entry point requires."""


def wheel_name(version: str) -> str:
    """The file name of the wheel of a version."""
    return f"{PACKAGE}-{version}-py3-none-any.whl"


PREFIX = "CDC_LAKE_SECRET_"


def variable(scope: str, key: str) -> str:
    """The environment variable of a secret: letters and digits unchanged, other characters by their code."""
    return PREFIX + "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):X}_" for c in f"{scope}/{key}")


def from_cluster(scope: str, key: str) -> str:
    """The secret's value in a job. Raises JobParametersWrong if the cluster does not have it."""
    name = variable(scope, key)
    if name not in os.environ:
        hint = "the pipeline file is newer than the bundle: run `cdc-lake bundle` again, then deploy it"
        raise JobParametersWrong(f"the cluster was not given the secret `{scope}/{key}`", where=name, hint=hint)
    return os.environ[name]


TARGETS = ("dev", "prod")
"""The targets of every bundle. Each applies `conf/<target>.yaml` to the pipeline."""
DEFAULT_RUNTIME = "18.0.x-scala2.13"
"""The first runtime of Spark 4.1 (Databricks' release notes)."""

Plain = dict[str, Any]

_OWN_VARIABLES = frozenset({"node_type_id", "spark_version", "secret_scope", "report_schedule", "maintain_schedule"})


@dataclass(frozen=True, slots=True)
class BundleParts:
    """The inputs of a bundle besides the pipeline. `extras`: exact versions of packages that the wheel lacks; `upward`
    leads from its folder to the project's.
    """

    version: str
    extras: Mapping[str, str]
    upward: str
    schedule: str | None = None


def driver_needed(pipeline: Deployed) -> bool:
    """Whether reading the source needs a database driver."""
    kind = pipeline.value("source.type")
    return kind is not None and kind.text in POSTGRES_TYPES


def build(pipelines: Mapping[str, Deployed], parts: BundleParts) -> Plain:
    """The bundle of a pipeline, which is loaded once for each target. Raises NotDeployable."""
    for pipeline in pipelines.values():
        require_deployable(pipeline)
    first = next(iter(pipelines.values()))
    if {p.name for p in pipelines.values()} != {first.name}:
        hint = "remove `pipeline` from `conf`"
        raise NotDeployable("the pipeline has another name in each target", where=first.file.name, hint=hint)
    references = [r for pipeline in pipelines.values() for r in pipeline.references]
    return {
        "bundle": {"name": first.name},
        "variables": _variables(references),
        "artifacts": {
            PACKAGE: {"type": "whl", "path": ".", "files": [{"source": f"dist/{wheel_name(parts.version)}"}]}
        },
        "sync": {"paths": [f"{parts.upward}{folder}" for folder in ("pipelines", "conf")]},
        "resources": {"jobs": _jobs(first, references, parts)},
        "targets": {
            "dev": {"mode": "development", "default": True, **_scope(references, f"{first.name}_dev")},
            "prod": {
                "mode": "production",
                "workspace": {
                    "root_path": "/Workspace/Users/${workspace.current_user.userName}/.bundle/"
                    "${bundle.name}/${bundle.target}"
                },
                **_scope(references, first.name),
            },
        },
    }


def secrets(pipelines: Iterable[Deployed]) -> tuple[str, ...]:
    """Required secrets, as `scope/key`; `SCOPE` is the target's own."""
    references = [reference for pipeline in pipelines for reference in pipeline.references]
    needed = [r for r in references if r.kind == "secret" or (r.kind == "env" and r.secret)]
    return tuple(dict.fromkeys(r.name if r.kind == "secret" else f"SCOPE/{r.name}" for r in needed))


def _by_name(references: Iterable[Reference]) -> dict[str, list[Reference]]:
    named: dict[str, list[Reference]] = {}
    for reference in references:
        if reference.kind == "env":
            named.setdefault(reference.name, []).append(reference)
    return named


def _variables(references: Sequence[Reference]) -> Plain:
    variables: Plain = {
        "node_type_id": {
            "description": "Node type of the clusters, one that your cloud has: i3.xlarge, Standard_D4ds_v5"
        },
        "spark_version": {"description": "Databricks Runtime with Spark 4.1", "default": DEFAULT_RUNTIME},
        "report_schedule": {"description": "When the report is written, in UTC", "default": "0 0 6 * * ?"},
        "maintain_schedule": {"description": "When maintenance runs, in UTC", "default": "0 30 2 * * ?"},
    }
    if _has_scope(references):
        variables["secret_scope"] = {"description": "Secret scope with the secrets that the pipeline refers to by name"}
    names_by_key = {name: name for name in _OWN_VARIABLES}
    for name, places in _by_name(references).items():
        if any(r.secret for r in places):
            continue
        key = name.lower()
        if names_by_key.setdefault(key, name) != name:
            text = f"${{env:{name}}} would be the variable `{key}` of the bundle, which is `{names_by_key[key]}`"
            where = str(places[0].mark.location(places[0].path))
            raise NotDeployable(text, where=where, hint="give one of them another name")
        variables[key] = {"description": f"{name} of the pipeline"}
        if all(r.default is not None for r in places):
            variables[key] = {"description": f"{name} of the pipeline; empty: the default in its file", "default": ""}
    return variables


def _has_scope(references: Iterable[Reference]) -> bool:
    return any(r.kind == "env" and r.secret for r in references)


def _scope(references: Iterable[Reference], name: str) -> Plain:
    return {"variables": {"secret_scope": name}} if _has_scope(references) else {}


def _environment(references: Sequence[Reference]) -> Plain:
    """The environment variables of every cluster: each job reads the whole pipeline file."""
    environment: Plain = {}
    for name, places in _by_name(references).items():
        secret = any(r.secret for r in places)
        environment[name] = f"{{{{secrets/${{var.secret_scope}}/{name}}}}}" if secret else f"${{var.{name.lower()}}}"
    for reference in references:
        if reference.kind == "secret":
            scope, _, key = reference.name.partition("/")
            environment[variable(scope, key)] = f"{{{{secrets/{scope}/{key}}}}}"
    return environment


def _jobs(pipeline: Deployed, references: Sequence[Reference], parts: BundleParts) -> Plain:
    driver = ["psycopg"] if driver_needed(pipeline) else []
    apply_trigger: Plain = (
        {"continuous": {"pause_status": "UNPAUSED"}} if parts.schedule is None else _schedule(parts.schedule)
    )
    once = {} if parts.schedule is None else {"once": "true"}
    plans: list[tuple[str, Plain, Plain, list[str]]] = [
        ("receive", {"continuous": {"pause_status": "UNPAUSED"}}, {}, driver),
        ("apply", apply_trigger, once, []),
        ("report", _schedule("${var.report_schedule}"), {}, [*driver, "great-expectations", "pandas"]),
        ("maintain", _schedule("${var.maintain_schedule}"), {}, []),
    ]
    file = f"${{workspace.file_path}}/pipelines/{pipeline.file.name}"
    jobs = {}
    for what, trigger, parameters, packages in plans:
        names = [f"{'psycopg[binary]' if p == 'psycopg' else p}=={parts.extras[p]}" for p in packages]
        libraries: list[Plain] = [{"whl": f"dist/{wheel_name(parts.version)}"}]
        task = {
            "task_key": what,
            "job_cluster_key": "single",
            "libraries": libraries + [{"pypi": {"package": name}} for name in names],
            "python_wheel_task": {
                "package_name": PACKAGE,
                "entry_point": what,
                "named_parameters": {"pipeline": file, "environment": "${bundle.target}", **parameters},
            },
        }
        jobs[f"{pipeline.name}_{what}"] = {
            "name": f"{pipeline.name} {what}",
            "max_concurrent_runs": 1,
            **trigger,
            "tasks": [task],
            "job_clusters": [{"job_cluster_key": "single", "new_cluster": _cluster(references)}],
        }
    return jobs


def _schedule(cron: str) -> Plain:
    return {"schedule": {"quartz_cron_expression": cron, "timezone_id": "UTC", "pause_status": "UNPAUSED"}}


def _cluster(references: Sequence[Reference]) -> Plain:
    environment = _environment(references)
    return {
        "spark_version": "${var.spark_version}",
        "node_type_id": "${var.node_type_id}",
        "num_workers": 0,
        "data_security_mode": "SINGLE_USER",
        "spark_conf": {"spark.databricks.cluster.profile": "singleNode", "spark.master": "local[*]"},
        **({"spark_env_vars": environment} if environment else {}),
        "custom_tags": {"ResourceClass": "SingleNode"},
    }


FILE = "databricks.yml"
_HEAD = "# Written by `cdc-lake bundle`, which keeps changes made here unless `--force` tells it to overwrite them.\n"


@dataclass(frozen=True, slots=True)
class BundleFile:
    """A bundle: its file, its jobs, what the workspace must have, and the wheel that it deploys.

    Attributes:
        file: The bundle, relative to the working directory.
        written: Whether the file was written; False if it had the same content.
        jobs: Names of the jobs.
        secrets: Secrets that must exist, as `scope/key`; `SCOPE` is the value of the variable `secret_scope`.
        wheel: Where the wheel must be.
        wheel_there: Whether it is there.
    """

    file: str
    written: bool
    jobs: tuple[str, ...]
    secrets: tuple[str, ...]
    wheel: str
    wheel_there: bool


def write_bundle(pipeline: Path, folder: Path, *, schedule: str | None = None, force: bool = False) -> BundleFile:
    """Write the bundle of a pipeline into a folder of its project.

    The bundle names secrets and never contains a value of one; a pipeline with a secret in plain text is refused.

    Args:
        pipeline: The pipeline file.
        folder: The folder, in the pipeline's project.
        schedule: When apply runs, as a Quartz expression; without it, apply runs continuously.
        force: Whether to overwrite a file with other content.

    Raises:
        ConfigInvalid: The pipeline is invalid.
        NotDeployable: The pipeline cannot run as jobs on Databricks, or would upload a secret.
        BundleNotWritten: The file has other content, or cannot be written.
    """
    read = {target: read_deployment(pipeline, target) for target in TARGETS}
    parts = BundleParts(version(PACKAGE), _extras(read["prod"]), _upward(pipeline, folder), schedule)
    bundle = build(read, parts)
    data = (_HEAD + yaml.safe_dump(bundle, sort_keys=False, allow_unicode=True, width=110)).encode()
    file, wheel = folder / FILE, folder / "dist" / wheel_name(version(PACKAGE))
    return BundleFile(
        file=display(file),
        written=_write(file, data, force=force),
        jobs=tuple(bundle["resources"]["jobs"]),
        secrets=secrets(read.values()),
        wheel=display(wheel),
        wheel_there=wheel.is_file(),
    )


def _extras(pipeline: Deployed) -> Mapping[str, str]:
    """The versions installed here, so that the jobs run what was tested."""
    packages = ["great-expectations", "pandas", *(["psycopg"] if driver_needed(pipeline) else [])]
    try:
        return {package: version(package) for package in packages}
    except PackageNotFoundError as missing:
        hint = f"`{install('databricks')}`: the jobs use the versions that are installed here"
        raise NotDeployable(f"`{missing.name}` is not installed here", where="this machine", hint=hint) from missing


def _upward(pipeline: Path, folder: Path) -> str:
    """The relative path from the bundle's folder to the project's, as in the bundle: `../`, or nothing."""
    root = project_root(pipeline)
    if not folder.resolve().is_relative_to(root):
        hint = f"name a folder in {display(root)}"
        raise NotDeployable("the bundle is not in the pipeline's project", where=str(folder), hint=hint)
    return "../" * len(folder.resolve().relative_to(root).parts)


def _write(file: Path, data: bytes, *, force: bool) -> bool:
    """Write the file unless it has this content. Raises BundleNotWritten."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        if file.exists():
            if file.read_bytes() == data:
                return False
            if not force:
                hint = "compare the two files, and add `--force` to overwrite this one"
                raise BundleNotWritten(f"`{file.name}` already exists with other content", where=str(file), hint=hint)
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(data)
        draft.replace(file)
    except OSError as cause:
        hint = "make the folder writable and free disk space"
        raise BundleNotWritten(f"`{file.name}` could not be written", where=str(file.parent), hint=hint) from cause
    return True
