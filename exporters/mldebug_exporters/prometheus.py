"""Prometheus exposition of the last snapshot: custom collectors without state, so what is gone vanishes at once."""

from collections.abc import Iterator
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from mldebug.rooms import create_all
from mldebug.snapshot import Snapshot

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = openmetrics.CONTENT_TYPE_LATEST


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class SnapshotCollector(Collector):
    """Yields the families of every file in `metrics/` for one snapshot."""

    def __init__(self, snapshot: Snapshot, metrics: list[Any]) -> None:
        self.snapshot = snapshot
        self.metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """All families, in order of file name."""
        for one in self.metrics:
            yield from one.families(self.snapshot)


class Prometheus:
    """Renders snapshots; holds the metric files, and no state between two scrapes."""

    def __init__(self) -> None:
        self.metrics = create_all("metrics")

    def render(self, snapshot: Snapshot, accept: str = "") -> tuple[bytes, str]:
        """The exposition and its content type; OpenMetrics (with exemplars) where the scraper accepts it."""
        registry = CollectorRegistry()
        registry.register(SnapshotCollector(snapshot, self.metrics))
        if "application/openmetrics-text" in accept:
            return openmetrics.generate_latest(registry), OPENMETRICS  # type: ignore[no-untyped-call]
        return generate_latest(registry), PLAIN


def create(options: Options) -> Prometheus:
    """Build the renderer."""
    return Prometheus()
