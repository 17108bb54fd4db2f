"""Prometheus exposition of the last snapshot: custom collectors without state, so what is gone vanishes at once."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from mldebug.rooms import load, names
from mldebug.snapshot import Snapshot

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = openmetrics.CONTENT_TYPE_LATEST


class SnapshotCollector(Collector):
    """Yields the families of every file in `metrics/` for one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """All families, in order of file name."""
        for name in names("metrics"):
            yield from load("metrics", name).families(self.snapshot)


def render(snapshot: Snapshot, accept: str = "") -> tuple[bytes, str]:
    """The exposition and its content type; OpenMetrics (with exemplars) where the scraper accepts it."""
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(snapshot))
    if "application/openmetrics-text" in accept:
        return openmetrics.generate_latest(registry), OPENMETRICS  # type: ignore[no-untyped-call]
    return generate_latest(registry), PLAIN
