"""The bundle of a pipeline: one plain value, the `databricks.yml` of a Declarative Automation Bundle.

Four jobs, each on a classic cluster of one node of its own: `receive` owns the slot and never ends, `apply` runs on and
on or by a schedule, `report` and `maintain` by one. What the pipeline leaves to its environment (`${env:NAME}`) becomes
a variable of the bundle, and a secret of a scope where the value is a secret; nothing else differs between targets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdc_lake.config.deployed import Deployed, Reference
from cdc_lake.config.source import POSTGRES_TYPES
from cdc_lake.deploy.deployable import require_deployable
from cdc_lake.deploy.entry_points import PACKAGE, wheel_name
from cdc_lake.deploy.secret_names import variable
from cdc_lake.errors import NotDeployable

TARGETS = ("dev", "prod")
"""Targets of every bundle. Each lays `conf/<target>.yaml` over the pipeline."""
DEFAULT_RUNTIME = "18.0.x-scala2.13"
"""The first runtime of Spark 4.1 (Databricks' release notes)."""

Plain = dict[str, Any]

_OWN_VARIABLES = frozenset({"node_type_id", "spark_version", "secret_scope", "report_schedule", "maintain_schedule"})


@dataclass(frozen=True, slots=True)
class Extras:
    """Exact versions of what the wheel does not bring by itself, by package."""

    versions: Mapping[str, str]

    def libraries(self, packages: Iterable[str]) -> list[Plain]:
        """Packages as libraries of a task."""
        extra = {"psycopg": "psycopg[binary]"}
        return [{"pypi": {"package": f"{extra.get(p, p)}=={self.versions[p]}"}} for p in packages]


@dataclass(frozen=True, slots=True)
class BundleParts:
    """What a bundle is made of, beside the pipeline: `upward` leads from its folder to the project's."""

    version: str
    extras: Extras
    upward: str
    schedule: str | None = None


def driver_needed(pipeline: Deployed) -> bool:
    """Whether reading the source takes a database driver."""
    kind = pipeline.value("source.type")
    return kind is not None and kind.text in POSTGRES_TYPES


def build(pipelines: Mapping[str, Deployed], parts: BundleParts) -> Plain:
    """The bundle of a pipeline, read once for each target. Raises NotDeployable."""
    for pipeline in pipelines.values():
        require_deployable(pipeline)
    one = next(iter(pipelines.values()))
    if {p.name for p in pipelines.values()} != {one.name}:
        raise NotDeployable(
            "the pipeline has another name in each target", where=one.file.name, hint="leave `pipeline` out of `conf`"
        )
    references = [r for pipeline in pipelines.values() for r in pipeline.references]
    return {
        "bundle": {"name": one.name},
        "variables": _variables(references),
        "artifacts": {
            PACKAGE: {"type": "whl", "path": ".", "files": [{"source": f"dist/{wheel_name(parts.version)}"}]}
        },
        "sync": {"paths": [f"{parts.upward}{folder}" for folder in ("pipelines", "conf")]},
        "resources": {"jobs": _jobs(one, references, parts)},
        "targets": {
            "dev": {"mode": "development", "default": True, **_scope(references, f"{one.name}_dev")},
            "prod": {
                "mode": "production",
                "workspace": {
                    "root_path": "/Workspace/Users/${workspace.current_user.userName}/.bundle/"
                    "${bundle.name}/${bundle.target}"
                },
                **_scope(references, one.name),
            },
        },
    }


def secrets(pipelines: Iterable[Deployed]) -> tuple[str, ...]:
    """Secrets that must be there, as `scope/key`; `SCOPE` is the target's own."""
    found = dict.fromkeys(
        reference.name if reference.kind == "secret" else f"SCOPE/{reference.name}"
        for pipeline in pipelines
        for reference in pipeline.references
        if reference.kind == "secret" or (reference.kind == "env" and reference.secret)
    )
    return tuple(found)


def _by_name(references: Iterable[Reference]) -> dict[str, list[Reference]]:
    named: dict[str, list[Reference]] = {}
    for reference in references:
        if reference.kind == "env":
            named.setdefault(reference.name, []).append(reference)
    return named


def _variables(references: Sequence[Reference]) -> Plain:
    made: Plain = {
        "node_type_id": {
            "description": "Node type of the clusters, one that your cloud has: i3.xlarge, Standard_D4ds_v5"
        },
        "spark_version": {"description": "Databricks Runtime, one of Spark 4.1", "default": DEFAULT_RUNTIME},
        "report_schedule": {"description": "When the report is written, in UTC", "default": "0 0 6 * * ?"},
        "maintain_schedule": {"description": "When tables are kept up, in UTC", "default": "0 30 2 * * ?"},
    }
    if _has_scope(references):
        made["secret_scope"] = {"description": "Secret scope with the secrets that the pipeline reads by their names"}
    taken = {name: name for name in _OWN_VARIABLES}
    for name, places in _by_name(references).items():
        if any(r.secret for r in places):
            continue
        key = name.lower()
        if taken.setdefault(key, name) != name:
            where = str(places[0].mark.location(places[0].path))
            raise NotDeployable(
                f"${{env:{name}}} would be the variable `{key}` of the bundle, which is `{taken[key]}`",
                where=where,
                hint="give one of them another name",
            )
        made[key] = {"description": f"{name} of the pipeline"}
        if all(r.default is not None for r in places):
            made[key] = {"description": f"{name} of the pipeline; empty: the default in its file", "default": ""}
    return made


def _has_scope(references: Iterable[Reference]) -> bool:
    return any(r.kind == "env" and r.secret for r in references)


def _scope(references: Iterable[Reference], name: str) -> Plain:
    return {"variables": {"secret_scope": name}} if _has_scope(references) else {}


def _environment(references: Sequence[Reference]) -> Plain:
    """The environment variables of every cluster: each job reads the whole pipeline file."""
    made: Plain = {}
    for name, places in _by_name(references).items():
        secret = any(r.secret for r in places)
        made[name] = f"{{{{secrets/${{var.secret_scope}}/{name}}}}}" if secret else f"${{var.{name.lower()}}}"
    for reference in references:
        if reference.kind == "secret":
            scope, _, key = reference.name.partition("/")
            made[variable(scope, key)] = f"{{{{secrets/{scope}/{key}}}}}"
    return made


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
    return {
        f"{pipeline.name}_{what}": _job(pipeline, references, parts, what, trigger, parameters, packages)
        for what, trigger, parameters, packages in plans
    }


def _schedule(cron: str) -> Plain:
    return {"schedule": {"quartz_cron_expression": cron, "timezone_id": "UTC", "pause_status": "UNPAUSED"}}


def _job(
    pipeline: Deployed,
    references: Sequence[Reference],
    parts: BundleParts,
    what: str,
    trigger: Plain,
    parameters: Plain,
    packages: list[str],
) -> Plain:
    file = f"${{workspace.file_path}}/pipelines/{pipeline.file.name}"
    return {
        "name": f"{pipeline.name} {what}",
        "max_concurrent_runs": 1,
        **trigger,
        "tasks": [
            {
                "task_key": what,
                "job_cluster_key": "single",
                "libraries": [{"whl": f"dist/{wheel_name(parts.version)}"}, *parts.extras.libraries(packages)],
                "python_wheel_task": {
                    "package_name": PACKAGE,
                    "entry_point": what,
                    "named_parameters": {"pipeline": file, "environment": "${bundle.target}", **parameters},
                },
            }
        ],
        "job_clusters": [{"job_cluster_key": "single", "new_cluster": _cluster(references)}],
    }


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
