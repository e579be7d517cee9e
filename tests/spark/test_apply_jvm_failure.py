"""Spark's JVM ends in a run: it is started again, and a table that ends it each time waits alone."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.loader import load_project
from cdc_lake.errors import ApplyFailed, SparkDied, TableEndsSpark
from cdc_lake.model.change import Change, Insert, Transaction
from cdc_lake.model.relation import TableName
from cdc_lake.runtime.apply.spark_sessions import SparkLives
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake_testing.faults import Pipeline
from cdc_lake_testing.messages import boundaries, raw_transaction, table

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200), pytest.mark.usefixtures("jars")]

FILE = """\
version: 1
pipeline: ends
source: {type: postgres, host: h, database: d, user: u, tables: ["public.*"]}
snapshot: {mode: none}
lake: {iceberg: {properties: {noted: s3cret-property}}}
apply: {driver_memory: 700 MiB}
"""
COMPUTED = """\
silver: {tables: [{from: public.small, compute: {n: "CAST(body AS INT)"}}]}
"""
LARGE = table("public.large", id="int4", body="text")
SMALL = table("public.small", id="int4", body="text")


class Lake:
    """A pipeline of two tables, applied by the command."""

    def __init__(self, folder: Path, more: str = "") -> None:
        self.file = folder / "ends.yaml"
        self.file.write_text(FILE + more)
        self.project = load_project(self.file)
        self.pipeline = Pipeline(self.file, {})
        self.bronze = DeltaBronze(self.project.bronze, durability="os")
        self.bronze.begin_stream("test", 10)
        self.position = 100

    def land(self, *changes: Change) -> None:
        self.position += 10
        self.bronze.append([raw_transaction(Transaction(boundaries(self.position), changes))])

    def ids(self, name: str) -> list[int]:
        target = self.project.target(TableName("public", name))
        return sorted(table_log(self.project, target).read().column("id").to_pylist())


@pytest.mark.obeys("LAK405")
def test_a_jvm_that_is_killed_in_a_run_without_end_is_started_again(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.land(Insert(SMALL, ("1", "a")))
    with lake.pipeline.command("run", "--only", "apply") as run:
        run.until("merge")
        assert run.java_command_lines
        assert not any("s3cret" in line for line in run.java_command_lines)
        run.kill_java()
        lake.land(Insert(SMALL, ("2", "b")))
        run.until("merge", 2)
        run.send(signal.SIGTERM)
        assert run.wait(120) == 0, run.said
    again = [event for event in run.events("retry") if "Spark restarts in 1 s" in event["text"]]
    assert [event["facts"]["code"] for event in again] == ["LAK405"]
    assert "Traceback" not in run.said
    assert lake.ids("small") == [1, 2]
    with lake.pipeline.command("rebuild", "public.small") as rebuild:
        while "1 of 1 spans" not in rebuild.everything:
            assert rebuild.running, rebuild.said
            time.sleep(0.05)
        rebuild.kill_java()
        assert rebuild.wait(120) == 4, rebuild.said
    assert SparkDied.code in rebuild.said, rebuild.said
    lake.pipeline.do("rebuild", "public.small")
    assert lake.ids("small") == [1, 2]


@pytest.mark.obeys("LAK494")
def test_a_value_that_is_too_large_keeps_its_table_alone_from_going_on(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.land(Insert(SMALL, ("1", "a")), Insert(LARGE, ("1", "a")))
    lake.land(Insert(LARGE, ("2", "x" * 200_000_000)))
    lake.land(Insert(SMALL, ("2", "b")))
    done = lake.pipeline.do("run", "--once", "--only", "apply", expect=1)
    error = json.loads(done.output.splitlines()[-1])
    assert error["code"] == TableEndsSpark.code, done.said
    assert "silver.large" in error["message"]
    assert "cdc-lake pause" in error["hint"]
    assert "spark.log" in error["hint"] or "spark.log" in error["message"]
    assert lake.ids("small") == [1, 2]
    lake.pipeline.do("pause", "public.large")
    lake.land(Insert(SMALL, ("3", "c")))
    lake.pipeline.do("run", "--once", "--only", "apply")
    assert lake.ids("small") == [1, 2, 3]


def test_a_value_that_an_expression_fails_on_is_told_nowhere(tmp_path: Path) -> None:
    lake = Lake(tmp_path, COMPUTED)
    lake.land(Insert(SMALL, ("1", "12")), Insert(SMALL, ("2", "s3cret-value")))
    with lake.pipeline.command("run", "--once", "--only", "apply") as run:
        assert run.wait(300) != 0
    assert "silver.small could not be merged" in run.said
    assert "CAST_INVALID_INPUT" in run.said
    assert "s3cret" not in run.everything
    logs = [file.read_text(errors="replace") for file in (lake.project.lake / "logs").iterdir()]
    assert logs
    assert not any("s3cret" in text for text in logs)


def test_who_was_worked_on_alone_twice_is_given_up_and_once_is_anybodys_doing() -> None:
    lives = SparkLives()
    lives.working = {"s.a", "s.b"}
    lives.record_end("killed by signal 9")
    assert (lives.suspects, lives.given_up) == ({"s.a", "s.b"}, {})
    lives.working = {"s.a"}
    lives.record_end("exit code 52")
    assert not lives.given_up
    lives.record_merge("s.b")
    assert lives.suspects == {"s.a"}
    lives.working = set()
    lives.record_end("killed by signal 9")
    lives.working = {"s.a"}
    lives.record_end("exit code 52, out of memory")
    assert list(lives.given_up) == ["s.a"]
    assert "exit code 52, out of memory" in lives.given_up["s.a"].message
    assert not issubclass(TableEndsSpark, ApplyFailed)
