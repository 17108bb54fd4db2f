"""Incidents: how many since the agent started, with the newest report as exemplar, and which are open."""

from collections.abc import Iterator

import msgspec
from prometheus_client.metrics_core import CounterMetricFamily, InfoMetricFamily, Metric
from prometheus_client.samples import Exemplar

from mldebug.model import Verdict
from mldebug.snapshot import Snapshot

KINDS = ("stall",)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class IncidentMetrics:
    """Incidents since the agent started, and the open ones."""

    def families(self, snapshot: Snapshot) -> Iterator[Metric]:
        """Every verdict is there from the start at 0, so that alerts can tell never from unknown."""
        total = CounterMetricFamily(
            "mldebug_incidents", "Incidents by kind and verdict.", labels=["kind", "verdict"]
        )
        for kind in KINDS:
            for verdict in Verdict:
                key = f"{kind}/{verdict}"
                report = snapshot.last_report.get(key)
                exemplar = Exemplar({"report": report}, 1.0) if report else None
                total.add_metric([kind, verdict], snapshot.incidents.get(key, 0), exemplar=exemplar)
        still_open = InfoMetricFamily("mldebug_incident_open", "Open incidents.", labels=["run"])
        for run in snapshot.runs:
            if run.incident:
                still_open.add_metric([run.id], {"report": run.incident, "verdict": run.verdict})
        yield from (total, still_open)


def create(options: Options) -> IncidentMetrics:
    """Build the metric families."""
    return IncidentMetrics()
