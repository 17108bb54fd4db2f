"""The events that this agent sends to the hub of its fleet."""

from collections.abc import Iterator

from mldebug.core.plugins import NoOptions
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import FamilyTable, MetricGroup, Sample

TABLE = FamilyTable()
WITHOUT = "where no hub is configured"
WAITING = TABLE.gauge(
    "fleet_events_waiting", "Events that the hub has not got yet.", absent=WITHOUT
)
WAITING_BYTES = TABLE.gauge("fleet_events_waiting_bytes", "Their size.", absent=WITHOUT)
SENT = TABLE.counter("fleet_events_sent", "Events that the hub has taken since the agent's start.", absent=WITHOUT)  # fmt: skip
LOST = TABLE.counter("fleet_events_lost", "Events that were dropped, because too many waited for the hub, by kind.", "kind", absent="before one was dropped")  # fmt: skip
REFUSED = TABLE.counter("fleet_events_refused", "Events that the hub has refused, by reason. size, malformed: it is too large, or no event; name: of another node; future: the clocks differ;"
                        " schema: the hub is older than the agent.", "reason", absent="before one was refused")  # fmt: skip
SUCCESS = TABLE.gauge("fleet_last_success_timestamp_seconds", "When the hub has taken events last.", absent="before it has taken some")  # fmt: skip


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """How many events wait for the hub, and how many the hub has stored and refused."""
    found = snapshot.fleet
    if found is None:
        return
    yield Sample(WAITING, (), found.waiting)
    yield Sample(WAITING_BYTES, (), found.waiting_bytes)
    yield Sample(SENT, (), found.sent)
    for kind, count in sorted(found.lost.items()):
        yield Sample(LOST, (kind,), count)
    for reason, count in sorted(found.refused.items()):
        yield Sample(REFUSED, (reason,), count)
    if found.last_success is not None:
        yield Sample(SUCCESS, (), found.last_success)


def create(options: NoOptions) -> MetricGroup:
    """Build the metric group `fleet`: the events that this agent sends to the hub of its fleet."""
    return MetricGroup(TABLE.families, samples)
