"""What is wrong with a `databricks.yml`, told at once and with places, without a workspace.

Databricks' own check needs a workspace and tells unknown keys as warnings; nothing of it sees a key that is referred to
and not defined, or a secret in plain text. Here the parts that this package writes are judged whole, and what others
added beside them as far as it is about the same things.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from cdc_lake.config.problems import Problem
from cdc_lake.config.yaml_nodes import MappingNode, Node, ScalarNode, SequenceNode, join, parse
from cdc_lake.deploy import fields
from cdc_lake.deploy.bundle_references import undefined
from cdc_lake.deploy.bundle_secrets import Names, plain_secrets
from cdc_lake.deploy.bundle_tasks import task_flaws
from cdc_lake.deploy.flaw import flaw
from cdc_lake.errors import (
    BundleFieldUnknown,
    BundleKeyUndefined,
    DeployError,
    RuntimeUnfit,
    SecretInPlain,
    TriggerUnfit,
)
from cdc_lake.model.diagnostic import Diagnostic, Severity

FIRST_RUNTIME = 18
"""The first Databricks Runtime of Spark 4.1; whether a later one has it, the job asks when it starts."""
_WRITES_ONE = "`cdc-lake bundle` writes one"
_TRIGGERS = ("continuous", "schedule", "trigger", "triggers")


class BundleInvalid(DeployError):
    """One or more things wrong in a `databricks.yml`, all of them in `diagnostics`, in the order of the file."""

    code = "DEP702"
    exit_code = 3
    hint = "correct the file, then run `cdc-lake bundle --check` again"

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        first = next(d for d in diagnostics if d.severity is Severity.ERROR)
        more = f" (and {len(diagnostics) - 1} more)" if len(diagnostics) > 1 else ""
        super().__init__(f"{first.summary}{more}", where=str(first.location) if first.location else "")
        self.diagnostics = tuple(diagnostics)


@dataclass(frozen=True, slots=True)
class Known:
    """What a bundle is judged by: entry points of the wheel, names whose values are secrets or are none."""

    entry_points: Collection[str]
    names: Names = field(default_factory=Names)


def require_valid(data: bytes, shown: str, known: Known) -> list[Diagnostic]:
    """Warnings about a `databricks.yml`; `shown`: its name. Raises BundleInvalid where there are errors."""
    found = check_bundle(data, shown, known)
    if any(d.severity is Severity.ERROR for d in found):
        raise BundleInvalid(found)
    return found


def check_bundle(data: bytes, shown: str, known: Known) -> list[Diagnostic]:
    """Everything that is wrong with a `databricks.yml`, in the order of the file."""
    root, found = parse(data, shown)
    if root is None:
        return [replace(d, hint=_WRITES_ONE) if d.code == Problem.NOT_A_PIPELINE else d for d in found]
    found = [*found, *_flaws(root, known)]
    return sorted(found, key=lambda d: (d.location.line, d.location.column) if d.location else (0, 0))


def _flaws(root: MappingNode, known: Known) -> Iterator[Diagnostic]:
    yield from _unknown(root, "", fields.TOP, "a bundle")
    for name, job, path in _jobs(root):
        if isinstance(job, MappingNode):
            yield from _job_fields(job, path)
            if not path.startswith("targets."):
                yield from _job(name, job, path, known)
    yield from undefined(root)
    yield from _runtimes(root)
    for node, path, why in plain_secrets(root, known.names):
        yield flaw(SecretInPlain, f"a secret stands in plain text: {why}", node.mark, path)


def _jobs(root: MappingNode) -> Iterator[tuple[str, Node, str]]:
    """Jobs of the bundle, and what targets lay over them."""
    places: list[tuple[Node | None, str]] = [(root.entries.get("resources"), "resources")]
    for name, target in _entries(root.entries.get("targets")):
        if isinstance(target, MappingNode):
            places.append((target.entries.get("resources"), f"targets.{name}.resources"))
    for resources, path in places:
        jobs = resources.entries.get("jobs") if isinstance(resources, MappingNode) else None
        for name, job in _entries(jobs):
            yield name, job, f"{path}.jobs.{name}"


def _entries(node: Node | None) -> list[tuple[str, Node]]:
    return list(node.entries.items()) if isinstance(node, MappingNode) else []


def _items(node: Node | None, path: str) -> list[tuple[MappingNode, str]]:
    items = node.items if isinstance(node, SequenceNode) else []
    return [(item, join(path, i)) for i, item in enumerate(items) if isinstance(item, MappingNode)]


def _job_fields(job: MappingNode, path: str) -> Iterator[Diagnostic]:
    yield from _unknown(job, path, fields.JOB, "a job")
    for key, known, what in (
        ("schedule", fields.SCHEDULE, "a schedule"),
        ("continuous", fields.CONTINUOUS, "`continuous`"),
    ):
        yield from _unknown(job.entries.get(key), join(path, key), known, what)
    for task, at in _items(job.entries.get("tasks"), join(path, "tasks")):
        yield from _unknown(task, at, fields.TASK, "a task")
        yield from _unknown(task.entries.get("new_cluster"), join(at, "new_cluster"), fields.CLUSTER, "a cluster")
        wheel_task = task.entries.get("python_wheel_task")
        yield from _unknown(wheel_task, join(at, "python_wheel_task"), fields.WHEEL_TASK, "a task of a wheel")
        for library, below in _items(task.entries.get("libraries"), join(at, "libraries")):
            yield from _unknown(library, below, fields.LIBRARY, "a library")
    for cluster, at in _items(job.entries.get("job_clusters"), join(path, "job_clusters")):
        yield from _unknown(cluster, at, fields.JOB_CLUSTER, "a job cluster")
        yield from _unknown(cluster.entries.get("new_cluster"), join(at, "new_cluster"), fields.CLUSTER, "a cluster")


def _unknown(node: Node | None, path: str, known: frozenset[str], what: str) -> Iterator[Diagnostic]:
    if not isinstance(node, MappingNode):
        return
    for key, mark in node.keys.items():
        if key not in known:
            close = difflib.get_close_matches(key, sorted(known), n=1)
            hint = f"did you mean `{close[0]}`?" if close else BundleFieldUnknown.hint
            yield flaw(BundleFieldUnknown, f"{what} has no key `{key}`", mark, join(path, key), hint)


def _job(name: str, job: MappingNode, path: str, known: Known) -> Iterator[Diagnostic]:
    tasks = _items(job.entries.get("tasks"), join(path, "tasks"))
    clusters = _names(job, "job_clusters", "job_cluster_key")
    environments = _names(job, "environments", "environment_key")
    siblings = _names(job, "tasks", "task_key")
    called: set[str] = set()
    for task, at in tasks:
        yield from task_flaws(task, at, known.entry_points, called)
        yield from _key(task, at, "job_cluster_key", clusters, "a job cluster of this job")
        yield from _key(task, at, "environment_key", environments, "an environment of this job")
        for before, below in _items(task.entries.get("depends_on"), join(at, "depends_on")):
            yield from _key(before, below, "task_key", siblings, "a task of this job")
    yield from _triggers(name, job, path, called)


def _names(job: MappingNode, section: str, key: str) -> list[str]:
    found = (item.entries.get(key) for item, _ in _items(job.entries.get(section), section))
    return [node.text for node in found if isinstance(node, ScalarNode)]


def _key(node: MappingNode, path: str, key: str, defined: list[str], what: str) -> Iterator[Diagnostic]:
    given = node.entries.get(key)
    if isinstance(given, ScalarNode) and given.text not in defined and "${" not in given.text:
        close = difflib.get_close_matches(given.text, defined, n=1)
        hint = f"did you mean `{close[0]}`?" if close else BundleKeyUndefined.hint
        yield flaw(BundleKeyUndefined, f"`{given.text}` is not {what}", given.mark, join(path, key), hint)


def _triggers(name: str, job: MappingNode, path: str, called: set[str]) -> Iterator[Diagnostic]:
    given = [key for key in _TRIGGERS if key in job.entries]
    if len(given) > 1:
        hint = f"keep one of {', '.join(f'`{key}`' for key in given)}"
        yield flaw(TriggerUnfit, f"job `{name}` starts in {len(given)} ways", job.keys[given[1]], path, hint)
    if "receive" in called and given != ["continuous"] and len(given) < 2:  # else told above
        hint = "write `continuous: {pause_status: UNPAUSED}`: what owns the slot has no end"
        yield flaw(TriggerUnfit, f"job `{name}` receives, and is not continuous", job.mark, path, hint)
    trigger = job.entries.get("trigger")
    if "apply" in called and isinstance(trigger, MappingNode) and "table_update" in trigger.entries:
        below, hint = join(path, "trigger.table_update"), "use a schedule or `continuous`, which were thought through"
        said = "whether updates of bronze start apply was never tried"
        yield Diagnostic(Severity.WARNING, TriggerUnfit.code, said, trigger.mark.location(below), hint)
    runs = job.entries.get("max_concurrent_runs")
    if called & {"receive", "apply"} and isinstance(runs, ScalarNode) and runs.text != "1":
        below = join(path, "max_concurrent_runs")
        yield flaw(TriggerUnfit, f"job `{name}` may run more than once at a time", runs.mark, below, "write 1")


def _runtimes(root: MappingNode) -> Iterator[Diagnostic]:
    """Runtimes that are known to be of another Spark, wherever they are named; and jars of a Spark of one's own."""
    for key, node, path in _scalars(root, ""):
        named = key == "spark_version" or ".spark_version." in path
        if named and (major := _major(node.text)) is not None and major < FIRST_RUNTIME:
            yield flaw(RuntimeUnfit, f"runtime `{node.text}` has a Spark before 4.1", node.mark, path)
        if key == "spark.jars.packages":
            hint = "remove it: Spark and Delta are the runtime's own"
            yield flaw(RuntimeUnfit, "jars of another Spark are asked for", node.mark, path, hint)


def _major(version: str) -> int | None:
    head = version.partition(".")[0]
    return int(head) if head.isascii() and head.isdigit() else None


def _scalars(node: Node, path: str, key: str = "") -> Iterator[tuple[str, ScalarNode, str]]:
    if isinstance(node, ScalarNode):
        yield key, node, path
    elif isinstance(node, SequenceNode):
        for i, item in enumerate(node.items):
            yield from _scalars(item, join(path, i))
    else:
        for name, value in node.entries.items():
            yield from _scalars(value, join(path, name), name)
