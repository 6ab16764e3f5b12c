"""Shows the figures of metrics.py as Prometheus text."""

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lakestream.metrics import COUNTER, HISTOGRAM, PREFIX, Figure, Histogram, Metrics, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition(Collector):
    """One registry for one broker: its figures, and the process's memory and CPU."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        for figure, series in self._metrics.series():
            yield _family(figure, series)


def _family(figure: Figure, series: dict[tuple[str, ...], Sample]) -> Metric:
    name = PREFIX + figure.name
    if figure.kind == HISTOGRAM:
        histogram = HistogramMetricFamily(name, figure.help, labels=figure.labels)
        for labels, sample in series.items():
            assert isinstance(sample, Histogram)
            bounds = [str(bound) for bound in sample.bounds] + ["+Inf"]
            buckets = list(zip(bounds, map(float, accumulate(sample.counts)), strict=True))
            histogram.add_metric(labels, buckets, sample.total)
        return histogram
    kind = CounterMetricFamily if figure.kind == COUNTER else GaugeMetricFamily
    family = kind(name, figure.help, labels=figure.labels)
    for labels, sample in series.items():
        assert not isinstance(sample, Histogram)
        family.add_metric(labels, sample())
    return family
