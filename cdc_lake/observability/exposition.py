"""Exposition: values under the names of `observability.metrics`, as Prometheus reads them.

The library writes the format; values come from where they are known anyway, at the moment they are asked for.

Failures and warnings with a code, counted as a loop tells them.

A counter that begins with its first increment hides it: what asks for an increase sees none between no value and 1. So
the codes that a loop may show are there from the start, with 0: of the receiver those that it waits out, as its other
failures end it, and its numbers with it; of apply every one that it can end with, since its file of metrics stays.
"""

from __future__ import annotations

import bisect
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from cdc_lake.errors import CdcLakeError, Retry, kinds
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.observability.metrics import ERRORS_TOTAL, METRICS, Kind, Loop, Metric


@dataclass(frozen=True, slots=True)
class Sample:
    """The value of one series; of a histogram `counts` by bucket, the last of them beyond all bounds, and `value` the
    sum.
    """

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()


class Tally:
    """What a process counts; any thread may."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._counts: Counter[tuple[Metric, tuple[str, ...]]] = Counter()
        self._spread: dict[tuple[Metric, tuple[str, ...]], list[int]] = {}
        self._sums: Counter[tuple[Metric, tuple[str, ...]]] = Counter()

    def add(self, metric: Metric, *labels: str, by: int = 1) -> None:
        """Count up; by 0 the series is there before anything happened."""
        with self._turn:
            self._counts[metric, labels] += by

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Count a value into its bucket."""
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
    """A collector, as the library calls what it can write. `samples` is asked each time."""

    def __init__(self, pipeline: str, samples: Callable[[], Iterable[Sample]]) -> None:
        self._pipeline = pipeline
        self._samples = samples

    def collect(self) -> Iterator[Family]:
        """The families that have a value now, in the order of their page."""
        samples_by_metric: dict[Metric, list[Sample]] = {}
        for sample in self._samples():
            samples_by_metric.setdefault(sample.metric, []).append(sample)
        for metric in METRICS:
            if metric in samples_by_metric:
                yield self._family(metric, sorted(samples_by_metric[metric], key=lambda item: item.labels))

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
    """Counts into a tally, for one loop."""

    def __init__(self, tally: Tally, loop: Loop) -> None:
        self._tally = tally
        self._loop = loop
        for kind in kinds(CdcLakeError):
            if kind.code.startswith(_FAMILIES) and (loop is Loop.APPLY or kind.retry is Retry.LATER):
                self.add(kind.code, by=0)

    def on_progress(self, progress: ProgressEvent) -> None:
        """Count what was told, if it has a code."""
        code = progress.facts.get("code")
        if code is not None:
            self.add(str(code))

    def add(self, code: str, by: int = 1) -> None:
        """Count a failure."""
        self._tally.add(ERRORS_TOTAL, self._loop, code, by=by)
