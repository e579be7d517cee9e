"""Serves metrics and health of a process to Prometheus and probes.

The library writes the format; values are collected on each request. The endpoint answers only `/metrics` and
`/healthz`, without authentication, and a slow client blocks nobody.

A counter that begins with its first increment hides that increment from queries of increase. So the error codes of a
loop start at 0: for the receiver those that it retries, since other failures end it and its metrics; for apply every
code that can end it, since its metrics file remains.
"""

from __future__ import annotations

import bisect
import json
import socket
import socketserver
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from itertools import accumulate
from typing import Final

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from cdc_lake.config.source import host_and_port
from cdc_lake.errors import CdcLakeError, MetricsNotServed, Retry, kinds
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.observability.metrics import ERRORS_TOTAL, METRICS, Kind, Loop, Metric


@dataclass(frozen=True, slots=True)
class Sample:
    """The value of one series; for a histogram `counts` by bucket, the last one above all bounds, `value` the sum."""

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()


class Tally:
    """The counters of a process; thread-safe."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._counts: Counter[tuple[Metric, tuple[str, ...]]] = Counter()
        self._spread: dict[tuple[Metric, tuple[str, ...]], list[int]] = {}
        self._sums: Counter[tuple[Metric, tuple[str, ...]]] = Counter()

    def add(self, metric: Metric, *labels: str, by: int = 1) -> None:
        """Increase a counter; by 0 creates the series before anything happens."""
        with self._turn:
            self._counts[metric, labels] += by

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Add a value to its bucket."""
        with self._turn:
            buckets = self._spread.setdefault((metric, labels), [0] * (len(metric.buckets) + 1))
            buckets[bisect.bisect_left(metric.buckets, value)] += 1
            self._sums[metric, labels] += value  # type: ignore[assignment]  # a Counter adds floats as well

    def samples(self) -> list[Sample]:
        """Everything counted so far."""
        with self._turn:
            collected = [Sample(metric, value, labels) for (metric, labels), value in self._counts.items()]
            for (metric, labels), buckets in self._spread.items():
                collected.append(Sample(metric, self._sums[metric, labels], labels, tuple(buckets)))
        return collected


class Exposition:
    """A collector for the library. `samples` is called on each request."""

    def __init__(self, pipeline: str, samples: Callable[[], Iterable[Sample]]) -> None:
        self._pipeline = pipeline
        self._samples = samples

    def collect(self) -> Iterator[Family]:
        """The metric families that currently have a value, in the order of their documentation page."""
        samples_by_metric: dict[Metric, list[Sample]] = {}
        for sample in self._samples():
            samples_by_metric.setdefault(sample.metric, []).append(sample)
        for metric in METRICS:
            if samples := samples_by_metric.get(metric):
                yield self._family(metric, sorted(samples, key=lambda sample: sample.labels))

    def _family(self, metric: Metric, samples: list[Sample]) -> Family:
        names = ("pipeline", *metric.labels)
        match metric.kind:
            case Kind.HISTOGRAM:
                spread = HistogramMetricFamily(metric.name, metric.help, labels=names)
                bounds = [*map(str, metric.buckets), "+Inf"]
                for sample in samples:
                    buckets = list(zip(bounds, accumulate(sample.counts), strict=True))
                    spread.add_metric((self._pipeline, *sample.labels), buckets, sample.value)
                return spread
            case Kind.COUNTER:
                family: CounterMetricFamily | GaugeMetricFamily = CounterMetricFamily(
                    metric.name, metric.help, labels=names
                )
            case Kind.GAUGE:
                family = GaugeMetricFamily(metric.name, metric.help, labels=names)
        for sample in samples:
            family.add_metric((self._pipeline, *sample.labels), sample.value)
        return family


_FAMILIES: Final = ("SRC", "DEC", "LAK", "QUA", "STA")


class ErrorCounts:
    """Counts error codes into a tally, for one loop."""

    def __init__(self, tally: Tally, loop: Loop) -> None:
        self._tally = tally
        self._loop = loop
        for kind in kinds(CdcLakeError):
            if kind.code.startswith(_FAMILIES) and (loop is Loop.APPLY or kind.retry is Retry.LATER):
                self.add(kind.code, by=0)

    def on_progress(self, progress: ProgressEvent) -> None:
        """Count a report that has a code."""
        code = progress.facts.get("code")
        if code is not None:
            self.add(str(code))

    def add(self, code: str, by: int = 1) -> None:
        """Count a failure."""
        self._tally.add(ERRORS_TOTAL, self._loop, code, by=by)


@contextmanager
def serve(
    address: str, exposition: Exposition, health: Callable[[], tuple[bool, Mapping[str, object]]]
) -> Iterator[None]:
    """Serve inside the block. `health`: whether the process is healthy, and a JSON document with details.

    Raises MetricsNotServed if the address is unavailable.
    """

    class Handler(BaseHTTPRequestHandler):
        """GET only; does not reveal the Python version and writes nothing to standard error."""

        timeout = 10.0  # seconds for a client to send its request and receive the answer
        server_version, sys_version = "cdc_lake", ""

        def do_GET(self) -> None:
            status, kind, body = HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"/metrics, /healthz\n"
            path = self.path.partition("?")[0]
            if path == "/metrics":
                encode, kind = choose_encoder(self.headers.get("Accept", ""))
                status, body = HTTPStatus.OK, encode(exposition)
            elif path == "/healthz":
                well, details = health()
                status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
                kind, body = "application/json", json.dumps(details).encode() + b"\n"
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
            """Does nothing: scrapes are not logged."""

    host, port = host_and_port(address)
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]

        class Server(socketserver.ThreadingTCPServer):
            address_family = family
            allow_reuse_address = True  # of a process that just ended; a listening one keeps it
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                if not isinstance(sys.exception(), OSError):  # disconnected clients are ignored
                    super().handle_error(request, client_address)  # type: ignore[arg-type]  # as they came

        server = Server(place, Handler)  # type: ignore[arg-type]  # as getaddrinfo gives it
    except OSError as failure:
        text = f"the address `{address}` cannot be used: {failure.strerror or type(failure).__name__}"
        raise MetricsNotServed(text, where="observe.metrics") from failure
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="cdc-lake-endpoint", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
