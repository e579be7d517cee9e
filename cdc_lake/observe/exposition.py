"""Exposition: values under the names of `observe.metric_names`, as Prometheus reads them.

The library writes the format; values come from where they are known anyway, at the moment they are asked for.
"""

from __future__ import annotations

import bisect
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from cdc_lake.observe.metric_names import METRICS, Kind, Metric


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
            out = [Sample(metric, value, labels) for (metric, labels), value in self._counts.items()]
            for (metric, labels), buckets in self._spread.items():
                out.append(Sample(metric, self._sums[metric, labels], labels, tuple(buckets)))
        return out


class Exposition:
    """A collector, as the library calls what it can write. `samples` is asked each time."""

    def __init__(self, pipeline: str, samples: Callable[[], Iterable[Sample]]) -> None:
        self._pipeline = pipeline
        self._samples = samples

    def collect(self) -> Iterator[Family]:
        """The families that have a value now, in the order of their page."""
        found: dict[Metric, list[Sample]] = {}
        for sample in self._samples():
            found.setdefault(sample.metric, []).append(sample)
        for metric in METRICS:
            if metric in found:
                yield self._family(metric, sorted(found[metric], key=lambda one: one.labels))

    def _family(self, metric: Metric, samples: list[Sample]) -> Family:
        names = ("pipeline", *metric.labels)
        match metric.kind:
            case Kind.HISTOGRAM:
                spread = HistogramMetricFamily(metric.name, metric.help, labels=names)
                bounds = [*map(str, metric.buckets), "+Inf"]
                for one in samples:
                    buckets = list(zip(bounds, accumulate(one.counts), strict=True))
                    spread.add_metric((self._pipeline, *one.labels), buckets, one.value)
                return spread
            case Kind.COUNTER:
                family: CounterMetricFamily | GaugeMetricFamily = CounterMetricFamily(
                    metric.name, metric.help, labels=names
                )
            case Kind.GAUGE:
                family = GaugeMetricFamily(metric.name, metric.help, labels=names)
        for one in samples:
            family.add_metric((self._pipeline, *one.labels), one.value)
        return family
