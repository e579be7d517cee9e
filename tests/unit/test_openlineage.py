"""OpenLineage without Spark: column lineage against a naive one, events by the client's model, servers that do anything."""

from __future__ import annotations

import json
import random
import socket
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cdc_lake.config.model import Observe, OpenLineage, Pipeline
from cdc_lake.config.project import Project
from cdc_lake.config.silver_tables import Transforms
from cdc_lake.errors import CdcLakeError, LakeError
from cdc_lake.errors.base import install
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.runtime.apply.applier import ChainedListener, watching
from cdc_lake.runtime.apply.lineage_listener import LineageSender, LineageWatch
from cdc_lake.runtime.apply.merge import ApplyTotals, TableApplied
from cdc_lake.runtime.apply.metrics import ApplyMetrics
from cdc_lake.runtime.apply.openlineage import (
    ColumnFate,
    ColumnOrigin,
    columns_from,
    event,
    rows_by,
    run_id,
    silver_name,
    source_name,
)
from cdc_lake.silver.kinds import kind_of
from cdc_lake.silver.layout_mapping import RelationMapping
from cdc_lake.silver.transforms import Expression, Projection, plain, silver_shape
from cdc_lake_testing.messages import table
from tests.canary import CANARY
from tests.cut_lake import CutLake
from tests.lineage_events import read
from tests.seeds import seeds

NAMES = ("id", "qty", "note", "region", "price")
WIDE = table("public.t", **dict.fromkeys(NAMES, "int4"))


def shape(relation: Any = WIDE) -> RelationMapping:
    return RelationMapping(relation, {relation.layout: relation}, (0,))


def projected(given: Transforms, reads: dict[str, set[str]], where: set[str] | None = None) -> Projection:
    """As Spark's analyser would have it, which says what each expression reads."""
    made = silver_shape(shape(), given, dict.fromkeys((name for name, _ in given.compute), "int"), "s.t", str)
    computed = tuple(Expression(sql, "int", frozenset(reads[name])) for name, sql in given.compute)
    condition = None if where is None else Expression("…", "boolean", frozenset(where))
    return Projection(made.source, made, given, condition, computed)


@pytest.mark.parametrize("seed", seeds(20))
def test_column_lineage_is_what_the_transforms_say(seed: int) -> None:
    chance = random.Random(seed)
    excluded = chance.sample(NAMES[1:], chance.randrange(4))
    kept = [name for name in NAMES if name not in excluded]
    renamed = {name: f"new_{name}" for name in chance.sample(kept, chance.randrange(len(kept)))}
    reads = {f"c{at}": set(chance.sample(NAMES, chance.randrange(4))) for at in range(chance.randrange(3))}
    where = set(chance.sample(NAMES, 2)) if chance.random() < 0.5 else None
    given = Transforms(
        exclude=tuple(excluded), rename=tuple(renamed.items()), compute=tuple((name, "…") for name in reads),
        where=None if where is None else "…",
    )  # fmt: skip
    projection = projected(given, reads, where)

    expected = {renamed.get(name, name): {(name, ColumnFate.SAME)} for name in kept}
    expected |= {name: {(one, ColumnFate.COMPUTED) for one in read} for name, read in reads.items()}
    found = columns_from(projection, projection.silver.columns)
    assert {name: {(one.column, one.how) for one in ones} for name, ones in found.items()} == expected
    assert set(rows_by(projection)) == (where or set())


def test_redacted_columns_are_masked_and_columns_of_the_change_come_from_nowhere() -> None:
    columns = tuple(replace(c, redacted="sha256") if c.name == "note" else c for c in WIDE.columns)
    relation = replace(WIDE, columns=columns)
    target = replace(target_of("append"), old_values=True)
    kind = kind_of(target, relation)
    whole = RelationMapping(relation, {relation.layout: relation}, (0,), old_values=True)
    whole = replace(whole, carried=kind.passthrough_columns(whole))
    found = columns_from(plain(whole), kind.columns(whole))
    assert found["note"] == found["_old_note"] == (ColumnOrigin("note", ColumnFate.MASKED),)
    assert found["qty"] == found["_old_qty"] == (ColumnOrigin("qty", ColumnFate.SAME),)
    assert {"_op", "_position", "_commit_ts"} & found.keys() == set()


def target_of(kind: str = "current", **source: Any) -> Any:
    return replace(project_of(**source).target(TableName("public", "t")), kind=kind)


def project_of(root: Path = Path("/srv/shop"), lake: dict[str, Any] | None = None, **source: Any) -> Project:
    given = {"type": "postgres", "host": "db1", "database": "d", "user": "u", "tables": ["public.*"], **source}
    rules = [{"rule": "between", "column": "qty", "max": 9}, {"rule": "expression", "expression": "qty < price"}]
    silver = {"tables": [{"from": "public.t", "rules": rules}]}
    values = {"version": 1, "pipeline": "shop", "source": given, "silver": silver, "lake": lake or {}}
    return Project(Pipeline.model_validate(values), root / "shop.yaml", root)


def applied(project: Project) -> ApplyTotals:
    projection = projected(Transforms(compute=(("total", "qty * price"),)), {"total": {"qty", "price"}})
    target = project.target(TableName("public", "t"))
    done = ApplyTotals(run="3f2a9c0d11e4")
    done.tables[target.label] = TableApplied(target, projection, projection.silver.columns, 12, 2, 4096)
    done.rules = {("silver.t", "between_qty", "warn"): [12, 3], ("silver.t", "expression", "warn"): [12, 0]}
    return done


def test_an_event_is_what_the_model_takes_and_says_how_the_rules_fared() -> None:
    project = project_of()
    (said,) = read([event(project, "prod", "3f2a9c0d11e4", "COMPLETE", applied(project), once=False)])
    by_the_guide = uuid.uuid5(uuid.NAMESPACE_OID, "cdc_lake:shop:3f2a9c0d11e4")
    assert said["run"]["runId"] == run_id("shop", "3f2a9c0d11e4") == str(by_the_guide)
    assert said["job"]["namespace"] == "prod"
    assert said["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    assert said["outputs"][0]["outputFacets"]["outputStatistics"]["size"] == 4096
    judged = said["inputs"][0]["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert [(one["name"], one.get("column"), one["success"]) for one in judged] == [
        ("between_qty", "qty", False), ("expression", None, True),
    ]  # fmt: skip
    total = said["outputs"][0]["facets"]["columnLineage"]["fields"]["total"]["inputFields"]
    assert [one["field"] for one in total] == ["price", "qty"] or [one["field"] for one in total] == ["qty", "price"]
    assert {one["transformations"][0]["subtype"] for one in total} == {"TRANSFORMATION"}


@pytest.mark.parametrize(
    ("error", "message"),
    [(LakeError("the disk is full"), "LAK400: the disk is full"), (ValueError(CANARY), "ValueError")],
)
def test_an_error_of_ours_is_told_in_its_words_and_another_by_its_kind(error: Exception, message: str) -> None:
    project = project_of()
    (said,) = read([event(project, "n", "r", "FAIL", ApplyTotals(), once=True, error=error)])
    code = getattr(error, "code", "")
    told = said["run"]["facets"]["errorMessage"]["message"]
    assert told == (f"{code}: the disk is full" if isinstance(error, CdcLakeError) else message)


@pytest.mark.parametrize(
    ("source", "lake", "namespace", "silver"),
    [
        ({}, {}, "postgres://db1:5432", ("file", "/srv/shop/lake/warehouse/silver/t")),
        ({"host": None, "hosts": ["a:1", "b:2"]}, {}, "postgres://a:1", ("file", "/srv/shop/lake/warehouse/silver/t")),
        ({"type": "opengauss", "port": 8000}, {"iceberg": {"warehouse": "s3://lake/wh"}}, "opengauss://db1:8000", ("s3://lake", "wh/silver/t")),
        ({}, {"iceberg": {"type": "rest", "uri": "https://u:hunter2canary@cat:8181/x"}}, "postgres://db1:5432", ("iceberg://cat:8181", "silver.t")),
        ({}, {"iceberg": {"type": "rest", "uri": "https://cat", "warehouse": "main"}}, "postgres://db1:5432", ("iceberg://cat", "main.silver.t")),
    ],
)  # fmt: skip
def test_tables_have_the_names_that_others_give_them(
    source: dict[str, Any], lake: dict[str, Any], namespace: str, silver: tuple[str, str]
) -> None:
    project = project_of(lake=lake, **source)
    target = project.target(TableName("public", "t"))
    assert source_name(project, target.source) == (namespace, "d.public.t")
    assert silver_name(project, replace(target, format="iceberg")) == silver
    assert silver_name(project, target) == ("file", "/srv/shop/lake/silver/t")


@pytest.mark.parametrize("to", ["", "lineage.txt", "ftp://h", f"http://u:{CANARY}@h", "http://h?x=1", "s3://b/x.jsonl"])
def test_what_is_no_place_for_events_is_refused(to: str) -> None:
    with pytest.raises(ValidationError):
        OpenLineage(to=to)


# ── sending ──────────────────────────────────────────────────────────────────────────────────────────────────────


def watch(lake: CutLake, to: str, told: list[ProgressEvent], timeout: int = 5000) -> LineageWatch:
    where = OpenLineage.model_validate({"to": to, "timeout": timeout, "api_key": CANARY})
    return LineageWatch(lake.project, where, told.append, once=True)


def one_run(watcher: LineageWatch) -> None:
    with watcher:
        watcher.follow(ApplyTotals(run="r1"))
        watcher.on_pass_end()


@contextmanager
def serving(status: int) -> Iterator[tuple[str, list[tuple[str, str, dict[str, Any]]]]]:
    """A lineage server; what it was sent."""
    got: list[tuple[str, str, dict[str, Any]]] = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append((self.path, self.headers["authorization"], json.loads(body)))
            self.send_response(status)
            self.send_header("location", "/elsewhere")
            self.end_headers()
            self.wfile.write(f"you sent {self.headers}".encode())

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", got
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_gets_every_event_of_a_run_with_its_key(tmp_path: Path) -> None:
    told: list[ProgressEvent] = []
    with serving(201) as (to, got):
        one_run(watch(CutLake(tmp_path), to, told))
    assert [(path, key, body["eventType"]) for path, key, body in got] == [
        ("/api/v1/lineage", f"Bearer {CANARY}", "START"), ("/api/v1/lineage", f"Bearer {CANARY}", "COMPLETE"),
    ]  # fmt: skip
    assert told == []


@pytest.mark.parametrize("status", [302, 401, 500])
def test_a_server_that_refuses_is_told_of_once_and_not_followed(tmp_path: Path, status: int) -> None:
    told: list[ProgressEvent] = []
    with serving(status) as (to, got):
        one_run(watch(CutLake(tmp_path), to, told))
    assert [path for path, _, _ in got] == ["/api/v1/lineage"] * 2
    assert [(one.stage, one.facts["code"]) for one in told] == [("warning", "DEP716")]
    assert f"status {status}" in told[0].text
    assert CANARY not in told[0].text


def test_a_server_that_is_away_is_told_of_once(tmp_path: Path) -> None:
    told: list[ProgressEvent] = []
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    one_run(watch(CutLake(tmp_path), f"http://127.0.0.1:{port}", told))
    assert ["cannot be reached" in one.text for one in told] == [True]


def test_a_server_that_hangs_is_waited_for_no_longer_than_the_timeout(tmp_path: Path) -> None:
    told: list[ProgressEvent] = []
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        one_run(watch(CutLake(tmp_path), f"http://127.0.0.1:{hanging.getsockname()[1]}", told, timeout=100))
    assert [one.facts["code"] for one in told] == ["DEP716"]


def test_a_server_that_answers_a_byte_at_a_time_is_not_waited_for_either(tmp_path: Path) -> None:
    """Each byte comes in time, the answer never."""
    told, over = list[ProgressEvent](), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nx: ")
                while not over.wait(0.02):
                    connection.sendall(b"y")

        thread = threading.Thread(target=drip)
        thread.start()
        one_run(watch(CutLake(tmp_path), f"http://127.0.0.1:{server.getsockname()[1]}", told, timeout=100))
        over.set()
        thread.join()
    assert "no answer within 0.1 s" in told[0].text


def test_whoever_has_events_never_waits_and_what_is_too_much_is_told() -> None:
    told, gate = list[str](), threading.Event()

    def stuck(_: str) -> None:
        gate.wait()

    sender = LineageSender(stuck, 0.05, told.append)
    for number in range(150):
        sender.put(str(number))
    assert told == ["the receiving server accepts no events, and the buffer is full"]
    sender.close()
    gate.set()


def test_events_go_into_a_file_a_line_each(tmp_path: Path) -> None:
    told: list[ProgressEvent] = []
    lake = CutLake(tmp_path)
    one_run(watch(lake, "lineage.jsonl", told))
    one_run(watch(lake, "lineage.jsonl", told))
    said = read((tmp_path / "lineage.jsonl").read_text().splitlines())
    assert [one["eventType"] for one in said] == ["START", "COMPLETE"] * 2
    one_run(watch(lake, "no/folder.jsonl", told))
    assert [one.facts["code"] for one in told] == ["DEP716"]
    assert "No such file" in told[0].text


def test_a_run_that_is_interrupted_is_aborted_and_one_without_end_says_how_far_it_is(tmp_path: Path) -> None:
    lake = CutLake(tmp_path)
    to = OpenLineage.model_validate({"to": "lineage.jsonl", "every": 1000})
    watcher = LineageWatch(lake.project, to, list[ProgressEvent]().append, once=False)

    def interrupted() -> None:
        with watcher:
            watcher.follow(ApplyTotals(run="r1"))
            watcher.on_pass_end()
            watcher._sent_at -= 1
            watcher.on_pass_end()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    said = read((tmp_path / "lineage.jsonl").read_text().splitlines())
    assert [one["eventType"] for one in said] == ["START", "RUNNING", "ABORT"]
    assert {one["job"]["facets"]["jobType"]["processingType"] for one in said} == {"STREAMING"}


def test_metrics_and_lineage_watch_side_by_side_and_what_lineage_warns_of_is_told(tmp_path: Path) -> None:
    lake, told = CutLake(tmp_path), list[ProgressEvent]()
    observe = Observe.model_validate({"textfile": "shop.prom", "openlineage": {"to": "no/folder.jsonl"}})
    pipeline = lake.project.pipeline.model_copy(update={"observe": observe})
    watcher = watching(Project(pipeline, lake.project.file, lake.project.root), told.append)
    assert isinstance(watcher, ChainedListener)
    assert isinstance(watcher._second, ApplyMetrics)
    with watcher:
        watcher.follow(ApplyTotals(run="r1"))
        watcher.on_progress(ProgressEvent("cut", "1 of 1 tables"))
        watcher.on_pass_end()
    assert (tmp_path / "shop.prom").exists()
    assert sorted(one.stage for one in told) == ["cut", "warning"]


def test_without_the_package_a_run_goes_on_and_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cdc_lake.runtime.apply.openlineage", None)
    told: list[ProgressEvent] = []
    one_run(watch(CutLake(tmp_path), "lineage.jsonl", told))
    assert [install("openlineage") in one.text for one in told] == [True]
    assert not (tmp_path / "lineage.jsonl").exists()
