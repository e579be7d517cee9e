"""The log: one JSON object a line, declared events with declared fields, no secret; and the code tells nothing else."""

from __future__ import annotations

import ast
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

import cdc_lake
from cdc_lake.errors import CatalogUnreachable
from cdc_lake.observability import logging as log_module
from cdc_lake.observability.events import BY_NAME, EVENTS, OF_EVERY_EVENT, Level, ProgressEvent, of_run
from cdc_lake.observability.logging import MASKED, Log, configure
from tests.canary import CANARY, Told
from tools.docs.monitoring import FIELDS

PACKAGE = Path(str(cdc_lake.__file__)).parent


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    yield io.StringIO()
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def told_in_the_code() -> Iterator[tuple[str, ast.Call]]:
    """Every `Progress(…)` of the package, with its place."""
    for file in sorted(PACKAGE.rglob("*.py")):
        if file.name in {"schema_evolution.py", "iceberg_silver.py"}:  # another Progress
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ProgressEvent" and node.args:
                yield f"{file.name}:{node.lineno}", node


def test_every_stage_that_the_code_tells_is_an_event() -> None:
    stages = {place: call.args[0].value for place, call in told_in_the_code() if isinstance(call.args[0], ast.Constant)}
    assert len(stages) > 50
    assert {place: stage for place, stage in stages.items() if stage not in BY_NAME} == {}


def test_every_fact_that_the_code_names_is_a_field_of_its_event() -> None:
    wrong = {}
    for place, call in told_in_the_code():
        given = next((word.value for word in call.keywords if word.arg == "facts"), None)
        if isinstance(given, ast.Dict) and isinstance(call.args[0], ast.Constant):
            names = {key.value for key in given.keys if isinstance(key, ast.Constant)}
            if undeclared := names - OF_EVERY_EVENT - set(BY_NAME[call.args[0].value].fields):
                wrong[place] = undeclared
    assert wrong == {}


def test_every_field_has_a_meaning_and_is_used() -> None:
    used = {field for event in EVENTS for field in event.fields}
    assert used | {"run"} == set(FIELDS)
    assert len(BY_NAME) == len(EVENTS)


def test_a_line_says_what_of_which_run_and_where(stream: io.StringIO) -> None:
    configure(stream, level=Level.INFO)
    tell = of_run("3f2a", Log("shop", "run").report)
    tell(ProgressEvent("landed", "2 transactions", 7, None, "changes", {"position": "0/16B3748", "upto": 23803720}))
    (line,) = lines(stream)
    assert time.strptime(str(line.pop("timestamp"))[:19], "%Y-%m-%dT%H:%M:%S")
    assert line == {
        "event": "landed", "level": "info", "pipeline": "shop", "verb": "run", "run": "3f2a", "text": "2 transactions",
        "done": 7, "unit": "changes", "position": "0/16B3748", "upto": 23803720,
    }  # fmt: skip


def test_what_nobody_declared_is_left_out_and_named(stream: io.StringIO) -> None:
    configure(stream, level=Level.INFO)
    log = Log("shop", "run")
    log.report(ProgressEvent("cut", "3 of 3 tables", facts={"position": "0/1", "row": {"email": "a@b"}}))
    log.report(ProgressEvent("no such event", "a@b", facts={"position": "0/1"}))
    assert "a@b" not in stream.getvalue()
    assert [line["refused"] for line in lines(stream)] == [["row"], ["position", "text"]]


def test_a_secret_is_masked_wherever_it_lies(stream: io.StringIO) -> None:
    secrets = frozenset({"hunter2", "hunter2canary", "x"})
    configure(stream, level=Level.INFO, secrets=secrets)
    log = Log("shop", "run")
    log.note("the server said hunter2canary")
    log.report(ProgressEvent("receive", "x", facts={"tables": ["public.hunter2", ("deep", {"hunter2": "hunter2"})]}))
    log.error(CatalogUnreachable("away", where="s3://hunter2@lake"))
    assert "hunter2" not in stream.getvalue()
    assert "canary" not in stream.getvalue()
    assert stream.getvalue().count(MASKED) == 5


def test_what_repeats_is_written_now_and_then_and_what_has_a_code_always(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(log_module.time, "monotonic", lambda: now)
    configure(stream, level=Level.INFO)
    log = Log("shop", "run")

    def merged(table: str) -> None:
        log.report(ProgressEvent("merge", table, facts={"table": table}))

    for table in ("silver.a", "silver.a", "silver.b"):
        merged(table)
    log.report(ProgressEvent("apply", "silver waits", facts={"code": "STA655"}))
    log.report(ProgressEvent("apply", "silver waits", facts={"code": "STA655"}))
    now += log_module.EVERY
    merged("silver.a")
    assert [(line["level"], line["text"]) for line in lines(stream)] == [
        ("info", "silver.a"), ("info", "silver.b"), ("warning", "silver waits"), ("warning", "silver waits"),
        ("info", "silver.a"),
    ]  # fmt: skip


def test_at_debug_level_everything_is_written(stream: io.StringIO) -> None:
    configure(stream, level=Level.DEBUG)
    log = Log("shop", "run")
    for _ in range(3):
        log.report(ProgressEvent("landed", "1 transaction"))
    assert [line["level"] for line in lines(stream)] == ["info", "debug", "debug"]


PIPELINE = (
    "version: 1\npipeline: shop\nobserve: {log: LOG}\nsource: {type: postgres, host: 127.0.0.1, port: 1, database: d,"
    f" user: u, password: {CANARY}, tables: ['public.*'], connect_timeout: 1 s}}\n"
)


def test_where_a_pipeline_asks_for_it_standard_error_is_json(told: Told) -> None:
    code, said = told(PIPELINE.replace("LOG", "json"), "run", "--once", "--only", "receive")
    found = [json.loads(line) for line in said.splitlines()]
    assert code == 4
    assert [line["event"] for line in found] == ["run", "run", "error"]
    assert found[0]["run"] == found[1]["run"]
    assert (found[1]["outcome"], found[1]["code"], found[2]["code"]) == ("failed", "SRC201", "SRC201")
    assert found[2]["hint"]
    assert CANARY not in said


@pytest.mark.parametrize("quiet", [["-q"], []])
def test_where_it_does_not_narration_is_for_people(told: Told, quiet: list[str]) -> None:
    code, said = told(PIPELINE.replace("LOG", "text"), "run", "--once", "--only", "receive", *quiet)
    assert code == 4
    assert said.startswith("error[SRC201]")


def test_a_quiet_command_logs_errors_alone(told: Told) -> None:
    _, said = told(PIPELINE.replace("LOG", "json"), "run", "--once", "--only", "receive", "-q")
    assert [json.loads(line)["event"] for line in said.splitlines()] == ["error"]
