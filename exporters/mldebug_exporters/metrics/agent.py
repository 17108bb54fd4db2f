"""The agent itself: build, cost, and how its sources do."""

from collections.abc import Iterator

import msgspec
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)

from mldebug.snapshot import Snapshot


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class AgentMetrics:
    """What the agent costs and how its sources do."""

    def families(self, snapshot: Snapshot) -> Iterator[Metric]:
        """A broken source is a metric, never a crash."""
        yield InfoMetricFamily(
            "mldebug_build", "Version of the agent.", value={"version": snapshot.version}
        )
        yield CounterMetricFamily(
            "mldebug_agent_cpu_seconds", "CPU time of the agent.", value=snapshot.cpu_seconds
        )
        yield GaugeMetricFamily(
            "mldebug_agent_resident_memory_bytes", "RSS of the agent.", value=snapshot.rss_bytes
        )
        yield GaugeMetricFamily(
            "mldebug_agent_start_time_seconds", "Unix time of its start.", value=snapshot.started_at
        )
        yield CounterMetricFamily(
            "mldebug_reports_lost",
            "Reports and states that could not be stored.",
            value=snapshot.reports_lost,
        )
        success = GaugeMetricFamily(
            "mldebug_source_success", "1 where the last round went well.", labels=["source"]
        )
        seconds = GaugeMetricFamily(
            "mldebug_source_duration_seconds", "Duration of the last round.", labels=["source"]
        )
        stuck = GaugeMetricFamily(
            "mldebug_source_stuck", "1 while a round is past its deadline.", labels=["source"]
        )
        for source in snapshot.sources:
            success.add_metric([source.name], float(source.success))
            seconds.add_metric([source.name], source.seconds)
            stuck.add_metric([source.name], float(source.stuck))
        yield from (success, seconds, stuck)


def create(options: Options) -> AgentMetrics:
    """Build the metric families."""
    return AgentMetrics()
