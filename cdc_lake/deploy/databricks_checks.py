"""A flaw of a bundle as a diagnostic: the kind is an error class, which has the code and the usual hint.

References inside a bundle, `${var.NAME}` and `${resources.jobs.NAME…}`: each names something that is defined.

Whether a bundle carries a secret's value: judged by names, and by values that show what they are.

The keys that Databricks knows at the levels of a bundle that this package writes, by its Jobs API.

A test compares them with the `databricks-bundles` of the development environment.

A task of a bundle: one compute, a classic one where it is ours; an entry point that the wheel has.

What is wrong with a `databricks.yml`, told at once and with places, without a workspace.

Databricks' own check needs a workspace and tells unknown keys as warnings; nothing of it sees a key that is referred to
and not defined, or a secret in plain text. Here the parts that this package writes are judged whole, and what others
added beside them as far as it is about the same things.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from cdc_lake.config.yaml_tree import MappingNode, Mark, Node, ScalarNode, SequenceNode, join, parse
from cdc_lake.deploy.databricks_bundle import ENTRY_POINTS, NEEDED, PACKAGE
from cdc_lake.errors import (
    BundleFieldUnknown,
    BundleKeyUndefined,
    ComputeUnclear,
    DeployError,
    EntryPointMissing,
    RuntimeUnfit,
    SecretInPlain,
    ServerlessCompute,
    TriggerUnfit,
)
from cdc_lake.model.diagnostic import Diagnostic, Problem, Severity


def flaw(kind: type[DeployError], summary: str, mark: Mark, path: str, hint: str | None = None) -> Diagnostic:
    """One thing that is wrong, where it is written."""
    return Diagnostic(Severity.ERROR, kind.code, summary, mark.location(path), kind.hint if hint is None else hint)


_VARIABLE_REFERENCE = re.compile(r"\$\{(var|variables|resources\.jobs|artifacts)\.([A-Za-z_][\w-]*)[^}]*\}")


def find_undefined(root: MappingNode) -> Iterator[Diagnostic]:
    """References to variables, jobs and artifacts that the bundle does not define, and values for such variables."""
    defined = {
        "var": _entry_names(root.entries.get("variables")),
        "variables": _entry_names(root.entries.get("variables")),
        "resources.jobs": _job_names(root),
        "artifacts": _entry_names(root.entries.get("artifacts")),
    }
    yield from _walk(root, "", defined)
    targets = root.entries.get("targets")
    for name, target in targets.entries.items() if isinstance(targets, MappingNode) else ():
        values = target.entries.get("variables") if isinstance(target, MappingNode) else None
        for variable, mark in values.keys.items() if isinstance(values, MappingNode) else ():
            if variable not in defined["var"]:
                path = f"targets.{name}.variables.{variable}"
                yield flaw(BundleKeyUndefined, f"there is no variable `{variable}`", mark, path)


def _entry_names(node: Node | None) -> list[str]:
    return list(node.entries) if isinstance(node, MappingNode) else []


def _job_names(root: MappingNode) -> list[str]:
    resources = root.entries.get("resources")
    return _entry_names(resources.entries.get("jobs")) if isinstance(resources, MappingNode) else []


def _walk(node: Node, path: str, defined: dict[str, list[str]]) -> Iterator[Diagnostic]:
    if isinstance(node, SequenceNode):
        for i, item in enumerate(node.items):
            yield from _walk(item, join(path, i), defined)
    elif isinstance(node, MappingNode):
        for key, value in node.entries.items():
            yield from _walk(value, join(path, key), defined)
    elif isinstance(node, ScalarNode):
        for kind, name in _VARIABLE_REFERENCE.findall(node.text):
            if name not in defined[kind]:
                close = difflib.get_close_matches(name, defined[kind], n=1)
                hint = f"did you mean `{close[0]}`?" if close else None
                what = {"resources.jobs": "job", "artifacts": "artifact"}.get(kind, "variable")
                yield flaw(BundleKeyUndefined, f"there is no {what} `{name}`", node.mark, path, hint)


_NAME = re.compile(r"(?i)passw|secret|token|credential|private.?key|access.?key|redact.?key|\bdsn\b|_dsn\b")
_NAME_OF_A_PLACE = re.compile(r"(?i)_?scope$")
_SECRET_REFERENCE = re.compile(r"\{\{secrets/[^{}/]*(\$\{[^{}]+\})?[^{}/]*/[^{}/]+\}\}")
_ADDRESS = re.compile(r"://[^/\s:@]*:[^/\s@]+@")
_TOKEN = re.compile(r"\bdapi[0-9a-f]{32}")
_NAMED = frozenset({"spark_env_vars", "spark_conf", "named_parameters", "variables", "environment_variables"})
"""Mappings of names that people choose, so that a name says what the value is."""


@dataclass(frozen=True, slots=True)
class Names:
    """Names whose values are known to be secrets, or known to be none, whatever they sound like."""

    secret: Collection[str] = ()
    harmless: Collection[str] = ()

    def says_secret(self, name: str) -> bool:
        """Whether a value of this name is a secret."""
        if name in self.secret:
            return True
        return name not in self.harmless and _NAME.search(name) is not None and not _NAME_OF_A_PLACE.search(name)


def plain_secrets(node: Node, names: Names, path: str = "") -> Iterator[tuple[ScalarNode, str, str]]:
    """Values that are secrets, with their paths and what shows it."""
    if isinstance(node, ScalarNode):
        if _ADDRESS.search(node.text) or _TOKEN.search(node.text):
            yield node, path, "the value has the form of one"
    elif isinstance(node, SequenceNode):
        for i, item in enumerate(node.items):
            yield from plain_secrets(item, names, join(path, i))
    else:
        for key, value in node.entries.items():
            below = join(path, key)
            named = _by_name(value, names, below) if key in _NAMED and isinstance(value, MappingNode) else []
            yield from named
            named_paths = {secret_path for _, secret_path, _ in named}
            yield from (secret for secret in plain_secrets(value, names, below) if secret[1] not in named_paths)


def _by_name(node: MappingNode, names: Names, path: str) -> list[tuple[ScalarNode, str, str]]:
    matches = []
    for name, value in node.entries.items():
        if not names.says_secret(name):
            continue
        below = join(path, name)
        if isinstance(value, MappingNode) and "default" in value.entries:
            value, below = value.entries["default"], join(below, "default")  # noqa: PLW2901  # a variable's value
        if isinstance(value, ScalarNode) and value.text and not _SECRET_REFERENCE.fullmatch(value.text):
            matches.append((value, below, f"`{name}` is the name of one"))
    return matches


def _field_names(text: str) -> frozenset[str]:
    return frozenset(text.split())


TOP = _field_names(
    "artifacts bundle environments experimental include permissions presets python resources run_as scripts sync "
    "targets variables workspace"
)
JOB = _field_names(
    "budget_policy_id continuous description duration_target email_notifications environment_variables environments "
    "git_source health job_clusters lifecycle max_concurrent_runs name notification_settings parameters parent_path "
    "performance_target permissions queue run_as schedule tags tasks timeout_seconds trigger triggers usage_policy_id "
    "webhook_notifications"
)
TASK = _field_names(
    "ai_runtime_task alert_task clean_rooms_notebook_task compute condition_task dashboard_task dbt_platform_task "
    "dbt_task depends_on description disable_auto_optimization disabled email_notifications environment_key "
    "environment_variables_key existing_cluster_id for_each_task gen_ai_compute_task health job_cluster_key libraries "
    "max_retries min_retry_interval_millis new_cluster notebook_task notification_settings pipeline_task power_bi_task "
    "python_operator_task python_wheel_task retry_on_timeout run_if run_job_task spark_jar_task spark_python_task "
    "spark_submit_task sql_task task_key timeout_seconds webhook_notifications"
)
CLUSTER = _field_names(
    "apply_policy_default_values autoscale autotermination_minutes aws_attributes azure_attributes cluster_log_conf "
    "cluster_name custom_tags data_security_mode dependency_mode docker_image driver_instance_pool_id "
    "driver_node_type_flexibility driver_node_type_id enable_elastic_disk enable_local_disk_encryption gcp_attributes "
    "init_scripts instance_pool_id is_single_node kind node_type_id num_workers policy_id remote_disk_throughput "
    "runtime_engine single_user_name spark_conf spark_env_vars spark_version ssh_public_keys "
    "total_initial_remote_disk_size use_ml_runtime worker_node_type_flexibility workload_type"
)
LIBRARY = _field_names("cran egg jar maven pypi requirements whl")
WHEEL_TASK = _field_names("entry_point named_parameters package_name parameters")
JOB_CLUSTER = _field_names("job_cluster_key new_cluster serverless_compute_id")
SCHEDULE = _field_names("pause_status quartz_cron_expression sql_condition timezone_id")
CONTINUOUS = _field_names("maintenance_window pause_status task_retry_mode")
COMPUTE = ("job_cluster_key", "new_cluster", "existing_cluster_id", "environment_key", "compute")
"""Keys of a task that each name a compute."""


_WHY_CLASSIC = "serverless compute speaks Spark Connect only, and cdc_lake works with Spark's own sessions and streams"


def task_flaws(task: MappingNode, path: str, entry_points: Collection[str], called: set[str]) -> Iterator[Diagnostic]:
    """What is wrong with a task; `called` takes the entry points of this package that it calls."""
    work = task.entries.get("python_wheel_task")
    is_own = isinstance(work, MappingNode) and _text(work.entries.get("package_name")) == PACKAGE
    yield from _compute(task, path, is_own=is_own)
    if is_own and isinstance(work, MappingNode):
        below = join(path, "python_wheel_task")
        name = _text(work.entries.get("entry_point"))
        called.add(name)
        yield from _entry_point(work, name, below, entry_points)
        if name in ENTRY_POINTS:
            yield from _parameters(work, name, below)


def _text(node: Node | None) -> str:
    return node.text if isinstance(node, ScalarNode) else ""


def _compute(task: MappingNode, path: str, *, is_own: bool) -> Iterator[Diagnostic]:
    compute_keys = [key for key in COMPUTE if key in task.entries]
    if len(compute_keys) > 1:
        names = " and ".join(f"`{key}`" for key in compute_keys)
        yield flaw(ComputeUnclear, f"a task has more than one compute: {names}", task.keys[compute_keys[1]], path)
    if is_own and not compute_keys:
        yield flaw(ComputeUnclear, f"a task has no compute: {_WHY_CLASSIC}", task.mark, path)
    if is_own and (serverless := [key for key in ("environment_key", "compute") if key in compute_keys]):
        key = serverless[0]
        yield flaw(ServerlessCompute, f"a job is serverless: {_WHY_CLASSIC}", task.keys[key], join(path, key))


def _entry_point(work: MappingNode, name: str, path: str, entry_points: Collection[str]) -> Iterator[Diagnostic]:
    if name in entry_points:
        return
    close = difflib.get_close_matches(name, sorted(entry_points), n=1)
    hint = f"did you mean `{close[0]}`?" if close else f"it has {', '.join(sorted(entry_points))}"
    mark = work.keys.get("entry_point", work.mark)
    summary = f"the wheel has no entry point `{name}`" if name else "`entry_point` is missing"
    yield flaw(EntryPointMissing, summary, mark, join(path, "entry_point"), hint)


def _parameters(work: MappingNode, name: str, path: str) -> Iterator[Diagnostic]:
    parameters = dict(_task_parameters(work, path))
    for parameter, (mark, below) in parameters.items():
        if parameter not in ENTRY_POINTS[name]:
            hint = f"it takes {', '.join(sorted(ENTRY_POINTS[name]))}"
            yield flaw(EntryPointMissing, f"`{name}` takes no parameter `{parameter}`", mark, below, hint)
    if NEEDED not in parameters:
        hint = "name the pipeline file: `${workspace.file_path}/pipelines/NAME.yaml`"
        yield flaw(EntryPointMissing, f"`{name}` is given no `{NEEDED}`", work.mark, path, hint)


def _task_parameters(work: MappingNode, path: str) -> Iterator[tuple[str, tuple[Mark, str]]]:
    named, listed = work.entries.get("named_parameters"), work.entries.get("parameters")
    if isinstance(named, MappingNode):
        for key, mark in named.keys.items():
            yield key, (mark, join(join(path, "named_parameters"), key))
    if isinstance(listed, SequenceNode):
        for i, item in enumerate(listed.items):
            name = _text(item).removeprefix("--").partition("=")[0]
            yield name, (item.mark, join(join(path, "parameters"), i))


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


def require_valid(data: bytes, shown: str, known_names: Known) -> list[Diagnostic]:
    """Warnings about a `databricks.yml`; `shown`: its name. Raises BundleInvalid where there are errors."""
    diagnostics = check_bundle(data, shown, known_names)
    if any(d.severity is Severity.ERROR for d in diagnostics):
        raise BundleInvalid(diagnostics)
    return diagnostics


def check_bundle(data: bytes, shown: str, known_names: Known) -> list[Diagnostic]:
    """Everything that is wrong with a `databricks.yml`, in the order of the file."""
    root, diagnostics = parse(data, shown)
    if root is None:
        return [replace(d, hint=_WRITES_ONE) if d.code == Problem.NOT_A_PIPELINE else d for d in diagnostics]
    diagnostics = [*diagnostics, *_flaws(root, known_names)]
    return sorted(diagnostics, key=lambda d: (d.location.line, d.location.column) if d.location else (0, 0))


def _flaws(root: MappingNode, known_names: Known) -> Iterator[Diagnostic]:
    yield from _unknown(root, "", TOP, "a bundle")
    for name, job, path in _jobs(root):
        if isinstance(job, MappingNode):
            yield from _job_fields(job, path)
            if not path.startswith("targets."):
                yield from _job(name, job, path, known_names)
    yield from find_undefined(root)
    yield from _runtimes(root)
    for node, path, why in plain_secrets(root, known_names.names):
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
    yield from _unknown(job, path, JOB, "a job")
    for key, allowed_keys, what in (
        ("schedule", SCHEDULE, "a schedule"),
        ("continuous", CONTINUOUS, "`continuous`"),
    ):
        yield from _unknown(job.entries.get(key), join(path, key), allowed_keys, what)
    for task, item_path in _items(job.entries.get("tasks"), join(path, "tasks")):
        yield from _unknown(task, item_path, TASK, "a task")
        yield from _unknown(task.entries.get("new_cluster"), join(item_path, "new_cluster"), CLUSTER, "a cluster")
        wheel_task = task.entries.get("python_wheel_task")
        yield from _unknown(wheel_task, join(item_path, "python_wheel_task"), WHEEL_TASK, "a task of a wheel")
        for library, below in _items(task.entries.get("libraries"), join(item_path, "libraries")):
            yield from _unknown(library, below, LIBRARY, "a library")
    for cluster, item_path in _items(job.entries.get("job_clusters"), join(path, "job_clusters")):
        yield from _unknown(cluster, item_path, JOB_CLUSTER, "a job cluster")
        yield from _unknown(cluster.entries.get("new_cluster"), join(item_path, "new_cluster"), CLUSTER, "a cluster")


def _unknown(node: Node | None, path: str, allowed_keys: frozenset[str], what: str) -> Iterator[Diagnostic]:
    if not isinstance(node, MappingNode):
        return
    for key, mark in node.keys.items():
        if key not in allowed_keys:
            close = difflib.get_close_matches(key, sorted(allowed_keys), n=1)
            hint = f"did you mean `{close[0]}`?" if close else BundleFieldUnknown.hint
            yield flaw(BundleFieldUnknown, f"{what} has no key `{key}`", mark, join(path, key), hint)


def _job(name: str, job: MappingNode, path: str, known_names: Known) -> Iterator[Diagnostic]:
    tasks = _items(job.entries.get("tasks"), join(path, "tasks"))
    clusters = _names(job, "job_clusters", "job_cluster_key")
    environments = _names(job, "environments", "environment_key")
    siblings = _names(job, "tasks", "task_key")
    called: set[str] = set()
    for task, task_path in tasks:
        yield from task_flaws(task, task_path, known_names.entry_points, called)
        yield from _key(task, task_path, "job_cluster_key", clusters, "a job cluster of this job")
        yield from _key(task, task_path, "environment_key", environments, "an environment of this job")
        for before, below in _items(task.entries.get("depends_on"), join(task_path, "depends_on")):
            yield from _key(before, below, "task_key", siblings, "a task of this job")
    yield from _triggers(name, job, path, called)


def _names(job: MappingNode, section: str, key: str) -> list[str]:
    nodes = (item.entries.get(key) for item, _ in _items(job.entries.get(section), section))
    return [node.text for node in nodes if isinstance(node, ScalarNode)]


def _key(node: MappingNode, path: str, key: str, defined: list[str], what: str) -> Iterator[Diagnostic]:
    reference = node.entries.get(key)
    if isinstance(reference, ScalarNode) and reference.text not in defined and "${" not in reference.text:
        close = difflib.get_close_matches(reference.text, defined, n=1)
        hint = f"did you mean `{close[0]}`?" if close else BundleKeyUndefined.hint
        yield flaw(BundleKeyUndefined, f"`{reference.text}` is not {what}", reference.mark, join(path, key), hint)


def _triggers(name: str, job: MappingNode, path: str, called: set[str]) -> Iterator[Diagnostic]:
    trigger_keys = [key for key in _TRIGGERS if key in job.entries]
    if len(trigger_keys) > 1:
        hint = f"keep one of {', '.join(f'`{key}`' for key in trigger_keys)}"
        yield flaw(
            TriggerUnfit, f"job `{name}` starts in {len(trigger_keys)} ways", job.keys[trigger_keys[1]], path, hint
        )
    if "receive" in called and trigger_keys != ["continuous"] and len(trigger_keys) < 2:  # else told above
        hint = "write `continuous: {pause_status: UNPAUSED}`: what owns the slot has no end"
        yield flaw(TriggerUnfit, f"job `{name}` receives, and is not continuous", job.mark, path, hint)
    trigger = job.entries.get("trigger")
    if "apply" in called and isinstance(trigger, MappingNode) and "table_update" in trigger.entries:
        below, hint = join(path, "trigger.table_update"), "use a schedule or `continuous`, which were thought through"
        summary = "whether updates of bronze start apply was never tried"
        yield Diagnostic(Severity.WARNING, TriggerUnfit.code, summary, trigger.mark.location(below), hint)
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
