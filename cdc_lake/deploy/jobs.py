"""What jobs on Databricks call: `receive`, `apply`, `report`, `maintain`.

Plain functions that return when they are done and raise when they failed: a platform that calls an entry point takes
`sys.exit`, also with 0, for a failure. Nothing hooks into how exceptions are shown. Parameters come as Databricks
passes the `named_parameters` of a wheel task: `--name=value` on the command line. Spark is the runtime's own session.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cdc_lake import api
from cdc_lake.config.project import Project
from cdc_lake.config.secret_values import secret_values
from cdc_lake.deploy.entry_points import ENTRY_POINTS, NEEDED
from cdc_lake.deploy.lake_folder import require_folder, require_seen
from cdc_lake.deploy.secret_names import from_cluster
from cdc_lake.errors import CdcLakeError, JobParametersWrong, RuntimeUnfit, ServerlessCompute, SparkMissing
from cdc_lake.lake.session import SPARK_VERSION, configured
from cdc_lake.observe.log import Level, Log, configure
from cdc_lake.observe.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def receive() -> None:
    """Receive into bronze, without end; with `--once=true` up to where the source is now."""
    _run("receive", _receive)


def apply() -> None:
    """Apply bronze to silver, without end; with `--once=true` up to what bronze holds."""
    _run("apply", _apply)


def report() -> None:
    """Write the report."""
    _run("report", lambda job: api.report(job.project))


def maintain() -> None:
    """Keep bronze and silver up."""
    _run("maintain", lambda job: api.maintain(job.project, tell=job.tell, spark=_spark(job.project)))


@dataclass(frozen=True, slots=True)
class _Job:
    """One run of an entry point."""

    project: Project
    once: bool
    tell: Callable[[Progress], None]


def _receive(job: _Job) -> object:
    return api.run(job.project, once=job.once, only="receive", tell=job.tell)


def _apply(job: _Job) -> object:
    return api.run(job.project, once=job.once, only="apply", tell=job.tell, spark=_spark(job.project))


def _run(name: str, work: Callable[[_Job], object]) -> None:
    with _with_remedy():
        given = parameters(name, sys.argv[1:])
        project = api.load_pipeline(
            Path(given[NEEDED]), environment=given.get("environment") or None, secrets=from_cluster
        )
        secrets = secret_values(project.pipeline)
        configure(sys.stderr, level=Level.INFO, pretty=False, colour=False, secrets=secrets)
        require_folder(project)
        work(_Job(project, given.get("once") == "true", Log(project.name, name).tell))


def parameters(name: str, arguments: Sequence[str]) -> Mapping[str, str]:
    """The parameters of an entry point, from `--name=value`. Raises JobParametersWrong.

    Through the wrapper of wheels that bundles can ask for, they come as `name=value`.
    """
    given: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        key = key.removeprefix("--")
        if not equals or key not in ENTRY_POINTS[name] or key in given:
            raise JobParametersWrong(f"`{key}` is no parameter of `{name}`, or stands there twice")
        given[key] = value
    if not given.get(NEEDED):
        raise JobParametersWrong(f"`{name}` is not told its `{NEEDED}`")
    if given.get("once", "false") not in {"true", "false"}:
        raise JobParametersWrong("`once` is `true` or `false`")
    return given


def _spark(project: Project) -> SparkSession:
    """The session of the runtime that this runs in. Raises SparkMissing, ServerlessCompute, RuntimeUnfit."""
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415  # a receiver needs no Spark
    except ImportError as cause:
        raise SparkMissing from cause
    spark = SparkSession.builder.getOrCreate()
    require_runtime(spark)
    require_seen(spark, project.lake)
    return configured(spark)


def require_runtime(spark: SparkSession) -> None:
    """Raise ServerlessCompute or RuntimeUnfit where a session is not one of a classic cluster with our Spark."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise ServerlessCompute("this session of Spark is one of Spark Connect, as serverless compute has it")
    minor = SPARK_VERSION.rpartition(".")[0]
    if not spark.version.startswith(f"{minor}."):
        raise RuntimeUnfit(f"this runtime has Spark {spark.version}, cdc_lake needs {minor}")


@contextmanager
def _with_remedy() -> Iterator[None]:
    """Let an error that ends the job say its code, its place and what to do below its message."""
    try:
        yield
    except CdcLakeError as error:
        for note in (f"error[{error.code}]", error.where and f"in {error.where}", error.remedy):
            if note:
                error.add_note(note)
        raise
