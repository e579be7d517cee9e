"""Metrics: one list of names, served and written as it says; health that is true; nothing of it where nobody asks."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.config.loader import load_project, validate
from cdc_lake.connectors.open_stream import ReceiverHealth
from cdc_lake.errors import MetricsNotServed
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.observability.exposition import Exposition, Sample, Tally, serve
from cdc_lake.observability.metrics import BATCH_ROWS, CHANGES_TOTAL, METRICS, TRANSACTIONS_TOTAL, Kind
from cdc_lake.runtime.receive.metrics import STALLED_AFTER, health_of
from cdc_lake_testing.ports import free_port

ROOT = Path(__file__).parents[2]
LABELS = {"level", "table", "op", "rule", "code", "kind", "loop", "state"}
STATE = StreamCheckpoint("pg:1:shop:shop:0/3E8", 1, 1000, 1000, b"")


def get(address: str, path: str, **headers: str) -> tuple[int, str, str]:
    request = urllib.request.Request(f"http://{address}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.headers["Content-Type"], reply.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.headers["Content-Type"], refused.read().decode()


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_names_follow_the_rules_of_prometheus_and_labels_are_bounded() -> None:
    assert len({one.name for one in METRICS}) == len(METRICS)
    for one in METRICS:
        assert re.fullmatch(r"cdc_lake_[a-z_]+", one.name), one.name
        assert (one.kind is Kind.COUNTER) == one.name.endswith("_total"), one.name
        assert bool(one.buckets) == (one.kind is Kind.HISTOGRAM), one.name
        assert set(one.labels) <= LABELS, one.name
        assert one.help.endswith("."), one.name


# ── exposition ───────────────────────────────────────────────────────────────────────────────────────────────────


def counted() -> Tally:
    tally = Tally()
    tally.add(TRANSACTIONS_TOTAL, by=0)
    tally.add(TRANSACTIONS_TOTAL, by=3)
    tally.add(CHANGES_TOTAL, "U", by=2)
    tally.add(CHANGES_TOTAL, "I")
    for rows in (1, 1, 7, 2_000_000):
        tally.observe(BATCH_ROWS, rows)
    return tally


def test_what_is_counted_is_exposed_under_its_name_and_nothing_else_is() -> None:
    with serve(f"127.0.0.1:{(port := free_port())}", Exposition("shop", counted().samples), lambda: (True, {})):
        status, kind, text = get(f"127.0.0.1:{port}", "/metrics")
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(families) == {"cdc_lake_transactions", "cdc_lake_changes", "cdc_lake_batch_rows"}
    values = {(s.name, *sorted(s.labels.items())): s.value for f in families.values() for s in f.samples}
    pipeline = ("pipeline", "shop")
    assert values["cdc_lake_transactions_total", pipeline] == 3
    assert values["cdc_lake_changes_total", ("op", "U"), pipeline] == 2
    assert values["cdc_lake_batch_rows_bucket", ("le", "1.0"), pipeline] == 2
    assert values["cdc_lake_batch_rows_bucket", ("le", "1000000.0"), pipeline] == 3
    assert values["cdc_lake_batch_rows_bucket", ("le", "+Inf"), pipeline] == 4
    assert values["cdc_lake_batch_rows_sum", pipeline] == 2_000_009
    assert families["cdc_lake_changes"].documentation == CHANGES_TOTAL.help


def test_counting_from_many_threads_loses_nothing() -> None:
    tally = Tally()
    threads = [threading.Thread(target=lambda: [tally.add(TRANSACTIONS_TOTAL) for _ in range(2_000)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tally.samples() == [Sample(TRANSACTIONS_TOTAL, 16_000)]


# ── the endpoint ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_healthz_answers_200_or_503_with_a_document_and_other_paths_are_not_there(host: str) -> None:
    if host == "[::1]" and not ipv6():
        pytest.skip("this machine has no IPv6")
    well = [True]
    address = f"{host}:{free_port()}"
    with serve(address, Exposition("shop", list), lambda: (well[0], {"state": "streaming"})):
        status, kind, text = get(address, "/healthz")
        assert (status, kind, json.loads(text)) == (200, "application/json", {"state": "streaming"})
        well[0] = False
        assert get(address, "/healthz?from=probe")[0] == 503
        assert get(address, "/")[0] == 404
        assert get(address, "/metrics", Accept="application/openmetrics-text; version=1.0.0")[2].endswith("# EOF\n")
    with pytest.raises(urllib.error.URLError):
        get(address, "/healthz")
    with serve(address, Exposition("shop", list), lambda: (True, {})):
        assert get(address, "/healthz")[0] == 200, "the port is free again at once"


def ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_a_caller_that_says_nothing_keeps_nobody_else_waiting() -> None:
    port = free_port()
    with (
        serve(f"127.0.0.1:{port}", Exposition("shop", list), lambda: (True, {})),
        socket.create_connection(("127.0.0.1", port)),
        socket.create_connection(("127.0.0.1", port)),
    ):
        assert get(f"127.0.0.1:{port}", "/healthz")[0] == 200


def test_a_port_in_use_is_an_error_with_its_remedy() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(MetricsNotServed, match=re.escape(address)) as refused, taken(address):
            pass
    assert (refused.value.code, refused.value.where, refused.value.exit_status) == ("DEP710", "observe.metrics", 1)
    assert "Address already in use" in refused.value.message
    assert "its own port" in refused.value.remedy
    with pytest.raises(MetricsNotServed), taken("192.0.2.1:9187"):
        pass


def taken(address: str) -> AbstractContextManager[None]:
    return serve(address, Exposition("shop", list), lambda: (True, {}))


# ── health ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def retry(code: str | None) -> ProgressEvent:
    return ProgressEvent("retry", "the store is away; next attempt in 1 s", facts={"code": code})


def test_a_receiver_is_healthy_only_while_it_lands_and_confirms() -> None:
    clock = Clock()
    pulse = ReceiverHealth(clock)

    def said(
        copied: float | None = None, trouble: float | None = None, answered: float | None = None
    ) -> tuple[bool, str]:
        why = None if trouble is None else (trouble, retry("LAK435"))
        one = health_of(clock.now, pulse, copied=copied, answered=answered, trouble=why)
        return one.healthy, one.state

    assert said() == (False, "starting")
    assert said(copied=99) == (True, "copying")
    assert said(copied=clock.now - STALLED_AFTER - 1) == (False, "stalled")
    with pulse.follow_stream(STATE):
        assert said() == (True, "streaming")
        assert said(trouble=100) == (False, "waiting"), "a failure in the same moment is not passed over"
        clock.now = 110
        pulse.record_iteration(7, 0, idle=False)
        assert said(trouble=105) == (False, "waiting")
        pulse.record_iteration(7, 0, idle=True)
        assert said(trouble=105) == (True, "streaming"), "what made progress since has left it behind"
        clock.now += STALLED_AFTER + 1
        pulse.record_iteration(7, 0, idle=False)
        assert said() == (False, "stalled")
        pulse.commit_started(2000, 5)
        pulse.commit_finished(2000, 2000)
        assert said() == (True, "streaming")
        assert (pulse.open_bytes, pulse.commit_ts, pulse.state) == (
            7,
            5,
            StreamCheckpoint(STATE.stream, 1, 2000, 2000, b""),
        )
        clock.now += STALLED_AFTER + 1
        pulse.record_iteration(7, 0, idle=True)
        assert said() == (False, "silent"), "nothing comes, and nobody knows whether there is anything"
        assert said(answered=clock.now - 1) == (True, "streaming"), "a source at rest"
        pulse.commit_finished(2000, 2000)
        assert said() == (True, "streaming"), "what comes is a sign of it too"
    assert (said(), pulse.open_bytes) == ((False, "starting"), 0), "the connection is gone"


def test_what_is_spilled_counts_over_connections() -> None:
    pulse = ReceiverHealth()
    for written in (100, 130), (40, 40):
        with pulse.follow_stream(STATE):
            for bytes_ in written:
                pulse.record_iteration(0, bytes_, idle=True)
    assert pulse.spilled_bytes == 170


def test_only_what_landed_says_how_old_bronze_is() -> None:
    pulse = ReceiverHealth()
    with pulse.follow_stream(STATE):
        pulse.commit_started(2000, 5)
        pulse.commit_finished(1500, 1500)
        assert pulse.commit_ts is None, "the batch ended early"
        pulse.commit_finished(2000, 2000)
        assert pulse.commit_ts == 5


# ── the pipeline file ────────────────────────────────────────────────────────────────────────────────────────────

HEAD = 'version: 1\npipeline: shop\nsource: {type: postgres, host: h, database: d, user: u, tables: ["public.*"]}\n'


@pytest.mark.parametrize("address", ["127.0.0.1:9187", "[::1]:9187", "metrics.example:80", "0.0.0.0:65535"])
def test_addresses_are_host_and_port(tmp_path: Path, address: str) -> None:
    (tmp_path / "shop.yaml").write_text(f'{HEAD}observe: {{metrics: "{address}", textfile: out/shop.prom}}\n')
    project = load_project(tmp_path / "shop.yaml")
    assert project.pipeline.observe.metrics == address
    assert project.textfile == tmp_path / "out" / "shop.prom"


@pytest.mark.parametrize(
    "given", ["metrics: 9187", 'metrics: "127.0.0.1"', 'metrics: "h:0"', 'metrics: "h:70000"', "textfile: shop.txt"]
)
def test_what_is_no_address_and_no_textfile_is_told_at_its_place(tmp_path: Path, given: str) -> None:
    (tmp_path / "shop.yaml").write_text(f"{HEAD}observe: {{{given}}}\n")
    (found,) = validate([tmp_path / "shop.yaml"])
    assert found.location is not None
    assert (found.code, found.location.line) == ("CFG107", 4)


def test_nothing_of_it_is_loaded_where_nobody_asks() -> None:
    code = (
        "import sys, cdc_lake.cli.app, cdc_lake.runtime.run, cdc_lake.runtime.receive.receiver, cdc_lake.runtime.apply.applier\n"
        "assert not [m for m in sys.modules if m.startswith(('prometheus_client', 'http.server'))]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
