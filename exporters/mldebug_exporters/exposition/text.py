"""A page as client_python writes it: Prometheus's own text format 0.0.4, or OpenMetrics 1.0 with exemplars.

Label values come in cleaned: one line, no control characters, valid UTF-8.
"""

import re
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics_text
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from mldebug_exporters.exposition.collect import MetricsPage, Values
from mldebug_exporters.exposition.families import Family, Histogram

EXEMPLAR_RUNES = 128  # names and values together, by the OpenMetrics standard
UNITS = ("seconds", "bytes")
_ID = re.compile(r"[A-Za-z0-9._:/-]+")


def write(page: MetricsPage, openmetrics: bool) -> bytes:
    """The page as Prometheus text (0.0.4), or as OpenMetrics 1.0."""
    collector = _Collector(page)
    if openmetrics:
        return bytes(openmetrics_text.generate_latest(collector))  # type: ignore[no-untyped-call]
    return generate_latest(collector)


class _Collector(Collector):
    """What the library collects from."""

    def __init__(self, page: MetricsPage) -> None:
        self._page = page

    def collect(self) -> Iterator[Metric]:
        """All families in order; one without samples is declared all the same."""
        for family, values in self._page.families:
            yield _metric(family, values)


def _metric(family: Family, values: Values) -> Metric:
    unit = family.name.rpartition("_")[2]
    metric = Metric(family.name, family.help, family.kind, unit if unit in UNITS else "")
    for labels, sample in values.items():
        named = dict(zip(family.labels, labels, strict=True))
        if isinstance(sample.value, Histogram):
            _add_histogram(metric, named, sample.value)
        else:
            exemplar = _exemplar(sample.exemplar) if sample.exemplar else None
            metric.add_sample(family.series, named, sample.value, exemplar=exemplar)
    return metric


def _add_histogram(metric: Metric, labels: dict[str, str], value: Histogram) -> None:
    counts = list(accumulate(value.counts))
    bounds = (*value.bounds, float("inf"))
    for bound, count in zip(bounds, counts, strict=True):
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": _bound(bound)}, count)
    metric.add_sample(f"{metric.name}_count", labels, counts[-1])
    metric.add_sample(f"{metric.name}_sum", labels, value.sum)


def _bound(value: float) -> str:
    """As Go writes it, which Prometheus compares as text."""
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def _exemplar(exemplar: tuple[str, str]) -> Exemplar | None:
    """An id; what is none, or is too long, is left out: not every parser can read it."""
    key, value = exemplar
    fits = len(key) + len(value) <= EXEMPLAR_RUNES and _ID.fullmatch(value)
    return Exemplar({key: value}, 1.0) if fits else None
