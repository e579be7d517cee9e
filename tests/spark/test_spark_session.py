"""What a session of ours does beside the work it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from py4j.clientserver import ClientServerConnection
from pyspark.errors import utils
from pyspark.sql import functions as F  # noqa: N812

from tests.pipeline_file import make_project

pytestmark = pytest.mark.spark


def test_a_column_costs_few_calls_of_the_jvm(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utils, "_enable_debugging_cache", None)  # it is asked for once a process
    calls: list[str] = []
    send = ClientServerConnection.send_command

    def counted(connection: ClientServerConnection, command: str) -> Any:
        if not command.startswith("m\nd\n"):  # what Python's collector lets go of meanwhile
            calls.append(command)
        return send(connection, command)

    F.col("a") + F.lit(1)
    monkeypatch.setattr(ClientServerConnection, "send_command", counted)
    F.col("a") + F.lit(1)
    assert not utils.is_debugging_enabled()
    assert len(calls) < 7, calls
    assert not [one for one in calls if one.startswith("r\nu\n")], "a class is looked for by its name"


def test_large_methods_are_compiled_too(spark: Any) -> None:
    beans = spark._jvm.java.lang.management.ManagementFactory
    kind = spark._jvm.java.lang.Class.forName("com.sun.management.HotSpotDiagnosticMXBean")
    assert beans.getPlatformMXBean(kind).getVMOption("DontCompileHugeMethods").getValue() == "false"


def test_what_java_prints_goes_to_its_log_and_not_before_the_json_of_a_command(spark: Any, lake_root: Path) -> None:
    spark._jvm.System.out.println("Deleted 0 files")
    assert "Deleted 0 files\n" in (make_project(lake_root).lake / "logs" / "spark.log").read_text()
