"""The Prometheus text format, by prometheus-client. Imported with the first scrape: that takes time and memory which a
server without a Prometheus need not spend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from outlive.core.counts import Histogram
from outlive.telemetry.names import METRICS, PREFIX, Sample, Values


class Exposition(Collector):
    """Renders samples, and those of the process."""

    def __init__(self, collect: Callable[[], Iterable[Sample]]) -> None:
        self._collect = collect
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(namespace=PREFIX.rstrip("_"), registry=self._registry)

    def render(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the families, for prometheus-client."""
        for name, values in self._collect():
            yield _make_family(name, values)


def _make_family(name: str, values: Values | float | Histogram) -> Metric:
    described = METRICS[name]
    if isinstance(values, Histogram):
        histogram = HistogramMetricFamily(PREFIX + name, described.help)
        histogram.add_metric([], list(_accumulate(values)), values.total)
        return histogram
    kind = CounterMetricFamily if described.type == "counter" else GaugeMetricFamily
    family = kind(PREFIX + name, described.help, labels=described.labels)
    samples: Iterable[tuple[tuple[str, ...], float]] = values.items() if isinstance(values, Mapping) else [((), values)]
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _accumulate(histogram: Histogram) -> Iterator[tuple[str, float]]:
    """Yield bounds and counts as Prometheus has them: each bucket counts all values up to its bound."""
    total = 0
    for bound, count in zip([*map(str, histogram.bounds), "+Inf"], histogram.counts, strict=True):
        total += count
        yield bound, total
