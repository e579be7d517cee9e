"""The entry points of jobs on Databricks: `receive`, `apply`, `report`, `maintain`.

Plain functions that return on success and raise on failure: a platform that calls an entry point treats `sys.exit`,
even with 0, as a failure. Parameters are `--name=value` from the `named_parameters` of a wheel task. Spark is the
runtime's own session.

Each job first tests the lake's folder. Commits to bronze and control tables in it need atomic creation of file names
(hard links on a disk). A mounted object store often lacks it, or overwrites, and two jobs could both believe that they
created the same version: such a folder is refused. Mutual exclusion of two machines cannot be tested.
"""

from __future__ import annotations

import fcntl
import os
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc_lake import errors
from cdc_lake.api import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.config.secrets import secret_values
from cdc_lake.deploy.databricks_bundle import ENTRY_POINTS, NEEDED, from_cluster
from cdc_lake.observability.events import ProgressReporter
from cdc_lake.observability.logging import Level, Log, configure
from cdc_lake.tables.spark_session import SPARK_VERSION, apply_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def require_folder(project: Project) -> None:
    """Create the lake's folder if it is missing. Raises LakeFolderUnfit if its files are unreliable."""
    folder = project.lake
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise errors.LakeFolderUnfit(f"the folder cannot be created: {cause.strerror}", where=str(folder)) from cause
    draft, name = (folder / f"probe-{uuid.uuid4().hex}.{end}" for end in ("draft", "txt"))
    try:
        draft.write_bytes(b"probe\n")
        draft.replace(name)  # as reports and refetched rows are written
        if name.read_bytes() != b"probe\n":
            raise errors.LakeFolderUnfit("a file that was written has other content when read", where=str(folder))
        name.unlink()
        if project.control_address is None or project.bronze_address is None:
            _exclusive(draft, name)
    except OSError as cause:
        message = f"a file cannot be created exclusively here: {cause.strerror}"
        raise errors.LakeFolderUnfit(message, where=str(folder)) from cause
    finally:
        draft.unlink(missing_ok=True)
        name.unlink(missing_ok=True)


def _exclusive(draft: Path, name: Path) -> None:
    with draft.open("wb") as file:
        file.write(b"probe\n")
        file.flush()
        os.fsync(file.fileno())
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.link(draft, name)
    try:
        os.link(draft, name)
    except FileExistsError:
        return
    raise errors.LakeFolderUnfit("a second file replaced the first one of the same name", where=str(name.parent))


def require_seen(spark: Any, folder: Path) -> None:
    """Raise LakeFolderUnfit if Spark has another folder under the same path, for example if its root is a store."""
    token = uuid.uuid4().hex
    file = folder / f"probe-{token}.txt"
    try:
        file.write_text(token, encoding="utf-8")
        rows = spark.read.text(str(file)).collect()
    except Exception as cause:
        message = f"Spark does not see this folder under its path: {type(cause).__name__}"
        raise errors.LakeFolderUnfit(message, where=str(folder)) from cause
    finally:
        file.unlink(missing_ok=True)
    if [row[0] for row in rows] != [token]:
        raise errors.LakeFolderUnfit("Spark has another folder under the same path", where=str(folder))


def receive() -> None:
    """Receive into bronze, without end; with `--once=true` up to the source's current position."""
    _run("receive", lambda pipeline, once, report: pipeline.run(once=once, only="receive", report_progress=report))


def apply() -> None:
    """Apply bronze to silver, without end; with `--once=true` up to the end of bronze."""

    def run(pipeline: Pipeline, once: bool, report: ProgressReporter) -> object:
        return pipeline.run(once=once, only="apply", report_progress=report, spark=_spark(pipeline.project))

    _run("apply", run)


def report() -> None:
    """Write the report."""
    _run("report", lambda pipeline, _once, _report: pipeline.write_report())


def maintain() -> None:
    """Maintain bronze and silver."""
    _run(
        "maintain",
        lambda pipeline, _, report: pipeline.maintain(report_progress=report, spark=_spark(pipeline.project)),
    )


def _run(name: str, work: Callable[[Pipeline, bool, ProgressReporter], object]) -> None:
    """Run an entry point."""
    job_parameters = parameters(name, sys.argv[1:])
    loaded = Pipeline.load(
        Path(job_parameters[NEEDED]), environment=job_parameters.get("environment") or None, secrets=from_cluster
    )
    project = loaded.project
    configure(sys.stderr, level=Level.INFO, secrets=secret_values(project.pipeline))
    require_folder(project)
    work(loaded, job_parameters.get("once") == "true", Log(project.name, name).report)


def parameters(name: str, arguments: Sequence[str]) -> Mapping[str, str]:
    """The parameters of an entry point, from `--name=value`. Raises JobParametersWrong.

    The optional wheel wrapper of bundles passes them as `name=value`.
    """
    values: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        key = key.removeprefix("--")
        if not equals or key not in ENTRY_POINTS[name] or key in values:
            raise errors.JobParametersWrong(f"`{key}` is not a parameter of `{name}`, or is given twice")
        values[key] = value
    if not values.get(NEEDED):
        raise errors.JobParametersWrong(f"`{name}` requires the parameter `{NEEDED}`")
    if values.get("once", "false") not in {"true", "false"}:
        raise errors.JobParametersWrong("`once` must be `true` or `false`")
    return values


def _spark(project: Project) -> SparkSession:
    """The session of the current runtime. Raises SparkMissing, ServerlessCompute, RuntimeUnfit."""
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415  # a receiver needs no Spark
    except ImportError as cause:
        raise errors.SparkMissing from cause
    spark = SparkSession.builder.getOrCreate()
    require_runtime(spark)
    if project.lake_address is None:
        require_seen(spark, project.lake)
    return apply_settings(spark)


def require_runtime(spark: SparkSession) -> None:
    """Raise ServerlessCompute or RuntimeUnfit unless a session is on a classic cluster with our Spark."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise errors.ServerlessCompute("this Spark session uses Spark Connect, as on serverless compute")
    minor = SPARK_VERSION.rpartition(".")[0]
    if not spark.version.startswith(f"{minor}."):
        raise errors.RuntimeUnfit(f"this runtime has Spark {spark.version}, but cdc_lake needs {minor}")
