"""Jobs of a bundle in a session of Spark that already exists: they use it, and start and change nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from cdc_lake.api import Pipeline
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.deploy import databricks_jobs
from cdc_lake.deploy.databricks_jobs import require_seen
from cdc_lake.errors import LakeFolderUnfit
from cdc_lake.model.change import Insert, Transaction
from cdc_lake_testing.messages import boundaries, raw_transaction, table

pytestmark = pytest.mark.spark
ORDERS = table("public.orders", id="int4", amount="int4")


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Call an entry point with parameters."""

    def called(entry: Callable[[], None], *parameters: str) -> None:
        monkeypatch.setattr(sys, "argv", ["job", *parameters])
        entry()

    yield called
    structlog.reset_defaults()


def test_apply_report_and_maintain_work_in_the_session_that_is_there(
    spark: Any, tmp_path: Path, call: Callable[..., None]
) -> None:
    file = tmp_path / "pipelines" / "jobs.yaml"
    file.parent.mkdir()
    file.write_text(
        "version: 1\npipeline: jobs\n"
        "source: {type: postgres, host: 127.0.0.1, port: 1, database: d, user: u, tables: ['public.*']}\n"
        f"snapshot: {{mode: none}}\nlake: {{path: {tmp_path}/lake}}\nsilver: {{defaults: {{namespace: jobs}}}}\n"
    )
    project = Pipeline.load(file).project
    bronze = DeltaBronze(project.bronze, durability="os")
    bronze.begin_stream("test", 10)
    for position, id_ in ((20, "1"), (30, "2")):
        changes = (Insert(ORDERS, (id_, "7")),)
        bronze.append([raw_transaction(Transaction(boundaries(position), changes))])
    before = spark.sparkContext.applicationId

    call(databricks_jobs.apply, f"--pipeline={file}", "--environment=", "--once=true")
    call(databricks_jobs.report, f"--pipeline={file}")
    call(databricks_jobs.maintain, f"--pipeline={file}")

    assert sorted(row["id"] for row in Pipeline(project).read("public.orders").to_pylist()) == [1, 2]
    assert (project.reports / "report.html").is_file()
    assert spark.sparkContext.applicationId == before
    assert not (project.lake / "logs" / "spark.log").exists(), "no JVM was started"


def test_a_folder_that_spark_does_not_see_under_its_path_is_refused(spark: Any, tmp_path: Path) -> None:
    """As where a path without a scheme is a store's for Spark, and the machine's for Python; here, a pattern for one."""
    (tmp_path / "lake[1]").mkdir()
    require_seen(spark, tmp_path)
    with pytest.raises(LakeFolderUnfit, match="Spark does not see this folder"):
        require_seen(spark, tmp_path / "lake[1]")
    assert [f.name for f in tmp_path.rglob("*")] == ["lake[1]"]
