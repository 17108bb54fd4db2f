"""Incidents: how many since the agent started, with the newest report as exemplar, and which are open."""

from collections.abc import Iterator

from mldebug.core.model import Verdict
from mldebug.core.plugins import NoOptions
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import FamilyTable, MetricGroup, Sample, known

KINDS = ("stall", "abnormal_end")

TABLE = FamilyTable(absent="while no incident of the run is open")
TOTAL = TABLE.counter(
    "incidents",
    "Incidents since the agent's start. Every kind and verdict is there from the start at 0. Exemplar: the id of"
    " the newest report (`mldebug reports show ID`).",
    "kind",
    "verdict",
    absent="never",
)
OPEN = TABLE.info(
    "incident_open",
    "One for each open incident; the verdict is empty until its first capture is diagnosed.",
    "run",
    "report",
    "kind",
    "verdict",
)
SINCE = TABLE.gauge(
    "incident_since_timestamp_seconds",
    "Unix time since which the run of an open incident has not moved, or has been slow.",
    "run",
)


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """How many incidents there were of every verdict (0 for those that never occurred), then the open ones and since when."""
    expected = {f"{kind}/{verdict}": 0 for kind in KINDS for verdict in Verdict}
    expected[f"slowdown/{Verdict.STRAGGLER}"] = 0  # the only verdict of that kind
    for key, count in (expected | snapshot.incidents).items():
        kind, _, verdict = key.partition("/")
        report = snapshot.last_report.get(key)
        exemplar = ("report", report) if report else None
        yield Sample(TOTAL, (kind, verdict), count, exemplar)
    for run in snapshot.runs:
        if run.incident:
            yield Sample(OPEN, (run.id, run.incident, run.incident_kind, run.verdict))
            yield from known((run.id,), (SINCE, run.incident_since))


def create(options: NoOptions) -> MetricGroup:
    """Build the metric group `incidents`: incidents: how many since the agent started, with the newest report as exemplar, and which are open."""
    return MetricGroup(TABLE.families, samples)
